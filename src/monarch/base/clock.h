// Time enters through an interface; this file is the only reader of the clock in src/.
#pragma once

#include <cstdint>

namespace monarch {

inline constexpr int64_t kNoDeadline = INT64_MAX;

// Monotonic nanoseconds since an arbitrary start.
int64_t monotonic_ns();

// A counter that moves by a few thousand in a microsecond, read in a third of the time that monotonic_ns() takes: for
// "not more often than about every so many", where nothing depends on how often.
inline uint64_t cpu_ticks() { return __builtin_ia32_rdtsc(); }

// What timed decisions are given instead of the clock, so that the simulator can drive them.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() = 0;
};

class SystemClock final : public Clock {
 public:
  int64_t now_ns() override { return monotonic_ns(); }
};

}  // namespace monarch
