#include "monarch/testing/link_suite.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "monarch/base/forked.h"
#include "monarch/base/system.h"
#include "monarch/net/inproc/inproc_link.h"
#include "monarch/net/sessions.h"
#include "monarch/net/tcp/tcp_link.h"
#include "monarch/net/tls/tls_channel.h"
#include "monarch/net/unix/unix_link.h"
#include "monarch/testing/sim_world.h"
#include "monarch/testing/tcp_pair.h"
#include "monarch/wire/cast_parts.h"

// A size that there is no memory for has to come back as null under the sanitizers too.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }
extern "C" const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

namespace monarch::testing {
namespace {

constexpr NodeId kA = 0xa1, kB = 0xb1;

// ---- The suite ----

TEST_P(LinkSuite, KeepsOrderAndContent) {
  constexpr uint64_t kCount = 3000;
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(send(a(), i, pattern(i % 700, static_cast<uint32_t>(i))));
    if (i % 3 == 0) {
      ASSERT_TRUE(send(b(), i / 3, {}));
    }
  }
  ASSERT_TRUE(wait_until([&] { return at_b().frames() == kCount && at_a().frames() == kCount / 3; }));
  auto frames = at_b().take();
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(frames[i]->header.token, i);
    ASSERT_EQ(frames[i]->from, kA);
    ASSERT_TRUE(same(frames[i]->body, pattern(i % 700, static_cast<uint32_t>(i))));
  }
  frames = at_a().take();
  for (uint64_t i = 0; i < frames.size(); ++i) ASSERT_EQ(frames[i]->header.token, i);
}

TEST_P(LinkSuite, CarriesEverySizeInBodyAndParts) {
  const size_t sizes[] = {0, 1, 7, 8, 9, 4095, 16 * 1024 - 1, 16 * 1024, 65536, 262144 - 72, 262144, 1 << 20, 20 << 20};
  for (size_t size : sizes) {
    const auto body = pattern(size, 1), part = pattern(size, 2), small = pattern(13, 3);
    const ByteSpan parts[] = {part, small, {}, part};
    ASSERT_TRUE(send(a(), size, body, parts));
  }
  ASSERT_TRUE(wait_until([&] { return at_b().frames() == std::size(sizes); }));
  auto frames = at_b().take();
  for (size_t i = 0; i < std::size(sizes); ++i) {
    const size_t size = sizes[i];
    const auto body = pattern(size, 1), part = pattern(size, 2);
    ASSERT_TRUE(same(frames[i]->body, body)) << size;
    ASSERT_EQ(frames[i]->parts.size(), 4u);
    for (int p : {0, 3}) {
      const Part& got = frames[i]->parts[static_cast<size_t>(p)];
      ASSERT_TRUE(same({got.data, got.size}, part)) << size;
    }
    ASSERT_EQ(frames[i]->parts[1].size, 13u);
    ASSERT_EQ(frames[i]->parts[2].size, 0u);
  }
}

TEST_P(LinkSuite, CarriesManyParts) {
  const auto bytes = pattern(64, 5);
  std::vector<ByteSpan> parts(5000, bytes);
  ASSERT_TRUE(send(a(), 1, {}, parts));
  ASSERT_TRUE(wait_until([&] { return at_b().frames() == 1; }));
  auto frames = at_b().take();
  ASSERT_EQ(frames[0]->parts.size(), parts.size());
  for (const Part& part : frames[0]->parts) ASSERT_TRUE(same({part.data, part.size}, bytes));
}

TEST_P(LinkSuite, WhatArrivesIsTheReceiversToWriteAndOutlivesItsMessage) {
  auto bytes = pattern(1 << 20, 9);
  const ByteSpan part(bytes);
  ASSERT_TRUE(send(a(), 1, {}, {&part, 1}));
  std::fill(bytes.begin(), bytes.end(), std::byte{0});  // a message is a snapshot
  ASSERT_TRUE(wait_until([&] { return at_b().frames() == 1; }));
  Part kept = at_b().take()[0]->parts[0];
  EXPECT_TRUE(same({kept.data, kept.size}, pattern(1 << 20, 9)));
  kept.data[0] = std::byte{1};
  kept.data[kept.size - 1] = std::byte{2};
}

