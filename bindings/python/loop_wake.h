// How messages wake an asyncio loop that sleeps: an eventfd that the loop reads, written once for each sleep.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <mutex>

#include "monarch/base/system.h"
#include "monarch/base/unique_fd.h"
#include "monarch/loop/driver.h"

namespace monarch {

class LoopWake {
 public:
  explicit LoopWake(Driver& driver) : driver_(driver) {}

  // The loop's thread: the descriptor, made at the first call. -1: there is none to be had; errno says why.
  int fd() {
    std::lock_guard lock(closing_);
    if (!event_) event_ = sys::make_eventfd();
    return event_.get();
  }
  // The loop's thread: it is about to sleep, wake() will write. False: `has_work` is true already; do not sleep.
  template <typename HasWork>
  bool arm(HasWork&& has_work) {
    driver_.attend();
    armed_.store(true, std::memory_order_seq_cst);
    if (!has_work()) return true;
    take();
    return false;
  }
  // The loop's thread: it is awake.
  void disarm() {
    take();
    eventfd_t ignored;
    eventfd_read(event_.get(), &ignored);
  }
  // Any thread: there is work.
  void wake() {
    if (!armed_.load(std::memory_order_seq_cst) || !take()) return;
    std::lock_guard lock(closing_);
    if (event_) eventfd_write(event_.get(), 1);
  }
  // Any thread: the loop is to look, also if it does not sleep for messages.
  void ring() {
    std::lock_guard lock(closing_);
    if (event_) eventfd_write(event_.get(), 1);
  }
  // The loop's thread: it sleeps no more.
  void close() {
    take();
    std::lock_guard lock(closing_);
    event_.reset();
  }

 private:
  bool take() {
    if (!armed_.exchange(false, std::memory_order_seq_cst)) return false;
    driver_.end_attend();
    return true;
  }

  Driver& driver_;
  std::atomic<bool> armed_{false};
  std::mutex closing_;  // a wake() that is late may not write into what has the number next
  UniqueFd event_;
};

}  // namespace monarch
