// C++ actors in one process: a node without links, its pool, and this thread as the client.
#include "monarch/mesh/actor_mesh.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <iterator>
#include <latch>
#include <map>
#include <mutex>
#include <thread>

#include "monarch/actor/calls.h"
#include "monarch/actor/native_cell.h"
#include "monarch/actor/unobserved_failures.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/loop/reactor.h"
#include "monarch/mesh/proc_mesh.h"
#include "monarch/wire/error_kind.h"

namespace monarch {
namespace {

std::atomic<int> alive{0};

struct Counter : Actor {
  explicit Counter(int64_t start) : total(start) { ++alive; }
  Counter(int64_t start, std::string label) : total(start), tag(label) { ++alive; }
  ~Counter() override { --alive; }

  int64_t add(int64_t by) { return total += by; }
  int64_t add_later(int64_t by) const noexcept { return total + by; }
  void fail(std::string what) { throw std::runtime_error(what); }
  int64_t place() const { return rank() * 100 + message_rank(); }
  void leave(std::string reason) { stop(reason); }
  double half(double x) { return x / 2; }
  std::string label() { return tag; }

  int64_t total;
  std::string tag = "none";
};
MONARCH_ACTOR(Counter, add, add_later, fail, place, leave, half, label)

struct Fragile : Actor {
  Fragile() { throw std::runtime_error("no such device"); }
  void touch() {}
};
MONARCH_ACTOR(Fragile, touch)

// Keeps what it gets, by sender.
struct Recorder : Actor {
  void note(int64_t sender, int64_t number) { seen[sender].push_back(number); }
  std::vector<int64_t> numbers(int64_t sender) { return seen[sender]; }
  std::map<int64_t, std::vector<int64_t>> seen;
};
MONARCH_ACTOR(Recorder, note, numbers)

struct Asker : Actor {
  Task<int64_t> sum(ActorMesh<Counter> counters, int64_t rounds) {
    int64_t sum = 0;
    for (int64_t i = 0; i < rounds; ++i) {
      for (int64_t value : co_await counters.call<&Counter::add>(1)) sum += value;
    }
    co_return sum;
  }
  Task<std::string> ask_failing(ActorMesh<Counter> counters) {
    try {
      co_await counters.call<&Counter::fail>("inner");
    } catch (const ActorError& error) {
      co_return error.type() + "/" + error.error().message;
    }
    co_return "";
  }
  Task<void> rethrows(ActorMesh<Counter> counters) { co_await counters.call<&Counter::fail>("inner"); }
  int64_t blocking_sum(ActorMesh<Counter> counters) {
    int64_t sum = 0;
    for (int64_t value : counters.call<&Counter::add>(1).get()) sum += value;
    return sum;
  }
  int64_t ask_self(ActorMesh<Asker> self, ActorMesh<Counter> counters) {
    return self.call_one<&Asker::blocking_sum>(counters).get();
  }
  void tell_dead(ActorMesh<Counter> counters) { counters.broadcast<&Counter::add>(1); }
  bool on_undeliverable(std::string_view) override { return forgiving; }
  void forgive() { forgiving = true; }
  ActorMesh<Counter> echo(ActorMesh<Counter> counters) { return counters; }
  bool forgiving = false;
};
MONARCH_ACTOR(Asker, sum, ask_failing, rethrows, blocking_sum, ask_self, tell_dead, forgive, echo)

class ActorMeshTest : public testing::Test {
 protected:
  explicit ActorMeshTest(bool has_hook = true)
      : event_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        driver_(reactor_, page_, event_fd_.get()),
        node_(77, driver_, reactor_, hooks(has_hook)),
        factory_(std::make_unique<NativeFactory>(reactor_, driver_, 2)) {
    node_.set_factory(CellKind::kNative, *factory_);
    reactor_.start();
  }
  ~ActorMeshTest() override {
    factory_.reset();
    reactor_.stop();
  }
  Node::Hooks hooks(bool has_hook) {
    Node::Hooks hooks;
    hooks.on_undeliverable = [this](const ActorId&, const Failure& why) {
      std::lock_guard lock(mutex_);
      bounced_.push_back(why.text());
    };
    if (!has_hook) return hooks;
    hooks.on_mesh_failure = [this](const MeshFailure& failure) {
      std::lock_guard lock(mutex_);
      failed_.push_back({{node_.id(), failure.mesh->owner}, *failure.why});
      happened_.notify_all();
    };
    return hooks;
  }
  // The first failure of an actor that the node has told of.
  std::pair<ActorId, Failure> first_failure() {
    std::unique_lock lock(mutex_);
    if (!happened_.wait_for(lock, std::chrono::seconds(20), [this] { return !failed_.empty(); })) return {};
    return failed_.front();
  }
  // When this returns, everything has been done that was to be done within `ns` of its begin.
  void let_pass(int64_t ns) {
    bool over = false;
    reactor_.after(ns, [&] {
      std::lock_guard lock(mutex_);
      over = true;
      happened_.notify_all();
    });
    std::unique_lock lock(mutex_);
    happened_.wait(lock, [&] { return over; });
  }
  // How often `line` has been said on stderr since CaptureStderr(), once nothing is left to be said.
  size_t times_said(const std::string& line) {
    node_.report_failures();
    flush_log();
    const std::string said = ::testing::internal::GetCapturedStderr();
    size_t count = 0;
    for (size_t at = said.find(line); at != std::string::npos; at = said.find(line, at + 1)) ++count;
    return count;
  }
  // `count` times this process: a mesh needs no processes of its own.
  ProcMesh procs(int64_t count) {
    return ProcMesh(node_, nullptr, "procs", std::vector<NodeId>(static_cast<size_t>(count), node_.id()),
                    *Extent::create({"gpus"}, {count}));
  }
  ProcMesh proc() { return ProcMesh(node_, nullptr, "proc", {node_.id()}, Extent()); }
  ActorMesh<Counter> mesh_of(const ActorId& id) {
    auto members = std::make_shared<Members>();
    members->ids.push_back(id);
    auto info = std::make_shared<internal::MeshInfo>();
    info->node = &node_;
    info->class_name = "Counter";
    info->name = "one";
    info->members = members;
    return ActorMesh<Counter>(internal::MeshView{info, members, Region(), true});
  }
  // An actor that never answers; how many have asked it stands in asked_.
  ActorMesh<Counter> silent() {
    struct Silent : Cell {
      explicit Silent(std::atomic<int>& count) : asked(count) {}
      void deliver(MessagePtr message) override {
        std::lock_guard lock(mutex);
        kept.push(std::move(message));
        ++asked;
      }
      std::atomic<int>& asked;
      std::mutex mutex;
      MessageQueue kept;
    };
    node_.add_cell(1, std::make_shared<Silent>(asked_));
    return mesh_of({node_.id(), 1});
  }

