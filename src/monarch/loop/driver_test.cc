#include "monarch/loop/driver.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <fstream>
#include <filesystem>
#include <random>
#include <thread>
#include <vector>

#include "monarch/base/check.h"
#include "monarch/base/forked.h"
#include "monarch/base/system.h"
#include "monarch/loop/futex.h"
#include "monarch/loop/reactor.h"

namespace monarch {
namespace {

constexpr int64_t kStuckNs = 5'000'000'000;  // a wait that takes longer has lost its wake-up

bool short_form() {
  const char* value = std::getenv("MONARCH_TEST_SHORT");
  return value != nullptr && *value == '1';
}

// A bell in memory that a forked child shares, and its driver.
struct Home {
  Home()
      : page(static_cast<BellPage*>(
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))),
        event_fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        driver(std::make_unique<Driver>(reactor, *page, event_fd.get())) {
    reactor.start();
  }
  ~Home() {
    reactor.stop();
    driver.reset();
    munmap(page, 4096);
  }
  Reactor reactor;
  BellPage* page;
  UniqueFd event_fd;
  std::unique_ptr<Driver> driver;
};

// The smallest ring: a number that grows. Whoever waits for it registers as its waiter.
struct Counter : Pollable {
  explicit Counter(Home& where)
      : home(where),
        published(static_cast<std::atomic<uint64_t>*>(
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    index = home.driver->add(*this);
    MONARCH_CHECK(index < kBellRings);
  }
  ~Counter() override {
    home.driver->remove(index);
    munmap(published, 4096);
  }
  bool poll() override {
    MONARCH_CHECK(!polling.exchange(true));
    const uint64_t now = published->load(std::memory_order_acquire);
    if (now != taken.load(std::memory_order_relaxed)) {
      taken.store(now, std::memory_order_release);
      wake();
    }
    polling = false;
    return false;
  }
  void publish(uint64_t value) {
    published->store(value, std::memory_order_release);
    ring_bell(*home.page, index, home.event_fd.get());
  }
  void wake() {
    std::lock_guard lock(waiter_mutex);
    if (waiter != nullptr) home.driver->notify(*waiter);
  }
  WaitResult wait(Waiter& who, uint64_t value, int64_t limit_ns = kStuckNs) {
    struct Wanted {
      Counter* counter;
      uint64_t value;
    } wanted{this, value};
    {
      std::lock_guard lock(waiter_mutex);
      waiter = &who;
    }
    auto ready = [](const void* context) {
      const auto* w = static_cast<const Wanted*>(context);
      return w->counter->taken.load(std::memory_order_seq_cst) >= w->value;
    };
    const int64_t deadline_ns = monotonic_ns() + limit_ns;
    const WaitResult result = home.driver->wait(who, ready, &wanted, deadline_ns);
    std::lock_guard lock(waiter_mutex);
    waiter = nullptr;  // a Waiter lives only as long as its wait
    // Woken by its deadline alone, a wait finds what it was not told of, and is kReady: too late is lost.
    return monotonic_ns() >= deadline_ns ? WaitResult::kTimeout : result;
  }
  Home& home;
  std::atomic<uint64_t>* published;
  std::atomic<uint64_t> taken{0};
  std::mutex waiter_mutex;
  Waiter* waiter = nullptr;
  std::atomic<bool> polling{false};
  uint32_t index = 0;
};

uint32_t sleeper(const BellPage& page) { return page.state.load() & kBellSleeper; }

// Who waits for `counter` sleeps as the leader. If the reactor led just then, at its tick, it follows: then it is woken.
void until_parked(Home& home, Counter& counter) {
  for (const int64_t limit = monotonic_ns() + kStuckNs; sleeper(*home.page) != kParked; sched_yield()) {
    if (monotonic_ns() >= limit) return ADD_FAILURE() << "nobody leads";
    if (sleeper(*home.page) == kEpoll) counter.wake();
  }
}

// Ticks end a period, of 8 ms at most, after the last thread has left.
void let_ticks_run_out() {
  for (const int64_t until = monotonic_ns() + 20'000'000; monotonic_ns() < until;) sched_yield();
}

void pin_to(int core) {
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Gives the other side a moment that is different each time: nothing, a yield, or longer than anybody spins.
void dither(std::mt19937& random) {
  switch (random() % 8) {
    case 0:
    case 1:
    case 2:
      return;
    case 3:
    case 4:
      sched_yield();
      return;
    case 5:
    case 6: {
      const int64_t until = monotonic_ns() + static_cast<int64_t>(random() % 8'000);
      while (monotonic_ns() < until) sched_yield();
      return;
    }
    default: {
      const int64_t until = monotonic_ns() + 40'000 + static_cast<int64_t>(random() % 60'000);
      while (monotonic_ns() < until) sched_yield();
    }
  }
}

// Two threads of two homes, ping-pong, with moments of every length between.
void ping_pong(int core_a, int core_b, int rounds, uint32_t seed) {
  Home a, b;
  Counter at_a(a), at_b(b);
  std::atomic<bool> lost{false};
  auto side = [&](Counter& mine, Counter& theirs, int core, uint32_t my_seed, bool first) {
    pin_to(core);
    std::mt19937 random(my_seed);
    Waiter waiter;
    for (int round = 1; round <= rounds && !lost; ++round) {
      dither(random);
      if (first) theirs.publish(static_cast<uint64_t>(round));
      dither(random);
      if (mine.wait(waiter, static_cast<uint64_t>(round)) == WaitResult::kTimeout) lost = true;
      dither(random);
      if (!first) theirs.publish(static_cast<uint64_t>(round));
    }
  };
  std::thread other([&] { side(at_b, at_a, core_b, seed * 2 + 1, false); });
  std::thread one([&] { side(at_a, at_b, core_a, seed * 2, true); });
  one.join();
  other.join();
  EXPECT_FALSE(lost) << "a wake-up was lost, seed " << seed;
}

TEST(Bell, IsNeverLostBetweenTwoThreadsOnOneCore) {
  for (uint32_t seed = 0; seed < (short_form() ? 4u : 16u); ++seed) ping_pong(0, 0, short_form() ? 300 : 1000, seed);
}

TEST(Bell, IsNeverLostBetweenTwoThreadsOnTwoCores) {
  for (uint32_t seed = 0; seed < (short_form() ? 4u : 16u); ++seed) ping_pong(0, 1, short_form() ? 500 : 2000, seed);
}

// Several senders to one home, several waiting threads there: leader and followers change all the time.
TEST(Bell, IsNeverLostWithSeveralSendersAndSeveralWaiters) {
  const int rounds = short_form() ? 500 : 4000;
  Home home;
  constexpr int kPairs = 4;
  std::vector<std::unique_ptr<Counter>> counters;
  std::vector<std::unique_ptr<std::atomic<uint64_t>>> acks;
  for (int i = 0; i < kPairs; ++i) {
    counters.push_back(std::make_unique<Counter>(home));
    acks.push_back(std::make_unique<std::atomic<uint64_t>>(0));
  }
  std::atomic<bool> lost{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kPairs; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<uint32_t>(i));
      Waiter waiter;
      for (int round = 1; round <= rounds && !lost; ++round) {
        if (counters[i]->wait(waiter, static_cast<uint64_t>(round)) == WaitResult::kTimeout) lost = true;
        acks[i]->store(static_cast<uint64_t>(round));
        dither(random);
      }
    });
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<uint32_t>(i + 100));
      for (int round = 1; round <= rounds && !lost; ++round) {
        dither(random);
        counters[i]->publish(static_cast<uint64_t>(round));
        while (acks[i]->load() < static_cast<uint64_t>(round) && !lost) sched_yield();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(lost);
}

// Nobody waits: the reactor must take what comes, soon after the last leader has left.
TEST(Bell, IsAnsweredByTheReactorWhenNobodyWaits) {
  const int rounds = short_form() ? 100 : 1000;
  Home home;
  Counter counter(home);
  std::mt19937 random(7);
  Waiter waiter;
  for (int round = 1; round <= rounds; ++round) {
    if (random() % 4 == 0) home.driver->poll_once();
    if (random() % 4 == 0) home.driver->attend();
    dither(random);
    counter.publish(static_cast<uint64_t>(round));
    const int64_t deadline = monotonic_ns() + kStuckNs;
    while (counter.taken.load() < static_cast<uint64_t>(round)) {
      ASSERT_LT(monotonic_ns(), deadline) << "round " << round;
      sched_yield();
    }
  }
}

// Published at the worst moment: after the last look at the rings, before the bell says that somebody sleeps.
// before_sleep() is exactly there.
struct LastMoment : Pollable {
  bool poll() override { return false; }
  void before_sleep() override {
    if (armed.exchange(false)) counter->publish(counter->published->load() + 1);
  }
  Counter* counter = nullptr;
  std::atomic<bool> armed{false};
};

TEST(Bell, IsNotLostWhenItIsRungJustBeforeTheSleep) {
  Home home;
  Counter counter(home);
  LastMoment last;
  last.counter = &counter;
  const uint32_t index = home.driver->add(last);
  // The reactor goes to sleep. First let its tick run out, which would save it.
  let_ticks_run_out();
  uint64_t round = 1;
  for (; round <= 100; ++round) {
    last.armed = true;
    home.driver->attend();
    const int64_t deadline = monotonic_ns() + kStuckNs;
    while (counter.taken.load() < round) {
      ASSERT_LT(monotonic_ns(), deadline) << "round " << round;
      sched_yield();
    }
  }
  // A thread goes to sleep as the leader.
  for (; round <= 200; ++round) {
    last.armed = true;
    Waiter waiter;
    ASSERT_EQ(counter.wait(waiter, round), WaitResult::kReady) << "round " << round;
  }
  home.driver->remove(index);
}

TEST(Bell, ComesFromAnotherProcess) {
  Home home;
  Counter counter(home);
  const int rounds = short_form() ? 500 : 5000;
  auto* ack = static_cast<std::atomic<uint64_t>*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const pid_t child = fork();
  if (child == 0) {
    for (int round = 1; round <= rounds; ++round) {
      while (ack->load() + 1 < static_cast<uint64_t>(round)) sched_yield();
      for (int i = 0; i < round * 37 % 200; ++i) sched_yield();
      counter.publish(static_cast<uint64_t>(round));
    }
    _exit(0);
  }
  Waiter waiter;
  for (int round = 1; round <= rounds; ++round) {
    ASSERT_EQ(counter.wait(waiter, static_cast<uint64_t>(round)), WaitResult::kReady) << "round " << round;
    ack->store(static_cast<uint64_t>(round));
  }
  int status;
  ASSERT_EQ(waitpid(child, &status, 0), child);
}

// The sender wins the bell and dies before the system call. The survivor hears of the death and rings itself.
TEST(Bell, SurvivesTheDeathOfItsWinner) {
  Home home;
  Counter counter(home);
  for (int round = 1; round <= (short_form() ? 30 : 200); ++round) {
    std::atomic<int> pid{0};
    std::atomic<bool> ok{false};
    std::thread receiver([&] {
      Waiter waiter;
      ok = counter.wait(waiter, static_cast<uint64_t>(round)) == WaitResult::kReady;
    });
    const pid_t child = fork();
    if (child == 0) {
      // Not for ever: a bell that stays kAwake with nobody looking is a wake-up lost in an earlier round.
      for (const int64_t limit = monotonic_ns() + kStuckNs; monotonic_ns() < limit;) {
        // ring_bell() up to and including the swap, and not a step further.
        uint32_t state = home.page->state.load();
        if (state == kAwake) {
          sched_yield();
          continue;
        }
        counter.published->store(static_cast<uint64_t>(round));
        home.page->ready[counter.index / 64].fetch_or(uint64_t{1} << (counter.index % 64));
        if ((state & kRung) == 0 && home.page->state.compare_exchange_strong(state, state | kRung)) _exit(0);
      }
      _exit(1);
    }
    const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, child, 0));
    home.reactor.add(pidfd, EPOLLIN, [&](uint32_t) {
      home.reactor.remove(pidfd);
      home.driver->ring_self();
    });
    receiver.join();
    EXPECT_TRUE(ok) << "round " << round;
    home.reactor.post_and_wait([&] { home.reactor.remove(pidfd); });
    ::close(pidfd);
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (!ok) return;
  }
}

