// What names a buffer of a process's memory, or a part of it, and proves that who has it may use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "monarch/base/ids.h"
#include "monarch/bulk/memory.h"

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
  // If that is a block, and not all that lies between: as many pieces of `run` bytes as `dims` say, the first at `offset`,
  // with strides of 0 or more. `size` is the sum of the pieces.
  uint64_t run = 0;
  std::vector<Memory::Dim> dims{};

  bool is_block() const { return run != 0; }
  // Whether all that is meant lies inside of so many bytes, and is as many bytes as it says.
  bool lies_within(uint64_t bytes) const;
  // From the first byte that is meant to the last. It lies within.
  uint64_t reach() const;
  // What is meant, in the memory of a buffer that begins at `data` and lies in one piece. It lies within.
  Memory memory_at(std::byte* data) const;
};

}  // namespace monarch
