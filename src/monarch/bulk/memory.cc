#include "monarch/bulk/memory.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "monarch/base/copy.h"

namespace monarch {

Memory::Memory(std::byte* data, uint64_t item_size, std::vector<Dim> dims)
    : data_(data), run_(item_size), size_(item_size) {
  for (const Dim& dim : dims) size_ *= dim.count;
  std::erase_if(dims, [](const Dim& dim) { return dim.count == 1; });
  if (size_ == 0) dims.clear();
  while (!dims.empty() && dims.back().stride == static_cast<int64_t>(run_)) {
    run_ *= dims.back().count;
    dims.pop_back();
  }
  if (size_ == 0) run_ = 0;
  dims_ = std::move(dims);
}

// Sorted by stride, each dimension must step over all that those below it reach over: true of every view that indexing can
// make of memory, and of nothing that overlaps.
bool Memory::overlaps() const {
  std::vector<Dim> dims = dims_;
  std::ranges::sort(dims, {}, [](const Dim& dim) { return std::abs(dim.stride); });
  uint64_t reach = run_;
  for (const Dim& dim : dims) {
    const auto step = static_cast<uint64_t>(std::abs(dim.stride));
    if (step < reach) return true;
    reach += step * (dim.count - 1);
  }
  return false;
}

void Memory::gather(uint64_t offset, uint64_t length, std::byte* flat) const {
  for_each(offset, length, [&](const std::byte* data, uint64_t size) {
    copy_bytes(flat, data, size);
    flat += size;
    return true;
  });
}

void Memory::scatter(uint64_t offset, uint64_t length, const std::byte* flat) const {
  for_each(offset, length, [&](std::byte* data, uint64_t size) {
    copy_bytes(data, flat, size);
    flat += size;
    return true;
  });
}

}  // namespace monarch
