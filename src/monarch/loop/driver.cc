#include "monarch/loop/driver.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

#include "monarch/base/arch.h"
#include "monarch/base/forked.h"
#include "monarch/base/system.h"
#include "monarch/loop/futex.h"
#include "monarch/loop/reactor.h"
#include "monarch/loop/spin.h"

namespace monarch {

namespace {

// A tick interrupts and wakes the reactor, 10 to 20 us of CPU in all. Where ticks find that a thread sees to the rings
// they get rarer; the first that comes too late makes the next ones prompt.
constexpr int64_t kTickMinNs = 1'000'000;
constexpr int64_t kTickMaxNs = 8'000'000;
// How many times one thread empties the rings before it goes on with what else it has to do: the reactor with its
// sockets and timers, a leaver with its answer.
constexpr int kReactorRounds = 64;
constexpr int kLeaverRounds = 2;

thread_local const Driver* polled_here = nullptr;  // the driver inside whose poll this thread is
constinit WakeUpCost wake_up_cost;
constinit thread_local WaitHistory recent_waits(wake_up_cost);

// One look was in vain.
void pass(Spin& spin, int64_t now_ns, int rounds) {
  if (!spin.yields(rounds)) return arch::pause();
  sched_yield();
  spin.yielded(now_ns, monotonic_ns());
}

}  // namespace

Result<std::unique_ptr<Driver>> Driver::make(Reactor& reactor, BellPage& page, int event_fd) {
  UniqueFd tick = sys::make_timerfd();
  if (!tick) return sys::shortage_error("watch the rings");
  std::unique_ptr<Driver> made(new Driver(reactor, page, event_fd, std::move(tick)));
  if (!made->start()) return sys::shortage_error("watch the rings");
  return made;
}

Driver::Driver(Reactor& reactor, BellPage& page, int event_fd) : Driver(reactor, page, event_fd, sys::make_timerfd()) {
  if (!tick_ || !start()) sys::end_for_shortage("watch the rings");
}

Driver::Driver(Reactor& reactor, BellPage& page, int event_fd, UniqueFd tick)
    : reactor_(reactor), page_(page), event_fd_(event_fd), tick_(std::move(tick)), tick_ns_(kTickMinNs) {}

bool Driver::start() {
  if (!reactor_.add(event_fd_, EPOLLIN, [this](uint32_t) { on_event(); })) return false;
  if (!reactor_.add(tick_.get(), EPOLLIN, [this](uint32_t) { on_tick(); })) return false;
  arm_tick();  // DRV-1 holds from the start
  return true;
}

// Where the order of memory matters, besides what stands in loop/bell.cc; all in terms of the C++ model:
//
// 1. lead_ hands over what only leaders write (sleeps_, what pollables keep): taken by a seq_cst swap, given by a seq_cst
//    store. try_lead() may read the state relaxed, since only leaders make it anything but kAwake, and the swap has shown
//    this one all that the leaders before did. A peer's change that it does not see yet is one towards kAwake.
// 2. Who leaves against who begins to follow: leave() stores lead_, then reads followers_; a follower adds itself to
//    followers_, then reads lead_ (left_alone). The same for attended_ and attend(), which tries to take lead_. Who leaves
//    against the tick: stores lead_, then reads tick_armed_; the tick stores tick_armed_, then tries to take lead_. All of
//    them are seq_cst: one of the two sees the other.
// 3. Who completes against who sleeps: the condition, fence, the waiter's sleep_ (notify); sleep_, fence, the condition
//    (sleep_as_follower; for a leader, the fence is that of any_ready()).
// 4. remove() against a poll: remove() clears the pointer, then reads polling_; the leader makes polling_ odd, then reads
//    the pointer. All seq_cst: a poll that began after remove() has read polling_ does not see the pointer, so remove()
//    waits for the one that ran then, and for no later one. The end of a poll is a release that remove() acquires, so what
//    the poll did comes before what is done to the pollable next.
// 5. rung_ns, leave_count_, tick_ns_ and the averages are for tuning: relaxed, and nothing rests on them.

Driver::~Driver() {
  reactor_.remove(event_fd_);
  reactor_.remove(tick_.get());
}

uint32_t Driver::add(Pollable& pollable) {
  const uint32_t index = reserve();
  if (index != kBellRings) fill(index, pollable);
  return index;
}

uint32_t Driver::reserve() {
  if (in_forked_child()) return kBellRings;
  std::lock_guard lock(pollables_mutex_);
  for (uint32_t index = 0; index < kBellRings; ++index) {
    if (reserved_[index] || pollables_[index].load(std::memory_order_relaxed) != nullptr) continue;
    reserved_[index] = true;
    return index;
  }
  return kBellRings;
}

void Driver::fill(uint32_t index, Pollable& pollable) {
  if (in_forked_child()) return;
  std::lock_guard lock(pollables_mutex_);
  MONARCH_CHECK(reserved_[index]);
  reserved_[index] = false;
  pollables_[index].store(&pollable, std::memory_order_release);
  if (index >= pollable_limit_.load(std::memory_order_relaxed)) {
    pollable_limit_.store(index + 1, std::memory_order_seq_cst);
  }
}

void Driver::give_up(uint32_t index) {
  if (in_forked_child()) return;
  std::lock_guard lock(pollables_mutex_);
  reserved_[index] = false;
}

void Driver::remove(uint32_t index) {
  if (in_forked_child()) return;
  {
    std::lock_guard lock(pollables_mutex_);
    pollables_[index].store(nullptr, std::memory_order_seq_cst);
  }
  // Without the lock: the poll that runs may add or remove one itself.
  if (polled_here == this) return;
  const uint32_t seen = polling_.load(std::memory_order_seq_cst);
  if (seen % 2 == 0) return;
  while (polling_.load(std::memory_order_acquire) == seen) sched_yield();
}

// Leader, around its looks at pollables.
void Driver::begin_polls() {
  polling_.store(polling_.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  polled_here = this;
}

void Driver::end_polls() {
  polled_here = nullptr;
  polling_.store(polling_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

bool Driver::try_lead() {
  if (in_forked_child() || stage_ != nullptr) return false;
  uint32_t expected = 0;
  if (!lead_.compare_exchange_strong(expected, 1, std::memory_order_seq_cst)) return false;
  if (page_.state.load(std::memory_order_relaxed) != kAwake) page_.state.store(kAwake, std::memory_order_seq_cst);
  return true;
}

void Driver::leave() {
  leave_count_.fetch_add(1, std::memory_order_relaxed);
  lead_.store(0, std::memory_order_seq_cst);
  // A follower counts itself, then looks at lead_; we free it, then count. One of us sees the other. So it is with who
  // begins to attend, and then tries to take lead_.
  if (followers_.load(std::memory_order_seq_cst) != 0 || attended_.load(std::memory_order_seq_cst) != 0) {
    return hand_to_reactor(kLeaverRounds);
  }
  keep_awake();
}

// The bell stays as it is, for the grace.
void Driver::keep_awake() {
  if (!tick_armed_.load(std::memory_order_seq_cst)) arm_tick();
}

void Driver::arm_tick() {
  if (tick_armed_.exchange(true, std::memory_order_seq_cst)) return;
  const int64_t tick_ns = tick_ns_.load(std::memory_order_relaxed);
  const itimerspec spec{{0, tick_ns}, {0, tick_ns}};
  timerfd_settime(tick_.get(), 0, &spec, nullptr);
}

// Leader. Whoever leaves next arms it again; a tick that comes meanwhile finds that somebody leads.
void Driver::disarm_tick() {
  if (!tick_armed_.load(std::memory_order_relaxed)) return;
  const itimerspec off{};
  timerfd_settime(tick_.get(), 0, &off, nullptr);
  tick_armed_.store(false, std::memory_order_seq_cst);
}

bool Driver::poll_ready() {
  bool found = false;
  begin_polls();
  const uint32_t words = (pollable_limit_.load(std::memory_order_acquire) + 63) / 64;
  for (uint32_t word = 0; word < words; ++word) {
    if (page_.ready[word].load(std::memory_order_relaxed) == 0) continue;
    uint64_t bits = page_.ready[word].exchange(0, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    while (bits != 0) {
      const uint32_t bit = static_cast<uint32_t>(std::countr_zero(bits));
      bits &= bits - 1;
      Pollable* pollable = pollables_[word * 64 + bit].load(std::memory_order_seq_cst);
      if (pollable == nullptr) continue;
      found = true;
      if (pollable->poll()) page_.ready[word].fetch_or(uint64_t{1} << bit, std::memory_order_seq_cst);
    }
  }
  end_polls();
  return found;
}

void Driver::mark_ready(uint32_t index) {
  if (in_forked_child()) return;
  page_.ready[index / 64].fetch_or(uint64_t{1} << (index % 64), std::memory_order_seq_cst);
  wake_bell(page_, event_fd_);
}

void Driver::pulse() { reactor_.pulse(); }

void Driver::ring_self() {
  if (in_forked_child()) return;
  for (uint32_t index = 0; index < pollable_limit_; ++index) {
    if (pollables_[index].load(std::memory_order_relaxed) == nullptr) continue;
    page_.ready[index / 64].fetch_or(uint64_t{1} << (index % 64), std::memory_order_seq_cst);
  }
  // Not wake_bell: it believes the state, and peers can write that.
  page_.state.exchange(kAwake, std::memory_order_seq_cst);
  futex_wake(page_.state, 1, /*shared=*/true);
  eventfd_write(event_fd_, 1);
}

void Driver::notify(Waiter& waiter) {
  if (in_forked_child()) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint32_t sleep = waiter.sleep_.load(std::memory_order_relaxed);
  if (sleep == Waiter::kFollower) {
    if (waiter.sleep_.exchange(Waiter::kRunning, std::memory_order_seq_cst) == Waiter::kFollower) {
      futex_wake(waiter.sleep_, 1, /*shared=*/false);
    }
  } else if (sleep == Waiter::kLeader) {
    wake_bell(page_, event_fd_);
  }
}

WaitResult Driver::wait(Waiter& waiter, bool (*ready)(const void*), const void* context, int64_t deadline_ns,
                        int64_t max_sleep_ns) {
  waiter.waited_ns_ = 0;
  if (ready(context)) return WaitResult::kReady;
  if (in_forked_child()) return WaitResult::kTimeout;
  if (stage_ != nullptr) return stage_->wait(ready, context, deadline_ns, max_sleep_ns);
  bool leading = false;
  Spin spin(recent_waits);  // begins late: a wait that ends at once should not pay for the clock
  int64_t interrupt_ns = 0;
  for (int rounds = 1;; ++rounds) {
    if (!leading) leading = try_lead();
    const bool found = leading && poll_ready();
    if (ready(context)) {
      if (leading) leave();
      if (spin.begun()) waiter.waited_ns_ += spin.end(monotonic_ns(), /*slept=*/false);
      return WaitResult::kReady;
    }
    if (!spin.wants_clock(rounds)) {
      if (found) continue;
      if (spin.begun()) {
        arch::pause();
        continue;
      }
    }
    const int64_t now_ns = monotonic_ns();
    if (!spin.begun()) {
      spin.begin(now_ns);
      if (interrupt_ns == 0) interrupt_ns = max_sleep_ns < INT64_MAX - now_ns ? now_ns + max_sleep_ns : INT64_MAX;
    }
    int error = 0;
    if (found) {
      // Traffic for others never ends, perhaps: it must not keep this thread from its deadline nor from its signals.
      if (now_ns < std::min(deadline_ns, interrupt_ns)) continue;
      if (now_ns < deadline_ns) error = EINTR;
    } else if (now_ns < deadline_ns && !spin.is_over(now_ns)) {
      pass(spin, now_ns, rounds);
      continue;
    } else if (now_ns < deadline_ns) {
      // Nor may wakes that are not for it, such as to take the lead, begin the time anew.
      const int64_t left_ns = deadline_ns == kNoDeadline ? INT64_MAX : deadline_ns - now_ns;
      const int64_t sleep_left_ns = interrupt_ns == INT64_MAX ? INT64_MAX : interrupt_ns - now_ns;
      const int64_t limit_ns = std::min(left_ns, sleep_left_ns);
      error = limit_ns <= 0 ? ETIMEDOUT
              : leading     ? sleep_as_leader(waiter, ready, context, limit_ns)
                            : sleep_as_follower(waiter, ready, context, limit_ns);
      if (error == ETIMEDOUT && sleep_left_ns < left_ns) error = EINTR;
      waiter.waited_ns_ += spin.end(monotonic_ns(), /*slept=*/true);  // spin again briefly, since more may follow
      if (error != EINTR) continue;
    }
    const bool is_ready = ready(context);
    if (leading) leave();
    if (is_ready) return WaitResult::kReady;
    return error == EINTR ? WaitResult::kInterrupted : WaitResult::kTimeout;
  }
}

int Driver::sleep_as_follower(Waiter& waiter, bool (*ready)(const void*), const void* context, int64_t limit_ns) {
  int error = 0;
  followers_.fetch_add(1, std::memory_order_seq_cst);
  waiter.sleep_.store(Waiter::kFollower, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!ready(context) && !left_alone()) {
    error = futex_wait(waiter.sleep_, Waiter::kFollower, limit_ns == INT64_MAX ? -1 : limit_ns, /*shared=*/false);
  }
  waiter.sleep_.store(Waiter::kRunning, std::memory_order_seq_cst);
  followers_.fetch_sub(1, std::memory_order_relaxed);
  return error;
}

// Nobody leads, and the reactor has not been told to answer the bell: a thread that wants to sleep should lead instead.
bool Driver::left_alone() const {
  return lead_.load(std::memory_order_seq_cst) == 0 && page_.state.load(std::memory_order_seq_cst) == kAwake;
}

uint32_t Driver::asleep(BellState state) {
  sleeps_ += kBellSleep;
  return sleeps_ | state;
}

int Driver::sleep_as_leader(Waiter& waiter, bool (*ready)(const void*), const void* context, int64_t limit_ns) {
  prepare_sleep();
  if (recent_waits.are_long()) disarm_tick();  // it would find this thread asleep, and cost more than arming it anew
  int error = 0;
  waiter.sleep_.store(Waiter::kLeader, std::memory_order_seq_cst);
  page_.rung_ns.store(0, std::memory_order_relaxed);
  const uint32_t parked = asleep(kParked);
  page_.state.store(parked, std::memory_order_seq_cst);
  if (!any_ready(page_, pollable_limit_) && !ready(context)) {
    error = futex_wait(page_.state, parked, limit_ns == INT64_MAX ? -1 : limit_ns, /*shared=*/true);
    const int64_t rung_ns = page_.rung_ns.load(std::memory_order_relaxed);
    if (rung_ns != 0) wake_up_cost.note(monotonic_ns() - rung_ns);
  }
  page_.state.store(kAwake, std::memory_order_seq_cst);
  waiter.sleep_.store(Waiter::kRunning, std::memory_order_seq_cst);
  return error;
}

bool Driver::poll_briefly(bool (*ready)(const void*), const void* context) {
  if (ready(context) || stage_ != nullptr) return ready(context);
  int64_t now_ns = monotonic_ns();
  Spin spin(recent_waits);
  spin.begin(now_ns);
  for (int rounds = 1;; ++rounds) {
    look_briefly();
    const bool is_ready = ready(context);
    if (is_ready) spin.end(monotonic_ns(), /*slept=*/false);
    if (spin.wants_clock(rounds)) now_ns = monotonic_ns();
    if (is_ready || spin.is_over(now_ns)) {
      if (attended_.load(std::memory_order_seq_cst) != 0) hand_to_reactor(kLeaverRounds);
      return is_ready;
    }
    pass(spin, now_ns, rounds);
  }
}

// As poll_once(), for who looks again at once, and tells the reactor when it does not: not before each look, or every
// message that comes meanwhile would make a call to wake it.
void Driver::look_briefly() {
  if (!try_lead()) return;
  poll_ready();
  leave_count_.fetch_add(1, std::memory_order_relaxed);
  lead_.store(0, std::memory_order_seq_cst);
  if (followers_.load(std::memory_order_seq_cst) != 0) return hand_to_reactor(kLeaverRounds);
  keep_awake();
}

void Driver::note_wait(int64_t waited_ns) { recent_waits.note(waited_ns, true); }

void Driver::poll_once() {
  // That thread sleeps in epoll next: what comes then has to ring there, and not to wait for a tick.
  if (reactor_.on_reactor_thread()) return hand_to_reactor(kLeaverRounds);
  if (!try_lead()) return;
  poll_ready();
  leave();
}

void Driver::attend() {
  if (in_forked_child()) return;
  attended_.fetch_add(1, std::memory_order_seq_cst);
  hand_to_reactor(kLeaverRounds);
}

void Driver::end_attend() { attended_.fetch_sub(1, std::memory_order_seq_cst); }

void Driver::poll_after_send() {
  if (followers_.load(std::memory_order_relaxed) != 0 || attended_.load(std::memory_order_seq_cst) != 0) return;
  poll_once();
}

// Reactor: somebody rang while the bell said kEpoll.
void Driver::on_event() {
  eventfd_t ignored;
  eventfd_read(event_fd_, &ignored);
  hand_to_reactor(kReactorRounds);
}

// Leader: pollables hand over what they have kept back.
void Driver::prepare_sleep() {
  const uint32_t limit = pollable_limit_.load(std::memory_order_acquire);
  begin_polls();
  for (uint32_t index = 0; index < limit; ++index) {
    Pollable* pollable = pollables_[index].load(std::memory_order_seq_cst);
    if (pollable != nullptr) pollable->before_sleep();
  }
  end_polls();
}

// Any thread. Empties the rings, at most `rounds_max` times, and leaves the bell at kEpoll, with the reactor
// answering it from epoll. If a thread leads, it attends already, and takes care of the bell when it leaves.
void Driver::hand_to_reactor(int rounds_max) {
  int rounds = 0;
  for (;;) {
    if (!try_lead()) return;
    while (rounds < rounds_max && poll_ready()) ++rounds;
    if (rounds >= rounds_max) {
      // After lead_, or the reactor could take the event and find us leading still.
      lead_.store(0, std::memory_order_seq_cst);
      eventfd_write(event_fd_, 1);
      return;
    }
    prepare_sleep();
    page_.state.store(asleep(kEpoll), std::memory_order_seq_cst);
    lead_.store(0, std::memory_order_seq_cst);
    if (!any_ready(page_, pollable_limit_)) return;
    // Something came between the last look and kEpoll; if its sender won the bell the eventfd is written anyway.
    ++rounds;
  }
}

void Driver::on_tick() {
  uint64_t ignored;
  [[maybe_unused]] ssize_t count = ::read(tick_.get(), &ignored, sizeof ignored);
  const uint32_t leaves = leave_count_.load(std::memory_order_relaxed);
  if (leaves != tick_seen_ && lead_.load(std::memory_order_relaxed) == 0) {
    tick_seen_ = leaves;  // somebody was here within the last tick: the grace goes on
    return;
  }
  tick_seen_ = leaves;
  const itimerspec off{};
  timerfd_settime(tick_.get(), 0, &off, nullptr);
  const bool needless = lead_.load(std::memory_order_relaxed) != 0;
  tick_ns_.store(needless ? std::min(2 * tick_ns_.load(std::memory_order_relaxed), kTickMaxNs) : kTickMinNs,
                 std::memory_order_relaxed);
  tick_armed_.store(false, std::memory_order_seq_cst);
  // A thread that leaves from now on arms the tick again; one that left before this store did not, so look ourselves.
  hand_to_reactor(kReactorRounds);
}

}  // namespace monarch
