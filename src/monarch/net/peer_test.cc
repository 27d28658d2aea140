#include "monarch/net/peer.h"

#include <gtest/gtest.h>

#include <functional>

#include <string>

#include "monarch/testing/sim_world.h"

namespace monarch::testing {
namespace {

constexpr int64_t kLease = 10'000'000'000;

std::string to_text(PeerState state) {
  constexpr const char* kNames[] = {"none", "linked", "resuming", "ended", "dead"};
  return kNames[static_cast<int>(state)];
}
std::string to_text(PeerAction action) {
  constexpr const char* kNames[] = {"", "use", "listen", "dial", "give up", "report", "resume", "drop"};
  return kNames[static_cast<int>(action)];
}

// A peer in that state.
Peer peer_in(PeerState state, int64_t lease_ns) {
  Peer peer(lease_ns);
  if (state == PeerState::kNone) return peer;
  peer.on(PeerEvent::kLink, 0);
  if (state == PeerState::kLinked) return peer;
  if (state == PeerState::kDead) {
    peer.on(PeerEvent::kDeclared, 0);
    return peer;
  }
  peer.on(PeerEvent::kClosed, 0);
  if (state == PeerState::kEnded && lease_ns != 0) peer.on(PeerEvent::kTimer, lease_ns);
  return peer;
}

struct Row {
  PeerState state;
  const char* next[7];  // by event: wanted, link, shortage, closed, timer, declared, refused
  const char* action[7];
};

// What each event does in the state of this row, for whoever wants to know more of it.
void expect_row(const Row& row, int64_t lease_ns,
                const std::function<void(PeerEvent, const Peer&, const PeerStep&)>& more) {
  for (int i = 0; i < 7; ++i) {
    const auto event = static_cast<PeerEvent>(i);
    Peer peer = peer_in(row.state, lease_ns);
    ASSERT_EQ(peer.state(), row.state);
    const PeerStep step = peer.on(event, 1);
    EXPECT_EQ(to_text(peer.state()), row.next[i]) << to_text(row.state) << ", event " << i;
    EXPECT_EQ(to_text(step.action), row.action[i]) << to_text(row.state) << ", event " << i;
    more(event, peer, step);
  }
}

// The whole table: what each event does in each state.
TEST(Peer, FollowsItsTable) {
  using S = PeerState;
  const Row rows[] = {
      {S::kNone,
       {"linked", "linked", "none", "none", "none", "dead", "none"},
       {"dial", "use", "", "", "", "drop", ""}},
      {S::kLinked,
       {"linked", "linked", "none", "ended", "linked", "dead", "linked"},
       {"", "listen", "give up", "report", "", "drop", ""}},
      {S::kEnded,
       {"ended", "ended", "ended", "ended", "ended", "dead", "ended"},
       {"", "listen", "", "", "", "drop", ""}},
      {S::kDead, {"dead", "dead", "dead", "dead", "dead", "dead", "dead"}, {"", "", "", "", "", "", ""}},
  };
  for (const Row& row : rows) {
    expect_row(row, 0, [](PeerEvent, const Peer&, const PeerStep& step) { EXPECT_EQ(step.look_again_ns, 0); });
  }
}

// The same with a lease.
TEST(Peer, FollowsItsTableWithALease) {
  using S = PeerState;
  const Row rows[] = {
      {S::kNone,
       {"resuming", "linked", "none", "none", "none", "dead", "none"},
       {"dial", "use", "", "", "", "drop", ""}},
      {S::kLinked,
       {"linked", "linked", "resuming", "resuming", "linked", "dead", "linked"},
       {"", "listen", "dial", "dial", "", "drop", ""}},
      {S::kResuming,
       {"resuming", "linked", "resuming", "resuming", "resuming", "dead", "ended"},
       {"", "resume", "", "", "dial", "drop", "report"}},
  };
  for (const Row& row : rows) {
    expect_row(row, kLease, [](PeerEvent event, const Peer& peer, const PeerStep& step) {
      if (peer.state() == S::kResuming && event != PeerEvent::kWanted) {
        EXPECT_GT(step.look_again_ns, 1);
      }
    });
  }
}

TEST(Peer, WhoHasNotDialledWaitsForTheOtherUntilTheLeaseIsOver) {
  Peer peer(kLease, false);
  EXPECT_EQ(peer.on(PeerEvent::kLink, 0).action, PeerAction::kUse);
  const PeerStep step = peer.on(PeerEvent::kClosed, 100);
  EXPECT_EQ(step.action, PeerAction::kNothing);
  EXPECT_EQ(step.look_again_ns, 100 + kLease);
  EXPECT_EQ(peer.on(PeerEvent::kTimer, 100 + kLease).action, PeerAction::kReport);
}

TEST(Peer, ItsFirstLinkMayTakeLonger) {
  constexpr int64_t kOpening = 2 * kLease;
  Peer peer(kLease, true, kOpening);
  EXPECT_EQ(peer.on(PeerEvent::kWanted, 0).action, PeerAction::kDial);
  EXPECT_EQ(peer.on(PeerEvent::kTimer, kOpening - 1).action, PeerAction::kDial);
  peer.on(PeerEvent::kLink, kOpening - 1);
  peer.on(PeerEvent::kClosed, kOpening);
  EXPECT_EQ(peer.on(PeerEvent::kTimer, kOpening + kLease).action, PeerAction::kReport);
}

TEST(Peer, WhereThereIsMuchTimeItsFirstDialHasHalfOfIt) {
  Peer peer(kLease, true, 6 * Peer::kDialNs);
  EXPECT_EQ(peer.on(PeerEvent::kWanted, 0).look_again_ns, 3 * Peer::kDialNs);
}

TEST(Peer, WithALeaseItOutlivesItsLink) {
  Peer peer = peer_in(PeerState::kLinked, kLease);
  PeerStep step = peer.on(PeerEvent::kClosed, 100);
  EXPECT_EQ(step.action, PeerAction::kDial);
  EXPECT_EQ(step.look_again_ns, 100 + Peer::kDialNs) << "a dial that gets nowhere is not waited for";
  step = peer.on(PeerEvent::kLink, 200);
  EXPECT_EQ(step.action, PeerAction::kResume);
  EXPECT_EQ(peer.state(), PeerState::kLinked);
}

TEST(Peer, RedialsMoreAndMoreRarelyUntilTheLeaseIsOver) {
  Peer peer = peer_in(PeerState::kLinked, kLease);
  int64_t now_ns = 0, dials = 1;
  peer.on(PeerEvent::kClosed, now_ns);
  while (peer.state() == PeerState::kResuming) {
    // A shortage of our own and a refusal are the same here: neither is the end of the lease.
    PeerStep step = peer.on(dials % 2 == 0 ? PeerEvent::kShortage : PeerEvent::kClosed, now_ns);
    ASSERT_EQ(step.action, PeerAction::kNothing);
    ASSERT_GT(step.look_again_ns, now_ns);
    now_ns = step.look_again_ns;
    step = peer.on(PeerEvent::kTimer, now_ns);
    if (step.action == PeerAction::kDial) ++dials;
  }
  EXPECT_EQ(peer.state(), PeerState::kEnded);
  EXPECT_EQ(now_ns, kLease);
  EXPECT_GT(dials, 10);
  EXPECT_LT(dials, 30);
}

TEST(Peer, WhoIsDeclaredDeadIsNotResumed) {
  Peer peer = peer_in(PeerState::kResuming, kLease);
  EXPECT_EQ(peer.on(PeerEvent::kDeclared, 1).action, PeerAction::kDrop);
  EXPECT_EQ(peer.on(PeerEvent::kLink, 2).action, PeerAction::kNothing);
}

// ---- Resume ----

// Two ends that talk over simulated links which break again and again: each new link goes on where the last one ended.
struct End final : LinkSink {
  void send(const std::string& text) {
    Outgoing outgoing{FrameHeader{}, as_byte_span(text.data(), text.size()), {}};
    window.sent(Message::copy_of(outgoing, 0));
    if (link) link->send(outgoing);
  }
  void resume_at(uint64_t peer_has) {
    auto again = window.resume(peer_has);
    ASSERT_TRUE(again.has_value());
    for (const auto& message : *again) ASSERT_TRUE(link->send({message->header, message->body, {}}));
  }
  void on_frame(Link&, MessagePtr message) override {
    received.received(message->total_bytes());
    got.emplace_back(message->text());
    if (!received.ack_due()) return;
    received.note_acknowledged();
    Outgoing ack{FrameHeader{}, {}, {}};
    ack.header.token = received.count();
    static_cast<void>(link && link->send_control(ack));  // a lost one is made good by the next, or by the next link
  }
  void on_control(Link&, MessagePtr message) override { EXPECT_TRUE(window.acknowledged(message->header.token)); }
  void on_closed(Link&, const Error&) override { link = nullptr; }

