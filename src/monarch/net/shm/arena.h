// The sender's arena: large parts are copied once into a slab of shared memory and handed over as a descriptor.
// Segments are mapped for the life of the process and slabs are used again, because a fresh mapping costs 20 times a
// warm one (page faults; TARGETS.md section 2.2).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "monarch/base/result.h"
#include "monarch/net/shm/shared_memory.h"
#include "monarch/wire/frame.h"

namespace monarch {

struct Slab {
  uint32_t segment = 0;
  uint64_t offset = 0;
  std::byte* data = nullptr;

  uint64_t key() const { return uint64_t{segment} << 40 | offset; }
};

// One per process, shared by its links. Thread-safe.
class Arena {
 public:
  explicit Arena(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // A slab of at least `size` bytes, held once. nullopt: the arena is full, or the system has no memory for it.
  std::optional<Slab> allocate(uint64_t size);
  // One more receiver holds the slab.
  void hold(uint64_t key);
  // One holder less; the last one frees it. False: no such slab is held (a lying peer).
  bool release(uint64_t key);

  int segment_fd(uint32_t segment) const;
  uint64_t bytes_reserved() const { return reserved_.load(std::memory_order_relaxed); }
  uint64_t bytes_held() const { return held_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Segment {
    UniqueFd fd;
    Mapping mapping;
    uint64_t used = 0;
  };
  struct Held {
    uint32_t bin;
    uint32_t holders;
  };
  static uint32_t bin_of(uint64_t size);
  static uint64_t bin_bytes(uint32_t bin);
  std::optional<Slab> carve(uint64_t size);

  const uint64_t bytes_max_;
  std::atomic<uint64_t> reserved_{0};
  std::atomic<uint64_t> held_bytes_{0};
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::unordered_map<uint32_t, std::vector<Slab>> free_;  // by bin
  std::unordered_map<uint64_t, Held> held_;               // by key
};

// The receiver's view of one peer's arena: its segments, mapped when first needed. Guarded by its link.
class ArenaView {
 public:
  // `fd` is segment number `segment` of the peer.
  Status add(uint32_t segment, UniqueFd fd);
  bool has(uint32_t segment) const { return segment < segments_.size() && segments_[segment] != nullptr; }
  // nullptr: out of bounds or unknown.
  std::byte* resolve(const ArenaLocation& location, uint64_t size) const;
  // Keeps the mapping for as long as somebody holds a view into it.
  std::shared_ptr<Mapping> mapping(uint32_t segment) const { return segments_[segment]; }

 private:
  std::vector<std::shared_ptr<Mapping>> segments_;
};

}  // namespace monarch
