#include "monarch/actor/deadlines.h"

#include <gtest/gtest.h>

#include "monarch/base/clock.h"
#include "monarch/testing/sim_world.h"
#include "monarch/wire/value.h"

namespace monarch::testing {
namespace {

// Timers that run when they are told to, in the order of their delays.
struct Timers {
  Deadlines::After after() {
    return [this](int64_t delay_ns, std::function<void()> task) { waiting.emplace(delay_ns, std::move(task)); };
  }
  void run_next() {
    auto task = std::move(waiting.begin()->second);
    waiting.erase(waiting.begin());
    task();
  }
  std::multimap<int64_t, std::function<void()>> waiting;
};

struct Fixture : ::testing::Test {
  int64_t in_seconds(int64_t seconds) const { return start_ns + seconds * 1'000'000'000; }
  const int64_t start_ns = monotonic_ns();
  Timers timers;
  std::vector<uint64_t> expired;
  Deadlines deadlines{timers.after(), [this](uint64_t token) { expired.push_back(token); }};
};
using DeadlinesTest = Fixture;

TEST_F(DeadlinesTest, OneTimerServesAllAndEachExpiresOnce) {
  for (uint64_t i = 0; i < 1000; ++i) deadlines.add(in_seconds(100 + static_cast<int64_t>(i % 10)), i);
  EXPECT_EQ(timers.waiting.size(), 1u);
  for (int turn = 1; turn <= 10; ++turn) {
    ASSERT_EQ(timers.waiting.size(), 1u);
    timers.run_next();
    EXPECT_EQ(expired.size(), 100u * static_cast<size_t>(turn));
  }
  EXPECT_TRUE(timers.waiting.empty());
  EXPECT_EQ(std::set<uint64_t>(expired.begin(), expired.end()).size(), 1000u);
}

TEST_F(DeadlinesTest, AnEarlierOneDoesNotWaitForALater) {
  deadlines.add(in_seconds(100), 1);
  deadlines.add(in_seconds(50), 2);
  deadlines.add(in_seconds(75), 3);
  EXPECT_EQ(timers.waiting.size(), 2u);
  timers.run_next();
  EXPECT_EQ(expired, std::vector<uint64_t>({2}));
  timers.run_next();
  EXPECT_EQ(expired, std::vector<uint64_t>({2, 3}));
  while (!timers.waiting.empty()) timers.run_next();
  EXPECT_EQ(expired, std::vector<uint64_t>({2, 3, 1}));
}

TEST_F(DeadlinesTest, WhatIsRemovedDoesNotExpireAndLeavesNothing) {
  for (uint64_t i = 0; i < 1000; ++i) {
    deadlines.add(in_seconds(100), i);
    deadlines.remove(in_seconds(100), i);
  }
  EXPECT_EQ(timers.waiting.size(), 1u);
  timers.run_next();
  EXPECT_TRUE(expired.empty());
  EXPECT_TRUE(timers.waiting.empty());
  deadlines.add(in_seconds(100), 7);  // it begins again
  ASSERT_EQ(timers.waiting.size(), 1u);
  timers.run_next();
  EXPECT_EQ(expired, std::vector<uint64_t>({7}));
}

TEST_F(DeadlinesTest, WhatHasPassedAlreadyExpiresAtOnce) {
  deadlines.add(start_ns - 1, 1);
  ASSERT_EQ(timers.waiting.size(), 1u);
  EXPECT_EQ(timers.waiting.begin()->first, 0);
  timers.run_next();
  EXPECT_EQ(expired.size(), 1u);
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
      const NodeId id = sim.add_node();
      keepers.push_back(std::make_shared<Keeper>());
      sim.node(id).add_cell(100, keepers.back());
      members->ids.push_back({id, 100});
    }
  }
  // The virtual clock begins at 0; deadlines are on the real one, which hardly moves meanwhile.
  std::shared_ptr<PendingCall> ask(int64_t limit_ns) {
    auto call = std::make_shared<PendingCall>(members);
    Outgoing request{FrameHeader{}, {}, {}};
    request.header.kind = FrameKind::kRequest;
    if (limit_ns != 0) request.header.deadline_ns = static_cast<uint64_t>(monotonic_ns() + limit_ns);
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
  std::string_view kind;
  if (reply.header.kind != FrameKind::kReplyError) return false;
  return reader.begin_tuple(size) && reader.str(kind) && kind == "__deadline__";
}

constexpr int64_t kSecond = 1'000'000'000;

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
  EXPECT_NE(limited->reply(0)->text().find("of 3 ranks these had not answered: 0, 2"), std::string_view::npos);
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
  World world;
  Node::Hooks hooks;
  hooks.after = [](int64_t, std::function<void()>) {};  // a timer that never runs
  Node node(1, world.sim.driver(), std::move(hooks));
  auto keeper = std::make_shared<Keeper>();
  node.add_cell(100, keeper);
  auto members = std::make_shared<Members>(Members{{{1, 100}, {1, 100}}});
  for (const FrameKind kind : {FrameKind::kReply, FrameKind::kReplyError, FrameKind::kReplyFailed}) {
    auto call = std::make_shared<PendingCall>(members);
    Outgoing request{FrameHeader{}, {}, {}};
    request.header.kind = FrameKind::kRequest;
    const int64_t deadline_ns = monotonic_ns() + 1'000'000;
    request.header.deadline_ns = static_cast<uint64_t>(deadline_ns);
    node.cast(*members, request, call);
    while (monotonic_ns() < deadline_ns) {
    }
    Outgoing reply{FrameHeader{}, {}, {}};
    node.reply(keeper->asked.back()->header, 1, kind, reply);
    ASSERT_TRUE(call->complete());
    EXPECT_TRUE(expired(*call->reply(0)));
    EXPECT_TRUE(expired(*call->reply(1)));
  }
}

}  // namespace
}  // namespace monarch::testing
