#include "monarch/host/halts.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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
  for (const char state : {'R', 'S', 'D', 'I', 'Z', '?'}) {
    EXPECT_FALSE(halts.look(kSecond, kNode, {state, false, false})) << state;
    EXPECT_FALSE(halts.look(kSecond, kNode, {state, true, false})) << state;  // that is old: it answers
  }
  // A machine with too much to do: nobody answers, and they run, or sleep.
  for (const char state : {'R', 'S', '?'}) EXPECT_FALSE(halts.look(kSecond, kNode, {state, false, true})) << state;
  EXPECT_TRUE(halts.halted().empty());
}

TEST(Halts, WhoIsFrozenOrHeldInTheKernelAnswersNobody) {
  Halts halts;
  EXPECT_FALSE(halts.look(0, kNode, {'D', false, true})) << "it may be reading a file";
  EXPECT_EQ(halts.look(kSecond, kNode, {'D', false, true})->now, Halt::kHeld);
  EXPECT_EQ(halts.look(kSecond, kNode, {'S', true, true})->now, Halt::kFrozen);
  EXPECT_EQ(halts.look(kSecond, kNode, {'t', false, false})->now, Halt::kTraced);
  EXPECT_EQ(halts.look(kSecond, kNode, {'S', false, false})->now, Halt::kNone);
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
  EXPECT_FALSE(is_frozen(getpid()));
  EXPECT_FALSE(is_frozen(child));
}

}  // namespace
}  // namespace monarch
