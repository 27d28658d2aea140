#include "monarch/net/message_blocks.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "monarch/base/arch.h"
#include "monarch/base/forked.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>  // what is kept is nobody's: who uses it must be seen
#else
#define ASAN_POISON_MEMORY_REGION(address, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, size) static_cast<void>(0)
#endif

namespace monarch::internal {

namespace {
constexpr size_t kLineBytes = 64;  // of the caches
constexpr std::align_val_t kLine{kLineBytes};
void* new_block() { return ::operator new(kMessageBlockBytes, kLine); }
void delete_block(void* block) { ::operator delete(block, kLine); }
}  // namespace

#if defined(__SANITIZE_ADDRESS__)

// A message that is used after its end must be seen.
void* take_message_block() { return new_block(); }
void return_message_block(void* block) { delete_block(block); }

#else

namespace {

// A thread that sleeps keeps two magazines, 10 KiB, and there may be thousands.
constexpr uint32_t kMagazineBlocks = 16;
constexpr uint32_t kDepotMagazinesMax = 2048;  // full ones, 10 MiB
constexpr uint32_t kAhead = 2;                 // so many blocks before one is taken its memory is fetched

// Blocks that are free, by where they are. Not a list through them: the next one would be known only when memory that
// another thread has written last has come to this one's cache (Bonwick and Adams, "Magazines and Vmem", 2001).
struct Magazine {
  Magazine* next = nullptr;  // in the depot
  uint32_t count = 0;
  void* blocks[kMagazineBlocks];

  bool full() const { return count == kMagazineBlocks; }
};

void delete_magazine(Magazine* magazine) {
  if (magazine == nullptr) return;
  while (magazine->count != 0) delete_block(magazine->blocks[--magazine->count]);
  delete magazine;
}

// Magazines that no thread has. Never destroyed: threads may end after it would be. Not in a child of fork(): its lock,
// or the making of it, may be a thread's that is not there.
class Depot {
 public:
  static Depot& instance() {
    static Depot& depot = *new Depot;
    return depot;
  }
  // A full one for an empty one, which may be null; that stays with the caller if there is none.
  Magazine* take_full(Magazine* empty) {
    std::lock_guard lock(mutex_);
    if (full_ == nullptr) return nullptr;
    Magazine* const taken = std::exchange(full_, full_->next);
    --count_;
    if (empty != nullptr) push(empty_, empty);
    return taken;
  }
  // The other way round; null: there is no empty one. False: there are too many.
  bool put_full(Magazine* full, Magazine** empty) {
    std::lock_guard lock(mutex_);
    if (count_ == kDepotMagazinesMax) return false;
    push(full_, full);
    ++count_;
    *empty = empty_;
    if (empty_ != nullptr) empty_ = empty_->next;
    return true;
  }

 private:
  static void push(Magazine*& list, Magazine* magazine) {
    magazine->next = list;
    list = magazine;
  }
  std::mutex mutex_;
  Magazine* full_ = nullptr;
  Magazine* empty_ = nullptr;
  uint32_t count_ = 0;  // of full_
};

// Two magazines, so that a thread that takes and returns around one's end does not go to the depot each time.
struct Cache {
  Magazine* current = nullptr;  // null, or with any number of blocks
  Magazine* spare = nullptr;    // null, full or empty
  bool ended = false;           // the thread's locals are being destroyed

