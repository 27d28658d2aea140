#include "monarch/host/membership/partings.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

constexpr int64_t kLease = 5'000'000'000;

struct PartingsTest : ::testing::Test {
  void SetUp() override {
    for (const NodeId gateway : {1, 2, 3}) {
      hosts[gateway].label = "rank " + std::to_string(gateway);
      hosts[gateway].host = "here";
    }
    partings.set_lease(kLease);
  }
  std::optional<Failure> who_is(NodeId gateway) const {
    const auto found = hosts.find(gateway);
    return found == hosts.end() ? std::nullopt : std::optional(found->second);
  }
  void run_to(int64_t at_ns) {
    bool reached = false;
    sim.after(at_ns - sim.now_ns(), [&] { reached = true; });
    while (!reached) ASSERT_TRUE(sim.step());
  }

  SimWorld sim{1};
  std::map<NodeId, Failure> hosts;
  std::vector<std::string> lines;
  Partings partings{sim, [this](NodeId gateway) { return who_is(gateway); },
                    [this](const std::string& line) { lines.push_back(line); }};
};

TEST_F(PartingsTest, APairIsToldOnceWhenItIsKnownThatBothLive) {
  partings.told(1, 2, "broken");
  partings.told(2, 1, "broken");
  partings.told(3, 2, "silent");
  run_to(kLease - 1);
  EXPECT_TRUE(lines.empty());
  ASSERT_TRUE(sim.run());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].rfind("rank 1 (here) and rank 2 (here) do not reach each other, though this script", 0), 0u);
  EXPECT_NE(lines[1].find(": silent"), std::string::npos);
}

TEST_F(PartingsTest, OfAHostThatHasDiedMeanwhileNothingIsTold) {
  partings.told(1, 2, "broken");
  hosts.erase(2);
  ASSERT_TRUE(sim.run());
  partings.told(1, 2, "broken");
  partings.told(7, 1, "from a stranger");
  ASSERT_TRUE(sim.run());
  EXPECT_TRUE(lines.empty());
}

TEST_F(PartingsTest, IsToldAgainAfterAWhile) {
  partings.told(1, 2, "broken");
  run_to(Partings::kAgainNs - 1);
  partings.told(1, 2, "still");
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(lines.size(), 1u);
  run_to(Partings::kAgainNs);
  partings.told(2, 1, "again");
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(lines.size(), 2u);
}

}  // namespace
}  // namespace monarch::testing
