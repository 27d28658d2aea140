#include "monarch/loop/reactor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "monarch/base/clock.h"
#include "monarch/base/forked.h"
#include "monarch/base/system.h"

namespace monarch {
namespace {

TEST(Reactor, RunsPostedTasksInOrderOnItsOwnThread) {
  Reactor reactor;
  reactor.start();
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    reactor.post([&, i] {
      EXPECT_TRUE(reactor.on_reactor_thread());
      order.push_back(i);
    });
  }
  reactor.post_and_wait([] {});
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(Reactor, RunsWhatWasPostedBeforeItStops) {
  Reactor reactor;
  bool ran = false;
  reactor.start();
  reactor.post([&] { ran = true; });
  reactor.stop();
  EXPECT_TRUE(ran);
  reactor.stop();  // twice is fine
}

TEST(Reactor, RunsTimersByDueTimeAndNotTheCancelled) {
  Reactor reactor;
  reactor.start();
  std::string order;
  std::atomic<bool> done{false};
  const int64_t start = monotonic_ns();
  // Each is due from when it is asked for: far enough apart for a machine that stands still in between.
  reactor.after(100'000'000, [&] { order += "b"; });
  const auto cancelled = reactor.after(90'000'000, [&] { order += "x"; });
  reactor.after(2'000'000, [&] { order += "a"; });
  reactor.after(110'000'000, [&] { done = true; });
  reactor.cancel(cancelled);
  while (!done) sched_yield();
  EXPECT_GE(monotonic_ns() - start, 110'000'000);
  reactor.stop();
  EXPECT_EQ(order, "ab");
}

TEST(Reactor, ADescriptorMayRemoveItselfInItsCallback) {
  Reactor reactor;
  reactor.start();
  UniqueFd fd(eventfd(1, EFD_NONBLOCK));
  std::atomic<int> calls{0};
  reactor.add(fd.get(), EPOLLIN, [&](uint32_t) {
    ++calls;
    reactor.remove(fd.get());
  });
  while (calls == 0) sched_yield();
  for (int i = 0; i < 10; ++i) reactor.post_and_wait([] {});
  EXPECT_EQ(calls, 1);
}

// Both are ready in one batch; the first removes the second and opens another descriptor under its number.
TEST(Reactor, AnEventOfAClosedDescriptorNeverReachesItsSuccessor) {
  for (int round = 0; round < 50; ++round) {
    Reactor reactor;
    int fds[2] = {eventfd(1, EFD_NONBLOCK), eventfd(1, EFD_NONBLOCK)};
    bool replaced = false, wrong = false;
    for (int i = 0; i < 2; ++i) {
      reactor.add(fds[i], EPOLLIN, [&, i](uint32_t) {
        if (std::exchange(replaced, true)) return;
        const int other = fds[1 - i];
        reactor.remove(fds[i]);
        reactor.remove(other);
        ::close(other);
        fds[1 - i] = eventfd(0, EFD_NONBLOCK);  // the same number, and not readable
        ASSERT_EQ(fds[1 - i], other);
        reactor.add(other, EPOLLIN, [&](uint32_t) { wrong = true; });
      });
    }
    reactor.start();
    reactor.post_and_wait([] {});
    reactor.post_and_wait([] {});
    reactor.stop();
    EXPECT_TRUE(replaced);
    EXPECT_FALSE(wrong);
    for (int fd : fds) ::close(fd);
  }
}

TEST(Reactor, ModifyChangesWhatIsWatched) {
  Reactor reactor;
  reactor.start();
  UniqueFd fd(eventfd(0, EFD_NONBLOCK));
  std::atomic<int> writable{0};
  reactor.add(fd.get(), EPOLLIN, [&](uint32_t events) {
    if (events & EPOLLOUT) {
      ++writable;
      reactor.modify(fd.get(), EPOLLIN);
    }
  });
  reactor.post_and_wait([] {});
  EXPECT_EQ(writable, 0);
  reactor.modify(fd.get(), EPOLLIN | EPOLLOUT);
  while (writable == 0) sched_yield();
  reactor.post_and_wait([&] { reactor.remove(fd.get()); });
}

TEST(Reactor, AShortageWhileItIsMadeIsAnError) {
  for (uint64_t nth = 1;; ++nth) {
    sys::fail_nth(nth);
    const auto made = Reactor::make();
    const bool failed = sys::calls_seen() >= nth;
    sys::fail_nth(0);
    EXPECT_EQ(made.ok(), !failed);
    if (!failed) break;
    EXPECT_TRUE(made.error().message.starts_with("cannot start the reactor: ")) << made.error().message;
  }
}

TEST(Reactor, SaysWhenADescriptorCannotBeWatchedYetOrNoThreadBeHad) {
  Reactor reactor;
  UniqueFd fd(eventfd(1, EFD_NONBLOCK));
  sys::fail_nth(1);
  EXPECT_FALSE(reactor.add(fd.get(), EPOLLIN, [](uint32_t) { ADD_FAILURE(); }));
  sys::fail_nth(1);
  EXPECT_FALSE(reactor.start());
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_FALSE(reactor.running());
  sys::fail_nth(0);
  reactor.remove(fd.get());
  EXPECT_TRUE(reactor.start());
  reactor.post_and_wait([] {});
  std::atomic<int> calls{0};
  EXPECT_TRUE(reactor.add(fd.get(), EPOLLIN, [&](uint32_t) {
    reactor.remove(fd.get());  // before the count, whose reader closes it
    ++calls;
  }));
  while (calls == 0) sched_yield();
}

TEST(Reactor, WhatCannotBeWatchedNowIsWatchedLater) {
  Reactor reactor;
  reactor.start();
  UniqueFd fd(eventfd(1, EFD_NONBLOCK));
  std::atomic<int> readable{0};
  sys::fail_nth(1);
  EXPECT_FALSE(reactor.add(fd.get(), EPOLLIN | EPOLLOUT, [&](uint32_t events) {
    EXPECT_EQ(events, EPOLLIN);
    reactor.remove(fd.get());  // before the count, whose reader closes it
    ++readable;
  }));
  EXPECT_EQ(errno, ENOSPC);
  sys::fail_nth(0);
  reactor.modify(fd.get(), EPOLLIN);
  const int64_t deadline_ns = monotonic_ns() + 5'000'000'000;
  while (readable == 0 && monotonic_ns() < deadline_ns) sched_yield();
  EXPECT_EQ(readable, 1);
  reactor.stop();  // before the descriptor goes that its callback may be removing still
}

TEST(Reactor, ATimerThatArmsItselfAtOnceKeepsNobodyElseWaiting) {
  Reactor reactor;
  reactor.start();
  std::function<void()> again = [&] { reactor.after(0, again); };
  reactor.post_and_wait(again);
  for (int i = 0; i < 100; ++i) reactor.post_and_wait([] {});
}

TEST(Reactor, IsDeadInAChildOfForkAndTheParentsIsNot) {
  Reactor reactor;
  UniqueFd fd(eventfd(0, EFD_NONBLOCK));
  std::atomic<int> calls{0};
  reactor.add(fd.get(), EPOLLIN, [&](uint32_t) {
    reactor.remove(fd.get());
    ++calls;  // last: the test's end closes the descriptor
  });
  reactor.start();
  reactor.before_fork();
  const pid_t child = fork();
  if (child == 0) {
    alarm(10);
    note_forked_child();
    reactor.after_fork_in_child();
    reactor.remove(fd.get());  // the epoll is the parent's too
    reactor.post_and_wait([] { _exit(1); });
    reactor.stop();
    _exit(reactor.add(STDIN_FILENO, EPOLLIN, [](uint32_t) {}) ? 2 : 0);
  }
  reactor.after_fork_in_parent();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  eventfd_write(fd.get(), 1);
  const int64_t deadline_ns = monotonic_ns() + 5'000'000'000;
  while (calls == 0 && monotonic_ns() < deadline_ns) sched_yield();
  EXPECT_EQ(calls, 1);
}

// As a program does that makes itself a daemon. The loop may sleep where nobody can wake it.
TEST(Reactor, NobodyWaitsForOneThatHasLostItsDescriptors) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "TSan allows a child of a process with threads none of its own";
#endif
  for (const bool has_found_out : {false, true}) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10);
      auto* reactor = new Reactor;
      reactor->start();
      reactor->post_and_wait([] {});
      if (has_found_out) reactor->after(1'000'000, [] { closefrom(3); });
      if (!has_found_out) closefrom(3);
      while (reactor->has_its_descriptors()) sched_yield();
      reactor->post_and_wait([] { _exit(1); });
      reactor->post([] { _exit(2); });
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << has_found_out;
  }
}

TEST(Reactor, BlocksAllSignalsInItsThread) {
  Reactor reactor;
  reactor.start();
  reactor.post_and_wait([] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) EXPECT_TRUE(sigismember(&mask, signal));
  });
}

TEST(Reactor, WakesUpForATimerThatIsTheOnlyOne) {
  Reactor reactor;
  reactor.start();
  reactor.post_and_wait([] {});
  for (int i = 0; i < 20; ++i) {  // each time it sleeps without a limit when the timer comes
    std::promise<void> ran;
    reactor.after(1'000'000, [&ran] { ran.set_value(); });
    ASSERT_EQ(ran.get_future().wait_for(std::chrono::seconds(10)), std::future_status::ready) << i;
  }
}

}  // namespace
}  // namespace monarch
