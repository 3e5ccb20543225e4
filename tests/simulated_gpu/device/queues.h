// Streams as queues of kernels, which run by an order of execution, and at the latest when the host waits.
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/utils/pybind.h>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>

using namespace at;
namespace sim {

constexpr auto SIM = c10::DeviceType::PrivateUse1;
using Key = std::pair<int, int64_t>;           // device, stream
using Kernel = std::function<void(uint64_t)>;  // of a seed
constexpr int64_t COLLECTIVES = 1000000, GRAPHS = 2000000;  // streams of collectives, and first one of graphs' branches

static int device_count_ = 8;
static thread_local int current_device_ = 0;  // as in CUDA: 0 in every new thread
static thread_local std::map<int, int64_t> current_stream_;
static std::atomic<int64_t> next_stream_{1};
static std::mutex mutex_;              // queues, memory, counts
static std::recursive_mutex running_;  // held while a kernel runs
static std::set<int> contexts_;
static std::map<std::string, int64_t> slow_, early_;  // foreach by a launch a tensor; operations that run at once
static std::atomic<int64_t> launches_{0}, sent_{0};  // sent: bytes copied from the host
static py::object* callback_ = nullptr;  // called where the host waits

static bool as_mps_ = false;  // refuse what Apple's GPUs lack
static void not_on_mps(const char* what, bool used = true) {
    TORCH_CHECK_TYPE(!(as_mps_ && used), "mps has no ", what);
}

// Which kernels run before the host waits: all; none; those of side streams; random parts of random streams.
enum class Order { eager, lazy, others_first, random };
static Order order_ = Order::eager;
static std::mt19937_64 random_{0};

struct Item {
    Kernel kernel;
    uint64_t seed = 0;
    bool waits = false;
    Key target{};
    uint64_t until = 0;
    const char* name = "";
};
struct Queue {
    std::deque<Item> items;
    uint64_t queued = 0, done = 0;
};
static std::map<Key, Queue> queues_;

// What a capture recorded, in the order of the host, on the streams that it joined: positions count within the graph.
struct Graph {
    std::vector<std::pair<Key, Item>> items;
    std::map<Key, uint64_t> positions, waited;  // waited: by the stream that started the capture
    int64_t launches = 0;
    uint64_t pool = 0, drawn = 0;  // drawn: by the generator before the capture
    Key origin;
    std::thread::id thread;
    uint64_t add(Key key, Item item) {
        if (item.waits && key == origin) waited[item.target] = std::max(waited[item.target], item.until);
        items.emplace_back(key, std::move(item));
        return ++positions[key];
    }
};
static Graph* capture_ = nullptr;
static std::map<int, Graph*> graphs_;
static int next_graph_ = 1;
static std::map<uint64_t, int> pools_;  // graphs of a pool
static std::atomic<uint64_t> next_pool_{1};

static void touch(int device) {
    std::lock_guard<std::mutex> g(mutex_);
    contexts_.insert(device);
}
static Key current_stream() { return {current_device_, current_stream_[current_device_]}; }
static bool of_capture() {
    return capture_ &&
           (std::this_thread::get_id() == capture_->thread || torch::autograd::get_current_graph_task_id() != -1);
}
static bool joined(Key k) { return capture_ && capture_->positions.count(k); }
static bool is_capturing() { return joined(current_stream()); }

// A call by which the host waits, which a capture forbids.
static void host_waits(const std::string& what) {
    TORCH_CHECK(!of_capture(), "operation not permitted when stream is capturing: ", what);
    if (callback_) {
        py::gil_scoped_acquire gil;
        (*callback_)(what);
    }
}

struct KernelScope {  // a kernel sees no mode of the thread that runs it
    c10::impl::ExcludeDispatchKeyGuard keys{
        c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
        c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot,
                             c10::DispatchKey::PythonDispatcher, c10::DispatchKey::Functionalize,
                             c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched})};
    at::NoGradGuard grad;
};
static void run_until(Key key, uint64_t until);
static void run(Item& item) {
    if (item.waits) {
        run_until(item.target, item.until);
        return;
    }
    KernelScope scope;
    try {
        item.kernel(item.seed);
    } catch (const std::exception& error) {
        TORCH_CHECK(false, "kernel ", item.name, " failed on the simulated device: ", error.what());
    }
}
static void run_until(Key key, uint64_t until) {
    std::lock_guard<std::recursive_mutex> x(running_);
    while (true) {
        Item item;
        {
            std::lock_guard<std::mutex> g(mutex_);
            auto& queue = queues_[key];
            if (queue.done >= until || queue.items.empty()) return;
            item = std::move(queue.items.front());
            queue.items.pop_front();
            queue.done++;  // note: counted before it runs; `running_` makes other threads wait for its end
        }
        run(item);
    }
}
static bool is_done(Key key, uint64_t until) {
    std::lock_guard<std::mutex> g(mutex_);
    return queues_[key].done >= until;
}
static void drain(int device = -1) {  // all that a device, or any, has queued
    std::vector<std::pair<Key, uint64_t>> all;
    {
        std::lock_guard<std::mutex> g(mutex_);
        for (auto& [key, queue] : queues_)
            if (device < 0 || key.first == device) all.push_back({key, queue.queued});
    }
    for (auto& [key, until] : all) run_until(key, until);
}
static void proceed(Key key, uint64_t queued) {  // what the device does by itself
    if (order_ == Order::eager || (order_ == Order::others_first && key.second != 0)) run_until(key, queued);
    if (order_ == Order::random) {
        Key chosen;
        uint64_t until;
        {
            std::lock_guard<std::mutex> g(mutex_);
            if (random_() % 4) return;
            auto left = random_() % queues_.size();
            for (auto& [one, queue] : queues_)
                if (left-- == 0) {
                    chosen = one;
                    until = queue.done + random_() % 32;
                }
        }
        run_until(chosen, until);
    }
}
static uint64_t push(Key key, Item item) {
    uint64_t queued;
    {
        std::lock_guard<std::mutex> g(mutex_);
        auto& queue = queues_[key];
        queue.items.push_back(std::move(item));
        queued = ++queue.queued;
    }
    proceed(key, queued);
    return queued;
}
static void enqueue_seeded(const char* name, Kernel kernel, int launches, uint64_t seed) {
    Key key = current_stream();
    if (joined(key)) {
        std::lock_guard<std::mutex> g(mutex_);
        capture_->add(key, {std::move(kernel), seed, false, {}, 0, name});
        capture_->launches += launches;
        return;
    }
    if (of_capture())
        TORCH_CHECK(false, "operation on a stream that is not captured, during a capture: ", name, " on stream ",
                    key.second);
    launches_ += launches;
    push(key, {std::move(kernel), seed, false, {}, 0, name});
}
static void enqueue(const char* name, Kernel kernel, int launches = 1) {
    enqueue_seeded(name, std::move(kernel), launches, 0);
}
static uint64_t position(Key key) {
    std::lock_guard<std::mutex> g(mutex_);
    return joined(key) ? capture_->positions[key] : queues_[key].queued;
}
// Make a stream wait for a position of another one; captured: whether that position is in the capture.
static void wait_for(Key waiting, Key key, uint64_t until, bool captured) {
    Item item{nullptr, 0, true, key, until, "wait"};
    if (captured && capture_) {
        std::lock_guard<std::mutex> g(mutex_);
        capture_->add(waiting, item);  // note: a stream that waits for a capture joins it
        return;
    }
    TORCH_CHECK(!joined(waiting), "dependency created on uncaptured work in another stream");
    push(waiting, item);
}
static uint64_t enqueue_collective(Key key, Kernel kernel) {
    Item item{std::move(kernel), 0, false, {}, 0, "collective"};
    if (joined(key)) {
        std::lock_guard<std::mutex> g(mutex_);
        return capture_->add(key, item);
    }
    TORCH_CHECK(!of_capture(), "a collective on a stream that is not captured, during a capture");
    launches_++;
    return push(key, item);
}

}  // namespace sim
