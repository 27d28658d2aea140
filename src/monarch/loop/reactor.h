// The reactor: one thread per process that owns sockets, timers and everything that is not a ring. It never takes the
// GIL, never blocks, never runs user code; all signals are blocked in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "monarch/base/unique_fd.h"

namespace monarch {

class Reactor {
 public:
  using FdCallback = std::function<void(uint32_t events)>;
  using TimerId = uint64_t;

  Reactor();
  ~Reactor();  // stops and joins
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  void start();  // starts the thread
  void stop();   // ends the loop and joins the thread; idempotent; not from the reactor's own thread

  // Any thread. The callback runs on the reactor. `events` are epoll's (level-triggered). The caller keeps `fd` open
  // until remove().
  void add(int fd, uint32_t events, FdCallback callback);
  void modify(int fd, uint32_t events);
  // Any thread. After it returns on the reactor's thread the callback does not run again; from another thread it may be
  // running still.
  void remove(int fd);

  // Any thread. Runs `task` on the reactor, in order of posting.
  void post(std::function<void()> task);
  // Any thread. As post, and waits until it has run. Not from the reactor's own thread.
  void post_and_wait(std::function<void()> task);

  // Any thread. Runs `task` on the reactor once, `delay_ns` from now.
  TimerId after(int64_t delay_ns, std::function<void()> task);
  void cancel(TimerId id);

  // Around fork() in a process that has a reactor: the child gets a consistent copy, and closes every descriptor that
  // the reactor watches, so that the end of this process is seen even while such a child lives on.
  void before_fork() { mutex_.lock(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

  bool running() const { return thread_.joinable(); }
  bool on_reactor_thread() const { return std::this_thread::get_id() == thread_id_.load(std::memory_order_relaxed); }

 private:
  void loop();
  void run_posted();
  void run_due_timers();
  int next_timeout_ms();
  void wake();

  UniqueFd epoll_;
  UniqueFd wake_;
  std::thread thread_;
  std::atomic<std::thread::id> thread_id_{};
  std::atomic<bool> stopping_{false};

  std::mutex mutex_;  // guards what follows
  struct Watched {
    uint32_t generation;                   // tells a descriptor from an earlier one of the same number
    std::shared_ptr<FdCallback> callback;  // shared: it may remove itself while it runs
  };
  std::unordered_map<int, Watched> callbacks_;
  std::vector<std::function<void()>> posted_;
  std::multimap<int64_t, std::pair<TimerId, std::function<void()>>> timers_;  // by due time
  TimerId next_timer_ = 1;
  uint32_t next_generation_ = 1;
};

}  // namespace monarch
