// Tells of lives (life.h) that are given back, at once. Two threads for every kLivesPerThread of them, which sleep in the
// kernel until then, and never take the GIL. They are made when they are needed first, and stay.
//
// Needs futex_waitv (Linux 5.16). Where that is missing or forbidden nothing is ever told, and the pidfds have to do.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "monarch/host/start/life.h"
#include "monarch/loop/futex.h"

namespace monarch {

class LifeWatch {
 public:
  static constexpr size_t kLivesPerThread = kFutexWaitersMax - 1;
  // What waits; tests put another one in its place.
  using Wait = int (*)(FutexWaiter* waiters, uint32_t count);

  // `on_released` is called on a thread of this object, once for each key at most. It must not block.
  explicit LifeWatch(std::function<void(uint64_t key)> on_released, Wait wait = futex_wait_any);
  ~LifeWatch();  // joins
  LifeWatch(const LifeWatch&) = delete;
  LifeWatch& operator=(const LifeWatch&) = delete;

  // Any thread. False: it is not watched, for want of a thread or of the system call.
  bool add(uint64_t key, Mapping life);
  // Any thread. on_released may be under way.
  void remove(uint64_t key);

 private:
  class Batch;

  const std::function<void(uint64_t)> on_released_;
  const Wait wait_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Batch>> batches_;
};

}  // namespace monarch
