// Any operation of ATen: shapes by its meta kernel, values later by the CPU's kernel.
#pragma once
#include "shapes.h"
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/ForeachUtils.h>

namespace sim {

static const std::set<std::string> READS = {
    "aten::nonzero",    "aten::masked_select",        "aten::equal",       "aten::_unique2",
    "aten::unique_dim", "aten::unique_consecutive",   "aten::bincount",    "aten::is_nonzero",
    "aten::_unique",    "aten::repeat_interleave",    "aten::linalg_eigh", "aten::_linalg_eigh",
    "aten::linalg_qr",  "aten::_linalg_check_errors", "aten::histc",       "aten::_linalg_svd"};
// What CUDA refuses with deterministic=true, by the messages in libtorch_cuda.so.
static const std::set<std::string> NOT_DETERMINISTIC = {"aten::_adaptive_avg_pool2d_backward",
                                                        "aten::grid_sampler_2d_backward",
                                                        "aten::histc",
                                                        "aten::upsample_bilinear2d_backward",
                                                        "aten::upsample_bicubic2d_backward",
                                                        "aten::_upsample_bilinear2d_aa_backward",
                                                        "aten::_upsample_bicubic2d_aa_backward",
                                                        "aten::adaptive_max_pool2d_backward",
                                                        "aten::avg_pool3d_backward",
                                                        "aten::reflection_pad2d_backward",
                                                        "aten::nll_loss2d_forward"};

static bool is_half(const Tensor& t) {
    return t.defined() && (t.scalar_type() == kHalf || t.scalar_type() == kBFloat16);
}
static std::vector<Tensor> tensors_of(const c10::IValue& v) {
    std::vector<Tensor> all;
    auto copy = v;
    each(copy, [&](const Tensor& t) {
        all.push_back(t);
        return t;
    });
    return all;
}
// Run the CPU's kernel; in float32 where the CPU has none for half precision.
static std::vector<c10::IValue> on_cpu(const c10::OperatorHandle& op, std::vector<c10::IValue> args, uint64_t seed) {
    const auto& schema = op.schema();
    bool draws = op.hasTag(at::Tag::nondeterministic_seeded);
    at::Generator own;
    if (draws) {
        own = at::detail::createCPUGenerator(seed);
        for (size_t i = 0; i < args.size(); i++)
            if (schema.arguments()[i].type()->str().find("Generator") != std::string::npos) args[i] = own;
    }
    std::optional<at::Generator> before;
    if (draws) {
        auto g = at::detail::getDefaultCPUGenerator();
        before = g.clone();
        auto h = g;
        h.set_current_seed(seed);
    }
    torch::jit::Stack stack = args;
    try {
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    } catch (const c10::Error& error) {
        if (std::string(error.what()).find("not implemented for") == std::string::npos) throw;
        std::vector<std::pair<Tensor, Tensor>> wide;
        stack.clear();
        for (auto v : args) {
            each(v, [&](const Tensor& t) {
                if (!is_half(t)) return t;
                wide.emplace_back(t, t.to(kFloat));
                return wide.back().second;
            });
            stack.push_back(v);
        }
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
        for (auto& [narrow, one] : wide) narrow.copy_(one);
    }
    if (before) {
        auto g = at::detail::getDefaultCPUGenerator();
        auto state = before->get_state();
        g.set_state(state);
    }
    return {stack.end() - schema.returns().size(), stack.end()};
}
static int count_launches(const std::string& name, const std::vector<c10::IValue>& args) {
    bool fused = name.rfind("aten::_fused_", 0) == 0, foreach = name.rfind("aten::_foreach_", 0) == 0;
    if (!fused && !foreach) return 1;
    std::vector<std::vector<Tensor>> lists;
    for (auto& v : args)
        if (v.isTensorList()) {
            auto l = v.toTensorVector();
            if (!l.empty()) lists.push_back(l);
        }
    bool fast = !lists.empty();
    size_t first = lists.empty() ? 0 : lists[0].size();
    bool copies = name == "aten::_foreach_copy_";
    for (auto& list : lists)
        for (size_t i = 0; i < list.size() && i < first; i++) {
            const auto &a = lists[0][i], &b = list[i];
            if (name == "aten::_fused_adamw_" && b.dim() == 0 && a.dim() != 0) continue;  // the counts of steps
            if (list.size() == first && !(b.dim() == 0 && a.dim() != 0)) {
                if (a.sizes() != b.sizes() || (!copies && a.scalar_type() != b.scalar_type()))
                    fast = false;
                else
                    for (int64_t d = 0; d < a.dim(); d++)
                        if (a.size(d) != 1 && a.stride(d) != b.stride(d)) fast = false;
            }
            if (!b.is_non_overlapping_and_dense()) fast = false;
        }
    if (fused)
        TORCH_CHECK(fast || lists.empty(), "params, grads and states must have same dtype, device, and layout (", name,
                    ")");
    if (!fast && first > 1) {
        std::lock_guard<std::mutex> g(mutex_);
        slow_[name] += first;
    }
    return fast ? 1 : std::max<int>(1, first);
}

static void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const auto& schema = op.schema();
    const auto n = schema.arguments().size(), m = schema.returns().size();
    const std::string& name = schema.name();
    std::vector<c10::IValue> args(stack->end() - n, stack->end());
    stack->erase(stack->end() - n, stack->end());
    std::optional<c10::Device> where;
    std::vector<Tensor> own;
    for (auto& v : args)
        for (auto& t : tensors_of(v))
            if (t.defined()) {
                if (t.device().type() == SIM) {
                    if (where && *where != t.device())
                        TORCH_CHECK(false, "Expected all tensors to be on the same device: ", *where, " and ",
                                    t.device(), " in ", name);
                    where = t.device();
                    own.push_back(t);
                }
            }
    for (size_t i = 0; i < n; i++) {
        const auto& argument = schema.arguments()[i].name();
        if (name.rfind("aten::_fused_", 0) == 0 && (argument == "found_inf" || argument == "grad_scale"))
            not_on_mps(argument.c_str(), args[i].isTensor() && args[i].toTensor().defined());
    }
    const bool indexes =
        name == "aten::index" || name.rfind("aten::_index_put", 0) == 0 || name.rfind("aten::index_put", 0) == 0;
    for (auto& v : args) {
        if (v.isOptionalTensorList() && indexes) {  // note: torch copies them to the device
            auto indices = v.toOptionalTensorList().copy();
            for (size_t j = 0; j < indices.size(); j++)
                if (std::optional<Tensor> t = indices.get(j); t && t->defined() && t->device().type() == c10::kCPU)
                    indices.set(j, t->to(*where));
            v = indices;
        }
        if (v.isGenerator() && v.toGenerator().defined() && v.toGenerator().device().type() != SIM)
            TORCH_CHECK(false, "Expected a 'sim' device type for generator but found '", v.toGenerator().device(), "'");
        for (auto& t : tensors_of(v))
            if (t.defined() && t.device().type() == c10::kCPU) {
                TORCH_CHECK(t.dim() == 0,
                            "Expected all tensors to be on the same device, but found at least two devices, ",
                            where ? where->str() : "sim", " and cpu! (", name, ", shape ", t.sizes(), ")");
            }
        if (v.isDevice() && v.toDevice().type() == SIM) where = device_of(v.toDevice());
        if (v.isOptionalTensorList() && indexes)
            for (auto& t : tensors_of(v))
                if (t.defined() && (t.scalar_type() == kBool || t.scalar_type() == kByte)) {
                    host_waits("index by a mask");
                    where = t.device();
                }
    }
    auto device = where ? *where : device_of(std::nullopt);
    On on(device);
    if (at::globalContext().deterministicAlgorithms() && NOT_DETERMINISTIC.count(name))
        TORCH_CHECK(false, name, " does not have a deterministic implementation on CUDA");
    int launches = count_launches(name, args);

