// Devices, streams, events and random numbers, as PyTorch gets them from a back end.
#pragma once
#include "memory.h"
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace sim {

struct Event {
    Key stream;
    uint64_t at = 0;
    bool captured = false;
};
static Key key_of(const c10::Stream& s) { return {s.device_index(), s.id()}; }
struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return SIM; }
    c10::Device exchangeDevice(c10::Device d) const override {
        auto o = getDevice();
        if (d.index() >= 0) current_device_ = d.index();
        return o;
    }
    c10::Device getDevice() const override { return {SIM, (c10::DeviceIndex)current_device_}; }
    void setDevice(c10::Device d) const override {
        current_device_ = d.index();
        touch(d.index());
    }
    void uncheckedSetDevice(c10::Device d) const noexcept override {
        if (d.index() >= 0) current_device_ = d.index();
    }
    c10::Stream getStream(c10::Device d) const override {
        int i = d.index() < 0 ? current_device_ : d.index();
        return c10::Stream(c10::Stream::UNSAFE, c10::Device(SIM, i), current_stream_[i]);
    }
    c10::Stream getDefaultStream(c10::Device d) const override { return c10::Stream(c10::Stream::UNSAFE, d, 0); }
    c10::Stream getNewStream(c10::Device d, int = 0) const override {
        not_on_mps("streams");
        int i = d.index() < 0 ? current_device_ : d.index();
        touch(i);
        return c10::Stream(c10::Stream::UNSAFE, c10::Device(SIM, i), next_stream_++);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device d, bool = false) const override { return getNewStream(d); }
    c10::Stream exchangeStream(c10::Stream s) const override {
        int i = s.device_index();
        c10::Stream old{c10::Stream::UNSAFE, c10::Device(SIM, i), current_stream_[i]};
        current_stream_[i] = s.id();
        return old;
    }
    void* getStreamNativeHandle(const c10::Stream s) const override { return (void*)s.id(); }
    c10::DeviceIndex deviceCount() const noexcept override { return device_count_; }
    void record(void** event, const c10::Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
        if (!*event) *event = new Event();
        auto* e = (Event*)*event;
        e->stream = key_of(s);
        e->captured = joined(e->stream);
        e->at = position(e->stream);
    }
    void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete (Event*)event; }
    void block(void* event, const c10::Stream& s) const override {
        auto* e = (Event*)event;
        Key key = key_of(s);
        if (!e || key == e->stream) return;
        wait_for(key, e->stream, e->at, e->captured);
    }
    bool queryEvent(void* event) const override {
        if (of_capture()) host_waits("event query");
        auto* e = (Event*)event;
        return !e || is_done(e->stream, e->at);
    }
    bool queryStream(const c10::Stream& s) const override { return is_done(key_of(s), position(key_of(s))); }
    void synchronizeStream(const c10::Stream& s) const override {
        host_waits("stream synchronize");
        run_until(key_of(s), position(key_of(s)));
    }
    void synchronizeEvent(void* event) const override {
        host_waits("event synchronize");
        if (auto* e = (Event*)event) run_until(e->stream, e->at);
    }
    void synchronizeDevice(const c10::DeviceIndex d) const override {
        host_waits("device synchronize");
        drain(d);
    }
    void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& s) const override {
        std::lock_guard<std::mutex> g(mutex_);
        auto it = live_.find((char*)data.get());
        if (it != live_.end() && it->second->stream != key_of(s)) it->second->uses[key_of(s)] = 0;
    }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Generator final : c10::GeneratorImpl {  // a counter, as CUDA's Philox
    uint64_t seed_ = 0, offset_ = 0;
    Generator(int d) : GeneratorImpl(c10::Device(SIM, d), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
    void set_current_seed(uint64_t s) override {
        seed_ = s;
        offset_ = 0;
    }
    void set_offset(uint64_t o) override { offset_ = o; }
    uint64_t get_offset() const override { return offset_; }
    uint64_t current_seed() const override { return seed_; }
    uint64_t seed() override {
        set_current_seed(std::random_device{}());
        return seed_;
    }
    void set_state(const c10::TensorImpl& s) override {
        auto* p = (const uint64_t*)s.data();
        seed_ = p[0];
        offset_ = p[1];
    }
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
        if (of_capture()) TORCH_CHECK(false, "Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture.");
        auto t = at::empty({16}, at::kByte);
        auto* p = (uint64_t*)t.data_ptr();
        p[0] = seed_;
        p[1] = offset_;
        return t.getIntrusivePtr();
    }
    Generator* clone_impl() const override {
        auto* g = new Generator(device().index());
        g->seed_ = seed_;
        g->offset_ = offset_;
        return g;
    }
    uint64_t next() {
        uint64_t x = seed_ * 0x9E3779B97F4A7C15ULL + ++offset_;
        x ^= x >> 30;
        x *= 0xBF58476D1CE4E5B9ULL;
        return x ^ (x >> 27);
    }
    static c10::DeviceType device_type() { return SIM; }
};
static std::vector<at::Generator> generators_;
static const at::Generator& generator(int i) {
    if (generators_.empty())
        for (int d = 0; d < device_count_; d++) generators_.push_back(at::make_generator<Generator>(d));
    return generators_[i < 0 ? current_device_ : i];
}
static Generator& default_generator() { return *static_cast<Generator*>(generator(-1).unsafeGetGeneratorImpl()); }
static uint64_t next_seed() { return default_generator().next(); }

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    const at::Generator& getDefaultGenerator(c10::DeviceIndex i) const override { return generator(i); }
    at::Generator getNewGenerator(c10::DeviceIndex i = -1) const override {
        return at::make_generator<Generator>(i < 0 ? current_device_ : i);
    }
    at::Device getDeviceFromPtr(void*) const override { return {SIM, 0}; }
    bool isPinnedPtr(const void* p) const override { return is_pinned_ptr(p); }
    at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator_; }
    bool hasPrimaryContext(c10::DeviceIndex i) const override {
        std::lock_guard<std::mutex> g(mutex_);
        return contexts_.count(i);
    }
    c10::DeviceIndex deviceCount() const override { return device_count_; }
    void setCurrentDevice(c10::DeviceIndex d) const override {
        current_device_ = d;
        touch(d);
    }
    c10::DeviceIndex getCurrentDevice() const override { return current_device_; }
    c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
        int o = current_device_;
        if (d >= 0) {
            current_device_ = d;
            touch(d);
        }
        return o;
    }
    c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override {
        int o = current_device_;
        if (d >= 0) current_device_ = d;
        return o;
    }
    void resizePrivateUse1Bytes(const c10::Storage& s, size_t n) const override {
        auto data = allocator_.allocate(n);
        size_t kept = std::min(n, s.nbytes());
        if (kept) {
            void* to = data.get();
            const void* from = s.data();
            enqueue("copy", [=](uint64_t) { memcpy(to, from, kept); });
        }
        const_cast<c10::Storage&>(s).set_data_ptr_noswap(std::move(data));
        const_cast<c10::Storage&>(s).set_nbytes(n);
    }
};

}  // namespace sim
