#include "monarch/host/start/life_watch.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <utility>

#include "monarch/base/system.h"

namespace monarch {

namespace {
// A word changes when it is taken, and when it is given back. Whoever writes into it all the time is watched no more.
constexpr int kChangesMax = 16;
// After an error that nothing explains, such as one for want of memory.
constexpr int64_t kErrorRetryNs = 10'000'000;

// Of the processors that this thread may run on it keeps to every second one. False: there is one only.
bool keep_to_half(size_t half) {
  cpu_set_t all, mine;
  if (sched_getaffinity(0, sizeof all, &all) != 0) return false;
  CPU_ZERO(&mine);
  size_t count = 0;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all) && count++ % kLifeFutexes == half) CPU_SET(cpu, &mine);
  }
  return count >= kLifeFutexes && sched_setaffinity(0, sizeof mine, &mine) == 0;
}

}  // namespace

// Those that the same threads wait for, one for each futex of a life. The kernel wakes a thread where it finds it best at
// that moment; where it then begins to take back the memory of the dead, that thread waits for a millisecond or more, since
// kernels that preempt lazily do not leave that work. So the two share no processor, and one of them is elsewhere.
class LifeWatch::Batch {
 public:
  explicit Batch(const LifeWatch& watch) : watch_(watch) {}
  ~Batch() {
    ending_ = true;
    wake();
    for (const Waiter& waiter : waiters_) {
      if (waiter.running) pthread_join(waiter.thread, nullptr);
    }
  }

  // False: it has no thread. With one of them lives are told, too.
  bool start() {
    for (size_t i = 0; i < kLifeFutexes; ++i) {
      waiters_[i].batch = this;
      waiters_[i].number = i;
      waiters_[i].running = sys::start_thread(&waiters_[i].thread, [](void* self) -> void* {
        const Waiter& waiter = *static_cast<Waiter*>(self);
        if (keep_to_half(waiter.number) || waiter.number == 0) waiter.batch->run(waiter.number);
        return nullptr;
      }, &waiters_[i]);
    }
    return waiters_[0].running;
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
      ++edits_;
    }
    wake();
    return true;
  }

 private:
  struct Life {
    uint64_t key;
    Mapping page;
    std::array<uint32_t, kLifeFutexes> seen{};
    std::array<int, kLifeFutexes> changes{};
  };
  struct Waiter {
    Batch* batch = nullptr;
    size_t number = 0;
    pthread_t thread{};
    bool running = false;
  };

  void wake() {
    turn_.fetch_add(1);
    futex_wake(turn_, kLifeFutexes, /*shared=*/false);
  }

  void run(size_t number) {
    for (;;) {
      const uint32_t turn = turn_.load();  // first: who ends it changes that afterwards
      if (ending_) return;
      FutexWaiter waiters[kFutexWaitersMax];
      uint32_t count = 0;
      waiters[count++] = FutexWaiter::of(turn_, turn, /*shared=*/false);
      const uint64_t edits = look(number, waiters, &count);
      const int error = watch_.wait_(waiters, count);
      if (error == ENOSYS || error == EPERM) break;
      // A page that is mapped no more, since the other thread or remove() was faster, is no error.
      if (error != 0 && error != EINTR && !has_changed_since(edits)) {
        futex_wait(turn_, turn, kErrorRetryNs, /*shared=*/false);
      }
    }
    std::lock_guard lock(mutex_);
    broken_ = true;
    lives_.clear();
  }

  // Tells of those that are given back, and adds what is to be waited for. Returns the state of lives_ that this is of.
  uint64_t look(size_t number, FutexWaiter* waiters, uint32_t* count) {
    std::vector<Life> released;  // their pages go last: somebody waits for the word
    uint64_t edits;
    {
      std::lock_guard lock(mutex_);
      for (size_t i = 0; i < lives_.size();) {
        Life& life = lives_[i];
        std::atomic<uint32_t>& word = life_word(life.page, number);
        const uint32_t now = word.load();
        if (now != std::exchange(life.seen[number], now)) ++life.changes[number];
        const bool given_back = (now & FUTEX_OWNER_DIED) != 0;
        if (!given_back && life.changes[number] <= kChangesMax) {
          waiters[(*count)++] = FutexWaiter::of(word, now, /*shared=*/true);
          ++i;
          continue;
        }
        if (given_back) released.push_back(std::move(life));
        if (i + 1 != lives_.size()) life = std::move(lives_.back());
        lives_.pop_back();
        ++edits_;
      }
      edits = edits_;
    }
    for (const Life& life : released) watch_.on_released_(life.key);
    return edits;
  }

  bool has_changed_since(uint64_t edits) {
    std::lock_guard lock(mutex_);
    return edits_ != edits;
  }

  const LifeWatch& watch_;
  std::array<Waiter, kLifeFutexes> waiters_;
  std::atomic<bool> ending_{false};
  std::atomic<uint32_t> turn_{0};  // the threads wait for this one too
  std::mutex mutex_;
  std::vector<Life> lives_;
  uint64_t edits_ = 0;   // how many have gone from lives_
  bool broken_ = false;  // a thread has ended: the kernel does not let it wait
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
