// The delivery contract on real nodes over seeds of the SimWorld; docs/invariants.md names each.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "monarch/actor/directory.h"
#include "monarch/actor/calls.h"
#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

FailurePtr failure(const char* text) { return std::make_shared<Failure>(text); }

constexpr ActorIndex kClient = 1;  // each node's own script, a sender

struct Sender {
  NodeId node;
  ActorIndex index;
  auto operator<=>(const Sender&) const = default;
};

struct Payload {
  NodeId node;         // who says so
  uint64_t number;     // of this sender's messages to this receiver, from 0
  uint64_t oneway_id;  // 0: a request
};

// What one run of a scenario has seen.
class Scenario {
 public:
  explicit Scenario(uint64_t seed, SimWorld::Faults faults = {}) : world_(seed, faults), hosts_(faults.hosts) { build(); }
  ~Scenario() { world_.end(); }
  uint64_t broken() const { return broken_; }

  // Connections between hosts break all the time; some hosts are parted, for less than a lease or for longer.
  void break_connections() {
    const uint64_t cuts = 100 + world_.random(300);
    for (uint64_t i = 0; i < cuts; ++i) {
      world_.after(static_cast<int64_t>(world_.random(span_ns_ + span_ns_ / 10)), [this] {
        const NodeId a = any_node(), b = any_node();
        if (world_.host_of(a) != world_.host_of(b)) broken_ += world_.cut(a, b);
      });
    }
    for (uint64_t i = world_.random(4); i > 0; --i) {
      const bool long_enough = world_.chance(20);
      world_.after(static_cast<int64_t>(world_.random(span_ns_ + span_ns_ / 10)), [this, long_enough] {
        const int a = static_cast<int>(world_.random(static_cast<uint64_t>(hosts_)));
        const int b = static_cast<int>(world_.random(static_cast<uint64_t>(hosts_)));
        world_.part(a, b, long_enough ? 2'500'000'000 : static_cast<int64_t>(world_.random(300'000'000)));
      });
    }
  }

  void run() {
    const uint64_t steps = 100 + world_.random(300);
    for (uint64_t i = 0; i < steps; ++i) {
      world_.after(static_cast<int64_t>(world_.random(span_ns_)), [this] { act(); });
    }
    // Some worlds live in peace; in others nodes die, links break and actors end at any moment.
    const uint64_t kills = world_.chance(60) ? world_.random(3) : 0;
    const uint64_t cuts = world_.chance(40) ? world_.random(2) : 0;
    const uint64_t stops = world_.random(3);
    for (uint64_t i = 0; i < kills; ++i) {
      world_.after(static_cast<int64_t>(world_.random(span_ns_ + span_ns_ / 10)), [this] {
        world_.kill(any_node(), "the process was killed");
      });
    }
    for (uint64_t i = 0; i < cuts; ++i) {
      world_.after(static_cast<int64_t>(world_.random(span_ns_ + span_ns_ / 10)), [this] {
        const NodeId a = any_node(), b = any_node();
        if (a != b && world_.host_of(a) == world_.host_of(b)) world_.cut(a, b);
      });
    }
    for (uint64_t i = 0; i < stops; ++i) {
      world_.after(static_cast<int64_t>(world_.random(span_ns_ + span_ns_ / 10)), [this] { stop_actor(); });
    }
    ASSERT_TRUE(world_.run()) << "it never becomes quiet";
    check();
  }

 private:
  struct SimActor : Cell {
    SimActor(Scenario& s, Node& n, ActorIndex i) : scenario(s), node(n), index(i) {}
    void deliver(MessagePtr message) override { scenario.received(*this, std::move(message)); }
    Scenario& scenario;
    Node& node;
    const ActorIndex index;
    bool ended = false;
    std::map<Sender, uint64_t> next;  // the number that has to come next, by sender
  };
  struct Factory : CellFactory {
    explicit Factory(Scenario& s) : scenario(s) {}
    std::shared_ptr<Cell> make(Node& node, ActorIndex index, MessagePtr) override {
      auto actor = std::make_shared<SimActor>(scenario, node, index);
      scenario.cells_[{node.id(), index}] = actor;
      return actor;
    }
    Scenario& scenario;
  };
  struct Call {
    NodeId caller;
    std::shared_ptr<const Members> members;
    std::shared_ptr<PendingCall> call;
  };
  struct Oneway {
    Sender from;
    ActorId to;
    bool arrived = false;
  };

  void build() {
    const uint64_t count = 2 + world_.random(5);
    for (uint64_t i = 0; i < count; ++i) {
      // Some are processes of others.
      const NodeId id = i == 0 || world_.chance(50) ? world_.add_node() : world_.add_child(any_node());
      nodes_.push_back(id);
      world_.node(id).set_factory(CellKind::kNative, factory_);
      // The script of each node: what comes back to it is counted.
      auto client = std::make_shared<SimActor>(*this, world_.node(id), kClient);
      cells_[{id, kClient}] = client;
      world_.node(id).add_cell(kClient, client);
    }
    if (hosts_ > 1 && world_.chance(50)) {  // the first is a script that uses what others have started elsewhere
      for (const NodeId id : nodes_) {
        if (world_.host_of(id) != world_.host_of(nodes_[0]) && world_.chance(50)) world_.attach(nodes_[0], id);
      }
    }
    // Actors are made by any node anywhere, and may be used by all from the moment that their spawn is sent: long
    // before they exist.
    const uint64_t actors = 1 + world_.random(8);
    for (uint64_t i = 0; i < actors; ++i) {
      const NodeId creator = any_node(), where = any_node();
      const ActorId id{where, world_.node(creator).new_actor_index()};
      actors_.push_back(id);
      creators_[id.index] = creator;
      world_.after(static_cast<int64_t>(world_.random(3'000'000)), [this, creator, id] {
        if (!world_.alive(creator)) return;
        Outgoing spawn{FrameHeader{}, {}, {}};
        spawn.header.kind = FrameKind::kSpawn;
        spawn.header.dest = id.index;
        spawn.header.sender = kClient;
        spawn.header.method = static_cast<uint32_t>(CellKind::kNative);
        std::string why;
        world_.node(creator).send(id.node, spawn, &why);
        spawned_.insert(id.index);
      });
    }
  }

  NodeId any_node() { return nodes_[world_.random(nodes_.size())]; }

  // A random sender says something to one actor, to all, or to a slice of them.
  void act() {
    const NodeId here = any_node();
    if (!world_.alive(here)) return;
    Sender from{here, kClient};
    if (world_.chance(50)) {  // one of the actors there
      for (const ActorId& id : actors_) {
        auto cell = cells_.find({id.node, id.index});
        if (id.node == here && cell != cells_.end() && !cell->second->ended && world_.chance(50)) {
          from.index = id.index;
        }
      }
    }
    auto members = std::make_shared<Members>();
    const int how = static_cast<int>(world_.random(3));
    std::vector<ActorId> usable;
    for (const ActorId& id : actors_) {
      if (spawned_.contains(id.index)) usable.push_back(id);
    }
    if (usable.empty()) return;
    if (how == 0) {
      members->ids.push_back(usable[world_.random(usable.size())]);
    } else {
      for (const ActorId& id : usable) {
        if (how == 1 || world_.chance(50)) members->ids.push_back(id);
      }
    }
    const bool wants_answer = world_.chance(60);
    // A cast carries one body for all, so the numbers of this sender travel in the parts: a message per member, in the
    // order of the members, is what a cast is to its receivers.
    Outgoing outgoing{FrameHeader{}, {}, {}};
    outgoing.header.kind = wants_answer ? FrameKind::kRequest : FrameKind::kOneway;
    outgoing.header.sender = from.index;
    std::vector<Payload> payloads;
    for (const ActorId& id : members->ids) {
      Payload payload{here, sent_[{from, {id.node, id.index}}]++, 0};
      if (!wants_answer) {
        oneways_.push_back({from, id});
        payload.oneway_id = oneways_.size();
      }
      payloads.push_back(payload);
    }
    outgoing.body = as_byte_span(payloads.data(), payloads.size() * sizeof(Payload));
    std::vector<std::byte> bulk(world_.chance(5) ? 1 + world_.random(200'000) : 0, std::byte{7});
    const ByteSpan part(bulk);
    if (!bulk.empty()) outgoing.parts = {&part, 1};
    std::shared_ptr<PendingCall> call;
    if (wants_answer) {
      call = std::make_shared<PendingCall>(members);
      calls_.push_back({here, members, call});
    }
    world_.node(here).cast(*members, outgoing, call);
  }

  void received(SimActor& actor, MessagePtr message) {
    if (!world_.alive(actor.node.id())) return;  // its process is dead: nothing happens there
    const FrameHeader& header = message->header;
    if (header.kind == FrameKind::kUndeliverable) {
      ++bounced_[{actor.node.id(), actor.index}];
      return;
    }
    if (actor.ended) return actor.node.refuse(*message, "the actor has ended");
    if (header.kind == FrameKind::kStopActor) {
      actor.ended = true;
      stopped_.insert(actor.index);
      Outgoing done{FrameHeader{}, {}, {}};
      actor.node.reply(header, message->from, FrameKind::kReply, done);
      actor.node.remove_cell(actor.index, "the actor has ended");
      return;
    }
    Payload payload;
    ASSERT_GE(message->body.size(), (header.rank + 1) * sizeof payload);
    std::memcpy(&payload, message->body.data() + header.rank * sizeof payload, sizeof payload);
    ASSERT_EQ(payload.node, message->from);
    // MSG-1 and MSG-2: exactly the next one, so neither out of order, nor twice, nor with a hole.
    uint64_t& next = actor.next[{message->from, header.sender}];
    ASSERT_EQ(payload.number, next) << "from " << header.sender << " to " << header.dest;
    ++next;
    for (const Part& part : message->parts) {
      ASSERT_EQ(part.data[0], std::byte{7});
      ASSERT_EQ(part.data[part.size - 1], std::byte{7});
    }
    if (payload.oneway_id != 0) {
      Oneway& oneway = oneways_[payload.oneway_id - 1];
      ASSERT_FALSE(oneway.arrived);
      oneway.arrived = true;
      return;
    }
    // Answers take their time, so that deaths and ends come between.
    const FrameHeader request = header;
    const NodeId caller = message->from;
    world_.after(world_.delay_ns(), [this, &actor, request, caller] {
      if (!world_.alive(actor.node.id())) return;
      Outgoing answer{FrameHeader{}, {}, {}};
      actor.node.reply(request, caller, world_.chance(90) ? FrameKind::kReply : FrameKind::kReplyError, answer);
    });
  }

  void stop_actor() {
    const ActorId id = actors_[world_.random(actors_.size())];
    const NodeId here = creators_[id.index];
    if (!world_.alive(here) || !spawned_.contains(id.index)) return;
    auto members = std::make_shared<Members>();
    members->ids.push_back(id);
    auto call = std::make_shared<PendingCall>(members);
    calls_.push_back({here, members, call});
    Outgoing outgoing{FrameHeader{}, {}, {}};
    outgoing.header.kind = FrameKind::kStopActor;
    outgoing.header.sender = kClient;
    world_.node(here).cast(*members, outgoing, call);
    stop_asked_.insert(id.index);
  }

  std::string missing(const Call& entry) {
    std::string text;
    for (uint32_t rank = 0; rank < entry.call->size(); ++rank) {
      const ActorId& id = entry.members->ids[rank];
      if (entry.call->reply(rank) != nullptr) continue;
      text += "rank " + std::to_string(rank) + (id.node == entry.caller ? " here" : " elsewhere") +
              (world_.alive(id.node) ? "" : ", dead") + (world_.severed(entry.caller, id.node) ? ", severed" : "") +
              (stop_asked_.contains(id.index) ? ", stopped" : "") + (spawned_.contains(id.index) ? "" : ", unspawned") +
              (world_.node(entry.caller).is_down(id.node) ? ", known dead" : "") + "; ";
    }
    return text;
  }

  void check() {
    for (const Call& entry : calls_) {
      if (!world_.alive(entry.caller)) continue;
      // MSG-3: every request has ended.
      ASSERT_TRUE(entry.call->complete()) << "a call waits for ever: " << missing(entry);
      for (uint32_t rank = 0; rank < entry.call->size(); ++rank) {
        const ActorId& id = entry.members->ids[rank];
        const Message* reply = entry.call->reply(rank);
        ASSERT_EQ(reply->header.rank, rank);
        // MSG-5: a failure only where somebody died, broke away or ended; never because another rank failed.
        if (undisturbed(entry.caller, id)) {
          EXPECT_NE(reply->header.kind, FrameKind::kReplyFailed) << reply_text(*reply);
        }
      }
    }
    // MSG-4: dead is who was parted for a lease, or has died, and then for both sides.
    for (const NodeId a : nodes_) {
      for (const NodeId b : nodes_) {
        if (a == b || !world_.alive(a) || !world_.alive(b)) continue;
        // Who knows nothing yet of such a death has no link on which to find out.
        const bool knows = world_.node(b).is_down(a) || !linked(b, a);
        EXPECT_TRUE(knows || !world_.node(a).is_down(b)) << "half a death";
        if (!world_.severed(a, b)) {
          EXPECT_FALSE(world_.node(a).is_down(b)) << world_.node(a).why_down(b)->text();
        }
      }
    }
    // MSG-5: a one-way message arrives, or comes back to its sender, or was under way when somebody died.
    std::map<Sender, uint64_t> lost;
    std::map<Sender, bool> exact;
    for (const Oneway& oneway : oneways_) {
      if (!world_.alive(oneway.from.node)) continue;
      if (undisturbed(oneway.from.node, oneway.to)) {
        EXPECT_TRUE(oneway.arrived);
      }
      exact.try_emplace(oneway.from, true);
      if (!oneway.arrived) ++lost[oneway.from];
      if (world_.severed(oneway.from.node, oneway.to.node) ||
          world_.severed(creators_[oneway.to.index], oneway.to.node)) {
        exact[oneway.from] = false;
      }
    }
    for (const auto& [sender, is_exact] : exact) {
      if (stopped_.contains(sender.index)) continue;  // nobody is there to take what comes back
      EXPECT_LE(bounced_[sender], lost[sender]);
      if (is_exact) {
        EXPECT_EQ(bounced_[sender], lost[sender]);
      }
    }
  }

  bool linked(NodeId from, NodeId to) {
    for (const auto& link : world_.node(from).links()) {
      if (link->peer() == to && !link->closed()) return true;
    }
    return false;
  }

  // Nothing has happened that could keep `caller` and this actor from each other.
  bool undisturbed(NodeId caller, const ActorId& id) {
    const NodeId creator = creators_[id.index];
    return world_.alive(id.node) && !world_.severed(caller, id.node) && !stop_asked_.contains(id.index) &&
           spawned_.contains(id.index) && !world_.severed(creator, id.node);
  }

  SimWorld world_;
  const int hosts_;
  const uint64_t span_ns_ = hosts_ > 1 ? 1'000'000'000 : 20'000'000;  // in which things happen
  uint64_t broken_ = 0;
  Factory factory_{*this};
  std::vector<NodeId> nodes_;
  std::vector<ActorId> actors_;
  std::map<ActorIndex, NodeId> creators_;
  std::set<ActorIndex> spawned_, stopped_, stop_asked_;
  std::map<std::pair<NodeId, ActorIndex>, std::shared_ptr<SimActor>> cells_;
  std::map<std::pair<Sender, Sender>, uint64_t> sent_;
  std::map<Sender, uint64_t> bounced_;
  std::vector<Call> calls_;
  std::vector<Oneway> oneways_;
};

TEST(Contract, HoldsForEverySeed) {
  for (uint64_t seed : sim_seeds(300, 20)) {
    Scenario(seed).run();
    if (HasFailure()) {
      FAIL() << reproduction(seed, "testing_test", "Contract.HoldsForEverySeed");
    }
  }
}

// The same between hosts: no break is seen of, unless it lasts for the lease.
TEST(Contract, HoldsForEverySeedWithLeasesThroughHundredsOfBreaks) {
  uint64_t broken = 0;
  const auto seeds = sim_seeds(300, 20);
  for (uint64_t seed : seeds) {
    SimWorld::Faults faults;
    faults.hosts = 3;
    Scenario scenario(seed, faults);
    scenario.break_connections();
    scenario.run();
    broken += scenario.broken();
    if (HasFailure()) {
      FAIL() << reproduction(seed, "testing_test", "Contract.HoldsForEverySeedWithLeasesThroughHundredsOfBreaks");
    }
  }
  if (seeds.size() > 1) {
    EXPECT_GT(broken, 20 * seeds.size());
  }
}

// ---- Single clauses, on the smallest world that shows them ----

struct Echo : Cell {
  explicit Echo(Node& n) : node(n) {}
  void deliver(MessagePtr message) override {
    if (message->header.kind == FrameKind::kUndeliverable) {
      ++undeliverable;
      return;
    }
    ++count;
    last_deadline_ns = message->deadline_ns;
    last_size = message->parts.empty() ? message->body.size() : message->parts[0].size;
    if (mute) return;
    Outgoing answer{FrameHeader{}, message->body, {}};
    node.reply(message->header, message->from, FrameKind::kReply, answer);
  }
  Node& node;
  int count = 0;
  int undeliverable = 0;
  size_t last_size = 0;
  int64_t last_deadline_ns = 0;
  bool mute = false;
};

struct TwoNodes {
  explicit TwoNodes(uint64_t seed = 1, int host_of_b = 0)
      : world(seed), a(world.add_node(0)), b(world.add_node(host_of_b)) {
    client = std::make_shared<Echo>(world.node(a));
    world.node(a).add_cell(kClient, client);
    echo = std::make_shared<Echo>(world.node(b));
    world.node(b).add_cell(100, echo);
    auto list = std::make_shared<Members>();
    list->ids = {{b, 100}};
    members = list;
  }
  std::shared_ptr<PendingCall> call() {
    auto pending = std::make_shared<PendingCall>(members);
    Outgoing request{FrameHeader{}, {}, {}};
    request.header.kind = FrameKind::kRequest;
    request.header.sender = kClient;
    world.node(a).cast(*members, request, pending);
    return pending;
  }
  void tell() {
    Outgoing oneway{FrameHeader{}, {}, {}};
    oneway.header.sender = kClient;
    world.node(a).cast(*members, oneway, nullptr);
  }
  SimWorld world;
  NodeId a, b;
  std::shared_ptr<Echo> client, echo;
  std::shared_ptr<const Members> members;
};

// The notice of a death may come before the link to the dead node has noticed: a call made between the two must end.
TEST(Contract, ACallToANodeThatIsKnownDeadFailsThoughItsLinkIsOpen) {
  TwoNodes two;
  ASSERT_TRUE((two.call(), two.world.run()));
  two.world.node(two.a).node_down(two.b, failure("it was killed"));
  auto pending = two.call();
  ASSERT_TRUE(pending->complete());
  EXPECT_EQ(reply_text(*pending->reply(0)), "it was killed");
}

// Whoever is told that a host has died may call what ran there at once: it is dead as well.
TEST(Contract, ThoseThatAreLostTogetherAreDeadBeforeAnybodyIsTold) {
  TwoNodes two;
  two.echo->mute = true;
  const NodeId beside = two.world.add_node(0);
  auto pending = two.call();
  two.world.run();
  Node& node = two.world.node(two.a);
  bool was_down = false;
  pending->observe(1, [&] { was_down = node.is_down(beside); });
  node.nodes_down({{two.b, failure("it was killed")}, {beside, failure("with its host")}});
  EXPECT_TRUE(pending->complete() && was_down);
}

// Who makes anew what a call has named as dead is not told that it lives.
TEST(Contract, WhatIsDeadForACallHasEndedForItsOwner) {
  TwoNodes two;
  two.echo->mute = true;
  const NodeId beside = two.world.add_node(0);
  Node& node = two.world.node(two.a);
  auto processes = std::make_shared<Members>();
  processes->ids = {{two.a, 0}, {beside, 0}};
  OwnedMesh mesh;
  mesh.is_procs = true;
  mesh.members = processes;
  const Supervisor::MeshId id = node.own(std::move(mesh));
  auto pending = two.call();
  two.world.run();
  std::optional<std::vector<uint32_t>> ended;
  pending->observe(1, [&] { ended = node.ended_ranks(id); });  // the first is told, the second only marked
  node.nodes_down({{two.b, failure("it was killed")}, {beside, failure("with its host")}});
  EXPECT_EQ(ended, std::vector<uint32_t>{1});
}

// Who makes it anew at once is not told of that death a second time, and what is new does not count as ended.
TEST(Contract, WhatIsMadeAnewInTheMiddleOfTheNewsLives) {
  TwoNodes two;
  two.echo->mute = true;
  const NodeId beside = two.world.add_node(0), next = two.world.add_node(0);
  Node& node = two.world.node(two.a);
  auto processes = std::make_shared<Members>();
  processes->ids = {{beside, 0}};
  OwnedMesh mesh;
  mesh.is_procs = true;
  mesh.members = processes;
  Node::Restart order;
  order.procs = node.own(std::move(mesh));
  order.proc_ranks = {0};
  order.processes = {{beside, next}};
  auto pending = two.call();
  two.world.run();
  bool done = false;
  pending->observe(1, [&] { done = node.ended_ranks(order.procs)->size() == 1 && node.restart(order).ok(); });
  node.nodes_down({{two.b, failure("it was killed")}, {beside, failure("with its host")}});
  EXPECT_TRUE(done);
  EXPECT_EQ(node.ended_ranks(order.procs), std::vector<uint32_t>{});
}

// Nothing that comes from it would be answered. It is told, by the end of its link.
TEST(Contract, ACallToANodeThatHoldsTheCallerForDeadEnds) {
  TwoNodes two;
  two.world.node(two.b).node_down(two.a, failure("it was thought to be dead"));
  auto pending = two.call();
  two.world.run();
  ASSERT_TRUE(pending->complete());
  EXPECT_EQ(pending->reply(0)->header.kind, FrameKind::kReplyFailed);
}

TEST(Contract, ACallUnderWayFailsWithTheFirstReasonWhenItsNodeDies) {
  TwoNodes two;
  two.echo->mute = true;
  auto pending = two.call();
  two.world.run();
  EXPECT_FALSE(pending->complete());
  two.world.node(two.a).node_down(two.b, failure("first"));
  two.world.node(two.a).node_down(two.b, failure("second"));
  ASSERT_TRUE(pending->complete());
  EXPECT_EQ(pending->reply(0)->header.kind, FrameKind::kReplyFailed);
  EXPECT_EQ(reply_text(*pending->reply(0)), "first");
}

TEST(Contract, CallsEndWhenTheirOwnNodeCloses) {
  TwoNodes two;
  two.echo->mute = true;
  auto pending = two.call();
  two.world.run();
  two.world.node(two.a).close_links();
  EXPECT_TRUE(pending->complete());
  EXPECT_TRUE(two.call()->complete());
}

TEST(Contract, AnAnswerThatComesTooLateIsDropped) {
  TwoNodes two;
  auto pending = two.call();
  two.world.node(two.a).node_down(two.b, failure("declared dead"));
  two.echo->mute = true;
  two.world.run();  // the answer arrives now
  EXPECT_EQ(pending->reply(0)->header.kind, FrameKind::kReplyFailed);
  EXPECT_EQ(pending->received(), 1u);
}

// A dial that found no descriptor says nothing about the node that was dialled.
TEST(Contract, AShortageOfOurOwnFailsWhatWaitsAndKillsNobody) {
  TwoNodes two;
  two.world.fail_next_dial(two.a);
  auto call = two.call();
  two.world.run();
  ASSERT_TRUE(call->complete());
  EXPECT_EQ(call->reply(0)->header.kind, FrameKind::kReplyFailed);
  EXPECT_NE(reply_text(*call->reply(0)).find("out of file descriptors"), std::string::npos);
  EXPECT_FALSE(two.world.node(two.a).is_down(two.b));
  auto again = two.call();
  two.world.run();
  ASSERT_TRUE(again->complete());
  EXPECT_EQ(again->reply(0)->header.kind, FrameKind::kReply);
}

TEST(Contract, OnlyTheLastEpitaphsAreKept) {
  TwoNodes two;
  const ActorIndex first = 1000, last = first + Directory::kEpitaphsMax;
  for (ActorIndex index = first; index <= last; ++index) two.world.node(two.b).remove_cell(index, "it has ended");
  auto answer_of = [&](ActorIndex index) {
    auto to = std::make_shared<Members>();
    to->ids = {{two.b, index}};
    two.members = to;
    auto pending = two.call();
    two.world.run();
    return pending->complete() ? reply_text(*pending->reply(0)) : "none";
  };
  EXPECT_EQ(answer_of(last), "it has ended");
  EXPECT_EQ(answer_of(first + 1), "it has ended");
  EXPECT_EQ(answer_of(first), "there is no such actor in this process");
}

TEST(Contract, AOneWayMessageThatFindsNobodyComesBack) {
  TwoNodes two;
  two.world.node(two.b).remove_cell(100, "the actor has ended");
  two.tell();
  two.world.run();
  EXPECT_EQ(two.client->undeliverable, 1);
  two.world.kill(two.b, "killed");
  two.world.run();
  two.tell();
  EXPECT_EQ(two.client->undeliverable, 2);
}

TEST(Contract, AMessageThatOvertakesItsActorsSpawnWaitsForIt) {
  TwoNodes two;
  const NodeId creator = two.world.add_node();
  struct EchoFactory : CellFactory {
    std::shared_ptr<Cell> make(Node& node, ActorIndex, MessagePtr) override { return std::make_shared<Echo>(node); }
  } factory;
  two.world.node(two.b).set_factory(CellKind::kNative, factory);
  auto list = std::make_shared<Members>();
  list->ids = {{two.b, two.world.node(creator).new_actor_index()}};
  two.members = list;
  auto early = two.call();
  two.world.after(50'000'000, [&] {  // long after the call has arrived
    EXPECT_FALSE(early->complete());
    Outgoing spawn{FrameHeader{}, {}, {}};
    spawn.header.kind = FrameKind::kSpawn;
    spawn.header.dest = list->ids[0].index;
    std::string why;
    two.world.node(creator).send(two.b, spawn, &why);
  });
  two.world.run();
  ASSERT_TRUE(early->complete());
  EXPECT_EQ(early->reply(0)->header.kind, FrameKind::kReply);
}

TEST(Contract, AMessageForAnActorThatNeverComesIsRefusedInTheEnd) {
  TwoNodes two;
  const NodeId creator = two.world.add_node();
  auto list = std::make_shared<Members>();
  list->ids = {{two.b, two.world.node(creator).new_actor_index()}};
  two.members = list;
  auto pending = two.call();
  two.tell();
  two.world.run();
  ASSERT_TRUE(pending->complete());
  EXPECT_GE(two.world.now_ns(), Directory::kEarlyLimitNs);
  EXPECT_EQ(reply_text(*pending->reply(0)), "there is no such actor in this process");
  EXPECT_EQ(two.client->undeliverable, 1);

  list = std::make_shared<Members>();
  list->ids = {{two.b, two.world.node(creator).new_actor_index()}};
  two.members = list;
  pending = two.call();
  two.world.after(10'000'000, [&] { two.world.node(two.b).node_down(creator, failure("killed")); });
  two.world.run();
  EXPECT_EQ(reply_text(*pending->reply(0)), "the process that was to create this actor has ended: killed");
}

// Two creators that make the same index for actors of one node (base/ids.h says how improbable that is) must not have
// their messages mixed up in silence.
TEST(Contract, TheSecondActorOfAnIndexIsRefused) {
  TwoNodes two;
  struct EchoFactory : CellFactory {
    std::shared_ptr<Cell> make(Node& node, ActorIndex, MessagePtr) override {
      ++made;
      return std::make_shared<Echo>(node);
    }
    int made = 0;
  } factory;
  two.world.node(two.b).set_factory(CellKind::kNative, factory);
  const NodeId other = two.world.add_node();
  for (const NodeId creator : {two.a, other}) {
    Outgoing spawn{FrameHeader{}, {}, {}};
    Members members{{{two.b, 200}}};
    two.world.node(creator).spawn(members, spawn);
    two.world.run();
  }
  EXPECT_EQ(factory.made, 1);
}

TEST(Contract, SizeChangesNothing) {
  for (size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{65536}, size_t{20} << 20}) {
    TwoNodes two;
    std::vector<std::byte> bulk(size, std::byte{3});
    const ByteSpan part(bulk);
    Outgoing request{FrameHeader{}, {}, {&part, 1}};
    request.header.kind = FrameKind::kRequest;
    auto pending = std::make_shared<PendingCall>(two.members);
    two.world.node(two.a).cast(*two.members, request, pending);
    two.world.run();
    ASSERT_TRUE(pending->complete());
    EXPECT_EQ(two.echo->last_size, size);
  }
}

// ---- Through others ----

// Node a has no link to c, but to b, who has one.
struct ThreeNodes : TwoNodes {
  explicit ThreeNodes(uint64_t seed = 1) : TwoNodes(seed), c(world.add_node()) {
    far = std::make_shared<Echo>(world.node(c));
    world.node(c).add_cell(100, far);
    members = std::make_shared<Members>(Members{{{c, 100}}});
    world.node(a).reach_through(c, b);
  }
  bool linked(NodeId from, NodeId to) {
    for (const auto& link : world.node(from).links()) {
      if (link->peer() == to) return true;
    }
    return false;
  }
  NodeId c;
  std::shared_ptr<Echo> far;
};

TEST(Relay, CallsAndAnswersPassThroughTheNodeBetween) {
  ThreeNodes three;
  for (int i = 0; i < 10; ++i) {
    auto call = three.call();
    three.tell();
    three.world.run();
    ASSERT_TRUE(call->complete());
    EXPECT_EQ(call->reply(0)->header.kind, FrameKind::kReply);
  }
  EXPECT_EQ(three.far->count, 20);
  EXPECT_FALSE(three.linked(three.a, three.c));
  EXPECT_FALSE(three.linked(three.c, three.a));
  EXPECT_EQ(three.echo->count, 0);
}

TEST(Relay, WhatFindsNobodyComesBack) {
  ThreeNodes three;
  three.world.node(three.c).remove_cell(100, "the actor has ended");
  auto call = three.call();
  three.tell();
  three.world.run();
  EXPECT_EQ(reply_text(*call->reply(0)), "the actor has ended");
  EXPECT_EQ(three.client->undeliverable, 1);
}

TEST(Relay, WhereTheNodeBetweenHasNoRouteItSaysSo) {
  ThreeNodes three;
  three.world.node(three.b).node_down(three.c, failure("it was killed"));
  three.world.kill(three.c, "it was killed");
  three.world.run();
  auto call = three.call();
  three.tell();
  three.world.run();
  ASSERT_TRUE(call->complete());
  EXPECT_EQ(reply_text(*call->reply(0)), "it was killed");
  EXPECT_EQ(three.client->undeliverable, 1);
}

TEST(Relay, ADeathAtTheFarEndFailsTheCallsThatAreUnderWay) {
  ThreeNodes three;
  three.far->mute = true;
  auto call = three.call();
  three.world.run();
  EXPECT_FALSE(call->complete());
  three.world.kill(three.c, "killed");
  three.world.run();
  ASSERT_TRUE(call->complete());
  EXPECT_EQ(call->reply(0)->header.kind, FrameKind::kReplyFailed);
  EXPECT_TRUE(three.world.node(three.a).is_down(three.c));
}

TEST(Relay, WhoDiesOnTheWayTakesThoseBehindAlong) {
  ThreeNodes three;
  three.far->mute = true;
  auto call = three.call();
  three.world.run();
  three.world.kill(three.b, "killed");
  three.world.run();
  ASSERT_TRUE(call->complete());
  EXPECT_NE(reply_text(*call->reply(0)).find("the process on the way to it has ended"), std::string::npos);
  EXPECT_TRUE(three.call()->complete());
}

TEST(Relay, AFrameThatGoesInCirclesIsGivenUp) {
  ThreeNodes three;
  const NodeId nowhere = 4711;
  three.world.node(three.a).reach_through(nowhere, three.b);
  three.world.node(three.b).reach_through(nowhere, three.c);
  three.world.node(three.c).reach_through(nowhere, three.a);
  three.members = std::make_shared<Members>(Members{{{nowhere, 100}}});
  auto call = three.call();
  ASSERT_TRUE(three.world.run(10'000));
  EXPECT_TRUE(call->complete());
}

// Who has dialled this node would speak for itself. What another one says in its name is not taken, and not left
// without an answer either.
TEST(Relay, NobodySpeaksForANodeThatSpeaksForItself) {
  ThreeNodes three;
  for (const NodeId dials : {three.b, three.c}) ASSERT_NE(three.world.node(dials).route(three.a), nullptr);
  three.world.run();
  auto speaker = std::make_shared<Echo>(three.world.node(three.b));
  three.world.node(three.b).add_cell(kClient, speaker);
  auto seen = std::make_shared<Echo>(three.world.node(three.a));
  three.world.node(three.a).add_cell(100, seen);
  Outgoing forged{FrameHeader{}, {}, {}};
  forged.header.sender = kClient;
  forged.header.dest = 100;
  forged.header.flags = kFlagRouted;
  forged.route = {three.b, three.a, 0, 0};  // node c says that it passes on what b says to a
  ASSERT_TRUE(three.world.node(three.c).route(three.a)->send(forged));
  three.world.run();
  EXPECT_EQ(seen->count, 0);
  EXPECT_EQ(speaker->undeliverable, 1);
  EXPECT_FALSE(three.world.node(three.a).is_down(three.b));
}

// Its frames were under way when there came to be another way between the two.
TEST(Relay, ACallToANodeThatDialsItsCallerMeanwhileIsAnswered) {
  ThreeNodes three;
  auto call = three.call();
  ASSERT_NE(three.world.node(three.c).route(three.a), nullptr);
  three.world.run();
  ASSERT_TRUE(call->complete());
  EXPECT_EQ(call->reply(0)->header.kind, FrameKind::kReply) << reply_text(*call->reply(0));
  EXPECT_FALSE(three.world.node(three.a).is_down(three.c));
}

TEST(Relay, ACallToANodeThatHoldsTheCallerForDeadEnds) {
  ThreeNodes three;
  three.world.node(three.c).node_down(three.a, failure("it was thought to be dead"));
  auto call = three.call();
  three.tell();
  three.world.run();
  ASSERT_TRUE(call->complete());
  EXPECT_NE(reply_text(*call->reply(0)).find("it was thought to be dead"), std::string::npos);
  EXPECT_EQ(three.client->undeliverable, 1);
}

// Of each sender's one-way messages, whatever way they take: the next one, always.
struct Counting : Echo {
  using Echo::Echo;
  void deliver(MessagePtr message) override {
    if (message->header.kind == FrameKind::kOneway) {
      uint64_t number = 0;
      std::memcpy(&number, message->body.data(), sizeof number);
      EXPECT_EQ(number, next++);
    }
    Echo::deliver(std::move(message));
  }
  uint64_t next = 0;
};

// Two nodes that talk, of which one reaches the other through a third, and that either may dial at any moment; the
// other one may have a gateway of its own.
void two_ways(uint64_t seed) {
  ThreeNodes three(seed);
  SimWorld& world = three.world;
  const NodeId ends[] = {three.a, three.c};
  std::shared_ptr<Counting> cells[2];
  uint64_t sent[2] = {0, 0};
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (int i = 0; i < 2; ++i) {
    cells[i] = std::make_shared<Counting>(world.node(ends[i]));
    world.node(ends[i]).add_cell(200, cells[i]);
  }
  if (world.chance(50)) world.node(three.c).reach_through(three.a, world.chance(50) ? three.b : world.add_node());
  for (int i = 0; i < 40; ++i) {
    const auto to = static_cast<size_t>(world.chance(60));
    world.after(static_cast<int64_t>(world.random(5'000'000)), [&, to] {
      Node& from = world.node(ends[1 - to]);
      const Members members{{{ends[to], 200}}};
      Outgoing outgoing{FrameHeader{}, as_byte_span(&sent[to], sizeof sent[to]), {}};
      outgoing.header.sender = kClient;
      from.cast(members, outgoing, nullptr);
      ++sent[to];
      outgoing.header.kind = FrameKind::kRequest;
      calls.push_back(std::make_shared<PendingCall>(std::make_shared<Members>(members)));
      from.cast(members, outgoing, calls.back());
    });
  }
  ASSERT_TRUE(world.run());
  for (const size_t i : {0, 1}) EXPECT_EQ(cells[i]->next, sent[i]);
  for (const auto& call : calls) {
    ASSERT_TRUE(call->complete());
    EXPECT_EQ(call->reply(0)->header.kind, FrameKind::kReply) << reply_text(*call->reply(0));
  }
}

TEST(Relay, TwoWaysBetweenTwoNodesBreakNoOrderAndHangNoCallForEverySeed) {
  for (uint64_t seed : sim_seeds(300, 20)) {
    two_ways(seed);
    if (::testing::Test::HasFailure()) {
      FAIL() << reproduction(seed, "testing_test",
                             "Relay.TwoWaysBetweenTwoNodesBreakNoOrderAndHangNoCallForEverySeed");
    }
  }
}

TEST(Relay, TheTimeThatIsLeftOfADeadlineGoesAlong) {
  ThreeNodes three;
  three.far->mute = true;
  auto call = std::make_shared<PendingCall>(three.members);
  Outgoing request{FrameHeader{}, {}, {}};
  request.header.kind = FrameKind::kRequest;
  request.deadline_ns = three.world.now_ns() + 1'000'000'000;
  three.world.node(three.a).cast(*three.members, request, call);
  three.world.run();
  EXPECT_EQ(three.far->count, 1);
  EXPECT_GT(three.far->last_deadline_ns, 1'000'000'000);
  EXPECT_TRUE(call->complete());
}

TEST(Contract, ACallOnNobodyIsCompleteAtOnce) {
  TwoNodes two;
  two.members = std::make_shared<Members>();
  EXPECT_TRUE(two.call()->complete());
}

// ---- Between hosts ----

struct TwoHosts : TwoNodes {
  explicit TwoHosts(uint64_t seed = 1) : TwoNodes(seed, 1) {}
};

TEST(Lease, ACallGoesThroughABreakAsIfThereWereNone) {
  TwoHosts two;
  ASSERT_TRUE((two.call(), two.world.run()));
  for (int i = 0; i < 100; ++i) {
    auto call = two.call();
    two.tell();
    for (int step = 0; step < i % 7; ++step) two.world.step();
    two.world.cut(two.a, two.b);
    ASSERT_TRUE(two.world.run());
    ASSERT_TRUE(call->complete());
    EXPECT_EQ(call->reply(0)->header.kind, FrameKind::kReply);
  }
  EXPECT_EQ(two.echo->count, 201);
  EXPECT_EQ(two.client->undeliverable, 0);
}

TEST(Lease, APartingThatIsShorterIsNotNoticed) {
  TwoHosts two;
  ASSERT_TRUE((two.call(), two.world.run()));
  two.world.part(0, 1, 1'000'000'000);
  auto call = two.call();
  ASSERT_TRUE(two.world.run());
  ASSERT_TRUE(call->complete());
  EXPECT_EQ(call->reply(0)->header.kind, FrameKind::kReply);
  EXPECT_FALSE(two.world.node(two.a).is_down(two.b) || two.world.node(two.b).is_down(two.a));
}

TEST(Lease, APartingThatIsLongerIsADeathForBoth) {
  TwoHosts two;
  two.echo->mute = true;
  auto waits = two.call();
  ASSERT_TRUE(two.world.run());
  two.world.part(0, 1, 3'000'000'000);
  auto call = two.call();
  ASSERT_TRUE(two.world.run());
  two.tell();
  for (const auto& one : {waits, call}) {
    ASSERT_TRUE(one->complete());
    EXPECT_EQ(one->reply(0)->header.kind, FrameKind::kReplyFailed);
    EXPECT_NE(reply_text(*one->reply(0)).find("did not come back for 2000 ms"), std::string::npos)
        << reply_text(*one->reply(0));
  }
  EXPECT_EQ(two.client->undeliverable, 1);
  EXPECT_TRUE(two.world.node(two.a).is_down(two.b));
  EXPECT_TRUE(two.world.node(two.b).is_down(two.a));
}

// Whoever is held for dead on one side is told so when it calls again, though the network has come back.
TEST(Lease, ADeathThatOnlyOneSideKnowsOfReachesTheOther) {
  TwoHosts two;
  ASSERT_TRUE((two.call(), two.world.run()));
  two.world.node(two.b).node_down(two.a, failure("declared dead"));
  for (const auto& link : two.world.node(two.b).links()) link->close();
  auto call = two.call();
  ASSERT_TRUE(two.world.run());
  ASSERT_TRUE(call->complete());
  EXPECT_EQ(call->reply(0)->header.kind, FrameKind::kReplyFailed);
  EXPECT_TRUE(two.world.node(two.a).is_down(two.b));
}

TEST(Lease, TheDeathOfAProcessIsNotWaitedForWhereItsHostSaysSo) {
  TwoHosts two;
  two.echo->mute = true;
  auto call = two.call();
  ASSERT_TRUE(two.world.run());
  const int64_t then_ns = two.world.now_ns();
  two.world.kill(two.b, "killed");
  while (!call->complete()) ASSERT_TRUE(two.world.step());
  EXPECT_LT(two.world.now_ns(), then_ns + 1'500'000'000);
}

// A script that has attached to hosts, with a process on each; the hosts do not know each other.
struct TwoHostsOfAScript {
  TwoHostsOfAScript() {
    for (const int i : {0, 1}) {
      hosts[i] = world.add_node(i + 1);
      workers[i] = world.add_child(hosts[i]);
      world.attach(script, hosts[i]);
    }
    EXPECT_NE(world.node(workers[0]).route(workers[1]), nullptr);
    EXPECT_TRUE(world.run());
  }
  std::string why_down(NodeId at, NodeId node) {
    const FailurePtr why = world.node(at).why_down(node);
    return why ? why->text() : "it is not";
  }
  SimWorld world{1};
  const NodeId script = world.add_node(0);
  NodeId hosts[2], workers[2];
};

TEST(DeathsElsewhere, AreKnownWithTheirCauseWhereverTheScriptHasAttachedTo) {
  TwoHostsOfAScript two;
  two.world.kill(two.workers[1]);
  ASSERT_TRUE(two.world.run());
  for (const NodeId node : {two.script, two.hosts[0], two.hosts[1], two.workers[0]}) {
    EXPECT_NE(two.why_down(node, two.workers[1]).find("Killed(sig=9)"), std::string::npos)
        << two.why_down(node, two.workers[1]);
  }
}

// A host speaks for what it has started, also to the script that it believes.
TEST(DeathsElsewhere, AHostIsNotBelievedAboutTheProcessesOfAnother) {
  TwoHostsOfAScript two;
  const std::string record = Failure("it is dead, says another host").encoded();
  Outgoing lie{FrameHeader{}, as_byte_span(record.data(), record.size()), {}};
  lie.header.kind = FrameKind::kNodeDown;
  lie.header.dest = two.workers[1];
  ASSERT_TRUE(two.world.node(two.hosts[0]).route(two.script)->send_control(lie));
  ASSERT_TRUE(two.world.run());
  for (const NodeId node : {two.script, two.hosts[1], two.workers[0]}) {
    EXPECT_EQ(two.why_down(node, two.workers[1]), "it is not");
  }
}

TEST(SimWorld, TheSameSeedGivesTheSameRun) {
  auto events = [](uint64_t seed) {
    TwoNodes two(seed);
    for (int i = 0; i < 50; ++i) two.call();
    two.world.run();
    return std::make_pair(two.world.events(), two.world.now_ns());
  };
  EXPECT_EQ(events(5), events(5));
  EXPECT_NE(events(5).second, events(6).second);
}

}  // namespace
}  // namespace monarch::testing
