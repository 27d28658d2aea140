// Casts through a tree of hosts, over real nodes.
#include <gtest/gtest.h>

#include <algorithm>
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
  void deliver(MessagePtr message) override {
    if (message->header.kind != FrameKind::kOneway) return;
    got.push_back(message->header.method);
    ranks.push_back(message->header.rank);
  }
  std::vector<uint32_t> got, ranks;
};

// Another end of a link, of which it is not known yet that the peer has it.
struct UnopenedLink final : Link {
  explicit UnopenedLink(std::shared_ptr<Link> link) : Link(link->peer()), under(std::move(link)) {}
  bool send(const Outgoing& outgoing) override { return under->send(outgoing); }
  bool send_control(const Outgoing& outgoing) override { return under->send_control(outgoing); }
  void peer_died(const Error& why) override { under->peer_died(why); }
  void close() override { under->close(); }
  uint64_t backlog() const override { return 0; }
  uint64_t session() const override { return under->session(); }
  uint64_t data_frames_sent() const override { return under->data_frames_sent(); }
  std::string_view transport() const override { return "unopened"; }
  const std::shared_ptr<Link> under;
};

// A session that is dialled, and never was one.
struct VainLink final : Link {
  explicit VainLink(NodeId peer) : Link(peer) {}
  bool send(const Outgoing& outgoing) override { return send_kept(outgoing, nullptr); }
  bool send_kept(const Outgoing& outgoing, std::shared_ptr<const void> keeper) override {
    if (closed()) return false;
    unfinished.push_back(Message::copy_of(outgoing, 0, std::move(keeper)));
    return true;
  }
  bool send_control(const Outgoing&) override { return true; }
  void peer_died(const Error&) override {}
  void close() override { closed_.store(true); }
  std::vector<std::shared_ptr<const Message>> close_unfinished() override { return std::exchange(unfinished, {}); }
  uint64_t backlog() const override { return 0; }
  uint64_t session() const override { return 99; }
  std::string_view transport() const override { return "vain"; }
  void end(Node& here) {
    close();
    here.on_closed(*this, {ErrorCode::kClosed, "it was dialled in vain"});
  }
  std::vector<std::shared_ptr<const Message>> unfinished;  // shared: as with a link under it
};

struct Hosts {
  explicit Hosts(uint64_t seed) : sim(seed) {
    make(kScript);
    for (NodeId host = 1; host <= kHosts; ++host) {
      make(gateway(host)).add_cell(kActor, recorders[host] = std::make_shared<Recorder>());
      all.ids.push_back({gateway(host), kActor});
    }
    make(kWorker);
  }
  ~Hosts() { sim.end(); }
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
    // As of a third host: its end says nothing of the process at its other end (docs/design/034).
    hooks.on_link_lost = [this, id](NodeId peer, const Error& why) {
      sim.after(1'000'000, [this, id, peer, text = why.message] { let_go(id, peer, text); });
      return true;
    };
    hooks.on_undeliverable = [this, id](const ActorId& dest, const Failure& why) {
      refused[id].push_back(host_number(dest.node));
      reasons.insert(why.detail);
    };
    auto& node = nodes[id] = std::make_unique<Node>(id, sim.driver(), sim, std::move(hooks));
    node->set_cast_trees({.large_hosts = 2, .large_fan_out = 3, .small_hosts = 2, .small_fan_out = 3});
    return *node;
  }
  std::shared_ptr<Link> connect(NodeId from, NodeId to) {
    if (dead.contains(to)) return nullptr;
    if (const auto found = vain.find({from, to}); found != vain.end()) return found->second;
    auto [there, here] = sim.connect(from, *nodes.at(from), to, *nodes.at(to));
    // Before anything arrives on it, and not with a lock of who dials.
    sim.after(0, [this, to, end = here] { nodes.at(to)->add_link(end); });
    if (unopened.contains(to)) return std::make_shared<UnopenedLink>(there);
    return there;
  }
  void send(NodeId from, const Members& members, uint32_t method) {
    Outgoing message{FrameHeader{}, as_byte_span("body", 4), {}};
    message.header.kind = FrameKind::kOneway;
    message.header.method = method;
    message.header.sender = kActor;
    nodes.at(from)->cast(members, message, nullptr);
  }
  void let_go(NodeId from, NodeId peer, const std::string& why) {
    nodes.at(from)->let_go(peer, Failure(Failure::Kind::kUnreachable, why));
  }
  // A second link between the two, which `to` only listens to.
  std::shared_ptr<Link> connect_again(NodeId from, NodeId to) {
    auto [there, here] = sim.connect(from, *nodes.at(from), to, *nodes.at(to));
    nodes.at(from)->add_link(there);
    nodes.at(to)->add_link(here);
    return here;
  }
  static Outgoing oneway(ActorIndex dest, uint32_t method) {
    Outgoing message{FrameHeader{}, as_byte_span("body", 4), {}};
    message.header.dest = dest;
    message.header.method = method;
    message.header.sender = kActor;
    return message;
  }
  void expect_all_got(const std::vector<uint32_t>& methods) {
    for (const auto& [host, recorder] : recorders) EXPECT_EQ(recorder->got, methods) << "host " << host;
  }
  std::vector<NodeId> sent_to(NodeId from) {
    std::vector<NodeId> peers;
    for (const auto& link : nodes.at(from)->links()) {
      if (link->data_frames_sent() > 0) peers.push_back(link->peer());
    }
    return peers;
  }

  uint64_t frames_from(NodeId from) {
    uint64_t frames = 0;
    for (const auto& link : nodes.at(from)->links()) frames += link->data_frames_sent();
    return frames;
  }

  SimWorld sim;
  std::set<NodeId> unopened;
  std::map<std::pair<NodeId, NodeId>, std::shared_ptr<Link>> vain;  // dials that do not get through; shared: with the node
  std::map<NodeId, std::unique_ptr<Node>> nodes;
  std::map<NodeId, std::shared_ptr<Recorder>> recorders;  // shared: with the nodes
  std::set<NodeId> dead;
  std::map<NodeId, std::vector<HostNumber>> refused;  // by sender: whom it could not be brought to
  std::set<std::string> reasons;
  Members all;
};

