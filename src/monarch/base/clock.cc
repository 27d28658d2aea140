#include "monarch/base/clock.h"

#include <time.h>

#include "monarch/base/arch.h"

namespace monarch {

int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

uint64_t cpu_ticks() { return arch::ticks(); }

uint64_t cpu_ticks_per_us() { return arch::ticks_per_us(); }

}  // namespace monarch
