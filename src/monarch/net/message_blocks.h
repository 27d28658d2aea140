// Memory of small messages: blocks of one size, kept by the thread that freed them for the next message that it makes.
// Where one thread makes messages and another frees them, full chains of blocks go back by way of a shared depot, so
// that neither of them calls the allocator.
#pragma once

#include <cstddef>

namespace monarch::internal {

inline constexpr size_t kMessageBlockBytes = 320;  // a Message and a record of about 100 bytes

// Any thread. Memory for kMessageBlockBytes, aligned to a cache line; contents unspecified.
void* take_message_block();
void return_message_block(void* block);

// Any thread. Memory for one large record or part; null: there is none. From some megabytes on in huge pages where the
// kernel gives them: it is fresh each time, and one fault for two megabytes instead of 512 is most of what that costs.
std::byte* take_large_block(size_t size);
void return_large_block(std::byte* block);

}  // namespace monarch::internal
