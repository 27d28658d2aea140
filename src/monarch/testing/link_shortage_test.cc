// Links that are short of something here: descriptors, shared memory, a peer that is not connected yet. Nothing is lost,
// nobody is declared dead, and what waits is counted.
#include <sys/resource.h>
#include <sys/socket.h>

#include <latch>
#include <thread>

#include "monarch/base/system.h"
#include "monarch/net/unix/unix_link.h"
#include "monarch/testing/link_suite.h"

namespace monarch::testing {
namespace {

constexpr NodeId kA = 0xa1, kB = 0xb1;

// Two ends over shared memory, made and connected apart.
struct ShmEnds {
  ~ShmEnds() {
    a->close();
    b->close();
    home_a.reactor.stop();
    home_b.reactor.stop();
    sink_b.take();
  }
  void connect() {
    UniqueFd rings = make_shared_memory("test-ring", sizeof(RingPair)).value();
    int pair[2];
    MONARCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    auto map = [&] { return map_shared_memory(rings.get(), sizeof(RingPair)).value(); };
    a->start({kB, 0, map(), home_b.peer_bell(), UniqueFd(pair[0])});
    b->start({kA, 1, map(), home_a.peer_bell(), UniqueFd(pair[1])});
  }
  bool wait_until(const std::function<bool()>& ready) { return drive_until(*home_b.driver, ready); }

  Home home_a, home_b;
  RecordingSink sink_a, sink_b;
  std::shared_ptr<ShmLink> a = std::make_shared<ShmLink>(home_a.context(), sink_a, kB);
  std::shared_ptr<ShmLink> b = std::make_shared<ShmLink>(home_b.context(), sink_b, kA);
};

Outgoing numbered(uint64_t number, std::span<const ByteSpan> parts) {
  Outgoing outgoing{FrameHeader{}, {}, parts};
  outgoing.header.token = number;
  return outgoing;
}

Outgoing ping() {
  Outgoing outgoing{FrameHeader{}, {}, {}};
  outgoing.header.kind = FrameKind::kPing;
  return outgoing;
}

// While it lives this process gets no further descriptor.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(UniqueFd(dup(0)).get());  // the lowest that is free
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_;
};

// The peer's end is complete first, and it floods: what it sends is read as soon as this end can be polled.
TEST(LinkStart, MayBeOvertakenByWhatItsPeerSends) {
  for (int round = 0; round < rounds(400, 40); ++round) {
    ShmEnds ends;
    std::atomic<bool> stop{false};
    const std::vector<std::byte> bytes(100'000, std::byte{3});
    const ByteSpan part(bytes);
    std::thread sender([&] {
      while (!stop) {
        if (ends.a->backlog() == 0) static_cast<void>(ends.a->send(numbered(0, {&part, 1})));
      }
    });
    std::thread poller([&] {
      while (!stop) ends.home_b.driver->poll_once();
    });
    ends.connect();
    EXPECT_TRUE(ends.wait_until([&] { return ends.sink_b.frames() >= 1 || ends.sink_b.closed(); }));
    stop = true;
    sender.join();
    poller.join();
    ASSERT_FALSE(ends.sink_b.closed()) << ends.sink_b.why().message << " in round " << round;
  }
}

// Nobody polls at the sender, whose reactor answers the bell.
TEST(LinkReleases, AnIdleSenderHearsOfWhatItHasBack) {
  ShmEnds ends;
  ends.connect();
  const std::vector<std::byte> bytes(8 << 20, std::byte{3});
  const ByteSpan part(bytes);
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(ends.a->send(numbered(0, {&part, 1})));
    ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.frames() == 1; }));
    auto held = [&] { return ends.home_a.arena->bytes_held(); };
    ASSERT_EQ(held(), bytes.size());
    ends.sink_b.take();
    const int64_t limit_ns = monotonic_ns() + 20'000'000'000;
    while (held() != 0 && monotonic_ns() < limit_ns) ends.home_b.reactor.post_and_wait([] {});
    EXPECT_EQ(held(), 0u);
  }
}

