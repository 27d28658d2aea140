#include "monarch/actor/supervisor.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

constexpr NodeId kHere = 1, kThere = 2;

FailurePtr failure_of_actor(NodeId node, ActorIndex actor, Failure::Kind kind = Failure::Kind::kActor) {
  auto failure = std::make_shared<Failure>(kind, "why");
  failure->node = node;
  failure->actor = actor;
  return failure;
}

FailurePtr death(Failure::Kind kind = Failure::Kind::kExited) { return std::make_shared<Failure>(kind, "why"); }

OwnedMesh mesh_of(std::vector<ActorId> ids, bool is_procs = false) {
  OwnedMesh mesh;
  mesh.owner = 7;
  mesh.is_procs = is_procs;
  mesh.name = is_procs ? "procs" : "workers";
  mesh.class_name = is_procs ? "" : "Worker";
  mesh.creator = "<root>";
  mesh.labels = {"gpus"};
  mesh.sizes = {static_cast<int64_t>(ids.size())};
  mesh.members = std::make_shared<Members>(Members{std::move(ids)});
  return mesh;
}

TEST(SupervisorTest, AnActorsFailureIsToldToItsOwnerWithItsRank) {
  Supervisor supervisor;
  supervisor.add(mesh_of({{kHere, 10}, {kThere, 10}}));
  supervisor.add(mesh_of({{kHere, 11}, {kThere, 11}}));
  const auto failures = supervisor.actor_ended(failure_of_actor(kThere, 11), 0);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].mesh->owner, 7u);
  EXPECT_EQ(failures[0].rank, 1u);
  EXPECT_EQ(failures[0].report(),
            "The actor <root>.<Worker workers{'gpus': 1/2}> and all its descendants have failed:\n  why");
  EXPECT_TRUE(supervisor.actor_ended(failure_of_actor(kThere, 12), 0).empty()) << "nobody's here";
}

TEST(SupervisorTest, EachRankFailsOnce) {
  Supervisor supervisor;
  supervisor.add(mesh_of({{kHere, 10}, {kThere, 10}}));
  EXPECT_EQ(supervisor.actor_ended(failure_of_actor(kThere, 10), 0).size(), 1u);
  EXPECT_TRUE(supervisor.node_down(kThere, death()).empty()) << "what has failed does not fail again with its process";
  EXPECT_EQ(supervisor.node_down(kHere, death()).size(), 1u);
  EXPECT_EQ(supervisor.size(), 1u) << "what has failed may be made anew";
}

TEST(SupervisorTest, NothingIsLeftOfWhatHasEndedAsItsOwnerWished) {
  Supervisor supervisor;
  supervisor.add(mesh_of({{kHere, 10}, {kThere, 10}}));
  supervisor.actor_ended(failure_of_actor(kThere, 10, Failure::Kind::kActorStopped), 0);
  supervisor.node_down(kHere, death(Failure::Kind::kStopped));
  EXPECT_EQ(supervisor.size(), 0u);
}

// ---- What is made anew ----

TEST(SupervisorTest, WhatIsMadeAnewFailsAgain) {
  Supervisor supervisor;
  const auto id = supervisor.add(mesh_of({{kHere, 10}, {kThere, 10}}));
  const auto first = supervisor.actor_ended(failure_of_actor(kThere, 10), 0);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(supervisor.is_current(first[0]));
  EXPECT_EQ(supervisor.ended(id), std::vector<uint32_t>{1});
  const auto restarted = supervisor.restart(id, {1});
  ASSERT_TRUE(restarted);
  EXPECT_EQ(restarted->epoch, 1u);
  EXPECT_EQ(restarted->first, 10u);
  EXPECT_EQ(restarted->count, 1u);
  EXPECT_FALSE(supervisor.is_current(first[0])) << "nobody needs to decide about what is there again";
  EXPECT_EQ(supervisor.ended(id), std::vector<uint32_t>{});
  EXPECT_EQ(supervisor.actor_ended(failure_of_actor(kThere, 10), 1).size(), 1u);
  EXPECT_EQ(supervisor.restart(id, {1})->epoch, 2u);
  supervisor.remove(id);
  EXPECT_FALSE(supervisor.restart(id, {1}));
}

