#include "monarch/actor/directory.h"

#include <gtest/gtest.h>

#include "monarch/actor/cell.h"
#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

constexpr NodeId kCreator = 1'000'000;

struct Keeper : Cell {
  void deliver(MessagePtr message) override { got.emplace_back(message->text()); }
  std::vector<std::string> got;
};

MessagePtr message_for(ActorIndex index, std::string_view text) {
  FrameHeader header;
  header.dest = index;
  return Message::make(header, text);
}

MessagePtr of_epoch(uint32_t epoch, MessagePtr message) {
  message->header.epoch = epoch;
  return message;
}

struct DirectoryTest : ::testing::Test {
  Directory::Early keep(ActorIndex index, std::string_view text) {
    MessagePtr message = message_for(index, text);
    return directory.keep_early(message, false, &why);
  }
  Directory::Early keep_stop(ActorIndex index, uint32_t epoch) {
    MessagePtr stop = of_epoch(epoch, message_for(index, "stop of epoch " + std::to_string(epoch)));
    stop->header.kind = FrameKind::kStopActor;
    return directory.keep_early(stop, false, &why);
  }
  SimWorld sim{1};
  std::vector<std::string> refused;
  Failure why;
  Directory directory{sim, [this](const Message& message, const Failure& reason) {
    refused.push_back(std::string(message.text()) + ": " + reason.text());
  }};
};

TEST_F(DirectoryTest, DeliversWhatCameEarlyInItsOrderAndLeavesNoTimer) {
  const ActorIndex index = actor_index(kCreator, 20);
  EXPECT_EQ(keep(index, "a"), Directory::Early::kKept);
  EXPECT_EQ(keep(index, "b"), Directory::Early::kKept);
  EXPECT_EQ(sim.waiting(), 1u);  // one for an actor
  auto cell = std::make_shared<Keeper>();
  directory.deliver_early(index, cell);
  EXPECT_EQ(cell->got, std::vector<std::string>({"a", "b"}));
  EXPECT_EQ(sim.waiting(), 0u);
  EXPECT_EQ(directory.find(index), cell);
  EXPECT_EQ(keep(index, "c"), Directory::Early::kFound);
}

// The stop was for the one that was to be made anew, and has not been when another one is to be.
TEST_F(DirectoryTest, AStopThatWaitsForOneThatNeverBeginsIsNotForTheNext) {
  const ActorIndex index = actor_index(kCreator, 20);
  directory.add(index, std::make_shared<Keeper>());
  std::shared_ptr<Cell> ending;
  EXPECT_EQ(directory.begin_restart(of_epoch(1, message_for(index, "first")), &ending), nullptr);
  EXPECT_NE(ending, nullptr);
  EXPECT_EQ(keep_stop(index, 1), Directory::Early::kKept);
  EXPECT_EQ(keep(index, "call"), Directory::Early::kKept);
  EXPECT_EQ(directory.begin_restart(of_epoch(2, message_for(index, "second")), &ending), nullptr);
  EXPECT_EQ(refused, std::vector<std::string>{std::string("stop of epoch 1: ") + Directory::kNoSuchActor});
  directory.remove(index, "it has ended");
  const MessagePtr spawn = directory.take_restart(index);
  ASSERT_NE(spawn, nullptr);
  EXPECT_EQ(spawn->text(), "second");
  auto cell = std::make_shared<Keeper>();
  directory.deliver_early(index, cell);
  EXPECT_EQ(cell->got, std::vector<std::string>{"call"});
}

// Its spawn was lost with a dial, the stop came with the next one.
TEST_F(DirectoryTest, AStopThatWaitsForOneThatNeverCameIsNotForWhoIsMadeInItsPlace) {
  const ActorIndex index = actor_index(kCreator, 20);
  EXPECT_EQ(keep_stop(index, 0), Directory::Early::kKept);
  EXPECT_EQ(keep_stop(index, 1), Directory::Early::kKept);  // its owner has made it anew by then
  std::shared_ptr<Cell> ending;
  EXPECT_NE(directory.begin_restart(of_epoch(1, message_for(index, "spawn")), &ending), nullptr);
  EXPECT_EQ(refused, std::vector<std::string>{std::string("stop of epoch 0: ") + Directory::kNoSuchActor});
  auto cell = std::make_shared<Keeper>();
  directory.deliver_early(index, cell);
  EXPECT_EQ(cell->got, std::vector<std::string>{"stop of epoch 1"});
}

