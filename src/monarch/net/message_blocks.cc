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

#include "monarch/base/forked.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>  // what is kept is nobody's: who uses it must be seen
#else
#define ASAN_POISON_MEMORY_REGION(address, size) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(address, size) static_cast<void>(0)
#endif

namespace monarch::internal {

namespace {
constexpr std::align_val_t kLine{64};
void* new_block() { return ::operator new(kMessageBlockBytes, kLine); }
void delete_block(void* block) { ::operator delete(block, kLine); }
}  // namespace

#if defined(__SANITIZE_ADDRESS__)

// A message that is used after its end must be seen.
void* take_message_block() { return new_block(); }
void return_message_block(void* block) { delete_block(block); }

#else

namespace {

// A thread that sleeps keeps two chains, 10 KiB, and there may be thousands.
constexpr uint32_t kChainBlocks = 16;
constexpr uint32_t kDepotChainsMax = 2048;  // 10 MiB

struct Block {
  Block* next;        // in its chain
  Block* next_chain;  // of the first block of a chain in the depot
};

void delete_chain(Block* block) {
  while (block != nullptr) delete_block(std::exchange(block, block->next));
}

// Whole chains that no thread has. Never destroyed: threads may end after it would be. Not in a child of fork(): its lock,
// or the making of it, may be a thread's that is not there.
struct Depot {
  std::mutex mutex;
  Block* chains = nullptr;
  uint32_t count = 0;

  static Depot& instance() {
    static Depot& depot = *new Depot;
    return depot;
  }
  Block* take() {
    std::lock_guard lock(mutex);
    Block* chain = chains;
    if (chain != nullptr) {
      chains = chain->next_chain;
      --count;
    }
    return chain;
  }
  void put(Block* chain) {
    {
      std::lock_guard lock(mutex);
      if (count < kDepotChainsMax) {
        chain->next_chain = chains;
        chains = chain;
        ++count;
        return;
      }
    }
    delete_chain(chain);
  }
};

// Two chains, so that a thread that takes and returns around a chain's end does not go to the depot each time.
struct Cache {
  Block* current = nullptr;
  Block* full = nullptr;  // kChainBlocks or none
  uint32_t count = 0;     // in current
  bool ended = false;     // the thread's locals are being destroyed

  ~Cache() {
    ended = true;
    delete_chain(std::exchange(current, nullptr));
    delete_chain(std::exchange(full, nullptr));
  }
  [[gnu::noinline]] void* refill() {
    if (ended) return new_block();
    Block* chain = std::exchange(full, nullptr);
    if (chain == nullptr && !in_forked_child()) chain = Depot::instance().take();
    if (chain == nullptr) return new_block();
    current = chain->next;
    count = kChainBlocks - 1;
    return chain;
  }
  [[gnu::noinline]] void spill() {
    if (in_forked_child()) {
      delete_chain(full);
    } else if (full != nullptr) {
      Depot::instance().put(full);
    }
    full = std::exchange(current, nullptr);
    count = 0;
  }
};

Cache& cache() {
  static thread_local Cache cache;
  return cache;
}

}  // namespace

void* take_message_block() {
  Cache& own = cache();
  Block* block = own.current;
  if (block == nullptr) return own.refill();
  own.current = block->next;
  --own.count;
  return block;
}

void return_message_block(void* memory) {
  Cache& own = cache();
  if (own.ended) return delete_block(memory);
  if (own.count == kChainBlocks) own.spill();
  Block* block = static_cast<Block*>(memory);
  block->next = own.current;
  own.current = block;
  ++own.count;
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