// What a gateway has read to its arena goes on from there.
TEST(LinkReleases, WhatLiesInTheArenaIsLentAndNotCopied) {
  ShmEnds ends;
  ends.connect();
  std::shared_ptr<std::byte> memory = ends.home_a.arena->memory(500'000);
  std::memset(memory.get(), 7, 500'000);
  const ByteSpan parts[] = {{memory.get(), 500'000}};
  const uint64_t held = ends.home_a.arena->bytes_held();
  ASSERT_TRUE(ends.a->send_kept(numbered(0, parts), memory));
  EXPECT_EQ(ends.home_a.arena->bytes_held(), held);
  ASSERT_TRUE(ends.a->send(numbered(1, parts)));  // who does not keep it may change it
  EXPECT_GT(ends.home_a.arena->bytes_held(), held);
  ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.frames() == 2; }));
  auto frames = ends.sink_b.take();
  for (const Part& part : frames[0]->parts) EXPECT_EQ(part.data[part.size - 1], std::byte{7});
  frames[0]->parts[0].data[0] = std::byte{9};  // it is the receiver's now
  EXPECT_EQ(memory.get()[0], std::byte{9});
  EXPECT_EQ(frames[1]->parts[0].data[0], std::byte{7});
  memory.reset();
  const auto falls_to = [&](uint64_t bytes) {
    const int64_t limit_ns = monotonic_ns() + 20'000'000'000;
    while (ends.home_a.arena->bytes_held() > bytes && monotonic_ns() < limit_ns) {
      static_cast<void>(ends.b->send(numbered(2, {})));  // what has been done with goes back with it
      ends.home_a.driver->poll_once();
    }
    return ends.home_a.arena->bytes_held() <= bytes;
  };
  frames.pop_back();
  EXPECT_TRUE(falls_to(held));
  EXPECT_EQ(ends.home_a.arena->bytes_held(), held) << "the receiver has it";
  frames.clear();
  EXPECT_TRUE(falls_to(0));
}

// Any one of the calls that a large message makes for the first time, on either side.
TEST(LinkShortage, ACallThatFailsOnceLosesNothing) {
  const std::vector<std::byte> bytes(100'000, std::byte{3});
  const ByteSpan part(bytes);
  for (uint64_t nth = 1;; ++nth) {
    ASSERT_LT(nth, 50u);
    ShmEnds ends;
    ends.connect();
    ends.a->send(numbered(0, {}));
    ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.frames() == 1; }));
    sys::fail_nth(nth);
    for (uint64_t i = 1; i <= 5; ++i) ASSERT_TRUE(ends.a->send(numbered(i, {&part, 1})));
    ASSERT_TRUE(ends.a->send_control(ping()));
    const bool arrived = ends.wait_until([&] { return ends.sink_b.frames() == 6 && ends.sink_b.controls() == 1; });
    const uint64_t calls = sys::calls_seen();
    sys::fail_nth(0);
    ASSERT_TRUE(arrived) << nth;
    const auto frames = ends.sink_b.take();
    for (uint64_t i = 1; i <= 5; ++i) {
      ASSERT_EQ(frames[i]->header.token, i);
      ASSERT_EQ(frames[i]->parts[0].data[99'999], std::byte{3});
    }
    ASSERT_FALSE(ends.sink_a.closed() || ends.sink_b.closed()) << nth;
    if (calls < nth) break;  // all of them have failed once
  }
}

// Its descriptor has waited in a control lane that was full, and nothing else that is frozen is sent afterwards.
TEST(LinkReleases, FrozenMemoryIsKeptNoLongerThanItsDescriptorWaits) {
  ShmEnds ends;
  ends.connect();
  std::latch go(1);
  ends.home_b.reactor.post([&] { go.wait(); });
  constexpr size_t kPings = 30'000;
  for (size_t i = 0; i < kPings; ++i) ASSERT_TRUE(ends.a->send_control(ping()));
  auto memory = Freezable::make(kArenaPartMin).value();
  ASSERT_TRUE(memory->freeze().ok());
  const std::weak_ptr<Freezable> seen = memory;
  const ByteSpan part(memory->data(), kArenaPartMin);
  ASSERT_TRUE(ends.a->send(numbered(0, {&part, 1})));
  memory.reset();
  EXPECT_FALSE(seen.expired());
  go.count_down();
  ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.frames() == 1 && ends.sink_b.controls() == kPings; }));
  EXPECT_TRUE(drive_until(*ends.home_a.driver, [&] { return seen.expired(); }));
}

