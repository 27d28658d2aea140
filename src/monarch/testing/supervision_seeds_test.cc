// Supervision and recovery over seeds: docs/invariants.md names what is checked (owner_world.h).
#include <gtest/gtest.h>

#include "monarch/testing/owner_world.h"

namespace monarch::testing {
namespace {

constexpr int64_t kMs = 1'000'000;

struct Storm {
  OwnerWorld world;
  SimWorld& sim = world.sim();
  const int64_t span_ns = 60 * kMs;  // in which things happen

  Storm(uint64_t seed, SimWorld::Faults faults) : world(seed, faults) {}

  int64_t moment() { return static_cast<int64_t>(sim.random(static_cast<uint64_t>(span_ns))); }

  void begin(int hosts) {
    for (int host = 1; host < hosts; ++host) world.add_agent(host);
    while (sim.now_ns() < 10 * kMs && sim.step()) {  // until the script has links to them
    }
    for (uint64_t i = 1 + sim.random(2); i > 0; --i) {
      const auto& agents = world.agents();
      const NodeId parent = agents.empty() || sim.chance(50) ? world.script() : agents[sim.random(agents.size())];
      const OwnerWorld::Policy policy{sim.chance(40) ? 1 + static_cast<int>(sim.random(3)) : 0, false};
      auto& procs = world.spawn_procs(nullptr, parent, 1 + sim.random(4), policy);
      std::vector<NodeId> nodes;
      for (const ActorId& id : procs.members->ids) nodes.push_back(id.node);
      world.spawn_actors(nullptr, nodes, &procs, {sim.chance(40) ? 2 : 0, sim.chance(50)});
    }
  }

