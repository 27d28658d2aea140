#include "monarch/bulk/memory.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "monarch/base/copy.h"
#include "monarch/base/log.h"
#include "monarch/bulk/cuda.h"

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

Memory::Cursor::Cursor(const Memory& memory, uint64_t offset)
    : memory_(memory), piece_(memory.data_), within_(offset), place_(memory.dims_.size()) {
  if (place_.empty()) return;
  uint64_t at = offset / memory.run_;
  within_ = offset % memory.run_;
  for (size_t dim = place_.size(); dim-- > 0; at /= memory.dims_[dim].count) {
    place_[dim] = at % memory.dims_[dim].count;
    piece_ += static_cast<int64_t>(place_[dim]) * memory.dims_[dim].stride;
  }
}

// As an odometer; behind the last piece comes the first.
void Memory::Cursor::next_piece() {
  within_ = 0;
  for (size_t dim = place_.size(); dim-- > 0;) {
    const Dim& of = memory_.dims_[dim];
    piece_ += of.stride;
    if (++place_[dim] < of.count) return;
    piece_ -= static_cast<int64_t>(of.count) * of.stride;
    place_[dim] = 0;
  }
}

namespace {

template <size_t kSize>
void copy_items(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride, uint64_t count) {
  for (; count > 0; --count, to += to_stride, from += from_stride) std::memcpy(to, from, kSize);
}

// Small items, as many as lie at one distance on both sides: a loop of their own, since a step of a Cursor costs more than
// one of them. How many bytes.
uint64_t copy_row(Memory::Cursor& to, Memory::Cursor& from, uint64_t length) {
  if (to.in_one_piece() && from.in_one_piece()) return 0;
  const uint64_t size = std::min(to.left(), from.left());
  if (size > 16 || (size & (size - 1)) != 0) return 0;
  uint64_t count = length / size;
  for (const Memory::Cursor* side : {&to, &from}) {
    if (!side->in_one_piece() && side->left() != size) return 0;
    count = std::min(count, side->in_one_piece() ? side->left() / size : side->runs());
  }
  if (count < 2) return 0;
  const auto stride_of = [size](const Memory::Cursor& side) {
    return side.in_one_piece() ? static_cast<int64_t>(size) : side.stride();
  };
  const auto copy = size == 1   ? copy_items<1>
                    : size == 2 ? copy_items<2>
                    : size == 4 ? copy_items<4>
                    : size == 8 ? copy_items<8>
                                : copy_items<16>;
  copy(to.at(), stride_of(to), from.at(), stride_of(from), count);
  for (Memory::Cursor* side : {&to, &from}) {
    side->in_one_piece() ? side->advance(count * size) : side->skip_runs(count);
  }
  return count * size;
}

bool copy_on_device(const Memory& to, uint64_t to_offset, const Memory& from, uint64_t from_offset, uint64_t length) {
  std::string why_not;
  const Cuda* cuda = Cuda::find(&why_not);
  const Status copied = cuda != nullptr ? cuda->copy(to, to_offset, from, from_offset, length)
                                        : Status(Error{ErrorCode::kUnsupported, why_not});
  if (!copied) {
    static constexpr char kWhat[] = "memory of a CUDA device could not be copied";
    log_line_limited(kWhat, std::string(kWhat) + ": " + copied.error().message);
  }
  return copied.ok();
}

}  // namespace

bool copy_memory(const Memory& to, uint64_t to_offset, const Memory& from, uint64_t from_offset, uint64_t length) {
  if (to.is_on_device() || from.is_on_device()) return copy_on_device(to, to_offset, from, from_offset, length);
  Memory::Cursor into(to, to_offset), out(from, from_offset);
  while (length > 0) {
    if (const uint64_t copied = copy_row(into, out, length); copied > 0) {
      length -= copied;
      continue;
    }
    const uint64_t size = std::min({length, into.left(), out.left()});
    copy_bytes(into.at(), out.at(), size);
    into.advance(size);
    out.advance(size);
    length -= size;
  }
  return true;
}

Memory::Span Memory::span(uint64_t offset, uint64_t length) const {
  Cursor cursor(*this, offset);
  Span span{cursor.at(), cursor.at()};
  while (length > 0) {
    const uint64_t size = std::min(length, cursor.left());
    span.begin = std::min(span.begin, cursor.at());
    span.end = std::max(span.end, cursor.at() + size);
    cursor.advance(size);
    length -= size;
  }
  return span;
}

bool Memory::gather(uint64_t offset, uint64_t length, std::byte* flat) const {
  return copy_memory(Memory(flat, length), 0, *this, offset, length);
}

bool Memory::scatter(uint64_t offset, uint64_t length, const std::byte* flat) const {
  return copy_memory(*this, offset, Memory(const_cast<std::byte*>(flat), length), 0, length);
}

}  // namespace monarch