TEST_F(DirectoryTest, KnowsWhoHasSpawnedAnActorFromBeforeItIsMadeUntilItsEnd) {
  const ActorIndex first = actor_index(kCreator, 20);
  const ActorId owner{kCreator, 7};
  directory.expect(first, 2, owner);
  EXPECT_EQ(directory.owner_of(first), owner);
  EXPECT_TRUE(directory.is_known(first + 1));
  EXPECT_EQ(directory.owner_of(first + 2), std::nullopt);
  EXPECT_EQ(directory.find(first), nullptr);
  EXPECT_EQ(keep(first, "early"), Directory::Early::kKept);
  auto cell = std::make_shared<Keeper>();
  directory.deliver_early(first, cell);
  EXPECT_EQ(directory.find(first), cell);
  EXPECT_EQ(directory.owner_of(first), owner);
  directory.remove(first, "gone");
  EXPECT_EQ(directory.owner_of(first), std::nullopt);
  EXPECT_EQ(directory.owner_of(first + 1), owner);
  directory.remove(first + 1, "gone before its spawn was handled");
  directory.deliver_early(first + 1, cell);
  EXPECT_EQ(directory.find(first + 1), nullptr);
  EXPECT_TRUE(directory.close("the end").empty());
}

TEST_F(DirectoryTest, RefusesWhatHasWaitedForTheLimitOfTime) {
  keep(20, "a");
  sim.after(Directory::kEarlyLimitNs - 1, [&] { EXPECT_TRUE(refused.empty()); });
  sim.run();
  EXPECT_EQ(sim.now_ns(), Directory::kEarlyLimitNs);
  EXPECT_EQ(refused, std::vector<std::string>({std::string("a: ") + Directory::kNoSuchActor}));
}

TEST_F(DirectoryTest, TheEndOfACreatorRefusesWhatWaitsForItsActorsOnly) {
  keep(actor_index(kCreator, kFirstNumber), "first");
  keep(actor_index(kCreator, kNumberMax - 1), "last");
  keep(kCreator - 1, "of one before");
  keep(actor_index(kCreator, kNumberMax), "of one after");
  directory.refuse_early_of(kCreator, "it has ended");
  EXPECT_EQ(refused, std::vector<std::string>({"first: it has ended", "last: it has ended"}));
  EXPECT_EQ(sim.waiting(), 2u);
}

TEST_F(DirectoryTest, ACreatorNearTheLastIntegerCountsOnFromZero) {
  const NodeId creator = kIdMask - 1;
  keep(actor_index(creator, 1), "before");
  keep(actor_index(creator, kFirstNumber), "after");
  directory.refuse_early_of(creator, "it has ended");
  EXPECT_EQ(refused.size(), 2u);
}

TEST_F(DirectoryTest, WhatWaitsIsBoundedInCountAndBytes) {
  for (size_t i = 0; i < EarlyMessages::kCountMax; ++i) ASSERT_EQ(keep(20 + i % 7, ""), Directory::Early::kKept);
  EXPECT_EQ(keep(20, "one too many"), Directory::Early::kRefused);
  EXPECT_EQ(why.text(), "too much waits in this process for actors that have not been spawned yet");
  directory.refuse_early(20, "");
  EXPECT_EQ(keep(20, "there is room again"), Directory::Early::kKept);

  EarlyMessages few(3, 10);
  few.add(message_for(1, "12345678"));
  EXPECT_FALSE(few.has_room_for(*message_for(1, "123")));
  EXPECT_TRUE(few.has_room_for(*message_for(1, "12")));
  few.take(1);
  EXPECT_TRUE(few.has_room_for(*message_for(1, "123")));
}

TEST_F(DirectoryTest, RemembersWhatAnActorDiedOf) {
  directory.add(20, std::make_shared<Keeper>());
  EXPECT_TRUE(directory.is_known(20));
  directory.remove(20, "it has failed");
  EXPECT_TRUE(directory.is_known(20));
  EXPECT_EQ(keep(20, "a"), Directory::Early::kRefused);
  EXPECT_EQ(why.text(), "it has failed");
  directory.deliver_early(20, std::make_shared<Keeper>());  // its spawn ends after it
  EXPECT_EQ(directory.find(20), nullptr);
}

TEST_F(DirectoryTest, ItsEndRefusesWhatWaitsAndWhatComes) {
  keep(20, "waits");
  directory.add(30, std::make_shared<Keeper>());
  EXPECT_EQ(directory.close("this process is ending").size(), 1u);
  EXPECT_EQ(refused, std::vector<std::string>({"waits: this process is ending"}));
  EXPECT_EQ(sim.waiting(), 0u);
  EXPECT_EQ(keep(20, "comes"), Directory::Early::kRefused);
}

}  // namespace
}  // namespace monarch::testing
