#include "monarch/bulk/copy_pool.h"

#include <utility>

#include "monarch/base/forked.h"
#include "monarch/base/system.h"

namespace monarch {

void CopyPool::run(std::function<void()> work) {
  {
    std::unique_lock lock(mutex_);
    if (!stopped_ && idle_ <= waiting_.size() && threads_.size() < threads_max_) {
      pthread_t thread;
      const auto start = [](void* self) -> void* {
        static_cast<CopyPool*>(self)->serve();
        return nullptr;
      };
      if (sys::start_thread(&thread, start, this)) threads_.push_back(thread);
    }
    if (!stopped_ && !threads_.empty()) {
      waiting_.push_back(std::move(work));
      lock.unlock();
      condition_.notify_one();
      return;
    }
  }
  work();
}

void CopyPool::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    condition_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
    --idle_;
    if (waiting_.empty()) return;
    {
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
    }
    lock.lock();
  }
}

void CopyPool::stop() {
  if (in_forked_child()) return threads_.clear();
  std::vector<pthread_t> ending;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    ending.swap(threads_);
  }
  condition_.notify_all();
  for (const pthread_t thread : ending) pthread_join(thread, nullptr);
}

}  // namespace monarch
