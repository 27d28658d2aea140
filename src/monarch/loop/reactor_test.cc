#include "monarch/loop/reactor.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "monarch/base/clock.h"

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
  reactor.after(4'000'000, [&] { order += "b"; });
  const auto cancelled = reactor.after(3'000'000, [&] { order += "x"; });
  reactor.after(2'000'000, [&] { order += "a"; });
  reactor.after(6'000'000, [&] { done = true; });
  reactor.cancel(cancelled);
  while (!done) sched_yield();
  EXPECT_GE(monotonic_ns() - start, 6'000'000);
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

TEST(Reactor, BlocksAllSignalsInItsThread) {
  Reactor reactor;
  reactor.start();
  reactor.post_and_wait([] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD}) EXPECT_TRUE(sigismember(&mask, signal));
  });
}

}  // namespace
}  // namespace monarch
