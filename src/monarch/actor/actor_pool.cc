#include "monarch/actor/actor_pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "monarch/base/check.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/loop/reactor.h"

namespace monarch {

namespace {
constexpr int64_t kTickNs = 1'000'000;
constexpr std::chrono::microseconds kLookAtRest{100};
constexpr int64_t kSaySlowNs = 3'000'000'000;  // an end that takes longer is no silence
}  // namespace

uint32_t ActorPool::default_threads() { return std::clamp(std::thread::hardware_concurrency(), 1u, 4u); }

ActorPool::ActorPool(Reactor& reactor, Driver& driver, uint32_t threads)
    : reactor_(reactor), driver_(driver), threads_(threads == 0 ? default_threads() : threads) {}

ActorPool::~ActorPool() {
  stop();
  // Not in stop(): somebody who schedules at that moment may still look at them.
  for (auto& worker : workers_) delete worker.load();
}

ActorPool::Worker*& ActorPool::own_worker() {
  static thread_local Worker* worker = nullptr;
  return worker;
}

// The worker of this thread, if it is one of this pool and not inside a wait of user code.
ActorPool::Worker* ActorPool::worker_here() {
  Worker* worker = own_worker();
  return worker != nullptr && worker->pool == this && !worker->blocked ? worker : nullptr;
}

void ActorPool::schedule(std::shared_ptr<Runnable> runnable) {
  Runnable* raw = runnable.get();
  raw->kept_ = std::move(runnable);
  Worker* self = worker_here();
  if (self == nullptr) {
    push_shared(raw);
    return;
  }
  self->sends = 0;
  Runnable* before = self->slot.exchange(raw, std::memory_order_seq_cst);
  if (before != nullptr) push_shared(before);
  if (!tick_armed_.load(std::memory_order_seq_cst)) arm_tick();
}

bool ActorPool::sent_to_ready(const Runnable* receiver, bool first) {
  Worker* self = worker_here();
  if (self == nullptr) return false;
  if (++self->sends >= kSlotSends) {
    self->sends = 0;
    publish_slot(*self);
  }
  self->flood_depth = first || std::exchange(self->flooded, receiver) != receiver ? 0 : self->flood_depth + 1;
  return self->flood_depth >= kFloodDepth && self->flood_depth % kFloodStep == 0;
}

bool ActorPool::publish_slot(Worker& worker) {
  if (worker.slot.load(std::memory_order_relaxed) == nullptr) return false;
  Runnable* ready = worker.slot.exchange(nullptr, std::memory_order_acq_rel);
  if (ready == nullptr) return false;
  push_shared(ready);
  return true;
}

void ActorPool::push_shared(Runnable* runnable) {
  std::shared_ptr<Runnable> dropped;  // destroyed outside the lock
  {
    std::lock_guard lock(mutex_);
    if (closed_) {
      dropped = std::move(runnable->kept_);
      return;
    }
    ready_.push_back(runnable);
    ready_count_.store(static_cast<uint32_t>(ready_.size()), std::memory_order_seq_cst);
  }
  wake_one();
}

// One thread that has nothing to do, or a new one if there are too few.
void ActorPool::wake_one() {
  const uint32_t count = worker_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    Worker* worker = workers_[i].load(std::memory_order_acquire);
    if (worker == nullptr || !worker->idle.load(std::memory_order_seq_cst)) continue;
    if (!worker->idle.exchange(false, std::memory_order_seq_cst)) continue;
    driver_.notify(worker->waiter);
    return;
  }
  if (count - std::min(count, blocked_.load(std::memory_order_seq_cst)) >= threads_) return;
  if (!start_worker()) arm_tick();  // which tries again: all the others may stay where they are
  MONARCH_CHECK(stopping() || worker_count_.load(std::memory_order_relaxed) != 0);  // who schedules has asked has_thread()
}

bool ActorPool::has_thread() {
  if (worker_count_.load(std::memory_order_acquire) == 0) start_worker();
  return stopping() || worker_count_.load(std::memory_order_acquire) != 0;
}

