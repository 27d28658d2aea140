#include "monarch/net/resuming_link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "monarch/net/sessions.h"
#include "monarch/testing/link_suite.h"
#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

constexpr NodeId kA = 0xa1, kB = 0xb1;
constexpr int64_t kMs = 1'000'000, kLease = 2'000 * kMs;

struct Counting final : Random {
  uint64_t next_u64() override { return ++last; }
  uint64_t last = 100;
};

struct NoSink final : LinkSink {
  void on_frame(Link&, MessagePtr) override {}
  void on_control(Link&, MessagePtr) override {}
  void on_closed(Link&, const Error&) override {}
};

// A carrier that has no memory for one frame.
struct ShortLink final : Link {
  ShortLink(std::shared_ptr<Link> below, bool* fails, int* rests)
      : Link(below->peer()), under(std::move(below)), fail_next(fails), rests_sent(rests) {}
  bool send(const Outgoing& outgoing) override { return under->send(outgoing); }
  bool send_control(const Outgoing& outgoing) override { return under->send_control(outgoing); }
  bool send_kept(const Outgoing& outgoing, std::shared_ptr<const void> keeper) override {
    if (std::exchange(*fail_next, false)) throw std::bad_alloc();
    return under->send_kept(outgoing, std::move(keeper));
  }
  std::unique_ptr<RecordAssembler> take_begun() override { return under->take_begun(); }
  bool go_on_with(std::unique_ptr<RecordAssembler> begun) override { return under->go_on_with(std::move(begun)); }
  bool send_rest(const Outgoing& outgoing, std::shared_ptr<const void> keeper, uint64_t begun) override {
    ++*rests_sent;
    return under->send_rest(outgoing, std::move(keeper), begun);
  }
  void peer_died(const Error& why) override { under->peer_died(why); }
  void close() override {
    under->close();
    closed_ = over_ = true;
  }
  uint64_t backlog() const override { return under->backlog(); }
  std::string_view transport() const override { return under->transport(); }
  std::shared_ptr<Link> under;
  bool* fail_next;
  int* rests_sent;
};

// Two processes, one of which dials the other over simulated links.
class Session : public ::testing::Test {
 protected:
  enum class Reach { kThrough, kNothing, kRefused, kShortage, kSilence };
  struct End {
    RecordingSink sink;
    Counting random;
    std::shared_ptr<Sessions> sessions;
    std::shared_ptr<Link> link;
  };

  explicit Session(uint64_t seed = 1) : sim(seed) {
    restart(a);
    restart(b);
  }
  ~Session() override { finish(); }
  void finish() {
    for (End* end : {&a, &b}) {
      if (end->link) end->link->close();
      end->sessions->end();
    }
    for (auto& old : former) old->end();
    sim.end();
  }

  void restart(End& end) {
    if (end.sessions) former.push_back(end.sessions);
    Sessions::Events events;
    events.on_accepted = [&end](std::shared_ptr<Link> link, bool) { end.link = std::move(link); };
    events.is_down = [this](NodeId node) { return held_for_dead == node; };
    end.sessions = Sessions::make(sim, end.random, end.sink, std::move(events));
  }
  void open() {
    a.link = a.sessions->dial(kB, kLease, [this](LinkSink& sink) { return connect(sink); });
  }
  std::shared_ptr<Link> connect(LinkSink& sink) {
    ++dials;
    std::pair<std::shared_ptr<SimLink>, std::shared_ptr<SimLink>> ends;
    if (reach == Reach::kThrough) {
      b.sessions->accepted(kA, false, kLease, [&](LinkSink& far) {
        ends = sim.connect(kA, sink, kB, far);
        return ends.second;
      });
      carriers.push_back(ends.first);
      return std::make_shared<ShortLink>(ends.first, &no_memory, &rests);
    }
    ends = sim.connect(kA, sink, kB, nowhere);
    Error why{ErrorCode::kClosed, "nothing gets through"};
    if (reach == Reach::kRefused) why = {ErrorCode::kRefused, "nobody is there"};
    if (reach == Reach::kShortage) why = {ErrorCode::kUnavailable, "out of file descriptors"};
    if (reach != Reach::kSilence) sim.after(kMs, [this, end = ends.first, why] { sim.break_link(end, why); });
    return ends.first;
  }
  void break_carrier() {
    if (!carriers.empty() && !carriers.back()->closed()) {
      sim.break_link(carriers.back(), Error{ErrorCode::kClosed, "the connection broke"});
    }
  }
  static void say(Link& link, uint64_t number, size_t size = 0) {
    const std::vector<std::byte> body = pattern(size, number);
    Outgoing outgoing{FrameHeader{}, body, {}};
    outgoing.header.token = number;
    ASSERT_TRUE(link.send(outgoing));
  }
  static void say_control(Link& link, uint64_t number) {
    Outgoing outgoing{FrameHeader{}, {}, {}};
    outgoing.header.kind = FrameKind::kPing;
    outgoing.header.token = number;
    ASSERT_TRUE(link.send_control(outgoing));
  }
  bool run_until(const std::function<bool()>& ready) {
    while (!ready()) {
      if (!sim.step()) return ready();
    }
    return true;
  }
  uint32_t carriers_of(const End& end) const { return static_cast<ResumingLink&>(*end.link).carriers(); }