// A peer process that wins the bell and is stopped before its system call.
struct StoppedWinner {
  explicit StoppedWinner(Home& home, uint32_t asleep) {
    child = fork();
    if (child == 0) {
      for (const int64_t limit = monotonic_ns() + kStuckNs; monotonic_ns() < limit; sched_yield()) {
        // wake_bell() up to and including the swap, and not a step further.
        uint32_t state = home.page->state.load();
        if ((state & kBellSleeper) != asleep) continue;
        if (home.page->state.compare_exchange_strong(state, state | kRung)) raise(SIGSTOP);
        // Much later it goes on: the call, and the second swap.
        futex_wake(home.page->state, 1, /*shared=*/true);
        eventfd_write(home.event_fd.get(), 1);
        state |= kRung;
        home.page->state.compare_exchange_strong(state, kAwake);
        _exit(0);
      }
      _exit(1);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, WUNTRACED), child);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  // It goes on, and ends.
  int finish() {
    kill(child, SIGCONT);
    int status = -1;
    waitpid(std::exchange(child, 0), &status, 0);
    return status;
  }
  ~StoppedWinner() {
    if (child == 0) return;
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  pid_t child;
};

TEST(Bell, ALivingPeerWakesAWaiterWhoseBellAStoppedOneHasWon) {
  Home home;
  Counter counter(home);
  for (uint64_t round = 1; round <= 20; ++round) {
    std::atomic<bool> ok{false};
    std::thread receiver([&] {
      Waiter waiter;
      ok = counter.wait(waiter, round) == WaitResult::kReady;
    });
    until_parked(home, counter);
    StoppedWinner stopped(home, kParked);
    counter.publish(round);
    receiver.join();
    EXPECT_TRUE(ok) << "round " << round;
    if (!ok) return;
    EXPECT_EQ(stopped.finish(), 0);
  }
}

TEST(Bell, ALivingPeerWakesAReactorWhoseBellAStoppedOneHasWon) {
  Home home;
  Counter counter(home);
  for (uint64_t round = 1; round <= 20; ++round) {
    let_ticks_run_out();
    StoppedWinner stopped(home, kEpoll);
    counter.publish(round);
    const int64_t deadline = monotonic_ns() + kStuckNs;
    while (counter.taken.load() < round && monotonic_ns() < deadline) sched_yield();
    ASSERT_EQ(counter.taken.load(), round);
    EXPECT_EQ(stopped.finish(), 0);
  }
}

// It was stopped in one sleep of its peer and goes on in another, whose winner is stopped too.
TEST(Bell, AWinnerThatGoesOnLateHidesNoOther) {
  Home home;
  Counter counter(home);
  for (uint64_t round = 1; round <= 20; round += 2) {
    std::atomic<bool> ok{true};
    auto receive = [&](uint64_t value) {
      return std::thread([&, value] {
        Waiter waiter;
        if (counter.wait(waiter, value) != WaitResult::kReady) ok = false;
      });
    };
    std::thread receiver = receive(round);
    until_parked(home, counter);
    StoppedWinner first(home, kParked);
    counter.publish(round);
    receiver.join();
    receiver = receive(round + 1);
    until_parked(home, counter);
    StoppedWinner second(home, kParked);
    // The first one's second swap: not at what the second one has won.
    EXPECT_EQ(first.finish(), 0);
    counter.publish(round + 1);
    receiver.join();
    EXPECT_TRUE(ok) << "round " << round;
    EXPECT_EQ(second.finish(), 0);
    if (!ok) return;
  }
}

TEST(Driver, WaitEndsAtItsDeadline) {
  Home home;
  Counter counter(home);
  Waiter waiter;
  const int64_t start = monotonic_ns();
  EXPECT_EQ(counter.wait(waiter, 1, 20'000'000), WaitResult::kTimeout);
  EXPECT_GE(monotonic_ns() - start, 20'000'000);
}

TEST(Driver, WaitEndsAtItsDeadlineWhileOthersHaveEndlessTraffic) {
  struct Endless : Pollable {
    bool poll() override { return true; }
  };
  Home home;
  Counter counter(home);
  Endless endless;
  const uint32_t index = home.driver->add(endless);
  home.driver->mark_ready(index);
  std::thread waiting([&] {
    Waiter waiter;
    EXPECT_EQ(counter.wait(waiter, 1, 20'000'000), WaitResult::kTimeout);
    auto never = [](const void*) { return false; };
    EXPECT_EQ(home.driver->wait(waiter, never, nullptr, kNoDeadline, 5'000'000), WaitResult::kInterrupted);
  });
  waiting.join();
  // Nor does the reactor starve: it still runs tasks.
  for (int i = 0; i < 20; ++i) home.reactor.post_and_wait([] {});
  home.driver->remove(index);
}

TEST(Driver, WaitEndsAtItsLimitHoweverOftenItIsWoken) {
  Home home;
  for (const bool leads : {true, false}) {
    std::atomic<bool> done{false};
    Counter other(home);
    std::thread leading;
    if (!leads) {
      leading = std::thread([&] {
        Waiter waiter;
        other.wait(waiter, 1);
      });
    }
    Waiter waiter;
    const int64_t start = monotonic_ns();
    std::thread waking([&] {
      while (!done && monotonic_ns() - start < 5'000'000'000) {
        home.driver->notify(waiter);
        sched_yield();
      }
    });
    auto never = [](const void*) { return false; };
    EXPECT_EQ(home.driver->wait(waiter, never, nullptr, kNoDeadline, 20'000'000), WaitResult::kInterrupted);
    EXPECT_LT(monotonic_ns() - start, 2'000'000'000);
    done = true;
    waking.join();
    other.publish(1);
    if (leading.joinable()) leading.join();
  }
}

TEST(Driver, WaitIsInterruptedByASignalAndByItsOwnLimit) {
  struct sigaction action {}, previous;
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, &previous);
  Home home;
  Counter leading(home), following(home);
  for (int role = 0; role < 2; ++role) {
    std::atomic<pid_t> tid{0};
    std::atomic<bool> done{false};
    Counter& counter = role == 0 ? leading : following;
    std::thread other;
    std::atomic<bool> release{false};
    if (role == 1) {
      other = std::thread([&] {
        Waiter waiter;
        leading.wait(waiter, 1);
      });
    }
    std::thread waiting([&] {
      tid = static_cast<pid_t>(syscall(SYS_gettid));
      Waiter waiter;
      EXPECT_EQ(counter.wait(waiter, 1), WaitResult::kInterrupted);
      done = true;
    });
    while (tid == 0) sched_yield();
    while (!done) {  // the first may come before the sleep has begun
      pthread_kill(waiting.native_handle(), SIGUSR1);
      sched_yield();
    }
    waiting.join();
    if (role == 1) {
      leading.publish(1);
      other.join();
    }
  }
  Waiter waiter;
  auto never = [](const void*) { return false; };
  EXPECT_EQ(home.driver->wait(waiter, never, nullptr, kNoDeadline, 3'000'000), WaitResult::kInterrupted);
  sigaction(SIGUSR1, &previous, nullptr);
}

TEST(Driver, LeavesTheBellToTheReactorAtOnceWhenOthersWait) {
  Home home;
  Counter mine(home), theirs(home);
  std::atomic<bool> ready{false};
  std::thread leader([&] {
    Waiter waiter;
    EXPECT_EQ(mine.wait(waiter, 1), WaitResult::kReady);
  });
  until_parked(home, mine);
  std::thread follower([&] {
    Waiter waiter;
    EXPECT_EQ(theirs.wait(waiter, 1), WaitResult::kReady);
    ready = true;
  });
  // No event says that the follower sleeps: give it longer than it spins.
  const int64_t until = monotonic_ns() + 2'000'000;
  while (monotonic_ns() < until) sched_yield();
  mine.publish(1);
  leader.join();
  theirs.publish(1);
  follower.join();
  EXPECT_TRUE(ready);
}

// remove() returns only when poll() is over: whoever is freed afterwards is not touched (AddressSanitizer watches).
// The states are looked at right after the call: the reactor's tick is a millisecond away, and may come between now and
// then.
TEST(Driver, ALookAfterASendKeepsTheBellAwakeUnlessALoopReliesOnTheReactor) {
  constexpr uint64_t kLooks = 200;
  Home home;
  Counter counter(home);
  auto count_awake = [&] {
    uint64_t awake = 0;
    for (uint64_t value = 1; value <= kLooks; ++value) {
      counter.publish(value);
      home.driver->poll_after_send();
      if (home.page->state.load() == kAwake) ++awake;
    }
    return awake;
  };
  EXPECT_GT(count_awake(), kLooks * 3 / 4);
  home.driver->attend();
  home.driver->attend();
  home.driver->end_attend();
  let_ticks_run_out();  // at the last of them the reactor looks at the rings, awake for a moment
  while (sleeper(*home.page) != kEpoll) sched_yield();
  auto count_epoll = [&] {
    uint64_t epoll = 0;
    for (uint64_t look = 0; look < kLooks; ++look) {
      home.driver->poll_after_send();
      if (sleeper(*home.page) == kEpoll) ++epoll;
    }
    return epoll;
  };
  EXPECT_GT(count_epoll(), kLooks * 3 / 4);
  home.driver->end_attend();
}

// It does not look again by itself: what comes has to ring.
TEST(Driver, ALookOnTheReactorsThreadLeavesTheBellToTheReactor) {
  Home home;
  Counter counter(home);
  for (const bool alone : {true, false}) {
    if (!alone) home.driver->poll_once();  // by a thread that may look again soon: the bell stays awake
    home.reactor.post_and_wait([&] {
      home.driver->poll_once();
      EXPECT_EQ(sleeper(*home.page), kEpoll) << alone;
    });
  }
}

TEST(Driver, RemoveWaitsForARunningPoll) {
  Home home;
  std::atomic<bool> stop{false};
  Counter busy(home);
  std::thread driving([&] {
    uint64_t value = 0;
    Waiter waiter;
    while (!stop) {
      busy.publish(++value);
      busy.wait(waiter, value);
    }
  });
  const int64_t until = monotonic_ns() + 10'000'000'000;  // where others want the cores a round takes tens of milliseconds
  for (int i = 0; i < (short_form() ? 500 : 5000) && monotonic_ns() < until; ++i) {
    auto counter = std::make_unique<Counter>(home);
    counter->publish(1);
    home.driver->mark_ready(counter->index);
    if (i % 3 == 0) sched_yield();
  }
  stop = true;
  driving.join();
}

// An event loop that attends sleeps where no driver knows of it. Whoever leads meanwhile and goes leaves the bell to the
// reactor at once, not to the tick.
TEST(Driver, WhoLeavesWhileALoopAttendsHandsTheBellToTheReactor) {
  Home home;
  Counter counter(home);
  const auto sleeper = [&] { return home.page->state.load() & kBellSleeper; };
  const auto never = [](const void*) { return false; };
  int late = 0;  // the reactor may be looking itself at that moment
  const auto look = [&] { late += sleeper() != kEpoll; };
  home.driver->attend();
  for (int i = 0; i < 100; ++i) {
    Waiter waiter;
    EXPECT_EQ(home.driver->wait(waiter, never, nullptr, monotonic_ns() + 1000), WaitResult::kTimeout);
    look();
    home.driver->poll_once();
    look();
    home.driver->poll_briefly(never, nullptr);
    look();
  }
  EXPECT_LT(late, 150) << "of 300";
  home.driver->end_attend();
}

// One poll is waited for, the one that runs; not until nobody happens to poll, which in a flood is hardly ever.
TEST(Driver, RemoveWaitsForOnePollOnlyInAFlood) {
  struct Flood : Pollable {
    bool poll() override {
      ++polls;
      for (const int64_t end_ns = monotonic_ns() + 500'000; monotonic_ns() < end_ns;) sched_yield();
      return true;
    }
    std::atomic<int> polls{0};
  };
  Home home;
  Flood flood;
  const uint32_t index = home.driver->add(flood);
  std::atomic<bool> stop{false};
  Waiter waiter;
  std::thread leading([&] {
    const auto ready = [](const void* context) { return static_cast<const std::atomic<bool>*>(context)->load(); };
    EXPECT_EQ(home.driver->wait(waiter, ready, &stop, monotonic_ns() + kStuckNs), WaitResult::kReady);
  });
  home.driver->mark_ready(index);
  while (flood.polls == 0) sched_yield();
  std::vector<int> polls;
  for (int i = 0; i < 30; ++i) {
    Flood other;
    const uint32_t gone = home.driver->add(other);
    const int before = flood.polls;
    home.driver->remove(gone);
    polls.push_back(flood.polls - before);
  }
  stop = true;
  home.driver->notify(waiter);
  leading.join();
  home.driver->remove(index);
  std::sort(polls.begin(), polls.end());
  EXPECT_LE(polls[15], 10) << "in the middle; " << polls.back() << " at worst";
}

TEST(Driver, APollableMayRemoveItselfInItsPoll) {
  struct Once : Pollable {
    bool poll() override {
      driver->remove(index);
      ++polls;
      return true;
    }
    Driver* driver;
    uint32_t index;
    std::atomic<int> polls{0};
  };
  Home home;
  Once once;
  once.driver = home.driver.get();
  once.index = home.driver->add(once);
  home.driver->mark_ready(once.index);
  const int64_t deadline = monotonic_ns() + kStuckNs;
  while (once.polls == 0 && monotonic_ns() < deadline) home.driver->poll_once();
  for (int i = 0; i < 10; ++i) home.driver->poll_once();
  EXPECT_EQ(once.polls, 1);
}

// Two that are in each other's way: one is removed by another thread while a poll adds and removes.
TEST(Driver, APollMayAddAndRemoveWhileAnotherThreadWaitsForItsEnd) {
  struct Nothing : Pollable {
    bool poll() override { return false; }
  };
  struct Busy : Pollable {
    bool poll() override {
      inside = true;
      while (!go_on) sched_yield();
      driver->remove(driver->add(other));
      return false;
    }
    Driver* driver;
    Nothing other;
    std::atomic<bool> inside{false}, go_on{false};
  };
  Nothing victim;
  Busy busy;
  Home home;
  busy.driver = home.driver.get();
  const uint32_t victim_index = home.driver->add(victim);
  const uint32_t index = home.driver->add(busy);
  home.driver->mark_ready(index);
  while (!busy.inside) sched_yield();
  std::thread remover([&] { home.driver->remove(victim_index); });
  // Nothing says that the remover waits: give it time to.
  for (const int64_t until = monotonic_ns() + 2'000'000; monotonic_ns() < until;) sched_yield();
  busy.go_on = true;
  remover.join();
  home.driver->remove(index);
}

TEST(Driver, AShortageWhileItIsMadeIsAnError) {
  Home home;
  for (uint64_t nth = 1;; ++nth) {
    alignas(4096) BellPage page{};
    UniqueFd event_fd(eventfd(0, EFD_NONBLOCK));
    sys::fail_nth(nth);
    const auto made = Driver::make(home.reactor, page, event_fd.get());
    const bool failed = sys::calls_seen() >= nth;
    sys::fail_nth(0);
    EXPECT_EQ(made.ok(), !failed);
    if (!failed) break;
    EXPECT_TRUE(made.error().message.starts_with("cannot watch the rings: ")) << made.error().message;
  }
}

TEST(Driver, IsDeadInAChildOfForkAndItsParentsPageIsNotTouched) {
  Home home;
  Counter counter(home);
  let_ticks_run_out();
  while (sleeper(*home.page) != kEpoll) sched_yield();
  const uint32_t state = home.page->state;
  home.reactor.before_fork();
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    note_forked_child();
    home.reactor.after_fork_in_child();
    auto never = [](const void*) { return false; };
    Waiter waiter;
    if (home.driver->wait(waiter, never, nullptr, kNoDeadline) != WaitResult::kTimeout) _exit(1);
    home.driver->poll_once();
    home.driver->attend();
    home.driver->mark_ready(counter.index);
    home.driver->ring_self();
    home.driver->notify(waiter);
    home.driver->remove(counter.index);
    _exit(home.driver->add(counter) == kBellRings ? 0 : 2);
  }
  home.reactor.after_fork_in_parent();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(home.page->state, state);
  Waiter waiter;
  counter.publish(1);
  EXPECT_EQ(counter.wait(waiter, 1), WaitResult::kReady);
}

TEST(Driver, GivesOutEachBellIndexOnceAndSaysWhenThereIsNoneLeft) {
  struct Nothing : Pollable {
    bool poll() override { return false; }
  };
  Nothing nothing;  // outlives the driver, which looks at what it has not been told to forget
  Home home;
  std::vector<uint32_t> given;
  for (;;) {
    const uint32_t index = home.driver->add(nothing);
    if (index == kBellRings) break;
    given.push_back(index);
  }
  EXPECT_EQ(given.size(), kBellRings);
  home.driver->remove(17);
  EXPECT_EQ(home.driver->add(nothing), 17u);
}

TEST(Driver, IgnoresBitsOfRingsThatItHasNot) {
  Home home;
  Counter counter(home);
  home.page->ready[15].store(~uint64_t{0});
  Waiter waiter;
  EXPECT_EQ(counter.wait(waiter, 1, 5'000'000), WaitResult::kTimeout);  // and slept meanwhile: see the next line
  EXPECT_FALSE(any_ready(*home.page, std::atomic<uint32_t>(64)));
}

uint64_t voluntary_switches(const std::filesystem::path& task) {
  std::ifstream status(task / "status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("voluntary_ctxt_switches:")) return std::stoull(line.substr(24));
  }
  return 0;
}

uint64_t voluntary_switches() {
  uint64_t total = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) total += voluntary_switches(task.path());
  return total;
}

