// The futex calls that everything here is built on.
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace monarch {

// Sleeps while *word == expected, at most `timeout_ns` (negative: no limit). Returns 0 when woken or changed, else
// errno (EINTR, ETIMEDOUT). `shared`: the word lies in memory that other processes map too.
inline int futex_wait(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ns, bool shared) {
  timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000), static_cast<long>(timeout_ns % 1'000'000'000)};
  long rc = syscall(SYS_futex, &word, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, expected,
                    timeout_ns < 0 ? nullptr : &timeout, nullptr, 0);
  return rc == 0 || errno == EAGAIN ? 0 : errno;
}

inline void futex_wake(std::atomic<uint32_t>& word, int count, bool shared) {
  syscall(SYS_futex, &word, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

// One of several words to sleep on: the kernel's struct futex_waitv, which older headers lack.
struct FutexWaiter {
  uint64_t expected;
  uint64_t address;
  uint32_t flags;
  uint32_t reserved;

  static FutexWaiter of(const std::atomic<uint32_t>& word, uint32_t expected, bool shared) {
    constexpr uint32_t k32Bits = 2, kPrivate = 128;
    return {expected, reinterpret_cast<uint64_t>(&word), shared ? k32Bits : k32Bits | kPrivate, 0};
  }
};
inline constexpr uint32_t kFutexWaitersMax = 128;

// Sleeps while each of the words is as expected. Returns 0 when one is not, or was woken, else errno (ENOSYS before Linux
// 5.16). A word that is mapped no more: EFAULT.
inline int futex_wait_any(FutexWaiter* waiters, uint32_t count) {
  constexpr long kFutexWaitv = 449;  // on every processor
  const long rc = syscall(kFutexWaitv, waiters, count, 0, nullptr, 0);
  return rc >= 0 || errno == EAGAIN ? 0 : errno;
}

}  // namespace monarch
