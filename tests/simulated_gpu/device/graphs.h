// Graphs: what a capture recorded, which a replay puts on streams again with one launch.
#pragma once
#include "tensors.h"

namespace sim {

static void start_capture(uint64_t pool) {
    not_on_mps("graphs");
    std::lock_guard<std::mutex> g(mutex_);
    TORCH_CHECK(!capture_, "a capture is in progress");
    capture_ = new Graph();
    capture_->pool = pool;
    capture_->origin = current_stream();
    capture_->positions[capture_->origin] = 0;
    capture_->thread = std::this_thread::get_id();
    capture_->drawn = default_generator().get_offset();
}
// The draws of a capture take no number of the generator: each replay draws as the same calls would without a graph.
static void give_back_draws(Graph* graph) {
    default_generator().set_offset(graph->drawn);
}
static std::pair<int, int64_t> end() {
    std::lock_guard<std::mutex> g(mutex_);
    auto* graph = capture_;
    capture_ = nullptr;
    give_back_draws(graph);
    for (auto& [key, position] : graph->positions)
        TORCH_CHECK(key == graph->origin || graph->waited[key] == position, "capturing stream has unjoined work");
    int id = next_graph_++;
    graphs_[id] = graph;
    pools_[graph->pool]++;
    return {id, graph->launches};
}
static void abandon() {
    std::lock_guard<std::mutex> g(mutex_);
    if (capture_) give_back_draws(capture_);
    delete capture_;
    capture_ = nullptr;
}
// Branches run beside each other as their waits allow, all after what the current stream has queued; collectives stay on
// their own stream, whose order is that of all launches, as NCCL's is for graphs mixed with other launches.
static void replay(int id) {
    auto* graph = graphs_.at(id);
    Key now = current_stream();
    auto start = position(now);
    std::map<Key, std::vector<uint64_t>> placed;  // positions of the graph's items, by their stream in the capture
    auto stream_of = [&](Key key) -> Key {
        if (key == graph->origin) return now;
        return key.second == COLLECTIVES ? key : Key{key.first, GRAPHS + key.second};
    };
    launches_++;
    for (auto& [key, item] : graph->items) {
        auto& own = placed[key];
        Key stream = stream_of(key);
        if (own.empty() && stream != now) push(stream, {nullptr, 0, true, now, start, "wait"});
        if (!item.waits)
            own.push_back(push(stream, {[kernel = &item.kernel](uint64_t s) { (*kernel)(s); }, item.seed ? next_seed() : 0, false, {}, 0, item.name}));
        else if (item.until == 0)
            own.push_back(push(stream, {nullptr, 0, true, stream_of(item.target), start, "wait"}));
        else
            own.push_back(push(stream, {nullptr, 0, true, stream_of(item.target),
                                        placed[item.target].at(item.until - 1), "wait"}));
    }
}
static void reset(int id) {
    std::lock_guard<std::mutex> g(mutex_);
    auto* graph = graphs_.at(id);
    graphs_.erase(id);
    if (--pools_[graph->pool] == 0) release_free(graph->pool);  // note: the graph itself stays for queued replays
}

}  // namespace sim
