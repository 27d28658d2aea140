#include "monarch/actor/port.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <thread>

#include "monarch/actor/calls.h"
#include "monarch/base/arch.h"
#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

constexpr ActorIndex kSender = 1;  // each node's sender
constexpr size_t kPiece = size_t{1} << 20;
constexpr int kFull = static_cast<int>(Inflow::kBytesMax / kPiece);

// Keeps what comes back to a sender, and what it is asked.
struct Recorder : Cell {
  void deliver(MessagePtr message) override {
    if (message->header.kind == FrameKind::kUndeliverable) {
      bounced.push_back(failure_of(*message).text());
    } else {
      asked.push_back(std::move(message));
    }
  }
  std::vector<std::string> bounced;
  std::vector<MessagePtr> asked;
};

struct World {
  explicit World(uint64_t seed = 1) : sim(seed), home(sim.add_node()) {
    for (int i = 0; i < 3; ++i) {
      nodes.push_back(i == 0 ? home : sim.add_node());
      recorders.push_back(std::make_shared<Recorder>());
      sim.node(nodes.back()).add_cell(kSender, recorders.back());
    }
  }
  Node& node(size_t i = 0) { return sim.node(nodes[i]); }
  std::shared_ptr<PortReceiver> open(std::shared_ptr<Inflow> owner = nullptr) {
    return PortReceiver::open(node(), std::move(owner));
  }
  void post(size_t from, const ActorId& port, const std::string& text, uint8_t flags = 0) {
    Outgoing outgoing{FrameHeader{}, as_byte_span(text.data(), text.size()), {}};
    outgoing.header.sender = kSender;
    outgoing.header.flags = flags;
    node(from).post(port, outgoing);
  }

  SimWorld sim;
  const NodeId home;
  std::vector<NodeId> nodes;
  std::vector<std::shared_ptr<Recorder>> recorders;
};

// What a wait was given, which counts as looked at; "" while there is nothing.
std::string look(const std::shared_ptr<PortWait>& wait) {
  if (!wait->complete()) return "";
  wait->mark_seen();
  return (reply_text(*wait->reply(0)));
}

TEST(Port, GivesEachWaitOneMessageInTheOrderOfTheWaits) {
  World world;
  auto port = world.open();
  auto first = port->receive();
  for (const char* text : {"a", "b", "c"}) world.post(1, port->address(), text);
  world.sim.run();
  auto second = port->receive(), third = port->receive(), fourth = port->receive();
  EXPECT_EQ(look(third), "c");
  EXPECT_EQ(look(second), "b");
  EXPECT_EQ(look(first), "a");
  EXPECT_EQ(look(fourth), "");
}

TEST(Port, AWaitThatIsGivenUpLeavesTheLineAndItsMessageGoesToTheNext) {
  World world;
  auto port = world.open();
  auto given_up = port->receive(), waiting = port->receive();
  given_up.reset();
  world.post(1, port->address(), "a");
  world.sim.run();
  EXPECT_EQ(look(waiting), "a");
  given_up = port->receive();
  for (const char* text : {"b", "c"}) world.post(1, port->address(), text);
  world.sim.run();
  given_up.reset();  // it had been given b
  EXPECT_EQ(look(port->receive()), "b");
  EXPECT_EQ(look(port->receive()), "c");
  auto looked_at = port->receive();
  world.post(1, port->address(), "d");
  world.sim.run();
  EXPECT_EQ(look(looked_at), "d");
  looked_at.reset();
  EXPECT_EQ(look(port->receive()), "");
}

TEST(Port, ManyThatAreGivenUpInAnyOrderLeaveTheirMessagesInTheRightOne) {
  World world;
  auto port = world.open();
  std::vector<std::shared_ptr<PortWait>> waits{port->receive(), port->receive(), port->receive(), port->receive()};
  for (const char* text : {"a", "b", "c"}) world.post(1, port->address(), text);
  world.sim.run();
  for (const size_t i : {1, 0, 2, 3}) waits[i].reset();
  for (const char* text : {"a", "b", "c"}) EXPECT_EQ(look(port->receive()), text);
}

