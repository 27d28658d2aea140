#include "monarch/net/message_blocks.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include "monarch/base/forked.h"

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
}  // namespace

std::byte* take_large_block(size_t size) {
  if (size < kHugeFrom || size > SIZE_MAX - kHugePage) return static_cast<std::byte*>(std::malloc(size));
  const size_t rounded = (size + kHugePage - 1) / kHugePage * kHugePage;
  void* block = std::aligned_alloc(kHugePage, rounded);
  if (block != nullptr) madvise(block, rounded, MADV_HUGEPAGE);  // a kernel without them gives small ones
  return static_cast<std::byte*>(block);
}

void return_large_block(std::byte* block) { std::free(block); }

}  // namespace monarch::internal
