// Time enters through an interface; this file is the only reader of the clock in src/.
#pragma once

#include <cstdint>

namespace monarch {

inline constexpr int64_t kNoDeadline = INT64_MAX;

// Monotonic nanoseconds since an arbitrary start.
int64_t monotonic_ns();

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
