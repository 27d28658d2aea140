#include "monarch/actor/reductions.h"

#include <gtest/gtest.h>

#include <limits>

#include "monarch/actor/cell.h"
#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/mesh/reduced.h"
#include "monarch/testing/sim_world.h"
#include "monarch/wire/replies.h"
#include "monarch/wire/value_codec.h"

namespace monarch::testing {
namespace {

constexpr NodeId on_host(NodeId number) { return NodeId{7} << kHostShift | number; }
constexpr NodeId kScript = 1, kGateway = on_host(3), kFirst = on_host(5), kSecond = on_host(9);

// An actor that answers when the test says so.
struct Actor final : Cell {
  void deliver(MessagePtr message) override { got.push_back(std::move(message)); }
  std::vector<MessagePtr> got;
};

// What comes to the script from its host, before the script has it.
struct Wire final : LinkSink {
  explicit Wire(Node& behind) : node(behind) {}
  void on_frame(Link& link, MessagePtr message) override {
    frames.push_back({message->header.kind, message->header.rank});
    node.on_frame(link, std::move(message));
  }
  void on_control(Link& link, MessagePtr message) override { node.on_control(link, std::move(message)); }
  void on_closed(Link& link, const Error& why) override { node.on_closed(link, why); }

  struct Frame {
    FrameKind kind;
    uint32_t rank;
    bool operator==(const Frame&) const = default;
  };
  Node& node;
  std::vector<Frame> frames;
};

constexpr Wire::Frame together{FrameKind::kReply, kEveryRank};
constexpr Wire::Frame single(uint32_t rank, FrameKind kind = FrameKind::kReply) { return {kind, rank}; }

// A script, a host with a gateway and two processes, in the first of which there are the ranks 0 and 2, in the other 1.
struct CombinedByAHost : ::testing::Test {
  CombinedByAHost() {
    auto [script_end, host_end] = sim.connect(kScript, wire, kGateway, *gateway);
    script->add_link(script_end);
    gateway->add_link(host_end);
    for (Node* node : {first.get(), second.get()}) {
      auto [gateway_end, end] = sim.connect(kGateway, *gateway, node->id(), *node);
      gateway->add_link(gateway_end);
      node->add_link(end);
    }
    first->add_cell(100, actors[0]);
    second->add_cell(100, actors[1]);
    first->add_cell(101, actors[2]);
  }
  std::unique_ptr<Node> make(NodeId id) {
    Node::Hooks hooks;
    hooks.dial = [](NodeId) { return std::shared_ptr<Link>(); };
    hooks.gateway_of = [id](NodeId node) { return id == kGateway || node == kGateway ? NodeId{0} : kGateway; };
    if (id == kScript) hooks.gateway_there = [](NodeId) { return kGateway; };
    hooks.on_undeliverable = [](const ActorId&, const Failure&) {};
    return std::make_unique<Node>(id, sim.driver(), sim, std::move(hooks));
  }
  std::shared_ptr<PendingCall> call(Reducer reducer = Reducer::kSum, bool gathered = false) {
    auto members = std::make_shared<Members>(Members{{{kFirst, 100}, {kSecond, 100}, {kFirst, 101}}});
    auto made = std::make_shared<PendingCall>(members);
    made->set_reducer(reducer);
    if (gathered) made->set_gathered();
    Outgoing request{FrameHeader{}, {}, {}};
    request.header.kind = FrameKind::kRequest;
    script->cast(*members, request, made);
    run_briefly();
    return made;
  }
  std::shared_ptr<PendingCall> gather() { return call(Reducer::kNone, true); }
  // Much less than what is held is held for.
  void answer_together(const PendingCall& made, const std::string& body) {
    Outgoing frame{FrameHeader{}, as_byte_span(body.data(), body.size()), {}};
    frame.header.kind = FrameKind::kReply;
    frame.header.dest = made.token();
    frame.header.rank = kEveryRank;
    gateway->send(kScript, frame);
    run_briefly();
  }
  void run_briefly(int64_t ns = 200'000) {
    bool over = false;
    sim.after(ns, [&over] { over = true; });
    while (!over && sim.step()) {
    }
  }
  Node& node_of(uint32_t rank) { return rank == 1 ? *second : *first; }
  template <typename T>
  void answer(uint32_t rank, const T& value, FrameKind kind = FrameKind::kReply, size_t nth = 0) {
    ASSERT_GT(actors[rank]->got.size(), nth);
    ValueWriter writer;
    encode(writer, value);
    Outgoing reply{FrameHeader{}, writer.written(), {}};
    const Message& request = *actors[rank]->got[nth];
    node_of(rank).reply(request.header, request.from, kind, reply);
    run_briefly();
  }
  // Something else that the process of that rank says.
  void tell(uint32_t rank) {
    Outgoing message{FrameHeader{}, {}, {}};
    message.header.kind = FrameKind::kOneway;
    message.header.flags = kFlagQuiet;
    message.header.rank = 77;
    node_of(rank).post({kScript, 5}, message);
    run_briefly();
  }
  int64_t value(const PendingCall& made) {
    const Reduced reduced = reduce(made);
    if (!reduced.value) return ADD_FAILURE() << reduced.problem.text("m"), -1;
    return *decode<int64_t>(reduced.value->body);
  }

