#include "monarch/actor/cast_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
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

TEST(SplitTree, EachHasTheParentThatItsGroupHas) {
  std::function<void(TreeRange, uint32_t, uint32_t, uint32_t)> expect;
  expect = [&expect](TreeRange hosts, uint32_t parent, uint32_t all, uint32_t fan_out) {
    for (const TreeRange& group : split_tree(hosts, fan_out)) {
      EXPECT_EQ(parent_in_tree(all, fan_out, group.first), parent) << group.first << " of " << all << " by " << fan_out;
      expect({group.first + 1, group.count - 1}, group.first, all, fan_out);
    }
  };
  for (uint32_t hosts = 1; hosts < 100; ++hosts) {
    for (const uint32_t fan_out : {2u, 3u, 8u, 64u, 100u}) expect({0, hosts}, kNoParent, hosts, fan_out);
  }
}

// An origin and hosts with sessions between each two, of which each is in order and loses nothing while both live. What is
// sent bears a number, and each host is to get what was sent to it in that order. A host may open a second session with the
// origin, and either may let go of the one that is used: then what has come is a part of what was sent, in order for each
// session, and its origin knows of each cast that may be missing.
class Network {
 public:
  explicit Network(uint64_t seed) : sim_(seed) {
    const uint64_t count = 3 + sim_.random(30);
    for (uint64_t i = 1; i <= count; ++i) hosts_[i].arrivals[1];
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
    for (auto& [id, host] : hosts_) {
      if (!host.alive) continue;
      for (const auto& [session, sent] : host.sent) {
        std::vector<uint64_t> wanted, got;
        for (const uint64_t number : sent) {
          if (!host.refused.contains(number)) wanted.push_back(number);
        }
        for (const uint64_t number : host.got[session]) {
          if (!host.refused.contains(number)) got.push_back(number);
        }
        EXPECT_EQ(got, wanted) << "host " << id << ", session " << session;
        EXPECT_TRUE(std::is_sorted(host.got[session].begin(), host.got[session].end()));
      }
      EXPECT_EQ(origin_.backlog(id), 0u);
    }
  }

 private:
  static constexpr NodeId kOrigin = 1000;
  struct Host {
    bool alive = true;
    int64_t stopped_until_ns = 0;
    uint64_t session = 1;                       // which the origin sends on
    std::map<uint64_t, CastArrivals> arrivals;  // of sessions that are not over here
    std::map<uint64_t, uint64_t> direct;        // frames that the origin has sent, by session
    std::map<uint64_t, std::vector<uint64_t>> sent, got;  // by session
    std::set<uint64_t> refused;  // of which the origin knows that they may not have come
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
    if (what < 94) return stop(host);
    if (what < 96) return let_go(host, sim_.chance(50));
    if (what < 97) return say_elsewhere(host);
    hosts_.at(host).unreachable.insert(1 + sim_.random(hosts_.size()));
  }

