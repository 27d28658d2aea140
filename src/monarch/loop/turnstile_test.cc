#include "monarch/loop/turnstile.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace monarch {
namespace {

TEST(Turnstile, LetsAsManyInAsItMayAndNoMore) {
  constexpr int kAtOnce = 3, kThreads = 5;
  Turnstile turnstile(kAtOnce);
  std::atomic<int> inside{0};
  std::atomic<bool> let_go{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      turnstile.enter();
      inside.fetch_add(1);
      while (!let_go) std::this_thread::yield();
      turnstile.leave();
    });
  }
  while (inside < kAtOnce || turnstile.waiting() < kThreads - kAtOnce) std::this_thread::yield();
  EXPECT_EQ(inside, kAtOnce);
  let_go = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(inside, kThreads);
}

TEST(Turnstile, LetsAllInAndNeverMoreThanAFewAtOnce) {
  constexpr int kAtOnce = 3, kThreads = 40, kRounds = 500;
  Turnstile turnstile(kAtOnce);
  std::atomic<int> inside{0}, most{0}, passed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        turnstile.enter();
        const int now = inside.fetch_add(1) + 1;
        int seen = most.load();
        while (now > seen && !most.compare_exchange_weak(seen, now)) {
        }
        std::this_thread::yield();
        inside.fetch_sub(1);
        turnstile.leave();
        passed.fetch_add(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(passed, kThreads * kRounds);
  EXPECT_LE(most, kAtOnce);
}

TEST(Turnstile, KeepsTheOrderInWhichTheyCame) {
  constexpr int kThreads = 20;
  Turnstile turnstile(1);
  turnstile.enter();
  std::vector<int> order;  // of those inside
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      turnstile.enter();
      order.push_back(i);
      turnstile.leave();
    });
    while (turnstile.waiting() != i + 1) std::this_thread::yield();
  }
  turnstile.leave();
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kThreads; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace monarch