struct CastTreeOfHosts : ::testing::Test, Hosts {
  CastTreeOfHosts() : Hosts(1) {}
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

TEST_F(CastTreeOfHosts, TheNextOneGoesToTheSameRanks) {
  const auto own = std::make_shared<Recorder>();
  nodes.at(kScript)->add_cell(kActor, own);
  Members mixed{{{gateway(3), kActor}, {kScript, kActor}, {gateway(1), kActor}, {gateway(2), kActor}}};
  for (uint32_t method = 1; method <= 3; ++method) {
    send(kScript, mixed, method);
    ASSERT_TRUE(sim.run());
  }
  const auto expect_at = [](const Recorder& recorder, uint32_t rank) {
    EXPECT_EQ(recorder.got, (std::vector<uint32_t>{1, 2, 3}));
    EXPECT_EQ(recorder.ranks, std::vector<uint32_t>(3, rank));
  };
  expect_at(*recorders.at(3), 0);
  expect_at(*own, 1);
  expect_at(*recorders.at(1), 2);
  expect_at(*recorders.at(2), 3);
}

TEST_F(CastTreeOfHosts, CastsToOneMeshHaveOneTableOfTargets) {
  send(kScript, all, 1);
  ASSERT_TRUE(sim.run());
  send(kScript, all, 2);
  const auto table = all.by_host.last();
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->targets.size(), kHosts);
  send(kScript, all, 3);
  EXPECT_EQ(all.by_host.last(), table);
  const Members copy = all;
  EXPECT_EQ(copy.by_host.last(), nullptr);
  ASSERT_TRUE(sim.run());
  expect_all_got({1, 2, 3});
}

TEST_F(CastTreeOfHosts, WhoHasDiedSinceTheLastOneIsRefusedAtOnce) {
  Members members = all;
  members.ids.push_back({kWorker, kActor});  // no gateway
  const auto worker = std::make_shared<Recorder>();
  nodes.at(kWorker)->add_cell(kActor, worker);
  for (uint32_t method = 1; method <= 2; ++method) {
    send(kScript, members, method);
    ASSERT_TRUE(sim.run());
  }
  EXPECT_EQ(worker->got, (std::vector<uint32_t>{1, 2}));
  nodes.at(kScript)->node_down(kWorker, std::make_shared<Failure>(Failure::Kind::kLost, "as the test says"));
  EXPECT_EQ(refused[kScript], std::vector<HostNumber>{});
  send(kScript, members, 3);
  EXPECT_EQ(refused[kScript], std::vector<HostNumber>{1}) << "its gateway need not be asked";
  EXPECT_EQ(members.by_host.last(), nullptr) << "it is not kept for nothing";
  ASSERT_TRUE(sim.run());
  expect_all_got({1, 2, 3});
}

