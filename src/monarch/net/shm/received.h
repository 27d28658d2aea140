// Memory of peers that is mapped here, and what a fork() of this process means for it (docs/design/017). In the child
// the slabs that were in use become its own, at the same addresses: what it writes there nobody else sees. And they are not
// given back to their senders before the child has ended too, or has become another program.
//
// One per process, shared by its links. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "monarch/base/mutex.h"
#include "monarch/base/unique_fd.h"
#include "monarch/loop/reactor.h"
#include "monarch/net/shm/lease.h"
#include "monarch/net/shm/shared_memory.h"

namespace monarch {

// A segment of a peer's arena. Its descriptor stays open: without it there is no private view of what is shared.
class ReceivedSegment {
 public:
  ReceivedSegment(Mapping mapping, UniqueFd fd) : mapping_(std::move(mapping)), fd_(std::move(fd)) {}

  std::byte* begin() const { return static_cast<std::byte*>(mapping_.get()); }
  uint64_t size() const { return mapping_.size(); }

  // A slab that ends at `end` is in use, and then no more. One thread begins them, any one ends them.
  void begin_lease(uint64_t end) {
    if (end > used_end_.load(std::memory_order_relaxed)) used_end_.store(end, std::memory_order_relaxed);
    leases_.fetch_add(1, std::memory_order_relaxed);
  }
  void end_lease() { leases_.fetch_sub(1, std::memory_order_relaxed); }
  bool in_use() const { return leases_.load(std::memory_order_relaxed) != 0; }

  // In a forked child: from now on what is written here is seen here only. Without the descriptor, or memory for that, it
  // can only be read.
  void make_private();

 private:
  const Mapping mapping_;
  const UniqueFd fd_;
  std::atomic<uint64_t> used_end_{0};
  std::atomic<uint64_t> leases_{0};
};

class Received : public std::enable_shared_from_this<Received> {
 public:
  // The reactor is not touched but in after_fork_in_parent().
  explicit Received(Reactor& reactor) : reactor_(reactor) {}

  // Closes `fd` if few descriptors are left here: what is received goes before what a child may write.
  std::shared_ptr<ReceivedSegment> add(Mapping mapping, UniqueFd fd);

  // How many forks have left a child with slabs in use.
  uint64_t forks() const { return forks_.load(std::memory_order_relaxed); }
  // Takes `lease` over if a child may still hold it; it goes to `back` once none does, if that is still there. False: it
  // may go back now.
  bool hold(std::unique_ptr<Lease>& lease, std::weak_ptr<LeaseReturn> back);
  uint64_t held() const;  // how many there are

  // Around fork(), on the thread that forks. The first takes the lock, the others give it back.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

 private:
  struct Held {
    std::unique_ptr<Lease> lease;
    std::weak_ptr<LeaseReturn> back;
  };
  bool has_child_of(const Lease& lease) const;
  void on_children_ended(uint64_t fork);

  Reactor& reactor_;
  std::atomic<uint64_t> forks_{0};
  mutable Mutex mutex_{LockRank::kReceived};
  std::vector<std::weak_ptr<ReceivedSegment>> segments_;
  std::vector<uint64_t> children_;  // forks whose children live, ascending
  std::vector<Held> held_;
  // Of the fork that is being made.
  bool leaves_leases_ = false;
  UniqueFd pipe_[2];
};

}  // namespace monarch