// Its word was under way when it was made anew: it was stopped for that, and failed at it.
TEST(SupervisorTest, WhatIsSaidOfAnEarlierOneIsNotToldOfTheOneThatIsThere) {
  Supervisor supervisor;
  const auto id = supervisor.add(mesh_of({{kHere, 10}, {kThere, 10}}));
  supervisor.note_stopped({{{kThere, 10}}});
  ASSERT_TRUE(supervisor.restart(id, {}, {1}));
  EXPECT_TRUE(supervisor.actor_ended(failure_of_actor(kThere, 10), 0).empty());
  EXPECT_TRUE(supervisor.actor_ended(failure_of_actor(kThere, 10, Failure::Kind::kActorStopped), 0).empty());
  EXPECT_EQ(supervisor.ended(id), std::vector<uint32_t>{});
  EXPECT_EQ(supervisor.actor_ended(failure_of_actor(kThere, 10), 1).size(), 1u);
}

TEST(SupervisorTest, WhatWasMadeAnewIsNotCurrentThoughThatHasFailedToo) {
  Supervisor supervisor;
  const auto id = supervisor.add(mesh_of({{kHere, 10}, {kThere, 10}}));
  const auto first = supervisor.actor_ended(failure_of_actor(kThere, 10), 0);
  ASSERT_TRUE(supervisor.restart(id, {1}, {}, 1000));
  const auto second = supervisor.actor_ended(failure_of_actor(kThere, 10), 1);
  ASSERT_TRUE(first.size() == 1 && second.size() == 1);
  EXPECT_FALSE(supervisor.is_current(first[0]));
  EXPECT_TRUE(supervisor.is_current(second[0]));
}

TEST(SupervisorTest, WhatLivesIsNotMadeAnewButIfItWasStopped) {
  Supervisor supervisor;
  const auto id = supervisor.add(mesh_of({{kHere, 10}, {kThere, 10}, {3, 10}, {4, 10}}));
  supervisor.actor_ended(failure_of_actor(kThere, 10), 0);
  EXPECT_FALSE(supervisor.restart(id, {0}));
  EXPECT_FALSE(supervisor.restart(id, {}, {0})) << "nobody has stopped it";
  supervisor.note_stopped({{{kHere, 10}, {3, 10}, {4, 10}}});
  supervisor.actor_ended(failure_of_actor(4, 10), 0);
  const auto restarted = supervisor.restart(id, {1}, {0, 2, 3});
  ASSERT_TRUE(restarted);
  EXPECT_EQ(restarted->ranks, (std::vector<uint32_t>{0, 1, 2})) << "3 has failed meanwhile, and is told by itself";
  EXPECT_EQ(supervisor.ended(id), std::vector<uint32_t>{3});
}

// It was stopped, failed at that, and its owner was faster than the policy that had stopped it.
TEST(SupervisorTest, WhatWasStoppedAndMadeAnewByOthersSinceIsNotMadeAnewOnceMore) {
  Supervisor supervisor;
  const auto id = supervisor.add(mesh_of({{kHere, 10}, {kThere, 10}}));
  supervisor.actor_ended(failure_of_actor(kThere, 10), 0);
  supervisor.note_stopped({{{kHere, 10}}});
  supervisor.actor_ended(failure_of_actor(kHere, 10), 0);
  ASSERT_TRUE(supervisor.restart(id, {0}));
  const auto restarted = supervisor.restart(id, {1}, {0});
  ASSERT_TRUE(restarted);
  EXPECT_EQ(restarted->ranks, std::vector<uint32_t>{1});
  EXPECT_FALSE(supervisor.restart(id, {}, {0})) << "nothing is to be made anew";
}

TEST(SupervisorTest, WhoIsStoppedIsWrittenDownInWhateverOrderItIsNamed) {
  Supervisor supervisor;
  const auto id = supervisor.add(mesh_of({{kHere, 10}, {kThere, 10}, {3, 10}}));
  supervisor.note_stopped({});
  supervisor.note_stopped({{{kHere, 11}}});
  supervisor.note_stopped({{{3, 10}, {kHere, 10}, {4, 10}}});
  supervisor.replace(3, 5);
  supervisor.note_stopped({{{3, 10}}});
  EXPECT_EQ(supervisor.restart(id, {}, {0, 1, 2})->ranks, (std::vector<uint32_t>{0, 2}));
  supervisor.note_stopped({{{3, 10}}});
  EXPECT_EQ(supervisor.restart(id, {}, {0, 1, 2})->ranks, std::vector<uint32_t>{2}) << "handles name who was there first";
}

