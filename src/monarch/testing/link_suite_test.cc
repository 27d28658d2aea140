#include "monarch/testing/link_suite.h"

#include <sys/socket.h>

#include "monarch/net/inproc/inproc_link.h"
#include "monarch/net/unix/unix_link.h"
#include "monarch/testing/sim_world.h"

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
  if (a().transport() == "shm" || a().transport() == "unix") {
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

TEST_P(LinkSuite, LinksMayEndWhileBothSidesSend) {
  if (!pair_->threads_may_send()) GTEST_SKIP() << "one thread";
  for (int round = 0; round < rounds(60, 15); ++round) {
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
  bool wait_until(const std::function<bool()>& ready) override { return drive_until(*home_b_.driver, ready); }
  bool hold_b() override {
    hold_ = std::make_unique<Hold>(home_b_);
    return true;
  }
  void resume_b() override { hold_.reset(); }
  Arena* arena_a() override { return home_a_.arena.get(); }
  bool inject_garbage(ByteSpan bytes) override {
    auto& ring = static_cast<RingPair*>(spy_.get())->rings[0];
    const uint64_t head = ring.head.load();
    for (size_t i = 0; i < bytes.size(); ++i) ring.bytes[(head + i) % kRingBytes] = bytes[i];
    ring.head.store(head + bytes.size());
    ring_bell(home_b_.bell.bell(), ring.bell_index_plus_1.load() - 1, home_b_.bell.event_fd.get());
    return true;
  }

 private:
  Home home_a_, home_b_;
  std::shared_ptr<ShmLink> a_, b_;
  UniqueFd rings_fd_;
  Mapping spy_;
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
    if (!spy_wanted_) spy_.reset();  // it would keep the socket open
    return drive_until(*home_b_.driver, ready);
  }
  bool hold_b() override {
    hold_ = std::make_unique<Hold>(home_b_);
    return true;
  }
  void resume_b() override { hold_.reset(); }
  void want_wire() override { spy_wanted_ = true; }
  bool inject_garbage(ByteSpan bytes) override {
    if (!spy_) return false;
    const bool sent = ::send(spy_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) > 0;
    spy_.reset();
    return sent;
  }

 private:
  Home home_a_, home_b_;
  std::shared_ptr<UnixLink> a_, b_;
  UniqueFd spy_;
  bool spy_wanted_ = false;
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
std::unique_ptr<LinkPair> make_sim() { return std::make_unique<SimPair>(); }

INSTANTIATE_TEST_SUITE_P(Inproc, LinkSuite, ::testing::Values(&make_inproc), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(Shm, LinkSuite, ::testing::Values(&make_shm), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(Unix, LinkSuite, ::testing::Values(&make_unix), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(Sim, LinkSuite, ::testing::Values(&make_sim), [](const auto&) { return "link"; });

}  // namespace
}  // namespace monarch::testing
