#include "monarch/actor/calls.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "monarch/actor/members.h"
#include "monarch/actor/pending_call.h"
#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

struct Looks : ::testing::Test {
  Looks() { members->ids = {{1, 1}}; }
  std::shared_ptr<PendingCall> open() {
    auto call = std::make_shared<PendingCall>(members);
    calls.open(call, 0);
    return call;
  }
  void answer(const PendingCall& call) {
    calls.end(call.token(), [&call](uint32_t rank) { return make_failure(call.token(), rank, "enough"); });
  }

  SimWorld sim{1};
  const NodeId node = sim.add_node();
  std::shared_ptr<Members> members = std::make_shared<Members>();
  std::vector<std::vector<std::shared_ptr<PendingCall>>> seen;
  bool look_again = false;
  std::function<void()> during_look;
  Calls calls{sim.node(node).driver(), sim, {{}, [this](const auto& old) {
                                               seen.push_back(old);
                                               if (during_look) during_look();
                                               return look_again;
                                             }}};
};

TEST_F(Looks, CallsThatAreAnsweredCostOneTimerForAllOfThem) {
  for (int i = 0; i < 1000; ++i) answer(*open());
  EXPECT_EQ(sim.waiting(), 1u);
  sim.run();
  EXPECT_EQ(sim.now_ns(), Calls::kLookNs);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_TRUE(seen[0].empty());
  answer(*open());  // it begins again
  EXPECT_EQ(sim.waiting(), 1u);
}

TEST_F(Looks, WhatHasBeenPendingSinceTheLookBeforeIsShownUntilItIsAnswered) {
  const auto call = open();
  sim.step();
  const auto second = open();
  sim.step();
  sim.step();
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_TRUE(seen[0].empty());
  EXPECT_EQ(seen[1], std::vector{call});
  EXPECT_EQ(seen[2], (std::vector{call, second}));
  answer(*call);
  answer(*second);
  const auto third = open();  // in the slot of one of them
  sim.step();
  EXPECT_TRUE(seen[3].empty());
  sim.step();
  EXPECT_EQ(seen[4], std::vector{third});
  answer(*third);
  sim.run();
  EXPECT_EQ(seen.size(), 6u);
}

TEST_F(Looks, GoOnWithoutCallsWhileTheyAreWanted) {
  look_again = true;
  calls.begin_looks();
  calls.begin_looks();
  for (int i = 0; i < 5; ++i) sim.step();
  EXPECT_EQ(seen.size(), 5u);
  look_again = false;
  sim.run();
  EXPECT_EQ(seen.size(), 6u);
}

TEST_F(Looks, ACallThatIsOpenedWhileSomebodyLooksIsLookedAtToo) {
  std::shared_ptr<PendingCall> late;
  during_look = [&] {
    if (!late) late = open();
  };
  answer(*open());
  for (int i = 0; i < 3; ++i) sim.step();
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[2], std::vector{late});
}

TEST_F(Looks, ShowAllCallsThatThereAreAndNoOthers) {
  std::vector<std::shared_ptr<PendingCall>> many;
  for (int i = 0; i < 1000; ++i) many.push_back(open());
  std::vector<std::shared_ptr<PendingCall>> left;
  for (size_t i = many.size(); i-- > 0;) {  // some in between stay, the first and the last one end
    if (i % 100 != 50) answer(*many[i]);
  }
  left.push_back(open());  // in the first slot
  for (size_t i = 50; i < many.size(); i += 100) left.push_back(many[i]);
  sim.step();
  sim.step();
  EXPECT_EQ(seen[1], left);
  for (const auto& call : left) answer(*call);
  sim.run();
  EXPECT_TRUE(seen.back().empty());
}

TEST_F(Looks, ThatTakeLongComeLessOften) {
  const auto call = open();
  during_look = [&] {
    sim.after(2 * Calls::kLookNs, [] {});
    sim.step();
  };
  sim.step();
  EXPECT_EQ(sim.now_ns(), 3 * Calls::kLookNs);
  during_look = nullptr;
  sim.step();
  EXPECT_EQ(sim.now_ns(), (3 + 2 * Calls::kLookRest) * Calls::kLookNs);
  sim.step();
  EXPECT_EQ(sim.now_ns(), (4 + 2 * Calls::kLookRest) * Calls::kLookNs);
  answer(*call);
}

TEST(Calls, WithoutAnybodyWhoLooksHaveNoTimer) {
  SimWorld sim(1);
  const NodeId node = sim.add_node();
  auto members = std::make_shared<Members>();
  members->ids = {{1, 1}};
  Calls calls(sim.node(node).driver(), sim);
  calls.open(std::make_shared<PendingCall>(members), 0);
  calls.begin_looks();
  EXPECT_EQ(sim.waiting(), 0u);
}