// Behind others, so that it must be queued: there is no memory for that.
TEST(LinkShortage, ARecordThatCannotBeQueuedLendsNothing) {
  const std::vector<std::byte> bytes(1 << 20, std::byte{3});
  const std::vector<ByteSpan> small(12, ByteSpan(bytes).first(15'000));
  std::vector<ByteSpan> parts = small;
  parts.push_back(bytes);
  ShmEnds ends;
  ends.connect();
  uint64_t sent = 0;
  ASSERT_TRUE(ends.a->send(numbered(sent++, parts)));  // the arena has its memory from here on
  ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.frames() == sent; }));
  std::latch stands(1), go(1);
  ends.home_b.reactor.post([&] {
    stands.count_down();
    go.wait();
  });
  stands.wait();
  while (ends.a->backlog() < kRingBytes) ASSERT_TRUE(ends.a->send(numbered(sent++, small)));
  const uint64_t before = ends.a->backlog();
  sys::fail_nth(1);
  EXPECT_THROW(static_cast<void>(ends.a->send(numbered(sent, parts))), std::bad_alloc);
  sys::fail_nth(0);
  EXPECT_EQ(ends.a->backlog(), before);
  go.count_down();
  ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.frames() == sent; }));
  ends.sink_b.take();
  EXPECT_TRUE(drive_until(*ends.home_a.driver, [&] {
    ends.home_b.reactor.post_and_wait([] {});
    return ends.home_a.arena->bytes_held() == 0 && ends.a->backlog() == 0;
  }));
}

TEST(LinkShortage, WithoutDescriptorsALargeMessageWaitsAndControlGoesOn) {
  ShmEnds ends;
  ends.connect();
  const std::vector<std::byte> bytes(1 << 20, std::byte{3});
  const ByteSpan part(bytes);
  ends.a->send(numbered(0, {}));
  ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.frames() == 1; }));
  ends.home_a.arena->release(ends.home_a.arena->allocate(1)->key());  // the sender has its segment
  {
    NoDescriptors none;
    for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(ends.a->send(numbered(i, {&part, 1})));
    for (size_t i = 1; i <= 3; ++i) {
      ASSERT_TRUE(ends.a->send_control(ping()));
      ASSERT_TRUE(ends.b->send_control(ping()));
      ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.controls() == i && ends.sink_a.controls() == i; }));
    }
    // It has asked again, more than once.
    const int64_t until_ns = monotonic_ns() + 100'000'000;
    drive_until(*ends.home_b.driver, [&] { return monotonic_ns() > until_ns; });
    EXPECT_EQ(ends.sink_b.frames(), 1u);
    EXPECT_FALSE(ends.sink_a.closed() || ends.sink_b.closed());
  }
  ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.frames() == 4; }));
  const auto frames = ends.sink_b.take();
  for (uint64_t i = 1; i <= 3; ++i) {
    EXPECT_EQ(frames[i]->header.token, i);
    EXPECT_EQ(frames[i]->parts[0].data[0], std::byte{3});
  }
  EXPECT_FALSE(ends.sink_a.closed() || ends.sink_b.closed());
}

