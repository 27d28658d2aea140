// Answers that come back through the tree of their cast (docs/design/046), over real nodes.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "monarch/actor/cell.h"
#include "monarch/actor/kept_answers.h"
#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/trees.h"
#include "monarch/mesh/reduced.h"
#include "monarch/testing/sim_world.h"
#include "monarch/wire/cast.h"
#include "monarch/wire/replies.h"
#include "monarch/wire/value_codec.h"

namespace monarch::testing {
namespace {

constexpr ActorIndex kActor = 100;
constexpr NodeId kScript = 1, kHosts = 30;
constexpr uint32_t kFanOut = 3, kWorkers = 2;  // of each host

constexpr NodeId gateway(NodeId host) { return host << kHostShift | 1; }
constexpr NodeId worker(NodeId host, NodeId i) { return host << kHostShift | (2 + i); }
constexpr NodeId gateway_of_host(HostNumber host) { return host == 0 ? kScript : gateway(host); }
constexpr uint32_t rank_of(NodeId host, uint32_t i) { return static_cast<uint32_t>(host - 1) * kWorkers + i; }

// Answers when the test says so.
struct Actor final : Cell {
  void deliver(MessagePtr message) override {
    if (message->header.kind == FrameKind::kRequest) on_request(std::move(message));
  }
  std::function<void(MessagePtr)> on_request;
};

// A process. While it is stopped nothing of it runs, and what comes for it waits.
struct Process final : Timers, LinkSink {
  Process(SimWorld& in, NodeId number) : sim(in), id(number) {}
  int64_t now_ns() override { return sim.now_ns(); }
  TimerId after(int64_t delay_ns, std::function<void()> task) override {
    return sim.after(delay_ns, [this, task = std::move(task)] { run(task); });
  }
  void cancel(TimerId timer) override { sim.cancel(timer); }
  void on_frame(Link& link, MessagePtr message) override {
    frames.push_back({message->header.kind, message->header.rank});
    run([this, &link, shared = std::make_shared<MessagePtr>(std::move(message))] {
      node->on_frame(link, std::move(*shared));
    });
  }
  void on_control(Link& link, MessagePtr message) override {
    run([this, &link, shared = std::make_shared<MessagePtr>(std::move(message))] {
      node->on_control(link, std::move(*shared));
    });
  }
  void on_closed(Link& link, const Error& why) override {
    run([this, &link, why] { node->on_closed(link, why); });
  }
  void run(const std::function<void()>& task) { dead ? void() : stopped ? waiting.push_back(task) : task(); }
  void go_on() {
    stopped = false;
    for (const auto& task : std::exchange(waiting, {})) task();
  }