  void cast_and_wait(const Members& members, Outgoing& outgoing, const std::shared_ptr<PendingCall>& call) {
    node_.cast(members, outgoing, call);
    Waiter waiter;
    call->add_waiter(waiter, call->size());
    driver_.wait(waiter, [](const void* c) { return static_cast<const PendingCall*>(c)->complete(); }, call.get(),
                 kNoDeadline);
    call->remove_waiter(waiter);
  }

  BellPage page_{};
  Reactor reactor_;
  UniqueFd event_fd_;
  Driver driver_;
  std::mutex mutex_;
  std::condition_variable happened_;
  std::atomic<int> asked_{0};
  std::vector<std::string> bounced_;
  std::vector<std::pair<ActorId, Failure>> failed_;
  Node node_;
  std::unique_ptr<NativeFactory> factory_;
};

template <typename Error, typename Run>
std::string text_of(Run&& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "(it did not throw)";
}
#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(ActorMeshTest, CallsEveryActorAndGathersByRank) {
  auto counters = procs(4).spawn<Counter>("counters", 10);
  auto sums = counters.call<&Counter::add>(1).get();
  EXPECT_EQ(sums.values(), std::vector<int64_t>(4, 11));
  EXPECT_EQ(sums.extent().to_string(), counters.extent().to_string());
  EXPECT_EQ(counters.call<&Counter::half>(3).get()[0], 1.5);  // an int where a float is wanted
  EXPECT_EQ(counters.call<&Counter::add_later>(5).get()[3], 16);
}

TEST_F(ActorMeshTest, ReducesToOneValue) {
  auto counters = procs(4).spawn<Counter>("counters", 10);
  EXPECT_EQ(counters.reduce<&Counter::add>(Reducer::kSum, 1).get(), 44);
  EXPECT_EQ(counters.reduce<&Counter::place>(Reducer::kMax).get(), 303);
  EXPECT_EQ(counters.reduce<&Counter::half>(Reducer::kAllEqual, 3).get(), 1.5);
  EXPECT_HAS(text_of<ActorError>([&] { counters.reduce<&Counter::place>(Reducer::kAllEqual).get(); }),
             "reduce='all_equal' takes equal values: rank 0 of place() returned 0, and rank 1 returned 101");
  EXPECT_HAS(text_of<ActorError>([&] { counters.reduce<&Counter::label>(Reducer::kSum).get(); }), "returned a str");
  EXPECT_HAS(text_of<ActorError>([&] { counters.reduce<&Counter::fail>(Reducer::kAllEqual, "no").get(); }), "no");
  EXPECT_HAS(text_of<std::invalid_argument>([&] { counters.reduce<&Counter::place>(Reducer::kConcat); }), "say call()");
}

TEST_F(ActorMeshTest, PicksTheConstructorByTheNumberOfArguments) {
  auto counters = proc().spawn<Counter>("counters", 1, "named");
  EXPECT_EQ(counters.call_one<&Counter::label>().get(), "named");
}

TEST_F(ActorMeshTest, SlicesKnowTheirRanks) {
  auto counters = procs(4).spawn<Counter>("counters", 0);
  auto part = counters.slice({{"gpus", Range{1, 4, 2}}});
  EXPECT_EQ(part.call<&Counter::place>().get().values(), (std::vector<int64_t>{100, 301}));
  EXPECT_EQ(counters.slice({{"gpus", 2}}).call_one<&Counter::place>().get(), 200);
  EXPECT_EQ(part.slice({{"gpus", 1}}).call_one<&Counter::place>().get(), 300);
  EXPECT_HAS(text_of<std::invalid_argument>([&] { counters.slice({{"hosts", 0}}); }), "hosts");
  EXPECT_HAS(text_of<std::invalid_argument>([&] { counters.call_one<&Counter::add>(1); }), "one actor");
}

TEST_F(ActorMeshTest, ChooseTakesEachInTurn) {
  auto counters = procs(3).spawn<Counter>("counters", 0);
  std::multiset<int64_t> places;
  for (int i = 0; i < 6; ++i) places.insert(counters.choose<&Counter::place>().get());
  EXPECT_EQ(places, (std::multiset<int64_t>{0, 0, 100, 100, 200, 200}));
}

TEST_F(ActorMeshTest, AnExceptionReachesTheCallerAndTheActorLives) {
  auto counters = procs(2).spawn<Counter>("counters", 0);
  try {
    counters.call<&Counter::fail>("bad input").get();
    FAIL();
  } catch (const ActorError& error) {
    EXPECT_EQ(error.type(), "std::runtime_error");
    EXPECT_EQ(error.error().message, "bad input");
    EXPECT_HAS(std::string(error.what()), "fail() of Counter 'counters' at rank ");
  }
  EXPECT_EQ(counters.call<&Counter::add>(1).get()[1], 1);
  auto result = counters.call<&Counter::fail>("again").result();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kBug);
}