// One end of a link; the other one is written by hand.
struct RawPeer {
  explicit RawPeer(int64_t room_limit_ns = 30'000'000'000) {
    ShmContext context = home.context();
    context.room_limit_ns = room_limit_ns;
    link = std::make_shared<ShmLink>(context, sink, kA);
    UniqueFd shared = make_shared_memory("test-ring", sizeof(RingPair)).value();
    rings = map_shared_memory(shared.get(), sizeof(RingPair)).value();
    UniqueFd pair[2];
    MONARCH_CHECK(sys::make_socket_pair(AF_UNIX, SOCK_STREAM, pair));
    socket = std::move(pair[0]);
    link->start({kA, 1, map_shared_memory(shared.get(), sizeof(RingPair)).value(), elsewhere.peer_bell(),
                 std::move(pair[1])});
    producer.emplace(static_cast<RingPair*>(rings.get())->rings[0]);
    consumer.emplace(static_cast<RingPair*>(rings.get())->rings[1]);
  }
  ~RawPeer() {
    sink.take();
    link->close();
    home.reactor.stop();
    elsewhere.reactor.stop();
  }
  void say(const Outgoing& outgoing, int fd = -1) {
    std::vector<std::byte> record = encode_to_vector(outgoing);
    iovec iov{record.data(), record.size()};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
    if (fd >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      *header = {CMSG_LEN(sizeof fd), SOL_SOCKET, SCM_RIGHTS};
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    EXPECT_EQ(sendmsg(socket.get(), &message, 0), static_cast<ssize_t>(record.size()));
  }
  void offer(uint32_t segment, int fd) {
    Outgoing outgoing{FrameHeader{}, {}, {}};
    outgoing.header.kind = FrameKind::kSegment;
    outgoing.header.dest = segment;
    say(outgoing, fd);
  }
  // A frame with one part of `size` bytes that lies there.
  void send_part(ArenaLocation at, size_t size) {
    const std::vector<std::byte> bytes(size);
    const ByteSpan part(bytes);
    const uint64_t location = at.pack();
    const auto record = encode_to_vector(Outgoing{FrameHeader{}, {}, {&part, 1}}, {&location, 1});
    producer->put(record.data(), record.size());
    producer->publish();
    ring_bell(home.bell.bell(), producer->consumer_bell(), home.bell.event_fd.get());
  }
  // How many frames the link has sent here, all of one size.
  size_t frames_said() {
    char buffer[4096];
    ssize_t count;
    while ((count = recv(socket.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0) said += static_cast<size_t>(count);
    return said / encode_to_vector(ping()).size();
  }
  bool wait_until(const std::function<bool()>& ready) { return drive_until(*home.driver, ready); }

  Home home, elsewhere;
  RecordingSink sink;
  std::shared_ptr<ShmLink> link;
  Mapping rings;
  UniqueFd socket;
  std::optional<RingProducer> producer;
  std::optional<RingConsumer> consumer;
  size_t said = 0;
};

// The peer may not have answered, since other things waited before it; or twice, since it was slow.
TEST(LinkShortage, AMessageThatWaitsForRoomTooLongIsLostAndTheLinkGoesOn) {
  RawPeer peer(/*room_limit_ns=*/30'000'000);
  const UniqueFd segment = make_shared_memory("test-arena", 1 << 20).value();
  {
    NoDescriptors none;
    peer.offer(0, segment.get());
    peer.send_part({0, false, 4096}, 20'000);
    ASSERT_TRUE(peer.wait_until([&] { return peer.sink.frames() == 1 || peer.sink.closed(); }));
  }
  peer.offer(0, segment.get());
  peer.send_part({0, false, 4096}, 20'000);
  ASSERT_TRUE(peer.wait_until([&] { return peer.sink.frames() == 2 || peer.sink.closed(); }));
  EXPECT_FALSE(peer.sink.closed());
  const auto frames = peer.sink.take();
  EXPECT_EQ(frames[0]->lost_bytes, 20'000u);
  EXPECT_TRUE(frames[0]->parts.empty());
  EXPECT_EQ(frames[1]->lost_bytes, 0u);
  EXPECT_EQ(frames[1]->parts[0].size, 20'000u);
}

TEST(LinkShortage, ALostSegmentIsAskedForUntilItIsThereAndMayComeTwice) {
  RawPeer peer;
  const UniqueFd segment = make_shared_memory("test-arena", 1 << 20).value();
  {
    NoDescriptors none;
    peer.offer(0, segment.get());
    ASSERT_TRUE(peer.wait_until([&] { return peer.frames_said() >= 3; }));
  }
  peer.offer(0, segment.get());
  peer.offer(0, segment.get());
  peer.say(ping());
  ASSERT_TRUE(peer.wait_until([&] { return peer.sink.controls() == 1 || peer.sink.closed(); }));
  peer.send_part({0, false, 4096}, 20'000);
  EXPECT_TRUE(peer.wait_until([&] { return peer.sink.frames() == 1 || peer.sink.closed(); }));
  EXPECT_FALSE(peer.sink.closed());
}

// As in a process with little address space (ulimit -v): what cannot be mapped is read.
TEST(LinkShortage, ASegmentThatCanNeverBeMappedIsRead) {
  RawPeer peer;
  const UniqueFd segment = make_shared_memory("test-arena", size_t{1} << 56).value();
  ASSERT_FALSE(map_shared_memory(segment.get(), 0).ok());
  const std::vector<std::byte> bytes(3'000'000, std::byte{7});
  ASSERT_EQ(pwrite(segment.get(), bytes.data(), bytes.size(), 8192), static_cast<ssize_t>(bytes.size()));
  peer.offer(0, segment.get());
  peer.send_part({0, false, 8192}, bytes.size());
  peer.send_part({0, false, 8191}, 20'000);
  ASSERT_TRUE(peer.wait_until([&] { return peer.sink.frames() == 2; }));
  const auto frames = peer.sink.take();
  ASSERT_EQ(frames[0]->parts[0].size, bytes.size());
  EXPECT_EQ(std::memcmp(frames[0]->parts[0].data, bytes.data(), bytes.size()), 0);
  EXPECT_EQ(frames[1]->parts[0].data[0], std::byte{0});
  EXPECT_EQ(frames[1]->parts[0].data[1], std::byte{7});
  EXPECT_TRUE(peer.wait_until([&] { return peer.consumer->available() != 0; })) << "the slabs come back";
  EXPECT_FALSE(peer.sink.closed());
  EXPECT_EQ(peer.frames_said(), 0u) << "nothing is lost";
}

// It cannot be had any more. What came before it is delivered, and the end is told.
TEST(LinkShortage, APeerThatEndsMeanwhileIsStillSeenToEnd) {
  ShmEnds ends;
  ends.connect();
  const std::vector<std::byte> bytes(1 << 20, std::byte{3});
  const ByteSpan part(bytes);
  ends.a->send(numbered(0, {}));
  ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.frames() == 1; }));
  ends.home_a.arena->release(ends.home_a.arena->allocate(1)->key());
  NoDescriptors none;
  ASSERT_TRUE(ends.a->send(numbered(1, {&part, 1})));
  ASSERT_TRUE(ends.a->send_control(ping()));
  ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.controls() == 1; }));
  ends.a->close();
  ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.closed(); }));
  EXPECT_EQ(ends.sink_b.frames(), 1u);
}

