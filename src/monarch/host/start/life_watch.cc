#include "monarch/host/start/life_watch.h"

#include <algorithm>
#include <utility>

#include "monarch/base/system.h"

namespace monarch {

namespace {
// A word changes when it is taken, and when it is given back. Whoever writes into it all the time is watched no more.
constexpr int kChangesMax = 16;
constexpr int kErrorsMax = 16;
}  // namespace

// Those that one thread waits for.
class LifeWatch::Batch {
 public:
  explicit Batch(const LifeWatch& watch) : watch_(watch) {}
  ~Batch() {
    if (!running_) return;
    ending_ = true;
    wake();
    pthread_join(thread_, nullptr);
  }

  bool start() {
    running_ = sys::start_thread(&thread_, [](void* self) -> void* {
      static_cast<Batch*>(self)->run();
      return nullptr;
    }, this);
    return running_;
  }

  enum class Added { kYes, kFull, kBroken };
  Added add(uint64_t key, Mapping& life) {
    {
      std::lock_guard lock(mutex_);
      if (broken_) return Added::kBroken;
      if (lives_.size() == kLivesPerThread) return Added::kFull;
      lives_.push_back({key, std::move(life)});
    }
    wake();
    return Added::kYes;
  }

  // The thread may wait for it in the kernel, to which a page that is gone is nothing.
  bool remove(uint64_t key) {
    {
      std::lock_guard lock(mutex_);
      if (std::erase_if(lives_, [key](const Life& life) { return life.key == key; }) == 0) return false;
    }
    wake();
    return true;
  }

 private:
  struct Life {
    uint64_t key;
    Mapping page;
    uint32_t seen = 0;
    int changes = 0;
  };

  void wake() {
    turn_.fetch_add(1);
    futex_wake(turn_, 1, /*shared=*/false);
  }

  void run() {
    for (int errors = 0; errors < kErrorsMax;) {
      const uint32_t turn = turn_.load();  // first: who ends it changes that afterwards
      if (ending_) break;
      FutexWaiter waiters[kFutexWaitersMax];
      uint32_t count = 0;
      std::vector<Life> released;
      waiters[count++] = FutexWaiter::of(turn_, turn, /*shared=*/false);
      {
        std::lock_guard lock(mutex_);
        std::erase_if(lives_, [&](Life& life) {
          const uint32_t now = life_word(life.page).load();
          if (now != std::exchange(life.seen, now)) ++life.changes;
          const bool given_back = (now & FUTEX_OWNER_DIED) != 0;
          const bool over = given_back || life.changes > kChangesMax;
          if (!over) waiters[count++] = FutexWaiter::of(life_word(life.page), now, /*shared=*/true);
          if (given_back) released.push_back(std::move(life));
          return over;
        });
      }
      for (const Life& life : released) watch_.on_released_(life.key);
      released.clear();  // its pages last: somebody waits for the word
      const int error = watch_.wait_(waiters, count);
      errors = error == 0 || error == EINTR ? 0 : error == ENOSYS || error == EPERM ? kErrorsMax : errors + 1;
    }
    std::lock_guard lock(mutex_);
    broken_ = true;
    lives_.clear();
  }

  const LifeWatch& watch_;
  pthread_t thread_{};
  bool running_ = false;
  std::atomic<bool> ending_{false};
  std::atomic<uint32_t> turn_{0};  // the thread waits for this one too
  std::mutex mutex_;
  std::vector<Life> lives_;
  bool broken_ = false;  // the thread has ended: the kernel does not let it wait
};

LifeWatch::LifeWatch(std::function<void(uint64_t)> on_released, Wait wait)
    : on_released_(std::move(on_released)), wait_(wait) {}

LifeWatch::~LifeWatch() = default;

bool LifeWatch::add(uint64_t key, Mapping life) {
  if (life.get() == nullptr) return false;
  std::lock_guard lock(mutex_);
  for (const auto& batch : batches_) {
    const Batch::Added added = batch->add(key, life);
    if (added != Batch::Added::kFull) return added == Batch::Added::kYes;
  }
  auto batch = std::make_unique<Batch>(*this);
  if (!batch->start()) return false;
  batches_.push_back(std::move(batch));
  return batches_.back()->add(key, life) == Batch::Added::kYes;
}

void LifeWatch::remove(uint64_t key) {
  std::lock_guard lock(mutex_);
  for (const auto& batch : batches_) {
    if (batch->remove(key)) return;
  }
}

}  // namespace monarch
