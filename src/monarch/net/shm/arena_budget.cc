#include "monarch/net/shm/arena_budget.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "monarch/base/forked.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {

// A slot: how often it was taken, and how many units its process has.
constexpr uint64_t kUnitBytes = 64 * 1024;
constexpr int kUnitBits = 40;
constexpr uint64_t kUnitMask = (uint64_t{1} << kUnitBits) - 1;
constexpr uint64_t units_of(uint64_t bytes) { return bytes / kUnitBytes + (bytes % kUnitBytes != 0); }

// The byte of the file that stands for a slot.
struct flock lock_of(uint32_t slot, short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = slot;
  lock.l_len = 1;
  return lock;
}

}  // namespace

struct JobBudget::Page {
  uint64_t units_max;  // written before anybody else maps it
  std::atomic<uint64_t> slots[kSlots];
};

Result<UniqueFd> JobBudget::make(uint64_t bytes_max) {
  auto fd = make_shared_memory("monarch-budget", sizeof(Page));
  if (!fd) return fd;
  auto mapping = map_shared_memory(fd->get(), sizeof(Page));
  if (!mapping) return mapping.error();
  static_cast<Page*>(mapping->get())->units_max = bytes_max / kUnitBytes;
  return fd;
}

Result<std::shared_ptr<JobBudget>> JobBudget::join(int fd) {
  auto mapping = map_shared_memory(fd, sizeof(Page));
  if (!mapping) return mapping.error();
  auto& page = *static_cast<Page*>(mapping->get());
  const uint32_t start = static_cast<uint32_t>(getpid()) % kSlots;  // most are free
  for (uint32_t i = 0; i < kSlots; ++i) {
    const uint32_t slot = (start + i) % kSlots;
    struct flock lock = lock_of(slot, F_WRLCK);
    if (fcntl(fd, F_SETLK, &lock) != 0) {
      if (errno == EAGAIN || errno == EACCES) continue;
      return sys::shortage_error("take a share of the job's shared memory");
    }
    // Nobody changes it now but who finds that its last owner is dead, and does that only if it is what it was.
    uint64_t before = page.slots[slot].load(std::memory_order_relaxed);
    while (!page.slots[slot].compare_exchange_weak(before, ((before >> kUnitBits) + 1) << kUnitBits)) {
    }
    // shared: the arena and who wires it
    return std::shared_ptr<JobBudget>(new JobBudget(fd, std::move(*mapping), slot));
  }
  return Error{ErrorCode::kUnavailable, "this job has too many processes for shares of its shared memory"};
}

bool JobBudget::reserve(uint64_t bytes) {
  const uint64_t units = units_of(bytes);
  if (in_forked_child() || units > page().units_max) return false;
  // First taken, then counted: of two that take the last at once both may be refused, but never both be given it.
  page().slots[slot_].fetch_add(units);
  do {
    if (bytes_reserved() <= page().units_max * kUnitBytes) return true;
  } while (forget_the_dead());
  page().slots[slot_].fetch_sub(units);
  return false;
}

void JobBudget::give_back(uint64_t bytes) {
  if (in_forked_child()) return;
  page().slots[slot_].fetch_sub(units_of(bytes));
}

uint64_t JobBudget::bytes_reserved() const {
  uint64_t units = 0;
  for (const auto& slot : page().slots) units += slot.load(std::memory_order_seq_cst) & kUnitMask;
  return units * kUnitBytes;
}

// True: some were found.
bool JobBudget::forget_the_dead() {
  bool found = false;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    uint64_t had = page().slots[slot].load();
    if (slot == slot_ || (had & kUnitMask) == 0) continue;
    struct flock lock = lock_of(slot, F_WRLCK);
    if (fcntl(fd_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) continue;
    found |= page().slots[slot].compare_exchange_strong(had, (had >> kUnitBits) << kUnitBits);
  }
  return found;
}

}  // namespace monarch