// A link that is not connected yet takes what it is given, both lanes, and says how much waits.
TEST(LinkShortage, WhatWaitsForAConnectionIsCountedAndArrives) {
  const std::vector<std::byte> bytes(3 << 20, std::byte{3});
  const ByteSpan part(bytes);
  {
    ShmEnds ends;
    for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(ends.a->send(numbered(i, {&part, 1})));
    ASSERT_TRUE(ends.a->send_control(ping()));
    EXPECT_GE(ends.a->backlog(), 4 * bytes.size());
    ends.connect();
    ASSERT_TRUE(ends.wait_until([&] { return ends.sink_b.frames() == 4 && ends.sink_b.controls() == 1; }));
    EXPECT_EQ(ends.a->backlog(), 0u);
  }
  Home home_a, home_b;
  RecordingSink sink_a, sink_b;
  auto a = std::make_shared<UnixLink>(home_a.reactor, sink_a, kB);
  auto b = std::make_shared<UnixLink>(home_b.reactor, sink_b, kA);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(a->send(numbered(i, {&part, 1})));
  ASSERT_TRUE(a->send_control(ping()));
  EXPECT_GE(a->backlog(), 4 * bytes.size());
  UniqueFd data[2], control[2];
  ASSERT_TRUE(sys::make_socket_pair(AF_UNIX, SOCK_STREAM, data) && sys::make_socket_pair(AF_UNIX, SOCK_STREAM, control));
  a->start(std::move(data[0]), std::move(control[0]));
  b->start(std::move(data[1]), std::move(control[1]));
  ASSERT_TRUE(drive_until(*home_b.driver, [&] { return sink_b.frames() == 4 && sink_b.controls() == 1; }));
  EXPECT_EQ(a->backlog(), 0u);
  a->close();
  b->close();
  home_a.reactor.stop();
  home_b.reactor.stop();
}

}  // namespace
}  // namespace monarch::testing