  std::shared_ptr<SimLink> link;
  ResumeWindow window;
  ReceivedCount received;
  std::vector<std::string> got;
};

TEST(ResumeWindow, NothingIsLostAndNothingComesTwiceHoweverOftenTheLinkBreaks) {
  for (const uint64_t seed : sim_seeds(200, 20)) {
    SCOPED_TRACE(reproduction(seed, "net_test", "ResumeWindow.*"));
    SimWorld sim(seed);
    End a, b;
    auto connect = [&] {
      if (a.link || b.link) return false;
      std::tie(a.link, b.link) = sim.connect(1, a, 2, b);
      a.resume_at(b.received.count());  // what the first frames of a new link say
      b.resume_at(a.received.count());
      return true;
    };
    connect();
    int sent_a = 0, sent_b = 0;
    for (int i = 0; i < 500; ++i) {
      sim.after(static_cast<int64_t>(sim.random(50'000'000)), [&] {
        a.send("a" + std::to_string(sent_a++));
        if (sim.chance(30)) b.send("b" + std::to_string(sent_b++));
      });
    }
    for (int i = 0; i < 10; ++i) {
      sim.after(static_cast<int64_t>(sim.random(50'000'000)), [&] {
        if (a.link) sim.break_link(a.link, Error{ErrorCode::kClosed, "the connection broke"});
      });
    }
    while (sim.step()) {
      if (!a.link && !b.link) connect();
    }
    connect();
    sim.run();
    ASSERT_EQ(b.got.size(), static_cast<size_t>(sent_a));
    ASSERT_EQ(a.got.size(), static_cast<size_t>(sent_b));
    for (int i = 0; i < sent_a; ++i) ASSERT_EQ(b.got[static_cast<size_t>(i)], "a" + std::to_string(i));
    for (int i = 0; i < sent_b; ++i) ASSERT_EQ(a.got[static_cast<size_t>(i)], "b" + std::to_string(i));
    EXPECT_LT(a.window.bytes(), ReceivedCount::kAckEvery * (kRecordPrologue + 8));  // what is acknowledged is not kept
    sim.end();
  }
}

TEST(ResumeWindow, IsAcknowledgedByNumberAndBySize) {
  ReceivedCount received;
  for (uint64_t i = 1; i < ReceivedCount::kAckEvery; ++i) received.received(1);
  EXPECT_FALSE(received.ack_due());
  EXPECT_TRUE(received.ack_pending());
  received.received(1);
  EXPECT_TRUE(received.ack_due());
  received.note_acknowledged();
  EXPECT_FALSE(received.ack_pending());
  received.received(ReceivedCount::kAckBytes);
  EXPECT_TRUE(received.ack_due());
}

TEST(ResumeWindow, EmptyFramesCountToo) {
  ResumeWindow window;
  for (int i = 0; i < 100; ++i) window.sent(Message::make(FrameHeader{}, ""));
  EXPECT_GE(window.bytes(), 100u * sizeof(FrameHeader));
  EXPECT_EQ(window.take().size(), 100u);
  EXPECT_EQ(window.bytes(), 0u);
  EXPECT_TRUE(window.take().empty());
}

TEST(ResumeWindow, APeerThatSaysWhatCannotBeIsNotTheOneThatItWas) {
  ResumeWindow window;
  for (int i = 0; i < 5; ++i) window.sent(Message::make(FrameHeader{}, "x"));
  EXPECT_FALSE(window.acknowledged(6));
  EXPECT_TRUE(window.acknowledged(3));
  EXPECT_FALSE(window.resume(2).has_value());
  EXPECT_FALSE(window.resume(UINT64_MAX).has_value());
  EXPECT_EQ(window.resume(4)->size(), 1u);
}

}  // namespace
}  // namespace monarch::testing
