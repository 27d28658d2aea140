#include "monarch/host/membership/jobs.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace monarch {
namespace {

Identity own() {
  Identity identity;
  identity.node = 1;
  identity.job.fill(std::byte{0x11});
  identity.token.fill(std::byte{0x12});
  return identity;
}

JobAddress other(NodeId script = 20, uint8_t job = 0x22) {
  JobAddress address;
  address.job.fill(std::byte{job});
  address.script = script;
  address.script_pid = 99;
  address.folder = "/folder";
  return address;
}

const JobToken kToken = [] {
  JobToken token;
  token.fill(std::byte{0x33});
  return token;
}();

TEST(Jobs, ANodeIsDialledAsAMemberOfItsJob) {
  Jobs jobs(own());
  EXPECT_FALSE(jobs.any_other());
  jobs.join(other(), kToken);
  EXPECT_EQ(jobs.add_nodes(other().job, {21, 22}), "");
  for (NodeId node : {20, 21, 22}) {
    const Identity identity = jobs.identity_for(node);
    EXPECT_EQ(identity.node, 1u);
    EXPECT_EQ(identity.job, other().job);
    EXPECT_EQ(identity.token, kToken);
    EXPECT_TRUE(identity.guest);
    EXPECT_TRUE(jobs.is_foreign(node));
  }
  EXPECT_EQ(jobs.identity_for(5).job, own().job);
  EXPECT_EQ(jobs.identity_for(5).token, own().token);
  EXPECT_FALSE(jobs.identity_for(5).guest);
  EXPECT_FALSE(jobs.is_foreign(5));
  EXPECT_TRUE(jobs.any_other());
}

TEST(Jobs, TheEndOfAScriptIsTheEndOfItsNodesAndOfNobodyElse) {
  Jobs jobs(own());
  jobs.join(other(), kToken);
  jobs.join(other(30, 0x44), kToken);
  jobs.add_nodes(other().job, {21});
  jobs.add_nodes(other(30, 0x44).job, {31});
  EXPECT_FALSE(jobs.on_link_lost(21, {ErrorCode::kClosed, "x"}));  // its script will say how
  EXPECT_FALSE(jobs.on_link_lost(5, {ErrorCode::kClosed, "x"}));
  auto loss = jobs.on_link_lost(20, {ErrorCode::kClosed, "x"});
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->why, "job 22222222 (its script has pid 99) has ended");
  std::sort(loss->nodes.begin(), loss->nodes.end());
  EXPECT_EQ(loss->nodes, (std::vector<NodeId>{20, 21}));
  EXPECT_EQ(jobs.add_nodes(other().job, {23}), loss->why);  // from now on, that is what its handles are told
  loss = jobs.on_link_lost(23, {ErrorCode::kClosed, "y"});
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->nodes, std::vector<NodeId>{23});
  EXPECT_EQ(jobs.add_nodes(other(30, 0x44).job, {32}), "");
}

TEST(Jobs, OnlyItsOwnScriptSpeaksForANode) {
  Jobs jobs(own());
  jobs.join(other(), kToken);
  jobs.join(other(30, 0x44), kToken);
  jobs.add_nodes(other().job, {21});
  EXPECT_TRUE(jobs.speaks_for(20, 21));
  EXPECT_FALSE(jobs.speaks_for(30, 21));
  EXPECT_FALSE(jobs.speaks_for(21, 21));
  EXPECT_FALSE(jobs.speaks_for(20, 5));
}

TEST(Jobs, AJobThatRefusesThisProcessIsNotSaidToHaveEnded) {
  Jobs jobs(own());
  jobs.join(other(), kToken);
  const auto loss = jobs.on_link_lost(20, {ErrorCode::kUnsupported, "no token"});
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->why, "job 22222222 (its script has pid 99) cannot be joined with the token in "
                       "/folder/22222222222222222222222222222222: no token");
}

TEST(Jobs, TheFirstReasonForAnEndStays) {
  Jobs jobs(own());
  jobs.end(other(), "never was");
  jobs.end(other(), "later");
  EXPECT_TRUE(jobs.knows(other().job));
  EXPECT_EQ(jobs.add_nodes(other().job, {21}), "never was");
}

TEST(Jobs, AGuestIsForeignUntilItIsGone) {
  Jobs jobs(own());
  jobs.add_guest(50);
  EXPECT_TRUE(jobs.any_other() && jobs.is_guest(50) && jobs.is_foreign(50));
  const auto loss = jobs.on_link_lost(50, {ErrorCode::kClosed, "x"});
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->nodes, std::vector<NodeId>{50});
  EXPECT_NE(loss->why.find("guest"), std::string::npos);
  EXPECT_FALSE(jobs.is_guest(50) || jobs.is_foreign(50));
}

TEST(Jobs, AGuestMayBeTheScriptOfAJobThatWeAreAGuestOf) {
  Jobs jobs(own());
  jobs.add_guest(20);
  jobs.join(other(), kToken);
  jobs.add_nodes(other().job, {21});
  const auto loss = jobs.on_link_lost(20, {ErrorCode::kClosed, "x"});
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->nodes.size(), 2u);
  EXPECT_NE(loss->why.find("has ended"), std::string::npos);
}

}  // namespace
}  // namespace monarch