  SimWorld sim;
  End a, b;
  NoSink nowhere;
  Reach reach = Reach::kThrough;
  NodeId held_for_dead = 0;
  int dials = 0;
  bool no_memory = false;  // for the next frame
  int rests = 0;           // how often `a` has gone on inside of a frame
  std::vector<std::shared_ptr<SimLink>> carriers;
  std::vector<std::shared_ptr<Sessions>> former;
};

TEST_F(Session, CarriesWhatWasSentBeforeItWasOpen) {
  open();
  say(*a.link, 1);
  say_control(*a.link, 2);
  EXPECT_GT(a.link->backlog(), 0u);
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(b.sink.frames(), 1u);
  EXPECT_EQ(b.sink.controls(), 1u);
  ASSERT_TRUE(b.link);
  EXPECT_EQ(b.link->peer(), kA);
  say(*b.link, 3);
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(a.sink.frames(), 1u);
  EXPECT_EQ(dials, 1);
}

TEST_F(Session, AFrameThatComesAloneDoesNotStayInTheWindow) {
  open();
  say(*a.link, 1, 100'000);
  say_control(*a.link, 2);
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(a.link->backlog(), 0u);
  say(*b.link, 1, 1);
  EXPECT_GT(b.link->backlog(), 0u);
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(b.link->backlog(), 0u);
}

TEST_F(Session, WhatIsNotAcknowledgedCountsAsBacklog) {
  open();
  ASSERT_TRUE(sim.run());
  reach = Reach::kNothing;
  break_carrier();
  for (uint64_t i = 0; i < 100; ++i) say(*a.link, i, 1000);
  EXPECT_GE(a.link->backlog(), 100'000u);
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(a.link->backlog(), 0u) << "it is over, and nothing waits";
}

// One more of these.
template <typename Fixture = Session>
struct World : Fixture {
  using Fixture::a, Fixture::b, Fixture::sim, Fixture::open, Fixture::reach, Fixture::break_carrier, Fixture::dials;
  using Fixture::run_until, Fixture::carriers;
  explicit World(uint64_t seed = 1) : Fixture(seed) {}
  void TestBody() override {}
};

// Breaks at any moment, also while it resumes, and while the far end has not yet seen the last one.
struct Many : Session {
  using Session::rests;
  explicit Many(uint64_t seed) : Session(seed) {}
  void TestBody() override {}
  void run(int frames, int breaks, uint64_t length_ms, uint32_t large_percent) {
    const auto size = [&] { return sim.chance(large_percent) ? 60'000 + sim.random(300'000) : sim.random(2000); };
    open();
    uint64_t sent[2] = {}, controls[2] = {};
    for (int i = 0; i < frames; ++i) {
      sim.after(static_cast<int64_t>(sim.random(length_ms)) * kMs, [&] {
        say(*a.link, sent[0]++, size());
        if (sim.chance(30)) say_control(*a.link, controls[0]++);
        if (!b.link) return;
        if (sim.chance(60)) say(*b.link, sent[1]++, size());
        if (sim.chance(30)) say_control(*b.link, controls[1]++);
      });
    }
    for (int i = 0; i < breaks; ++i) {
      sim.after(static_cast<int64_t>(sim.random(length_ms)) * kMs, [&] {
        if (sim.chance(70)) return break_carrier();
        // Only one end notices; the other hears of it by the next carrier, or later.
        if (!carriers.empty()) carriers.back()->peer_died(Error{ErrorCode::kClosed, "it broke on this side"});
      });
    }
    ASSERT_TRUE(sim.run());
    EXPECT_FALSE(a.sink.closed()) << a.sink.why().message;
    EXPECT_FALSE(b.sink.closed()) << b.sink.why().message;
    expect_exactly(b.sink, sent[0], controls[0]);
    expect_exactly(a.sink, sent[1], controls[1]);
    EXPECT_EQ(a.link->backlog() + b.link->backlog(), 0u);
    EXPECT_GT(carriers_of(a), static_cast<uint32_t>(breaks) / 3);
    EXPECT_EQ(carriers_of(a), carriers_of(b));
  }
  static void expect_exactly(RecordingSink& sink, uint64_t sent, uint64_t controls) {
    const auto frames = sink.take();
    ASSERT_EQ(frames.size(), sent);
    for (uint64_t i = 0; i < sent; ++i) {
      ASSERT_EQ(frames[i]->header.token, i);
      ASSERT_TRUE(same(frames[i]->body, pattern(frames[i]->body.size(), i))) << i;
    }
    const auto heard = sink.take_controls();
    ASSERT_EQ(heard.size(), controls);
    for (uint64_t i = 0; i < controls; ++i) ASSERT_EQ(heard[i]->header.token, i);
  }
};

TEST(SessionOverSeeds, NothingIsLostAndNothingComesTwiceThroughHundredsOfBreaks) {
  for (const uint64_t seed : sim_seeds(100, 10)) {
    SCOPED_TRACE(reproduction(seed, "net_test", "SessionOverSeeds.Nothing*"));
    Many(seed).run(2000, 300, 4000, 0);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(SessionOverSeeds, LargeFramesThatAreCutInTwoGoOnInside) {
  const auto seeds = sim_seeds(200, 5);
  int rests = 0;
  for (const uint64_t seed : seeds) {
    SCOPED_TRACE(reproduction(seed, "net_test", "SessionOverSeeds.Large*"));
    Many many(seed);
    many.run(200, 100, 800, 50);
    rests += many.rests;
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_TRUE(rests > 0 || seeds.size() <= 10) << "none was cut in two";
}

// Whoever has sent it, however often it breaks while it is under way, a large frame comes once and as it was.
TEST_F(Session, ALargeFrameGoesOnWhereItWasCut) {
  for (int seed = 1; seed <= rounds(50, 10); ++seed) {
    World<> world(static_cast<uint64_t>(seed));
    world.open();
    ASSERT_TRUE(world.sim.run());
    constexpr size_t kLarge = 1 << 20;
    for (End* from : {&world.a, &world.b}) {
      say(*from->link, 1, kLarge);
      say(*from->link, 2, 10);
    }
    for (int i = 0; i < 10; ++i) {
      world.break_carrier();
      world.run_until([&, broken = world.carriers.back()] {
        return world.carriers.back() != broken && world.carriers.back()->data_frames_sent() != 0;
      });
    }
    ASSERT_TRUE(world.sim.run());
    for (End* end : {&world.a, &world.b}) {
      const auto frames = end->sink.take();
      ASSERT_EQ(frames.size(), 2u) << seed;
      EXPECT_TRUE(same(frames[0]->body, pattern(kLarge, 1)));
      EXPECT_EQ(frames[1]->header.token, 2u);
      EXPECT_FALSE(end->sink.closed());
    }
    EXPECT_EQ(world.a.link->backlog() + world.b.link->backlog(), 0u);
  }
}

TEST_F(Session, EndsOnBothSidesWhenNothingGetsThroughForItsLease) {
  open();
  ASSERT_TRUE(sim.run());
  const int64_t broken_ns = sim.now_ns();
  reach = Reach::kNothing;
  break_carrier();
  say(*a.link, 1);
  ASSERT_TRUE(run_until([&] { return a.sink.closed() || b.sink.closed(); }));
  EXPECT_GE(sim.now_ns(), broken_ns + kLease);
  ASSERT_TRUE(sim.run());
  EXPECT_TRUE(a.sink.closed() && b.sink.closed());
  EXPECT_EQ(a.sink.why().code, ErrorCode::kClosed);
  EXPECT_NE(a.sink.why().message.find("did not come back for 2000 ms"), std::string::npos) << a.sink.why().message;
  EXPECT_LE(sim.now_ns(), broken_ns + kLease + Sessions::kFirstFrameNs + 100 * kMs);
  Outgoing late{FrameHeader{}, {}, {}};
  EXPECT_FALSE(a.link->send(late));
  EXPECT_TRUE(a.link->over() && b.link->over());
}

TEST_F(Session, ADialThatGetsNowhereIsNotWaitedFor) {
  reach = Reach::kSilence;
  a.link = a.sessions->dial(kB, 60'000 * kMs, [this](LinkSink& sink) { return connect(sink); });
  say(*a.link, 1);
  sim.after(Peer::kDialNs - 1, [&] { reach = Reach::kThrough; });
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(b.sink.frames(), 1u);
  EXPECT_FALSE(a.sink.closed());
}

TEST_F(Session, WhoOpensAnotherOneHasDoneWithTheFirst) {
  open();
  ASSERT_TRUE(sim.run());
  const std::shared_ptr<Link> old_a = a.link, old_b = b.link;
  reach = Reach::kNothing;
  break_carrier();
  say(*old_b, 1);
  old_a->close();  // the other end cannot hear so
  reach = Reach::kThrough;
  open();
  say_control(*a.link, 2);
  const int64_t then_ns = sim.now_ns();
  ASSERT_TRUE(run_until([&] { return b.sink.controls() == 1; }));
  EXPECT_LT(sim.now_ns(), then_ns + kLease / 2);
  EXPECT_TRUE(b.sink.closed()) << "before anything comes on the new one";
  EXPECT_EQ(a.sink.frames(), 0u) << "what was on its way is lost, and not late";
  const auto unfinished = old_b->close_unfinished();
  ASSERT_EQ(unfinished.size(), 1u);
  EXPECT_EQ(unfinished[0]->header.token, 1u);
  EXPECT_NE(b.link, old_b);
}

TEST_F(Session, WhatMayNotHaveArrivedIsKeptUntilItIsClosed) {
  open();
  say(*a.link, 1);
  ASSERT_TRUE(sim.run());
  reach = Reach::kNothing;
  break_carrier();
  for (const uint64_t number : {2, 3}) say(*a.link, number);
  say_control(*a.link, 4);
  ASSERT_TRUE(run_until([&] { return a.sink.closed(); }));
  const auto unfinished = a.link->close_unfinished();
  ASSERT_EQ(unfinished.size(), 2u) << "of the data lane, and not what has been acknowledged";
  EXPECT_EQ(unfinished[0]->header.token, 2u);
  EXPECT_EQ(unfinished[1]->header.token, 3u);
  EXPECT_TRUE(a.link->close_unfinished().empty());
}

TEST_F(Session, WithAProcessThatHasBeenRestartedItEndsAtOnce) {
  open();
  ASSERT_TRUE(sim.run());
  const int64_t then_ns = sim.now_ns();
  restart(b);
  break_carrier();
  ASSERT_TRUE(run_until([&] { return a.sink.closed(); }));
  EXPECT_LT(sim.now_ns(), then_ns + kLease / 2);
  EXPECT_NE(a.sink.why().message.find("or is another one"), std::string::npos) << a.sink.why().message;
}

TEST_F(Session, WhereNobodyIsAnyMoreItEndsAtOnce) {
  open();
  ASSERT_TRUE(sim.run());
  const int64_t then_ns = sim.now_ns();
  reach = Reach::kRefused;
  break_carrier();
  ASSERT_TRUE(run_until([&] { return a.sink.closed(); }));
  EXPECT_LT(sim.now_ns(), then_ns + kLease / 2);
  EXPECT_EQ(a.sink.why().message, "nobody is there");
}

TEST_F(Session, WhoIsHeldForDeadOpensNoSessionAndLearnsSo) {
  held_for_dead = kA;
  open();
  say(*a.link, 1);
  ASSERT_TRUE(run_until([&] { return a.sink.closed(); }));
  EXPECT_LT(sim.now_ns(), kLease / 2);
  EXPECT_EQ(a.sink.why().code, ErrorCode::kClosed);
  EXPECT_EQ(b.link, nullptr);
}

TEST_F(Session, AnEndThatIsWantedIsHeardBehindAllThatWasSent) {
  for (const bool dialler_ends : {true, false}) {
    SCOPED_TRACE(dialler_ends);
    World<> world;
    world.open();
    ASSERT_TRUE(world.sim.run());
    End& ends = dialler_ends ? world.a : world.b;
    End& hears = dialler_ends ? world.b : world.a;
    for (uint64_t i = 0; i < 50; ++i) say(*ends.link, i, 100);
    const int64_t then_ns = world.sim.now_ns();
    ends.link->close();
    ASSERT_TRUE(world.run_until([&] { return hears.sink.closed(); }));
    EXPECT_LT(world.sim.now_ns(), then_ns + 100 * kMs);
    EXPECT_EQ(hears.sink.frames(), 50u);
    ASSERT_TRUE(world.sim.run());
    EXPECT_FALSE(ends.sink.closed());
  }
}

TEST_F(Session, WhoEndsItWhileTheConnectionIsBrokenIsFoundOut) {
  open();
  ASSERT_TRUE(sim.run());
  break_carrier();
  b.link->close();
  const int64_t then_ns = sim.now_ns();
  ASSERT_TRUE(run_until([&] { return a.sink.closed(); }));
  EXPECT_LT(sim.now_ns(), then_ns + kLease / 2);
}

TEST_F(Session, AShortageWhileRediallingIsWaitedOut) {
  open();
  ASSERT_TRUE(sim.run());
  reach = Reach::kShortage;
  break_carrier();
  say(*a.link, 1);
  sim.after(kLease / 2, [&] { reach = Reach::kThrough; });
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(b.sink.frames(), 1u);
  EXPECT_FALSE(a.sink.closed());
  EXPECT_GT(dials, 4);
  EXPECT_LT(dials, 12);
}

// Of a node that was never reached, for want of something here, nothing is known; one that was is dead.
TEST_F(Session, AShortageForItsWholeLeaseIsADeathOnlyIfItWasEverOpen) {
  reach = Reach::kShortage;
  open();
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(a.sink.why().code, ErrorCode::kUnavailable);
  World<> world;
  world.open();
  ASSERT_TRUE(world.sim.run());
  world.reach = Reach::kShortage;
  world.break_carrier();
  ASSERT_TRUE(world.sim.run());
  EXPECT_EQ(world.a.sink.why().code, ErrorCode::kClosed);
  EXPECT_TRUE(world.b.sink.closed());
}

TEST_F(Session, WhoIsKnownToBeDeadIsNotRedialled) {
  open();
  say(*a.link, 1);
  ASSERT_TRUE(sim.run());
  for (uint64_t i = 0; i < 20; ++i) say(*a.link, i);
  ASSERT_TRUE(run_until([&] { return b.sink.frames() == 21; }));
  b.link->peer_died(Error{ErrorCode::kClosed, "killed"});
  b.link->peer_died(Error{ErrorCode::kClosed, "again"});
  ASSERT_TRUE(run_until([&] { return b.sink.closed(); }));
  EXPECT_EQ(b.sink.why().message, "killed");
  const int64_t then_ns = sim.now_ns();
  ASSERT_TRUE(run_until([&] { return a.sink.closed(); })) << "half a death";
  EXPECT_LT(sim.now_ns(), then_ns + kLease / 2);

  World<> world;
  world.open();
  ASSERT_TRUE(world.sim.run());
  world.reach = Reach::kNothing;
  world.break_carrier();
  ASSERT_TRUE(world.run_until([&] { return world.dials == 3; }));
  world.a.link->peer_died(Error{ErrorCode::kClosed, "killed"});
  ASSERT_TRUE(world.run_until([&] { return world.a.sink.closed(); }));
  EXPECT_EQ(world.a.sink.why().message, "killed");
  EXPECT_EQ(world.dials, 3);
}

TEST_F(Session, OfADeadlineTheTimeThatIsLeftGoesAlongHoweverLateItIsSent) {
  open();
  ASSERT_TRUE(sim.run());
  reach = Reach::kNothing;
  break_carrier();
  sim.after(kLease / 2, [&] { reach = Reach::kThrough; });
  Outgoing request{FrameHeader{}, {}, {}};
  request.header.kind = FrameKind::kRequest;
  request.header.time_left_ns = 10 * kLease;
  ASSERT_TRUE(a.link->send(request));
  ASSERT_TRUE(sim.run());
  const auto frames = b.sink.take();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_LE(frames[0]->header.time_left_ns, static_cast<uint64_t>(10 * kLease - kLease / 2));
  EXPECT_GT(frames[0]->header.time_left_ns, static_cast<uint64_t>(8 * kLease));
}

TEST_F(Session, CarriersThatAreOverAreClosed) {
  open();
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(sim.run());
    break_carrier();
  }
  ASSERT_TRUE(sim.run());
  EXPECT_EQ(carriers_of(a), 201u);
  for (size_t i = 0; i + 1 < carriers.size(); ++i) EXPECT_TRUE(carriers[i]->closed());
}

// ---- A peer that means no good ----

// Speaks to `b` on bare links.
class HostilePeer : public Session {
 protected:
  explicit HostilePeer(uint64_t seed = 1) : Session(seed) {}
  std::shared_ptr<SimLink> dial_raw() {
    std::pair<std::shared_ptr<SimLink>, std::shared_ptr<SimLink>> ends;
    auto sink = std::make_unique<RecordingSink>();
    b.sessions->accepted(kA, false, kLease, [&](LinkSink& far) {
      ends = sim.connect(kA, *sink, kB, far);
      return ends.second;
    });
    sinks[ends.first.get()] = std::move(sink);
    return ends.first;
  }
  RecordingSink& heard(const std::shared_ptr<SimLink>& link) { return *sinks.at(link.get()); }
  static void word(SimLink& link, SessionWord what, uint32_t number = 1, ReceivedCounts received = {},
                   uint64_t session = 7) {
    link.send_control(Outgoing{encode_session({what, session, number, received}), {}, {}});
  }
  // A session that b has opened for us, on this link.
  std::shared_ptr<SimLink> opened() {
    auto link = dial_raw();
    word(*link, SessionWord::kOpen);
    sim.run();
    EXPECT_TRUE(b.link);
    return link;
  }
  std::string line() {
    sim.run();
    return b.sink.closed() ? b.sink.why().message : "";
  }
  std::map<SimLink*, std::unique_ptr<RecordingSink>> sinks;  // of each bare link
};

struct HostileWorld : HostilePeer {
  explicit HostileWorld(uint64_t seed = 1) : HostilePeer(seed) {}
  using HostilePeer::b, HostilePeer::sim, HostilePeer::opened, HostilePeer::dial_raw, HostilePeer::line;
  using HostilePeer::heard, HostilePeer::run_until;
  void TestBody() override {}
};

TEST_F(HostilePeer, WhoAcknowledgesWhatItCannotHaveReceivedIsDropped) {
  auto link = opened();
  say(*b.link, 1);
  link->send_control(Outgoing{encode_acknowledge({2, 0}), {}, {}});
  EXPECT_EQ(line(), "it acknowledges what it cannot have received");
  EXPECT_EQ(b.sink.why().code, ErrorCode::kMalformed);
  EXPECT_TRUE(heard(link).closed());
}

TEST_F(HostilePeer, WhoTakesBackAnAcknowledgementIsDropped) {
  auto link = opened();
  say(*b.link, 1);
  link->send_control(Outgoing{encode_acknowledge({1, 0}), {}, {}});
  link->send_control(Outgoing{encode_acknowledge({0, 0}), {}, {}});
  EXPECT_NE(line(), "");
}

TEST_F(HostilePeer, WhoResumesFromWhereItCannotHaveBeenIsDropped) {
  for (const ReceivedCounts& received : {ReceivedCounts{2, 0}, ReceivedCounts{0, 1}, ReceivedCounts{UINT64_MAX, 0}}) {
    HostileWorld world;
    auto link = world.opened();
    say(*world.b.link, 1);
    world.sim.break_link(link, Error{ErrorCode::kClosed, "broke"});
    link = world.dial_raw();
    word(*link, SessionWord::kResume, 2, received);
    EXPECT_EQ(world.line(), "a session cannot go on from where its peer says that it was");
  }
}

TEST_F(HostilePeer, WhoHasMoreOfAFrameThanThereIsIsDropped) {
  for (const uint64_t begun : {uint64_t{1} << 30, uint64_t{100'072}}) {
    for (const uint64_t received : {0, 1}) {
      HostileWorld world;
      auto link = world.opened();
      say(*world.b.link, 1, 100'000);  // a record of 100,064 bytes
      world.sim.break_link(link, Error{ErrorCode::kClosed, "broke"});
      link = world.dial_raw();
      link->send_control(Outgoing{encode_session({SessionWord::kResume, 7, 2, {received, 0}, true, begun}), {}, {}});
      EXPECT_EQ(world.line(), "a session cannot go on from where its peer says that it was");
    }
  }
}

// It is not told how much of a frame is there, and sends the whole of it again.
TEST_F(HostilePeer, WhoCannotGoOnInsideOfAFrameIsHeardFromItsBeginning) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    HostileWorld world(seed);
    auto link = world.opened();
    say(*link, 1, 200'000);
    world.sim.break_link(link, Error{ErrorCode::kClosed, "broke"});
    auto next = world.dial_raw();
    word(*next, SessionWord::kResume, 2);
    ASSERT_TRUE(world.run_until([&] { return world.heard(next).controls() != 0; }));
    const auto said = decode_session(world.heard(next).take_controls()[0]->header);
    ASSERT_TRUE(said);
    EXPECT_EQ(said->begun, 0u);
    if (said->received.data == 0) say(*next, 1, 200'000);
    ASSERT_TRUE(world.run_until([&] { return world.b.sink.frames() == 1; }));
    EXPECT_TRUE(same(world.b.sink.take()[0]->body, pattern(200'000, 1)));
    EXPECT_FALSE(world.b.sink.closed());
  }
}

// It has said that of the carrier before; on this one it begins anew.
TEST_F(HostilePeer, WhoCanGoOnInsideIsToldWhatIsThere) {
  for (uint64_t seed = 1, told = 0; told < 5; ++seed) {
    ASSERT_LT(seed, 100u);
    HostileWorld world(seed);
    auto link = world.opened();
    say(*link, 1, 200'000);
    world.sim.break_link(link, Error{ErrorCode::kClosed, "broke"});
    auto next = world.dial_raw();
    next->send_control(Outgoing{encode_session({SessionWord::kResume, 7, 2, {}, true}), {}, {}});
    ASSERT_TRUE(world.run_until([&] { return world.heard(next).controls() != 0; }));
    const auto said = decode_session(world.heard(next).take_controls()[0]->header);
    ASSERT_TRUE(said && said->goes_on_inside);
    if (said->begun == 0) continue;
    ++told;
    const std::vector<std::byte> body = pattern(200'000, 1);
    Outgoing outgoing{FrameHeader{}, body, {}};
    outgoing.header.token = 1;
    ASSERT_TRUE(next->send_rest(outgoing, nullptr, said->begun));
    ASSERT_TRUE(world.run_until([&] { return world.b.sink.frames() == 1; }));
    EXPECT_TRUE(same(world.b.sink.take()[0]->body, body));
  }
}

TEST_F(HostilePeer, WordsOutOfTurnEndTheSessionAndNothingElse) {
  for (const SessionWord what : {SessionWord::kOpen, SessionWord::kResume, SessionWord::kGoOn, SessionWord::kUnknown}) {
    HostileWorld world;
    auto link = world.opened();
    word(*link, what, 2);
    EXPECT_EQ(world.line(), "a word about a session, out of turn");
  }
  auto link = opened();
  word(*link, SessionWord::kOver, 1, {}, 8);
  EXPECT_EQ(line(), "a word about another session");
  HostileWorld world;
  link = world.opened();
  link->send(Outgoing{encode_acknowledge({0, 0}), {}, {}});
  EXPECT_EQ(world.line(), "a word about a session among data");
}

TEST_F(HostilePeer, NothingIsTakenBeforeItIsSaidForWhichSession) {
  auto link = dial_raw();
  say(*link, 1);
  sim.run();
  EXPECT_TRUE(heard(link).closed());
  link = dial_raw();
  word(*link, SessionWord::kGoOn);
  word(*link, SessionWord::kOpen);
  sim.run();
  EXPECT_TRUE(link->closed());
  link = dial_raw();
  link->send_control(Outgoing{encode_acknowledge({0, 0}), {}, {}});
  sim.run();
  EXPECT_TRUE(link->closed());
  EXPECT_EQ(b.link, nullptr);
  EXPECT_EQ(b.sink.frames(), 0u);
}

TEST_F(HostilePeer, WhoSaysNothingIsLetGo) {
  auto link = dial_raw();
  sim.run();
  EXPECT_TRUE(link->closed());
  EXPECT_GE(sim.now_ns(), Sessions::kFirstFrameNs);
}

TEST_F(HostilePeer, WhoSaysThatItIsOverAndGoesOnIsLetGo) {
  auto link = opened();
  word(*link, SessionWord::kOver);
  EXPECT_EQ(line(), "the peer closed the connection");
}

TEST_F(HostilePeer, OfASessionThatIsNotKnownItIsToldSo) {
  auto link = dial_raw();
  word(*link, SessionWord::kResume);
  sim.run();
  const auto said = heard(link).take_controls();
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(decode_session(said[0]->header)->word, SessionWord::kUnknown);
  EXPECT_EQ(b.link, nullptr);
  EXPECT_TRUE(link->closed()) << "it does not go by itself";
}

TEST_F(HostilePeer, WhoIsRefusedAndStaysIsLetGo) {
  auto link = opened();
  word(*link, SessionWord::kOver);  // it still waits for the end of that link
  bool settled = false;
  sim.after(100 * kMs, [&] { settled = true; });
  run_until([&] { return settled; });
  auto again = dial_raw();
  word(*again, SessionWord::kResume, 2);
  sim.run();
  EXPECT_TRUE(again->closed());
}

// A link that brings what the test says, also after it was closed: as one does whose reader is on another thread.
struct LateLink final : Link {
  LateLink(LinkSink& s, NodeId peer) : Link(peer), sink(s) {}
  bool send(const Outgoing&) override { return true; }
  bool send_control(const Outgoing&) override { return true; }
  void peer_died(const Error&) override {}
  void close() override { over_ = true; }
  uint64_t backlog() const override { return 0; }
  std::string_view transport() const override { return "late"; }
  void bring(const FrameHeader& header) { sink.on_frame(*this, Message::make(header, "", peer())); }
  void bring_control(const FrameHeader& header) { sink.on_control(*this, Message::make(header, "", peer())); }
  LinkSink& sink;
};

TEST_F(HostilePeer, WhatAnOlderCarrierStillBringsIsNeitherHeardNorCounted) {
  auto dial_late = [this] {
    return std::static_pointer_cast<LateLink>(b.sessions->accepted(
        kA, false, kLease, [](LinkSink& sink) { return std::make_shared<LateLink>(sink, kA); }));
  };
  const auto first = dial_late(), second = dial_late();
  first->bring_control(encode_session({SessionWord::kOpen, 7, 1, {}}));
  first->bring(FrameHeader{});
  EXPECT_EQ(b.sink.frames(), 1u);
  second->bring_control(encode_session({SessionWord::kResume, 7, 2, {}}));
  first->bring(FrameHeader{});
  FrameHeader ping;
  ping.kind = FrameKind::kPing;
  first->bring_control(ping);
  first->bring_control(encode_acknowledge({99, 99}));
  first->sink.on_closed(*first, Error{ErrorCode::kMalformed, "nonsense"});
  EXPECT_EQ(b.sink.frames(), 1u);
  EXPECT_EQ(b.sink.controls(), 0u);
  second->bring(FrameHeader{});
  EXPECT_EQ(b.sink.frames(), 2u);
  EXPECT_FALSE(b.sink.closed());
}

// What was on its way when its dialer had gone on already.
TEST_F(HostilePeer, ACarrierThatHasBeenOvertakenChangesNothing) {
  auto link = opened();
  auto late = dial_raw(), present = dial_raw();
  auto settle = [this] {
    bool settled = false;
    sim.after(100 * kMs, [&] { settled = true; });
    run_until([&] { return settled; });
  };
  say(*link, 1);
  settle();
  word(*present, SessionWord::kResume, 3, {0, 0});
  settle();
  EXPECT_TRUE(link->closed());
  say(*b.link, 5);
  settle();
  word(*late, SessionWord::kResume, 2, {0, 0});
  settle();
  EXPECT_TRUE(late->closed());
  EXPECT_FALSE(present->closed());
  EXPECT_FALSE(b.sink.closed());
  EXPECT_EQ(heard(present).frames(), 1u);
  say(*present, 2);
  settle();
  EXPECT_EQ(b.sink.frames(), 2u);
}

TEST_F(Session, WhatThereWasNoMemoryForComesOnceAndInItsPlace) {
  std::vector<uint64_t> heard;
  b.sink.on_each_frame([&](const Message& message) { heard.push_back(message.header.token); });
  open();
  ASSERT_TRUE(sim.run());
  for (uint64_t number = 1; number <= 3; ++number) say(*a.link, number);
  no_memory = true;
  for (uint64_t number = 4; number <= 8; ++number) say(*a.link, number);
  EXPECT_TRUE(run_until([&] { return heard.size() == 8; }));
  break_carrier();
  say(*a.link, 9);
  ASSERT_TRUE(run_until([&] { return heard.size() == 9 && a.link->backlog() == 0; }));
  EXPECT_EQ(heard, (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

}  // namespace
}  // namespace monarch::testing
