#include "monarch/net/shm/page_runs.h"

#include <sys/mman.h>

#include <bit>

#include "monarch/base/check.h"
#include "monarch/base/system.h"

namespace monarch {

Result<PageRuns> PageRuns::make(uint32_t pages) {
  const size_t bytes = size_t{pages} * sizeof(Tag);
  void* memory = sys::map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  if (memory == MAP_FAILED) return sys::shortage_error("keep account of shared memory");
  PageRuns runs(Mapping(memory, bytes), pages);
  runs.insert_free(0, pages);
  return runs;
}

uint32_t PageRuns::bin_of(uint32_t pages) {
  if (pages < 8) return pages;
  const uint32_t log = static_cast<uint32_t>(std::bit_width(pages)) - 1;
  return (log - 2) * 8 + ((pages >> (log - 3)) & 7);
}

// The first page of a free run of at least `pages`.
uint32_t PageRuns::find(uint32_t pages) const {
  const uint32_t bin = bin_of(pages);
  // Runs of this bin may be too short, those of the next never are.
  constexpr int kLooks = 16;
  uint32_t at = heads_[bin];
  for (int look = 0; at != 0 && look < kLooks; ++look, at = tag(at - 1).next) {
    if (tag(at - 1).pages >= pages) return at - 1;
  }
  uint32_t word = (bin + 1) / 64;
  if (word >= std::size(filled_)) return kNone;
  uint64_t bits = filled_[word] & (~uint64_t{0} << ((bin + 1) % 64));
  while (bits == 0) {
    if (++word == std::size(filled_)) return kNone;
    bits = filled_[word];
  }
  return heads_[word * 64 + static_cast<uint32_t>(std::countr_zero(bits))] - 1;
}

uint32_t PageRuns::take(uint32_t pages) {
  const uint32_t first = find(pages);
  if (first != kNone) take_at(first, first, pages);
  return first;
}

void PageRuns::take_at(uint32_t run, uint32_t first, uint32_t pages) {
  MONARCH_CHECK((tag(run).state & kFreeFirst) != 0);
  const uint32_t length = tag(run).pages;
  MONARCH_CHECK(pages != 0 && first - run < length && pages <= length - (first - run));
  remove_free(run);
  if (run != first) insert_free(run, first - run);
  if (const uint32_t end = first + pages; end != run + length) insert_free(end, run + length - end);
  lend(first, pages);
}

void PageRuns::lend(uint32_t first, uint32_t pages) {
  tag(first).state = kLentFirst;
  tag(first).pages = pages;
  tag(first).next = 1;
}

void PageRuns::give_back(uint32_t first) {
  uint32_t pages = lent_at(first);
  MONARCH_CHECK(pages != 0);
  tag(first).state = kInside;
  if (const uint32_t end = first + pages; end != pages_ && (tag(end).state & kFreeFirst) != 0) {
    pages += tag(end).pages;
    remove_free(end);
  }
  if (first != 0 && (tag(first - 1).state & kFreeLast) != 0) {
    const uint32_t before = tag(first - 1).pages;
    first -= before;
    pages += before;
    remove_free(first);
  }
  insert_free(first, pages);
}

uint32_t PageRuns::lent_at(uint32_t first) const {
  return first < pages_ && tag(first).state == kLentFirst ? tag(first).pages : 0;
}

void PageRuns::insert_free(uint32_t first, uint32_t pages) {
  const uint32_t bin = bin_of(pages);
  const uint32_t last = first + pages - 1;
  tag(last).state = kFreeLast;
  tag(last).pages = pages;
  Tag& head = tag(first);
  head.state = kFreeFirst | (last == first ? kFreeLast : 0u);
  head.pages = pages;
  head.next = heads_[bin];
  head.prev = 0;
  if (head.next != 0) tag(head.next - 1).prev = first + 1;
  heads_[bin] = first + 1;
  filled_[bin / 64] |= uint64_t{1} << (bin % 64);
}

void PageRuns::remove_free(uint32_t first) {
  Tag& head = tag(first);
  const uint32_t bin = bin_of(head.pages);
  (head.prev == 0 ? heads_[bin] : tag(head.prev - 1).next) = head.next;
  if (head.next != 0) tag(head.next - 1).prev = head.prev;
  if (heads_[bin] == 0) filled_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  tag(first + head.pages - 1).state = kInside;
  head.state = kInside;
}

}  // namespace monarch
