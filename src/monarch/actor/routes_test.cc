#include "monarch/actor/routes.h"

#include <gtest/gtest.h>

#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

struct NoSink final : LinkSink {
  void on_frame(Link&, MessagePtr) override {}
  void on_control(Link&, MessagePtr) override {}
  void on_closed(Link&, const Error&) override {}
};

struct RoutesTest : ::testing::Test {
  std::shared_ptr<Link> dial(NodeId node) {
    ++dialled;
    return sim.connect(1, sink, node, sink).first;
  }
  SimWorld sim{1};
  NoSink sink;
  int dialled = 0;
  Routes routes{[this](NodeId node) { return dial(node); }, {}, 3};  // remembers three of the dead
};

TEST_F(RoutesTest, DialsOnceAndNeverTheDead) {
  const auto link = routes.find(7);
  EXPECT_EQ(routes.find(7), link);
  EXPECT_EQ(dialled, 1);
  EXPECT_TRUE(routes.mark_down(7, std::make_shared<Failure>("killed")));
  EXPECT_FALSE(routes.mark_down(7, std::make_shared<Failure>("again")));
  EXPECT_EQ(routes.find(7), nullptr);
  std::string why;
  ASSERT_NE(routes.why_down(7), nullptr);
  why = routes.why_down(7)->text();
  EXPECT_EQ(why, "killed");
}

TEST_F(RoutesTest, RefusesALinkFromOneThatIsDeadHere) {
  EXPECT_TRUE(routes.add(dial(7)));
  routes.mark_down(7, std::make_shared<Failure>("killed"));
  EXPECT_FALSE(routes.add(dial(7)));
  EXPECT_EQ(routes.links().size(), 1u);
}

// The table of the dead is bounded. One that it has forgotten is not sent on to on a link that has ended, which would
// tell nobody: it is dialled again, and refused.
TEST_F(RoutesTest, ADeadNodeThatIsForgottenIsDialledAgain) {
  const auto link = routes.find(7);
  link->close();
  for (NodeId node = 7; node < 7 + 4; ++node) routes.mark_down(node, std::make_shared<Failure>("killed"));
  EXPECT_EQ(routes.why_down(7), nullptr);
  EXPECT_NE(routes.why_down(8), nullptr);
  const auto again = routes.find(7);
  EXPECT_NE(again, link);
  EXPECT_EQ(dialled, 2);
}

TEST_F(RoutesTest, FindsADeadCreatorByAnIndexOfItsActors) {
  std::string why;
  EXPECT_FALSE(routes.creator_is_down(actor_index(1000, 20), &why));
  routes.mark_down(1000, std::make_shared<Failure>("killed"));
  routes.mark_down(kNumberMax * 3, std::make_shared<Failure>("another"));
  EXPECT_TRUE(routes.creator_is_down(actor_index(1000, 20), &why));
  EXPECT_EQ(why, "killed");
  EXPECT_FALSE(routes.creator_is_down(999, &why));
  EXPECT_FALSE(routes.creator_is_down(kNumberMax * 2, &why));
  EXPECT_TRUE(routes.creator_is_down(kNumberMax * 3 + kFirstNumber, &why));
  routes.mark_down(kIdMask, std::make_shared<Failure>("the last"));
  EXPECT_TRUE(routes.creator_is_down(actor_index(kIdMask, kFirstNumber), &why));
  EXPECT_EQ(why, "the last");
  routes.mark_down(kNumberMax * 5, std::make_shared<Failure>("one more"));
  routes.mark_down(kNumberMax * 7, std::make_shared<Failure>("and another"));
  EXPECT_FALSE(routes.creator_is_down(kNumberMax * 3 + kFirstNumber, &why)) << "forgotten, and " << why;
}

