// The sender's arena: large parts are copied once into a slab of shared memory and handed over as a descriptor.
//
// A segment is address space, shown to every receiver once; memory stands behind those of its chunks (2 MiB) that have
// been used. Slabs are runs of pages, merged when they come back, so that what has served small parts serves large ones.
// Used memory stays, because a fresh page costs 20 times a warm one (a fault), until more of it
// has been idle for a period than the last burst could need: then it goes back to the system.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "monarch/base/bytes.h"
#include "monarch/base/mutex.h"
#include "monarch/base/result.h"
#include "monarch/loop/timers.h"
#include "monarch/net/shm/arena_budget.h"
#include "monarch/net/shm/page_runs.h"
#include "monarch/net/shm/shared_memory.h"
#include "monarch/wire/frame.h"

namespace monarch {

inline constexpr uint32_t kArenaSegmentsMax = 1024;

struct Slab {
  uint32_t segment = 0;
  uint64_t offset = 0;
  std::byte* data = nullptr;

  uint64_t key() const { return uint64_t{segment} << 40 | offset; }
};

// One per process, shared by its links. Thread-safe.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  static constexpr uint64_t kChunkBytes = uint64_t{2} << 20;  // what memory is taken and given back in
  static constexpr uint64_t kWarmBytes = uint64_t{16} << 20;  // idle memory that is never given back
  static constexpr int64_t kPeriodNs = 5'000'000'000;

  // Never more than `bytes_max`, nor than `budget` allows (shared: with the other users of the process; null: no other
  // limit). With `timers`, memory goes back by itself, if the arena is held by a shared_ptr; without, it stays.
  explicit Arena(uint64_t bytes_max, Timers* timers = nullptr, std::shared_ptr<ArenaBudget> budget = nullptr);
  ~Arena();

  // A slab of at least `size` bytes, held once. nullopt: the arena is full, or the system has no memory for it.
  std::optional<Slab> allocate(uint64_t size);
  // The same as memory, held until its last user has gone. Null: there is none, or such users would have more than a
  // quarter of all that there may be, since a peer has only to announce what is read to it.
  std::shared_ptr<std::byte> memory(uint64_t size);
  // One more receiver holds the slab.
  void hold(uint64_t key);
  // The same of the slab that begins with these bytes, and has them all; nullopt: there is none.
  std::optional<Slab> hold_at(ByteSpan bytes);
  // One holder less; the last one frees it. False: no such slab is held (a lying peer).
  bool release(uint64_t key);
  // From here on memory stays, and the timers are not touched.
  void stop_timers();

  // Stays open for as long as the arena lives.
  int segment_fd(uint32_t segment) const;
  // Memory that is in use or was and has not been given back.
  uint64_t bytes_reserved() const { return reserved_.load(std::memory_order_relaxed); }
  uint64_t bytes_held() const { return held_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Chunk {
    uint16_t lent_pages = 0;
    bool backed = false;
  };
  struct Segment {
    Segment(UniqueFd f, Mapping m, PageRuns r, size_t chunk_count)
        : fd(std::move(f)), mapping(std::move(m)), runs(std::move(r)), chunks(chunk_count) {}
    UniqueFd fd;
    Mapping mapping;
    PageRuns runs;
    std::vector<Chunk> chunks;
  };
  struct Idle {  // chunks in a row of which nothing is lent
    uint32_t segment;
    uint32_t run;    // the free run that they lie in
    size_t begin, end;
  };
  enum class Taken { kYes, kNoRun, kNoMemory };
  using Lock = std::unique_lock<Mutex>;
  Taken take_from(uint32_t segment, uint32_t pages, Lock& lock, Slab* slab);
  bool add_segment(uint64_t bytes);
  bool back(Segment& segment, uint32_t first, uint32_t pages, Lock& lock);
  bool reserve(uint64_t bytes);
  bool make_room(uint64_t bytes, Lock& lock);
  void count_lent(Segment& segment, uint32_t first, uint32_t pages, bool lent);
  std::optional<Idle> find_idle(uint64_t bytes_max) const;
  uint64_t punch(const Idle& idle, Lock& lock);
  void arm(int64_t delay_ns);
  void on_timer();

  const uint64_t bytes_max_;  // whole chunks
  Timers* timers_;
  const std::shared_ptr<ArenaBudget> budget_;  // shared: with whoever else in the process counts on it
  std::atomic<uint64_t> reserved_{0};
  std::atomic<uint64_t> held_bytes_{0};
  std::atomic<uint64_t> given_bytes_{0};  // of held_bytes_: whose users by memory() are there
  mutable Mutex mutex_{LockRank::kArena};
  std::vector<std::unique_ptr<Segment>> segments_;
  uint64_t idle_bytes_ = 0;  // of reserved_: in chunks of which nothing is lent
  uint64_t used_peak_ = 0;   // most of the rest since the last period began
  uint64_t keep_bytes_ = 0;  // not 0: memory above this is being given back
  bool armed_ = false;
};

}  // namespace monarch
