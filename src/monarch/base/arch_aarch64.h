// See base/arch.h.
#pragma once

#include <cstdint>

namespace monarch::arch {

// Not YIELD, which most of these processors take for nothing: ISB waits for the pipeline, about as long as x86's PAUSE.
inline void pause() { asm volatile("isb" ::: "memory"); }

// The generic timer: 1 GHz from Armv8.6 on, 24 to 100 MHz before.
inline uint64_t ticks() {
  uint64_t count;
  asm volatile("mrs %0, cntvct_el0" : "=r"(count));
  return count;
}

inline uint64_t ticks_per_us() {
  uint64_t per_second;
  asm("mrs %0, cntfrq_el0" : "=r"(per_second));
  return per_second / 1'000'000;
}

inline void prefetch(const void* from) { __builtin_prefetch(from, 0, 3); }
inline void prefetch_to_write(const void* what) { __builtin_prefetch(what, 1, 3); }

// STNP says that the line will not be read soon; it is an ordinary store otherwise.
inline void stream_line(void* to, const void* from) {
  asm volatile(
      "ldp q0, q1, [%1]\n\t"
      "ldp q2, q3, [%1, #32]\n\t"
      "stnp q0, q1, [%0]\n\t"
      "stnp q2, q3, [%0, #32]"
      :
      : "r"(to), "r"(from)
      : "v0", "v1", "v2", "v3", "memory");
}

// Non-temporal stores are ordered by the barriers and releases that order all others.
inline void stream_fence() { asm volatile("dmb ishst" ::: "memory"); }

}  // namespace monarch::arch
