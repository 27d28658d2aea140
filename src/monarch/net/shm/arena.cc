#include "monarch/net/shm/arena.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>

#include "monarch/base/forked.h"

namespace monarch {

namespace {

constexpr uint64_t kPageBytes = 4096;  // of accounts; the system's may be larger, but not than a chunk
constexpr uint32_t kChunkPages = Arena::kChunkBytes / kPageBytes;
constexpr uint64_t kOffsetMask = (uint64_t{1} << 40) - 1;  // of a key
// A segment is address space here and at each receiver: little where that is limited (ulimit -v).
constexpr uint64_t kSegmentBytesMax = uint64_t{64} << 30;
constexpr uint64_t kSegmentBytesSmall = uint64_t{64} << 20;
// One step of giving back, a few milliseconds of the reactor's time, and the pause until the next.
constexpr uint64_t kStepBytes = uint64_t{8} << 20;
constexpr int64_t kStepNs = 10'000'000;

constexpr uint64_t round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

uint32_t pages_of(uint64_t bytes) {
  return static_cast<uint32_t>(std::max<uint64_t>(1, round_up(bytes, kPageBytes) / kPageBytes));
}

bool address_space_is_limited() {
  rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

}  // namespace

Arena::Arena(uint64_t bytes_max, Timers* timers, std::shared_ptr<ArenaBudget> budget)
    : bytes_max_(round_up(std::min(bytes_max, kRecordSizeMax), kChunkBytes)), timers_(timers), budget_(std::move(budget)) {}

Arena::~Arena() {
  // A timer that is armed finds nobody.
  if (in_forked_child()) return;  // all of it is the parent's
  if (budget_) budget_->give_back(reserved_);
}

std::optional<Slab> Arena::allocate(uint64_t size) {
  if (size > bytes_max_) return std::nullopt;
  const uint32_t pages = pages_of(size);
  Lock lock(mutex_);
  Slab slab;
  for (uint32_t segment = 0;; ++segment) {
    if (segment == segments_.size() && !add_segment(size)) return std::nullopt;
    const Taken taken = take_from(segment, pages, lock, &slab);
    if (taken == Taken::kYes) return slab;
    if (taken == Taken::kNoMemory) return std::nullopt;
  }
}

Arena::Taken Arena::take_from(uint32_t index, uint32_t pages, Lock& lock, Slab* slab) {
  Segment& segment = *segments_[index];
  const uint32_t first = segment.runs.take(pages);
  if (first == PageRuns::kNone) return Taken::kNoRun;
  if (!back(segment, first, pages, lock)) {
    segment.runs.give_back(first);
    return Taken::kNoMemory;
  }
  held_bytes_ += pages * kPageBytes;
  *slab = Slab{index, first * kPageBytes, static_cast<std::byte*>(segment.mapping.get()) + first * kPageBytes};
  return Taken::kYes;
}

bool Arena::add_segment(uint64_t size) {
  // Room in one piece is what is missing, or this would not help.
  const uint64_t wanted = round_up(size, kChunkBytes);
  if (segments_.size() >= kArenaSegmentsMax || held_bytes_ + wanted > bytes_max_) return false;
  const uint64_t usual = std::min(bytes_max_, address_space_is_limited() ? kSegmentBytesSmall : kSegmentBytesMax);
  const uint64_t bytes = std::max(wanted, usual);
  auto fd = make_shared_memory("monarch-arena", bytes);
  if (!fd) return false;
  auto mapping = map_shared_memory(fd->get(), bytes);
  if (!mapping) return false;
  auto runs = PageRuns::make(static_cast<uint32_t>(bytes / kPageBytes));
  if (!runs) return false;
  segments_.push_back(std::make_unique<Segment>(std::move(*fd), std::move(*mapping), std::move(*runs),
                                                bytes / kChunkBytes));
  return true;
}

// Sees to it that there may be memory behind these pages, which were just taken. The lock may be let go meanwhile, and who
// has another part of a chunk at either end may have backed it then.
bool Arena::back(Segment& segment, uint32_t first, uint32_t pages, Lock& lock) {
  const size_t last_chunk = (first + pages - 1) / kChunkPages;
  count_lent(segment, first, pages, true);
  for (;;) {
    uint64_t wanted = 0;
    for (size_t i = first / kChunkPages; i <= last_chunk; ++i) wanted += segment.chunks[i].backed ? 0 : kChunkBytes;
    if (wanted == 0 || reserve(wanted)) break;
    if (make_room(wanted, lock)) continue;
    count_lent(segment, first, pages, false);
    return false;
  }
  for (size_t i = first / kChunkPages; i <= last_chunk; ++i) segment.chunks[i].backed = true;
  used_peak_ = std::max(used_peak_, reserved_ - idle_bytes_);
  return true;
}

// Of what there may be.
bool Arena::reserve(uint64_t bytes) {
  if (reserved_ + bytes > bytes_max_ || (budget_ && !budget_->reserve(bytes))) return false;
  reserved_ += bytes;
  return true;
}

// Of what is idle elsewhere.
bool Arena::make_room(uint64_t bytes, Lock& lock) {
  if (reserved_ - idle_bytes_ + bytes > bytes_max_) return false;
  const auto idle = find_idle(bytes);
  return idle && punch(*idle, lock) != 0;
}

void Arena::count_lent(Segment& segment, uint32_t first, uint32_t pages, bool lent) {
  for (uint32_t end = first + pages; first != end;) {
    Chunk& chunk = segment.chunks[first / kChunkPages];
    const auto count = static_cast<uint16_t>(std::min(end - first, kChunkPages - first % kChunkPages));
    if (lent && chunk.backed && chunk.lent_pages == 0) idle_bytes_ -= kChunkBytes;
    chunk.lent_pages = static_cast<uint16_t>(lent ? chunk.lent_pages + count : chunk.lent_pages - count);
    if (!lent && chunk.backed && chunk.lent_pages == 0) idle_bytes_ += kChunkBytes;
    first += count;
  }
}

std::shared_ptr<std::byte> Arena::memory(uint64_t size) {
  const uint64_t most = bytes_max_ / 4;
  if (size > most) return nullptr;
  const uint64_t bytes = uint64_t{pages_of(size)} * kPageBytes;
  const bool allowed = given_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= most;
  const auto slab = allowed ? allocate(size) : std::nullopt;
  if (!slab) {
    given_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    return nullptr;
  }
  return {slab->data, [self = shared_from_this(), key = slab->key(), bytes](std::byte*) {
            if (in_forked_child()) return;
            self->given_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
            self->release(key);
          }};
}

std::optional<Slab> Arena::hold_at(ByteSpan bytes) {
  std::lock_guard lock(mutex_);
  for (uint32_t index = 0; index < segments_.size(); ++index) {
    Segment& segment = *segments_[index];
    const uint64_t offset = reinterpret_cast<uintptr_t>(bytes.data()) - reinterpret_cast<uintptr_t>(segment.mapping.get());
    if (offset >= segment.mapping.size()) continue;  // so is what lies before it
    const auto page = static_cast<uint32_t>(offset / kPageBytes);
    if (offset % kPageBytes != 0 || uint64_t{segment.runs.lent_at(page)} * kPageBytes < bytes.size()) return std::nullopt;
    ++segment.runs.holders(page);
    return Slab{index, offset, const_cast<std::byte*>(bytes.data())};
  }
  return std::nullopt;
}

void Arena::hold(uint64_t key) {
  std::lock_guard lock(mutex_);
  const uint32_t page = static_cast<uint32_t>((key & kOffsetMask) / kPageBytes);
  Segment& segment = *segments_[key >> 40];
  MONARCH_CHECK(segment.runs.lent_at(page) != 0);
  ++segment.runs.holders(page);
}

bool Arena::release(uint64_t key) {
  std::lock_guard lock(mutex_);
  const uint64_t offset = key & kOffsetMask;
  const uint32_t first = static_cast<uint32_t>(offset / kPageBytes);
  if (key >> 40 >= segments_.size() || offset % kPageBytes != 0) return false;
  Segment& segment = *segments_[key >> 40];
  const uint32_t pages = segment.runs.lent_at(first);
  if (pages == 0) return false;
  if (--segment.runs.holders(first) != 0) return true;
  segment.runs.give_back(first);
  count_lent(segment, first, pages, false);
  held_bytes_ -= pages * kPageBytes;
  if (idle_bytes_ > kWarmBytes) arm(kPeriodNs);
  return true;
}

void Arena::stop_timers() {
  std::lock_guard lock(mutex_);
  timers_ = nullptr;
}

int Arena::segment_fd(uint32_t segment) const {
  std::lock_guard lock(mutex_);
  return segments_[segment]->fd.get();
}

// ---- Giving back ----

// With the lock held, which is let go and taken again in the meantime: nobody gets these pages then, nor waits for the
// system, which takes a third of a second for a gigabyte. Returns how much the system took back.
uint64_t Arena::punch(const Idle& idle, Lock& lock) {
  Segment& segment = *segments_[idle.segment];
  const uint32_t first = static_cast<uint32_t>(idle.begin * kChunkPages);
  const uint32_t end = static_cast<uint32_t>(idle.end * kChunkPages);
  segment.runs.take_at(idle.run, first, end - first);
  lock.unlock();
  const bool done = fallocate(segment.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              static_cast<off_t>(first * kPageBytes), static_cast<off_t>((end - first) * kPageBytes)) == 0;
  lock.lock();
  segment.runs.give_back(first);
  if (!done) return 0;
  for (size_t i = idle.begin; i != idle.end; ++i) segment.chunks[i].backed = false;
  const uint64_t bytes = (idle.end - idle.begin) * kChunkBytes;
  reserved_ -= bytes;
  idle_bytes_ -= bytes;
  if (budget_) budget_->give_back(bytes);
  return bytes;
}

// From the ends of the longest free runs, of the newest segments first: where memory is needed last.
std::optional<Arena::Idle> Arena::find_idle(uint64_t bytes_max) const {
  std::optional<Idle> found;
  const size_t chunks_max = (bytes_max + kChunkBytes - 1) / kChunkBytes;
  for (uint32_t index = static_cast<uint32_t>(segments_.size()); index-- > 0 && !found;) {
    const Segment& segment = *segments_[index];
    segment.runs.visit_free(kChunkPages, [&](uint32_t first, uint32_t pages) {
      const size_t begin = (first + kChunkPages - 1) / kChunkPages;
      size_t end = (first + pages) / kChunkPages;
      while (end > begin && !segment.chunks[end - 1].backed) --end;
      if (end <= begin) return false;
      size_t at = end;
      while (at > begin && segment.chunks[at - 1].backed && end - at < chunks_max) --at;
      found = Idle{index, first, at, end};
      return true;
    });
  }
  return found;
}

// With the lock held.
void Arena::arm(int64_t delay_ns) {
  if (armed_ || timers_ == nullptr) return;
  armed_ = true;
  timers_->after(delay_ns, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->on_timer();
  });
}

// At the end of a period: what it did not need, nor the one before, goes back, step by step.
void Arena::on_timer() {
  Lock lock(mutex_);
  armed_ = false;
  if (keep_bytes_ == 0) {
    keep_bytes_ = used_peak_ + kWarmBytes;
    used_peak_ = reserved_ - idle_bytes_;
  }
  const uint64_t above = reserved_ > keep_bytes_ ? reserved_ - keep_bytes_ : 0;
  const auto idle = above != 0 ? find_idle(std::min(above, kStepBytes)) : std::nullopt;
  if (idle && punch(*idle, lock) != 0) return arm(kStepNs);
  keep_bytes_ = 0;
  if (idle_bytes_ > kWarmBytes) arm(kPeriodNs);
}

}  // namespace monarch