// An actor that is called `count` times, each `period_ns` after the other, and how often that wakes the reactor.
class CalledActor {
 public:
  CalledActor() {
    home_.reactor.post([this] { reactor_ = gettid(); });
    while (reactor_ == 0) sched_yield();
    thread_ = std::thread([this] {
      Waiter waiter;
      for (uint64_t value = 1; !over_; ++value) EXPECT_EQ(counter_.wait(waiter, value), WaitResult::kReady);
    });
  }
  ~CalledActor() {
    over_ = true;
    counter_.publish(value_ + 1'000'000);
    thread_.join();
  }
  uint64_t reactor_wakes(int count, int64_t period_ns) {
    const std::filesystem::path task = "/proc/self/task/" + std::to_string(reactor_);
    const uint64_t before = voluntary_switches(task);
    for (int i = 0; i < count; ++i) {
      counter_.publish(++value_);
      for (const int64_t next = monotonic_ns() + period_ns; monotonic_ns() < next;) sched_yield();
    }
    return voluntary_switches(task) - before;
  }

 private:
  Home home_;
  Counter counter_{home_};
  std::atomic<pid_t> reactor_{0};
  std::atomic<bool> over_{false};
  uint64_t value_ = 0;
  std::thread thread_;
};

// Each tick that finds a thread waiting was needless; a process of an actor that is called all the time would have
// one every millisecond.
TEST(Driver, TicksGetRarerWhileAThreadSeesToTheRings) {
  CalledActor actor;
  actor.reactor_wakes(250, 400'000);
  EXPECT_LE(actor.reactor_wakes(250, 400'000), 60u);  // about 13; 100 if they do not get rarer
}

// Where it is called every few milliseconds, each call would have a tick of its own.
TEST(Driver, NoTickComesWhereAThreadThatSeesToTheRingsWaitsForLong) {
  CalledActor actor;
  actor.reactor_wakes(20, 10'000'000);
  EXPECT_LE(actor.reactor_wakes(30, 10'000'000), 10u);  // 0; 30 where each has its tick
}

TEST(Driver, AnIdleProcessDoesNotWakeUp) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer has a thread of its own that wakes up";
#endif
  Home home;
  Counter one(home), two(home);
  Waiter waiter;
  one.publish(1);
  ASSERT_EQ(one.wait(waiter, 1), WaitResult::kReady);
  std::thread parked([&] {  // one thread that waits, as an actor's does
    Waiter own;
    two.wait(own, 1, 60'000'000'000);
  });
  UniqueFd timer(eventfd(0, 0));
  auto second = [&] {  // the window that is measured: one wake-up of this thread, by the kernel's clock
    timespec time{1, 0};
    nanosleep(&time, nullptr);
  };
  second();
  const uint64_t before = voluntary_switches();
  second();
  const uint64_t after = voluntary_switches();
  EXPECT_LE(after - before, 3u);
  two.publish(1);
  parked.join();
}

}  // namespace
}  // namespace monarch