// What hosts have combined or put together comes in one frame.
TEST(Calls, TakeTheAnswersOfManyRanksAtOnceAndEachOnce) {
  SimWorld sim{1};
  const NodeId node = sim.add_node();
  Calls calls{sim.node(node).driver(), sim};
  auto members = std::make_shared<Members>();
  for (uint64_t host = 1; host <= 5; ++host) members->ids.push_back({host << kHostShift | 1, 1});
  auto call = std::make_shared<PendingCall>(members);
  const uint64_t token = calls.open(call, 0);
  std::vector<uint32_t> seen;
  call->observe(3, [&] { seen.push_back(call->received()); });

  const auto answer = [&](uint32_t rank, std::string_view text) {
    FrameHeader header;
    header.kind = FrameKind::kReply;
    header.rank = rank;
    return PendingCall::Answer{rank, Message::make(header, text, 1)};
  };
  calls.answer(token, 3, answer(3, "first").reply);
  PendingCall::Answer with_the_same[] = {answer(1, "of 1 to 3"), {2, nullptr}, {3, nullptr}};
  EXPECT_FALSE(calls.answer(token, with_the_same)) << "rank 3 would be in two values";
  EXPECT_EQ(call->received(), 1u);
  PendingCall::Answer first[] = {answer(1, "one"), {2, nullptr}, {1, nullptr}, {4, nullptr}, {99, nullptr}};
  EXPECT_TRUE(calls.answer(token, first));
  PendingCall::Answer side_by_side[] = {answer(1, "two"), answer(3, "second")};
  EXPECT_TRUE(calls.answer(token, side_by_side));
  EXPECT_EQ(seen, std::vector{4u});  // once, when all of it was there
  EXPECT_EQ(call->missing(), std::vector{0u});
  EXPECT_EQ(call->reply(3)->text(), "first");
  EXPECT_EQ(call->reply(1)->text(), "one");
  EXPECT_EQ(call->reply(2)->header.flags, uint32_t{kFlagReduce});
  EXPECT_EQ(call->reply(4)->header.kind, FrameKind::kReply);
  EXPECT_EQ(call->reply(0), nullptr);
  EXPECT_FALSE(call->complete());

  PendingCall::Answer again[] = {{2, nullptr}, {4, nullptr}};
  calls.answer(token, again);
  EXPECT_EQ(call->received(), 4u);
  PendingCall::Answer last[] = {answer(0, "last")};
  calls.answer(token, last);
  EXPECT_TRUE(call->complete());
  EXPECT_EQ(calls.size(), 0u);
  std::vector<uint32_t> values;
  call->visit_values([&](uint32_t rank, const Message&) { return values.push_back(rank), rank != 1; });
  EXPECT_EQ(values, (std::vector{0u, 1u}));
}

// Which says of itself that it has come before, by somebody's lie: there is nobody else to ask.
TEST(Calls, WhatAHostHasCombinedOfItsOwnIsNotRefused) {
  SimWorld sim{1};
  Calls calls{sim.node(sim.add_node()).driver(), sim};
  auto members = std::make_shared<Members>();
  members->ids.assign(3, {1, 1});
  auto call = std::make_shared<PendingCall>(members);
  const uint64_t token = calls.open(call, 0);
  calls.answer(token, 1, Message::make({.kind = FrameKind::kReply, .rank = 1}, "a lie", 1));
  PendingCall::Answer all[] = {{0, Message::make({.kind = FrameKind::kReply}, "all", 1)}, {1, nullptr}, {2, nullptr}};
  EXPECT_TRUE(calls.answer(token, all));
  EXPECT_TRUE(call->complete());
}

TEST(Calls, WhatOverlapsIsTakenOfACallThatHasFailed) {
  SimWorld sim{1};
  Calls calls{sim.node(sim.add_node()).driver(), sim};
  auto members = std::make_shared<Members>();
  members->ids.assign(3, {1, 1});
  auto call = std::make_shared<PendingCall>(members);
  const uint64_t token = calls.open(call, 0);
  calls.answer(token, 2, make_failure(token, 2, Failure("it has died")));
  EXPECT_EQ(calls.missing(token), (std::vector<uint32_t>{0, 1}));
  PendingCall::Answer all[] = {{0, Message::make({.kind = FrameKind::kReply}, "all", 1)}, {1, nullptr}, {2, nullptr}};
  EXPECT_TRUE(calls.answer(token, all));
  EXPECT_TRUE(call->complete());
  EXPECT_EQ(call->reply(2)->header.kind, FrameKind::kReplyFailed);
  EXPECT_EQ(calls.missing(token), std::nullopt);
}

}  // namespace
}  // namespace monarch::testing