TEST_F(ActorMeshTest, AnExceptionThatNobodyWaitsForEndsTheActor) {
  auto counter = proc().spawn<Counter>("counter", 0);
  counter.broadcast<&Counter::fail>("lost");
  const std::string text = text_of<SupervisionError>([&] { counter.call_one<&Counter::add>(1).get(); });
  EXPECT_HAS(text, "Counter 'counter' (rank 0) failed in fail()");
  EXPECT_HAS(text, "std::runtime_error: lost");
}

class WithoutHook : public ActorMeshTest {
 public:
  WithoutHook() : ActorMeshTest(false) {}
};

TEST_F(WithoutHook, AFailureThatNobodyIsToldOfIsSaidOnStderrOnce) {
  ::testing::internal::CaptureStderr();
  auto counter = proc().spawn<Counter>("counter", 0);
  counter.broadcast<&Counter::fail>("unseen");
  while (!node_.epitaph(counter.actor(0).index)) sched_yield();
  let_pass(UnobservedFailures::kLimitNs);
  flush_log();
  EXPECT_EQ(times_said("Counter 'counter' (rank 0) failed in fail(), which nobody waits for: std::runtime_error: unseen"),
            1u);
}

TEST_F(WithoutHook, AFailureThatACallerIsToldOfIsNotSaidOnStderr) {
  ::testing::internal::CaptureStderr();
  auto counter = proc().spawn<Counter>("counter", 0);
  counter.broadcast<&Counter::fail>("seen");
  EXPECT_HAS(text_of<SupervisionError>([&] { counter.call_one<&Counter::add>(1).get(); }), "seen");
  auto fragile = proc().spawn<Fragile>("device");
  EXPECT_HAS(text_of<SupervisionError>([&] { fragile.call_one<&Fragile::touch>().get(); }), "no such device");
  EXPECT_EQ(times_said("monarch: "), 0u);
}

