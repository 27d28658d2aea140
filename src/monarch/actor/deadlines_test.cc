#include "monarch/actor/deadlines.h"

#include <gtest/gtest.h>

#include <set>

#include "monarch/actor/calls.h"
#include "monarch/actor/pending_call.h"
#include "monarch/testing/sim_world.h"
#include "monarch/wire/error_kind.h"
#include "monarch/wire/value.h"

namespace monarch::testing {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

struct Fixture : ::testing::Test {
  SimWorld sim{1};  // its clock begins at 0
  std::vector<uint64_t> expired;
  Deadlines deadlines{sim, [this](uint64_t token) { expired.push_back(token); }};
};
using DeadlinesTest = Fixture;

TEST_F(DeadlinesTest, OneTimerServesAllAndEachExpiresOnceAtItsTime) {
  for (uint64_t i = 0; i < 1000; ++i) deadlines.add((100 + static_cast<int64_t>(i % 10)) * kSecond, i);
  EXPECT_EQ(sim.waiting(), 1u);
  for (int turn = 1; turn <= 10; ++turn) {
    ASSERT_EQ(sim.waiting(), 1u);
    sim.step();
    EXPECT_EQ(sim.now_ns(), (99 + turn) * kSecond);
    EXPECT_EQ(expired.size(), 100u * static_cast<size_t>(turn));
  }
  EXPECT_EQ(sim.waiting(), 0u);
  EXPECT_EQ(std::set<uint64_t>(expired.begin(), expired.end()).size(), 1000u);
}

TEST_F(DeadlinesTest, AnEarlierOneDoesNotWaitForALaterAndTakesItsTimer) {
  deadlines.add(100 * kSecond, 1);
  deadlines.add(50 * kSecond, 2);
  deadlines.add(75 * kSecond, 3);
  EXPECT_EQ(sim.waiting(), 1u);
  sim.step();
  EXPECT_EQ(expired, std::vector<uint64_t>({2}));
  sim.step();
  EXPECT_EQ(expired, std::vector<uint64_t>({2, 3}));
  sim.run();
  EXPECT_EQ(expired, std::vector<uint64_t>({2, 3, 1}));
  EXPECT_EQ(sim.now_ns(), 100 * kSecond);
}

TEST_F(DeadlinesTest, WhatIsRemovedDoesNotExpireAndLeavesNothing) {
  for (uint64_t i = 0; i < 1000; ++i) {
    deadlines.add(100 * kSecond, i);
    deadlines.remove(100 * kSecond, i);
  }
  EXPECT_EQ(sim.waiting(), 1u);
  sim.run();
  EXPECT_TRUE(expired.empty());
  deadlines.add(200 * kSecond, 7);  // it begins again
  ASSERT_EQ(sim.waiting(), 1u);
  sim.run();
  EXPECT_EQ(expired, std::vector<uint64_t>({7}));
}

TEST_F(DeadlinesTest, WhatHasPassedAlreadyExpiresAtOnce) {
  sim.after(kSecond, [] {});
  sim.run();
  deadlines.add(kSecond - 1, 1);
  sim.run();
  EXPECT_EQ(sim.now_ns(), kSecond);
  EXPECT_EQ(expired.size(), 1u);
}

TEST(Deadlines, TakeTheirTimerWithThem) {
  SimWorld sim(1);
  Deadlines(sim, [](uint64_t) {}).add(kSecond, 1);
  EXPECT_EQ(sim.waiting(), 0u);
}

// ---- Calls with deadlines ----

struct Keeper : Cell {
  void deliver(MessagePtr message) override { asked.push_back(std::move(message)); }
  std::vector<MessagePtr> asked;
};

struct World {
  World() : sim(1), caller(sim.add_node()) {
    members = std::make_shared<Members>();
    for (int i = 0; i < 3; ++i) {
      const NodeId id = sim.add_child(caller);
      keepers.push_back(std::make_shared<Keeper>());
      sim.node(id).add_cell(100, keepers.back());
      members->ids.push_back({id, 100});
    }
  }
  std::shared_ptr<PendingCall> ask(int64_t limit_ns) {
    auto call = std::make_shared<PendingCall>(members);
    Outgoing request{FrameHeader{}, {}, {}};
    request.header.kind = FrameKind::kRequest;
    if (limit_ns != 0) request.deadline_ns = sim.now_ns() + limit_ns;
    sim.node(caller).cast(*members, request, call);
    return call;
  }
  void run_for(int64_t ns) {
    bool over = false;
    sim.after(ns, [&over] { over = true; });
    while (!over) sim.step();
  }
  void answer(size_t rank, const Message& request) {
    Outgoing reply{FrameHeader{}, {}, {}};
    sim.node(members->ids[rank].node).reply(request.header, request.from, FrameKind::kReply, reply);
  }