// Two receivers, which here are behind the same link.
TEST_P(LinkSuite, WhatGoesToSeveralIsCopiedOnceAndEachReceiversOwn) {
  constexpr size_t kSize = size_t{3} << 20;
  auto bytes = pattern(kSize, 9);
  const auto little = pattern(20'000, 7);
  const ByteSpan parts[] = {bytes, little};
  ASSERT_TRUE(send(b(), 0, {}));  // connected: the arena is in use
  ASSERT_TRUE(send(a(), 0, {}, parts));
  ASSERT_TRUE(wait_until([&] { return at_b().frames() == 1 && at_a().frames() == 1; }));
  at_b().take();
  at_a().take();
  Arena* arena = pair_->arena_a();
  {
    CastParts cast;
    Outgoing outgoing{FrameHeader{}, {}, parts};
    outgoing.cast = &cast;
    ASSERT_TRUE(a().send(outgoing));
    ASSERT_TRUE(a().send(outgoing));
  }
  std::fill(bytes.begin(), bytes.end(), std::byte{0});  // a message is a snapshot
  ASSERT_TRUE(wait_until([&] { return at_b().frames() == 2; }));
  auto frames = at_b().take();
  if (arena != nullptr) {
    EXPECT_LT(arena->bytes_held(), 2 * kSize);
  }
  Part first = frames[0]->parts[0], second = frames[1]->parts[0];
  EXPECT_TRUE(same({first.data, first.size}, pattern(kSize, 9)));
  std::fill(first.data, first.data + first.size, std::byte{1});
  EXPECT_TRUE(same({second.data, second.size}, pattern(kSize, 9)));
  EXPECT_TRUE(same({frames[1]->parts[1].data, frames[1]->parts[1].size}, little));
  frames.clear();
  first = {};
  EXPECT_TRUE(same({second.data, second.size}, pattern(kSize, 9)));
  second = {};
  ASSERT_TRUE(send(b(), 0, {}));
  ASSERT_TRUE(wait_until([&] { return at_a().frames() == 1 && (arena == nullptr || arena->bytes_held() == 0); }));
}

TEST_P(LinkSuite, SlabsComeBackAndAreUsedAgain) {
  Arena* arena = pair_->arena_a();
  if (arena == nullptr) GTEST_SKIP() << "no arena";
  const auto bytes = pattern(3 << 20, 4);
  const ByteSpan part(bytes);
  uint64_t reserved = 0;
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(send(a(), i, {}, {&part, 1}));
    ASSERT_TRUE(wait_until([&] { return at_b().frames() == 1; }));
    at_b().take();  // gives the slab back: at once, since it is large
    ASSERT_TRUE(send(b(), 0, {}));
    ASSERT_TRUE(wait_until([&] { return at_a().frames() == 1; }));
    at_a().take();
    ASSERT_EQ(arena->bytes_held(), 0u);
    if (i == 0) reserved = arena->bytes_reserved();
  }
  EXPECT_EQ(arena->bytes_reserved(), reserved);
  // Small ones are given back in bulk, or when the receiver is about to sleep, or with the next frame.
  const auto little = pattern(20'000, 4);
  const ByteSpan little_part(little);
  for (uint64_t i = 0; i < 200; ++i) ASSERT_TRUE(send(a(), i, {}, {&little_part, 1}));
  ASSERT_TRUE(wait_until([&] { return at_b().frames() == 200; }));
  at_b().take();
  ASSERT_TRUE(send(b(), 0, {}));
  ASSERT_TRUE(wait_until([&] { return at_a().frames() == 1 && arena->bytes_held() == 0; }));
}

TEST_P(LinkSuite, AFullArenaChangesNothing) {
  Arena* arena = pair_->arena_a();
  if (arena == nullptr) GTEST_SKIP() << "no arena";
  const auto bytes = pattern(24 << 20, 4);
  const ByteSpan part(bytes);
  constexpr uint64_t kCount = 14;  // 336 MiB through an arena of 256
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_TRUE(send(a(), i, {}, {&part, 1}));
  ASSERT_TRUE(wait_until([&] { return at_b().frames() == kCount; }));
  auto frames = at_b().take();
  for (const auto& frame : frames) ASSERT_TRUE(same({frame->parts[0].data, frame->parts[0].size}, bytes));
}

TEST_P(LinkSuite, ControlOvertakesBulk) {
  const auto bytes = pattern(20 << 20, 1);
  const ByteSpan body(bytes);
  constexpr size_t kBulk = 12;
  for (size_t i = 0; i < kBulk; ++i) ASSERT_TRUE(send(a(), i, body));
  Outgoing control{FrameHeader{}, {}, {}};
  control.header.kind = FrameKind::kPing;
  ASSERT_TRUE(a().send_control(control));
  ASSERT_TRUE(wait_until([&] { return at_b().controls() == 1 && at_b().frames() == kBulk; }));
  if (a().transport() == "shm" || a().transport() == "unix" || a().transport() == "tcp") {
    EXPECT_LT(at_b().frames_before_control(), kBulk);
  }
}

TEST_P(LinkSuite, ControlAndDataInterleaveInOrderEach) {
  const auto bytes = pattern(50'000, 1);
  const ByteSpan part(bytes);
  for (uint64_t i = 0; i < 500; ++i) {
    ASSERT_TRUE(send(a(), i, {}, {&part, 1}));
    const auto body = pattern(900, 3);
    Outgoing control{FrameHeader{}, body, {}};
    control.header.kind = FrameKind::kPing;
    control.header.token = i;
    ASSERT_TRUE(a().send_control(control));
  }
  ASSERT_TRUE(wait_until([&] { return at_b().controls() == 500 && at_b().frames() == 500; }));
}

TEST_P(LinkSuite, CloseDeliversWhatWasPublishedThenSaysSoOnce) {
  for (int side = 0; side < 2; ++side) {
    SetUp();
    Link& closing = side == 0 ? a() : b();
    RecordingSink& hears = side == 0 ? at_b() : at_a();
    RecordingSink& silent = side == 0 ? at_a() : at_b();
    for (uint64_t i = 0; i < 100; ++i) ASSERT_TRUE(send(closing, i, pattern(100, 1)));
    closing.close();
    EXPECT_TRUE(closing.closed());
    EXPECT_FALSE(send(closing, 0, {}));
    Outgoing control{FrameHeader{}, {}, {}};
    EXPECT_FALSE(closing.send_control(control));
    ASSERT_TRUE(wait_until([&] { return hears.closed(); }));
    EXPECT_EQ(hears.frames(), 100u);
    EXPECT_EQ(hears.why().code, ErrorCode::kClosed);
    EXPECT_FALSE(silent.closed());
    Link& other = side == 0 ? b() : a();
    EXPECT_FALSE(send(other, 0, {}));
    closing.close();  // twice is fine
    other.close();
  }
}

TEST_P(LinkSuite, PeerDiedDeliversWhatWasPublishedThenEnds) {
  for (uint64_t i = 0; i < 1000; ++i) ASSERT_TRUE(send(a(), i, pattern(50, 1)));
  // Published is what has left the sender's own queue.
  ASSERT_TRUE(wait_until([&] { return a().backlog() == 0; }));
  if (a().transport() == "sim") wait_until([&] { return at_b().frames() == 1000; });
  b().peer_died(Error{ErrorCode::kClosed, "killed"});
  b().peer_died(Error{ErrorCode::kClosed, "again"});
  ASSERT_TRUE(wait_until([&] { return at_b().closed(); }));
  EXPECT_EQ(at_b().frames(), 1000u);
  EXPECT_FALSE(send(b(), 0, {}));
}

TEST_P(LinkSuite, ABacklogDrainsWhenTheReceiverIsSlow) {
  if (!pair_->hold_b()) GTEST_SKIP() << "cannot be held";
  constexpr uint64_t kCount = 400;
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_TRUE(send(a(), i, pattern(10'000, 1)));
  EXPECT_GT(a().backlog(), 0u);
  pair_->resume_b();
  ASSERT_TRUE(wait_until([&] { return at_b().frames() == kCount; }));
  ASSERT_TRUE(wait_until([&] { return a().backlog() == 0; }));
  auto frames = at_b().take();
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_EQ(frames[i]->header.token, i);
}

TEST_P(LinkSuite, ManyThreadsSendAndEachKeepsItsOrder) {
  if (!pair_->threads_may_send()) GTEST_SKIP() << "one thread";
  const uint64_t each = static_cast<uint64_t>(rounds(25'000, 5'000));
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < each; ++i) {
        Outgoing outgoing{FrameHeader{}, {}, {}};
        outgoing.header.sender = t;
        outgoing.header.token = i;
        ASSERT_TRUE(a().send(outgoing));
      }
    });
  }
  const bool all = wait_until([&] { return at_b().frames() == 4 * each; });
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(all);
  uint64_t next[4] = {};
  for (const auto& frame : at_b().take()) ASSERT_EQ(frame->header.token, next[frame->header.sender]++);
}

TEST_P(LinkSuite, GarbageEndsThatLinkOnly) {
  std::mt19937 random(1);
  for (int round = 0; round < 20; ++round) {
    SetUp();
    pair_->want_wire();
    ASSERT_TRUE(send(a(), 1, {}));
    ASSERT_TRUE(wait_until([&] { return at_b().frames() == 1; }));
    std::vector<std::byte> garbage(8 + random() % 4000);
    for (auto& byte : garbage) byte = static_cast<std::byte>(random());
    uint64_t size = round % 4;  // 0..3: too small, or a length nobody could have memory for, or a wrong frame
    if (round % 4 == 1) size = kRecordSizeMax;
    if (round % 4 == 2) size = (garbage.size() / 8) * 8;
    if (round % 4 == 3) size = UINT64_MAX;
    std::memcpy(garbage.data(), &size, sizeof size);
    if (!pair_->inject_garbage(garbage)) GTEST_SKIP() << "no wire";
    if (round % 4 == 1) {
      // A length that is allowed: either there is no memory for it, or it waits for bytes that never come.
      a().close();
    }
    ASSERT_TRUE(wait_until([&] { return at_b().closed(); })) << "round " << round;
    EXPECT_EQ(at_b().frames(), 1u);
    if (round % 4 != 1) {
      EXPECT_EQ(at_b().why().code, ErrorCode::kMalformed);
      ASSERT_TRUE(wait_until([&] { return at_a().closed(); })) << "the sender is not told";
    }
  }
}

// At the sender it is an error there, at the receiver the header of what is lost; the link lives, and loses nothing else.
TEST_P(LinkSuite, NoMemoryForAMessageCostsThatMessageOnly) {
  if (a().transport() != "shm" && a().transport() != "unix" && a().transport() != "tcp") GTEST_SKIP() << "no wire";
  const auto body = pattern(300'000, 4);
  bool refused = false, lost = false;
  ASSERT_TRUE(send(a(), 0, {}));
  ASSERT_TRUE(wait_until([&] { return at_b().frames() == 1; }));
  for (uint64_t nth = 1, calls = 1; nth <= calls + 1 && nth < 50; ++nth) {
    at_b().take();
    sys::fail_nth(nth);
    size_t sent = 2;
    try {
      ASSERT_TRUE(send(a(), 1, body));
    } catch (const std::bad_alloc&) {
      refused = true;
      sent = 1;
    }
    ASSERT_TRUE(send(a(), 2, pattern(100, 1)));
    const bool arrived = wait_until([&] { return at_b().frames() == sent; });
    calls = sys::calls_seen();
    sys::fail_nth(0);
    ASSERT_TRUE(arrived) << nth;
    const auto frames = at_b().take();
    if (sent == 2) {
      EXPECT_EQ(frames[0]->header.token, 1u);
      EXPECT_EQ(frames[0]->body.size(), frames[0]->lost_bytes == 0 ? body.size() : 0);
      lost |= frames[0]->lost_bytes > body.size();
    }
    EXPECT_EQ(frames.back()->header.token, 2u);
    EXPECT_TRUE(same(frames.back()->body, pattern(100, 1)));
    ASSERT_FALSE(a().closed() || at_b().closed());
  }
  EXPECT_TRUE(refused);
  EXPECT_TRUE(lost);
}

// On a lane that has no arena, or of an arena that was never offered, a location is nothing that may be looked at.
TEST_P(LinkSuite, APartInAnArenaThatIsNotThereEndsThatLinkOnly) {
  const auto bytes = pattern(32, 1);
  const ByteSpan part(bytes);
  for (const uint64_t location : {ArenaLocation{0, false, 0}.pack(), ArenaLocation{5, false, 4096}.pack(),
                                  ArenaLocation{5, true, 4096}.pack(), uint64_t{8}}) {
    for (const bool control : {false, true}) {
      SetUp();
      pair_->want_wire();
      ASSERT_TRUE(send(a(), 1, {}));
      ASSERT_TRUE(wait_until([&] { return at_b().frames() == 1; }));
      Outgoing outgoing{FrameHeader{}, {}, {&part, 1}};
      if (control) outgoing.header.kind = FrameKind::kPing;
      const auto record = encode_to_vector(outgoing, {&location, 1});
      if (!(control ? pair_->inject_control(record) : pair_->inject_garbage(record))) GTEST_SKIP() << "no wire";
      ASSERT_TRUE(wait_until([&] { return at_b().closed(); }));
      EXPECT_EQ(at_b().why().code, ErrorCode::kMalformed);
      EXPECT_EQ(at_b().frames(), 1u);
      EXPECT_EQ(at_b().controls(), 0u);
      ASSERT_TRUE(wait_until([&] { return at_a().closed(); })) << "the sender is not told";
    }
  }
}

// The last view of a part may go at any moment, on any thread: each slab comes back, and is used again.
TEST_P(LinkSuite, PartsMayBeDroppedByAnyThreadWhileOthersSend) {
  Arena* arena = pair_->arena_a();
  if (arena == nullptr) GTEST_SKIP() << "no arena";
  const int each = rounds(2000, 400);
  const auto bytes = pattern(300'000, 4);
  std::atomic<int> left{2};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < each; ++i) {
        const ByteSpan part(bytes.data(), i % 10 == t ? bytes.size() : 20'000);
        ASSERT_TRUE(send(a(), 0, {}, {&part, 1}));
        ASSERT_TRUE(send(b(), 0, {}, {&part, 1}));
      }
      --left;
    });
  }
  std::atomic<int> taken{0};
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      while (left != 0 || taken < 2 * each) {
        taken += static_cast<int>(at_b().take().size());
        at_a().take();
        sched_yield();
      }
    });
  }
  const bool all = wait_until([&] { return taken == 2 * each; });
  if (!all) taken = 2 * each;
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(all);
  ASSERT_TRUE(send(b(), 0, {}));
  EXPECT_TRUE(wait_until([&] { return arena->bytes_held() == 0; }));
}