  void cast() {
    const uint64_t number = ++numbers_;
    std::vector<TreeHost> hosts;
    std::vector<CastTarget> targets;
    const bool all = sim_.chance(60);
    for (auto& [id, host] : hosts_) {
      if (known_dead_.contains(id) || (!all && sim_.chance(50))) continue;
      host.sent[host.session].push_back(number);
      if (!origin_.takes(id, host.session)) {  // directly, as a node does
        put_fenced(id, number);
        continue;
      }
      hosts.push_back({id, host.session, 0, host.direct[host.session], 1, 0});
      targets.push_back({id, number, 0, 0});
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
    host.sent[host.session].push_back(++numbers_);
    put_fenced(id, numbers_);
  }

  void put_fenced(NodeId id, uint64_t number) {
    const uint64_t session = hosts_.at(id).session;
    if (const uint64_t fence = origin_.fence(id, session)) {
      put_direct(id, session, message_of(FrameKind::kTreeFence, fence, {}));
      origin_.fenced(id, fence);
    }
    put_direct(id, session, message_of(FrameKind::kOneway, number, {}));
    origin_.sent_behind(id, session, 10);
  }

  // The origin hears later that the session is over than it begins the next one, and the host later or earlier than that.
  void let_go(NodeId id, bool host_first) {
    Host& host = hosts_.at(id);
    if (!host.alive || known_dead_.contains(id)) return;
    const uint64_t session = host.session;
    const auto at_host = [this, id, session] { end_at_host(id, session); };
    const auto at_origin = [this, id, session] { end_at_origin(id, session); };
    if (host_first) at_host();
    sim_.after(static_cast<int64_t>(sim_.random(50 * kMs)), at_origin);
    if (!host_first) sim_.after(static_cast<int64_t>(sim_.random(100 * kMs)), at_host);
    host.session = session + 2;
    host.arrivals[host.session];
    // What was sent directly and may not have come is known to the session, not to the trees.
    for (const auto& message : sessions_[{kOrigin, id, session}]) {
      if (message->header.kind == FrameKind::kOneway) host.refused.insert(message->header.token);
    }
  }

  void end_at_host(NodeId id, uint64_t session) {
    Host& host = hosts_.at(id);
    const auto found = host.arrivals.find(session);
    if (found == host.arrivals.end()) return;
    MessageQueue held;
    found->second.end(held);
    while (MessagePtr message = held.pop()) host.got[session].push_back(message->header.token);
    host.arrivals.erase(found);
  }

  void end_at_origin(NodeId id, uint64_t session) {
    CastOrigin::Sends sends;
    for (const CastOrigin::Send& each : origin_.down(id, session, sim_.now_ns(), sends)) {
      hosts_.at(id).refused.insert(number_in(each));
    }
    put(sends);
  }

  // A frame on a session that the host has opened, and that the origin only listens to.
  void say_elsewhere(NodeId id) {
    Host& host = hosts_.at(id);
    if (known_dead_.contains(id)) return;
    const uint64_t other = host.session + 1;
    host.arrivals[other];
    host.sent[other].push_back(++numbers_);
    put_direct(id, other, message_of(FrameKind::kOneway, numbers_, {}));
  }

  static uint64_t number_in(const CastOrigin::Send& part) {
    return part.tree->cast.target(part.tree->hosts[part.hosts.first].first_target).dest;
  }

  void kill(NodeId id) {
    hosts_.at(id).alive = false;
    sim_.after(static_cast<int64_t>(sim_.random(50 * kMs)), [this, id] {
      known_dead_.insert(id);
      CastOrigin::Sends sends;
      origin_.down(id, 0, sim_.now_ns(), sends);
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
      const NodeId first = send.tree->hosts[send.hosts.first].at.gateway;
      put_direct(first, hosts_.at(first).session,
                 message_of(FrameKind::kTreeCast, 0, as_byte_span(body.data(), body.size())));
    }
  }

  void put_direct(NodeId to, uint64_t session, std::shared_ptr<const Message> message) {
    ++hosts_.at(to).direct[session];
    transmit(kOrigin, to, session, std::move(message));
  }

  void transmit(NodeId from, NodeId to, uint64_t session, std::shared_ptr<const Message> message) {
    sessions_[{from, to, session}].push_back(std::move(message));
    sim_.after(static_cast<int64_t>(sim_.random(5 * kMs)), [=, this] { arrive(from, to, session); });
  }

  // The next one. What is under way between two of which one dies is lost, here all of it.
  void arrive(NodeId from, NodeId to, uint64_t session) {
    if (!alive(from) || !alive(to)) return;
    if (to != kOrigin && sim_.now_ns() < hosts_.at(to).stopped_until_ns) {
      return sim_.at(hosts_.at(to).stopped_until_ns, [=, this] { arrive(from, to, session); });
    }
    auto& waiting = sessions_.at({from, to, session});
    const std::shared_ptr<const Message> message = waiting.front();
    waiting.pop_front();
    to == kOrigin ? at_origin(from, *message) : at_host(from, to, session, message);
  }

  void at_host(NodeId from, NodeId here, uint64_t session, const std::shared_ptr<const Message>& message) {
    Host& host = hosts_.at(here);
    const bool is_tree = message->header.kind == FrameKind::kTreeCast;
    if (from == kOrigin) {
      if (!host.arrivals.contains(session)) {  // its session is over: nothing of it is heard
        if (message->header.kind == FrameKind::kOneway) host.refused.insert(message->header.token);
        return;
      }
      host.arrivals[session].direct(is_tree ? nullptr : Message::make(message->header, message->text()));
      drain(here, session);
    }
    if (!is_tree) return;
    auto cast = decode_tree_cast(message->body);
    ASSERT_TRUE(cast.ok());
    const TreeHost own = cast->host(0);
    ASSERT_EQ(own.gateway, here);
    if (sim_.chance(2)) {
      const auto arrivals = host.arrivals.find(own.session);
      if (arrivals == host.arrivals.end()) return;
      if (arrivals->second.lost(own.number)) tell(here, FrameKind::kTreeMissed, own, 1);
      return drain(here, own.session);
    }
    const auto count = static_cast<uint32_t>(cast->host_count());
    for (TreeRange group : split_tree({1, count - 1}, cast->fan_out)) {
      while (group.count > 0) {
        const NodeId next = cast->host(group.first).gateway;
        if (!host.unreachable.contains(next)) {
          const std::string body = encode_tree_cast(part_of(*cast, group));
          transmit(here, next, 0, message_of(FrameKind::kTreeCast, 0, as_byte_span(body.data(), body.size())));
          break;
        }
        tell(here, FrameKind::kTreeMissed, cast->host(group.first), 0);
        ++group.first, --group.count;
      }
    }
    if (!host.arrivals.contains(own.session)) return;
    host.arrivals[own.session].cast(own.number, {own.after, message, part_of(*cast, {0, 1}), 0});
    drain(here, own.session);
  }

  void drain(NodeId here, uint64_t session) {
    Host& host = hosts_.at(here);
    CastArrivals& arrivals = host.arrivals.at(session);
    const uint64_t before = arrivals.taken();
    while (auto arrival = arrivals.next()) {
      if (auto* direct = std::get_if<MessagePtr>(&*arrival)) {
        host.got[session].push_back((*direct)->header.token);
      } else if (const auto& cast = std::get<CastArrivals::Cast>(*arrival).cast; cast.target_count() != 0) {
        ASSERT_EQ(cast.target(0).node, here);
        host.got[session].push_back(cast.target(0).dest);
      }
    }
    if (arrivals.taken() != before) tell(here, FrameKind::kTreeTaken, {here, session, arrivals.taken(), 0, 0, 0}, 0);
  }

  void tell(NodeId from, FrameKind kind, const TreeHost& of, uint32_t why) {
    FrameHeader header;
    header.kind = kind;
    header.dest = of.gateway;
    header.sender = of.session;
    header.token = of.number;
    header.method = why;
    transmit(from, kOrigin, 0, Message::make(header, {}));
  }

  void at_origin(NodeId from, const Message& message) {
    const FrameHeader& header = message.header;
    CastOrigin::Sends sends;
    if (header.kind == FrameKind::kTreeTaken) {
      EXPECT_TRUE(origin_.taken(from, header.sender, header.token, sim_.now_ns()));
    } else if (header.method == 0) {
      origin_.missed(header.dest, header.sender, header.token, sim_.chance(20), sim_.now_ns(), sends);
    } else if (const auto lost = origin_.lost(header.dest, header.sender, header.token, sim_.now_ns(), sends)) {
      EXPECT_EQ(lost->tree->hosts[lost->hosts.first].at.gateway, from);
      hosts_.at(from).refused.insert(number_in(*lost));
    }
    put(sends);
  }

  SimWorld sim_;
  CastOrigin origin_;
  std::map<NodeId, Host> hosts_;
  std::set<NodeId> known_dead_;
  std::map<std::tuple<NodeId, NodeId, uint64_t>, std::deque<std::shared_ptr<const Message>>> sessions_;
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
  static constexpr uint64_t kSession = 7;
  static Tree tree(std::vector<NodeId> gateways, uint64_t bytes = 100) {
    Tree tree;
    tree.source = Message::make(FrameHeader{}, {});
    tree.cast.sender = tree.cast.origin = 1;
    tree.bytes = bytes;
    for (const NodeId gateway : gateways) tree.hosts.push_back({{gateway, kSession, 0, 0, 0, 0}});
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

TEST(CastArrivals, WhatASessionHoldsBackComesWhenItEnds) {
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
  MessageQueue held;
  arrivals.end(held);
  const MessagePtr first = held.pop();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->header.token, 7u);
  EXPECT_TRUE(held.empty());
}

TEST_F(CastOriginTest, ADirectFrameIsFencedOnceWhileACastIsUnderWay) {
  EXPECT_EQ(origin.fence(10, kSession), 0u);
  origin.send(tree({10, 11}), 0, sends);
  origin.send(tree({10}), 0, sends);
  EXPECT_EQ(origin.fence(10, kSession), 2u);
  origin.fenced(10, 2);
  EXPECT_EQ(origin.fence(10, kSession), 0u);
  EXPECT_EQ(origin.fence(11, kSession), 1u);
  EXPECT_TRUE(origin.taken(11, kSession, 1, 0));
  EXPECT_EQ(origin.fence(11, kSession), 0u) << "it has come";
}

TEST_F(CastOriginTest, WhatHasNotBeenTakenIsBacklogAndWhatWaitsBehindItToo) {
  const uint64_t cost = CastOrigin::cost_of(tree({10, 11}));
  EXPECT_GT(cost, 100u);
  origin.send(tree({10, 11}), 0, sends);
  origin.sent_behind(10, kSession, 7);
  EXPECT_EQ(origin.backlog(10), cost) << "without a fence it does not wait";
  origin.fenced(10, origin.fence(10, kSession));
  origin.sent_behind(10, kSession, 7);
  EXPECT_EQ(origin.backlog(10), cost + CastOrigin::kFrameCost + 7);
  EXPECT_TRUE(origin.taken(10, kSession, 1, 0));
  EXPECT_EQ(origin.backlog(10), 0u);
  EXPECT_EQ(origin.backlog(11), cost);
  EXPECT_FALSE(origin.idle());
  EXPECT_TRUE(origin.taken(11, kSession, 1, 0));
  EXPECT_TRUE(origin.idle());
  EXPECT_FALSE(origin.taken(11, kSession, 2, 0)) << "there was no second one";
}

TEST_F(CastOriginTest, WhatWaitsBehindAFenceIsNoBacklogOnceThatIsPassedThoughMoreIsUnderWay) {
  origin.send(tree({10}), 0, sends);
  const uint64_t one_cast = origin.backlog(10);
  origin.fenced(10, origin.fence(10, kSession));
  origin.sent_behind(10, kSession, 1000);
  origin.send(tree({10}), 0, sends);
  const uint64_t before = origin.backlog(10);
  origin.fenced(10, origin.fence(10, kSession));
  origin.sent_behind(10, kSession, 10);
  const uint64_t behind_second = origin.backlog(10) - before;
  EXPECT_TRUE(origin.taken(10, kSession, 1, 0));
  EXPECT_EQ(origin.backlog(10), one_cast + behind_second);
  EXPECT_TRUE(origin.taken(10, kSession, 2, 0));
  EXPECT_EQ(origin.backlog(10), 0u);
}

TEST_F(CastOriginTest, WhatIsSentAnewLeavesWhatWaitsBehindItsFence) {
  origin.send(tree({10, 11, 12, 13}), 0, sends);
  origin.fenced(11, origin.fence(11, kSession));
  origin.sent_behind(11, kSession, 1000);
  const uint64_t before = origin.backlog(11);
  origin.missed(11, kSession, 1, false, 0, sends);
  EXPECT_EQ(origin.backlog(11), before);
  EXPECT_TRUE(origin.taken(11, kSession, 1, 0));
  EXPECT_EQ(origin.backlog(11), 0u);
}

TEST_F(CastOriginTest, WhatIsBehindADeadOneIsSentAnewWithoutIt) {
  Tree six = tree({10, 11, 12, 20, 21, 22});  // 10 passes it on to 11 and 12, 20 to 21 and 22
  origin.send(std::move(six), 0, sends);
  EXPECT_EQ(firsts(), (Firsts{10, 20}));
  EXPECT_TRUE(origin.taken(11, kSession, 1, 0));
  origin.down(10, 0, 0, sends);
  EXPECT_EQ(firsts(), Firsts{12});
  for (const NodeId each : {12, 20, 21, 22}) EXPECT_TRUE(origin.taken(each, kSession, 1, 0));
  EXPECT_TRUE(origin.idle());
}

TEST_F(CastOriginTest, OneThatIsStuckIsPassedByAndForAWhilePassesNothingOn) {
  origin.send(tree({10, 11, 12, 20, 21, 22}), 0, sends);
  firsts();
  for (const NodeId each : {20, 21, 22}) EXPECT_TRUE(origin.taken(each, kSession, 1, 0));
  origin.look(CastOrigin::kStuckNs - 1, sends);
  EXPECT_EQ(firsts(), Firsts{});
  origin.look(CastOrigin::kStuckNs, sends);
  EXPECT_EQ(firsts(), (Firsts{11, 12})) << "10 has got it, or will";
  origin.send(tree({10, 11, 12, 20, 21, 22}), CastOrigin::kStuckNs, sends);
  auto given = firsts();
  std::sort(given.begin(), given.end());
  EXPECT_EQ(given, (Firsts{10, 11, 21})) << "10 by itself, and the others as a tree";
}

TEST_F(CastOriginTest, WhatIsBehindOneThatIsLostOnTheWayIsSentAnewToo) {
  origin.send(tree({10, 11, 12, 13, 20, 21, 22, 23}), 0, sends);  // 10 passes it on to 11, and that to 12
  firsts();
  origin.missed(11, kSession, 1, true, 0, sends);
  EXPECT_EQ(firsts(), (Firsts{11, 12}));
}

// The origin reaches all of them, and they do not reach each other: one wait, however many they are, and longer each time.
TEST_F(CastOriginTest, HostsThatDoNotReachEachOtherWaitOnceAndAreReachedDirectlyForLongerEachTime) {
  Firsts all(200);
  std::iota(all.begin(), all.end(), NodeId{10});
  uint64_t number = 0;
  const auto cast = [&](int64_t now_ns) {
    origin.send(tree(all), now_ns, sends);
    ++number;
    return firsts();
  };
  const auto reach = [&](const Firsts& nodes, int64_t now_ns) {
    for (const NodeId each : nodes) EXPECT_TRUE(origin.taken(each, kSession, number, now_ns));
  };
  int64_t now_ns = 0;
  for (const int64_t direct_ns : {CastOrigin::kDirectNs, 2 * CastOrigin::kDirectNs, 4 * CastOrigin::kDirectNs}) {
    const Firsts roots = cast(now_ns);
    EXPECT_EQ(roots.size(), kFanOutMin);
    reach(roots, now_ns);
    now_ns += CastOrigin::kStuckNs;
    origin.look(now_ns, sends);
    const Firsts others = firsts();
    EXPECT_EQ(others.size(), all.size() - roots.size());
    reach(others, now_ns);
    EXPECT_TRUE(origin.idle());
    now_ns += direct_ns - 1;
    const Firsts directly = cast(now_ns);
    EXPECT_EQ(directly.size(), all.size());
    reach(directly, now_ns);
    now_ns += 1;
  }
}

// 10 passes on to 11, and has a moment in which it does not.
TEST_F(CastOriginTest, TimesOfDirectSendsDoNotGrowWhereAllHasGoneWellBetweenThem) {
  uint64_t number = 0;
  int64_t now_ns = 0;
  for (int i = 0; i < 3; ++i) {
    origin.send(tree({10, 11, 20}), now_ns, sends);
    EXPECT_EQ(firsts(), (Firsts{10, 20}));
    ++number;
    for (const NodeId each : {10, 20}) EXPECT_TRUE(origin.taken(each, kSession, number, now_ns));
    now_ns += CastOrigin::kStuckNs;
    origin.look(now_ns, sends);
    EXPECT_EQ(firsts(), Firsts{11});
    EXPECT_TRUE(origin.taken(11, kSession, number, now_ns));
    now_ns += 2 * CastOrigin::kDirectNs;
    origin.send(tree({10, 11, 20}), now_ns, sends);
    EXPECT_EQ(firsts(), (Firsts{10, 20})) << "after the time of the first one, the " << i << "th time";
    ++number;
    for (const NodeId each : {10, 20, 11}) EXPECT_TRUE(origin.taken(each, kSession, number, now_ns));
  }
}

// What is large takes its time at each level: a host has its own from when the one before it has got the frame.
TEST_F(CastOriginTest, AHostHasItsTimeFromWhenTheOneBeforeItHasGotIt) {
  origin.send(tree({10, 11, 20}), 0, sends);
  firsts();
  EXPECT_TRUE(origin.taken(20, kSession, 1, 0));
  EXPECT_TRUE(origin.taken(10, kSession, 1, CastOrigin::kStuckNs - 1));
  origin.look(2 * CastOrigin::kStuckNs - 2, sends);
  EXPECT_EQ(firsts(), Firsts{});
  origin.look(2 * CastOrigin::kStuckNs - 1, sends);
  EXPECT_EQ(firsts(), Firsts{11});
}

TEST_F(CastOriginTest, WhatAHostHadNoMemoryForIsToldOnce) {
  origin.send(tree({10, 11}), 0, sends);
  EXPECT_TRUE(origin.lost(10, kSession, 1, 0, sends));
  EXPECT_FALSE(origin.lost(10, kSession, 1, 0, sends));
  EXPECT_TRUE(origin.down(10, kSession, 0, sends).empty());
  EXPECT_EQ(origin.down(11, kSession, 0, sends).size(), 1u);
}

TEST_F(CastOriginTest, OneThatIsNotReachedByAnotherIsReachedDirectly) {
  origin.send(tree({10, 11, 12, 20, 21, 22}), 0, sends);
  firsts();
  origin.missed(11, kSession, 1, false, 0, sends);
  EXPECT_EQ(firsts(), Firsts{11});
  EXPECT_TRUE(origin.taken(10, kSession, 1, 0));
  origin.look(CastOrigin::kStuckNs, sends);
  EXPECT_EQ(firsts(), (Firsts{12, 21, 22})) << "10, which is to pass it on to 12, has it; 20 does not pass on";
}

}  // namespace
}  // namespace monarch::testing
