// The delivery contract (DESIGN.md section 4) on real nodes over seeds of the SimWorld; docs/invariants.md names each.
#include <gtest/gtest.h>

#include <set>

#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

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
  explicit Scenario(uint64_t seed) : world_(seed) { build(); }
  ~Scenario() { world_.end(); }

  void run() {
    const uint64_t steps = 100 + world_.random(300);
    for (uint64_t i = 0; i < steps; ++i) {
      world_.after(static_cast<int64_t>(world_.random(20'000'000)), [this] { act(); });
    }
    // Some worlds live in peace; in others nodes die, links break and actors end at any moment.
    const uint64_t kills = world_.chance(60) ? world_.random(3) : 0;
    const uint64_t cuts = world_.chance(40) ? world_.random(2) : 0;
    const uint64_t stops = world_.random(3);
    for (uint64_t i = 0; i < kills; ++i) {
      world_.after(static_cast<int64_t>(world_.random(22'000'000)), [this] {
        world_.kill(any_node(), "the process was killed");
      });
    }
    for (uint64_t i = 0; i < cuts; ++i) {
      world_.after(static_cast<int64_t>(world_.random(22'000'000)), [this] {
        const NodeId a = any_node(), b = any_node();
        if (a != b) world_.cut(a, b);
      });
    }
    for (uint64_t i = 0; i < stops; ++i) {
      world_.after(static_cast<int64_t>(world_.random(22'000'000)), [this] { stop_actor(); });
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
      const NodeId id = world_.add_node();
      nodes_.push_back(id);
      world_.node(id).set_factory(CellKind::kNative, factory_);
      // The script of each node: what comes back to it is counted.
      auto client = std::make_shared<SimActor>(*this, world_.node(id), kClient);
      cells_[{id, kClient}] = client;
      world_.node(id).add_cell(kClient, client);
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
              (world_.node(entry.caller).is_down(id.node, nullptr) ? ", known dead" : "") + "; ";
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
          EXPECT_NE(reply->header.kind, FrameKind::kReplyFailed) << reply->text();
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

  // Nothing has happened that could keep `caller` and this actor from each other.
  bool undisturbed(NodeId caller, const ActorId& id) {
    const NodeId creator = creators_[id.index];
    return world_.alive(id.node) && !world_.severed(caller, id.node) && !stop_asked_.contains(id.index) &&
           spawned_.contains(id.index) && !world_.severed(creator, id.node);
  }

  SimWorld world_;
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

// ---- Single clauses, on the smallest world that shows them ----

struct Echo : Cell {
  explicit Echo(Node& n) : node(n) {}
  void deliver(MessagePtr message) override {
    if (message->header.kind == FrameKind::kUndeliverable) {
      ++undeliverable;
      return;
    }
    ++count;
    last_size = message->parts.empty() ? message->body.size() : message->parts[0].size;
    if (mute) return;
    Outgoing answer{FrameHeader{}, message->body, {}};
    node.reply(message->header, message->from, FrameKind::kReply, answer);
  }
  Node& node;
  int count = 0;
  int undeliverable = 0;
  size_t last_size = 0;
  bool mute = false;
};

struct TwoNodes {
  explicit TwoNodes(uint64_t seed = 1) : world(seed), a(world.add_node()), b(world.add_node()) {
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
  two.world.node(two.a).node_down(two.b, "it was killed");
  auto pending = two.call();
  ASSERT_TRUE(pending->complete());
  EXPECT_EQ(pending->reply(0)->text(), "it was killed");
}

TEST(Contract, ACallUnderWayFailsWithTheFirstReasonWhenItsNodeDies) {
  TwoNodes two;
  two.echo->mute = true;
  auto pending = two.call();
  two.world.run();
  EXPECT_FALSE(pending->complete());
  two.world.node(two.a).node_down(two.b, "first");
  two.world.node(two.a).node_down(two.b, "second");
  ASSERT_TRUE(pending->complete());
  EXPECT_EQ(pending->reply(0)->header.kind, FrameKind::kReplyFailed);
  EXPECT_EQ(pending->reply(0)->text(), "first");
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
  two.world.node(two.a).node_down(two.b, "declared dead");
  two.echo->mute = true;
  two.world.run();  // the answer arrives now
  EXPECT_EQ(pending->reply(0)->header.kind, FrameKind::kReplyFailed);
  EXPECT_EQ(pending->received(), 1u);
}

TEST(Contract, OnlyTheLastEpitaphsAreKept) {
  TwoNodes two;
  const ActorIndex first = 1000, last = first + Node::kEpitaphsMax;
  for (ActorIndex index = first; index <= last; ++index) two.world.node(two.b).remove_cell(index, "it has ended");
  auto answer_of = [&](ActorIndex index) {
    auto to = std::make_shared<Members>();
    to->ids = {{two.b, index}};
    two.members = to;
    auto pending = two.call();
    two.world.run();
    return std::string(pending->complete() ? pending->reply(0)->text() : "none");
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
  EXPECT_EQ(pending->reply(0)->text(), "there is no such actor in this process");
  EXPECT_EQ(two.client->undeliverable, 1);

  list = std::make_shared<Members>();
  list->ids = {{two.b, two.world.node(creator).new_actor_index()}};
  two.members = list;
  pending = two.call();
  two.world.after(10'000'000, [&] { two.world.node(two.b).node_down(creator, "killed"); });
  two.world.run();
  EXPECT_EQ(pending->reply(0)->text(), "the process that was to create this actor has ended: killed");
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

TEST(Contract, ACallOnNobodyIsCompleteAtOnce) {
  TwoNodes two;
  two.members = std::make_shared<Members>();
  EXPECT_TRUE(two.call()->complete());
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
