// Tensors in device memory, their shapes, and copies.
#pragma once
#include "devices.h"
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/as_strided_native.h>
#include <c10/core/CPUAllocator.h>

namespace sim {

static c10::Device device_of(std::optional<c10::Device> d) {
    return {SIM, (c10::DeviceIndex)(d && d->index() >= 0 ? d->index() : current_device_)};
}
struct On {
    int before = current_device_;
    On(c10::Device d) { current_device_ = d.index(); }
    ~On() { current_device_ = before; }
};
static const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);
static Tensor empty_strided_sim(IntArrayRef size, IntArrayRef stride, std::optional<ScalarType> dt,
                                std::optional<Layout>, std::optional<Device> d, std::optional<bool> pin) {
    TORCH_CHECK(!pin.value_or(false), "only CPU memory can be pinned");
    not_on_mps("float64", dtype_or_default(dt) == kDouble);
    On on(device_of(d));
    return at::detail::empty_strided_generic(size, stride, &allocator_, KEYS, dtype_or_default(dt));
}
static Tensor empty_sim(IntArrayRef size, std::optional<ScalarType> dt, std::optional<Layout>, std::optional<Device> d,
                        std::optional<bool> pin, std::optional<MemoryFormat> mf) {
    TORCH_CHECK(!pin.value_or(false), "only CPU memory can be pinned");
    not_on_mps("float64", dtype_or_default(dt) == kDouble);
    On on(device_of(d));
    return at::detail::empty_generic(size, &allocator_, KEYS, dtype_or_default(dt), mf);
}
// A CPU tensor on the memory of a device tensor, which it does not own.
static Tensor host_alias(const Tensor& t) {
    c10::Storage s(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
                   c10::DataPtr(const_cast<void*>(t.storage().data()), nullptr, &none, c10::Device(c10::kCPU)),
                   c10::GetCPUAllocator(), false);
    auto out =
        at::detail::make_tensor<c10::TensorImpl>(std::move(s), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
    out.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    return out;
}
static Tensor like_meta(const Tensor& m, c10::Device d) {
    not_on_mps("float64", m.scalar_type() == kDouble);
    On on(d);
    return at::detail::empty_strided_generic(m.sizes(), m.strides(), &allocator_, KEYS, m.scalar_type());
}
static void copy_now(const Tensor& to, const Tensor& from) {
    if (from.numel() == 0) return;  // note: such as the statistics of a batch norm in evaluation
    TORCH_CHECK(to.sizes() == from.sizes(), "shape ", from.sizes(), " instead of ", to.sizes());
    const_cast<Tensor&>(to).copy_(from);
}

static Tensor copy_from(const Tensor& src, const Tensor& dst, bool non_blocking) {
    bool from = src.device().type() == SIM, to = dst.device().type() == SIM;
    On on(from ? src.device() : dst.device());
    if (src.numel() == 0) return dst;
    Key key = current_stream();
    auto s = from ? host_alias(src) : src, d = to ? host_alias(dst) : dst;
    if (from && to) {
        enqueue("copy_", [s, d](uint64_t) mutable { d.copy_(s); });
        return dst;
    }
    bool direct =
        src.scalar_type() == dst.scalar_type() && src.strides() == dst.strides() && src.is_non_overlapping_and_dense();
    if (from) {
        bool pinned = is_pinned_ptr(dst.data_ptr());
        if (non_blocking && pinned && direct) {
            record_pinned(dst.data_ptr());  // note: before and after, so that the position is that of the copy
            auto h = at::from_blob(dst.data_ptr(), dst.sizes(), dst.strides(), dst.options());
            enqueue("copy to the host", [s, h](uint64_t) mutable { h.copy_(s); });
            record_pinned(dst.data_ptr());
            return dst;
        }
        host_waits(non_blocking ? "copy to pageable memory, or with a conversion" : "blocking copy to the host");
        enqueue("copy to the host", [s, d](uint64_t) mutable { d.copy_(s); });
        run_until(key, position(key));
        return dst;
    }
    bool pinned = is_pinned_ptr(src.data_ptr());
    sent_ += src.nbytes();
    if (!non_blocking)
        host_waits(pinned      ? "blocking copy from pinned memory"
                   : src.dim() ? "blocking copy from pageable memory"
                               : "blocking copy of a host scalar");
    else if (of_capture() && !(pinned && direct))
        host_waits("copy from pageable memory");
    if (non_blocking && pinned && direct) {
        auto h = at::from_blob(src.data_ptr(), src.sizes(), src.strides(), src.options());
        enqueue("copy to the device", [h, d](uint64_t) mutable { d.copy_(h); });
        record_pinned(src.data_ptr());
    } else {
        auto staged = src.clone();
        enqueue("copy to the device", [staged, d](uint64_t) mutable { d.copy_(staged); });
        if (!non_blocking) run_until(key, position(key));
    }
    return dst;
}
static Tensor copy_from_resize(const Tensor& src, const Tensor& dst) {
    dst.resize_(src.sizes());
    return copy_from(src, dst, false);
}
static Scalar local_scalar(const Tensor& t) {
    host_waits("_local_scalar_dense");
    On on(t.device());
    run_until(current_stream(), position(current_stream()));
    return at::native::_local_scalar_dense_cpu(host_alias(t));
}
static Tensor as_strided_sim(const Tensor& t, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> o) {
    return at::native::as_strided_tensorimpl(t, size, stride, o);
}
static Tensor view_sim(const Tensor& t, IntArrayRef size) { return at::native::view(t, size); }
static Tensor reshape_alias_sim(const Tensor& t, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
    return at::native::_reshape_alias(t, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
static void set_shape(const Tensor& t, IntArrayRef size, IntArrayRef stride) {
    size_t last = t.storage_offset() + 1;
    for (size_t i = 0; i < size.size(); i++) last += (size[i] - 1) * stride[i];
    size_t need = last * t.element_size();
    bool none_left = false;
    for (auto n : size) none_left = none_left || n == 0;
    if (!none_left && need > t.storage().nbytes()) {
        On on(t.device());
        at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(t.storage(), need);
    }
    t.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
}
static const Tensor& resize_sim(const Tensor& t, c10::SymIntArrayRef size, std::optional<MemoryFormat> mf) {
    auto s = C10_AS_INTARRAYREF_SLOW(size);
    if (t.sizes() != s) {
        std::vector<int64_t> st(s.size());
        int64_t n = 1;
        for (int i = (int)s.size() - 1; i >= 0; i--) {
            st[i] = n;
            n *= std::max<int64_t>(1, s[i]);
        }
        set_shape(t, s, st);
        if (mf && *mf != MemoryFormat::Preserve) t.unsafeGetTensorImpl()->empty_tensor_restride(*mf);
    }
    return t;
}
static Tensor& set_storage(Tensor& r, Storage s, int64_t o, IntArrayRef size, IntArrayRef stride) {
    r.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(s));
    std::vector<int64_t> st = stride.vec();
    if (st.empty() && !size.empty()) {
        st.resize(size.size());
        int64_t n = 1;
        for (int i = (int)size.size() - 1; i >= 0; i--) {
            st[i] = n;
            n *= size[i];
        }
    }
    r.unsafeGetTensorImpl()->set_sizes_and_strides(size, st, o);
    return r;
}
static Tensor& set_source(Tensor& r, Storage s) {
    int64_t n = s.nbytes() / r.element_size();
    return set_storage(r, s, 0, {n}, {1});
}
static Tensor& set_tensor(Tensor& r, const Tensor& o) {
    return set_storage(r, o.storage(), o.storage_offset(), o.sizes(), o.strides());
}
static void record_stream_sim(Tensor& t, Stream s) { Guard().recordDataPtrOnStream(t.storage().data_ptr(), s); }

}  // namespace sim
