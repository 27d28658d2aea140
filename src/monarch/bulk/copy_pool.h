// A few threads for what takes long: copies of megabytes. They begin when there is something to do.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace monarch {

class CopyPool {
 public:
  explicit CopyPool(size_t threads_max) : threads_max_(threads_max) {}
  ~CopyPool() { stop(); }

  // Any thread. Runs `work` soon, in the order in which it came where there is one thread only. After stop(), and where
  // there is no thread to be had: at once, here.
  void run(std::function<void()> work) { offer(std::move(work)); }
  // As run(). Whoever waits for it calls run_here(), any thread, with the number that this returns: then it runs there and
  // now if nobody has begun with it, which spares the way to a thread and back.
  uint64_t offer(std::function<void()> work);
  void run_here(uint64_t number);
  // Returns when nothing runs any more. Not from a thread of the pool.
  void stop();

 private:
  struct Work {
    uint64_t number;
    std::function<void()> run;
  };
  void serve();

  const size_t threads_max_;
  std::mutex mutex_;  // a leaf
  std::condition_variable condition_;
  std::deque<Work> waiting_;  // by their numbers
  uint64_t last_number_ = 0;
  std::vector<pthread_t> threads_;
  size_t idle_ = 0;
  bool stopped_ = false;
};

}  // namespace monarch
