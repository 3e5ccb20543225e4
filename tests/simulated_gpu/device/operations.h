// Operations that the dispatcher finds by name: convolutions, foreach functions, autocast's lists.
#pragma once
#include "kernels.h"
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace sim {

static bool channels_last(const Tensor& t) {
    return t.dim() == 4 && t.suggest_memory_format() == MemoryFormat::ChannelsLast;
}
static Tensor as_meta(const Tensor& t) { return at::empty_strided(t.sizes(), t.strides(), t.options().device(kMeta)); }
static void same(const Tensor& a, const Tensor& b) {
    TORCH_CHECK(!b.defined() || a.device() == b.device(), "Expected all tensors to be on the same device: ", a.device(),
                " and ", b.device(), " in convolution");
    TORCH_CHECK(!b.defined() || a.scalar_type() == b.scalar_type(), "Input type (", a.scalar_type(),
                ") and weight type (", b.scalar_type(), ") should be the same");
}
static Tensor conv(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b, c10::SymIntArrayRef st,
                   c10::SymIntArrayRef pa, c10::SymIntArrayRef di, bool tr, c10::SymIntArrayRef op, c10::SymInt g) {
    same(x, w);
    On on(x.device());
    auto s = C10_AS_INTARRAYREF_SLOW(st).vec(), p = C10_AS_INTARRAYREF_SLOW(pa).vec(),
         d = C10_AS_INTARRAYREF_SLOW(di).vec(), o = C10_AS_INTARRAYREF_SLOW(op).vec();
    int64_t groups = g.expect_int();
    Tensor bias = b.value_or(Tensor());
    Tensor m;
    {
        KernelScope scope;
        m = at::convolution(as_meta(x), as_meta(w),
                            bias.defined() ? std::optional<Tensor>(as_meta(bias)) : std::nullopt, s, p, d, tr, o,
                            groups);
    }
    Tensor out = at::empty(m.sizes(),
                           x.options().memory_format(channels_last(x) || channels_last(w) ? MemoryFormat::ChannelsLast
                                                                                          : MemoryFormat::Contiguous));
    auto hx = host_alias(x), hw = host_alias(w), ho = host_alias(out);
    auto hb = bias.defined() ? std::optional<Tensor>(host_alias(bias)) : std::nullopt;
    enqueue("convolution", [=](uint64_t) { copy_now(ho, at::convolution(hx, hw, hb, s, p, d, tr, o, groups)); });
    return out;
}
static std::tuple<Tensor, Tensor, Tensor> conv_backward(const Tensor& gr, const Tensor& x, const Tensor& w,
                                                        c10::SymIntArrayRef st, c10::SymIntArrayRef pa,
                                                        c10::SymIntArrayRef di, bool tr, c10::SymIntArrayRef op,
                                                        c10::SymInt g, std::array<bool, 3> mask) {
    same(x, w);
    same(x, gr);
    On on(x.device());
    auto s = C10_AS_INTARRAYREF_SLOW(st).vec(), p = C10_AS_INTARRAYREF_SLOW(pa).vec(),
         d = C10_AS_INTARRAYREF_SLOW(di).vec(), o = C10_AS_INTARRAYREF_SLOW(op).vec();
    int64_t groups = g.expect_int();
    auto mf = channels_last(x) || channels_last(w) ? MemoryFormat::ChannelsLast : MemoryFormat::Contiguous;
    Tensor r[3];
    if (mask[0]) r[0] = at::empty(x.sizes(), x.options().memory_format(mf));
    if (mask[1]) r[1] = at::empty(w.sizes(), w.options().memory_format(mf));
    if (mask[2]) r[2] = at::empty({gr.size(1)}, w.options());
    auto hg = host_alias(gr), hx = host_alias(x), hw = host_alias(w);
    std::vector<Tensor> h;
    for (auto& t : r) h.push_back(t.defined() ? host_alias(t) : Tensor());
    std::vector<int64_t> bias{gr.size(1)};
    enqueue(
        "convolution_backward",
        [=](uint64_t) {
            auto [a, b, c] = at::convolution_backward(
                hg, hx, hw, mask[2] ? at::OptionalIntArrayRef(bias) : std::nullopt, s, p, d, tr, o, groups, mask);
            if (mask[0]) copy_now(h[0], a);
            if (mask[1]) copy_now(h[1], b);
            if (mask[2]) copy_now(h[2], c);
        },
        mask[0] + mask[1] + mask[2]);
    return {r[0], r[1], r[2]};
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", empty_sim);
    m.impl("empty_strided", empty_strided_sim);
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_resize);
    m.impl("_local_scalar_dense", local_scalar);
    m.impl("as_strided", as_strided_sim);
    m.impl("view", view_sim);
    m.impl("_reshape_alias", reshape_alias_sim);
    m.impl("resize_", resize_sim);
    m.impl("set_.source_Storage", set_source);
    m.impl("set_.source_Storage_storage_offset", set_storage);
    m.impl("set_.source_Tensor", set_tensor);
    m.impl("record_stream", record_stream_sim);
    m.impl("convolution_overrideable", conv);
    m.impl("convolution_backward_overrideable", conv_backward);
    // note: else they would be taken apart, into a launch for each tensor
    for (auto& name : c10::Dispatcher::singleton().getAllOpNames())
        if (name.name.rfind("aten::_foreach_", 0) == 0 && name.name.find("_out") == std::string::npos &&
            name.overload_name.find("out") == std::string::npos)
            m.impl((name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name)).c_str(),
                   torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
// autocast, with CUDA's lists
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
#define _K(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
    AT_FORALL_LOWER_PRECISION_FP(_K)
#undef _K
#define _K(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
    AT_FORALL_FP32(_K)
#undef _K
#define _K(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
    AT_FORALL_PROMOTE(_K)
#undef _K
}

}  // namespace sim