  SimWorld sim{1, {.delay_max_ns = 20'000}};
  std::unique_ptr<Node> script = make(kScript), gateway = make(kGateway), first = make(kFirst), second = make(kSecond);
  Wire wire{*script};
  std::shared_ptr<Actor> actors[3] = {std::make_shared<Actor>(), std::make_shared<Actor>(), std::make_shared<Actor>()};
};

TEST_F(CombinedByAHost, ComesAsOneFrame) {
  const auto made = call();
  answer(2, 30);
  answer(0, 10);
  EXPECT_TRUE(wire.frames.empty());
  answer(1, 20);
  EXPECT_EQ(wire.frames, std::vector{together});
  ASSERT_TRUE(made->complete());
  EXPECT_EQ(made->lowest_error(), -1);
  EXPECT_EQ(value(*made), 60);
}

TEST_F(CombinedByAHost, EachReducerGivesTheSameAsWithoutAHost) {
  for (const auto& [reducer, expected] :
       {std::pair(Reducer::kMin, 4), {Reducer::kMax, 9}, {Reducer::kSum, 18}, {Reducer::kCount, 3}}) {
    wire.frames.clear();
    const auto made = call(reducer);
    const size_t nth = actors[0]->got.size() - 1;
    answer(0, 5, FrameKind::kReply, nth);
    answer(1, 4, FrameKind::kReply, nth);
    answer(2, 9, FrameKind::kReply, nth);
    EXPECT_EQ(wire.frames, std::vector{together});
    EXPECT_EQ(value(*made), expected);
  }
}

TEST_F(CombinedByAHost, AConcatenationBringsAllAnswersInOneFrame) {
  const auto made = call(Reducer::kConcat);
  for (const uint32_t rank : {1u, 2u, 0u}) answer(rank, std::string(rank + 1, 'x'));
  EXPECT_EQ(wire.frames, std::vector{together});
  ASSERT_TRUE(made->complete());
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(*decode<std::string>(made->reply(rank)->body), std::string(rank + 1, 'x'));
  }
}

TEST_F(CombinedByAHost, WithoutAReducerNothingIsHeldOfWhoLooksAtEach) {
  const auto made = call(Reducer::kNone);
  answer(2, 30);
  EXPECT_EQ(wire.frames, std::vector{single(2)});
}

TEST_F(CombinedByAHost, WithoutAReducerAllAnswersComeInOneFrame) {
  const auto made = gather();
  for (const uint32_t rank : {1u, 2u, 0u}) answer(rank, 10 * rank);
  EXPECT_EQ(wire.frames, std::vector{together});
  ASSERT_TRUE(made->complete());
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(*decode<int64_t>(made->reply(rank)->body), 10 * rank);
}

TEST_F(CombinedByAHost, AnswersWithoutAReducerComeByAndBy) {
  const auto made = gather();
  answer(2, 30);
  answer(1, 20);
  EXPECT_TRUE(wire.frames.empty());
  run_briefly(Reductions::kGatherNs);
  EXPECT_EQ(wire.frames, std::vector{together});
  EXPECT_EQ(made->missing(), std::vector<uint32_t>{0});
  answer(0, 10);
  EXPECT_EQ(wire.frames.back(), single(0)) << "nobody else is awaited";
  EXPECT_TRUE(made->complete());
}

TEST_F(CombinedByAHost, OneAnswerWithoutAReducerComesAsItIs) {
  const auto made = gather();
  answer(2, 30);
  run_briefly(Reductions::kGatherNs);
  EXPECT_EQ(wire.frames, std::vector{single(2)});
  answer(0, 10);
  answer(1, 20);
  EXPECT_EQ(wire.frames, (std::vector{single(2), together})) << "of those that were left";
  EXPECT_TRUE(made->complete());
}

TEST_F(CombinedByAHost, ATimerOfALongerHoldDoesNotKeepAGatherWaiting) {
  const auto reduced = call(Reducer::kSum);
  answer(0, 1);
  const auto made = gather();
  answer(1, 2, FrameKind::kReply, 1);
  run_briefly(Reductions::kGatherNs);
  EXPECT_EQ(wire.frames, std::vector{single(1)});
}

TEST_F(CombinedByAHost, AnErrorWithoutAReducerHoldsUpNobody) {
  const auto made = gather();
  answer(2, 30);
  answer(0, 1, FrameKind::kReplyError);
  EXPECT_EQ(wire.frames, (std::vector{single(2), single(0, FrameKind::kReplyError)}));
  answer(1, 20);
  EXPECT_EQ(wire.frames.back(), single(1));
  EXPECT_TRUE(made->complete());
}

TEST_F(CombinedByAHost, ALargeAnswerWithoutAReducerGoesAtOnceAfterWhatIsHeld) {
  const auto made = gather();
  answer(0, 1);
  answer(1, std::string(Reductions::kGatheredBytesMax + 1, 'x'));
  EXPECT_EQ(wire.frames, (std::vector{single(0), single(1)}));
  answer(2, 1);
  EXPECT_TRUE(made->complete());
}

// What comes second of an actor is not to be let go while what came first is held.
TEST_F(CombinedByAHost, AGatherThatWasLetGoIsNotOvertakenByALaterOne) {
  const auto made = gather(), next = gather();
  answer(0, 1);
  run_briefly(Reductions::kGatherNs);  // the first goes on, and begins anew
  EXPECT_EQ(wire.frames, std::vector{single(0)});
  answer(0, 2, FrameKind::kReply, 1);
  answer(1, 1);
  answer(1, 2, FrameKind::kReply, 1);
  run_briefly(Reductions::kGatherNs);  // the second is due before the rest of the first is
  EXPECT_EQ(wire.frames, (std::vector{single(0), single(0), single(1), single(1)})) << "as they were given";
  EXPECT_EQ(made->missing(), std::vector<uint32_t>{2});
  EXPECT_EQ(next->missing(), std::vector<uint32_t>{2});
}

TEST_F(CombinedByAHost, AnswersThatActorsGaveInAnotherOrderGoOnInTheirs) {
  const auto made = gather(), next = gather();
  answer(0, 1);
  answer(1, 2, FrameKind::kReply, 1);
  answer(0, 2, FrameKind::kReply, 1);
  answer(1, 1);
  answer(2, 1);
  EXPECT_EQ(wire.frames, (std::vector{single(0), single(1), single(0), single(1), single(2)}));
  EXPECT_TRUE(made->complete());
  answer(2, 2, FrameKind::kReply, 1);
  EXPECT_TRUE(next->complete());
}

TEST_F(CombinedByAHost, WhoKeepsOneSmallAnswerDoesNotKeepAll) {
  const auto made = gather();
  for (const uint32_t rank : {0u, 1u, 2u}) answer(rank, std::string(1000, 'x'));
  ASSERT_EQ(wire.frames, std::vector{together});
  for (uint32_t rank = 0; rank < 3; ++rank) {
    for (const Part& part : made->reply(rank)->parts) EXPECT_EQ(part.owner.use_count(), 1);
  }
}

TEST_F(CombinedByAHost, AnErrorSendsOnWhatIsHeldAndComesAfterIt) {
  const auto made = call();
  answer(2, 30);
  answer(0, 1, FrameKind::kReplyError);
  EXPECT_EQ(wire.frames, (std::vector{single(2), single(0, FrameKind::kReplyError)}));
  EXPECT_EQ(made->lowest_error(), 0);
  answer(1, 20);
  EXPECT_EQ(wire.frames.back(), single(1)) << "nothing of this call is held any more";
  EXPECT_TRUE(made->complete());
}

TEST_F(CombinedByAHost, AnAnswerThatIsTooLargeIsNotCombined) {
  const auto made = call(Reducer::kConcat);
  answer(0, 1);
  answer(1, std::string(Reductions::kAnswerBytesMax + 1, 'x'));
  answer(2, 1);
  EXPECT_EQ(wire.frames, (std::vector{single(0), single(1), single(2)}));
}

TEST_F(CombinedByAHost, ManyValuesOfOneAnswerAreWorkForTheCaller) {
  const auto made = call();
  answer(0, std::vector<int64_t>(10));
  answer(1, std::vector<int64_t>(Reductions::kBodyBytesMax));
  answer(2, std::vector<int64_t>(10));
  EXPECT_EQ(wire.frames, (std::vector{single(0), single(1), single(2)}));
}

TEST_F(CombinedByAHost, WhatCannotBeCombinedComesAsItIs) {
  const auto made = call();
  answer(0, 1);
  answer(1, std::string("x"));
  answer(2, 1);
  EXPECT_EQ(wire.frames, (std::vector{single(0), single(1), single(2)}));
  EXPECT_EQ(reduce(*made).problem.text("m"), "reduce='sum' takes numbers, and rank 1 of m returned a str");
}

TEST_F(CombinedByAHost, ASumThatIsTooLargeOnTheWayIsNotAtItsEnd) {
  const auto made = call();
  const int64_t most = std::numeric_limits<int64_t>::max();
  answer(0, most);
  answer(1, most);
  answer(2, most);
  EXPECT_EQ(wire.frames.size(), 3u);
  EXPECT_EQ(reduce(*made).problem.kind, ReduceProblem::Kind::kRange);
}

TEST_F(CombinedByAHost, ADeathSendsOnWhatIsHeld) {
  const auto made = call();
  answer(2, 30);
  gateway->node_down(kSecond, std::make_shared<Failure>(Failure::Kind::kLost, "gone"));
  run_briefly();
  EXPECT_EQ(wire.frames, std::vector{single(2)});
  EXPECT_EQ(made->lowest_error(), 1);
  answer(0, 10);
  EXPECT_EQ(wire.frames.back(), single(0));
}

TEST_F(CombinedByAHost, OfACallerThatHasDiedNothingIsHeld) {
  const auto made = call();
  answer(2, 30);
  gateway->node_down(kScript, std::make_shared<Failure>(Failure::Kind::kLost, "gone"));
  answer(0, 10);
  answer(1, 20);
  EXPECT_TRUE(wire.frames.empty());
}

TEST_F(CombinedByAHost, NoAnswerIsHeldForLong) {
  const auto made = call();
  answer(2, 30);
  EXPECT_TRUE(wire.frames.empty());
  sim.run();
  EXPECT_EQ(wire.frames, std::vector{single(2)});
  EXPECT_EQ(made->missing(), (std::vector<uint32_t>{0, 1}));
  answer(0, 10);
  answer(1, 20);
  EXPECT_EQ(wire.frames, (std::vector{single(2), single(0), single(1)}));
  EXPECT_EQ(value(*made), 60);
}

TEST_F(CombinedByAHost, NothingOvertakesAnAnswerThatIsHeld) {
  const auto made = call();
  answer(2, 30);
  tell(1);
  EXPECT_EQ(wire.frames, std::vector{single(77, FrameKind::kOneway)}) << "of a process that holds nothing";
  tell(0);
  EXPECT_EQ(wire.frames, (std::vector{single(77, FrameKind::kOneway), single(2), single(77, FrameKind::kOneway)}));
}

TEST_F(CombinedByAHost, CallsAfterEachOtherAreBothCombined) {
  const auto made = call();
  const auto next = call();
  for (const uint32_t rank : {0u, 1u, 2u}) {
    answer(rank, 1);
    answer(rank, 2, FrameKind::kReply, 1);
  }
  EXPECT_EQ(wire.frames, (std::vector{together, together}));
  EXPECT_EQ(value(*made), 3);
  EXPECT_EQ(value(*next), 6);
}

TEST_F(CombinedByAHost, AnAnswerToALaterCallDoesNotOvertakeThoseToAnEarlierOne) {
  const auto made = call();
  const auto next = call();
  answer(0, 1);
  for (const uint32_t rank : {0u, 1u, 2u}) answer(rank, 2, FrameKind::kReply, 1);
  EXPECT_EQ(wire.frames, (std::vector{single(0), together}));
}

TEST_F(CombinedByAHost, AnAnswerToAnEarlierCallDoesNotOvertakeThoseThatWereGivenBefore) {
  const auto made = call();
  const auto next = call();
  answer(1, 2, FrameKind::kReply, 1);
  for (const uint32_t rank : {0u, 1u, 2u}) answer(rank, 1);
  EXPECT_EQ(wire.frames, (std::vector{single(1), together}));
}

TEST_F(CombinedByAHost, AnswersThatMakeNoSenseEndTheCall) {
  const auto made = call();
  answer_together(*made, "nonsense");
  ASSERT_TRUE(made->complete());
  EXPECT_EQ(made->lowest_error(), 0);
}

TEST_F(CombinedByAHost, AHostThatLeavesNothingGivesAnErrorAndNoValue) {
  const auto made = call();
  answer_together(*made, encode_replies({{0, kFlagReduce, 0, 0}, {1, kFlagReduce, 0, 0}, {2, kFlagReduce, 0, 0}}));
  ASSERT_TRUE(made->complete());
  EXPECT_EQ(reduce(*made).value, nullptr);
}

// ---- The table ----

struct Table : ::testing::Test {
  Reductions make() {
    const auto sent = [](NodeId, const Outgoing&) { return true; };
    return {kGateway, sim, {[this](const Answer&) { ++passed; }, sent, sent}};
  }
  static CastFrame cast(uint64_t token, std::vector<CastTarget> targets) {
    CastFrame frame;
    frame.header.kind = FrameKind::kRequest;
    frame.header.token = token;
    frame.header.rank = static_cast<uint32_t>(Reducer::kSum);
    frame.targets = std::move(targets);
    return frame;
  }
  static void begin(Reductions& table, NodeId origin, const CastFrame& frame) {
    table.begin(origin, frame.header, frame.targets);
  }
  SimWorld sim{1};
  int passed = 0;
};

TEST_F(Table, HasABound) {
  Reductions table = make();
  for (uint64_t token = 1; token <= Reductions::kCallsMax + 5; ++token) {
    begin(table, kScript, cast(token, {{kFirst, 1, 0}}));
  }
  EXPECT_EQ(table.calls(), Reductions::kCallsMax);
  table.give_up(kScript, 7);
  EXPECT_EQ(table.calls(), Reductions::kCallsMax - 1);
  table.give_up(kScript, Reductions::kCallsMax + 5);
  EXPECT_EQ(table.calls(), Reductions::kCallsMax - 1) << "there was no room for it";
  table.node_down(kFirst);
  EXPECT_EQ(table.calls(), 0u);
  EXPECT_FALSE(table.any());
}

TEST_F(Table, CallsThatNobodyAnswersMakeRoom) {
  Reductions table = make();
  for (uint64_t token = 1; token <= Reductions::kCallsMax; ++token) begin(table, kScript, cast(token, {{kFirst, 1, 0}}));
  sim.after(Reductions::kOldNs, [] {});
  sim.run();
  begin(table, kScript, cast(5000, {{kFirst, 1, 0}}));
  EXPECT_EQ(table.calls(), Reductions::kCallsMax);
  table.give_up(kScript, 1);
  EXPECT_EQ(table.calls(), Reductions::kCallsMax) << "the oldest has gone";
  table.give_up(kScript, 5000);
  EXPECT_EQ(table.calls(), Reductions::kCallsMax - 1);
}

TEST_F(Table, TakesOnlyWhatItsHostCanAnswer) {
  Reductions table = make();
  constexpr NodeId kElsewhere = NodeId{8} << kHostShift | 1;
  begin(table, kScript, cast(1, {{kFirst, 1, 0}, {kElsewhere, 1, 1}}));
  begin(table, kScript, cast(2, {{kFirst, 1, 0}, {kGateway, 1, 1}}));
  begin(table, kScript, cast(3, {{kFirst, 1, 0}, {kSecond, 1, 0}}));
  begin(table, kGateway, cast(4, {{kFirst, 1, 0}}));
  CastFrame other = cast(5, {{kFirst, 1, 0}});
  other.header.rank = kReducerMax + 2;
  begin(table, kScript, other);
  CastFrame alone = cast(6, {{kFirst, 1, 0}});
  alone.header.rank = static_cast<uint32_t>(Reducer::kGather);
  begin(table, kScript, alone);
  EXPECT_EQ(table.calls(), 0u);
}

// What it has no room for goes to its caller, and whoever has passed the cast on here does not wait for it.
TEST_F(Table, SaysToItsParentThatNothingComes) {
  constexpr NodeId kParent = NodeId{8} << kHostShift | 1;
  std::vector<std::pair<NodeId, uint64_t>> told;
  Reductions table{kGateway, sim, {[](const Answer&) {}, [](NodeId, const Outgoing&) { return true; },
                                   [&](NodeId to, const Outgoing& frame) {
                                     EXPECT_EQ(frame.header.kind, FrameKind::kTreeReply);
                                     EXPECT_EQ(frame.header.sender, kScript);
                                     EXPECT_TRUE(frame.body.empty());
                                     told.emplace_back(to, frame.header.dest);
                                     return true;
                                   }}};
  const auto begin_in_tree = [&](uint64_t token, const std::vector<CastTarget>& targets) {
    CastFrame frame = cast(token, targets);
    frame.header.rank |= kAnswersByTree;
    table.begin(kScript, frame.header, frame.targets, kParent, {});
  };
  begin_in_tree(1, {{kGateway, 1, 0}});
  EXPECT_EQ(told, (std::vector<std::pair<NodeId, uint64_t>>{{kParent, 1}})) << "an actor of the gateway itself";
  for (uint64_t token = 2; token <= Reductions::kCallsMax + 2; ++token) begin_in_tree(token, {{kFirst, 1, 0}});
  EXPECT_EQ(told.back(), (std::pair<NodeId, uint64_t>{kParent, Reductions::kCallsMax + 2})) << "there was no room";
  EXPECT_EQ(told.size(), 2u);
  table.give_up(kScript, 2);
  table.let_go(kParent);
  EXPECT_EQ(told.size(), Reductions::kCallsMax + 2);
  EXPECT_EQ(table.calls(), 0u);
}

TEST_F(Table, HasABoundOfWhatItAwaits) {
  Reductions table = make();
  std::vector<CastTarget> targets;
  for (uint32_t rank = 0; rank < Reductions::kOwedMax / 4; ++rank) targets.push_back({kFirst, 1, rank});
  for (uint64_t token = 1; token <= 5; ++token) begin(table, kScript, cast(token, targets));
  EXPECT_EQ(table.calls(), 4u);
  table.give_up(kScript, 2);
  begin(table, kScript, cast(6, targets));
  EXPECT_EQ(table.calls(), 4u);
}

}  // namespace
}  // namespace monarch::testing
