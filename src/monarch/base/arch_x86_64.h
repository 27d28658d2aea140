// See base/arch.h.
#pragma once

#include <emmintrin.h>

#include <cstdint>

namespace monarch::arch {

inline void pause() { __builtin_ia32_pause(); }

inline uint64_t ticks() { return __builtin_ia32_rdtsc(); }

constexpr uint64_t ticks_per_us() { return 2'500; }

inline void prefetch(const void* from) { _mm_prefetch(static_cast<const char*>(from), _MM_HINT_T0); }

// Not __builtin_prefetch(), which is a prefetch to read where not every processor of a kind has the other one. Those that
// do not know the instruction do nothing (all of Intel's with 64 bits; AMD's know it).
inline void prefetch_to_write(const void* what) {
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(what)));
}

inline void stream_line(void* to, const void* from) {
  __m128i line[4];
  for (int i = 0; i < 4; ++i) line[i] = _mm_loadu_si128(static_cast<const __m128i*>(from) + i);
  for (int i = 0; i < 4; ++i) _mm_stream_si128(static_cast<__m128i*>(to) + i, line[i]);
}

inline void stream_fence() { _mm_sfence(); }

}  // namespace monarch::arch