    std::map<c10::TensorImpl*, Tensor> aliases;
    auto aliased = [&](const Tensor& t) -> Tensor {
        if (!t.defined()) return t;
        if (t.device().type() == c10::kCPU) return t.clone();  // note: CUDA reads a host scalar at the launch
        auto& alias = aliases[t.unsafeGetTensorImpl()];
        if (!alias.defined()) alias = host_alias(t);
        return alias;
    };
    auto with_aliases = [&] {
        auto result = args;
        for (auto& v : result) {
            each(v, aliased);
            if (v.isDevice() && v.toDevice().type() == SIM) v = c10::Device(c10::kCPU);
            if (v.isGenerator()) v = c10::IValue();
        }
        return result;
    };
    auto seed_of = [&]() -> uint64_t {
        if (!op.hasTag(at::Tag::nondeterministic_seeded)) return 0;
        for (auto& v : args)
            if (v.isGenerator()) {
                auto g = v.toGenerator();
                if (g.defined() && g.device().type() == SIM)
                    return static_cast<Generator*>(g.unsafeGetGeneratorImpl())->next();
            }
        return next_seed();
    };
    auto original =
        [&](const Tensor& alias) -> Tensor {  // the device tensor of a CPU result that lies in an argument's memory
        for (auto& t : own) {
            const char* base = (const char*)t.storage().data();
            const char* at = (const char*)alias.storage().data();
            if (alias.storage().nbytes() && base == at) {
                if (aliases.count(t.unsafeGetTensorImpl()) &&
                    aliases[t.unsafeGetTensorImpl()].unsafeGetTensorImpl() == alias.unsafeGetTensorImpl())
                    return t;
            }
        }
        for (auto& t : own)
            if (alias.storage().nbytes() && t.storage().data() == alias.storage().data())
                return at::native::as_strided_tensorimpl(t, alias.sizes(), alias.strides(), alias.storage_offset());
        return Tensor();
    };