// In a child of fork() a link and what came through it are dead: whatever is done there, the parent sees nothing of it.
// Its other threads may have held any lock at that moment.
TEST_P(LinkSuite, AForkedChildTouchesNothing) {
  if (!pair_->threads_may_send()) GTEST_SKIP() << "one thread";
  const auto bytes = pattern(1 << 20, 9);
  const ByteSpan part(bytes);
  ASSERT_TRUE(send(a(), 1, {}, {&part, 1}));
  ASSERT_TRUE(wait_until([&] { return at_b().frames() == 1; }));
  auto kept = at_b().take();
  const uint64_t held = pair_->arena_a() != nullptr ? pair_->arena_a()->bytes_held() : 0;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> sent{0};
  std::thread busy([&] {
    while (!stop) {
      if (b().backlog() < 1 << 16) sent += send(b(), sent, pattern(5000, 1));
    }
  });
  for (int round = 0; round < rounds(30, 8); ++round) {
    const pid_t child = fork();
    if (child == 0) {
      note_forked_child();
      alarm(10);  // it hangs: the parent sees the signal
      kept.clear();
      bool refused = !send(b(), 7, {}) && !send(a(), 7, {}, {&part, 1});
      Outgoing control{FrameHeader{}, {}, {}};
      control.header.kind = FrameKind::kPing;
      refused &= !b().send_control(control) && !a().send_control(control);
      a().peer_died(Error{ErrorCode::kClosed, "not here"});
      a().close();
      b().close();
      _exit(refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "round " << round;
  }
  stop = true;
  busy.join();
  ASSERT_TRUE(wait_until([&] { return at_a().frames() == sent; }));
  uint64_t next = 0;
  for (const auto& frame : at_a().take()) ASSERT_EQ(frame->header.token, next++);
  EXPECT_FALSE(at_a().closed() || at_b().closed());
  const Part& array = kept[0]->parts[0];
  EXPECT_TRUE(same({array.data, array.size}, bytes));
  if (pair_->arena_a() != nullptr) {
    EXPECT_EQ(pair_->arena_a()->bytes_held(), held);
  }
}

TEST_P(LinkSuite, OnePollIsShortWhateverThePeerSends) {
  if (!pair_->hold_b()) GTEST_SKIP() << "cannot be held";
  if (a().transport() != "shm") GTEST_SKIP() << "not polled";
  // As fast as it is read there is more.
  const auto bytes = pattern(100'000, 1);
  uint64_t sent = 0, bytes_in_one_poll = 0;
  for (; sent < 100; ++sent) ASSERT_TRUE(send(a(), sent, bytes));
  at_b().on_each_frame([&](const Message& message) {
    bytes_in_one_poll += message.body.size();
    if (sent < 2000) send(a(), sent++, bytes);
  });
  for (int round = 0; round < 20; ++round) {
    bytes_in_one_poll = 0;
    pair_->poll_b();
    EXPECT_LE(bytes_in_one_poll, uint64_t{2} << 20) << round;
  }
  at_b().on_each_frame(nullptr);
  pair_->resume_b();
  ASSERT_TRUE(wait_until([&] { return at_b().frames() == sent; }));
}

TEST_P(LinkSuite, LinksMayEndWhileBothSidesSend) {
  if (!pair_->threads_may_send()) GTEST_SKIP() << "one thread";
  const bool may_wait_for_lease = a().transport() == "session";
  for (int round = 0; round < rounds(60, 15) / (may_wait_for_lease ? 3 : 1); ++round) {
    SetUp();
    std::atomic<bool> stop{false};
    const auto bytes = pattern(40'000, 1);
    const ByteSpan part(bytes);
    std::thread left([&] {
      while (!stop && send(a(), 0, {}, {&part, 1})) {
        if (a().backlog() > 1 << 20) sched_yield();
      }
    });
    std::thread right([&] {
      while (!stop && send(b(), 0, {}, {&part, 1})) {
        if (b().backlog() > 1 << 20) sched_yield();
      }
    });
    wait_until([&] { return at_b().frames() > static_cast<size_t>(round); });
    if (round % 3 != 1) a().close();
    if (round % 3 != 0) b().close();
    if (round % 3 == 0) {
      EXPECT_TRUE(wait_until([&] { return at_b().closed(); }));
    }
    stop = true;
    left.join();
    right.join();
    at_a().take();
    at_b().take();
  }
}

// ---- The transports ----

class InprocPair final : public LinkPair {
 public:
  InprocPair()
      : links_(InprocLink::connect({kA, *home_a_.driver, home_a_.reactor, sink_a},
                                   {kB, *home_b_.driver, home_b_.reactor, sink_b})) {}
  ~InprocPair() override {
    links_.first->close();
    links_.second->close();
    home_a_.reactor.stop();
    home_b_.reactor.stop();
  }
  Link& a() override { return *links_.first; }
  Link& b() override { return *links_.second; }
  bool wait_until(const std::function<bool()>& ready) override { return drive_until(*home_b_.driver, ready); }

 private:
  Home home_a_, home_b_;
  InprocLink::Pair links_;
};

// Keeps one thread of a home, its reactor, from doing anything.
class Hold {
 public:
  explicit Hold(Home& home) {
    home.reactor.post([this] {
      held_ = true;
      while (!released_) sched_yield();
      gone_ = true;
    });
    while (!held_) sched_yield();
  }
  ~Hold() {
    released_ = true;
    while (!gone_) sched_yield();
  }

 private:
  std::atomic<bool> held_{false}, released_{false}, gone_{false};
};

class ShmPair final : public LinkPair {
 public:
  ShmPair()
      : a_(std::make_shared<ShmLink>(home_a_.context(), sink_a, kB)),
        b_(std::make_shared<ShmLink>(home_b_.context(), sink_b, kA)),
        rings_fd_(make_shared_memory("test-ring", sizeof(RingPair)).value()),
        spy_(map_shared_memory(rings_fd_.get(), sizeof(RingPair)).value()) {
    int pair[2];
    MONARCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    control_spy_.reset(fcntl(pair[0], F_DUPFD_CLOEXEC, 3));
    auto rings = [&] { return map_shared_memory(rings_fd_.get(), sizeof(RingPair)).value(); };
    a_->start({kB, 0, rings(), home_b_.peer_bell(), UniqueFd(pair[0])});
    b_->start({kA, 1, rings(), home_a_.peer_bell(), UniqueFd(pair[1])});
  }
  ~ShmPair() override {
    hold_.reset();
    a_->close();
    b_->close();
    home_a_.reactor.stop();
    home_b_.reactor.stop();
  }
  Link& a() override { return *a_; }
  Link& b() override { return *b_; }
  bool wait_until(const std::function<bool()>& ready) override {
    if (!spy_wanted_) control_spy_.reset();  // it would keep the socket open
    return drive_until(*home_b_.driver, ready);
  }
  bool hold_b() override {
    hold_ = std::make_unique<Hold>(home_b_);
    return true;
  }
  void resume_b() override { hold_.reset(); }
  void poll_b() override { home_b_.driver->poll_once(); }
  void want_wire() override { spy_wanted_ = true; }
  bool inject_control(ByteSpan bytes) override {
    const bool sent = ::send(control_spy_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0;
    control_spy_.reset();
    return sent;
  }
  Arena* arena_a() override { return home_a_.arena.get(); }
  bool inject_garbage(ByteSpan bytes) override {
    auto& ring = static_cast<RingPair*>(spy_.get())->rings[0];
    const uint64_t head = ring.head.load();
    for (size_t i = 0; i < bytes.size(); ++i) ring.bytes[(head + i) % kRingBytes] = bytes[i];
    control_spy_.reset();
    ring.head.store(head + bytes.size());
    ring_bell(home_b_.bell.bell(), ring.bell_index_plus_1.load() - 1, home_b_.bell.event_fd.get());
    return true;
  }

 private:
  Home home_a_, home_b_;
  std::shared_ptr<ShmLink> a_, b_;
  UniqueFd rings_fd_;
  Mapping spy_;
  UniqueFd control_spy_;
  bool spy_wanted_ = false;
  std::unique_ptr<Hold> hold_;
};

class UnixPair final : public LinkPair {
 public:
  UnixPair()
      : a_(std::make_shared<UnixLink>(home_a_.reactor, sink_a, kB)),
        b_(std::make_shared<UnixLink>(home_b_.reactor, sink_b, kA)) {
    int data[2], control[2];
    MONARCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, data) == 0);
    MONARCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0);
    spy_.reset(fcntl(data[0], F_DUPFD_CLOEXEC, 3));
    control_spy_.reset(fcntl(control[0], F_DUPFD_CLOEXEC, 3));
    a_->start(UniqueFd(data[0]), UniqueFd(control[0]));
    b_->start(UniqueFd(data[1]), UniqueFd(control[1]));
  }
  ~UnixPair() override {
    hold_.reset();
    a_->close();
    b_->close();
    home_a_.reactor.stop();
    home_b_.reactor.stop();
  }
  Link& a() override { return *a_; }
  Link& b() override { return *b_; }
  bool wait_until(const std::function<bool()>& ready) override {
    if (!spy_wanted_) drop_spies();  // they would keep the sockets open
    return drive_until(*home_b_.driver, ready);
  }
  bool hold_b() override {
    hold_ = std::make_unique<Hold>(home_b_);
    return true;
  }
  void resume_b() override { hold_.reset(); }
  void want_wire() override { spy_wanted_ = true; }
  bool inject_garbage(ByteSpan bytes) override { return inject(spy_, bytes); }
  bool inject_control(ByteSpan bytes) override { return inject(control_spy_, bytes); }

 private:
  bool inject(const UniqueFd& spy, ByteSpan bytes) {
    if (!spy) return false;
    const bool sent = ::send(spy.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0;
    drop_spies();
    return sent;
  }
  void drop_spies() {
    spy_.reset();
    control_spy_.reset();
  }

  Home home_a_, home_b_;
  std::shared_ptr<UnixLink> a_, b_;
  UniqueFd spy_, control_spy_;
  bool spy_wanted_ = false;
  std::unique_ptr<Hold> hold_;
};

class TcpPair final : public LinkPair {
 public:
  // `stripes`: how many more connections the data is spread over.
  explicit TcpPair(bool tls, int stripes = 0)
      : a_(std::make_shared<TcpLink>(home_a_.reactor, sink_a, kB, kSilence)),
        b_(std::make_shared<TcpLink>(home_b_.reactor, sink_b, kA, kSilence)) {
    connect(*a_, *b_, tls);
    for (int i = 0; i < stripes; ++i) {
      const auto one = std::make_shared<TcpLink>(home_a_.reactor, sink_a, kB, kSilence);
      const auto other = std::make_shared<TcpLink>(home_b_.reactor, sink_b, kA, kSilence);
      MONARCH_CHECK(one->become_stripe_of(a_) && other->become_stripe_of(b_));
      connect(*one, *other, tls);
      MONARCH_CHECK(wait_until([&] { return one->over() && other->over(); }));
    }
    const auto count = static_cast<size_t>(stripes);
    MONARCH_CHECK(a_->stripe_count() == count && b_->stripe_count() == count);
  }
  ~TcpPair() override {
    hold_.reset();
    a_->close();
    b_->close();
    home_a_.reactor.stop();
    home_b_.reactor.stop();
  }
  Link& a() override { return *a_; }
  Link& b() override { return *b_; }
  bool wait_until(const std::function<bool()>& ready) override {
    if (!spy_wanted_) spies_.clear();  // they would keep the sockets open
    return drive_until(*home_b_.driver, ready);
  }
  bool hold_b() override {
    hold_ = std::make_unique<Hold>(home_b_);
    return true;
  }
  void resume_b() override { hold_.reset(); }
  void want_wire() override { spy_wanted_ = true; }
  bool inject_garbage(ByteSpan bytes) override { return inject(ChunkLane::kData, bytes); }
  bool inject_control(ByteSpan bytes) override { return inject(ChunkLane::kControl, bytes); }

 private:
  static constexpr int64_t kSilence = 20'000'000'000;
  void connect(TcpLink& a, TcpLink& b, bool tls) {
    UniqueFd pair[2];
    make_tcp_pair(pair);
    const int room = 128 << 10;  // the kernel would take megabytes, and nothing would ever wait
    setsockopt(pair[0].get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    setsockopt(pair[1].get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    if (!tls) spies_.push_back(sys::duplicate(pair[0].get()));
    std::unique_ptr<Channel> near = std::make_unique<SocketChannel>(std::move(pair[0]));
    std::unique_ptr<Channel> far = std::make_unique<SocketChannel>(std::move(pair[1]));
    if (tls) make_secret(near, far);
    a.start(std::move(near));
    b.start(std::move(far));
  }
  static void make_secret(std::unique_ptr<Channel>& a, std::unique_ptr<Channel>& b) {
    static const auto context = TlsContext::make(Authority::make()->issue("both").value()).value();
    a = std::make_unique<TlsChannel>(std::move(a), context, false);
    b = std::make_unique<TlsChannel>(std::move(b), context, true);
    for (bool done = false; !done;) {
      const bool first = a->establish().value(), second = b->establish().value();
      done = first && second;
    }
  }
  bool inject(ChunkLane lane, ByteSpan bytes) {
    if (spies_.empty()) return false;
    const auto size = static_cast<uint32_t>(bytes.size());
    const bool striped = lane == ChunkLane::kData && spies_.size() > 1;
    const ChunkHeader chunk = encode_chunk(lane, size);
    const StripeHeader numbered = encode_stripe_chunk(size, 0);
    const ByteSpan header = striped ? ByteSpan(numbered) : ByteSpan(chunk);
    const iovec pieces[2] = {{const_cast<std::byte*>(header.data()), header.size()},
                             {const_cast<std::byte*>(bytes.data()), bytes.size()}};
    const bool sent = sys::send_pieces((striped ? spies_.back() : spies_.front()).get(), pieces) > 0;
    spies_.clear();
    return sent;
  }

  Home home_a_, home_b_;
  std::shared_ptr<TcpLink> a_, b_;
  std::vector<UniqueFd> spies_;
  bool spy_wanted_ = false;
  std::unique_ptr<Hold> hold_;
};

// A session over unix sockets, which break again and again: the first two connections at once, then one after every so
// many frames.
class SessionPair final : public LinkPair {
 public:
  SessionPair() : at_a_(*this, sink_a), at_b_(*this, sink_b) {
    Sessions::Events events;
    events.on_accepted = [this](std::shared_ptr<Link> link, bool) {
      std::lock_guard lock(mutex_);
      b_ = std::move(link);
    };
    sessions_a_ = Sessions::make(home_a_.reactor, random_, at_a_, {});
    sessions_b_ = Sessions::make(home_b_.reactor, random_, at_b_, std::move(events));
    a_ = sessions_a_->dial(kB, kLease, [this](LinkSink& sink) { return connect(sink); });
    MONARCH_CHECK(drive_until(*home_b_.driver, [&] { return connections() == 3 && accepted() && opened_; }));
  }
  ~SessionPair() override {
    hold_.reset();
    ending_ = true;
    a_->close();
    b_->close();
    home_a_.reactor.stop();
    home_b_.reactor.stop();
    sessions_a_->end();
    sessions_b_->end();
  }
  Link& a() override { return *a_; }
  Link& b() override { return *b_; }
  bool wait_until(const std::function<bool()>& ready) override { return drive_until(*home_b_.driver, ready); }
  bool hold_b() override {
    hold_ = std::make_unique<Hold>(home_b_);
    return true;
  }
  void resume_b() override { hold_.reset(); }

 private:
  // Who closes its end while the connection is broken is waited for so long by the other.
  static constexpr int64_t kLease = 3'000'000'000;
  static constexpr int kBrokenAtOnce = 2;
  static constexpr uint64_t kFirstBreak = 150, kBreakEvery = 97;  // frames
  // Counts what arrives.
  struct Counting final : LinkSink {
    Counting(SessionPair& p, LinkSink& s) : pair(p), sink(s) {}
    void on_frame(Link& link, MessagePtr message) override {
      sink.on_frame(link, std::move(message));
      pair.arrived();
    }
    void on_control(Link& link, MessagePtr message) override {
      // The first one is ours: it has come through the third connection.
      if (message->header.token == kOpened) {
        pair.opened_ = true;
        return;
      }
      sink.on_control(link, std::move(message));
      pair.arrived();
    }
    void on_closed(Link& link, const Error& why) override { sink.on_closed(link, why); }
    SessionPair& pair;
    LinkSink& sink;
  };
  static constexpr uint64_t kOpened = UINT64_MAX;

  std::shared_ptr<Link> connect(LinkSink& sink) {
    int data[2], control[2];
    MONARCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, data) == 0);
    MONARCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0);
    auto near_end = std::make_shared<UnixLink>(home_a_.reactor, sink, kB);
    // std::function must be copyable
    auto far_data = std::make_shared<UniqueFd>(data[1]), far_control = std::make_shared<UniqueFd>(control[1]);
    home_b_.reactor.post([this, far_data, far_control] {
      const auto far_end = sessions_b_->accepted(kA, false, kLease, [this](LinkSink& far_sink) {
        return std::make_shared<UnixLink>(home_b_.reactor, far_sink, kA);
      });
      static_cast<UnixLink&>(*far_end).start(std::move(*far_data), std::move(*far_control));
    });
    std::lock_guard lock(mutex_);
    if (++connections_ <= kBrokenAtOnce) shutdown(data[0], SHUT_RDWR);
    if (connections_ == kBrokenAtOnce + 1) {
      home_a_.reactor.post([this] {
        Outgoing opened{FrameHeader{}, {}, {}};
        opened.header.kind = FrameKind::kPing;
        opened.header.token = kOpened;
        MONARCH_CHECK(a_->send_control(opened));
      });
    }
    near_end->start(UniqueFd(data[0]), UniqueFd(control[0]));
    present_ = near_end;
    return near_end;
  }
  // On the thread of a sink: the end is made elsewhere.
  void arrived() {
    if (++arrived_ < break_at_) return;
    break_at_ = arrived_ + kBreakEvery;
    home_a_.reactor.post([this] {
      std::shared_ptr<UnixLink> link;
      {
        std::lock_guard lock(mutex_);
        link = present_.lock();
      }
      if (link && !ending_) link->peer_died(Error{ErrorCode::kClosed, "it breaks"});
    });
  }
  int connections() {
    std::lock_guard lock(mutex_);
    return connections_;
  }
  bool accepted() {
    std::lock_guard lock(mutex_);
    return b_ != nullptr;
  }

  SystemRandom random_;
  Counting at_a_, at_b_;
  std::atomic<uint64_t> arrived_{0}, break_at_{kFirstBreak};
  std::atomic<bool> opened_{false}, ending_{false};
  std::mutex mutex_;
  int connections_ = 0;
  std::weak_ptr<UnixLink> present_;
  Home home_a_, home_b_;
  std::shared_ptr<Sessions> sessions_a_, sessions_b_;  // shared: with each session
  std::shared_ptr<Link> a_, b_;
  std::unique_ptr<Hold> hold_;
};

class SimPair final : public LinkPair {
 public:
  SimPair() : world_(1), links_(world_.connect(kA, sink_a, kB, sink_b)) {}
  Link& a() override { return *links_.first; }
  Link& b() override { return *links_.second; }
  bool wait_until(const std::function<bool()>& ready) override {
    while (!ready()) {
      if (!world_.step()) return ready();
    }
    return true;
  }
  bool threads_may_send() const override { return false; }

 private:
  SimWorld world_;
  std::pair<std::shared_ptr<SimLink>, std::shared_ptr<SimLink>> links_;
};

std::unique_ptr<LinkPair> make_inproc() { return std::make_unique<InprocPair>(); }
std::unique_ptr<LinkPair> make_shm() { return std::make_unique<ShmPair>(); }
std::unique_ptr<LinkPair> make_unix() { return std::make_unique<UnixPair>(); }
std::unique_ptr<LinkPair> make_tcp() { return std::make_unique<TcpPair>(false); }
std::unique_ptr<LinkPair> make_tls() { return std::make_unique<TcpPair>(true); }
std::unique_ptr<LinkPair> make_striped() { return std::make_unique<TcpPair>(false, 3); }
std::unique_ptr<LinkPair> make_striped_tls() { return std::make_unique<TcpPair>(true, 2); }
std::unique_ptr<LinkPair> make_session() { return std::make_unique<SessionPair>(); }
std::unique_ptr<LinkPair> make_sim() { return std::make_unique<SimPair>(); }

INSTANTIATE_TEST_SUITE_P(Inproc, LinkSuite, ::testing::Values(&make_inproc), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(Shm, LinkSuite, ::testing::Values(&make_shm), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(Unix, LinkSuite, ::testing::Values(&make_unix), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(Tcp, LinkSuite, ::testing::Values(&make_tcp), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(Tls, LinkSuite, ::testing::Values(&make_tls), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(Striped, LinkSuite, ::testing::Values(&make_striped), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(StripedTls, LinkSuite, ::testing::Values(&make_striped_tls), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(Session, LinkSuite, ::testing::Values(&make_session), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(Sim, LinkSuite, ::testing::Values(&make_sim), [](const auto&) { return "link"; });

}  // namespace
}  // namespace monarch::testing
