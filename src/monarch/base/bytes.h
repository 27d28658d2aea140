// Byte parts. A part is immutable for its sender once sent; the owner keeps the memory alive.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace monarch {

using ByteSpan = std::span<const std::byte>;

// A received part: memory that belongs to `owner` (heap block or arena slab) and may be written by its receiver, but for
// what its sender has frozen (net/freezable.h): to write to that is SIGSEGV.
// shared_ptr: the message, and every view that user code keeps of it, own it together.
struct Part {
  std::byte* data = nullptr;
  size_t size = 0;
  std::shared_ptr<void> owner;
};

inline ByteSpan as_byte_span(const void* data, size_t size) { return {static_cast<const std::byte*>(data), size}; }

}  // namespace monarch