// False: there is none to be had.
bool ActorPool::start_worker() {
  std::lock_guard lock(mutex_);
  const uint32_t count = worker_count_.load(std::memory_order_relaxed);
  if (closed_ || count >= kThreadsMax || count - std::min(count, blocked_.load()) >= threads_) return true;
  auto worker = std::make_unique<Worker>();
  worker->pool = this;
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  try {
    if (sys::must_fail(EAGAIN)) throw std::system_error(EAGAIN, std::generic_category());
    worker->thread = std::thread([pool = shared_from_this(), self = worker.get()] {
      pool->run(*self);
      std::lock_guard ended(pool->mutex_);
      ++pool->threads_ended_;
      pool->thread_ended_.notify_all();
    });
  } catch (const std::system_error& error) {
    errno = error.code().value();
    if (count > 0 && !std::exchange(told_of_shortage_, true)) {
      log_line(sys::shortage_error("start another thread for C++ actors").message);
    }
    worker.reset();
  }
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  if (!worker) return false;
  told_of_shortage_ = false;
  workers_[count].store(worker.release(), std::memory_order_release);
  worker_count_.store(count + 1, std::memory_order_seq_cst);
  return true;
}

Runnable* ActorPool::take_shared() {
  if (ready_count_.load(std::memory_order_seq_cst) == 0) return nullptr;
  Runnable* taken = nullptr;
  size_t left;
  {
    std::lock_guard lock(mutex_);
    if (ready_.empty()) return nullptr;
    taken = ready_.front();
    ready_.pop_front();
    left = ready_.size();
    ready_count_.store(static_cast<uint32_t>(left), std::memory_order_seq_cst);
  }
  if (left != 0) wake_one();  // the one that was woken for it may have come away with something else
  return taken;
}

Runnable* ActorPool::take(Worker& self) {
  if (self.slot.load(std::memory_order_relaxed) != nullptr && ++self.streak < kSlotStreakMax) {
    if (Runnable* next = self.slot.exchange(nullptr, std::memory_order_acq_rel)) return next;
  }
  self.streak = 0;
  if (Runnable* next = take_shared()) return next;
  return self.slot.exchange(nullptr, std::memory_order_acq_rel);
}

void ActorPool::run(Worker& self) {
  own_worker() = &self;
  while (!stopping()) {
    if (Runnable* next = take(self)) {
      const std::shared_ptr<Runnable> kept = std::move(next->kept_);
      self.sends = 0;
      next->run_turn();
      self.turns.store(self.turns.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      continue;
    }
    self.idle.store(true, std::memory_order_seq_cst);
    driver_.wait(
        self.waiter,
        [](const void* context) {
          const Worker& worker = *static_cast<const Worker*>(context);
          // Not idle: it was woken. Even if somebody else took the work first it must come out, and be idle anew.
          return !worker.idle.load(std::memory_order_seq_cst) ||
                 worker.slot.load(std::memory_order_relaxed) != nullptr ||
                 worker.pool->ready_count_.load(std::memory_order_seq_cst) != 0 || worker.pool->stopping();
        },
        &self, kNoDeadline);
    self.idle.store(false, std::memory_order_seq_cst);
  }
}

Waiter& ActorPool::begin_blocking() {
  Worker* self = own_worker();
  MONARCH_CHECK(self != nullptr && self->pool == this && !self->blocked);
  // Before it looks for what is ready: who makes something ready looks here after that (wake_one).
  if (blocked_.fetch_add(1, std::memory_order_seq_cst) + 1 >= kThreadsMax) {
    blocked_.fetch_sub(1, std::memory_order_seq_cst);
    throw std::runtime_error(std::to_string(kThreadsMax - 1) + " C++ actors of this process block in a wait already, and "
                             "one more would leave no thread to answer them; co_await instead");
  }
  self->blocked = true;
  if (!publish_slot(*self) && ready_count_.load(std::memory_order_seq_cst) != 0) wake_one();
  return self->waiter;
}

void ActorPool::end_blocking() {
  own_worker()->blocked = false;
  blocked_.fetch_sub(1, std::memory_order_seq_cst);
}

// ---- The tick: cells that wait behind a busy thread ----

void ActorPool::arm_tick() {
  if (tick_armed_.exchange(true, std::memory_order_seq_cst) || stopping()) return;
  reactor_.after(kTickNs, [weak = weak_from_this()] {
    if (auto pool = weak.lock()) pool->on_tick();
  });
}

void ActorPool::on_tick() {
  if (stopping()) return;
  bool active = false;
  const uint32_t count = worker_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    Worker& worker = *workers_[i].load(std::memory_order_acquire);
    const uint32_t turns = worker.turns.load(std::memory_order_relaxed);
    const bool stuck = turns == worker.turns_seen;
    worker.turns_seen = turns;
    if (!stuck || worker.slot.load(std::memory_order_relaxed) != nullptr) active = true;
    if (stuck) publish_slot(worker);
  }
  if (ready_count_.load(std::memory_order_seq_cst) != 0) {
    wake_one();
    active = true;  // there may have been no thread to be had, and there will be one
  }
  tick_armed_.store(false, std::memory_order_seq_cst);
  // A slot that is filled from here on arms the tick itself; one that was filled before this store did not, so look, at
  // the threads that have come meanwhile too.
  for (uint32_t i = 0; i < worker_count_.load(std::memory_order_seq_cst) && !active; ++i) {
    active = workers_[i].load(std::memory_order_acquire)->slot.load(std::memory_order_seq_cst) != nullptr;
  }
  if (active) arm_tick();
}