TEST_F(ActorMeshTest, TheRecordOfAFailureSaysWhichActorItIsOf) {
  auto counters = procs(3).spawn<Counter>("counters", 0);
  const ActorId failing = counters.actor(2);
  counters.slice({{"gpus", 2}}).broadcast<&Counter::fail>("why");
  const auto expect_record = [&](const Failure& failure) {
    EXPECT_EQ(failure.kind, Failure::Kind::kActor);
    EXPECT_EQ(failure.node, failing.node);
    EXPECT_EQ(failure.actor, failing.index);
    EXPECT_EQ(failure.rank, 2);
    EXPECT_HAS(failure.text(), "std::runtime_error: why");
  };
  const auto [owner, told] = first_failure();
  EXPECT_EQ(owner, (ActorId{node_.id(), 0})) << "no actor has spawned it";
  expect_record(told);

  auto members = std::make_shared<Members>();
  members->ids.push_back(failing);
  for (const bool is_stop : {false, true}) {  // a stop of what is over ends well
    auto call = std::make_shared<PendingCall>(members);
    Outgoing outgoing{FrameHeader{}, {}, {}};
    outgoing.header.kind = is_stop ? FrameKind::kStopActor : FrameKind::kRequest;
    cast_and_wait(*members, outgoing, call);
    EXPECT_EQ(call->reply(0)->header.kind, is_stop ? FrameKind::kReply : FrameKind::kReplyFailed);
    if (!is_stop) expect_record(failure_of(*call->reply(0)));
  }
}

const ProcMesh* place = nullptr;
struct Parent : Actor {
  ActorMesh<Counter> make() { return place->spawn<Counter>("child", 0); }
};
MONARCH_ACTOR(Parent, make)

TEST_F(ActorMeshTest, TheNodeKnowsWhoHasSpawnedAnActorUntilItsEnd) {
  const ProcMesh here = proc();
  place = &here;
  auto parent = here.spawn<Parent>("parent");
  auto child = parent.call_one<&Parent::make>().get();
  EXPECT_EQ(node_.owner_of(parent.actor(0).index), (ActorId{node_.id(), 0}));
  EXPECT_EQ(node_.owner_of(child.actor(0).index), parent.actor(0));
  child.broadcast<&Counter::fail>("why");
  // It does not deal with that, and fails too.
  const auto [owner, why] = first_failure();
  EXPECT_EQ(owner, (ActorId{node_.id(), 0}));
  EXPECT_EQ(why.actor, parent.actor(0).index);
  EXPECT_HAS(why.text(), "The actor <Counter child> and all its descendants have failed:");
  EXPECT_HAS(why.origin, "std::runtime_error: why");
  EXPECT_HAS(text_of<SupervisionError>([&] { parent.call_one<&Parent::make>().get(); }), "std::runtime_error: why");
  EXPECT_EQ(node_.owner_of(parent.actor(0).index), std::nullopt);
}

struct Patient : Actor {
  ActorMesh<Counter> make() { return place->spawn<Counter>("child", 0); }
  std::vector<std::string> seen() { return seen_; }
  std::string ask(ActorMesh<Counter> child) {
    try {
      child.call_one<&Counter::add>(1).get();
    } catch (const SupervisionError& error) {
      return error.what();
    }
    return "";
  }

 protected:
  bool supervise(const MeshFailure& failure, bool told) override {
    seen_.push_back(failure.who() + (told ? " told" : ""));
    if (seen_.size() > 1) throw std::runtime_error("enough");
    return true;
  }

 private:
  std::vector<std::string> seen_;
};
MONARCH_ACTOR(Patient, make, seen, ask)

