#include "monarch/host/halts.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "monarch/base/system.h"

namespace monarch {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr NodeId kNode = 7;

TEST(Halts, WhoIsStoppedIsSoAtOnceAndGoesOnAtOnce) {
  Halts halts;
  EXPECT_FALSE(halts.look(1 * kSecond, kNode, {'R', false, false}));
  auto change = halts.look(2 * kSecond, kNode, {'T', false, false});
  ASSERT_TRUE(change);
  EXPECT_EQ(change->now, Halt::kStopped);
  EXPECT_FALSE(halts.look(3 * kSecond, kNode, {'T', false, true}));
  EXPECT_EQ(halts.halted().at(kNode).since_ns, 2 * kSecond);
  change = halts.look(5 * kSecond, kNode, {'S', false, true});
  ASSERT_TRUE(change);
  EXPECT_EQ(change->before, Halt::kStopped);
  EXPECT_EQ(change->now, Halt::kNone);
  EXPECT_EQ(change->since_ns, 2 * kSecond);
  EXPECT_TRUE(halts.halted().empty());
}

TEST(Halts, WhoComputesSleepsOrReadsAFileIsNot) {
  Halts halts;
  for (const char state : {'R', 'S', 'D', 'I'}) {
    EXPECT_FALSE(halts.look(kSecond, kNode, {state, false, false})) << state;
    EXPECT_FALSE(halts.look(kSecond, kNode, {state, true, false})) << state;  // that is old: it answers
  }
  // A machine with too much to do: nobody answers, and they run, or sleep.
  for (const char state : {'R', 'S'}) EXPECT_FALSE(halts.look(kSecond, kNode, {state, false, true})) << state;
  EXPECT_TRUE(halts.halted().empty());
}

TEST(Halts, WhoIsFrozenOrHeldInTheKernelAnswersNobody) {
  Halts halts;
  EXPECT_FALSE(halts.look(0, kNode, {'D', false, false})) << "it may be reading a file";
  for (int looks = 1; looks < Halts::kDoubtfulLooks; ++looks) {
    EXPECT_FALSE(halts.look(0, kNode, {'D', false, true})) << "or a large one";
  }
  EXPECT_EQ(halts.look(kSecond, kNode, {'D', false, true})->now, Halt::kHeld);
  EXPECT_EQ(halts.look(kSecond, kNode, {'S', true, true})->now, Halt::kFrozen);
  EXPECT_EQ(halts.look(kSecond, kNode, {'t', false, false})->now, Halt::kTraced);
  EXPECT_EQ(halts.look(kSecond, kNode, {'S', false, false})->now, Halt::kNone);
}

TEST(Halts, WhoComesForwardBetweenWaitsInTheKernelIsNot) {
  Halts halts;
  for (uint64_t faults = 1; faults <= 10; ++faults) {
    EXPECT_FALSE(halts.look(kSecond, kNode, {'D', false, true, true, faults})) << "it is being read in, page by page";
  }
  for (int looks = 2; looks < Halts::kDoubtfulLooks; ++looks) {
    EXPECT_FALSE(halts.look(kSecond, kNode, {'D', false, true, true, 10}));
  }
  EXPECT_EQ(halts.look(kSecond, kNode, {'D', false, true, true, 10})->now, Halt::kHeld);
  EXPECT_EQ(halts.look(kSecond, kNode, {'D', false, true, true, 11})->now, Halt::kNone);
}

TEST(Halts, WhoAnswersWithOneThreadHeldInTheKernelIsNot) {
  Halts halts;
  for (int looks = 0; looks < 3 * Halts::kDoubtfulLooks; ++looks) {
    EXPECT_FALSE(halts.look(kSecond, kNode, {'D', false, false, true, 10}));
    EXPECT_FALSE(halts.look(kSecond, kNode, {'D', false, true, true, 10})) << "it is late once";
  }
}

TEST(Halts, WhatAProcessDoesCounts) {
  const uint64_t before = look_at_process(getpid(), false, false).work;
  std::vector<char> touched(size_t{64} << 20, 'x');  // 16,384 faults, or some dozens of large ones
  EXPECT_GT(look_at_process(getpid(), false, false).work, before + touched.size() / (4 << 20));
}

TEST(Halts, WhoCannotBeLookedAtIsAsBefore) {
  Halts halts;
  for (const char state : {'?', 'Z', 'X'}) {
    EXPECT_FALSE(halts.look(1 * kSecond, kNode, {state, false, true}));
    ASSERT_TRUE(halts.look(2 * kSecond, kNode, {'T', false, false, true}));
    EXPECT_FALSE(halts.look(3 * kSecond, kNode, {state, false, true, true})) << "it does not go on";
    EXPECT_EQ(halts.halted().at(kNode).since_ns, 2 * kSecond);
    EXPECT_EQ(halts.halted().at(kNode).waited_ns, 1 * kSecond);
    ASSERT_TRUE(halts.look(4 * kSecond, kNode, {'S', false, false}));
  }
}

TEST(Halts, TimeCountsWhileCallsWait) {
  Halts halts;
  const auto waited_ns = [&](int64_t at, bool waited) {
    halts.look(at * kSecond, kNode, {'T', false, true, waited});
    return halts.halted().at(kNode).waited_ns / kSecond;
  };
  EXPECT_EQ(waited_ns(1, true), 0);
  EXPECT_EQ(waited_ns(2, true), 1);
  EXPECT_EQ(waited_ns(3, false), 1) << "the call has ended at some time since";
  EXPECT_EQ(waited_ns(30, false), 1);
  EXPECT_EQ(waited_ns(40, true), 1) << "another one, since then";
  EXPECT_EQ(waited_ns(42, true), 3);
  halts.look(43 * kSecond, kNode, {'R', false, false, true});
  EXPECT_EQ(waited_ns(44, true), 0) << "from the next halt on";
}

TEST(Halts, AShortageOfDescriptorsShowsNothing) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  sys::fail_nth(0);
  EXPECT_NE(look_at_process(child, true, true).state, '?');
  const uint64_t opened = sys::calls_seen();
  for (uint64_t nth = 1; nth <= opened; ++nth) {
    sys::fail_nth(nth);
    EXPECT_EQ(look_at_process(child, true, true).state, '?') << "without the file " << nth;
  }
  sys::fail_nth(0);
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

TEST(Halts, TheKernelSaysSoOfAProcess) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  kill(child, SIGSTOP);
  int status;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_EQ(state_of_process(child), 'T');
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(state_of_process(child), '?');
  EXPECT_EQ(look_at_process(child, true, false).state, '?');
  EXPECT_FALSE(look_at_process(getpid(), true, false).frozen);
}

}  // namespace
}  // namespace monarch
