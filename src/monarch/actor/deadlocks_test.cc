#include "monarch/actor/deadlocks.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <set>

namespace monarch {
namespace {

constexpr int64_t kMs = 1'000'000;

// Actors of several nodes, each of which may be blocked by a call to others; probes arrive in the order in which they were
// sent, one at a time. An actor's index is unique among all nodes.
class Cluster {
 public:
  struct Raised {
    ActorIndex actor;
    std::string text;
  };

  // `actor` of `node` has a call to these, which has been pending since then. It waits in each of them for its turn.
  uint64_t call(NodeId node, ActorIndex actor, const std::vector<ActorId>& targets, int64_t since_ns = 0) {
    const uint64_t token = ++last_token_;
    Deadlocks::Blocked blocked;
    blocked.token = token;
    blocked.since_ns = since_ns;
    blocked.owing = targets;
    blocked.who = "actor " + std::to_string(actor);
    blocked.doing = "do" + std::to_string(actor);
    at(node).blocked_[actor] = blocked;
    for (const ActorId& target : targets) at(target.node).waiting_.insert({node, token, target.index});
    return token;
  }
  void answer(NodeId node, ActorIndex actor) { at(node).blocked_.erase(actor); }
  // It is at something that the call does not wait for.
  void take_out(NodeId node, uint64_t token, const ActorId& target) {
    at(target.node).waiting_.erase({node, token, target.index});
  }

  // That is what it does, not what waits for its turn.
  void handles(NodeId node, uint64_t token, const ActorId& target) {
    at(target.node).handled_.insert({node, token, target.index});
  }

  void forget(NodeId node, ActorIndex actor, uint64_t token) { at(node).deadlocks.forget(actor, token); }
  void search(NodeId node, ActorIndex actor) {
    run(node, at(node).deadlocks.search(now_ns, actor));
    deliver();
  }
  // All that has asked for it searches again.
  void confirm() {
    now_ns += Deadlocks::kConfirmNs;
    for (const auto& [node, actor] : std::exchange(again, {})) search(node, actor);
  }

  int64_t now_ns = 1000 * kMs;
  std::vector<Raised> raised;
  std::vector<std::pair<NodeId, ActorIndex>> again;
  size_t sent = 0;

 private:
  struct Node final : Deadlocks::Place {
    explicit Node(NodeId id) : deadlocks(id, *this) {}
    std::optional<Deadlocks::Blocked> blocked(ActorIndex actor) override {
      const auto found = blocked_.find(actor);
      return found == blocked_.end() ? std::nullopt : std::optional(found->second);
    }
    std::optional<Asked> awaits(NodeId caller, uint64_t token, ActorIndex actor) override {
      if (!waiting_.contains({caller, token, actor})) return std::nullopt;
      return Asked{"ask" + std::to_string(actor), !handled_.contains({caller, token, actor})};
    }
    std::set<std::tuple<NodeId, uint64_t, ActorIndex>> handled_;
    std::map<ActorIndex, Deadlocks::Blocked> blocked_;
    std::set<std::tuple<NodeId, uint64_t, ActorIndex>> waiting_;
    Deadlocks deadlocks;
  };
  Node& at(NodeId id) {
    auto& node = nodes_[id];
    if (!node) node = std::make_unique<Node>(id);
    return *node;
  }
  void run(NodeId node, Deadlocks::Actions actions) {
    for (auto& send : actions.sends) in_flight_.push_back(std::move(send));
    for (const ActorIndex actor : actions.again) again.emplace_back(node, actor);
    for (const auto& call : actions.give_up) {
      for (const auto& [actor, blocked] : at(node).blocked_) {
        if (blocked.token == call.token) raised.push_back({actor, call.text});
      }
    }
  }
  void deliver() {
    while (!in_flight_.empty()) {
      const Deadlocks::Send send = std::move(in_flight_.front());
      in_flight_.pop_front();
      ++sent;
      const std::string bytes = send.probe.encoded();
      auto probe = Probe::decode(as_byte_span(bytes.data(), bytes.size()));
      ASSERT_TRUE(probe);
      run(send.to.node, at(send.to.node).deadlocks.on_probe(now_ns, send.to.index, std::move(*probe)));
    }
  }

