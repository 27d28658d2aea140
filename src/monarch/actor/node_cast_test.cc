#include <gtest/gtest.h>

#include "monarch/actor/calls.h"
#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/testing/sim_world.h"
#include "monarch/wire/cast.h"

namespace monarch::testing {
namespace {

constexpr NodeId on_host(NodeId number) { return NodeId{7} << kHostShift | number; }
constexpr NodeId kScript = 1, kGateway = on_host(3), kFirst = on_host(5), kSecond = on_host(9), kNobody = on_host(11);

struct Sink final : LinkSink {
  void on_frame(Link&, MessagePtr message) override { frames.push_back(std::move(message)); }
  void on_control(Link&, MessagePtr) override {}
  void on_closed(Link&, const Error&) override {}
  std::vector<MessagePtr> frames;
};

struct CastToAHost : ::testing::Test {
  std::unique_ptr<Node> make(NodeId id) {
    Node::Hooks hooks;
    hooks.dial = [](NodeId) { return std::shared_ptr<Link>(); };
    hooks.gateway_of = [id](NodeId node) {
      return host_number(node) == host_number(id) || node == kGateway ? NodeId{0} : kGateway;
    };
    hooks.gateway_there = [](NodeId) { return kGateway; };
    hooks.on_link_lost = [](NodeId, const Error&) { return true; };  // somebody will say why
    hooks.on_undeliverable = [this](const ActorId&, const Failure& why) { bounced.push_back(why.text()); };
    return std::make_unique<Node>(id, sim.driver(), sim, std::move(hooks));
  }
  std::shared_ptr<PendingCall> call() {
    auto members = std::make_shared<Members>(Members{{{kFirst, 100}, {kSecond, 100}, {kFirst, 101}, {kNobody, 100}}});
    auto made = std::make_shared<PendingCall>(members);
    Outgoing request{FrameHeader{}, as_byte_span("body", 4), {}};
    request.header.kind = FrameKind::kRequest;
    request.header.method = 17;
    script->cast(*members, request, made);
    sim.run();
    return made;
  }
  SimWorld sim{1};
  std::vector<std::string> bounced;
  std::unique_ptr<Node> script = make(kScript), gateway = make(kGateway);
};

TEST_F(CastToAHost, IsSentOnce) {
  Sink wire;
  script->add_link(sim.connect(kScript, *script, kGateway, wire).first);
  const auto made = call();
  ASSERT_EQ(wire.frames.size(), 1u);
  EXPECT_EQ(wire.frames[0]->header.kind, FrameKind::kCast);
  auto cast = decode_cast(wire.frames[0]->body);
  ASSERT_TRUE(cast.ok());
  ASSERT_EQ(cast->targets.size(), 4u);
  for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(cast->targets[rank].rank, rank);
}

TEST_F(CastToAHost, IsSpreadByItsGatewayWhichSaysWhoIsNotThere) {
  Sink first, second;
  auto [there, here] = sim.connect(kScript, *script, kGateway, *gateway);
  script->add_link(there);
  gateway->add_link(here);
  gateway->add_link(sim.connect(kGateway, *gateway, kFirst, first).first);
  gateway->add_link(sim.connect(kGateway, *gateway, kSecond, second).first);
  const auto made = call();
  ASSERT_EQ(first.frames.size(), 2u);
  ASSERT_EQ(second.frames.size(), 1u);
  for (const auto& [message, dest, rank] : {std::tuple(first.frames[0].get(), 100u, 0u),
                                            std::tuple(first.frames[1].get(), 101u, 2u),
                                            std::tuple(second.frames[0].get(), 100u, 1u)}) {
    EXPECT_EQ(message->header.kind, FrameKind::kRequest);
    EXPECT_EQ(message->header.dest, dest);
    EXPECT_EQ(message->header.rank, rank);
    EXPECT_EQ(message->header.method, 17u);
    EXPECT_EQ(message->route().origin, kScript);
    EXPECT_EQ(message->body.size(), 4u);
  }
  EXPECT_EQ(made->received(), 1u) << "the fourth is nowhere";
  EXPECT_EQ(made->reply(3)->header.kind, FrameKind::kReplyFailed);
}

// For whom it was nobody knows any more; its sender is told once.
// The link of a process is over before it is known how that has ended.
TEST_F(CastToAHost, ThatFindsADyingProcessIsToldWhatThatHasDiedOf) {
  Sink first;
  auto [there, here] = sim.connect(kScript, *script, kGateway, *gateway);
  script->add_link(there);
  gateway->add_link(here);
  auto [to_first, its] = sim.connect(kGateway, *gateway, kFirst, first);
  gateway->add_link(to_first);
  its->close();
  sim.run();
  const auto made = call();
  EXPECT_EQ(made->reply(0), nullptr);
  EXPECT_NE(made->reply(3), nullptr) << "which nobody knows";
  gateway->node_down(kFirst, std::make_shared<Failure>("it was killed"));
  sim.run();
  for (const uint32_t rank : {0u, 2u}) {
    ASSERT_NE(made->reply(rank), nullptr);
    EXPECT_EQ(failure_of(*made->reply(rank)).text(), "it was killed");
  }
}

TEST_F(CastToAHost, OfWhichThereIsNoMemoryComesBack) {
  auto [there, here] = sim.connect(kScript, *script, kGateway, *gateway);
  script->add_link(there);
  gateway->add_link(here);
  for (const uint32_t flags : {uint32_t{0}, uint32_t{kFlagQuiet}}) {
    FrameHeader header;
    header.kind = FrameKind::kCast;
    header.flags = flags;
    header.sender = 100;
    MessagePtr lost = Message::make(header, "");
    lost->from = kScript;
    lost->lost_bytes = 1000;
    gateway->on_frame(*here, std::move(lost));
  }
  sim.run();
  ASSERT_EQ(bounced.size(), 1u);
  EXPECT_NE(bounced[0].find("no room for a message of 1000 bytes"), std::string::npos) << bounced[0];
}

}  // namespace
}  // namespace monarch::testing
