// The receiver's view of one peer's arena: its segments, mapped when they are offered. Where the address space is too small
// for one (ulimit -v: a segment is large), its descriptor is kept, and what lies in it is read. Guarded by its link.
#pragma once

#include <memory>
#include <vector>

#include "monarch/base/result.h"
#include "monarch/net/shm/received.h"
#include "monarch/wire/frame.h"

namespace monarch {

class ArenaView {
 public:
  // `fd` is segment number `segment` of the peer. kMalformed: it lies.
  Status add(uint32_t segment, UniqueFd fd, Received& received);
  // The peer has offered the segment, but there was no descriptor for it here: it is offered again when the peer is asked
  // to. kMalformed: no such number is possible. One that has ever been lost may come more than once, since it may have been
  // asked for more than once: then nothing changes.
  Status lose(uint32_t segment);

  bool has(uint32_t segment) const {
    return segment < segments_.size() && (segments_[segment].memory || segments_[segment].unmapped);
  }
  bool has_lost(uint32_t segment) const { return segment < segments_.size() && segments_[segment].lost; }
  std::vector<uint32_t> lost() const;
  // Whether all of it lies in a segment that is here.
  bool contains(const ArenaLocation& location, uint64_t size) const;
  // nullptr: not contained, or the segment could not be mapped, now neither.
  std::byte* resolve(const ArenaLocation& location, uint64_t size, Received& received);
  // Keeps the mapping for as long as somebody holds a view into it. Null: there is none.
  std::shared_ptr<ReceivedSegment> memory(uint32_t segment) const { return segments_[segment].memory; }
  // Its descriptor, where there is no mapping.
  std::shared_ptr<UniqueFd> unmapped(uint32_t segment) const { return segments_[segment].unmapped; }

 private:
  struct Segment {
    std::shared_ptr<ReceivedSegment> memory;  // shared: with the leases of slabs in it
    std::shared_ptr<UniqueFd> unmapped;       // shared: with whoever reads from it
    uint64_t bytes = 0;
    bool lost = false;
    bool was_lost = false;
  };
  std::vector<Segment> segments_;
};

}  // namespace monarch
