// A process group: gloo's collectives as kernels of a stream of their own, as NCCL's.
#pragma once
#include "tensors.h"
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace sim {

static at::Tensor flat(const at::Tensor& t) {  // gloo needs contiguous tensors; a dense one is one in another order
    TORCH_CHECK(t.device().type() == SIM, "No backend type associated with device type ", t.device());
    TORCH_CHECK(t.is_non_overlapping_and_dense(), "Tensors must be contiguous");
    auto alias = host_alias(t);
    std::vector<int64_t> n{t.numel()}, one{1};
    alias.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(n), c10::IntArrayRef(one), t.storage_offset());
    return alias;
}
static std::vector<at::Tensor> flat(const std::vector<at::Tensor>& all) {
    std::vector<at::Tensor> r;
    for (auto& t : all) r.push_back(flat(t));
    return r;
}
static void record(const std::vector<at::Tensor>& all, Key key) {
    c10::impl::VirtualGuardImpl impl(SIM);
    for (auto& t : all)
        impl.recordDataPtrOnStream(t.storage().data_ptr(),
                                   c10::Stream(c10::Stream::UNSAFE, c10::Device(SIM, key.first), key.second));
}
struct Queued : c10d::Work {
    Key stream;
    uint64_t at;
    bool captured;
    std::vector<at::Tensor> outputs;
    c10::intrusive_ptr<c10::ivalue::Future> future;
    Queued(Key s, uint64_t p, std::vector<at::Tensor> o)
        : c10d::Work(0, c10d::OpType::ALLREDUCE), stream(s), at(p), captured(joined(s)), outputs(o) {
        c10::Device device(SIM, s.first);
        c10::impl::VirtualGuardImpl impl(SIM);
        future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                          std::vector<c10::Device>{device});
        auto before = impl.exchangeStream(c10::Stream(c10::Stream::UNSAFE, device, s.second));
        future->markCompleted(c10::IValue(outputs));  // records an event on the collective's stream
        impl.exchangeStream(before);
    }
    bool isCompleted() override { return is_done(stream, at); }
    bool isSuccess() const override { return true; }
    bool wait(std::chrono::milliseconds) override {
        synchronize();
        return true;
    }
    void synchronize() override {
        Key now = current_stream();
        now.first = stream.first;
        wait_for(now, stream, at, captured);
    }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
    std::vector<at::Tensor> result() override { return outputs; }
};
struct Collectives : c10d::Backend {
    c10::intrusive_ptr<c10d::Backend> gloo;
    Collectives(c10::intrusive_ptr<c10d::Backend> g) : Backend(g->getRank(), g->getSize()), gloo(g) {}
    const std::string getBackendName() const override { return "simccl"; }
    c10::intrusive_ptr<c10d::Work> put(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& used,
                                       std::function<void()> f) {
        int device = used.at(0).device().index();
        Key now = current_stream(), own{device, COLLECTIVES};
        now.first = device;
        wait_for(own, now, position(now), joined(now));
        record(used, own);
        auto at = enqueue_collective(own, [f](uint64_t) { f(); });
        return c10::make_intrusive<Queued>(own, at, outputs);
    }
    c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& t, const c10d::AllreduceOptions& o) override {
        auto h = flat(t);
        auto g = gloo;
        return put(t, t, [=]() mutable { g->allreduce(h, o)->wait(); });
    }
    c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& t, const c10d::BroadcastOptions& o) override {
        auto h = flat(t);
        auto g = gloo;
        return put(t, t, [=]() mutable { g->broadcast(h, o)->wait(); });
    }
    c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& out, std::vector<at::Tensor>& in,
                                             const c10d::AllgatherOptions& o) override {
        std::vector<std::vector<at::Tensor>> ho;
        auto used = in;
        for (auto& l : out) {
            ho.push_back(flat(l));
            for (auto& one : l) used.push_back(one);
        }
        auto hi = flat(in);
        auto g = gloo;
        return put(in, used, [=]() mutable { g->allgather(ho, hi, o)->wait(); });
    }
    c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& out, at::Tensor& in,
                                                   const c10d::AllgatherOptions& o) override {
        auto a = flat(out), b = flat(in);
        auto g = gloo;
        return put({out}, {out, in}, [=]() mutable { g->_allgather_base(a, b, o)->wait(); });
    }
    c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& o) override {
        drain();
        return gloo->barrier(o);
    }
    void setSequenceNumberForGroup() override {}
    uint64_t getSequenceNumberForGroup() override { return 0; }
};

}  // namespace sim