TEST_F(ActorMeshTest, AnActorThatDealsWithAFailureLivesAndOneThatThrowsFails) {
  const ProcMesh here = proc();
  place = &here;
  auto patient = here.spawn<Patient>("patient");
  auto child = patient.call_one<&Patient::make>().get();
  child.broadcast<&Counter::fail>("why");
  std::vector<std::string> seen;
  while (seen.empty()) seen = patient.call_one<&Patient::seen>().get();
  EXPECT_EQ(seen, std::vector<std::string>{"<Counter child>"});
  EXPECT_HAS(patient.call_one<&Patient::ask>(child).get(), "std::runtime_error: why");
  patient.call_one<&Patient::make>().get().broadcast<&Counter::fail>("again");
  const Failure why = first_failure().second;
  EXPECT_HAS(why.text(), "failed in supervise(): std::runtime_error: enough\nThis error occurred while handling another");
  EXPECT_HAS(why.origin, "std::runtime_error: again");
}

TEST_F(ActorMeshTest, AConstructorThatThrowsFailsEveryCall) {
  auto fragile = procs(2).spawn<Fragile>("devices");
  for (int i = 0; i < 2; ++i) {
    const std::string text = text_of<SupervisionError>([&] { fragile.call<&Fragile::touch>().get(); });
    EXPECT_HAS(text, "the constructor of the C++ actor Fragile 'devices' (rank ");
    EXPECT_HAS(text, "std::runtime_error: no such device");
  }
}

TEST_F(ActorMeshTest, WrongArgumentsSayWhatWasExpectedAndFound) {
  ValueWriter two;
  encode(two, std::make_tuple(std::string("text"), 2, 3));
  auto mesh = ActorMesh<Counter>(proc().spawn_encoded("Counter", "counters", two));
  EXPECT_HAS(text_of<SupervisionError>([&] { mesh.call_one<&Counter::add>(1).get(); }),
             "expected 1 or 2 arguments, got 3");
  ValueWriter text;
  encode(text, std::make_tuple(std::string("text")));
  mesh = ActorMesh<Counter>(proc().spawn_encoded("Counter", "counters", text));
  EXPECT_HAS(text_of<SupervisionError>([&] { mesh.call_one<&Counter::add>(1).get(); }), "expected an int, got a str");
  mesh = ActorMesh<Counter>(proc().spawn_encoded("Contour", "counters", text));
  EXPECT_HAS(text_of<SupervisionError>([&] { mesh.call_one<&Counter::add>(1).get(); }),
             "knows no C++ actor class 'Contour'");
}

TEST_F(ActorMeshTest, RefusesAPickleAndBadArgumentsOfACallAndLives) {
  auto counter = proc().spawn<Counter>("counter", 0);
  auto send = [&](uint8_t flags, const ValueWriter& body, uint32_t method) {
    auto members = std::make_shared<Members>();
    members->ids.push_back(counter.actor(0));
    auto call = std::make_shared<PendingCall>(members);
    Outgoing outgoing{FrameHeader{}, body.written(), {}};
    outgoing.header.kind = FrameKind::kRequest;
    outgoing.header.flags = flags;
    outgoing.header.method = method;
    cast_and_wait(*members, outgoing, call);
    EXPECT_EQ(call->reply(0)->header.kind, FrameKind::kReplyError);
    auto error = decode<std::tuple<int64_t, std::string, std::string, int64_t, std::string>>(call->reply(0)->body);
    EXPECT_EQ(std::get<0>(*error), static_cast<int64_t>(ErrorKind::kNative));
    EXPECT_EQ(std::get<1>(*error), "TypeError");
    EXPECT_EQ(std::get<3>(*error), getpid());
    return std::get<2>(*error);
  };
  ValueWriter none, text;
  encode(none, std::tuple<>());
  encode(text, std::make_tuple(std::string("1")));
  EXPECT_HAS(send(kFlagPickle, none, 0), "C++ actors take positional None, bool, int");
  EXPECT_HAS(send(0, none, 0), "Counter.add: expected 1 argument, got 0");
  EXPECT_HAS(send(0, text, 0), "Counter.add: expected an int, got a str");
  EXPECT_HAS(send(0, none, 99), "no endpoint number 99");
  EXPECT_EQ(counter.call_one<&Counter::add>(1).get(), 1);
}

