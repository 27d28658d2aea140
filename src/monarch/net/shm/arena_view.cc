#include "monarch/net/shm/arena_view.h"

#include <sys/stat.h>

#include "monarch/net/shm/arena.h"

namespace monarch {

Status ArenaView::lose(uint32_t segment) {
  if (segment < segments_.size() && has(segment) && segments_[segment].was_lost) return Ok{};
  if (segment >= kArenaSegmentsMax || has(segment)) return Error{ErrorCode::kMalformed, "bad arena segment number"};
  if (segment >= segments_.size()) segments_.resize(segment + 1);
  segments_[segment].lost = segments_[segment].was_lost = true;
  return Ok{};
}

Status ArenaView::add(uint32_t number, UniqueFd fd, Received& received) {
  if (number < segments_.size() && has(number) && segments_[number].was_lost) return Ok{};
  if (number >= kArenaSegmentsMax || has(number)) return Error{ErrorCode::kMalformed, "bad arena segment number"};
  auto mapping = map_shared_memory(fd.get(), 0);
  if (!mapping && mapping.error().code != ErrorCode::kUnavailable) return mapping.error();
  struct stat status;
  MONARCH_CHECK(fstat(fd.get(), &status) == 0);
  if (number >= segments_.size()) segments_.resize(number + 1);
  Segment& segment = segments_[number];
  segment.bytes = static_cast<uint64_t>(status.st_size);
  segment.lost = false;
  if (mapping) {
    segment.memory = received.add(std::move(*mapping), std::move(fd));
  } else {
    segment.unmapped = std::make_shared<UniqueFd>(std::move(fd));
  }
  return Ok{};
}

std::vector<uint32_t> ArenaView::lost() const {
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    if (segments_[i].lost) found.push_back(i);
  }
  return found;
}

bool ArenaView::contains(const ArenaLocation& location, uint64_t size) const {
  if (!has(location.segment)) return false;
  const uint64_t bytes = segments_[location.segment].bytes;
  return location.offset <= bytes && size <= bytes - location.offset;
}

std::byte* ArenaView::resolve(const ArenaLocation& location, uint64_t size, Received& received) {
  if (!contains(location, size)) return nullptr;
  Segment& segment = segments_[location.segment];
  if (!segment.memory) {
    auto mapping = map_shared_memory(segment.unmapped->get(), 0);
    if (!mapping) return nullptr;
    segment.memory = received.add(std::move(*mapping), std::move(*segment.unmapped));
    segment.unmapped.reset();
  }
  return segment.memory->begin() + location.offset;
}

}  // namespace monarch