TEST(SupervisorTest, WhoeverTakesTheOthersPlaceFailsForTheSameRank) {
  constexpr NodeId kNext = 3;
  Supervisor supervisor;
  const auto procs = supervisor.add(mesh_of({{kHere, 0}, {kThere, 0}}, true));
  const auto again = supervisor.add(mesh_of({{kHere, 10}, {kThere, 10}}));
  supervisor.add(mesh_of({{kThere, 20}}));
  EXPECT_EQ(supervisor.node_down(kThere, death()).size(), 3u);
  supervisor.restart(procs, {1});
  supervisor.restart(again, {1});
  supervisor.replace(kThere, kNext);
  const auto failures = supervisor.node_down(kNext, death());
  ASSERT_EQ(failures.size(), 2u);
  for (const MeshFailure& failure : failures) EXPECT_EQ(failure.rank, 1u);
}

TEST(SupervisorTest, ADeadProcessFailsARankOfEachMeshThatHasOneThere) {
  Supervisor supervisor;
  supervisor.add(mesh_of({{kHere, 0}, {kThere, 0}}, true));
  supervisor.add(mesh_of({{kHere, 10}, {kThere, 10}, {kThere, 11}}));
  const auto failures = supervisor.node_down(kThere, death());
  EXPECT_EQ(failures.size(), 3u);
  for (const MeshFailure& failure : failures) EXPECT_NE(failure.rank, 0u);
}

TEST(SupervisorTest, WhatEndsAsItsOwnerWishesDoesNotFail) {
  Supervisor supervisor;
  const auto stopped = supervisor.add(mesh_of({{kHere, 10}}));
  supervisor.remove(stopped);
  EXPECT_TRUE(supervisor.actor_ended(failure_of_actor(kHere, 10), 0).empty());
  supervisor.add(mesh_of({{kHere, 11}}));
  EXPECT_TRUE(supervisor.actor_ended(failure_of_actor(kHere, 11, Failure::Kind::kActorStopped), 0).empty());
  EXPECT_EQ(supervisor.size(), 0u);
  supervisor.add(mesh_of({{kHere, 0}}, true));
  EXPECT_TRUE(supervisor.node_down(kHere, death(Failure::Kind::kStopped)).empty());
  EXPECT_EQ(supervisor.size(), 0u);
}

// Two threads that spawn take numbers in turns.
TEST(SupervisorTest, MeshesWhoseNumbersAreMixedAreFound) {
  Supervisor supervisor;
  supervisor.add(mesh_of({{kHere, 10}, {kHere, 12}, {kHere, 14}}));
  supervisor.add(mesh_of({{kHere, 11}, {kHere, 13}}));
  const auto failures = supervisor.actor_ended(failure_of_actor(kHere, 14), 0);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].rank, 2u);
}

TEST(SupervisorTest, WhatItBeganWithIsTheFirstLineOfTheInnermostFailure) {
  auto climbed = std::make_shared<Failure>(Failure::Kind::kActor, "the owner failed");
  climbed->origin = "the process was killed\nwith these last lines";
  const MeshFailure failure{std::make_shared<OwnedMesh>(mesh_of({{kHere, 10}})), 0, climbed};
  EXPECT_EQ(failure.origin(), "the process was killed");
}

TEST(SupervisorTest, ARankInSeveralDimensionsHasAPlace) {
  OwnedMesh mesh = mesh_of({});
  mesh.labels = {"hosts", "gpus"};
  mesh.sizes = {2, 3};
  const MeshFailure failure{std::make_shared<OwnedMesh>(mesh), 5, death()};
  EXPECT_EQ(failure.coordinates(), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(failure.who(), "<root>.<Worker workers{'hosts': 1/2, 'gpus': 2/3}>");
}

}  // namespace
}  // namespace monarch