TEST_F(ActorMeshTest, KeepsTheOrderOfEachOfManySenders) {
  constexpr int kSenders = 4;
  constexpr int64_t kMessages = 20'000;
  auto recorder = proc().spawn<Recorder>("recorder");
  std::latch begin(kSenders);
  std::vector<std::thread> senders;
  for (int64_t sender = 0; sender < kSenders; ++sender) {
    senders.emplace_back([&, sender] {
      begin.arrive_and_wait();
      for (int64_t i = 0; i < kMessages; ++i) recorder.broadcast<&Recorder::note>(sender, i);
    });
  }
  for (auto& sender : senders) sender.join();
  for (int64_t sender = 0; sender < kSenders; ++sender) {
    const auto numbers = recorder.call_one<&Recorder::numbers>(sender).get();
    ASSERT_EQ(numbers.size(), static_cast<size_t>(kMessages));
    for (int64_t i = 0; i < kMessages; ++i) ASSERT_EQ(numbers[static_cast<size_t>(i)], i);
  }
}

TEST_F(ActorMeshTest, ATaskAwaitsOtherActors) {
  auto counters = procs(3).spawn<Counter>("counters", 0);
  auto asker = proc().spawn<Asker>("asker");
  EXPECT_EQ(asker.call_one<&Asker::sum>(counters, 100).get(), 3 * 5050);
  EXPECT_EQ(asker.call_one<&Asker::ask_failing>(counters).get(), "std::runtime_error/inner");
  EXPECT_THROW(asker.call_one<&Asker::rethrows>(counters).get(), ActorError);
}

TEST_F(ActorMeshTest, MoreTasksThanThreadsSuspendAtOnce) {
  auto counter = proc().spawn<Counter>("counter", 0);
  auto askers = procs(32).spawn<Asker>("askers");
  const auto sums = askers.call<&Asker::sum>(counter, 50).get();
  int64_t total = 0;
  for (int64_t sum : sums) total += sum;
  EXPECT_EQ(total, int64_t{32 * 50} * (32 * 50 + 1) / 2);
}

TEST_F(ActorMeshTest, ManyMayBlockAtOnceWithoutStarvingTheOneTheyWaitFor) {
  auto counter = proc().spawn<Counter>("counter", 0);
  auto askers = procs(16).spawn<Asker>("askers");
  int64_t total = 0;
  for (int64_t sum : askers.call<&Asker::blocking_sum>(counter).get()) total += sum;
  EXPECT_EQ(total, 16 * 17 / 2);
}

TEST_F(ActorMeshTest, AnActorThatWaitsForItselfIsToldSo) {
  auto asker = proc().spawn<Asker>("asker");
  auto counter = proc().spawn<Counter>("counter", 0);
  EXPECT_HAS(text_of<ActorError>([&] { asker.call_one<&Asker::ask_self>(asker, counter).get(); }),
             "waits for a call to itself");
}

TEST_F(ActorMeshTest, HandlesTravelWithTheirDimensions) {
  auto counters = procs(4).spawn<Counter>("counters", 0);
  auto asker = proc().spawn<Asker>("asker");
  auto back = asker.call_one<&Asker::echo>(counters.slice({{"gpus", Range{2, 4}}})).get();
  EXPECT_EQ(back.extent().to_string(), "{gpus: 2}");
  EXPECT_EQ(back.slice({{"gpus", 1}}).call_one<&Counter::place>().get(), 300);
  EXPECT_EQ(asker.call_one<&Asker::sum>(back, 1).get(), 2);
}

TEST_F(ActorMeshTest, StopRunsTheDestructorAfterWhatWasSentBefore) {
  const int before = alive;
  auto counters = procs(2).spawn<Counter>("counters", 0);
  auto earlier = counters.call<&Counter::add>(1);
  counters.stop("enough").get();
  EXPECT_EQ(alive, before);
  EXPECT_EQ(earlier.get()[1], 1);
  EXPECT_HAS(text_of<SupervisionError>([&] { counters.call<&Counter::add>(1).get(); }), "stopped: enough");
  counters.stop().get();  // twice is fine
}

TEST_F(ActorMeshTest, AnActorMayStopItself) {
  auto counter = proc().spawn<Counter>("counter", 0);
  counter.call_one<&Counter::leave>("done here").get();
  EXPECT_HAS(text_of<SupervisionError>([&] { counter.call_one<&Counter::add>(1).get(); }), "stopped: done here");
}

