// A mutex that knows its place in the order of locks (base/lock_order.h). In release builds it is a std::mutex and
// nothing more; with MONARCH_LOCK_CHECKS (debug and sanitizer builds; CMake says it to all that uses the library, since the
// layout depends on it) a lock that is taken out of order, or twice by one thread, ends the process with both names.
#pragma once

#include <mutex>

#include "monarch/base/lock_order.h"

namespace monarch {

#if defined(MONARCH_LOCK_CHECKS)

namespace internal {
void check_lock(const void* mutex, LockRank rank);  // before it is taken
void note_locked(const void* mutex, LockRank rank);
void note_unlocked(const void* mutex);
void check_held(const void* mutex);
}  // namespace internal

class Mutex {
 public:
  explicit constexpr Mutex(LockRank rank) : rank_(rank) {}
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() {
    internal::check_lock(this, rank_);
    mutex_.lock();
    internal::note_locked(this, rank_);
  }
  // Before a fork(), when those of another runtime of this process may be held: nobody else ever holds locks of two.
  void lock_for_fork() {
    mutex_.lock();
    internal::note_locked(this, rank_);
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    internal::note_locked(this, rank_);
    return true;
  }
  void unlock() {
    internal::note_unlocked(this);
    mutex_.unlock();
  }
  // For functions that say "with this lock held".
  void assert_held() const { internal::check_held(this); }

 private:
  std::mutex mutex_;
  const LockRank rank_;
};

#else

class Mutex {
 public:
  explicit constexpr Mutex(LockRank) {}
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() { mutex_.lock(); }
  void lock_for_fork() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }
  void assert_held() const {}

 private:
  std::mutex mutex_;
};

#endif

}  // namespace monarch
