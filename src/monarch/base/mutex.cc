#include "monarch/base/mutex.h"

#if defined(MONARCH_LOCK_CHECKS)

#include <cstdio>
#include <cstdlib>

#include "monarch/base/check.h"

namespace monarch::internal {

namespace {

struct Held {
  const void* mutex;
  LockRank rank;
};
constexpr int kHeldMax = 16;
constinit thread_local Held held[kHeldMax] = {};
constinit thread_local int held_count = 0;

[[noreturn]] void out_of_order(const char* what, LockRank wanted, LockRank holding) {
  std::fprintf(stderr, "monarch: %s: lock %d while lock %d is held (base/lock_order.h)\n", what,
               static_cast<int>(wanted), static_cast<int>(holding));
  std::abort();
}

}  // namespace

void check_lock(const void* mutex, LockRank rank) {
  for (int i = 0; i < held_count; ++i) {
    if (held[i].mutex == mutex) out_of_order("taken twice", rank, held[i].rank);
    if (held[i].rank >= rank) out_of_order("out of order", rank, held[i].rank);
  }
}

void note_locked(const void* mutex, LockRank rank) {
  MONARCH_CHECK(held_count < kHeldMax);
  held[held_count++] = {mutex, rank};
}

void note_unlocked(const void* mutex) {
  for (int i = held_count; i-- > 0;) {
    if (held[i].mutex != mutex) continue;
    for (; i + 1 < held_count; ++i) held[i] = held[i + 1];
    --held_count;
    return;
  }
  MONARCH_CHECK(!"a lock is given back that this thread does not hold");
}

void check_held(const void* mutex) {
  for (int i = 0; i < held_count; ++i) {
    if (held[i].mutex == mutex) return;
  }
  MONARCH_CHECK(!"a lock must be held here");
}

}  // namespace monarch::internal

#endif