  std::map<NodeId, std::unique_ptr<Node>> nodes_;
  std::deque<Deadlocks::Send> in_flight_;
  uint64_t last_token_ = 0;
};

TEST(Deadlocks, ACycleIsRaisedOnceAtItsYoungestCallWhenItHasBeenSeenTwice) {
  Cluster cluster;
  cluster.call(1, 11, {{2, 22}}, 100 * kMs);
  cluster.call(2, 22, {{3, 33}}, 200 * kMs);
  cluster.call(3, 33, {{1, 11}}, 300 * kMs);
  for (const auto& [node, actor] : std::vector<std::pair<NodeId, ActorIndex>>{{1, 11}, {2, 22}, {3, 33}}) {
    cluster.search(node, actor);
  }
  EXPECT_TRUE(cluster.raised.empty());
  EXPECT_EQ(cluster.again.size(), 3u);
  cluster.confirm();
  ASSERT_EQ(cluster.raised.size(), 1u);
  EXPECT_EQ(cluster.raised[0].actor, 33u);
  EXPECT_EQ(cluster.raised[0].text,
            "a cycle of calls, each of which waits for the next:\n"
            "  actor 33, in do33, waits for actor 11: ask11\n"
            "  actor 11, in do11, waits for actor 22: ask22\n"
            "  actor 22, in do22, waits for actor 33: ask33");
}

TEST(Deadlocks, WhatAnActorDoesIsOlderThanWhatItCallsWhateverTheTimesSay) {
  Cluster cluster;
  const uint64_t token = cluster.call(1, 11, {{2, 22}}, 200 * kMs);  // it was late to say that it waits
  cluster.handles(1, token, {2, 22});
  cluster.call(2, 22, {{1, 11}}, 100 * kMs);
  cluster.search(1, 11);
  cluster.search(2, 22);
  cluster.confirm();
  ASSERT_EQ(cluster.raised.size(), 1u);
  EXPECT_EQ(cluster.raised[0].actor, 22u);
}

TEST(Deadlocks, AnActorThatWaitsForItselfIsACycleToo) {
  Cluster cluster;
  cluster.call(1, 11, {{1, 11}});
  cluster.search(1, 11);
  cluster.confirm();
  ASSERT_EQ(cluster.raised.size(), 1u);
  EXPECT_EQ(cluster.raised[0].text,
            "an actor waits for a call to itself, which it can only answer afterwards:\n"
            "  actor 11, in do11, waits for actor 11: ask11");
}

TEST(Deadlocks, WhatHasChangedBetweenTheLooksIsNoCycle) {
  Cluster cluster;
  cluster.call(1, 11, {{2, 22}}, 100 * kMs);
  cluster.call(2, 22, {{1, 11}}, 200 * kMs);
  cluster.search(2, 22);
  cluster.call(1, 11, {{2, 22}}, 300 * kMs);  // the next call of that actor
  cluster.confirm();
  EXPECT_TRUE(cluster.raised.empty());
  EXPECT_EQ(cluster.again.size(), 1u);  // it has been seen once
  cluster.answer(1, 11);
  cluster.confirm();
  EXPECT_TRUE(cluster.raised.empty());
  EXPECT_TRUE(cluster.again.empty());
}

TEST(Deadlocks, TheEndOfACallBeforeIsNotThatOfThisOne) {
  Cluster cluster;
  cluster.call(1, 11, {{2, 22}}, 100 * kMs);
  cluster.call(2, 22, {{3, 33}}, 200 * kMs);
  const uint64_t before = cluster.call(3, 33, {{1, 11}}, 200 * kMs);
  cluster.call(3, 33, {{1, 11}}, 300 * kMs);
  cluster.search(3, 33);
  cluster.forget(3, 33, before);
  cluster.confirm();
  EXPECT_EQ(cluster.raised.size(), 1u);
}

TEST(Deadlocks, ACallThatDoesNotWaitForWhatTheActorDoesIsNoEdge) {
  Cluster cluster;
  const uint64_t token = cluster.call(1, 11, {{2, 22}}, 100 * kMs);
  cluster.call(2, 22, {{1, 11}}, 200 * kMs);
  cluster.take_out(1, token, {2, 22});
  for (int i = 0; i < 3; ++i) cluster.search(2, 22);
  EXPECT_TRUE(cluster.again.empty());
}

TEST(Deadlocks, OneOfManyThatIsBlockedIsEnough) {
  Cluster cluster;
  std::vector<ActorId> ranks;
  for (ActorIndex rank = 0; rank < 64; ++rank) ranks.push_back({2 + rank % 4, 100 + rank});
  cluster.call(1, 11, ranks, 100 * kMs);
  cluster.call(ranks[37].node, ranks[37].index, {{1, 11}}, 200 * kMs);
  cluster.search(ranks[37].node, ranks[37].index);
  cluster.confirm();
  ASSERT_EQ(cluster.raised.size(), 1u);
  EXPECT_EQ(cluster.raised[0].actor, ranks[37].index);
}

TEST(Deadlocks, ACycleBehindTheFirstIsForThoseWhoAreInIt) {
  Cluster cluster;
  cluster.call(1, 11, {{2, 22}}, 300 * kMs);
  cluster.call(2, 22, {{3, 33}}, 100 * kMs);
  cluster.call(3, 33, {{2, 22}}, 200 * kMs);
  cluster.search(1, 11);
  cluster.confirm();
  EXPECT_TRUE(cluster.raised.empty());
  cluster.search(3, 33);
  cluster.confirm();
  ASSERT_EQ(cluster.raised.size(), 1u);
  EXPECT_EQ(cluster.raised[0].actor, 33u);
}

// 20 layers of 4 actors, each of which waits for all of the next layer: 4^20 ways.
TEST(Deadlocks, ManyWaysThroughTheSameActorsAreTakenOnce) {
  Cluster cluster;
  for (ActorIndex layer = 0; layer < 20; ++layer) {
    std::vector<ActorId> next;
    for (ActorIndex i = 0; i < 4; ++i) next.push_back({1 + i, 100 * (layer + 1) + i});
    for (ActorIndex i = 0; i < 4; ++i) cluster.call(1 + i, 100 * layer + i, next);
  }
  cluster.search(1, 0);
  EXPECT_EQ(cluster.sent, 4u + 19u * 16u);
  EXPECT_TRUE(cluster.again.empty());
}

TEST(Deadlocks, AProbeGoesSoFarAndNoFarther) {
  Cluster cluster;
  for (ActorIndex i = 0; i < 100; ++i) cluster.call(1 + i % 3, i, {{1 + (i + 1) % 100 % 3, (i + 1) % 100}});
  cluster.search(1, 0);
  EXPECT_EQ(cluster.sent, Probe::kPathMax);
  EXPECT_TRUE(cluster.again.empty());
}

TEST(Deadlocks, WhatNobodyHasSentIsIgnored) {
  struct Nobody final : Deadlocks::Place {
    std::optional<Deadlocks::Blocked> blocked(ActorIndex) override {
      Deadlocks::Blocked blocked;
      blocked.token = 7;
      return blocked;
    }
    std::optional<Asked> awaits(NodeId, uint64_t, ActorIndex) override { return Asked{"ask", true}; }
  } place;
  Deadlocks deadlocks(1, place);
  Probe probe;
  EXPECT_TRUE(deadlocks.on_probe(0, 11, probe).again.empty());
  probe.path.push_back({{1, 11}, 7, 0, "", "", "", false});
  for (uint32_t round = 1; round < 4; ++round) {
    probe.round = round;
    const auto actions = deadlocks.on_probe(0, 11, probe);
    EXPECT_TRUE(actions.again.empty() && actions.give_up.empty() && actions.sends.empty());
  }
}

TEST(Deadlocks, BytesThatAreNoProbeAreRefused) {
  Probe probe;
  probe.round = 3;
  probe.path.push_back({{1, 2}, 3, 4, "who", "\xff", std::string(5000, 'x'), true});
  std::string bytes = probe.encoded();
  const auto read = [](const std::string& text) { return Probe::decode(as_byte_span(text.data(), text.size())); };
  ASSERT_TRUE(read(bytes));
  EXPECT_EQ(read(bytes)->path[0].doing, "?");
  EXPECT_EQ(read(bytes)->path[0].actor, (ActorId{1, 2}));
  for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(read(bytes.substr(0, size)));
  EXPECT_FALSE(read(bytes + "\1"));
  EXPECT_FALSE(read(Probe{}.encoded()));
  probe.path.resize(Probe::kPathMax + 1, probe.path[0]);
  EXPECT_FALSE(read(probe.encoded()));
}

}  // namespace
}  // namespace monarch
