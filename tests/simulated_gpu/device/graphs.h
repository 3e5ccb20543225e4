// Graphs: what a capture recorded, run as one kernel.
#pragma once
#include "tensors.h"

namespace sim {

static void start_capture(uint64_t pool) {
    not_on_mps("graphs");
    std::lock_guard<std::mutex> g(mutex_);
    TORCH_CHECK(!capture_, "a capture is in progress");
    capture_ = new Graph();
    capture_->pool = pool;
    capture_->joined.insert(current_stream());
    capture_->thread = std::this_thread::get_id();
}
static std::pair<int, int64_t> end() {
    std::lock_guard<std::mutex> g(mutex_);
    auto* graph = capture_;
    capture_ = nullptr;
    int id = next_graph_++;
    graphs_[id] = graph;
    pools_[graph->pool]++;
    return {id, graph->launches};
}
static void abandon() {
    std::lock_guard<std::mutex> g(mutex_);
    delete capture_;
    capture_ = nullptr;
}
static void replay(int id) {
    auto* graph = graphs_.at(id);
    uint64_t seed = next_seed();
    launches_++;
    push(current_stream(), {[graph](uint64_t s) {
                                uint64_t k = 0;
                                for (auto& [kernel, name] : graph->kernels) kernel(s + 0x9E3779B9ULL * ++k);
                            },
                            seed,
                            false,
                            {},
                            0,
                            "graph"});
}
static void reset(int id) {
    std::lock_guard<std::mutex> g(mutex_);
    auto* graph = graphs_.at(id);
    graphs_.erase(id);
    if (--pools_[graph->pool] == 0) release_free(graph->pool);  // note: the graph itself stays for queued replays
}

}  // namespace sim
