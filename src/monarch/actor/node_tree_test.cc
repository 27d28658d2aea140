// Casts through a tree of hosts, over real nodes.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/trees.h"
#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

constexpr NodeId gateway(NodeId host) { return host << kHostShift | 1; }
constexpr NodeId kScript = 1, kWorker = gateway(1) + 1;  // of host 1
constexpr ActorIndex kActor = 100;
constexpr NodeId kHosts = 20;

struct Recorder final : Cell {
  void deliver(MessagePtr message) override { got.push_back(message->header.method); }
  std::vector<uint32_t> got;
};

struct CastTreeOfHosts : ::testing::Test {
  CastTreeOfHosts() {
    make(kScript);
    for (NodeId host = 1; host <= kHosts; ++host) {
      make(gateway(host)).add_cell(kActor, recorders[host] = std::make_shared<Recorder>());
      all.ids.push_back({gateway(host), kActor});
    }
    make(kWorker);
  }
  ~CastTreeOfHosts() override { sim.end(); }
  Node& make(NodeId id) {
    Node::Hooks hooks;
    hooks.dial = [this, id](NodeId to) { return connect(id, to); };
    hooks.gateway_there = [](NodeId node) { return host_number(node) == 0 ? kScript : gateway(host_number(node)); };
    hooks.gateway_of = [id](NodeId node) -> NodeId {
      if (host_number(node) == host_number(id)) return 0;
      if (id == kWorker) return gateway(1);
      const NodeId there = host_number(node) == 0 ? kScript : gateway(host_number(node));
      return there == node ? 0 : there;
    };
    auto& node = nodes[id] = std::make_unique<Node>(id, sim.driver(), sim, std::move(hooks));
    node->set_cast_trees({.large_hosts = 2, .large_fan_out = 3, .small_hosts = 2, .small_fan_out = 3});
    return *node;
  }
  std::shared_ptr<Link> connect(NodeId from, NodeId to) {
    if (dead.contains(to)) return nullptr;
    auto [there, here] = sim.connect(from, *nodes.at(from), to, *nodes.at(to));
    nodes.at(to)->add_link(here);
    return there;
  }
  void send(NodeId from, const Members& members, uint32_t method) {
    Outgoing message{FrameHeader{}, as_byte_span("body", 4), {}};
    message.header.kind = FrameKind::kOneway;
    message.header.method = method;
    message.header.sender = kActor;
    nodes.at(from)->cast(members, message, nullptr);
  }
  std::vector<NodeId> sent_to(NodeId from) {
    std::vector<NodeId> peers;
    for (const auto& link : nodes.at(from)->links()) {
      if (link->data_frames_sent() > 0) peers.push_back(link->peer());
    }
    return peers;
  }

  SimWorld sim{1};
  std::map<NodeId, std::unique_ptr<Node>> nodes;
  std::map<NodeId, std::shared_ptr<Recorder>> recorders;  // shared: with the nodes
  std::set<NodeId> dead;
  Members all;
};

TEST_F(CastTreeOfHosts, IsSentToAFewWhoPassItOn) {
  send(kScript, all, 7);
  ASSERT_TRUE(sim.run());
  for (const auto& [host, recorder] : recorders) EXPECT_EQ(recorder->got, std::vector<uint32_t>{7}) << host;
  EXPECT_EQ(sent_to(kScript), (std::vector<NodeId>{gateway(1), gateway(8), gateway(15)}));
  EXPECT_EQ(sent_to(gateway(8)).size(), 3u);
  EXPECT_EQ(sim.waiting(), 0u) << "nothing is left to look at";
}

TEST_F(CastTreeOfHosts, ComesInOrderWithWhatIsSentToOneOfThem) {
  for (uint32_t i = 0; i < 100; ++i) {
    sim.at(i / 2 * 500'000, [this, i] {
      const Members one{{{gateway(1 + i % kHosts), kActor}}};
      send(kScript, i % 3 == 0 ? all : one, i);
      send(kWorker, i % 3 == 0 ? all : one, 1000 + i);
    });
  }
  ASSERT_TRUE(sim.run());
  for (const auto& [host, recorder] : recorders) {
    std::vector<uint32_t> wanted, script, worker;
    for (uint32_t i = 0; i < 100; ++i) {
      if (i % 3 == 0 || 1 + i % kHosts == host) wanted.push_back(i);
    }
    for (const uint32_t method : recorder->got) (method < 1000 ? script : worker).push_back(method % 1000);
    EXPECT_EQ(script, wanted) << "of the script, on host " << host;
    EXPECT_EQ(worker, wanted) << "of the worker, on host " << host;
  }
}

TEST_F(CastTreeOfHosts, GoesRoundAHostThatDiesWithIt) {
  send(kScript, all, 7);
  nodes.at(gateway(8))->close_links();  // it was to pass it on to six
  dead.insert(gateway(8));
  nodes.at(kScript)->node_down(gateway(8), std::make_shared<Failure>(Failure::Kind::kLost, "as the test says"));
  ASSERT_TRUE(sim.run());
  for (const auto& [host, recorder] : recorders) {
    EXPECT_EQ(recorder->got, host == 8 ? std::vector<uint32_t>{} : std::vector<uint32_t>{7}) << host;
  }
}

TEST_F(CastTreeOfHosts, AHostThatAnotherOneHoldsForDeadIsReachedAllTheSame) {
  nodes.at(gateway(8))->node_down(gateway(9), std::make_shared<Failure>(Failure::Kind::kLost, "as that one believes"));
  send(kScript, all, 7);
  ASSERT_TRUE(sim.run());
  for (const auto& [host, recorder] : recorders) EXPECT_EQ(recorder->got, std::vector<uint32_t>{7}) << host;
}

}  // namespace
}  // namespace monarch::testing
