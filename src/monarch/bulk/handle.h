// What names a buffer of a process's memory, or a part of it, and proves that who has it may use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "monarch/base/ids.h"
#include "monarch/bulk/memory.h"

namespace monarch {

// Twice 63 random bits, made when the buffer is registered. Two of a buffer: one to read, one to read and write.
struct BufferKey {
  uint64_t low = 0, high = 0;
  friend bool operator==(const BufferKey&, const BufferKey&) = default;
};

// SipHash-2-4 with a result of 128 bits (Aumasson and Bernstein, 2012), of 16 bytes. Two bits of the result are 0.
BufferKey sip_hash(const BufferKey& key, uint64_t first, uint64_t second);

struct BufferPart {
  uint64_t offset = 0, size = 0;  // bytes, of the buffer
  friend bool operator==(const BufferPart&, const BufferPart&) = default;
};

struct BufferHandle {
  static constexpr size_t kWithinMax = 16;

  NodeId owner = 0;
  uint32_t index = 0;       // in the owner's table
  uint64_t generation = 0;  // how often that place has been taken
  BufferKey key;            // that of the buffer, or what is made of it along `within`
  bool writable = false;    // which key of the buffer it is
  uint64_t offset = 0, size = 0;  // the part of the buffer that is meant, in bytes
  // If that is a block, and not all that lies between: as many pieces of `run` bytes as `dims` say, the first at `offset`,
  // with strides of 0 or more. `size` is the sum of the pieces.
  uint64_t run = 0;
  std::vector<Memory::Dim> dims{};

  // Whoever has this handle may use the last of these, each of which lies in the one before; none: the whole buffer.
  std::vector<BufferPart> within{};

  bool is_block() const { return run != 0; }
  // From now on it is for what is meant only, of a block from its first byte to its last; who has it cannot take that back.
  // Nothing, if kWithinMax times it has been.
  void confine();
  // What the key of this handle is, if that of its buffer is this. None: it means more than it is for.
  std::optional<BufferKey> key_made_of(BufferKey of_buffer) const;
  // Whether all that is meant lies inside of so many bytes, and is as many bytes as it says.
  bool lies_within(uint64_t bytes) const;
  // From the first byte that is meant to the last. It lies within.
  uint64_t reach() const;
  // What is meant, in the memory of a buffer that begins at `data` and lies in one piece. It lies within.
  Memory memory_at(std::byte* data) const;
};

}  // namespace monarch
