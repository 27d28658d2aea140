#include "monarch/host/start/life.h"

#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>

#include "monarch/base/system.h"
#include "monarch/loop/futex.h"

namespace monarch {

static_assert(sizeof(pthread_mutex_t) <= kLifeFutexStride && kLifeFutexes * kLifeFutexStride <= kLifeBytes);

void hold_life(int record) {
  void* page = sys::map(kLifeBytes, PROT_READ | PROT_WRITE, MAP_SHARED, record);
  if (page == MAP_FAILED) return;
  madvise(page, kLifeBytes, MADV_DONTFORK);  // children of ours have lives of their own
  pthread_mutexattr_t robust;
  pthread_mutexattr_init(&robust);
  pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
  for (size_t i = 0; i < kLifeFutexes; ++i) {
    char* const at = static_cast<char*>(page) + i * kLifeFutexStride;
    auto* mutex = reinterpret_cast<pthread_mutex_t*>(at);
    pthread_mutex_init(mutex, &robust);
    pthread_mutex_lock(mutex);
    // The kernel wakes nobody, unless the word says that somebody waits. In a C library that has its word elsewhere,
    // nothing is held in this one.
    auto& word = *reinterpret_cast<std::atomic<uint32_t>*>(at);
    if ((word.load() & FUTEX_TID_MASK) != static_cast<uint32_t>(gettid())) break;
    word.fetch_or(FUTEX_WAITERS);
    futex_wake(word, INT_MAX, /*shared=*/true);
  }
  pthread_mutexattr_destroy(&robust);
}

// Not without its children, as the life is: what runs an actor in a child of fork() may still write there.
LastWords* map_own_last_words(int record) {
  void* memory = sys::map(kLastWordsEnd, PROT_READ | PROT_WRITE, MAP_SHARED, record);
  return memory == MAP_FAILED ? nullptr : reinterpret_cast<LastWords*>(static_cast<char*>(memory) + kLifeBytes);
}

Mapping map_last_words(int record) {
  void* memory = sys::map(kLastWordsEnd, PROT_READ, MAP_SHARED, record);
  return memory == MAP_FAILED ? Mapping() : Mapping(memory, kLastWordsEnd);
}

const LastWords* last_words_of(const Mapping& mapping) {
  const char* memory = static_cast<const char*>(mapping.get());
  return memory == nullptr ? nullptr : reinterpret_cast<const LastWords*>(memory + kLifeBytes);
}

Mapping map_life(int record) {
  void* page = sys::map(kLifeBytes, PROT_READ, MAP_SHARED, record);
  return page == MAP_FAILED ? Mapping() : Mapping(page, kLifeBytes);
}

}  // namespace monarch
