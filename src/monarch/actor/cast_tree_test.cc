#include "monarch/actor/cast_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(SplitTree, MakesGroupsOfAboutTheSameSizeInOrder) {
  EXPECT_EQ(split_tree({3, 8}, 3), (std::vector<TreeRange>{{3, 3}, {6, 3}, {9, 2}}));
  EXPECT_EQ(split_tree({0, 2}, 16), (std::vector<TreeRange>{{0, 1}, {1, 1}}));
  EXPECT_TRUE(split_tree({5, 0}, 2).empty());
}

// An origin and hosts with sessions between each two, of which each is in order and loses nothing while both live. What is
// sent bears a number, and each host is to get what was sent to it in that order.
class Network {
 public:
  explicit Network(uint64_t seed) : sim_(seed) {
    const uint64_t count = 3 + sim_.random(30);
    for (uint64_t i = 1; i <= count; ++i) hosts_[i];
  }

  void run() {
    int64_t at_ns = 0;
    for (uint64_t i = 5 + sim_.random(60); i > 0; --i) {
      sim_.at(at_ns, [this] { act(); });
      at_ns += static_cast<int64_t>(sim_.random(sim_.chance(20) ? 3000 * kMs : 3 * kMs));
    }
    look();
    ASSERT_TRUE(sim_.run());
    EXPECT_TRUE(origin_.idle());
    for (const auto& [id, host] : hosts_) {
      if (!host.alive) continue;
      EXPECT_EQ(host.got, host.sent) << "host " << id;
      EXPECT_EQ(origin_.backlog(id), 0u);
    }
  }

 private:
  static constexpr NodeId kOrigin = 1000;
  struct Host {
    bool alive = true;
    int64_t stopped_until_ns = 0;
    CastArrivals arrivals;
    uint64_t direct = 0;  // frames of the origin's own session
    std::vector<uint64_t> sent, got;
    std::set<NodeId> unreachable;
  };
  bool alive(NodeId id) const { return id == kOrigin || hosts_.at(id).alive; }

  // ---- What happens ----

  void act() {
    const uint64_t what = sim_.random(100);
    const NodeId host = 1 + sim_.random(hosts_.size());
    if (what < 40) return cast();
    if (what < 85) return send_direct(host);
    if (what < 90) return kill(host);
    if (what < 96) return stop(host);
    hosts_.at(host).unreachable.insert(1 + sim_.random(hosts_.size()));
  }

  void cast() {
    const uint64_t number = ++numbers_;
    std::vector<TreeHost> hosts;
    std::vector<CastTarget> targets;
    const bool all = sim_.chance(60);
    for (auto& [id, host] : hosts_) {
      if (known_dead_.contains(id) || (!all && sim_.chance(50))) continue;
      hosts.push_back({id, 0, host.direct, 1, 0});
      targets.push_back({id, number, 0, 0});
      host.sent.push_back(number);
    }
    if (hosts.empty()) return;
    Tree tree;
    tree.cast.header.kind = FrameKind::kOneway;
    tree.cast.sender = tree.cast.origin = kOrigin;
    const ByteSpan bytes = as_byte_span(targets.data(), targets.size() * sizeof(CastTarget));
    tree.source = message_of(FrameKind::kTreeCast, 0, bytes);
    tree.cast.targets = tree.source->body;
    tree.fan_out = static_cast<uint32_t>(2 + sim_.random(4));
    tree.bytes = sim_.random(2) == 0 ? 100 : uint64_t{8} << 20;
    for (size_t i = 0; i < hosts.size(); ++i) tree.hosts.push_back({hosts[i], i});
    CastOrigin::Sends sends;
    origin_.send(std::move(tree), sim_.now_ns(), sends);
    put(sends);
  }

  void send_direct(NodeId id) {
    Host& host = hosts_.at(id);
    if (known_dead_.contains(id)) return;
    if (const uint64_t number = origin_.fence(id)) {
      put_direct(id, message_of(FrameKind::kTreeFence, number, {}));
      origin_.fenced(id, number);
    }
    host.sent.push_back(++numbers_);
    put_direct(id, message_of(FrameKind::kOneway, numbers_, {}));
    origin_.sent_behind(id, 10);
  }