// A thread that has taken something is not idle, nor is one that was just woken or made.
bool ActorPool::is_at_rest() const {
  if (ready_count_.load(std::memory_order_seq_cst) != 0) return false;
  const uint32_t count = worker_count_.load(std::memory_order_seq_cst);
  for (uint32_t i = 0; i < count; ++i) {
    if (!workers_[i].load(std::memory_order_acquire)->idle.load(std::memory_order_seq_cst)) return false;
  }
  return true;
}

void ActorPool::rest(int64_t limit_ns) {
  const int64_t until_ns = reactor_.now_ns() + limit_ns;
  while (!is_at_rest() && reactor_.now_ns() < until_ns) std::this_thread::sleep_for(kLookAtRest);
}

bool ActorPool::stop(int64_t limit_ns) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return true;
    closed_ = true;
  }
  stopping_.store(true, std::memory_order_seq_cst);
  const uint32_t count = worker_count_.load();
  for (uint32_t i = 0; i < count; ++i) driver_.notify(workers_[i].load()->waiter);
  if (!wait_for_threads(count, limit_ns)) {
    for (uint32_t i = 0; i < count; ++i) workers_[i].load()->thread.detach();
    return false;
  }
  for (uint32_t i = 0; i < count; ++i) workers_[i].load()->thread.join();
  std::vector<std::shared_ptr<Runnable>> dropped;
  for (Runnable* runnable : ready_) dropped.push_back(std::move(runnable->kept_));
  ready_.clear();
  for (uint32_t i = 0; i < count; ++i) {
    if (Runnable* left = workers_[i].load()->slot.exchange(nullptr)) dropped.push_back(std::move(left->kept_));
  }
  return true;
}

bool ActorPool::wait_for_threads(uint32_t count, int64_t limit_ns) {
  const auto ended = [&] { return threads_ended_ == count; };
  std::unique_lock lock(mutex_);
  if (thread_ended_.wait_for(lock, std::chrono::nanoseconds(std::min(limit_ns, kSaySlowNs)), ended)) return true;
  if (limit_ns <= kSaySlowNs) return false;
  const uint32_t busy = count - threads_ended_;
  log_line("waiting for C++ actors of this process that are still in an endpoint: " + std::to_string(busy));
  if (limit_ns == kNoDeadline) return thread_ended_.wait(lock, ended), true;
  return thread_ended_.wait_for(lock, std::chrono::nanoseconds(limit_ns - kSaySlowNs), ended);
}

}  // namespace monarch