TEST_F(ActorMeshTest, ABroadcastWaitsWhileItsReceiverAsksToHold) {
  const ActorIndex index = node_.new_actor_index() + 1;
  auto counter = proc().spawn<Counter>("counter", 0);
  ASSERT_EQ(counter.call_one<&Counter::add>(1).get(), 1);
  ASSERT_TRUE(node_.tell_sender(node_.id(), FrameKind::kHold, index));
  std::atomic<bool> begun{false}, sent{false};
  std::thread sender([&] {
    begun = true;
    counter.broadcast<&Counter::add>(10);
    sent = true;
  });
  while (!begun) sched_yield();
  // Calls are not held; these give the sender, if it did not wait, time to be seen.
  int64_t total = 0;
  for (int i = 2; i <= 1000; ++i) total = counter.call_one<&Counter::add>(1).get();
  EXPECT_EQ(total, 1000);
  EXPECT_FALSE(sent);
  ASSERT_TRUE(node_.tell_sender(node_.id(), FrameKind::kResume, index));
  sender.join();
  EXPECT_EQ(counter.call_one<&Counter::add>(0).get(), 1010);
}

std::latch* gate = nullptr;
std::atomic<bool> in_gate{false};
struct Waits : Actor {
  void until_open() {
    in_gate = true;
    gate->wait();
  }
  void take(std::string) { ++taken; }
  int64_t count() { return taken; }
  int64_t taken = 0;
};
MONARCH_ACTOR(Waits, until_open, take, count)

TEST_F(ActorMeshTest, ABusyActorHoldsItsOwnProcessToo) {
  constexpr size_t kPiece = size_t{1} << 20, kFull = Inflow::kBytesMax / kPiece;
  std::latch opened(1);
  gate = &opened;
  in_gate = false;
  const Members members{{{node_.id(), node_.new_actor_index() + 1}}};
  auto waits = proc().spawn<Waits>("waits");
  auto call = waits.call_one<&Waits::until_open>();
  while (!in_gate) sched_yield();
  const std::string piece(kPiece, 'x');
  size_t sent = 0;
  for (; sent < 2 * kFull && node_.has_room(members, Node::kBacklogMax); ++sent) waits.broadcast<&Waits::take>(piece);
  EXPECT_EQ(sent, kFull);  // with what messages cost beside their bytes
  opened.count_down();
  EXPECT_EQ(waits.call_one<&Waits::count>().get(std::chrono::seconds(20)), static_cast<int64_t>(sent));
  EXPECT_TRUE(node_.has_room(members, Node::kBacklogMax));
}

TEST_F(ActorMeshTest, AnUndeliverableMessageFailsItsSenderUnlessItForgives) {
  auto counter = proc().spawn<Counter>("counter", 0);
  counter.stop("gone").get();
  auto askers = procs(2).spawn<Asker>("askers");
  auto forgiving = askers.slice({{"gpus", 0}}), strict = askers.slice({{"gpus", 1}});
  forgiving.call_one<&Asker::forgive>().get();
  askers.call<&Asker::tell_dead>(counter).get();
  auto other = proc().spawn<Counter>("other", 0);
  EXPECT_EQ(forgiving.call_one<&Asker::blocking_sum>(other).get(), 1);
  EXPECT_HAS(text_of<SupervisionError>([&] { strict.call_one<&Asker::blocking_sum>(other).get(); }), "stopped: gone");
  counter.broadcast<&Counter::add>(1);  // main() has a hook of its own
  node_.note_ending();
  counter.broadcast<&Counter::add>(1);  // that somebody was faster is no failure
  std::lock_guard lock(mutex_);
  ASSERT_EQ(bounced_.size(), 1u);
  EXPECT_HAS(bounced_[0], "stopped: gone");
}

TEST_F(ActorMeshTest, ADeadlineIsATimeoutAndTheCallGoesOn) {
  std::latch opened(1);
  gate = &opened;
  auto waits = proc().spawn<Waits>("waits");
  auto call = waits.call_one<&Waits::until_open>();
  EXPECT_HAS(text_of<TimeoutError>([&] { call.get(std::chrono::milliseconds(5)); }), "0 of 1 ranks answered");
  EXPECT_EQ(call.result(std::chrono::milliseconds(1)).error().code, ErrorCode::kDeadline);
  opened.count_down();
  call.get();
}

// A pool thread that stays in one endpoint must not keep the actor that it made ready (POOL-1).
struct Waker : Actor {
  void wake_and_wait(ActorMesh<Waits>, ActorMesh<Waker> other) {
    other.broadcast<&Waker::open>();
    gate->wait();
  }
  void open() { gate->count_down(); }
};
MONARCH_ACTOR(Waker, wake_and_wait, open)

