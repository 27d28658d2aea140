// Whoever waits, drives (known as leader/followers).
//
// Rings are polled by one thread of the process at a time, the leader. A thread that waits for something becomes the
// leader if there is none, polls, and takes what is its own without any other thread being woken. When it has what it
// wanted it just lets go of the lead: no system call. If other threads wait (followers), or an event loop relies on the
// reactor (attend), it leaves the bell at kEpoll, so that the reactor answers for them at once. Else the bell stays
// kAwake for a short grace, so a loop of calls keeps the lead; a tick of the reactor (after 1 ms; up to 8 ms where ticks
// have proved needless; armed only while nobody attends, and taken back by a leader whose waits are long) then moves the
// lead to the reactor, which waits for the bell in epoll. Invariant DRV-1: at any moment (a) a thread holds the lead, or
// (b) the bell says kEpoll, or (c) the tick is armed, or (d) the eventfd has been, or is about to be, written. Each of
// them ends with somebody looking at the rings.
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <memory>

#include "monarch/base/clock.h"
#include "monarch/base/mutex.h"
#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"
#include "monarch/loop/bell.h"

namespace monarch {

class Reactor;

// Something with an inbound ring. poll() is called by the leader only, never concurrently with itself.
class Pollable {
 public:
  virtual ~Pollable() = default;
  // Takes what is there, bounded. Returns true if there may be more.
  virtual bool poll() = 0;
  // The leader is about to sleep: hand over what has been kept back (returned slabs).
  virtual void before_sleep() {}
};

// Where one thread sleeps. Completers call Driver::notify() after they have made the condition true.
class Waiter {
 public:
  Waiter() = default;
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  // How long the last wait took; 0 if it ended so soon that nobody looked at the clock. Its own thread.
  int64_t waited_ns() const { return waited_ns_; }

 private:
  friend class Driver;
  enum Sleep : uint32_t { kRunning = 0, kFollower = 1, kLeader = 2 };
  std::atomic<uint32_t> sleep_{kRunning};
  int64_t waited_ns_ = 0;
};

enum class WaitResult { kReady, kTimeout, kInterrupted };

// Where threads wait whose time is simulated (testing/sim_stage.h): whoever waits gives its turn to another one.
class Stage {
 public:
  virtual ~Stage() = default;
  // As Driver::wait(); the deadline is on the simulated clock.
  virtual WaitResult wait(bool (*ready)(const void*), const void* context, int64_t deadline_ns, int64_t max_sleep_ns) = 0;
};

class Driver {
 public:
  // Makes `page` (mapped by peers too, zeroed) the bell of this process and `event_fd` (non-blocking) its eventfd. A
  // shortage of descriptors is the error.
  static Result<std::unique_ptr<Driver>> make(Reactor& reactor, BellPage& page, int event_fd);
  // For who cannot begin without it: a shortage ends the process, with a sentence that says what to do.
  Driver(Reactor& reactor, BellPage& page, int event_fd);
  ~Driver();  // after the reactor has stopped, or on its thread
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Reactor::pulse().
  void pulse();

  // Any thread. Gives `pollable` a bell index. kBellRings when there is none left. The first poll happens soon after.
  uint32_t add(Pollable& pollable);
  // Any thread. An index for what is to come: kBellRings when there is none left. It is filled once, or given up.
  uint32_t reserve();
  void fill(uint32_t index, Pollable& pollable);
  void give_up(uint32_t index);
  // Any thread. Afterwards poll() will not be called again, and is not running (unless it is poll() that calls this). May
  // wait for a poll() that runs, whosever it is: hold no lock that one takes.
  void remove(uint32_t index);

  // From now on, before the first wait: threads wait there, and there are no rings to be polled.
  void wait_on(Stage& stage) { stage_ = &stage; }

  // In a child of fork() none of this does anything, and a wait ends at once: the page is the parent's.

  // Waits until ready(context) is true, driving meanwhile. Any thread but the reactor; at most one wait per Waiter.
  // kInterrupted: a signal arrived (the caller looks at its signal handlers and waits again). `max_sleep_ns` bounds the
  // wait, whatever wakes it meanwhile, and then also gives kInterrupted: it closes the gap between a signal handler that
  // has run and a sleep that begins just after, and tells the caller that it waits for long.
  WaitResult wait(Waiter& waiter, bool (*ready)(const void*), const void* context, int64_t deadline_ns,
                  int64_t max_sleep_ns = INT64_MAX);

  // Polls without ever sleeping, for as long as that pays (not at all if recent waits of this thread were long), until
  // ready. Returns ready(context).
  bool poll_briefly(bool (*ready)(const void*), const void* context);

  // After poll_briefly() said no and the thread was woken another way: how long that took in all, so that the next
  // poll_briefly() knows whether it pays.
  static void note_wait(int64_t waited_ns);

  // One look at the rings if nobody else is looking. Any thread; the reactor's leaves the bell at kEpoll, since it looks
  // again only when that rings.
  void poll_once();

  // Any thread: the waiter's condition has become true.
  void notify(Waiter& waiter);

  // Somebody will be told of completions without waiting here (an event loop): from attend() to end_attend() the
  // rings are attended. Any thread; they nest.
  void attend();
  void end_attend();

  // After a request was sent, any thread: takes what has come, and keeps the bell awake for the grace, so that answers
  // to a thread that goes on sending wake nobody: each such wake-up would cost the answering side 20 to 30 us. Does
  // nothing where somebody relies on the reactor for being told.
  void poll_after_send();

  // Reactor: a peer died, and may have won our bell without ringing it.
  void ring_self();

  // Marks ring `index` as holding something (used by local producers such as overflow queues).
  void mark_ready(uint32_t index);

 private:
  Driver(Reactor& reactor, BellPage& page, int event_fd, UniqueFd tick);
  bool start();
  uint32_t asleep(BellState state);  // leader: the word of a new sleep
  bool try_lead();
  void leave();
  void keep_awake();
  void look_briefly();
  void begin_polls();
  void end_polls();
  bool poll_ready();  // leader: polls all marked rings; true if anything was there
  int sleep_as_leader(Waiter& waiter, bool (*ready)(const void*), const void* context, int64_t limit_ns);
  int sleep_as_follower(Waiter& waiter, bool (*ready)(const void*), const void* context, int64_t limit_ns);
  void on_event();
  void on_tick();
  void hand_to_reactor(int rounds_max);
  void prepare_sleep();
  bool left_alone() const;
  void arm_tick();
  void disarm_tick();

  Stage* stage_ = nullptr;
  Reactor& reactor_;
  BellPage& page_;
  const int event_fd_;
  UniqueFd tick_;

  alignas(64) std::atomic<uint32_t> lead_{0};
  uint32_t sleeps_ = 0;  // leader only: the number of the last sleep, as it stands in the bell's word
  std::atomic<uint32_t> polling_{0};  // odd while the leader may be inside a Pollable; it alone counts it up
  std::atomic<uint32_t> leave_count_{0};
  std::atomic<uint32_t> followers_{0};  // threads that sleep, or are about to, while another leads
  std::atomic<uint32_t> attended_{0};   // attend() without end_attend()
  std::atomic<bool> tick_armed_{false};
  std::atomic<int64_t> tick_ns_;  // how long the next one takes
  uint32_t tick_seen_ = 0;        // reactor only

  Mutex pollables_mutex_{LockRank::kDriver};  // for add() and remove(); polls read without it
  std::atomic<Pollable*> pollables_[kBellRings] = {};
  std::bitset<kBellRings> reserved_;  // no pollable yet
  std::atomic<uint32_t> pollable_limit_{0};
};

}  // namespace monarch
