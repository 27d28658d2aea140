// The threads that C++ actors share. A pool has few of them, made when there is work that nobody takes; a thread
// without work waits in the driver (whoever waits, drives), so a message that it receives there is run by itself and no
// other thread is woken.
//
// A cell that a pool thread makes ready goes into that thread's own slot, to be run next and on a warm cache; what was
// in the slot moves to the queue that all threads share. A slot must not wait for a thread that stays busy, so
// (invariant POOL-1) a ready cell is taken by another thread after kSlotSends further sends of its owner, when the
// owner blocks, or at the latest after two ticks of the reactor.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "monarch/loop/driver.h"

namespace monarch {

// What the pool runs.
class Runnable {
 public:
  virtual ~Runnable() = default;
  virtual void run_turn() = 0;

 private:
  friend class ActorPool;
  std::shared_ptr<Runnable> kept_;  // while it is ready: the queue and whoever made it own it together
};

// shared: the factory that made it, the cells, and the reactor's tick own a pool together; what runs ends with stop().
class ActorPool : public std::enable_shared_from_this<ActorPool> {
 public:
  static constexpr uint32_t kThreadsMax = 256;  // with those that block

  static uint32_t default_threads();  // the number of cores, at most 4

  ActorPool(Reactor& reactor, Driver& driver, uint32_t threads);
  ~ActorPool();

  // Any thread. False: it has no thread, and none is to be had; errno says why. Before the first schedule().
  bool has_thread();
  // Any thread. It becomes ready: run_turn() will be called once, soon. After stop() it is dropped.
  void schedule(std::shared_ptr<Runnable> runnable);
  // Something has been sent to `receiver`, which was ready already. `first`: nothing else waits there. True, now and
  // then, if this thread has sent it kFloodDepth messages that it has not begun to take: the sender may slow down.
  bool sent_to_ready(const Runnable* receiver, bool first);

  // Around a wait that blocks a pool thread (the calling one); the wait uses this waiter, so that stop() ends it. Throws
  // std::runtime_error where it would be the last of kThreadsMax that is not blocked: nobody would be left to answer them.
  Waiter& begin_blocking();
  void end_blocking();

  // Waits until nothing is ready and nothing runs, for at most so long. Not from one of the threads.
  void rest(int64_t limit_ns);
  // Ends: no turn begins any more, waits of the pool's threads end, the threads are joined. Idempotent; not from one of
  // the threads. The reactor and the driver may go afterwards. False: after `limit_ns` a turn was still running; its thread
  // is left to it, and what it uses must not go before the process does.
  bool stop(int64_t limit_ns = kNoDeadline);
  bool stopping() const { return stopping_.load(std::memory_order_acquire); }

 private:
  static constexpr int kSlotSends = 16;
  static constexpr uint32_t kFloodDepth = 1024, kFloodStep = 64;
  static constexpr uint32_t kSlotStreakMax = 64;  // turns out of the slot before the queue is looked at

  struct alignas(64) Worker {
    ActorPool* pool = nullptr;
    std::atomic<Runnable*> slot{nullptr};
    std::atomic<bool> idle{false};
    std::atomic<uint32_t> turns{0};
    bool blocked = false;     // own thread
    int sends = 0;            // own thread: since the slot was filled
    uint32_t streak = 0;      // own thread
    const Runnable* flooded = nullptr;  // own thread: who was sent to last
    uint32_t flood_depth = 0;           // own thread: how much of that was not taken
    uint32_t turns_seen = 0;  // reactor
    Waiter waiter;
    std::thread thread;
  };

  static Worker*& own_worker();
  Worker* worker_here();
  void run(Worker& self);
  Runnable* take(Worker& self);
  Runnable* take_shared();
  void push_shared(Runnable* runnable);
  bool publish_slot(Worker& worker);
  void wake_one();
  bool start_worker();
  bool is_at_rest() const;
  bool wait_for_threads(uint32_t count, int64_t limit_ns);
  void arm_tick();
  void on_tick();

  Reactor& reactor_;
  Driver& driver_;
  const uint32_t threads_;

  std::mutex mutex_;
  std::condition_variable thread_ended_;
  uint32_t threads_ended_ = 0;
  std::deque<Runnable*> ready_;
  bool closed_ = false;
  bool told_of_shortage_ = false;
  std::atomic<uint32_t> ready_count_{0};

  std::array<std::atomic<Worker*>, kThreadsMax> workers_{};
  std::atomic<uint32_t> worker_count_{0};
  std::atomic<uint32_t> blocked_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> tick_armed_{false};
};

}  // namespace monarch
