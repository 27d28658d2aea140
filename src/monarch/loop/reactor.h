// The reactor: one thread per process that owns sockets, timers and everything that is not a ring. It never takes the
// GIL, never blocks, never runs user code; all signals are blocked in it.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "monarch/base/mutex.h"
#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"
#include "monarch/loop/timers.h"

namespace monarch {

class Reactor final : public Timers {
 public:
  using FdCallback = std::function<void(uint32_t events)>;

  // A shortage of descriptors is the error.
  static Result<std::unique_ptr<Reactor>> make();
  // For who cannot begin without it: a shortage ends the process, with a sentence that says what to do.
  Reactor();
  ~Reactor() override;  // stops and joins
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // Starts the thread. false: there is none to be had (errno says why), and nothing has happened.
  bool start();
  void stop();  // ends the loop and joins the thread; idempotent; not from the reactor's own thread

  // Any thread. The callback runs on the reactor. `events` are epoll's (level-triggered). The caller keeps `fd` open until
  // remove(). false: not yet, the kernel watches no more now (errno says why); the reactor goes on trying until remove().
  bool add(int fd, uint32_t events, FdCallback callback);
  void modify(int fd, uint32_t events);
  // Any thread. After it returns on the reactor's thread the callback does not run again; from another thread it may be
  // running still.
  void remove(int fd);

  // Any thread. Runs `task` on the reactor, in order of posting.
  void post(std::function<void()> task) override;
  // Any thread. As post, and waits until it has run. Not from the reactor's own thread. Returns at once if the reactor has
  // lost its descriptors, and when it finds out.
  void post_and_wait(std::function<void()> task);

  int64_t now_ns() override;
  TimerId after(int64_t delay_ns, std::function<void()> task) override;
  void cancel(TimerId id) override;

  // What somebody waits to hear of while the reactor's thread is busy for long.
  class Pulsed {
   public:
    virtual ~Pulsed() = default;
    // The reactor's thread, in the middle of something else: says that this process lives, and does nothing more.
    virtual void on_pulse() = 0;
  };
  // Any thread. As long as it is there. weak: it may go at any time.
  void add_pulsed(std::weak_ptr<Pulsed> pulsed);
  // Whoever takes long calls it now and then; on other threads it does nothing.
  void pulse();

  // Around fork() in a process that has a reactor: the child gets a consistent copy, and closes every descriptor that
  // the reactor watches, so that the end of this process is seen even while such a child lives on. There, it is dead:
  // nothing runs any more, and no call waits. (Not even remove(): the child's epoll is its parent's.)
  void before_fork() { mutex_.lock_for_fork(); }
  void after_fork_in_parent() { mutex_.unlock(); }
  void after_fork_in_child();

  bool running() const { return running_.load(std::memory_order_relaxed); }
  bool on_reactor_thread() const {
    return running() && pthread_equal(thread_.load(std::memory_order_relaxed), pthread_self());
  }
  // Any thread; a system call. False: the program has closed descriptors that are not its own (os.closerange()), and ours
  // may be anybody's now. The reactor does nothing more then, nor can it be stopped: whoever owns it leaves it as it is.
  bool has_its_descriptors() const;

 private:
  struct Tables;
  explicit Reactor(UniqueFd epoll);
  bool watch_wake();

  void loop();
  void note_lost();
  void run_posted();
  void run_due_timers();
  int next_timeout_ms();
  void wake();

  UniqueFd epoll_;
  UniqueFd wake_[2];  // a pipe: the end to read, the end to write
  std::atomic<pthread_t> thread_{};
  std::atomic<bool> running_{false};
  std::atomic<bool> stopping_{false};
  bool lost_ = false;  // mutex_: it has lost its descriptors, and the loop has ended

  Mutex mutex_{LockRank::kReactor};  // guards the tables; callbacks and tasks run, and die, without it
  const std::unique_ptr<Tables> tables_;
};

}  // namespace monarch