// Three actors of each host, so that the table of their targets is in another order than their ranks.
TEST_F(CastTreeOfHosts, RanksOfHostsThatAreSentTheirOwnAreTheRightOnes) {
  unopened = {gateway(4), gateway(5), gateway(17)};
  Members members;
  std::vector<std::shared_ptr<Recorder>> each;
  for (ActorIndex actor = kActor + 1; actor <= kActor + 3; ++actor) {
    for (NodeId host = kHosts; host >= 1; --host) {
      nodes.at(gateway(host))->add_cell(actor, each.emplace_back(std::make_shared<Recorder>()));
      members.ids.push_back({gateway(host), actor});
    }
  }
  for (uint32_t method = 1; method <= 3; ++method) {
    send(kScript, members, method);
    ASSERT_TRUE(sim.run());
  }
  for (uint32_t rank = 0; rank < each.size(); ++rank) {
    EXPECT_EQ(each[rank]->got, (std::vector<uint32_t>{1, 2, 3})) << rank;
    EXPECT_EQ(each[rank]->ranks, std::vector<uint32_t>(3, rank));
  }
}

TEST_F(CastTreeOfHosts, GoesRoundAHostThatDiesWithIt) {
  send(kScript, all, 7);
  while (nodes.at(gateway(8))->links().empty()) ASSERT_TRUE(sim.step());
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

// ---- Two sessions, and sessions that are let go of ----

TEST_F(CastTreeOfHosts, WhatIsSaidOnASessionThatIsOnlyListenedToDoesNotCount) {
  send(kScript, all, 1);
  for (int i = 0; i < 10; ++i) send(kScript, {{{gateway(9), kActor}}}, 0);
  ASSERT_TRUE(sim.run());
  recorders.at(9)->got = {1};
  const auto second = connect_again(gateway(9), kScript);
  EXPECT_TRUE(second->send(oneway(kActor, 2)));
  ASSERT_TRUE(sim.run());
  send(kScript, all, 3);
  ASSERT_TRUE(sim.run(100'000)) << "it is sent for ever";
  EXPECT_EQ(recorders.at(9)->got, (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(recorders.at(10)->got, (std::vector<uint32_t>{1, 3}));
}

TEST_F(CastTreeOfHosts, WhatIsForThePeerOfALinkComesBehindWhatWasCastBefore) {
  send(kScript, all, 1);
  ASSERT_TRUE(sim.run());
  const auto second = connect_again(gateway(9), kScript);
  send(kScript, all, 2);
  EXPECT_TRUE(nodes.at(kScript)->send_to_peer(*second, oneway(kActor, 3)));
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(recorders.at(9)->got, (std::vector<uint32_t>{1, 2, 3}));
}

TEST_F(CastTreeOfHosts, GoesOnOnTheSessionThatFollowsOneThatWasLetGo) {
  send(kScript, all, 1);
  ASSERT_TRUE(sim.run());
  send(kWorker, all, 2);
  ASSERT_TRUE(sim.run());
  let_go(kScript, gateway(8), "as the test says");
  let_go(gateway(1), gateway(8), "as the test says");
  ASSERT_TRUE(sim.run());
  for (uint32_t method = 3; method < 6; ++method) {
    send(kScript, all, method);
    ASSERT_TRUE(sim.run());
    send(kWorker, all, 10 + method);
    ASSERT_TRUE(sim.run());
  }
  expect_all_got({1, 2, 3, 13, 4, 14, 5, 15});
  EXPECT_TRUE(refused.empty());
}

TEST_F(CastTreeOfHosts, WhatWasUnderWayToAHostThatIsLetGoIsRefused) {
  send(kScript, all, 1);
  ASSERT_TRUE(sim.run());
  send(kWorker, all, 2);
  ASSERT_TRUE(sim.run());
  send(kScript, all, 3);
  let_go(kScript, gateway(9), "the script lets go");  // to whom 8 was to pass it on
  EXPECT_EQ(refused[kScript], std::vector<HostNumber>{9});
  ASSERT_TRUE(sim.run());
  send(kWorker, all, 4);
  const uint64_t before = frames_from(gateway(1));
  while (frames_from(gateway(1)) == before) ASSERT_TRUE(sim.step());
  let_go(gateway(1), gateway(9), "its gateway lets go");
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(refused[kWorker], std::vector<HostNumber>{9});
  EXPECT_EQ(reasons, (std::set<std::string>{"the script lets go", "its gateway lets go"}));
  for (const auto& [host, recorder] : recorders) {
    if (host == 9) continue;
    EXPECT_EQ(recorder->got, (std::vector<uint32_t>{1, 2, 3, 4})) << "host " << host;
  }
}

TEST_F(CastTreeOfHosts, WhatIsHeldBackComesWhenItsSessionEnds) {
  send(kScript, all, 1);
  ASSERT_TRUE(sim.run());
  const Members nine{{{gateway(9), kActor}}};
  Outgoing fence{FrameHeader{}, {}, {}};  // it comes behind a cast that never comes
  fence.header.kind = FrameKind::kTreeFence;
  fence.header.token = 1000;
  EXPECT_TRUE(nodes.at(kScript)->route(gateway(9))->send(fence));
  send(kScript, nine, 2);
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(recorders.at(9)->got, std::vector<uint32_t>{1});
  let_go(gateway(9), kScript, "as the test says");
  EXPECT_EQ(recorders.at(9)->got, (std::vector<uint32_t>{1, 2}));
  ASSERT_TRUE(sim.run());
  send(kScript, nine, 3);
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(recorders.at(9)->got, (std::vector<uint32_t>{1, 2, 3}));
}

TEST_F(CastTreeOfHosts, AHostWhoseSessionIsNotOpenYetIsSentItsOwn) {
  unopened = {gateway(9)};
  send(kScript, all, 1);
  ASSERT_TRUE(sim.run());
  send(kWorker, all, 2);
  ASSERT_TRUE(sim.run());
  send(kScript, all, 3);
  ASSERT_TRUE(sim.run());
  expect_all_got({1, 2, 3});
  EXPECT_EQ(sent_to(kScript), (std::vector<NodeId>{gateway(1), gateway(8), gateway(9), gateway(15)}));
}

TEST_F(CastTreeOfHosts, ItsSenderIsToldWhenItsGatewayHadNoMemoryForIt) {
  send(kWorker, all, 1);
  ASSERT_TRUE(sim.run());
  const auto link = nodes.at(gateway(1))->route(kWorker);
  FrameHeader header;
  header.kind = FrameKind::kTreeCast;
  header.sender = kActor;
  header.rank = kEveryRank;
  MessagePtr lost = Message::make(header, "", kWorker);
  lost->lost_bytes = 1000;
  nodes.at(gateway(1))->on_frame(*link, std::move(lost));
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(refused[kWorker].size(), 1u);
}

TEST_F(CastTreeOfHosts, OneThatNamesAHostTwiceIsNotBegun) {
  send(kWorker, all, 1);
  ASSERT_TRUE(sim.run());
  const std::vector<TreeHost> hosts(2, {gateway(3), 0, 0, 0, 1, 0});
  const std::vector<CastTarget> targets(2, {gateway(3), kActor, 0, 0});
  TreeCast cast{FrameHeader{}, 0, kWorker, kFanOutMin, {}, {}, as_byte_span("body", 4)};
  cast.header.kind = FrameKind::kOneway;
  cast.hosts = as_byte_span(hosts.data(), hosts.size() * sizeof(TreeHost));
  cast.targets = as_byte_span(targets.data(), targets.size() * sizeof(CastTarget));
  FrameHeader header;
  header.kind = FrameKind::kTreeCast;
  header.rank = kEveryRank;
  Node& here = *nodes.at(gateway(1));
  here.on_frame(*here.route(kWorker), Message::make(header, encode_tree_cast(cast), kWorker));
  ASSERT_TRUE(sim.run());
  expect_all_got({1});
}

// A link of a host that is there and says nothing.
struct SilentLink final : Link {
  explicit SilentLink(NodeId peer) : Link(peer) {}
  bool send(const Outgoing& outgoing) override { return send_kept(outgoing, nullptr); }
  bool send_kept(const Outgoing& outgoing, std::shared_ptr<const void> keeper) override {
    if (!outgoing.parts.empty()) is_copied.push_back(keeper == nullptr);
    return true;
  }
  bool send_control(const Outgoing&) override { return true; }
  void peer_died(const Error&) override {}
  void close() override { closed_.store(true); }
  uint64_t backlog() const override { return 0; }
  uint64_t session() const override { return 1; }
  bool opened() const override { return true; }
  std::string_view transport() const override { return "silent"; }
  std::vector<bool> is_copied;
};

TEST_F(CastTreeOfHosts, WhatIsSentDirectlyIsNotCopiedWhileOthersWait) {
  const auto link = std::make_shared<SilentLink>(gateway(9));
  nodes.at(kScript)->add_link(link);
  send(kScript, all, 1);
  const std::string large(1000, 'x');
  const ByteSpan part = as_byte_span(large.data(), large.size());
  Outgoing message = oneway(kActor, 2);
  message.parts = {&part, 1};
  nodes.at(kScript)->post({gateway(9), kActor}, message);
  EXPECT_EQ(link->is_copied, std::vector<bool>{false}) << "the link copies it, with the lock of all casts held";
}

// As in a star, where what waits for a host takes as much room as it has bytes (docs/design/006).
TEST_F(CastTreeOfHosts, WhoSendsSmallCastsWaitsForAHostThatTakesNone) {
  nodes.at(kScript)->add_link(std::make_shared<SilentLink>(gateway(9)));
  const auto has_room = [this] { return nodes.at(kScript)->has_room(all, Node::kBacklogMax); };
  uint32_t sent = 0;
  for (; sent < 20'000 && has_room(); ++sent) {
    send(kScript, all, 0);
    while (recorders.at(20)->got.size() <= sent) ASSERT_TRUE(sim.step());
  }
  EXPECT_LT(sent, 20'000u) << "their tables take 3 KB each, and four bytes are charged";
  EXPECT_GT(sent, 1000u);
  let_go(kScript, gateway(9), "as the test says");
  EXPECT_TRUE(has_room());
}

// 8 does not get through to 9, whom it is to pass something on, and 9 gets through to 8.
TEST_F(CastTreeOfHosts, ADialInVainLeavesTheSessionThatTheOtherHostHasOpened) {
  const auto dialled = std::make_shared<VainLink>(gateway(9));
  vain[{gateway(8), gateway(9)}] = dialled;
  send(kScript, all, 1);
  while (dialled->unfinished.empty()) ASSERT_TRUE(sim.step());
  const auto opened = connect_again(gateway(9), gateway(8));
  ASSERT_TRUE(sim.run());
  expect_all_got({1});
  vain.clear();
  dialled->end(*nodes.at(gateway(8)));
  ASSERT_TRUE(sim.run());
  EXPECT_FALSE(opened->closed());
  EXPECT_EQ(nodes.at(gateway(8))->route(gateway(9)), opened);
  send(gateway(9), {{{gateway(8), kActor}}}, 2);
  send(gateway(8), {{{gateway(9), kActor}}}, 3);
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(recorders.at(8)->got, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(recorders.at(9)->got, (std::vector<uint32_t>{1, 3}));
  EXPECT_TRUE(refused.empty());
}

TEST_F(CastTreeOfHosts, NobodyIsToldOfADialInVainForWhatOthersCast) {
  for (const bool is_called : {false, true}) {
    const auto dialled = std::make_shared<VainLink>(gateway(9));
    vain[{gateway(8), gateway(9)}] = dialled;
    send(kScript, all, 1);
    while (dialled->unfinished.empty()) ASSERT_TRUE(sim.step());
    if (is_called) send(gateway(8), {{{gateway(9), kActor}}}, 2);
    dialled->close();
    EXPECT_EQ(nodes.at(gateway(8))->let_go(gateway(9), Failure(Failure::Kind::kUnreachable, "in vain")), is_called);
    ASSERT_TRUE(sim.run());
    sim.after(CastOrigin::kDirectNs, [] {});
    ASSERT_TRUE(sim.run());
  }
}

TEST(CastTreeLimits, AreOfHostsThatAreMany) {
  EXPECT_FALSE(CastTreeLimits{}.wants(15, 1));
  EXPECT_TRUE(CastTreeLimits{}.wants(64, 1));
  EXPECT_FALSE(CastTreeLimits{}.wants(63, 1));
  EXPECT_TRUE(CastTreeLimits::from(nullptr)->wants(16, 1 << 20));
  EXPECT_TRUE(CastTreeLimits::from("2")->wants(2, 1));
  EXPECT_TRUE(CastTreeLimits::from("2")->wants(2, 1 << 20));
  EXPECT_FALSE(CastTreeLimits::from("0")->wants(16'383, 1));
  for (const char* text : {"", "many", "-1", "2 hosts"}) EXPECT_FALSE(CastTreeLimits::from(text)) << text;
}

// ---- What may happen ----

// The script, a worker and whoever else casts and sends, while hosts let go of each other at one end before the other, and
// open second sessions, on which something is said, too. Those of the first half let go only of others.
struct SeveralSessions : Hosts {
  explicit SeveralSessions(uint64_t seed) : Hosts(seed) {}

  void run() {
    send(kScript, all, ++numbers), send(kWorker, all, ++numbers);
    ASSERT_TRUE(sim.run());
    first = numbers + 1;
    int64_t at_ns = sim.now_ns();
    for (uint64_t i = 20 + sim.random(40); i > 0; --i) {
      sim.at(at_ns, [this] { act(); });
      at_ns += static_cast<int64_t>(sim.random(sim.chance(10) ? 3'000'000'000 : 3'000'000));
    }
    ASSERT_TRUE(sim.run(1'000'000)) << "something is sent for ever";
    const uint32_t last = numbers;
    for (const NodeId sender : {kScript, kWorker}) send(sender, all, note(sender, all));
    ASSERT_TRUE(sim.run(1'000'000)) << "the last is sent for ever";
    for (const auto& [host, recorder] : recorders) {
      SCOPED_TRACE("host " + std::to_string(host));
      const std::vector<uint32_t>& got = recorder->got;
      EXPECT_EQ(std::set<uint32_t>(got.begin(), got.end()).size(), got.size()) << "twice";
      EXPECT_EQ(std::count_if(got.begin(), got.end(), [last](uint32_t each) { return each > last; }), 2);
      if (host > kCalm) continue;
      std::map<NodeId, std::vector<uint32_t>> by_sender;
      for (const uint32_t each : got) {
        if (each >= first && is_calm(sender_of.at(each))) by_sender[sender_of.at(each)].push_back(each);
      }
      EXPECT_EQ(by_sender, sent_to_calm[host]);
    }
  }

 private:
  static constexpr NodeId kCalm = kHosts / 2;

  static bool is_calm(NodeId node) { return host_number(node) <= kCalm; }
  uint32_t note(NodeId sender, const Members& members) {
    sender_of[++numbers] = sender;
    for (const ActorId& id : members.ids) {
      const NodeId host = host_number(id.node);
      if (is_calm(sender) && host <= kCalm) sent_to_calm[host][sender].push_back(numbers);
    }
    return numbers;
  }

  NodeId any_sender() { return sim.chance(40) ? kScript : sim.chance(60) ? kWorker : gateway(1 + sim.random(kHosts)); }

  void act() {
    const uint64_t what = sim.random(100);
    const NodeId sender = any_sender(), host = kCalm + 1 + sim.random(kHosts - kCalm);
    const NodeId origin = sender == kWorker ? gateway(1) : sender;
    if (what < 40) return send(sender, all, note(sender, all));
    if (what < 70) {
      const Members one{{{gateway(1 + sim.random(kHosts)), kActor}}};
      return send(sender, one, note(sender, one));
    }
    if (origin == gateway(host)) return;
    if (what < 80) return let_go(origin, gateway(host), "by its sender");
    if (what < 88) return let_go(gateway(host), origin, "by the host");
    const auto second = connect_again(gateway(host), origin);
    if (what < 94) static_cast<void>(second->send(oneway(0, 0)));
  }

  uint32_t numbers = 0, first = 0;
  std::map<uint32_t, NodeId> sender_of;
  std::map<NodeId, std::map<NodeId, std::vector<uint32_t>>> sent_to_calm;
};

TEST(CastTreeSessions, NobodyWaitsForEverOrGetsAnythingTwiceForEverySeed) {
  for (const uint64_t seed : sim_seeds(2000, 100)) {
    SeveralSessions(seed).run();
    if (HasFailure()) {
      FAIL() << reproduction(seed, "actor_test", "CastTreeSessions.NobodyWaitsForEverOrGetsAnythingTwiceForEverySeed");
    }
  }
}

}  // namespace
}  // namespace monarch::testing
