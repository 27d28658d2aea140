#include "monarch/actor/unobserved_failures.h"

#include <gtest/gtest.h>

#include <vector>

#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

struct UnobservedFailuresTest : ::testing::Test {
  SimWorld sim{1};  // its clock begins at 0
  std::vector<std::string> said;
  UnobservedFailures failures{sim, [this](const std::string& line) { said.push_back(line); }};
};

TEST_F(UnobservedFailuresTest, SaysAFailureOnceWhenTheTimeIsUp) {
  failures.add(1, "one");
  EXPECT_TRUE(said.empty());
  ASSERT_TRUE(sim.step());
  EXPECT_EQ(sim.now_ns(), UnobservedFailures::kLimitNs);
  EXPECT_EQ(said, std::vector<std::string>({"one"}));
  failures.observed(1);
  failures.report_rest();
  EXPECT_EQ(said.size(), 1u);
}

TEST_F(UnobservedFailuresTest, DoesNotSayWhatSomebodyIsToldAndLeavesNoTimer) {
  failures.add(1, "one");
  failures.add(2, "two");
  failures.observed(1);
  failures.observed(3);  // of which nothing is known
  EXPECT_EQ(sim.waiting(), 1u);
  sim.run();
  EXPECT_EQ(said, std::vector<std::string>({"two"}));
}

TEST_F(UnobservedFailuresTest, SaysAtTheEndWhatIsLeft) {
  failures.add(1, "one");
  failures.report_rest();
  EXPECT_EQ(said, std::vector<std::string>({"one"}));
  EXPECT_EQ(sim.waiting(), 0u);
}

TEST_F(UnobservedFailuresTest, SaysAtOnceWhatItHasNoRoomFor) {
  for (ActorIndex actor = 1; actor <= UnobservedFailures::kKeptMax; ++actor) failures.add(actor, "kept");
  EXPECT_TRUE(said.empty());
  failures.add(UnobservedFailures::kKeptMax + 1, "one too many");
  EXPECT_EQ(said, std::vector<std::string>({"one too many"}));
}

TEST_F(UnobservedFailuresTest, LeavesNoTimerBehind) {
  {
    UnobservedFailures others{sim, [](const std::string&) {}};
    others.add(1, "one");
    EXPECT_EQ(sim.waiting(), 1u);
  }
  EXPECT_EQ(sim.waiting(), 0u);
}

}  // namespace
}  // namespace monarch::testing
