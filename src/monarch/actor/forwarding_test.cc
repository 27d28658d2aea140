#include "monarch/actor/forwarding.h"

#include <gtest/gtest.h>

#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

constexpr NodeId on_host(NodeId host, NodeId number) { return host << kHostShift | number; }
// A process of host 2 sends, over the gateways of both hosts, to two of host 3.
constexpr NodeId kOrigin = on_host(2, 5), kHere = on_host(2, 1), kThere = on_host(3, 1);
constexpr NodeId kFirst = on_host(3, 5), kSecond = on_host(3, 6), kElsewhere = on_host(2, 9);

// What waits is what the test says.
struct FullLink final : Link {
  using Link::Link;
  bool send(const Outgoing&) override { return ++sent, !closed(); }
  bool send_control(const Outgoing&) override { return !closed(); }
  void peer_died(const Error&) override {}
  void close() override { closed_.store(true); }
  uint64_t backlog() const override { return waiting; }
  std::string_view transport() const override { return "full"; }
  uint64_t waiting = 0;
  int sent = 0;
};

struct ForwardingTest : ::testing::Test {
  std::unique_ptr<Node> make(NodeId id) {
    Node::Hooks hooks;
    hooks.dial = [](NodeId) { return std::shared_ptr<Link>(); };
    hooks.gateway_of = [id](NodeId node) {
      if (host_number(node) == host_number(id)) return NodeId{0};
      return id == kHere ? (node == kThere ? NodeId{0} : kThere) : kHere;
    };
    hooks.gateway_there = [](NodeId) { return kThere; };
    hooks.memory_to_pass_on = [](uint64_t) { return std::shared_ptr<std::byte>(new std::byte); };
    return std::make_unique<Node>(id, sim.driver(), sim, std::move(hooks));
  }
  ForwardingTest() {
    auto [a, b] = sim.connect(kOrigin, *origin, kHere, *here);
    origin->add_link(a);
    here->add_link(b);
    here->add_link(onward);
  }
  void send(const Members& members) {
    Outgoing piece{FrameHeader{}, as_byte_span("body", 4), {}};
    piece.header.kind = FrameKind::kOneway;
    origin->cast(members, piece, nullptr);
    pass_time();
  }
  // Enough for a message over two links, a look, and what is told then.
  void pass_time() {
    bool over = false;
    sim.at(sim.now_ns() + Forwarding::kLookNs + 10'000'000, [&over] { over = true; });
    while (!over) sim.step();
  }
  bool has_room(const Members& members) { return origin->has_room(members, Node::kBacklogMax); }

  SimWorld sim{1};
  std::unique_ptr<Node> origin = make(kOrigin), here = make(kHere);
  std::shared_ptr<FullLink> onward = std::make_shared<FullLink>(kThere);
  const Members first{{{kFirst, 100}}}, second{{{kSecond, 100}}}, both{{{kFirst, 100}, {kSecond, 100}}};
};

TEST_F(ForwardingTest, WhoSendsThroughANodeWhereTooMuchWaitsIsHeldUntilHalfOfItHasGone) {
  send(first);
  EXPECT_TRUE(has_room(first));
  onward->waiting = Node::kBacklogMax + 1;
  send(first);
  EXPECT_FALSE(has_room(first));
  EXPECT_TRUE(has_room(second)) << "it has sent nothing there";
  onward->waiting = Node::kBacklogMax / 2 + 1;
  pass_time();
  EXPECT_FALSE(has_room(first));
  onward->waiting = Node::kBacklogMax / 2;
  pass_time();
  EXPECT_TRUE(has_room(first));
  EXPECT_EQ(onward->sent, 2);
}

TEST_F(ForwardingTest, OnlyWhatGoesOnToProcessesOfThisHostIsReadToMemoryForThat) {
  const auto is_asked_for = [&](FrameKind kind, NodeId destination) {
    FrameHeader header;
    header.kind = kind;
    return here->memory_for(*onward, header, {kFirst, destination, 1, 0}, 1 << 20) != nullptr;
  };
  EXPECT_TRUE(is_asked_for(FrameKind::kRequest, kElsewhere));
  EXPECT_TRUE(is_asked_for(FrameKind::kReply, kOrigin));
  EXPECT_FALSE(is_asked_for(FrameKind::kRequest, kHere));
  EXPECT_FALSE(is_asked_for(FrameKind::kRequest, kSecond));
  EXPECT_FALSE(is_asked_for(FrameKind::kRequest, 0)) << "it has no route, and is for this node";
  EXPECT_TRUE(is_asked_for(FrameKind::kCast, kHere));
  EXPECT_TRUE(is_asked_for(FrameKind::kTreeCast, 0));
}

TEST_F(ForwardingTest, WhatGoesToSeveralIsHeldToo) {
  onward->waiting = Node::kBacklogMax + 1;
  send(both);
  EXPECT_EQ(onward->sent, 1);
  EXPECT_FALSE(has_room(both));
  onward->waiting = 0;
  pass_time();
  EXPECT_TRUE(has_room(both));
}

TEST_F(ForwardingTest, NothingIsLostOfWhatIsSentAllTheSame) {
  onward->waiting = uint64_t{1} << 40;
  for (int i = 0; i < 100; ++i) send(first);
  EXPECT_EQ(onward->sent, 100);
}

TEST_F(ForwardingTest, ALinkThatIsOverHoldsNobody) {
  onward->waiting = Node::kBacklogMax + 1;
  send(first);
  EXPECT_FALSE(has_room(first));
  onward->close();
  pass_time();
  EXPECT_TRUE(has_room(first));
}

TEST_F(ForwardingTest, WithoutAnybodyHeldNobodyLooks) {
  onward->waiting = Node::kBacklogMax + 1;
  send(first);
  onward->waiting = 0;
  pass_time();
  EXPECT_EQ(sim.waiting(), 0u) << "a timer is left";
}

TEST(Forwarding, AnOriginThatCannotBeToldIsForgotten) {
  SimWorld sim{1};
  int told = 0;
  Forwarding forwarding(sim, [&told](const Forwarding::Pair&, FrameKind) { return ++told, false; },
                        [](const Link& link) { return link.backlog(); });
  auto onward = std::make_shared<FullLink>(kThere);
  onward->waiting = Node::kBacklogMax + 1;
  for (int i = 0; i < 2; ++i) forwarding.hold({kElsewhere, kFirst}, onward);
  EXPECT_EQ(told, 2);
  EXPECT_EQ(forwarding.held(), 0u);
}

}  // namespace
}  // namespace monarch::testing
