#include "monarch/bulk/handle.h"

namespace monarch {

bool BufferHandle::lies_within(uint64_t bytes) const {
  if (offset > bytes) return false;
  if (!is_block()) return dims.empty() && size <= bytes - offset;
  uint64_t reach = run, sum = run;
  for (const Memory::Dim& dim : dims) {
    uint64_t steps;
    if (dim.count == 0 || dim.stride < 0 || __builtin_mul_overflow(sum, dim.count, &sum) ||
        __builtin_mul_overflow(dim.count - 1, static_cast<uint64_t>(dim.stride), &steps) ||
        __builtin_add_overflow(reach, steps, &reach)) {
      return false;
    }
  }
  return sum == size && reach <= bytes - offset;
}

uint64_t BufferHandle::reach() const {
  if (!is_block()) return size;
  uint64_t reach = run;
  for (const Memory::Dim& dim : dims) reach += (dim.count - 1) * static_cast<uint64_t>(dim.stride);
  return reach;
}

Memory BufferHandle::memory_at(std::byte* data) const {
  return is_block() ? Memory(data + offset, run, dims) : Memory(data + offset, size);
}

}  // namespace monarch
