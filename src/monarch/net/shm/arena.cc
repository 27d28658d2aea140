#include "monarch/net/shm/arena.h"

#include <algorithm>
#include <bit>

namespace monarch {

namespace {
constexpr uint64_t kSegmentBytes = uint64_t{64} << 20;
constexpr uint64_t kSlabBytesMin = 4096;
constexpr uint32_t kSegmentsMax = 1 << 16;
}  // namespace

// Four bins to each power of two, from 4 KiB on: at most 25 % of a slab is unused.
uint32_t Arena::bin_of(uint64_t size) {
  size = std::max(size, kSlabBytesMin);
  const uint32_t log = static_cast<uint32_t>(std::bit_width(size - 1));  // size <= 2^log
  if (size == kSlabBytesMin) return 0;
  const uint64_t base = uint64_t{1} << (log - 1);
  const uint64_t step = base / 4;
  const uint32_t quarter = static_cast<uint32_t>((size - base + step - 1) / step);  // 1..4
  return (log - 13) * 4 + quarter;
}

uint64_t Arena::bin_bytes(uint32_t bin) {
  if (bin == 0) return kSlabBytesMin;
  const uint32_t log = (bin - 1) / 4 + 13;
  const uint64_t base = uint64_t{1} << (log - 1);
  return base + base / 4 * ((bin - 1) % 4 + 1);
}

std::optional<Slab> Arena::allocate(uint64_t size) {
  if (size > bytes_max_) return std::nullopt;
  std::lock_guard lock(mutex_);
  const uint32_t wanted = bin_of(size);
  std::optional<Slab> slab;
  uint32_t bin = wanted;
  // A freed slab of the right size; else a new one; else, when the arena is full, one of up to four times the size.
  auto take = [&](uint32_t from) {
    auto found = free_.find(from);
    if (found == free_.end() || found->second.empty()) return false;
    slab = found->second.back();
    found->second.pop_back();
    bin = from;
    return true;
  };
  if (!take(wanted)) {
    slab = carve(bin_bytes(wanted));
    for (uint32_t larger = wanted + 1; !slab && larger <= wanted + 8; ++larger) take(larger);
  }
  if (!slab) return std::nullopt;
  held_[slab->key()] = Held{bin, 1};
  held_bytes_ += bin_bytes(bin);
  return slab;
}

std::optional<Slab> Arena::carve(uint64_t size) {
  Segment* last = segments_.empty() ? nullptr : segments_.back().get();
  if (last == nullptr || last->mapping.size() - last->used < size) {
    const uint64_t bytes = std::max(size, std::min(kSegmentBytes, bytes_max_));
    if (reserved_ + bytes > bytes_max_ || segments_.size() >= kSegmentsMax) return std::nullopt;
    auto fd = make_shared_memory("monarch-arena", bytes);
    if (!fd) return std::nullopt;
    auto mapping = map_shared_memory(fd->get(), bytes);
    if (!mapping) return std::nullopt;
    segments_.push_back(std::make_unique<Segment>(Segment{std::move(*fd), std::move(*mapping), 0}));
    reserved_ += bytes;
    last = segments_.back().get();
  }
  Slab slab{static_cast<uint32_t>(segments_.size() - 1), last->used,
            static_cast<std::byte*>(last->mapping.get()) + last->used};
  last->used += size;
  return slab;
}

void Arena::hold(uint64_t key) {
  std::lock_guard lock(mutex_);
  auto found = held_.find(key);
  MONARCH_CHECK(found != held_.end());
  ++found->second.holders;
}

bool Arena::release(uint64_t key) {
  std::lock_guard lock(mutex_);
  auto found = held_.find(key);
  if (found == held_.end()) return false;
  if (--found->second.holders != 0) return true;
  const uint32_t bin = found->second.bin;
  held_.erase(found);
  held_bytes_ -= bin_bytes(bin);
  Slab slab{static_cast<uint32_t>(key >> 40), key & ((uint64_t{1} << 40) - 1), nullptr};
  slab.data = static_cast<std::byte*>(segments_[slab.segment]->mapping.get()) + slab.offset;
  free_[bin].push_back(slab);
  return true;
}

int Arena::segment_fd(uint32_t segment) const {
  std::lock_guard lock(mutex_);
  return segments_[segment]->fd.get();
}

Status ArenaView::add(uint32_t segment, UniqueFd fd) {
  if (segment >= kSegmentsMax || has(segment)) return Error{ErrorCode::kMalformed, "bad arena segment number"};
  auto mapping = map_shared_memory(fd.get(), 0);
  if (!mapping) return mapping.error();
  if (segment >= segments_.size()) segments_.resize(segment + 1);
  segments_[segment] = std::make_shared<Mapping>(std::move(*mapping));
  return Ok{};
}

std::byte* ArenaView::resolve(const ArenaLocation& location, uint64_t size) const {
  if (!has(location.segment)) return nullptr;
  const Mapping& mapping = *segments_[location.segment];
  if (location.offset > mapping.size() || size > mapping.size() - location.offset) return nullptr;
  return static_cast<std::byte*>(mapping.get()) + location.offset;
}

}  // namespace monarch
