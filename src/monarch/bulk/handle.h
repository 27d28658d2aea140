// What names a buffer of a process's memory, or a part of it, and proves that who has it may use it.
#pragma once

#include <cstdint>

#include "monarch/base/ids.h"

namespace monarch {

// Twice 63 random bits, made when the buffer is registered. Two of a buffer: one to read, one to read and write.
struct BufferKey {
  uint64_t low = 0, high = 0;
  friend bool operator==(const BufferKey&, const BufferKey&) = default;
};

struct BufferHandle {
  NodeId owner = 0;
  uint32_t index = 0;       // in the owner's table
  uint64_t generation = 0;  // how often that place has been taken
  BufferKey key;
  bool writable = false;    // which key it is
  uint64_t offset = 0, size = 0;  // the part of the buffer that is meant, in bytes
};

}  // namespace monarch