// The gateway of a host is declared before those behind it: who is sent to in between ends of the same.
TEST_F(RoutesTest, WhoIsBehindADeadGatewayIsUnreachableForItsReason) {
  routes.set_gateway(8, 7);
  EXPECT_EQ(routes.why_unreachable(8), nullptr);
  routes.mark_down(7, std::make_shared<Failure>(Failure::Kind::kLost, "nothing came for 5 s"));
  EXPECT_EQ(routes.find(8), nullptr);
  EXPECT_EQ(routes.why_down(8), nullptr) << "that is for whoever decides of deaths";
  const FailurePtr why = routes.why_unreachable(8);
  ASSERT_NE(why, nullptr);
  EXPECT_TRUE(why->of_host);
  EXPECT_EQ(why->node, 8u);
  EXPECT_NE(why->text().find("was lost: nothing came for 5 s"), std::string::npos) << why->text();
  Failure unsent;
  EXPECT_FALSE(routes.keep_unsent({1, {8, 0}}, &unsent));
  EXPECT_EQ(unsent.text(), why->text());
  routes.mark_down(8, std::make_shared<Failure>("declared"));
  EXPECT_EQ(routes.why_unreachable(8)->text(), "declared");
}

TEST_F(RoutesTest, WhatCouldNotBeSentWaitsForTheReasonAndIsBounded) {
  routes.find(7)->close();
  Failure why;
  EXPECT_FALSE(routes.keep_unsent({1, {8, 20}}, &why)) << "there is no route";
  for (size_t i = 0; i < Routes::kUnsentMax; ++i) ASSERT_TRUE(routes.keep_unsent({1, {7, 20}}, &why));
  EXPECT_FALSE(routes.keep_unsent({1, {7, 20}}, &why));
  EXPECT_EQ(routes.mark_down(7, std::make_shared<Failure>("killed"))->size(), Routes::kUnsentMax);
  EXPECT_FALSE(routes.keep_unsent({1, {7, 20}}, &why));
  EXPECT_EQ(why.text(), "killed");
}

TEST_F(RoutesTest, WhoeverCeasesToBeReachedIsAChange) {
  const auto link = routes.find(7);
  routes.find(8);
  const uint64_t before = routes.changes();
  EXPECT_EQ(routes.find(7), link);
  EXPECT_EQ(routes.find_known({7, 9}), (std::vector<std::shared_ptr<Link>>{link, nullptr}));
  EXPECT_EQ(routes.changes(), before);
  routes.let_go(7);
  const uint64_t let_go = routes.changes();
  EXPECT_NE(let_go, before);
  routes.mark_down(8, std::make_shared<Failure>("killed"));
  EXPECT_NE(routes.changes(), let_go);
  EXPECT_EQ(routes.find_known({8}).front(), nullptr) << "though its link is still there";
  Routes other([](NodeId) { return nullptr; });
  EXPECT_NE(other.changes(), routes.changes());
}

TEST_F(RoutesTest, WhoIsLetGoIsNotDeadAndIsDialledAgain) {
  const auto link = routes.find(7);
  EXPECT_TRUE(routes.add(dial(7)));
  link->close();
  Failure why;
  EXPECT_TRUE(routes.keep_unsent({1, {7, 20}}, &why));
  EXPECT_EQ(routes.let_go(7).size(), 2u) << "in both directions";
  EXPECT_EQ(routes.take_unsent(7).size(), 1u);
  EXPECT_EQ(routes.why_down(7), nullptr);
  EXPECT_EQ(routes.find_direct(7), nullptr) << "and is not dialled for a word that only neighbours are told";
  EXPECT_FALSE(routes.keep_unsent({1, {7, 20}}, &why)) << "nobody will say what became of it";
  const auto again = routes.find(7);
  ASSERT_NE(again, nullptr);
  EXPECT_NE(again, link);
  EXPECT_EQ(routes.find_direct(7), again);
  EXPECT_FALSE(routes.keep_unsent({1, {7, 20}}, &why)) << "that was sent on the link before";
}

}  // namespace
}  // namespace monarch::testing
