#include "monarch/loop/spin.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

constexpr int64_t kUs = 1'000;

// Two threads that call each other, each with its own history. A side that has not got what it waits for when its spin
// ends sleeps, and costs the other one a wake-up.
struct PingPong {
  int64_t wake_up_ns, work_ns;
  WakeUpCost cost = {};
  // The wait of `side` while the other one works. Returns how long it takes.
  int64_t wait(int side) {
    const bool other_sleeps = asleep[1 - side];
    const int64_t comes_ns = work_ns + (other_sleeps ? wake_up_ns : 0);
    const bool sleeps = comes_ns > history[side].spin_ns();
    const int64_t waited_ns = comes_ns + (sleeps ? wake_up_ns : 0);
    if (sleeps) cost.note(wake_up_ns);
    history[side].note(waited_ns, sleeps);
    asleep[side] = sleeps;
    return waited_ns;
  }
  // One call: the caller waits for the callee's work, then the callee for the next call.
  int64_t call() { return wait(0) + wait(1); }

  WaitHistory history[2] = {WaitHistory(cost), WaitHistory(cost)};
  bool asleep[2] = {true, true};
};

TEST(Spin, TwoThreadsThatCallEachOtherStopWakingEachOtherHoweverDearAWakeUpIs) {
  for (int64_t wake_up_ns : {5 * kUs, 20 * kUs, 45 * kUs, 55 * kUs}) {
    for (int64_t work_ns : {1 * kUs, 15 * kUs, 30 * kUs}) {
      PingPong pair{wake_up_ns, work_ns};
      for (int i = 0; i < 100; ++i) pair.call();
      EXPECT_EQ(pair.call(), 2 * work_ns) << wake_up_ns << " " << work_ns;
    }
  }
}

TEST(Spin, LongWaitsAreNotSpunFor) {
  WakeUpCost cost;
  for (int64_t wake_up_ns : {20 * kUs, 50 * kUs}) {
    for (int i = 0; i < 100; ++i) cost.note(wake_up_ns);
    WaitHistory history(cost);
    EXPECT_EQ(history.spin_ns(), 0);  // nor before anything is known
    for (int i = 0; i < 100; ++i) history.note(250 * kUs, true);
    EXPECT_EQ(history.spin_ns(), 0);
  }
}

TEST(Spin, IsBoundedWhateverTheMachineDoes) {
  WakeUpCost cost;
  WaitHistory history(cost);
  for (int i = 0; i < 100; ++i) history.note(10 * kUs, false);
  EXPECT_EQ(history.spin_ns(), WaitHistory::kSpinMinNs);
  for (int i = 0; i < 100; ++i) cost.note(INT64_MAX);
  EXPECT_EQ(history.spin_ns(), WaitHistory::kSpinMaxNs);
  for (int i = 0; i < 100; ++i) cost.note(-1);
  EXPECT_EQ(history.spin_ns(), WaitHistory::kSpinMinNs);
  history.note(INT64_MAX, true);
  for (int i = 0; i < 100; ++i) history.note(10 * kUs, false);
  EXPECT_EQ(history.spin_ns(), WaitHistory::kSpinMinNs);  // one that was very long is forgotten soon
}

// A thread that has learnt to spin, and a spin of it.
struct Spinning {
  WakeUpCost cost = {};
  WaitHistory history{cost};
  Spin spin{history};
  static constexpr int64_t kStart = 1'000'000;
  Spinning() {
    for (int i = 0; i < 100; ++i) history.note(10 * kUs, false);
    spin.begin(kStart);
  }
};

TEST(Spin, YieldsAtEachLookWhileOthersWantTheCore) {
  Spinning s;
  EXPECT_FALSE(s.spin.yields(1));
  EXPECT_TRUE(s.spin.yields(64));
  s.spin.yielded(s.kStart, s.kStart + 10 * kUs);
  EXPECT_TRUE(s.spin.yields(65));
  EXPECT_TRUE(s.spin.wants_clock(65));
  Spin next(s.history);  // the thread's next wait knows it
  EXPECT_TRUE(next.yields(1));
  next.begin(s.kStart);
  next.yielded(s.kStart, s.kStart + Spin::kYieldAloneNs);
  EXPECT_FALSE(next.yields(1));
}

TEST(Spin, WhatOthersTakeOfTheTimeIsNeitherSpunNorWaitedFor) {
  Spinning s;
  const int64_t lent = 100 * kUs;
  for (int i = 0; i < 10; ++i) s.spin.yielded(s.kStart + i * lent, s.kStart + (i + 1) * lent);
  const int64_t end = s.kStart + 10 * lent;
  EXPECT_FALSE(s.spin.is_over(end + WaitHistory::kSpinMinNs - 1));
  EXPECT_TRUE(s.spin.is_over(end + WaitHistory::kSpinMinNs));
  EXPECT_EQ(s.spin.end(end, /*slept=*/false), 10 * lent);
  EXPECT_FALSE(s.spin.begun());
  EXPECT_EQ(s.history.spin_ns(), WaitHistory::kSpinMinNs);  // it goes on spinning, although it waited for a millisecond
}

TEST(Spin, EndsWhereSomebodyComputes) {
  Spinning s;
  s.spin.yielded(s.kStart, s.kStart + Spin::kLentLongNs + 1);
  EXPECT_TRUE(s.spin.is_over(s.kStart + Spin::kLentLongNs + 1));
}

}  // namespace
}  // namespace monarch
