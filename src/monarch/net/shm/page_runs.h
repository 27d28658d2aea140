// Which pages of a segment are lent and which are free: runs of pages, split when a part of one is lent, merged with
// their free neighbours when it comes back. What it knows lies outside of the segment, since peers can write there.
//
// Taking and giving back cost the same whatever the number of runs. Bytes below 12 % of a run may be left over where a
// run that fits better was not looked for. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "monarch/base/result.h"
#include "monarch/net/shm/shared_memory.h"

namespace monarch {

class PageRuns {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // All `pages` (> 0) are free.
  static Result<PageRuns> make(uint32_t pages);

  // The first page of a run of `pages` (> 0), lent to one holder from now on. kNone: no free run is that long.
  uint32_t take(uint32_t pages);
  // As take(), for exactly these pages of the free run that begins at `run`.
  void take_at(uint32_t run, uint32_t first, uint32_t pages);
  // A run that was taken is free again.
  void give_back(uint32_t first);

  // Calls visit(first, pages) for the free runs of at least `pages_min`, the largest first, until it returns true.
  template <typename Visit>
  void visit_free(uint32_t pages_min, Visit&& visit) const {
    for (uint32_t bin = kBins; bin-- > bin_of(pages_min);) {
      for (uint32_t at = heads_[bin]; at != 0; at = tag(at - 1).next) {
        if (tag(at - 1).pages >= pages_min && visit(at - 1, tag(at - 1).pages)) return;
      }
    }
  }

  // Length of the lent run that begins at `first` (any number); 0: none does.
  uint32_t lent_at(uint32_t first) const;
  // How many hold the lent run that begins at `first`.
  uint32_t& holders(uint32_t first) { return tag(first).next; }

 private:
  static constexpr uint32_t kBins = 240;  // exact to 16 pages, then eight to each power of two
  enum State : uint32_t { kInside = 0, kFreeFirst = 1, kFreeLast = 2, kLentFirst = 4 };  // bits: a run may be one page
  // Of the first and last page of each run.
  struct Tag {
    uint32_t state;
    uint32_t pages;
    uint32_t next;  // free: in its bin, page number + 1, 0: none. Lent: holders
    uint32_t prev;
  };

  PageRuns(Mapping tags, uint32_t pages) : tags_(std::move(tags)), pages_(pages) {}
  static uint32_t bin_of(uint32_t pages);
  Tag& tag(uint32_t page) { return static_cast<Tag*>(tags_.get())[page]; }
  const Tag& tag(uint32_t page) const { return static_cast<const Tag*>(tags_.get())[page]; }
  uint32_t find(uint32_t pages) const;
  void lend(uint32_t first, uint32_t pages);
  void insert_free(uint32_t first, uint32_t pages);
  void remove_free(uint32_t first);

  Mapping tags_;  // of zeros: untouched pages cost nothing
  uint32_t pages_;
  uint32_t heads_[kBins] = {};  // page number + 1
  uint64_t filled_[(kBins + 63) / 64] = {};
};

}  // namespace monarch