TEST_F(ActorMeshTest, ABusyActorDoesNotKeepTheOneItWoke) {
  std::latch opened(1);
  gate = &opened;
  auto wakers = procs(2).spawn<Waker>("wakers");
  auto waits = proc().spawn<Waits>("waits");
  wakers.slice({{"gpus", 0}}).call_one<&Waker::wake_and_wait>(waits, wakers.slice({{"gpus", 1}})).get();
}

// The spawn came from one process, the call from another that was faster (invariant MSG-7).
TEST_F(ActorMeshTest, ACallThatOvertakesTheSpawnIsAnswered) {
  constexpr NodeId kCreator = 1'000'000;
  const Members members{{{node_.id(), actor_index(kCreator, kFirstNumber)}}};
  ActorMesh<Counter> early = mesh_of(members.ids[0]);
  auto first = early.call_one<&Counter::add>(1), second = early.call_one<&Counter::add>(1);

  ValueWriter spawn;
  spawn.begin_tuple(5);
  spawn.str("Counter");
  spawn.str("late");
  spawn.begin_tuple(0);
  spawn.begin_tuple(0);
  spawn.begin_tuple(1);
  spawn.integer(10);
  Outgoing outgoing{FrameHeader{}, spawn.written(), {}};
  outgoing.header.method = static_cast<uint32_t>(CellKind::kNative);
  node_.spawn(members, outgoing);
  EXPECT_EQ(first.get(std::chrono::seconds(5)), 11);
  EXPECT_EQ(second.get(std::chrono::seconds(5)), 12);
}

TEST_F(ActorMeshTest, TheLastThreadDoesNotBlock) {
  auto askers = procs(ActorPool::kThreadsMax).spawn<Asker>("askers");
  auto all = askers.call<&Asker::blocking_sum>(silent());
  EXPECT_HAS(text_of<ActorError>([&] { all.get(std::chrono::seconds(20)); }), "co_await instead");
  EXPECT_EQ(proc().spawn<Counter>("counter", 1).call_one<&Counter::add>(1).get(std::chrono::seconds(20)), 2);
}

TEST_F(ActorMeshTest, AThreadThatCouldNotBeStartedIsTriedAgain) {
  constexpr int kAskers = 8;  // each blocks a thread for good, so that sooner or later there must be another one
  auto askers = procs(kAskers).spawn<Asker>("askers");
  askers.call<&Asker::forgive>().get();
  const ActorMesh<Counter> nobody = silent();
  ::testing::internal::CaptureStderr();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (int i = 0; i < kAskers; ++i) {
    sys::fail_nth(1);
    askers.slice({{"gpus", i}}).broadcast<&Asker::blocking_sum>(nobody);  // nothing else comes that could start one
    while (asked_ == i && std::chrono::steady_clock::now() < until) sched_yield();
    ASSERT_EQ(asked_, i + 1);
  }
  sys::fail_nth(0);
  EXPECT_GE(times_said("start another thread for C++ actors"), 1u);
}

TEST_F(ActorMeshTest, AnEndlessEndpointIsLeftBehind) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  const auto before = threads();
  std::latch opened(1);
  gate = &opened;
  in_gate = false;
  auto waits = proc().spawn<Waits>("waits");
  auto call = waits.call_one<&Waits::until_open>();
  while (!in_gate) sched_yield();
  EXPECT_FALSE(factory_->stop(1'000'000));
  opened.count_down();
  call.get(std::chrono::seconds(5));  // it is still able to answer
  while (threads() > before) sched_yield();  // before what it uses goes, as only the end of a process does otherwise
}

TEST_F(ActorMeshTest, EndingTheFactoryEndsWaitsAndSuspendedTasks) {
  // Two askers wait: one suspended, one blocked.
  auto askers = procs(2).spawn<Asker>("askers");
  askers.slice({{"gpus", 0}}).broadcast<&Asker::sum>(silent(), 1);
  askers.slice({{"gpus", 1}}).broadcast<&Asker::blocking_sum>(silent());
  auto counters = procs(2).spawn<Counter>("counters", 0);
  counters.call<&Counter::add>(1).get();  // the pool has got that far
  factory_.reset();
}

}  // namespace
}  // namespace monarch