    bool view = m > 0, fresh = false, outs = false;
    for (auto& r : schema.returns()) {
        auto* a = r.alias_info();
        if (!a || a->isWrite()) view = false;
        if (!a) fresh = true;
    }
    for (auto& a : schema.arguments()) outs = outs || a.is_out();
    bool reads = READS.count(name);
    if (view) {
        KernelScope scope;
        auto results = on_cpu(op, with_aliases(), 0);
        for (auto& v : results) {
            each(v, [&](const Tensor& t) {
                auto o = original(t);
                return o.defined() ? o : t;
            });
            stack->push_back(v);
        }
        return;
    }
    std::vector<c10::IValue> shapes;
    bool known = !reads;
    Metas metas;
    if (known && (fresh || outs)) {
        auto found = shapes_of(op, args, metas);
        known = found.has_value();
        if (known) shapes = *found;
    }
    if (!known) {  // run it now, after all that the current stream has queued
        if (reads)
            host_waits(name);
        else {
            TORCH_CHECK(!of_capture(), "the simulator cannot capture ", name, ", which has no meta kernel");
            std::lock_guard<std::mutex> g(mutex_);
            early_[name]++;
        }
        Key key = current_stream();
        run_until(key, position(key));
        launches_ += launches;
        std::lock_guard<std::recursive_mutex> x(running_);
        KernelScope scope;
        auto results = on_cpu(op, with_aliases(), seed_of());
        for (auto& v : results) {
            each(v, [&](const Tensor& t) -> Tensor {
                if (!t.defined()) return t;
                auto o = original(t);
                if (o.defined()) return o;
                auto made = like_meta(t, device);
                run_until(key, position(key));
                copy_now(host_alias(made), t);
                return made;
            });
            stack->push_back(v);
        }
        return;
    }
    for (auto& t : own)
        if (auto it = metas.find(t.unsafeGetTensorImpl()); it != metas.end() && it->second.sizes() != t.sizes())
            set_shape(t, it->second.sizes(), it->second.strides());
    // results: arguments, or new memory
    std::vector<c10::IValue> results;
    std::vector<Tensor> made;
    std::vector<std::pair<size_t, size_t>> places;
    if (fresh || outs) {
        for (size_t i = 0; i < m; i++) {
            auto v = shapes[i];
            size_t k = 0;
            each(v, [&](const Tensor& t) -> Tensor {
                size_t place = k++;
                if (!t.defined()) return t;
                for (auto& [impl, meta] : metas)
                    if (meta.unsafeGetTensorImpl() == t.unsafeGetTensorImpl())
                        for (auto& o : own)
                            if (o.unsafeGetTensorImpl() == impl) return o;
                auto one = like_meta(t, device);
                made.push_back(host_alias(one));
                places.emplace_back(i, place);
                return one;
            });
            results.push_back(v);
        }
    } else {
        for (size_t i = 0; i < m; i++) {  // in place: each result is the argument of the same alias
            auto& set = schema.returns()[i].alias_info()->beforeSets();
            c10::IValue result;
            for (size_t a = 0; a < n; a++)
                if (auto* info = schema.arguments()[a].alias_info())
                    if (info->beforeSets() == set) result = args[a];
            results.push_back(result);
        }
    }
    auto handle = op;
    auto cpu_args = with_aliases();
    enqueue_seeded(
        schema.name().c_str(),
        [handle, cpu_args, made, places](uint64_t seed) {
            auto computed = on_cpu(handle, cpu_args, seed);
            for (size_t i = 0; i < made.size(); i++) {
                auto all = tensors_of(computed[places[i].first]);
                auto& t = all.at(places[i].second);
                if (t.defined()) copy_now(made[i], t);
            }
        },
        launches, seed_of());
    for (auto& v : results) stack->push_back(v);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace sim
