// Back-pressure (actor/inflow.h): invariant FLOW-1 and the bound.

#include <gtest/gtest.h>

#include <thread>

#include "monarch/actor/inflow.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/room_wait.h"
#include "monarch/base/arch.h"
#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

constexpr size_t kPiece = size_t{1} << 20;
constexpr int kFull = static_cast<int>(Inflow::kBytesMax / kPiece);

// Takes nothing until it is asked to.
struct SlowCell : Cell {
  SlowCell(Node& node, ActorIndex index) : inflow(node, index) {}
  void deliver(MessagePtr message) override {
    inflow.arrived(*message);
    waiting.push(std::move(message));
    ++count;
  }
  void take(int wanted) {
    for (; wanted > 0; --wanted, --count) inflow.taken(Inflow::cost_of(*waiting.pop()));
  }
  Inflow inflow;
  MessageQueue waiting;
  int count = 0;
};

struct World {
  World() : sim(1), slow_node(sim.add_node()), senders{sim.add_node(), sim.add_node()} {
    cell = std::make_shared<SlowCell>(sim.node(slow_node), 100);
    sim.node(slow_node).add_cell(100, cell);
    members.ids = {{slow_node, 100}};
  }
  void send(NodeId from, int count) {
    for (; count > 0; --count) {
      Outgoing piece{FrameHeader{}, bytes, {}};
      sim.node(from).cast(members, piece, nullptr);
    }
    sim.run();
  }
  bool has_room(NodeId from) { return sim.node(from).has_room(members, Node::kBacklogMax); }

  SimWorld sim;
  const NodeId slow_node;
  const NodeId senders[2];
  std::shared_ptr<SlowCell> cell;
  Members members;
  const std::vector<std::byte> bytes = std::vector<std::byte>(kPiece);
};

TEST(Flow, AFullMailboxHoldsWhoSendsToItUntilHalfOfItIsTaken) {
  World world;
  const auto [a, b] = world.senders;
  world.send(a, kFull - 1);
  EXPECT_TRUE(world.has_room(a));
  world.send(a, 1);  // with what messages cost beside their bytes, one too many
  EXPECT_FALSE(world.has_room(a));
  EXPECT_TRUE(world.has_room(b));  // has not been told: it has sent nothing
  world.send(b, 1);
  EXPECT_FALSE(world.has_room(b));
  world.cell->take(kFull / 2);
  world.sim.run();
  EXPECT_FALSE(world.has_room(a));
  world.cell->take(3);
  world.sim.run();
  EXPECT_TRUE(world.has_room(a));
  EXPECT_TRUE(world.has_room(b));
  world.send(a, kFull);
  EXPECT_FALSE(world.has_room(a));
  world.cell->take(world.cell->count);
}

TEST(Flow, AnActorThatWaitsForOthersHoldsNobody) {
  World world;
  const NodeId a = world.senders[0];
  world.send(a, kFull + 1);
  EXPECT_FALSE(world.has_room(a));
  world.cell->inflow.begin_blocking();
  world.sim.run();
  EXPECT_TRUE(world.has_room(a));
  world.send(a, kFull);
  EXPECT_TRUE(world.has_room(a));
  world.cell->inflow.end_blocking();
  world.send(a, 1);
  EXPECT_FALSE(world.has_room(a));
  world.cell->take(world.cell->count);
  world.sim.run();
  EXPECT_TRUE(world.has_room(a));
}

TEST(Flow, AScriptHasNoMoreThanSoManyCallsUnderWay) {
  World world;
  Node& node = world.sim.node(world.senders[0]);
  node.set_calls_max(2);
  const auto members = std::make_shared<const Members>(world.members);
  std::vector<uint64_t> tokens;
  const auto call = [&] {
    Outgoing outgoing{FrameHeader{}, {}, {}};
    outgoing.header.kind = FrameKind::kRequest;
    node.cast(*members, outgoing, std::make_shared<PendingCall>(members));
    world.sim.run();
  };
  RoomWait of_script(node, *members, /*counts=*/true), of_actor(node, *members, /*counts=*/false);
  call();
  EXPECT_TRUE(of_script.over());
  call();
  EXPECT_FALSE(of_script.over());
  EXPECT_TRUE(of_actor.over()) << "others may wait for it";
  const MessagePtr first = world.cell->waiting.pop();
  world.sim.node(world.slow_node).reply_failed(first->header, first->from, Failure("not now"));
  world.sim.run();
  EXPECT_TRUE(of_script.over());
}

TEST(Flow, TheDeadHoldNobody) {
  World world;
  const NodeId a = world.senders[0];
  world.send(a, kFull + 1);
  EXPECT_FALSE(world.has_room(a));
  world.sim.kill(world.slow_node, "killed");
  world.sim.run();
  EXPECT_TRUE(world.has_room(a));
  world.cell->take(world.cell->count);
}

// As after two hosts have parted and met again: the sender has forgotten that it is held.
TEST(Flow, WhoGoesOnSendingIsToldToHoldAgain) {
  World world;
  const NodeId a = world.senders[0];
  world.send(a, kFull);
  ASSERT_TRUE(world.sim.node(world.slow_node).tell_sender(a, FrameKind::kResume, 100));
  world.sim.run();
  ASSERT_TRUE(world.has_room(a));
  int sent = 0;
  for (; sent < kFull && world.has_room(a); ++sent) world.send(a, 1);
  EXPECT_EQ(sent, static_cast<int>(Inflow::kTellAgainBytes / kPiece));
  world.cell->take(world.cell->count);
  world.sim.run();
  EXPECT_TRUE(world.has_room(a));
}

// A message that is one too many comes just when the actor begins to wait for others: whichever is first, its sender is
// not held.
TEST(Flow, NobodyIsHeldByAnActorThatBeginsToWaitMeanwhile) {
  World world;
  Node& node = world.sim.node(world.slow_node);
  Inflow inflow(node, 100);
  const MessagePtr message = Message::copy_of({FrameHeader{}, world.bytes, {}}, world.slow_node);
  for (int i = 0; i < kFull - 1; ++i) inflow.arrived(*message);
  std::atomic<int> started{0}, waiting{0}, looked{0};
  constexpr int kRounds = 20'000;
  std::thread actor([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (started.load() != round) {
      }
      inflow.begin_blocking();
      waiting = round;
      while (looked.load() != round) {
      }
      inflow.end_blocking();
      waiting = -round;
    }
  });
  int held = 0;
  for (int round = 1; round <= kRounds; ++round) {
    started = round;
    for (int pause = round % 64; pause > 0; --pause) arch::pause();
    inflow.arrived(*message);
    while (waiting.load() != round) {
    }
    if (!node.has_room(world.members, Node::kBacklogMax)) ++held;
    looked = round;
    while (waiting.load() != -round) {
    }
    inflow.taken(Inflow::cost_of(*message));
  }
  actor.join();
  EXPECT_EQ(held, 0);
}

}  // namespace
}  // namespace monarch::testing
