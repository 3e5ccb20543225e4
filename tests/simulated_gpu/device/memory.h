// Device memory: a caching allocator of exact sizes, by pool and stream. Pinned memory: reused after its queued copies.
#pragma once
#include "queues.h"

namespace sim {

struct Block {
    char* p;
    size_t n;
    Key stream;
    uint64_t pool;
    std::map<Key, uint64_t> uses;  // by record_stream; positions are set when it is freed
};
static std::map<std::tuple<uint64_t, Key, size_t>, std::vector<Block*>> free_;
static std::vector<Block*> pending_;
static std::map<char*, Block*> live_;
static int64_t live_bytes_ = 0, peak_bytes_ = 0, reserved_bytes_ = 0, peak_reserved_ = 0, limit_ = INT64_MAX;
static const char NAN_BYTE = (char)0xFF;
static thread_local bool fills_ = true;  // new memory with NaN

static void collect_pending() {  // with mutex_
    std::vector<Block*> left;
    for (auto* block : pending_) {
        bool done = true;
        for (auto& [key, until] : block->uses) done = done && queues_[key].done >= until;
        if (!done) {
            left.push_back(block);
            continue;
        }
        block->uses.clear();
        free_[{block->pool, block->stream, block->n}].push_back(block);
    }
    pending_.swap(left);
}
static void release_free(uint64_t pool) {  // with mutex_; the memory itself is kept, since queued kernels may read it
    for (auto& [where, blocks] : free_)
        if (std::get<0>(where) == pool) {
            for (auto* b : blocks) reserved_bytes_ -= b->n;
            blocks.clear();
        }
}
static void sim_free(void* context) {
    std::lock_guard<std::mutex> g(mutex_);
    auto* block = (Block*)context;
    live_bytes_ -= block->n;
    live_.erase(block->p);
    if (!block->uses.empty()) {
        for (auto& [key, until] : block->uses) until = queues_[key].queued;
        pending_.push_back(block);
    } else
        free_[{block->pool, block->stream, block->n}].push_back(block);
}
static void none(void*) {}
struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        int device = current_device_;
        touch(device);
        if (!bytes) return {nullptr, nullptr, &none, c10::Device(SIM, device)};
        size_t n = (bytes + 511) / 512 * 512;
        Key key = current_stream();
        Block* block = nullptr;
        {
            std::lock_guard<std::mutex> g(mutex_);
            uint64_t pool = joined(key) ? capture_->pool : 0;
            if (!capture_) collect_pending();
            auto& list = free_[{pool, key, n}];
            if (!list.empty()) {
                block = list.back();
                list.pop_back();
            } else {
                if (reserved_bytes_ + (int64_t)n > limit_ && !capture_) release_free(0);
                if (reserved_bytes_ + (int64_t)n > limit_)
                    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", n >> 10,
                                     " KiB. GPU ", device, " has a total capacity of ", limit_ >> 10,
                                     " KiB (simulated)");
                void* p = nullptr;
                TORCH_CHECK(!posix_memalign(&p, 512, n));
                memset(p, NAN_BYTE, n);
                block = new Block{(char*)p, n, key, pool, {}};
                reserved_bytes_ += n;
                peak_reserved_ = std::max(peak_reserved_, reserved_bytes_);
            }
            live_bytes_ += n;
            peak_bytes_ = std::max(peak_bytes_, live_bytes_);
            live_[block->p] = block;
        }
        char* p = block->p;
        if (!fills_) return {p, block, &sim_free, c10::Device(SIM, device)};
        Kernel spoil = [p, n](uint64_t) { memset(p, NAN_BYTE, n); };  // NaN, so that what was not written shows
        if (joined(key)) {
            std::lock_guard<std::mutex> g(mutex_);
            capture_->add(key, {spoil, 0, false, {}, 0, "new memory"});
        } else
            push(key, {spoil, 0, false, {}, 0, "new memory"});
        return {p, block, &sim_free, c10::Device(SIM, device)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
    void copy_data(void* to, const void* from, size_t n) const override {
        enqueue("copy", [=](uint64_t) { memcpy(to, from, n); });
    }
};
static Allocator allocator_;
REGISTER_ALLOCATOR(SIM, &allocator_);

struct Pinned {
    char* p;
    size_t n;
    std::map<Key, uint64_t> uses;
};
static std::map<char*, Pinned*> pinned_;
static std::map<size_t, std::vector<Pinned*>> pinned_free_;
static std::vector<Pinned*> pinned_pending_;
static int64_t pinned_bytes_ = 0;
static Pinned* pinned_of(const void* q) {  // with mutex_
    for (auto& [p, block] : pinned_)
        if ((char*)q >= p && (char*)q < p + block->n) return block;
    return nullptr;
}
static bool is_pinned_ptr(const void* q) {
    std::lock_guard<std::mutex> g(mutex_);
    return pinned_of(q) != nullptr;
}
static void pin_free(void* context) {
    std::lock_guard<std::mutex> g(mutex_);
    auto* block = (Pinned*)context;
    pinned_.erase(block->p);
    pinned_pending_.push_back(block);
}
struct PinnedAllocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        not_on_mps("pinned memory");
        if (of_capture()) host_waits("pinned memory allocated");
        size_t n = std::max<size_t>(64, bytes);
        Pinned* block = nullptr;
        {
            std::lock_guard<std::mutex> g(mutex_);
            std::vector<Pinned*> left;
            for (auto* one : pinned_pending_) {
                bool done = true;
                for (auto& [key, until] : one->uses) done = done && queues_[key].done >= until;
                if (done) {
                    one->uses.clear();
                    pinned_free_[one->n].push_back(one);
                } else
                    left.push_back(one);
            }
            pinned_pending_.swap(left);
            auto& list = pinned_free_[n];
            if (!list.empty()) {
                block = list.back();
                list.pop_back();
            } else {
                void* p = nullptr;
                TORCH_CHECK(!posix_memalign(&p, 64, n));
                block = new Pinned{(char*)p, n, {}};
                pinned_bytes_ += n;
            }
            pinned_[block->p] = block;
        }
        memset(block->p, NAN_BYTE, n);
        return {block->p, block, &pin_free, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
    void copy_data(void* to, const void* from, size_t n) const override { memcpy(to, from, n); }
};
static PinnedAllocator pinned_allocator_;
static void record_pinned(const void* p) {
    std::lock_guard<std::mutex> g(mutex_);
    if (auto* block = pinned_of(p)) {
        Key k = current_stream();
        block->uses[k] = queues_[k].queued;
    }
}

}  // namespace sim
