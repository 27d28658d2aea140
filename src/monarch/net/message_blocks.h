// Memory of small messages: blocks of one size, kept by the thread that freed them for the next message that it makes.
// Where one thread makes messages and another frees them, full magazines of blocks go back by way of a shared depot, so
// that neither of them calls the allocator.
#pragma once

#include <cstddef>

#include "monarch/loop/timers.h"

namespace monarch::internal {

inline constexpr size_t kMessageBlockBytes = 320;  // a Message and a record of about 100 bytes

// Any thread. Memory for kMessageBlockBytes, aligned to a cache line; contents unspecified.
void* take_message_block();
void return_message_block(void* block);

// Any thread. Memory for one large record or part; null: there is none. From some megabytes on in huge pages where the
// kernel gives them: one fault for two megabytes instead of 512 is most of what fresh memory costs.
std::byte* take_large_block(size_t size);
void return_large_block(std::byte* block);

// From now on blocks of a megabyte and more that have been returned are kept for a while, since fresh ones cost more than
// what is copied to them: at most kWarmBytes, and none for longer than twice kWarmNs. They go back on `timers`, which
// outlives that: null, and nothing is kept any more. One at a time in a process; another one takes its place.
inline constexpr size_t kWarmBytes = size_t{256} << 20;
inline constexpr int64_t kWarmNs = 1'000'000'000;
void keep_large_blocks(Timers* timers);
size_t large_blocks_kept();  // bytes

}  // namespace monarch::internal
