// Slabs of a peer that are in use here, and the way back: without a lock, since the last view of one may be dropped by any
// thread at any moment, with the GIL held.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace monarch {

class ReceivedSegment;
class ShmLink;

// One slab. Until its end the mapping stays, even if the peer dies.
struct Lease {
  std::shared_ptr<ShmLink> link;             // shared: it is told of the end
  std::shared_ptr<ReceivedSegment> segment;  // shared: with the link's view and other leases in the same segment
  const uint64_t location;
  const uint64_t bytes;
  const uint64_t born;    // Received::forks() at its beginning
  uint64_t died = 0;      // and at its end: if they differ, a child may hold what it lies in
  Lease* next = nullptr;  // once it has ended
};

// Through whom leases go back that had to wait (Received::hold). Any thread.
class LeaseReturn {
 public:
  virtual ~LeaseReturn() = default;
  virtual void give_back(std::vector<std::unique_ptr<Lease>> leases) = 0;
};

// Leases that have ended, with nothing in them but where they were. Any thread; never waits.
class EndedLeases {
 public:
  EndedLeases() = default;
  EndedLeases(const EndedLeases&) = delete;
  EndedLeases& operator=(const EndedLeases&) = delete;
  ~EndedLeases() {
    take_all([](std::unique_ptr<Lease>) {});
  }

  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  bool empty() const { return head_.load(std::memory_order_relaxed) == nullptr; }

  // Takes `lease` over. Returns how many bytes wait then.
  uint64_t push(std::unique_ptr<Lease> lease) {
    const uint64_t bytes = lease->bytes;
    Lease* raw = lease.release();
    raw->next = head_.load(std::memory_order_relaxed);
    // What was done with the slab happens before it is given back.
    while (!head_.compare_exchange_weak(raw->next, raw, std::memory_order_release, std::memory_order_relaxed)) {
    }
    return bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  }

  // visit(std::unique_ptr<Lease>), each once.
  template <typename Visit>
  void take_all(Visit&& visit) {
    uint64_t bytes = 0;
    for (Lease* at = head_.exchange(nullptr, std::memory_order_acquire); at != nullptr;) {
      std::unique_ptr<Lease> lease(std::exchange(at, at->next));
      bytes += lease->bytes;
      visit(std::move(lease));
    }
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }

 private:
  std::atomic<Lease*> head_{nullptr};
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace monarch