  SimWorld sim;
  const NodeId caller;
  std::vector<std::shared_ptr<Keeper>> keepers;
  std::shared_ptr<Members> members;
};

bool expired(const Message& reply) {
  ValueReader reader({reply.body.data(), reply.body.size()});
  uint32_t size;
  int64_t kind;
  if (reply.header.kind != FrameKind::kReplyError) return false;
  return reader.begin_tuple(size) && reader.integer(kind) && kind == static_cast<int64_t>(ErrorKind::kDeadline);
}

TEST(DeadlineOfACall, EndsItAtExactlyItsTime) {
  World world;
  world.run_for(123'456'789);
  auto call = world.ask(kSecond);
  int64_t ended_ns = 0;
  call->observe(0, [&] { ended_ns = world.sim.now_ns(); });
  world.run_for(2 * kSecond);
  EXPECT_EQ(ended_ns, 123'456'789 + kSecond);
}

// What travels is the time that is left: clocks of two hosts have nothing to do with each other.
TEST(DeadlineOfACall, IsOnTheClockOfWhoeverReceivesIt) {
  World world;
  auto call = world.ask(kSecond);
  world.run_for(kSecond / 2);
  const Message& request = *world.keepers[0]->asked[0];
  EXPECT_EQ(request.header.time_left_ns, static_cast<uint64_t>(kSecond));
  EXPECT_GT(request.deadline_ns, kSecond);  // it arrived some time after it was sent, and is given that time
  EXPECT_LT(request.deadline_ns, kSecond + kSecond / 2);
  world.ask(0);
  world.run_for(kSecond / 2);
  EXPECT_EQ(world.keepers[0]->asked[1]->deadline_ns, 0);
}

TEST(DeadlineOfACall, OneThatHasPassedAlreadyIsSentAsSuch) {
  World world;
  world.run_for(kSecond);
  auto call = world.ask(-kSecond / 2);
  world.run_for(kSecond);
  EXPECT_EQ(world.keepers[0]->asked[0]->header.time_left_ns, 1u);
  EXPECT_TRUE(expired(*call->reply(0)));
}

TEST(DeadlineOfACall, FailsTheRanksThatHaveNotAnswered) {
  World world;
  auto limited = world.ask(kSecond), unlimited = world.ask(0), later = world.ask(100 * kSecond);
  world.run_for(kSecond / 2);
  EXPECT_EQ(world.keepers[0]->asked.size(), 3u);
  world.answer(1, *world.keepers[1]->asked[0]);
  world.run_for(kSecond / 4);
  EXPECT_EQ(limited->received(), 1u);
  world.run_for(kSecond);
  ASSERT_TRUE(limited->complete());
  EXPECT_EQ(limited->reply(1)->header.kind, FrameKind::kReply);
  EXPECT_TRUE(expired(*limited->reply(0)));
  EXPECT_TRUE(expired(*limited->reply(2)));
  EXPECT_NE(reply_text(*limited->reply(0)).find("of 3 ranks these had not answered: 0, 2"), std::string::npos);
  EXPECT_EQ(unlimited->received() + later->received(), 0u);
  for (size_t rank = 0; rank < 3; ++rank) {
    for (const MessagePtr& request : world.keepers[rank]->asked) world.answer(rank, *request);
  }
  world.run_for(kSecond);
  EXPECT_TRUE(expired(*limited->reply(0)));  // too late
  for (const auto& call : {unlimited, later}) {
    EXPECT_TRUE(call->complete());
    EXPECT_EQ(call->lowest_error(), -1);
  }
}

TEST(DeadlineOfACall, IsForgottenWithItsAnswers) {
  World world;
  auto call = world.ask(kSecond);
  world.run_for(kSecond / 2);
  for (size_t rank = 0; rank < 3; ++rank) world.answer(rank, *world.keepers[rank]->asked[0]);
  world.run_for(kSecond / 4);
  ASSERT_TRUE(call->complete());
  auto next = world.ask(0);  // in the slot of the first
  world.run_for(2 * kSecond);
  EXPECT_EQ(next->received(), 0u);
  EXPECT_EQ(call->lowest_error(), -1);
}

TEST(DeadlineOfACall, ADeathBeforeItIsToldAsSuch) {
  World world;
  auto call = world.ask(kSecond);
  world.run_for(kSecond / 2);
  world.sim.kill(world.members->ids[0].node, "killed");
  world.run_for(kSecond / 4);
  EXPECT_EQ(call->received(), 1u);
  EXPECT_EQ(call->reply(0)->header.kind, FrameKind::kReplyFailed);
  world.run_for(kSecond);
  EXPECT_TRUE(expired(*call->reply(1)));
}

// What is asked elsewhere for the call has the same deadline, and its failure may be here before the timer has run.
TEST(DeadlineOfACall, AnAnswerAfterItIsLateThoughTheTimerIsLater) {
  struct LateTimers final : Timers {
    int64_t now_ns() override { return now; }
    TimerId after(int64_t, std::function<void()>) override { return 1; }
    void cancel(TimerId) override {}
    int64_t now = 0;
  } timers;
  World world;
  Node node(1, world.sim.driver(), timers, {});
  auto keeper = std::make_shared<Keeper>();
  node.add_cell(100, keeper);
  auto members = std::make_shared<Members>(Members{{{1, 100}, {1, 100}}});
  for (const FrameKind kind : {FrameKind::kReply, FrameKind::kReplyError, FrameKind::kReplyFailed}) {
    auto call = std::make_shared<PendingCall>(members);
    Outgoing request{FrameHeader{}, {}, {}};
    request.header.kind = FrameKind::kRequest;
    request.deadline_ns = timers.now + kSecond;
    node.cast(*members, request, call);
    timers.now += kSecond;
    Outgoing reply{FrameHeader{}, {}, {}};
    node.reply(keeper->asked.back()->header, 1, kind, reply);
    ASSERT_TRUE(call->complete());
    EXPECT_TRUE(expired(*call->reply(0)));
    EXPECT_TRUE(expired(*call->reply(1)));
  }
}

}  // namespace
}  // namespace monarch::testing