  struct Frame {
    FrameKind kind;
    uint32_t rank;
  };
  SimWorld& sim;
  const NodeId id;
  std::unique_ptr<Node> node;
  bool dead = false, stopped = false;
  std::vector<std::function<void()>> waiting;
  std::vector<Frame> frames;  // that have come
};

struct World {
  explicit World(uint64_t seed = 1, SimWorld::Faults faults = {.delay_max_ns = 20'000}) : sim(seed, faults) {
    make(kScript);
    for (NodeId host = 1; host <= kHosts; ++host) {
      make(gateway(host));
      for (NodeId i = 0; i < kWorkers; ++i) {
        const auto actor = actors[rank_of(host, static_cast<uint32_t>(i))] = std::make_shared<Actor>();
        make(worker(host, i)).add_cell(kActor, actor);
        members->ids.push_back({worker(host, i), kActor});
      }
    }
    for (uint32_t rank = 0; rank < members->ids.size(); ++rank) {
      actors[rank]->on_request = [this, rank](MessagePtr request) { requests[rank].push_back(std::move(request)); };
    }
    use_trees(2);
    call(Reducer::kNone);  // so that there are sessions between all
    sim.run();
    for (auto& [rank, got] : requests) answer(rank, 0);
    sim.run();
    for (auto& [id, process] : processes) process->frames.clear();
  }
  ~World() { sim.end(); }

  Node& make(NodeId id) {
    auto& process = processes[id] = std::make_unique<Process>(sim, id);
    Node::Hooks hooks;
    hooks.dial = [this, id](NodeId to) { return connect(id, to); };
    hooks.gateway_there = [](NodeId node) { return gateway_of_host(host_number(node)); };
    hooks.gateway_of = [id](NodeId node) -> NodeId {
      if (host_number(node) == host_number(id)) return 0;
      const NodeId own = gateway_of_host(host_number(id)), there = gateway_of_host(host_number(node));
      return own != id ? own : there == node ? 0 : there;
    };
    hooks.on_link_lost = [](NodeId, const Error&) { return true; };
    hooks.on_way_lost = [](NodeId, const FailurePtr&) {};
    hooks.on_undeliverable = [](const ActorId&, const Failure&) {};
    process->node = std::make_unique<Node>(id, sim.driver(), *process, std::move(hooks));
    return *process->node;
  }
  std::shared_ptr<Link> connect(NodeId from, NodeId to) {
    if (processes.at(to)->dead) return nullptr;
    auto [there, here] = sim.connect(from, *processes.at(from), to, *processes.at(to));
    sim.after(0, [this, to, end = here] { processes.at(to)->node->add_link(end); });
    return there;
  }
  void use_trees(uint32_t answer_hosts) {
    for (auto& [id, process] : processes) {
      process->node->set_cast_trees({.large_hosts = 2, .large_fan_out = kFanOut, .small_hosts = 2,
                                     .small_fan_out = kFanOut, .answer_hosts = answer_hosts});
    }
  }
  std::shared_ptr<PendingCall> call(Reducer reducer, bool gathered = false, int64_t timeout_ns = 0) {
    auto made = std::make_shared<PendingCall>(members);
    made->set_reducer(reducer);
    if (gathered) made->set_gathered();
    Outgoing request{FrameHeader{}, {}, {}};
    request.header.kind = FrameKind::kRequest;
    if (timeout_ns != 0) request.deadline_ns = sim.now_ns() + timeout_ns;
    made->set_deadline(request.deadline_ns);
    node(kScript).cast(*members, request, made);
    return made;
  }
  // The oldest request that this rank has.
  template <typename T>
  void answer(uint32_t rank, const T& value, FrameKind kind = FrameKind::kReply) {
    if (requests[rank].empty()) return;
    const MessagePtr request = std::move(requests[rank].front());
    requests[rank].erase(requests[rank].begin());
    ValueWriter writer;
    encode(writer, value);
    Outgoing reply{FrameHeader{}, writer.written(), {}};
    node(members->ids[rank].node).reply(request->header, request->from, kind, reply);
  }
  template <typename Value>
  void answer_all(const Value& value_of, const std::set<uint32_t>& but = {}) {
    for (uint32_t rank = 0; rank < members->ids.size(); ++rank) {
      if (!but.contains(rank)) answer(rank, value_of(rank));
    }
  }
  void run_for(int64_t ns) {
    bool over = false;
    sim.after(ns, [&over] { over = true; });
    while (!over && sim.step()) {
    }
  }
  // It ends. Its gateway hears of it, and others later.
  void kill(NodeId id) {
    Process& process = *processes.at(id);
    if (process.dead) return;
    process.dead = true;
    process.node->close_links();
    for (auto& [other, heard] : processes) {
      const bool is_near = host_number(other) == host_number(id);
      if (!is_near && other != kScript && id != gateway(host_number(id))) continue;
      sim.after(is_near ? 1'000'000 : 2'000'000, [process = heard.get(), id] {
        process->run([process, id] { process->node->node_down(id, lost()); });
      });
    }
  }
  void kill_host(NodeId host) {
    kill(gateway(host));
    for (NodeId i = 0; i < kWorkers; ++i) kill(worker(host, i));
  }
  static FailurePtr lost() { return std::make_shared<Failure>(Failure::Kind::kLost, "as the test says"); }

  Node& node(NodeId id) { return *processes.at(id)->node; }
  size_t frames_to_script(FrameKind kind = FrameKind::kReply) {
    return static_cast<size_t>(
        std::ranges::count(processes.at(kScript)->frames, kind, &Process::Frame::kind));
  }
  size_t kept() {
    size_t all = 0;
    for (auto& [id, process] : processes) all += process->dead ? 0 : process->node->held().answers;
    return all;
  }
  template <typename T>
  T value(const PendingCall& made) {
    const Reduced reduced = reduce(made);
    if (!reduced.value) return ADD_FAILURE() << reduced.problem.text("m"), T{};
    return *decode<T>(reduced.value->body);
  }

  SimWorld sim;
  std::map<NodeId, std::unique_ptr<Process>> processes;
  std::map<uint32_t, std::shared_ptr<Actor>> actors;  // shared: with the nodes
  std::map<uint32_t, std::vector<MessagePtr>> requests;  // by rank, that have not been answered
  std::shared_ptr<Members> members = std::make_shared<Members>();
};

struct AnswersThroughATree : ::testing::Test, World {
  static int64_t as_rank(uint32_t rank) { return rank; }
  // Which hosts are given the cast by the script, for all others: 1, 11 and 21.
  static constexpr size_t kFirst = kFanOut;
  static constexpr int64_t kSum = (kHosts * kWorkers) * (kHosts * kWorkers - 1) / 2;
};

TEST_F(AnswersThroughATree, ComeCombinedFromAFew) {
  const auto made = call(Reducer::kSum);
  run_for(5'000'000);
  answer_all(as_rank);
  run_for(50'000'000);
  ASSERT_TRUE(made->complete());
  EXPECT_EQ(frames_to_script(), kFirst);
  EXPECT_EQ(value<int64_t>(*made), kSum);
}

TEST_F(AnswersThroughATree, EachReducerGivesWhatItDoesWithoutATree) {
  for (const auto& [reducer, expected] : {std::pair(Reducer::kMin, int64_t{0}), {Reducer::kMax, 59}, {Reducer::kSum, kSum},
                                          {Reducer::kCount, 60}}) {
    const auto made = call(reducer);
    run_for(5'000'000);
    answer_all(as_rank);
    run_for(50'000'000);
    ASSERT_TRUE(made->complete());
    EXPECT_EQ(value<int64_t>(*made), expected);
  }
  EXPECT_EQ(frames_to_script(), 4 * kFirst);
}

TEST_F(AnswersThroughATree, WithoutAReducerComeSideBySide) {
  const auto made = call(Reducer::kNone, true);
  run_for(5'000'000);
  answer_all(as_rank);
  run_for(50'000'000);
  ASSERT_TRUE(made->complete());
  EXPECT_EQ(frames_to_script(), kFirst);
  for (uint32_t rank = 0; rank < made->size(); ++rank) EXPECT_EQ(*decode<int64_t>(made->reply(rank)->body), rank);
}

TEST_F(AnswersThroughATree, FloatsAreRoundedAsWithoutIt) {
  const auto as_float = [](uint32_t rank) { return 1.0 / (1 + rank) * (rank % 2 == 0 ? 1e10 : -1e-7); };
  double sums[2];
  for (const bool by_tree : {false, true}) {
    use_trees(by_tree ? 2 : UINT32_MAX);
    const size_t before = frames_to_script();
    const auto made = call(Reducer::kSum);
    run_for(5'000'000);
    answer_all(as_float);
    run_for(50'000'000);
    ASSERT_TRUE(made->complete());
    EXPECT_EQ(frames_to_script() - before, by_tree ? kFirst : kHosts);
    sums[by_tree] = value<double>(*made);
  }
  EXPECT_EQ(sums[0], sums[1]);
}

TEST_F(AnswersThroughATree, ALotSideBySideGoesToTheCallerFromEachHost) {
  const auto made = call(Reducer::kConcat);
  run_for(5'000'000);
  answer_all([](uint32_t) { return std::string(30'000, 'x'); });
  run_for(50'000'000);
  ASSERT_TRUE(made->complete());
  EXPECT_GT(frames_to_script(), kFirst);
}

// Host 1 gives what is behind it to nobody, and says so: those above it do not wait.
TEST_F(AnswersThroughATree, WhatGoesDirectlyHoldsUpNobody) {
  const auto time_of = [&](const std::shared_ptr<PendingCall>& made, const auto& answers) {
    run_for(5'000'000);
    answers();
    const int64_t begun_ns = sim.now_ns();
    while (!made->complete() && sim.step()) {
    }
    return sim.now_ns() - begun_ns;
  };
  const auto large = [](uint32_t) { return std::string(50'000, 'x'); };
  EXPECT_LT(time_of(call(Reducer::kConcat), [&] { answer_all(large); }), 1'000'000) << "more than goes up a tree";
  const auto one_large = [&] {
    answer(rank_of(5, 0), std::string(5000, 'x'));
    answer_all(as_rank, {rank_of(5, 0)});
  };
  EXPECT_LT(time_of(call(Reducer::kNone, true), one_large), 1'000'000);
  const auto one_error = [&] {
    answer_all(as_rank, {rank_of(30, 1)});
    answer(rank_of(30, 1), 1, FrameKind::kReplyError);
  };
  EXPECT_LT(time_of(call(Reducer::kSum), one_error), 1'000'000);
  const auto made = call(Reducer::kSum);
  EXPECT_LT(time_of(call(Reducer::kNone), [&] {
    answer_all(as_rank);  // of each the first
    answer_all(as_rank);
  }), 1'000'000);
  run_for(1'000'000);
  EXPECT_TRUE(made->complete());
}

TEST_F(AnswersThroughATree, MinAndMaxAreOfTheSameTypeAsWithoutIt) {
  const auto mixed = [this](uint32_t rank) { rank % 3 == 0 ? answer(rank, 1.0) : answer(rank, int64_t{rank < 50}); };
  for (const bool by_tree : {false, true}) {
    use_trees(by_tree ? 2 : UINT32_MAX);
    const auto made = call(Reducer::kMax);
    run_for(5'000'000);
    for (uint32_t rank = 0; rank < members->ids.size(); ++rank) mixed(rank);
    run_for(50'000'000);
    ASSERT_TRUE(made->complete());
    EXPECT_EQ(value<int64_t>(*made), 1) << by_tree;
  }
}

// As many calls at once, to actors that answer when it is their time.
TEST_F(AnswersThroughATree, CallsAtOnceDoNotWaitForEachOther) {
  constexpr int kCalls = 20;
  constexpr int64_t kSpreadNs = 40'000'000;
  for (auto& [rank, actor] : actors) {
    actor->on_request = [this, rank = rank](MessagePtr request) {
      const std::shared_ptr<Message> kept = std::move(request);
      sim.after(static_cast<int64_t>(sim.random(kSpreadNs)), [this, rank, kept] {
        ValueWriter writer;
        encode(writer, int64_t{rank});
        Outgoing reply{FrameHeader{}, writer.written(), {}};
        node(members->ids[rank].node).reply(kept->header, kept->from, FrameKind::kReply, reply);
      });
    };
  }
  std::vector<std::shared_ptr<PendingCall>> made;
  for (int i = 0; i < kCalls; ++i) made.push_back(call(Reducer::kSum));
  const int64_t begun_ns = sim.now_ns();
  while (!std::ranges::all_of(made, [](const auto& each) { return each->complete(); }) && sim.step()) {
  }
  EXPECT_LT(sim.now_ns() - begun_ns, kSpreadNs + 5'000'000);
}

// All that are on their way when the caller says what it misses.
TEST_F(AnswersThroughATree, WhatIsAskedForTooEarlyComesOnce) {
  std::vector<std::shared_ptr<PendingCall>> made;
  for (int i = 0; i < 50; ++i) made.push_back(call(Reducer::kSum));
  run_for(AnswerNotices::kFirstNs - 20'000'000);
  for (int i = 0; i < 50; ++i) {
    answer_all(as_rank, {rank_of(1, 0), rank_of(11, 0), rank_of(21, 0)});
    run_for(1'000'000);
    for (const NodeId host : {1, 11, 21}) answer(rank_of(host, 0), int64_t{rank_of(host, 0)});
  }
  run_for(50'000'000);
  for (const auto& each : made) EXPECT_TRUE(each->complete());
  EXPECT_EQ(frames_to_script(), 50 * kFirst);
}

TEST_F(AnswersThroughATree, TheEndOfAProcessBringsTheLastFewOnly) {
  for (int i = 0; i < 200; ++i) call(Reducer::kSum);
  run_for(5'000'000);
  for (int i = 0; i < 200; ++i) answer_all(as_rank);
  run_for(50'000'000);
  const size_t before = frames_to_script();
  for (NodeId host = 1; host <= kHosts; ++host) node(gateway(host)).node_down(worker(host, 0), lost());
  run_for(10'000'000);
  EXPECT_LE(frames_to_script() - before, KeptAnswers::kLastFew * kHosts);
}

TEST_F(AnswersThroughATree, OfACallThatHasEndedBeforeItsAnswersNothingIsKeptForEver) {
  const auto made = call(Reducer::kSum, false, 3'000'000'000);
  run_for(4'000'000'000);
  ASSERT_TRUE(made->complete());
  run_for(20'000'000'000);
  answer_all(as_rank);
  run_for(1'000'000'000);
  EXPECT_GT(kept(), 0u);
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(kept(), 0u);
}

TEST_F(AnswersThroughATree, OfManyLossesAtOnceTheCallerSaysLittle) {
  std::vector<std::shared_ptr<PendingCall>> made;
  for (int i = 0; i < 50; ++i) made.push_back(call(Reducer::kSum));
  run_for(5'000'000);
  processes.at(gateway(30))->frames.clear();
  for (NodeId host = 2; host <= 16; ++host) kill_host(host);
  run_for(20'000'000);
  const auto& frames = processes.at(gateway(30))->frames;
  const auto notices = std::ranges::count(frames, FrameKind::kTreeCast, &Process::Frame::kind) +
                       std::ranges::count(frames, FrameKind::kTreeSeen, &Process::Frame::kind);
  EXPECT_LE(notices, 4);
  answer_all(as_rank);
  for (int i = 0; i < 50; ++i) answer_all(as_rank);
  ASSERT_TRUE(sim.run());
  for (const auto& each : made) EXPECT_TRUE(each->complete());
}

// They do not reach each other any more, and both are well.
TEST_F(AnswersThroughATree, AreNotLostBetweenTwoHostsThatLetGoOfEachOther) {
  const auto made = call(Reducer::kSum);
  run_for(5'000'000);
  answer_all(as_rank, {rank_of(1, 0)});
  run_for(2'000'000);
  EXPECT_GT(made->missing().size(), 1u);
  node(gateway(1)).let_go(gateway(2), *lost());
  node(gateway(2)).let_go(gateway(1), *lost());
  run_for(2 * KeptAnswers::kOnItsWayNs);
  EXPECT_EQ(made->missing(), std::vector{rank_of(1, 0)});
  answer(rank_of(1, 0), int64_t{0});
  run_for(1'000'000'000);
  ASSERT_TRUE(made->complete());
  EXPECT_EQ(value<int64_t>(*made), kSum);
}

// Whoever is no gateway does not speak for hosts.
TEST_F(AnswersThroughATree, AProcessCannotSendWhatOnlyGatewaysDo) {
  const auto made = call(Reducer::kSum);
  run_for(5'000'000);
  const std::string body = encode_replies({{0, 0, 1, 0}});
  const ByteSpan part = as_byte_span("x", 1);
  Outgoing lie{FrameHeader{}, as_byte_span(body.data(), body.size()), {&part, 1}};
  lie.header.kind = FrameKind::kTreeReply;
  lie.header.dest = made->token();
  lie.header.sender = kScript;
  lie.header.rank = kEveryRank;
  node(worker(3, 0)).send(gateway(3), lie);
  run_for(5'000'000);
  EXPECT_EQ(made->received(), 0u);
  EXPECT_EQ(frames_to_script(), 0u);
}

TEST_F(AnswersThroughATree, WhatIsKeptOfThemIsForgottenSoonAfter) {
  call(Reducer::kSum);
  run_for(5'000'000);
  answer_all(as_rank);
  run_for(50'000'000);
  EXPECT_GT(kept(), 0u);
  run_for(2 * AnswerNotices::kFirstNs);
  EXPECT_EQ(kept(), 0u);
  ASSERT_TRUE(sim.run()) << "and nothing is said of it any more";
}

TEST_F(AnswersThroughATree, OfACallerThatHasDiedNothingIsKept) {
  call(Reducer::kSum);
  run_for(5'000'000);
  answer_all(as_rank);
  run_for(50'000'000);
  for (NodeId host = 1; host <= kHosts; ++host) node(gateway(host)).node_down(kScript, lost());
  EXPECT_EQ(kept(), 0u);
}

TEST_F(AnswersThroughATree, ASlowRankHoldsUpThoseWhoAnswerForAMomentOnly) {
  const auto made = call(Reducer::kSum);
  run_for(5'000'000);
  answer_all(as_rank, {rank_of(8, 0)});
  run_for(250'000'000);
  EXPECT_EQ(made->missing(), std::vector{rank_of(8, 0)});
  answer(rank_of(8, 0), int64_t{rank_of(8, 0)});
  run_for(250'000'000);
  ASSERT_TRUE(made->complete());
  EXPECT_EQ(value<int64_t>(*made), kSum);
}

TEST_F(AnswersThroughATree, AnErrorComesAtOnce) {
  const auto made = call(Reducer::kSum);
  run_for(5'000'000);
  answer(rank_of(25, 1), 1, FrameKind::kReplyError);
  run_for(1'000'000);
  EXPECT_EQ(made->lowest_error(), rank_of(25, 1));
  answer_all(as_rank, {rank_of(25, 1)});
  ASSERT_TRUE(sim.run());
  EXPECT_TRUE(made->complete());
}

// Host 1 has the answers of ten hosts, and waits for its own.
TEST_F(AnswersThroughATree, AreNotLostWithAHostThatHasThoseOfOthers) {
  for (const bool gathered : {false, true}) {
    SCOPED_TRACE(gathered);
    const NodeId host = gathered ? 11 : 1;
    const auto made = call(gathered ? Reducer::kNone : Reducer::kSum, gathered);
    run_for(5'000'000);
    answer_all(as_rank, {rank_of(host, 0), rank_of(host, 1)});
    run_for(2'000'000);
    EXPECT_GT(made->missing().size(), kWorkers) << "it holds them";
    kill_host(host);
    run_for(1'000'000'000);
    ASSERT_TRUE(made->complete());
    for (uint32_t rank = 0; rank < made->size(); ++rank) {
      const bool is_lost = rank / kWorkers + 1 == host;
      const bool was_lost = gathered && rank / kWorkers + 1 == 1;  // before
      if (!was_lost) {
        EXPECT_EQ(made->reply(rank)->header.kind, is_lost ? FrameKind::kReplyFailed : FrameKind::kReply) << rank;
      }
    }
  }
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(kept(), 0u);
}

TEST_F(AnswersThroughATree, OfAHostThatIsStoppedOnlyItsOwnAreMissing) {
  const auto made = call(Reducer::kSum);
  run_for(5'000'000);
  processes.at(gateway(1))->stopped = true;
  answer_all(as_rank);
  run_for(100'000'000);
  EXPECT_GT(made->missing().size(), kWorkers);
  run_for(500'000'000);  // the next word to the gateways goes past it
  EXPECT_EQ(made->missing(), (std::vector{rank_of(1, 0), rank_of(1, 1)}));
  processes.at(gateway(1))->go_on();
  run_for(2'000'000'000);
  ASSERT_TRUE(made->complete()) << made->missing().size();
  EXPECT_EQ(value<int64_t>(*made), kSum);
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(kept(), 0u);
}

// What has gone to host 1 is sent once more, so the caller has a part of what comes from there: it asks for the rest
// soon.
TEST_F(AnswersThroughATree, AProcessThatEndsAfterItsAnswerHasAnswered) {
  const auto made = call(Reducer::kSum);
  run_for(5'000'000);
  answer_all(as_rank, {rank_of(1, 0)});
  run_for(2'000'000);
  kill(worker(10, 0));
  run_for(2'000'000);
  answer(rank_of(1, 0), int64_t{rank_of(1, 0)});
  run_for(2 * KeptAnswers::kOnItsWayNs);
  ASSERT_TRUE(made->complete()) << made->missing().size();
  EXPECT_EQ(made->lowest_error(), -1);
  EXPECT_EQ(value<int64_t>(*made), kSum);
}

TEST_F(AnswersThroughATree, WhoGivesUpSoonIsAnsweredDirectly) {
  call(Reducer::kSum, false, Trees::kAnswersInTimeNs / 2);
  run_for(5'000'000);
  answer_all(as_rank);
  run_for(50'000'000);
  EXPECT_EQ(frames_to_script(), kHosts);
}

TEST_F(AnswersThroughATree, WhatIsMissingAtADeadlineIsTrue) {
  const auto made = call(Reducer::kSum, false, 3'000'000'000);
  run_for(5'000'000);
  processes.at(gateway(1))->stopped = true;
  answer_all(as_rank);
  run_for(4'000'000'000);
  ASSERT_TRUE(made->complete());
  for (uint32_t rank = 0; rank < made->size(); ++rank) {
    EXPECT_EQ(made->reply(rank)->header.kind, rank < kWorkers ? FrameKind::kReplyError : FrameKind::kReply) << rank;
  }
}

TEST_F(AnswersThroughATree, ManyCallsAtOnceAreAllAnswered) {
  std::vector<std::shared_ptr<PendingCall>> made;
  for (int i = 0; i < 200; ++i) made.push_back(call(i % 2 == 0 ? Reducer::kSum : Reducer::kNone, true));
  run_for(5'000'000);
  for (int i = 0; i < 200; ++i) answer_all(as_rank);
  run_for(500'000'000);
  for (const auto& each : made) EXPECT_TRUE(each->complete());
  EXPECT_LT(frames_to_script(), 200 * kHosts / 2);
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(kept(), 0u);
}

// ---- Over seeds ----

TEST(AnswersOverSeeds, EachCallEndsAndIsRight) {
  for (const uint64_t seed : sim_seeds(400, 40)) {
    SCOPED_TRACE(reproduction(seed, "testing_test", "AnswersOverSeeds.EachCallEndsAndIsRight"));
    World world(seed, {.delay_max_ns = 3'000'000});
    SimWorld& sim = world.sim;
    struct Made {
      std::shared_ptr<PendingCall> call;
      Reducer reducer;
    };
    std::vector<Made> calls;
    std::set<uint32_t> failing;  // of the first call
    std::set<NodeId> killed;
    const int count = 1 + static_cast<int>(sim.random(6));
    for (int i = 0; i < count; ++i) {
      const Reducer reducers[] = {Reducer::kNone, Reducer::kSum, Reducer::kMax, Reducer::kConcat, Reducer::kCount};
      const Reducer reducer = reducers[sim.random(5)];
      sim.after(static_cast<int64_t>(sim.random(400'000'000)),
                [&, reducer] { calls.push_back({world.call(reducer, true), reducer}); });
    }
    for (auto& [rank, actor] : world.actors) {
      const uint64_t slow = sim.chance(10) ? 2'000'000'000 : sim.chance(30) ? 200'000'000 : 1'000'000;
      actor->on_request = [&, slow, rank = rank](MessagePtr request) {
        world.requests[rank].push_back(std::move(request));
        const bool is_error = sim.chance(1);
        sim.after(static_cast<int64_t>(sim.random(slow)), [&world, rank, is_error] {
          if (world.processes.at(world.members->ids[rank].node)->dead) return;
          world.answer(rank, int64_t{rank}, is_error ? FrameKind::kReplyError : FrameKind::kReply);
        });
      };
    }
    const auto some_host = [&] { return 1 + sim.random(kHosts); };
    for (uint64_t i = sim.random(4); i > 0; --i) {
      sim.after(static_cast<int64_t>(sim.random(600'000'000)), [&, host = some_host(), whole = sim.chance(60)] {
        whole ? world.kill_host(host) : world.kill(worker(host, 0));
        for (NodeId at = 0; at < kWorkers; ++at) {
          if (whole || at == 0) killed.insert(worker(host, at));
        }
      });
    }
    for (uint64_t i = sim.random(4); i > 0; --i) {
      const NodeId host = some_host();
      sim.after(static_cast<int64_t>(sim.random(600'000'000)), [&, host, length = sim.random(3'000'000'000)] {
        world.processes.at(gateway(host))->stopped = true;
        sim.after(static_cast<int64_t>(length), [&, host] { world.processes.at(gateway(host))->go_on(); });
      });
    }
    ASSERT_TRUE(sim.run());
    for (const Made& made : calls) {
      ASSERT_TRUE(made.call->complete()) << made.call->missing().size() << " ranks, the first "
                                         << made.call->missing().front();
      for (uint32_t rank = 0; rank < made.call->size(); ++rank) {
        if (made.call->reply(rank)->header.kind != FrameKind::kReplyFailed) continue;
        EXPECT_TRUE(killed.contains(world.members->ids[rank].node)) << rank;
      }
      if (made.call->lowest_error() >= 0) continue;
      if (made.reducer == Reducer::kSum || made.reducer == Reducer::kMax) {
        const int64_t expected = made.reducer == Reducer::kSum ? AnswersThroughATree::kSum : kHosts * kWorkers - 1;
        EXPECT_EQ(world.value<int64_t>(*made.call), expected);
      }
      for (uint32_t rank = 0; rank < made.call->size(); ++rank) {
        if (made.reducer != Reducer::kNone && made.reducer != Reducer::kConcat) break;
        EXPECT_EQ(*decode<int64_t>(made.call->reply(rank)->body), rank);
      }
    }
    EXPECT_EQ(world.kept(), 0u);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace monarch::testing