TEST(Port, WhatObservesAWaitThatIsGivenUpRunsOnce) {
  World world;
  auto port = world.open();
  auto wait = port->receive();
  int runs = 0;
  wait->observe(0, [&runs] { ++runs; });
  wait.reset();
  EXPECT_EQ(runs, 1);
}

TEST(Port, WhatObservesAWaitDoesNotRunOnceItIsForgotten) {
  World world;
  auto port = world.open();
  auto wait = port->receive();
  int forgotten = 0, others = 0;
  const uint64_t observer = wait->observe(0, [&forgotten] { ++forgotten; });
  wait->observe(0, [&others] { ++others; });
  wait->forget_observer(observer);
  wait->forget_observer(observer);
  world.post(1, port->address(), "a");
  world.sim.run();
  EXPECT_EQ(look(wait), "a");
  EXPECT_EQ(forgotten, 0);
  EXPECT_EQ(others, 1);
}

TEST(Port, TellsWhoSendsToAClosedOneUnlessTheMessageIsQuiet) {
  World world;
  auto port = world.open();
  const ActorId address = port->address();
  world.post(1, address, "never taken");
  world.post(1, address, "nor this", kFlagQuiet);
  world.sim.run();
  auto wait = port->receive();
  port.reset();
  EXPECT_TRUE(world.recorders[1]->bounced.empty());  // open while somebody waits
  EXPECT_EQ(look(wait), "never taken");
  wait.reset();
  world.sim.run();
  EXPECT_TRUE(world.recorders[1]->bounced.empty());
  world.post(1, address, "too late");
  world.post(1, address, "too late", kFlagQuiet);
  world.post(0, address, "too late");
  world.sim.run();
  const std::vector<std::string> once{"the port is closed: its receiver is gone"};
  EXPECT_EQ(world.recorders[1]->bounced, once);
  EXPECT_EQ(world.recorders[0]->bounced, once);
}

TEST(Port, ItsLastWaitsEndBouncesWhatIsLeft) {
  World world;
  auto port = world.open();
  world.post(1, port->address(), "a");
  world.post(2, port->address(), "b");
  world.sim.run();
  port.reset();
  world.sim.run();
  EXPECT_EQ(world.recorders[1]->bounced.size(), 1u);
  EXPECT_EQ(world.recorders[2]->bounced.size(), 1u);
}

