// A few threads for what takes long: copies of megabytes. They begin when there is something to do.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

namespace monarch {

class CopyPool {
 public:
  explicit CopyPool(size_t threads_max) : threads_max_(threads_max) {}
  ~CopyPool() { stop(); }

  // Any thread. Runs `work` soon, in the order in which it came where there is one thread only. After stop(), and where
  // there is no thread to be had: at once, here.
  void run(std::function<void()> work);
  // Returns when nothing runs any more. Not from a thread of the pool.
  void stop();

 private:
  void serve();

  const size_t threads_max_;
  std::mutex mutex_;  // a leaf
  std::condition_variable condition_;
  std::deque<std::function<void()>> waiting_;
  std::vector<pthread_t> threads_;
  size_t idle_ = 0;
  bool stopped_ = false;
};

}  // namespace monarch
