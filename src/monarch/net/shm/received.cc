#include "monarch/net/shm/received.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>

#include "monarch/base/log.h"
#include "monarch/base/system.h"

namespace monarch {

// One mapping for all that has ever been in use, not one for each slab: how many of those a process may have is limited,
// and nothing else in the segment is of use in a child. Address space without memory: as with any fork, a page is copied
// when it is written.
void ReceivedSegment::make_private() {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t used = used_end_.load(std::memory_order_relaxed);
  const uint64_t size = std::min(this->size(), (used + page - 1) / page * page);
  if (size == 0) return;
  if (sys::map_over(begin(), size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_.get()) == MAP_FAILED) {
    mprotect(begin(), size, PROT_READ);
  }
}

std::shared_ptr<ReceivedSegment> Received::add(Mapping mapping, UniqueFd fd) {
  if (!sys::leaves_descriptors(fd.get())) fd.reset();
  auto segment = std::make_shared<ReceivedSegment>(std::move(mapping), std::move(fd));
  std::lock_guard lock(mutex_);
  std::erase_if(segments_, [](const auto& known) { return known.expired(); });
  segments_.push_back(segment);
  return segment;
}

// With the lock held: whether a child lives that was forked while the lease was alive.
bool Received::has_child_of(const Lease& lease) const {
  const auto first = std::upper_bound(children_.begin(), children_.end(), lease.born);
  return first != children_.end() && *first <= lease.died;
}

bool Received::hold(std::unique_ptr<Lease>& lease, std::weak_ptr<LeaseReturn> back) {
  std::lock_guard lock(mutex_);
  if (!has_child_of(*lease)) return false;
  held_.push_back({std::move(lease), std::move(back)});
  return true;
}

uint64_t Received::held() const {
  std::lock_guard lock(mutex_);
  return held_.size();
}

// A lease that begins or ends on another thread meanwhile is none that the child can know of.
void Received::before_fork() {
  mutex_.lock_for_fork();
  leaves_leases_ = std::any_of(segments_.begin(), segments_.end(), [](const auto& known) {
    const auto segment = known.lock();
    return segment && segment->in_use();
  });
  if (!leaves_leases_) return;
  sys::make_pipe(pipe_);
  children_.push_back(forks_.fetch_add(1, std::memory_order_seq_cst) + 1);
}

// The child, and what it forks in its turn, has the only end to write: the pipe ends with the last of them.
void Received::after_fork_in_parent() {
  const int error = errno;
  const bool leaves_leases = std::exchange(leaves_leases_, false);
  const uint64_t fork = forks();
  pipe_[1].reset();
  auto ends = std::make_shared<UniqueFd>(std::move(pipe_[0]));  // shared: callbacks can be copied
  mutex_.unlock();
  if (leaves_leases && !*ends) {
    errno = EMFILE;
    log_line_limited("forked without a pipe",
                     sys::shortage_error("watch a forked child").message +
                         "; what it has of received arrays is kept for as long as this process lives");
  } else if (leaves_leases) {
    const int fd = ends->get();
    reactor_.add(fd, EPOLLIN, [weak = weak_from_this(), &reactor = reactor_, ends, fork](uint32_t) {
      const std::shared_ptr<UniqueFd> open = ends;  // until the reactor does not watch it any more
      reactor.remove(open->get());
      if (auto self = weak.lock()) self->on_children_ended(fork);
    });
  }
  errno = error;
}

void Received::after_fork_in_child() {
  pipe_[0].reset();
  pipe_[1].release();  // open until the end, or another program
  if (leaves_leases_) {
    for (const auto& known : segments_) {
      const auto segment = known.lock();
      if (segment && segment->in_use()) segment->make_private();
    }
  }
  mutex_.unlock();
}

void Received::on_children_ended(uint64_t fork) {
  std::map<std::shared_ptr<LeaseReturn>, std::vector<std::unique_ptr<Lease>>> free;
  {
    std::lock_guard lock(mutex_);
    std::erase(children_, fork);
    std::vector<Held> left;
    for (Held& held : held_) {
      if (has_child_of(*held.lease)) {
        left.push_back(std::move(held));
      } else if (auto back = held.back.lock()) {
        free[std::move(back)].push_back(std::move(held.lease));
      }
    }
    held_ = std::move(left);
  }
  for (auto& [back, leases] : free) back->give_back(std::move(leases));
}

}  // namespace monarch