  ~Cache() {
    ended = true;
    delete_magazine(std::exchange(current, nullptr));
    delete_magazine(std::exchange(spare, nullptr));
  }
  [[gnu::noinline]] void* refill() {
    if (ended) return new_block();
    if (spare != nullptr && spare->full()) {
      std::swap(current, spare);
    } else if (Magazine* full = in_forked_child() ? nullptr : Depot::instance().take_full(current)) {
      current = full;
    } else {
      return new_block();
    }
    return current->blocks[--current->count];
  }
  // Makes current one that is not full. False: there is no memory for that.
  [[gnu::noinline]] bool make_room() {
    if (spare != nullptr && !spare->full()) return std::swap(current, spare), true;
    Magazine* empty = nullptr;
    if (spare != nullptr && (in_forked_child() || !Depot::instance().put_full(spare, &empty))) {
      delete_magazine(spare);
    }
    spare = std::exchange(current, empty != nullptr ? empty : new (std::nothrow) Magazine);
    return current != nullptr;
  }
};

Cache& cache() {
  static thread_local Cache cache;
  return cache;
}

}  // namespace

namespace {
// Whoever freed the block has written to it: to fetch each of its lines takes as long as all else that a message costs.
void fetch(void* block) {
  auto* const begin = static_cast<std::byte*>(block);
  for (size_t at = 0; at < kMessageBlockBytes; at += kLineBytes) arch::prefetch_to_write(begin + at);
}
}  // namespace

void* take_message_block() {
  Cache& own = cache();
  Magazine* const current = own.current;
  if (current == nullptr || current->count == 0) return own.refill();
  if (current->count > kAhead) fetch(current->blocks[current->count - 1 - kAhead]);
  return current->blocks[--current->count];
}

void return_message_block(void* block) {
  Cache& own = cache();
  if (own.ended) return delete_block(block);
  if ((own.current == nullptr || own.current->full()) && !own.make_room()) return delete_block(block);
  own.current->blocks[own.current->count++] = block;
}

#endif

namespace {
constexpr size_t kHugePage = 2 << 20;
constexpr size_t kHugeFrom = 2 * kHugePage;
constexpr size_t kWarmFrom = size_t{1} << 20;

// Never destroyed, as the depot; and not touched in a child of fork().
class WarmBlocks {
 public:
  // The smallest that is not much larger; null: there is none.
  std::byte* take(size_t size) {
    std::lock_guard lock(mutex_);
    auto best = kept_.end();
    for (auto at = kept_.begin(); at != kept_.end(); ++at) {
      if (at->size >= size && at->size - size <= size / 4 + kHugePage && (best == kept_.end() || at->size < best->size)) {
        best = at;
      }
    }
    if (best == kept_.end()) return nullptr;
    std::byte* const block = best->block;
    ASAN_UNPOISON_MEMORY_REGION(block, best->size);
    bytes_ -= best->size;
    kept_.erase(best);
    return block;
  }

  // False: it is not kept.
  bool put(std::byte* block) {
    const size_t size = malloc_usable_size(block);
    if (size < kWarmFrom) return false;
    std::lock_guard lock(mutex_);
    if (timers_ == nullptr || bytes_ + size > kWarmBytes) return false;
    kept_.push_back({block, size, false});
    ASAN_POISON_MEMORY_REGION(block, size);
    bytes_ += size;
    arm();
    return true;
  }

  void use(Timers* timers) { drop(timers == nullptr ? Which::kAll : Which::kNone, timers); }

  size_t bytes() {
    std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  struct Kept {
    std::byte* block;
    size_t size;
    bool old;  // it was there at the last look
  };
  enum class Which { kNone, kOld, kAll };

  void arm() {  // mutex_ held
    if (std::exchange(armed_, true)) return;
    timers_->after(kWarmNs, [this, of = timers_] { look(of); });
  }

  void look(Timers* of) {
    {
      std::lock_guard lock(mutex_);
      if (of != timers_) return;
      armed_ = false;
    }
    drop(Which::kOld, of);
  }

  void drop(Which which, Timers* timers) {
    std::vector<std::byte*> gone;  // freed without the lock
    {
      std::lock_guard lock(mutex_);
      if (timers_ != timers) armed_ = false;
      timers_ = timers;
      std::erase_if(kept_, [&](Kept& kept) {
        const bool goes = which == Which::kAll || (which == Which::kOld && kept.old);
        kept.old = true;
        if (!goes) return false;
        ASAN_UNPOISON_MEMORY_REGION(kept.block, kept.size);
        gone.push_back(kept.block);
        bytes_ -= kept.size;
        return true;
      });
      if (!kept_.empty() && timers_ != nullptr) arm();
    }
    for (std::byte* block : gone) std::free(block);
  }

  std::mutex mutex_;  // a leaf, but for the timers'
  std::vector<Kept> kept_;
  size_t bytes_ = 0;
  Timers* timers_ = nullptr;
  bool armed_ = false;
};

WarmBlocks& warm() {
  static auto* blocks = new WarmBlocks;
  return *blocks;
}
}  // namespace

void keep_large_blocks(Timers* timers) { warm().use(timers); }
size_t large_blocks_kept() { return warm().bytes(); }

std::byte* take_large_block(size_t size) {
  if (size >= kWarmFrom && !in_forked_child()) {
    if (std::byte* const block = warm().take(size)) return block;
  }
  if (size < kHugeFrom || size > SIZE_MAX - kHugePage) return static_cast<std::byte*>(std::malloc(size));
  const size_t rounded = (size + kHugePage - 1) / kHugePage * kHugePage;
  void* block = std::aligned_alloc(kHugePage, rounded);
  if (block != nullptr) madvise(block, rounded, MADV_HUGEPAGE);  // a kernel without them gives small ones
  return static_cast<std::byte*>(block);
}

void return_large_block(std::byte* block) {
  if (block != nullptr && !in_forked_child() && warm().put(block)) return;
  std::free(block);
}

}  // namespace monarch::internal
