// A simulated accelerator ("sim", PrivateUse1). Device memory is host memory that only this back end's kernels touch.
//
// A call of ATen finds shapes by its meta kernel, allocates its outputs and puts a closure into the queue of the
// current stream; the closure runs the CPU's kernel. Queues run by an order of execution (`order`), and at the latest
// when the host or another stream waits for them, so what no event, allocator or wait orders gives visibly wrong
// values.
#include "collectives.h"
#include "graphs.h"
#include "operations.h"

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    using namespace sim;
    using Free = py::call_guard<py::gil_scoped_release>;
    py::module_::import("torch._C._distributed_c10d");
    m.def("init", [](int devices) {
        device_count_ = devices;
        at::RegisterPrivateUse1HooksInterface(new Hooks());
    });
    m.def(
        "order",
        [](std::string name, uint64_t seed) {
            drain();
            order_ = name == "lazy"           ? Order::lazy
                     : name == "others_first" ? Order::others_first
                     : name == "random"       ? Order::random
                                              : Order::eager;
            random_.seed(seed);
        },
        Free());
    m.def("on_wait", [](py::object function) { callback_ = new py::object(function); });
    m.def("launches", [] { return launches_.load(); });
    m.def("sent", [] { return sent_.load(); });
    m.def("slow_foreach", [] {
        std::lock_guard<std::mutex> g(mutex_);
        return slow_;
    });
    m.def("run_early", [] {
        std::lock_guard<std::mutex> g(mutex_);
        return early_;
    });
    m.def("contexts", [] {
        std::lock_guard<std::mutex> g(mutex_);
        return contexts_;
    });
    m.def("current_device", [] { return current_device_; });
    m.def("set_device", [](int d) {
        current_device_ = d;
        touch(d);
    });  // note: creates a context, since CUDA 12
    m.def("exchange_device", [](int d) {
        int before = current_device_;
        current_device_ = d;
        return before;
    });
    m.def(
        "synchronize",
        [](int d) {
            host_waits("device synchronize");
            drain(d);
        },
        Free());
    m.def("drain", [] { drain(); }, Free());
    m.def("memory", [] {
        std::lock_guard<std::mutex> g(mutex_);
        return std::make_tuple(live_bytes_, peak_bytes_, reserved_bytes_, peak_reserved_);
    });
    m.def("limit_memory", [](int64_t bytes) { limit_ = bytes; });
    m.def("reset_peak", [] {
        std::lock_guard<std::mutex> g(mutex_);
        peak_bytes_ = live_bytes_;
        peak_reserved_ = reserved_bytes_;
    });
    m.def("empty_cache", [] {
        std::lock_guard<std::mutex> g(mutex_);
        collect_pending();
        release_free(0);
    });
    m.def("as_mps", [](bool on) { as_mps_ = on; });
    m.def("default_generator", [](int d) { return generator(d); });
    m.def("fill_new_memory", [](bool on) { fills_ = on; });
    m.def("new_pool", [] { return next_pool_++; });
    m.def("is_capturing", &is_capturing);
    m.def("begin_capture", &start_capture);
    m.def("end_capture", &end);
    m.def("abandon_capture", &abandon);
    m.def("replay", &replay, Free());
    m.def("reset", &reset);
    m.def("with_streams", [](c10::intrusive_ptr<c10d::Backend> gloo) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<Collectives>(gloo);
    });
}
