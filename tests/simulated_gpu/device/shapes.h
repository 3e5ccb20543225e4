// Shapes of results by meta kernels, remembered by the arguments, since many of these kernels are slow Python.
#pragma once
#include "tensors.h"

namespace sim {

using Metas = std::map<c10::TensorImpl*, Tensor>;  // meta tensors by the device tensor
struct Shapes {
    std::optional<std::vector<c10::IValue>> results;  // meta tensors; none without a meta kernel
    std::vector<Tensor> arguments;                    // those of device tensors, in the order of their first use
};

static void each(c10::IValue& v, const std::function<Tensor(const Tensor&)>& f) {
    if (v.isTensor())
        v = f(v.toTensor());
    else if (v.isTensorList()) {
        std::vector<Tensor> l;
        for (const Tensor& t : v.toTensorVector()) l.push_back(f(t));
        v = c10::IValue(l);
    } else if (v.isOptionalTensorList()) {
        c10::List<std::optional<Tensor>> l;
        auto old = v.toOptionalTensorList();
        for (size_t k = 0; k < old.size(); k++) {
            std::optional<Tensor> t = old.get(k);
            l.push_back(t ? std::optional<Tensor>(f(*t)) : t);
        }
        v = c10::IValue(l);
    }
}
// Append to a key all that shapes depend on; false for an argument of another kind.
static bool describe(std::string& key, const c10::IValue& v, std::map<c10::TensorImpl*, size_t>& seen) {
    auto put = [&](char kind, const auto& value) { key.append(&kind, 1).append((const char*)&value, sizeof value); };
    if (v.isTensor() && v.toTensor().defined()) {
        const auto& t = v.toTensor();
        put('t', t.scalar_type());
        if (t.device().type() != SIM) {  // a host scalar, whose value a meta kernel may read
            put('w', t.unsafeGetTensorImpl()->is_wrapped_number());
            key.append((const char*)t.const_data_ptr(), t.element_size());
            return t.dim() == 0;
        }
        put('i', seen.emplace(t.unsafeGetTensorImpl(), seen.size()).first->second);
        put('d', t.dim());
        for (auto n : t.sizes()) put('n', n);
        for (auto n : t.strides()) put('s', n);
        return true;
    }
    if (v.isInt()) put('l', v.toInt());
    if (v.isDouble()) put('f', v.toDouble());
    if (v.isBool()) put('b', v.toBool());
    if (v.isString()) key += 'c' + v.toStringRef() + '\0';
    if (v.isList()) {
        auto list = v.toList();
        put('[', list.size());
        for (size_t i = 0; i < list.size(); i++)
            if (!describe(key, list.get(i), seen)) return false;
    }
    key += ',';
    return v.isTensor() || v.isInt() || v.isDouble() || v.isBool() || v.isString() || v.isList() || v.isNone() ||
           v.isDevice() || v.isGenerator();
}
static Shapes run_meta_kernel(const c10::OperatorHandle& op, torch::jit::Stack stack, Metas& metas) {
    Shapes shapes;
    for (auto& v : stack) {
        each(v, [&](const Tensor& t) -> Tensor {
            if (!t.defined() || t.device().type() != SIM) return t;
            auto& one = metas[t.unsafeGetTensorImpl()];
            if (!one.defined()) {
                one = at::empty_strided(t.sizes(), t.strides(), t.options().device(kMeta));
                shapes.arguments.push_back(one);
            }
            return one;
        });
        if (v.isDevice() && v.toDevice().type() == SIM) v = c10::Device(kMeta);
        if (v.isGenerator()) v = c10::IValue();
    }
    try {
        KernelScope scope;
        op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
        shapes.results.emplace(stack.end() - op.schema().returns().size(), stack.end());
    } catch (const std::exception&) {
    }
    return shapes;
}
// Return the meta tensors of an operation's results, and set those of its arguments; nothing without a meta kernel.
static std::optional<std::vector<c10::IValue>> shapes_of(const c10::OperatorHandle& op,
                                                         const std::vector<c10::IValue>& args, Metas& metas) {
    static std::mutex mutex;
    static std::map<std::string, Shapes> remembered;
    std::map<c10::TensorImpl*, size_t> seen;
    std::string key = toString(op.operator_name()) + '\0';
    bool described = true;
    for (auto& v : args) described = described && describe(key, v, seen);
    if (!described) return run_meta_kernel(op, args, metas).results;
    {
        std::lock_guard<std::mutex> g(mutex);
        if (auto known = remembered.find(key); known != remembered.end()) {
            for (auto& [impl, place] : seen) metas[impl] = known->second.arguments[place];
            return known->second.results;
        }
    }
    auto shapes = run_meta_kernel(op, args, metas);
    std::lock_guard<std::mutex> g(mutex);
    remembered[key] = shapes;
    return shapes.results;
}

}  // namespace sim
