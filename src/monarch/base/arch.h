// What differs from one processor to the other, and nothing else: each has a file with the same functions. No other file
// holds an instruction, an intrinsic or a builtin of a processor (`make lint`).
//
//   void pause()                 in a loop that waits for another core: spares the core's other thread, and power
//   uint64_t ticks()             a counter that runs at a constant rate, on all cores alike
//   uint64_t ticks_per_us()      that rate, within a factor of two
//   void prefetch(const void*)   the line will be read soon; any address will do
//   void prefetch_to_write(const void*)   the line will be written soon, and another core may have written it last
//   void stream_line(void* to, const void* from)   copies 64 bytes to an address that is a multiple of 64, past the caches
//   void stream_fence()          after the last stream_line(): what is stored next is not seen before what was streamed
#pragma once

#if defined(__x86_64__)
#include "monarch/base/arch_x86_64.h"
#elif defined(__aarch64__)
#include "monarch/base/arch_aarch64.h"
#else
#error "Monarch runs on x86-64 and aarch64. For another one: a file like base/arch_aarch64.h, and a line in base/arch.h."
#endif