  void kill(NodeId id) {
    hosts_.at(id).alive = false;
    sim_.after(static_cast<int64_t>(sim_.random(50 * kMs)), [this, id] {
      known_dead_.insert(id);
      CastOrigin::Sends sends;
      origin_.down(id, sim_.now_ns(), sends);
      put(sends);
    });
  }

  void stop(NodeId id) {
    int64_t& until_ns = hosts_.at(id).stopped_until_ns;
    until_ns = std::max(until_ns, sim_.now_ns() + static_cast<int64_t>(sim_.random(10'000 * kMs)));
  }

  void look() {
    CastOrigin::Sends sends;
    origin_.look(sim_.now_ns(), sends);
    put(sends);
    if (!origin_.idle() || sim_.waiting() > 0) sim_.after(500 * kMs, [this] { look(); });
  }

  // ---- Sessions ----

  static std::shared_ptr<const Message> message_of(FrameKind kind, uint64_t token, ByteSpan body) {
    FrameHeader header;
    header.kind = kind;
    header.token = token;
    return Message::make(header, {reinterpret_cast<const char*>(body.data()), body.size()});
  }

  void put(const CastOrigin::Sends& sends) {
    for (const CastOrigin::Send& send : sends) {
      const std::string body = encode_tree(*send.tree, send.hosts);
      put_direct(send.tree->hosts[send.hosts.first].at.gateway,
                 message_of(FrameKind::kTreeCast, 0, as_byte_span(body.data(), body.size())));
    }
  }

  void put_direct(NodeId to, std::shared_ptr<const Message> message) {
    ++hosts_.at(to).direct;
    transmit(kOrigin, to, std::move(message));
  }

  void transmit(NodeId from, NodeId to, std::shared_ptr<const Message> message) {
    sessions_[{from, to}].push_back(std::move(message));
    sim_.after(static_cast<int64_t>(sim_.random(5 * kMs)), [this, from, to] { arrive(from, to); });
  }

  // The next one. What is under way between two of which one dies is lost, here all of it.
  void arrive(NodeId from, NodeId to) {
    if (!alive(from) || !alive(to)) return;
    auto& session = sessions_.at({from, to});
    if (to != kOrigin && sim_.now_ns() < hosts_.at(to).stopped_until_ns) {
      return sim_.at(hosts_.at(to).stopped_until_ns, [this, from, to] { arrive(from, to); });
    }
    const std::shared_ptr<const Message> message = session.front();
    session.pop_front();
    to == kOrigin ? at_origin(from, *message) : at_host(from, to, message);
  }

  void at_host(NodeId from, NodeId here, const std::shared_ptr<const Message>& message) {
    Host& host = hosts_.at(here);
    const bool is_tree = message->header.kind == FrameKind::kTreeCast;
    if (from == kOrigin) {
      host.arrivals.direct(is_tree ? nullptr : Message::make(message->header, message->text()));
      drain(here);
    }
    if (!is_tree) return;
    auto cast = decode_tree_cast(message->body);
    ASSERT_TRUE(cast.ok());
    ASSERT_EQ(cast->host(0).gateway, here);
    if (sim_.chance(2)) {
      const uint64_t number = cast->host(0).number;
      if (host.arrivals.lost(number)) tell(here, FrameKind::kTreeMissed, here, number, 1);
      return drain(here);
    }
    const auto count = static_cast<uint32_t>(cast->host_count());
    for (TreeRange group : split_tree({1, count - 1}, cast->fan_out)) {
      while (group.count > 0) {
        const NodeId next = cast->host(group.first).gateway;
        if (!host.unreachable.contains(next)) {
          const std::string body = encode_tree_cast(part_of(*cast, group));
          transmit(here, next, message_of(FrameKind::kTreeCast, 0, as_byte_span(body.data(), body.size())));
          break;
        }
        tell(here, FrameKind::kTreeMissed, next, cast->host(group.first).number, 0);
        ++group.first, --group.count;
      }
    }
    const TreeHost own = cast->host(0);
    host.arrivals.cast(own.number, {own.after, message, part_of(*cast, {0, 1}), 0});
    drain(here);
  }

  void drain(NodeId here) {
    Host& host = hosts_.at(here);
    const uint64_t before = host.arrivals.taken();
    while (auto arrival = host.arrivals.next()) {
      if (auto* direct = std::get_if<MessagePtr>(&*arrival)) {
        host.got.push_back((*direct)->header.token);
      } else if (const auto& cast = std::get<CastArrivals::Cast>(*arrival).cast; cast.target_count() != 0) {
        ASSERT_EQ(cast.target(0).node, here);
        host.got.push_back(cast.target(0).dest);
      }
    }
    if (host.arrivals.taken() != before) tell(here, FrameKind::kTreeTaken, 0, host.arrivals.taken(), 0);
  }

  void tell(NodeId from, FrameKind kind, NodeId dest, uint64_t number, uint32_t why) {
    FrameHeader header;
    header.kind = kind;
    header.dest = dest;
    header.token = number;
    header.method = why;
    transmit(from, kOrigin, Message::make(header, {}));
  }

  void at_origin(NodeId from, const Message& message) {
    const FrameHeader& header = message.header;
    CastOrigin::Sends sends;
    if (header.kind == FrameKind::kTreeTaken) {
      EXPECT_TRUE(origin_.taken(from, header.token, sim_.now_ns()));
    } else if (header.method == 0) {
      origin_.missed(header.dest, header.token, sim_.now_ns(), sends);
    } else if (const auto lost = origin_.lost(header.dest, header.token, sim_.now_ns(), sends)) {
      const CastTarget target = lost->tree->cast.target(lost->tree->hosts[lost->hosts.first].first_target);
      EXPECT_EQ(target.node, from);
      std::erase(hosts_.at(from).sent, target.dest);
    }
    put(sends);
  }

  SimWorld sim_;
  CastOrigin origin_;
  std::map<NodeId, Host> hosts_;
  std::set<NodeId> known_dead_;
  std::map<std::pair<NodeId, NodeId>, std::deque<std::shared_ptr<const Message>>> sessions_;
  uint64_t numbers_ = 0;
};

TEST(CastTree, EachHostGetsEachCastOnceAndInOrderForEverySeed) {
  for (const uint64_t seed : sim_seeds(3000, 200)) {
    Network(seed).run();
    if (HasFailure()) {
      FAIL() << reproduction(seed, "actor_test", "CastTree.EachHostGetsEachCastOnceAndInOrderForEverySeed");
    }
  }
}

// ---- The origin ----

struct CastOriginTest : ::testing::Test {
  static Tree tree(std::vector<NodeId> gateways, uint64_t bytes = 100) {
    Tree tree;
    tree.source = Message::make(FrameHeader{}, {});
    tree.cast.sender = tree.cast.origin = 1;
    tree.bytes = bytes;
    for (const NodeId gateway : gateways) tree.hosts.push_back({{gateway, 0, 0, 0, 0}});
    return tree;
  }
  std::vector<NodeId> firsts() {
    std::vector<NodeId> nodes;
    for (const auto& send : std::exchange(sends, {})) nodes.push_back(send.tree->hosts[send.hosts.first].at.gateway);
    return nodes;
  }
  CastOrigin origin;
  CastOrigin::Sends sends;
};
using Firsts = std::vector<NodeId>;

TEST(CastArrivals, AnotherSessionWaitsForNothingOfTheOneBefore) {
  const auto frame = [](FrameKind kind, uint64_t token) {
    FrameHeader header;
    header.kind = kind;
    header.token = token;
    return Message::make(header, {});
  };
  CastArrivals arrivals;
  arrivals.direct(frame(FrameKind::kTreeFence, 1));
  arrivals.direct(frame(FrameKind::kOneway, 7));
  CastArrivals::Cast late;
  late.after = 100;
  arrivals.cast(2, std::move(late));
  EXPECT_FALSE(arrivals.next());
  arrivals.begin_anew();
  const auto held = arrivals.next();
  ASSERT_TRUE(held && std::holds_alternative<MessagePtr>(*held));
  EXPECT_EQ(std::get<MessagePtr>(*held)->header.token, 7u);
  EXPECT_FALSE(arrivals.next());
  arrivals.direct(frame(FrameKind::kOneway, 8));
  EXPECT_TRUE(arrivals.next());
  EXPECT_FALSE(arrivals.next());
}

TEST_F(CastOriginTest, ADirectFrameIsFencedOnceWhileACastIsUnderWay) {
  EXPECT_EQ(origin.fence(10), 0u);
  origin.send(tree({10, 11}), 0, sends);
  origin.send(tree({10}), 0, sends);
  EXPECT_EQ(origin.fence(10), 2u);
  origin.fenced(10, 2);
  EXPECT_EQ(origin.fence(10), 0u);
  EXPECT_EQ(origin.fence(11), 1u);
  EXPECT_TRUE(origin.taken(11, 1, 0));
  EXPECT_EQ(origin.fence(11), 0u) << "it has come";
}

TEST_F(CastOriginTest, WhatHasNotBeenTakenIsBacklogAndWhatWaitsBehindItToo) {
  origin.send(tree({10, 11}), 0, sends);
  origin.sent_behind(10, 7);
  EXPECT_EQ(origin.backlog(10), 100u) << "without a fence it does not wait";
  origin.fenced(10, origin.fence(10));
  origin.sent_behind(10, 7);
  EXPECT_EQ(origin.backlog(10), 107u);
  EXPECT_TRUE(origin.taken(10, 1, 0));
  EXPECT_EQ(origin.backlog(10), 0u);
  EXPECT_EQ(origin.backlog(11), 100u);
  EXPECT_FALSE(origin.idle());
  EXPECT_TRUE(origin.taken(11, 1, 0));
  EXPECT_TRUE(origin.idle());
  EXPECT_FALSE(origin.taken(11, 2, 0)) << "there was no second one";
}

TEST_F(CastOriginTest, WhatIsBehindADeadOneIsSentAnewWithoutIt) {
  Tree six = tree({10, 11, 12, 20, 21, 22});  // 10 passes it on to 11 and 12, 20 to 21 and 22
  origin.send(std::move(six), 0, sends);
  EXPECT_EQ(firsts(), (Firsts{10, 20}));
  EXPECT_TRUE(origin.taken(11, 1, 0));
  origin.down(10, 0, sends);
  EXPECT_EQ(firsts(), Firsts{12});
  for (const NodeId each : {12, 20, 21, 22}) EXPECT_TRUE(origin.taken(each, 1, 0));
  EXPECT_TRUE(origin.idle());
}

TEST_F(CastOriginTest, OneThatIsStuckIsPassedByAndForAWhilePassesNothingOn) {
  origin.send(tree({10, 11, 12, 20, 21, 22}), 0, sends);
  firsts();
  for (const NodeId each : {20, 21, 22}) EXPECT_TRUE(origin.taken(each, 1, 0));
  origin.look(CastOrigin::kStuckNs - 1, sends);
  EXPECT_EQ(firsts(), Firsts{});
  origin.look(CastOrigin::kStuckNs, sends);
  EXPECT_EQ(firsts(), (Firsts{11, 12})) << "10 has got it, or will";
  origin.send(tree({10, 11, 12, 20, 21, 22}), CastOrigin::kStuckNs, sends);
  auto given = firsts();
  std::sort(given.begin(), given.end());
  EXPECT_EQ(given, (Firsts{10, 11, 21})) << "10 by itself, and the others as a tree";
}

TEST_F(CastOriginTest, OneThatIsNotReachedByAnotherIsReachedDirectly) {
  origin.send(tree({10, 11, 12, 20, 21, 22}), 0, sends);
  firsts();
  origin.missed(11, 1, 0, sends);
  EXPECT_EQ(firsts(), Firsts{11});
  EXPECT_TRUE(origin.taken(10, 1, 0));
  origin.look(CastOrigin::kStuckNs, sends);
  EXPECT_EQ(firsts(), (Firsts{12, 21, 22})) << "10, which is to pass it on to 12, has it; 20 does not pass on";
}

}  // namespace
}  // namespace monarch::testing
