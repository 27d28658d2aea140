// The two futex calls that everything here is built on.
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

}  // namespace monarch