TEST(Port, TheDeathOfItsNodeComesBackWithItsCauseThoughThatIsKnownLater) {
  for (const uint64_t seed : sim_seeds(50, 10)) {
    SCOPED_TRACE(reproduction(seed, "actor_test", "Port.TheDeathOfItsNode*"));
    World world(seed);
    auto port = world.open();
    world.post(1, port->address(), "in time");
    world.sim.run();
    world.sim.kill(world.home, "killed");
    for (int i = 0; i < 40; ++i) {
      world.sim.after(500'000 * i, [&] { world.post(1, port->address(), "too late"); });
    }
    world.sim.run();
    const auto& bounced = world.recorders[1]->bounced;
    EXPECT_FALSE(bounced.empty());
    for (const std::string& why : bounced) {
      EXPECT_TRUE(why == "killed" || why.find("the peer closed the connection") != std::string::npos) << why;
    }
  }
}

TEST(Port, RefusesACall) {
  World world;
  auto port = world.open();
  auto members = std::make_shared<Members>(Members{{port->address()}});
  auto call = std::make_shared<PendingCall>(members);
  Outgoing request{FrameHeader{}, {}, {}};
  request.header.kind = FrameKind::kRequest;
  world.node(1).cast(*members, request, call);
  world.sim.run();
  ASSERT_TRUE(call->complete());
  EXPECT_EQ(call->reply(0)->header.kind, FrameKind::kReplyFailed);
}

TEST(Port, TheEndOfItsNodeFailsWhoWaitsAndBouncesNothing) {
  World world;
  auto port = world.open(), other = world.open();
  auto waiting = port->receive();
  world.post(1, other->address(), "never taken");
  world.post(0, other->address(), "never taken");
  world.sim.run();
  world.node().close_links();
  ASSERT_TRUE(waiting->complete());
  EXPECT_EQ(waiting->reply(0)->header.kind, FrameKind::kReplyFailed);
  auto later = port->receive();
  ASSERT_TRUE(later->complete());
  EXPECT_EQ(reply_text(*later->reply(0)), "this process is ending");
  waiting.reset();  // unseen, but nobody's message
  later.reset();
  port.reset();
  other.reset();
  world.sim.run();
  EXPECT_TRUE(world.recorders[0]->bounced.empty());
  EXPECT_TRUE(world.recorders[1]->bounced.empty());
}

TEST(Port, IsHeldFullUntilItsMessagesAreTakenOrItsOwnerWaitsOrItCloses) {
  World world;
  auto owner = std::make_shared<Inflow>(world.node(), ActorIndex{100});
  auto port = world.open(owner);
  const Members members{{port->address()}};
  const std::string piece(kPiece, 'x');
  auto fill = [&] {
    for (int i = 0; i < kFull + 1; ++i) world.post(1, port->address(), piece);
    world.sim.run();
  };
  auto has_room = [&] { return world.node(1).has_room(members, Node::kBacklogMax); };
  auto take_all = [&] {
    while (!look(port->receive()).empty()) {
    }
    world.sim.run();
  };
  fill();
  EXPECT_FALSE(has_room());
  for (int i = 0; i < kFull / 2 + 2; ++i) look(port->receive());
  world.sim.run();
  EXPECT_TRUE(has_room());
  take_all();
  fill();
  EXPECT_FALSE(has_room());
  owner->begin_blocking();
  world.sim.run();
  EXPECT_TRUE(has_room());
  fill();
  EXPECT_TRUE(has_room());
  owner->end_blocking();
  world.post(1, port->address(), piece);
  world.sim.run();
  EXPECT_FALSE(has_room());
  port.reset();
  world.sim.run();
  EXPECT_TRUE(has_room());
}

TEST(Port, SmallMessagesThatAreTakenHoldNobody) {
  World world;
  auto port = world.open();
  const Members members{{port->address()}};
  for (int i = 0; i < 3; ++i) {
    auto wait = port->receive();
    for (int j = 0; j < 2; ++j) {
      world.post(1, port->address(), "small");
      world.sim.run();
      EXPECT_TRUE(world.node(1).has_room(members, Node::kBacklogMax)) << i;
    }
    EXPECT_EQ(look(wait), "small");
    EXPECT_EQ(look(port->receive()), "small");
  }
}

TEST(Port, MessagesThatGoBackCountAgain) {
  World world;
  auto port = world.open();
  const Members members{{port->address()}};
  const std::string piece(kPiece, 'x');
  std::vector<std::shared_ptr<PortWait>> waits;
  for (int i = 0; i < kFull; ++i) waits.push_back(port->receive());
  for (int i = 0; i < kFull; ++i) world.post(1, port->address(), piece);
  world.sim.run();
  waits.clear();
  EXPECT_TRUE(world.node(1).has_room(members, Node::kBacklogMax));
  world.post(1, port->address(), piece);
  world.sim.run();
  EXPECT_FALSE(world.node(1).has_room(members, Node::kBacklogMax));
  port.reset();
  world.sim.run();
  EXPECT_TRUE(world.node(1).has_room(members, Node::kBacklogMax));
}

// ---- relay_answers ----

struct Relay : World {
  // Node 0 asks the recorders of the others for whoever has opened `port` there.
  std::shared_ptr<PendingCall> ask() {
    auto members = std::make_shared<Members>(Members{{{nodes[1], kSender}, {nodes[2], kSender}}});
    auto call = std::make_shared<PendingCall>(members);
    Outgoing request{FrameHeader{}, {}, {}};
    request.header.kind = FrameKind::kRequest;
    node().cast(*members, request, call);
    return call;
  }
  void answer(size_t from, FrameKind kind, const std::string& text) {
    const Message& request = *recorders[from]->asked.back();
    Outgoing reply{FrameHeader{}, as_byte_span(text.data(), text.size()), {}};
    reply.header.sender = kSender;
    node(from).reply(request.header, request.from, kind, reply);
    sim.run();
  }
};

TEST(Port, IsPassedAnswersWithTheirRanksAsTheyComeFailuresToo) {
  Relay world;
  auto port = world.open();
  relay_answers(world.node(), world.ask(), port->address(), 10);
  world.sim.run();
  world.answer(2, FrameKind::kReply, "second");
  auto wait = port->receive();
  EXPECT_EQ(wait->reply(0)->header.rank, 11u);
  EXPECT_EQ(wait->reply(0)->header.method, uint32_t{kPortValue | kPortRanked});
  EXPECT_EQ(look(wait), "second");
  world.sim.kill(world.nodes[1], "killed");
  world.sim.run();
  wait = port->receive();
  ASSERT_TRUE(wait->complete());
  EXPECT_EQ(wait->reply(0)->header.kind, FrameKind::kReplyFailed);
  EXPECT_EQ(wait->reply(0)->header.rank, 10u);
  EXPECT_FALSE(look(wait).empty());
}

TEST(Port, AnswersToAClosedOneBounceToNobody) {
  Relay world;
  auto port = world.open();
  relay_answers(world.node(), world.ask(), port->address(), 0);
  world.sim.run();
  port.reset();
  world.answer(1, FrameKind::kReply, "for nobody");
  world.answer(2, FrameKind::kReplyError, "for nobody");
  for (auto& recorder : world.recorders) EXPECT_TRUE(recorder->bounced.empty());
}

TEST(Port, AnswersGoOnToWhoWaitsForACall) {
  Relay world;
  auto members = std::make_shared<Members>(Members{{{world.home, kSender}}});
  auto outer = std::make_shared<PendingCall>(members);
  Outgoing request{FrameHeader{}, {}, {}};
  request.header.kind = FrameKind::kRequest;
  world.node(2).cast(*members, request, outer);
  world.sim.run();
  const Message& asked = *world.recorders[0]->asked.at(0);
  relay_answers(world.node(), world.ask(), asked.header, asked.from);
  world.sim.run();
  world.answer(1, FrameKind::kReply, "the first");
  world.answer(2, FrameKind::kReply, "dropped");
  ASSERT_TRUE(outer->complete());
  EXPECT_EQ(reply_text(*outer->reply(0)), "the first");
}

// ---- Over seeds ----

// Senders, one of which may die, send to a port; its receiver takes, gives up and may close. What is taken comes in the
// order of its sender, once, and without a hole; what comes back was not taken.
void run_scenario(uint64_t seed) {
  SCOPED_TRACE(reproduction(seed, "actor_test", "Port.KeepsItsPromisesForEverySeed"));
  World world(seed);
  SimWorld& sim = world.sim;
  auto port = world.open();
  const ActorId address = port->address();
  std::map<size_t, int> sent, taken;
  std::vector<std::shared_ptr<PortWait>> line;
  auto take = [&](const std::shared_ptr<PortWait>& wait) {
    const std::string text = look(wait);
    if (text.empty()) return;
    const size_t from = static_cast<size_t>(text[0] - '0');
    EXPECT_EQ(std::stoi(text.substr(1)), taken[from]++);
  };
  for (int i = 0; i < 200; ++i) {
    sim.after(static_cast<int64_t>(sim.random(20'000'000)), [&] {
      const size_t from = sim.random(3);
      if (sim.alive(world.nodes[from])) world.post(from, address, std::to_string(from) + std::to_string(sent[from]++));
    });
    sim.after(static_cast<int64_t>(sim.random(22'000'000)), [&] {
      if (!port) return;
      if (sim.chance(60)) line.push_back(port->receive());
      // Whoever is first in the line looks, or gives up; nobody overtakes, so that order can be told.
      if (!line.empty() && (line.front()->complete() || sim.chance(30))) {
        if (sim.chance(70)) {
          take(line.front());
        } else {
          line.clear();
        }
        if (!line.empty() && line.front()->complete()) line.erase(line.begin());
      }
    });
  }
  if (sim.chance(30)) sim.after(static_cast<int64_t>(sim.random(20'000'000)), [&] { sim.kill(world.nodes[1], "killed"); });
  const bool closes = sim.chance(40);
  if (closes) {
    sim.after(static_cast<int64_t>(sim.random(22'000'000)), [&] {
      line.clear();
      port.reset();
    });
  }
  ASSERT_TRUE(sim.run());
  while (!line.empty()) {
    take(line.front());
    line.erase(line.begin());
  }
  while (port) {
    auto wait = port->receive();
    if (!wait->complete()) break;
    take(wait);
  }
  for (size_t i = 0; i < 3; ++i) {
    if (!sim.alive(world.nodes[i])) continue;
    EXPECT_EQ(taken[i] + static_cast<int>(world.recorders[i]->bounced.size()), sent[i]) << "sender " << i;
  }
}

TEST(Port, KeepsItsPromisesForEverySeed) {
  for (const uint64_t seed : sim_seeds(500, 50)) {
    run_scenario(seed);
    if (HasFailure()) return;
  }
}

// ---- With threads ----

TEST(Port, WhoGivesUpWhileMessagesComeLosesNone) {
  World world;
  auto port = world.open();
  constexpr int kTakers = 3;
  const int count = rounds(100'000, 10'000);
  std::atomic<bool> sent{false};
  std::vector<std::vector<int>> taken(kTakers);
  std::vector<std::thread> threads;
  for (int i = 0; i < kTakers; ++i) {
    threads.emplace_back([&, i] {
      for (uint64_t turn = 0;; ++turn) {
        const bool last = sent.load();
        auto wait = port->receive();
        for (uint64_t pause = turn % 32; pause > 0; --pause) arch::pause();
        if (turn % 3 != 0 || last) {
          const std::string text = look(wait);
          if (!text.empty()) {
            taken[static_cast<size_t>(i)].push_back(std::stoi(text));
          } else if (last) {
            return;
          }
        }
      }
    });
  }
  for (int i = 0; i < count; ++i) world.post(0, port->address(), std::to_string(i));
  sent = true;
  for (std::thread& thread : threads) thread.join();
  std::set<int> all;
  size_t total = 0;
  for (const auto& numbers : taken) {
    total += numbers.size();
    all.insert(numbers.begin(), numbers.end());
  }
  for (auto wait = port->receive(); wait->complete(); wait = port->receive()) {  // the last may have given back
    all.insert(std::stoi(look(wait)));
    ++total;
  }
  EXPECT_EQ(total, static_cast<size_t>(count));
  EXPECT_EQ(all.size(), static_cast<size_t>(count));
}

// One who takes sees the order of one who sends, however often he gives up in between.
TEST(Port, WhoGivesUpWhileMessagesComeSeesTheirOrder) {
  World world;
  auto port = world.open();
  const int count = rounds(200'000, 20'000);
  std::thread sender([&] {
    for (int i = 0; i < count; ++i) world.post(0, port->address(), std::to_string(i));
  });
  std::shared_ptr<PortWait> wait;
  for (int next = 0; next < count;) {
    wait.reset();
    wait = port->receive();
    for (int pause = next % 32; pause > 0; --pause) arch::pause();
    if (const std::string text = look(wait); !text.empty()) {
      ASSERT_EQ(std::stoi(text), next);
      ++next;
    }
  }
  sender.join();
}

}  // namespace
}  // namespace monarch::testing