  void plan() {
    for (uint64_t i = 20 + sim.random(60); i > 0; --i) sim.after(moment(), [this] { world.act(); });
    const uint64_t kills = sim.chance(80) ? sim.random(6) : 0;
    for (uint64_t i = 0; i < kills; ++i) {
      sim.after(moment(), [this] {
        const NodeId victim = world.any_process();
        if (victim != 0) sim.kill(victim);
      });
    }
    for (uint64_t i = sim.random(4); i > 0; --i) {
      sim.after(moment(), [this] {
        const NodeId victim = sim.chance(10) ? world.script() : world.any_process();
        if (victim != 0) sim.stop(victim, static_cast<int64_t>(sim.random(30 * kMs)));
      });
    }
  }
};

// Between hosts connections break; some hosts are parted, for less than a lease or for longer. A process may be short of
// descriptors when it dials.
void disturb(Storm& storm, int hosts) {
  SimWorld& sim = storm.sim;
  const auto any_host = [&sim, hosts] { return static_cast<int>(sim.random(static_cast<uint64_t>(hosts))); };
  for (uint64_t i = sim.random(20); i > 0; --i) {
    sim.after(storm.moment(), [&] {
      const NodeId a = storm.world.any_process(), b = storm.world.any_process();
      if (a != 0 && b != 0 && sim.host_of(a) != sim.host_of(b)) sim.cut(a, b);
    });
  }
  if (sim.chance(20)) {
    storm.world.note_short();
    sim.after(storm.moment(), [&] { sim.fail_next_dial(storm.world.any_process()); });
  }
  for (uint64_t i = sim.random(3); i > 0; --i) {
    const bool long_enough = sim.chance(15);
    sim.after(storm.moment(), [&storm, &sim, any_host, long_enough] {
      if (long_enough) storm.world.note_parted();
      sim.part(any_host(), any_host(), long_enough ? 2500 * kMs : static_cast<int64_t>(sim.random(100 * kMs)));
    });
  }
}

// On one host: a link that breaks is a death.
void cut_links(Storm& storm) {
  SimWorld& sim = storm.sim;
  for (uint64_t i = 1 + sim.random(2); i > 0; --i) {
    sim.after(storm.moment(), [&] {
      const NodeId a = storm.world.any_process(), b = storm.world.any_process();
      if (a == 0 || b == 0 || a == b || sim.host_of(a) != sim.host_of(b)) return;
      if (sim.cut(a, b)) storm.world.note_parted();
    });
  }
}

void run_storm(Storm& storm) {
  storm.plan();
  ASSERT_TRUE(storm.sim.run(1'000'000)) << "it never becomes quiet: " << storm.world.state();
  storm.world.check();
  ASSERT_EQ(storm.world.violations(), "") << storm.world.state();
  storm.world.probe();
  ASSERT_TRUE(storm.sim.run(1'000'000)) << "it never becomes quiet again";
  storm.world.check();
  EXPECT_EQ(storm.world.violations(), "") << storm.world.state();
}

void replay(uint64_t seed, const char* test) {
  if (::testing::Test::HasFailure()) FAIL() << reproduction(seed, "testing_test", test);
}

TEST(Supervision, HoldsForEverySeed) {
  uint64_t respawns = 0;
  const auto seeds = sim_seeds(3000, 100);
  for (const uint64_t seed : seeds) {
    Storm storm(seed, {});
    storm.begin(1);
    run_storm(storm);
    respawns += storm.world.respawns();
    ASSERT_NO_FATAL_FAILURE(replay(seed, "Supervision.HoldsForEverySeed"));
  }
  if (seeds.size() > 1) {
    EXPECT_GT(respawns, seeds.size());
  }
}

TEST(Supervision, HoldsForEverySeedOnSeveralHosts) {
  for (const uint64_t seed : sim_seeds(2000, 100)) {
    SimWorld::Faults faults;
    faults.hosts = 3;
    Storm storm(seed, faults);
    storm.begin(faults.hosts);
    if (storm.sim.chance(70)) disturb(storm, faults.hosts);
    run_storm(storm);
    ASSERT_NO_FATAL_FAILURE(replay(seed, "Supervision.HoldsForEverySeedOnSeveralHosts"));
  }
}

TEST(Supervision, HoldsForEverySeedWhereLinksAreCut) {
  for (const uint64_t seed : sim_seeds(1000, 50)) {
    Storm storm(seed, {});
    storm.begin(1);
    cut_links(storm);
    run_storm(storm);
    ASSERT_NO_FATAL_FAILURE(replay(seed, "Supervision.HoldsForEverySeedWhereLinksAreCut"));
  }
}

// ---- Single clauses ----

// One actor of the script's, in one process.
struct OneActor {
  OneActor() {
    world.be_passive();
    actors.constructor_fails = 0;
    EXPECT_TRUE(sim.run());
  }
  ~OneActor() { EXPECT_EQ(world.violations(), ""); }
  void ask(OwnerWorld::Mesh& mesh, uint32_t what) {
    world.call(world.script(), nullptr, mesh, {0}, what, false);
    EXPECT_TRUE(sim.run());
  }
  void kill(NodeId victim) {
    sim.kill(victim);
    EXPECT_TRUE(sim.run());
  }
  // Its rank 0, as one that was stopped for it.
  void make_anew(OwnerWorld::Mesh& mesh) {
    mesh.ranks[0].stopped.insert(mesh.ranks[0].epochs.back());
    script.supervisor().note_stopped({{mesh.members->ids[0]}});
    Node::Restart order;
    order.actors.push_back({mesh.id, mesh.spawn, 0, {}, {0}});
    EXPECT_TRUE(world.restart(world.script(), order));
    EXPECT_TRUE(sim.run());
  }
  OwnerWorld world{1, {}};
  SimWorld& sim = world.sim();
  Node& script = sim.node(world.script());
  OwnerWorld::Mesh& procs = world.spawn_procs(nullptr, world.script(), 1, {});
  const NodeId process = procs.members->ids[0].node;
  OwnerWorld::Mesh& actors = world.spawn_actors(nullptr, {process}, &procs, {});
};

// Who spawns looks up who is there now, and that one may be replaced before the spawn is sent: its owner has been told of
// the death, and respawns.
TEST(Respawn, WhatIsSpawnedInAProcessThatHasJustBeenReplacedIsNotMadeInTheNext) {
  OneActor one;
  one.kill(one.process);
  one.world.respawn_procs(one.procs, {0}, false);
  ASSERT_TRUE(one.sim.run());
  const NodeId next = one.script.successions().latest(one.process);
  ASSERT_NE(next, one.process);
  auto& late = one.world.spawn_actors(nullptr, {one.process}, nullptr, {});
  EXPECT_EQ(late.ranks[0].told[0], 1);
  ASSERT_TRUE(one.sim.run());
  EXPECT_EQ(one.sim.node(next).held().cells, 1u);
  // And nobody waits for it.
  const int64_t then_ns = one.sim.now_ns();
  one.world.call(one.world.script(), nullptr, late, {0}, OwnerWorld::kEcho, false);
  ASSERT_TRUE(one.sim.run());
  EXPECT_LT(one.sim.now_ns(), then_ns + 1000 * kMs);
}

// It was stopped to be made anew with others; somebody else has made it anew just then, before that was written down, and
// that one knows of no stop.
TEST(Respawn, WhatLivesWhereItIsMadeAnewEndsFirst) {
  OneActor one;
  one.make_anew(one.actors);
  one.ask(one.actors, OwnerWorld::kEcho);
  one.world.check();
}

// It had ended by itself, of which nobody is told, when its process did.
TEST(Respawn, WhatIsMadeAnewInAProcessThatIsDeadIsToldAsFailed) {
  OneActor one;
  auto& two = one.world.spawn_actors(nullptr, {one.process, one.process}, nullptr, {});
  two.constructor_fails = 0;
  one.ask(two, OwnerWorld::kStopSelf);
  one.kill(one.process);
  EXPECT_TRUE(two.ranks[0].noticed.empty());
  one.make_anew(two);
  EXPECT_EQ(two.ranks[0].noticed[two.ranks[0].made_ns], 1);
  one.world.check();
}

TEST(Respawn, OfTwoThatReplaceAProcessTheSecondIsRefusedThoughTheFirstIsDeadToo) {
  OneActor one;
  one.kill(one.process);
  one.world.respawn_procs(one.procs, {0}, false);
  ASSERT_TRUE(one.sim.run());
  one.kill(one.script.successions().latest(one.process));
  Node::Restart order;
  order.procs = one.procs.id;
  order.proc_ranks = {0};
  order.processes.emplace_back(one.process, one.sim.add_child(one.world.script()));
  EXPECT_FALSE(one.script.restart(order));
  one.world.check();
}

// Its link to its owner was cut, the one to whoever is in its place now is not: what comes on that is not taken, and it is
// told so.
TEST(Respawn, WhoIsReplacedAndLivesWaitsForNoAnswerOfWhoIsInItsPlace) {
  SimWorld sim(1);
  const NodeId old = sim.add_node(), next = sim.add_node();
  sim.node(next).route(old);
  ASSERT_TRUE(sim.run());
  Successions::Notice notice;
  notice.processes.emplace_back(old, next);
  ASSERT_TRUE(sim.node(next).take_up(notice));
  const auto members = std::make_shared<Members>(Members{{{next, actor_index(old, 20)}}});
  const auto call = std::make_shared<PendingCall>(members);
  Outgoing request{FrameHeader{}, {}, {}};
  request.header.kind = FrameKind::kRequest;
  sim.node(old).cast(*members, request, call);
  ASSERT_TRUE(sim.run());
  EXPECT_TRUE(call->complete());
}

// Its owner has lost the link to it; whoever has started it has not, and ends it, or others would take it for who is there.
TEST(Respawn, WhoIsReplacedAndLivesIsEndedByWhoHasStartedIt) {
  SimWorld sim(1);
  const NodeId script = sim.add_node(), owner = sim.add_child(script), old = sim.add_child(script, owner);
  sim.node(owner).route(old);
  ASSERT_TRUE(sim.run());
  ASSERT_TRUE(sim.cut(owner, old));
  ASSERT_TRUE(sim.run());
  ASSERT_TRUE(sim.node(owner).is_down(old) && sim.alive(old));
  Node::Restart order;
  order.processes.emplace_back(old, sim.add_child(script, owner));
  ASSERT_TRUE(sim.node(owner).restart(order));
  ASSERT_TRUE(sim.run());
  EXPECT_FALSE(sim.alive(old));
  EXPECT_TRUE(sim.alive(order.processes[0].second));
}

// A policy may take its time, and the owner may have ended: nobody is told, nor who is there in the owner's place.
TEST(Respawn, WhatIsDecidedAfterItsOwnerHasEndedItIsToldToNobody) {
  OneActor one;
  OwnedMesh mesh;
  mesh.name = std::to_string(one.actors.number);
  mesh.members = one.actors.members;
  const MeshFailure failure{std::make_shared<OwnedMesh>(mesh), 0, std::make_shared<Failure>("late"), one.actors.id};
  one.world.let_go(one.actors);
  one.script.decide(failure);
  EXPECT_TRUE(one.actors.ranks[0].told.empty());
}

}  // namespace
}  // namespace monarch::testing
