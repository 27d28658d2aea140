#include "monarch/host/membership/gateways.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

class GatewaysTest : public testing::Test {
 protected:
  NodeId node_on(HostNumber host) { return NodeKey::make(random_, host).id(); }
  NodeId seen_from(NodeId self, NodeId node) const { return Gateways(self, script_, token_).of(node); }

  SystemRandom random_;
  const JobToken token_{std::byte{1}};
  const NodeId script_ = NodeKey::make(random_).id();
  const NodeId one_ = Gateways::key_of(token_, 1).id(), two_ = Gateways::key_of(token_, 2).id();
};

TEST_F(GatewaysTest, AreKnownToAllWhoHaveTheToken) {
  EXPECT_EQ(Gateways(script_, script_, token_).gateway(1), one_);
  EXPECT_EQ(Gateways(two_, script_, token_).gateway(1), one_);
  EXPECT_NE(Gateways(two_, script_, JobToken{}).gateway(1), one_);
  EXPECT_EQ(host_number(one_), 1u);
  EXPECT_EQ(Gateways(two_, script_, token_).gateway(0), script_);
}

TEST_F(GatewaysTest, LeadFromAnyProcessToAnyOther) {
  const NodeId here = node_on(0), a = node_on(1), b = node_on(2);
  // On one host nobody is between them.
  EXPECT_EQ(seen_from(script_, here), 0u);
  EXPECT_EQ(seen_from(a, node_on(1)), 0u);
  EXPECT_EQ(seen_from(a, one_), 0u);
  EXPECT_EQ(seen_from(one_, a), 0u);
  // The script and the gateways reach each other, and through each other the rest.
  EXPECT_EQ(seen_from(script_, one_), 0u);
  EXPECT_EQ(seen_from(one_, script_), 0u);
  EXPECT_EQ(seen_from(one_, two_), 0u);
  EXPECT_EQ(seen_from(script_, a), one_);
  EXPECT_EQ(seen_from(one_, b), two_);
  EXPECT_EQ(seen_from(one_, here), script_);
  // Everybody else goes through the gateway of the own host.
  EXPECT_EQ(seen_from(a, b), one_);
  EXPECT_EQ(seen_from(a, two_), one_);
  EXPECT_EQ(seen_from(a, script_), one_);
  EXPECT_EQ(seen_from(here, a), script_);
}

}  // namespace
}  // namespace monarch
