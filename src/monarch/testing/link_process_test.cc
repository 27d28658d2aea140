// What only two processes can show: the other side dies by SIGKILL at any moment, in the middle of whatever it does.
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "monarch/net/tcp/tcp_link.h"
#include "monarch/net/unix/unix_link.h"
#include "monarch/testing/link_suite.h"
#include "monarch/testing/tcp_pair.h"

namespace monarch::testing {
namespace {

constexpr NodeId kParent = 0xa1, kChild = 0xb1;

// The child answers every request with what came, until its link ends.
class EchoSink final : public LinkSink {
 public:
  void on_frame(Link& link, MessagePtr message) override {
    std::vector<ByteSpan> parts;
    for (const Part& part : message->parts) parts.emplace_back(part.data, part.size);
    Outgoing answer{message->header, message->body, parts};
    link.send(answer);
  }
  void on_control(Link& link, MessagePtr message) override {
    Outgoing pong{message->header, message->body, {}};
    link.send_control(pong);
  }
  void on_closed(Link&, const Error&) override { _exit(0); }
};

struct Frame {
  uint64_t number;
  uint64_t size;
};

// Sends numbered frames of all sizes for as long as the link lives.
[[noreturn]] void flood(Link& link) {
  std::vector<std::byte> bytes(300'000, std::byte{0x5a});
  for (uint64_t i = 0;; ++i) {
    const Frame frame{i, i * 7919 % bytes.size()};
    const ByteSpan part(bytes.data(), frame.size);
    Outgoing outgoing{FrameHeader{}, as_byte_span(&frame, sizeof frame), {&part, 1}};
    if (!link.send(outgoing)) _exit(1);
    while (link.backlog() > 4 << 20) sched_yield();
  }
}

enum class Kind { kShm, kUnix, kTcp };

class TwoProcesses {
 public:
  TwoProcesses(Kind kind, bool flooding) {
    OwnBell mine = OwnBell::make().value(), theirs = OwnBell::make().value();
    UniqueFd rings = make_shared_memory("test-ring", sizeof(RingPair)).value();
    int control[2], data[2];
    UniqueFd stream[2];
    make_tcp_pair(stream);
    MONARCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0);
    MONARCH_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, data) == 0);
    child = fork();
    const int side = child == 0 ? 1 : 0;
    ::close(control[1 - side]);
    ::close(data[1 - side]);
    stream[1 - side].reset();
    PeerBell bell{map_shared_memory((side == 0 ? theirs : mine).page_fd.get(), sizeof(BellPage)).value(),
                  UniqueFd(fcntl((side == 0 ? theirs : mine).event_fd.get(), F_DUPFD_CLOEXEC, 3))};
    home = std::make_unique<Home>(std::move(side == 0 ? mine : theirs));
    EchoSink echo;
    LinkSink& link_sink = side == 0 ? static_cast<LinkSink&>(sink) : echo;
    const NodeId peer = side == 0 ? kChild : kParent;
    if (kind == Kind::kShm) {
      auto made = std::make_shared<ShmLink>(home->context(), link_sink, peer);
      made->start({peer, side, map_shared_memory(rings.get(), sizeof(RingPair)).value(), std::move(bell),
                   UniqueFd(control[side])});
      link = made;
      ::close(data[side]);
    } else if (kind == Kind::kTcp) {
      auto made = std::make_shared<TcpLink>(home->reactor, link_sink, peer, 20'000'000'000);
      made->start(std::make_unique<SocketChannel>(std::move(stream[side])));
      link = made;
      ::close(control[side]);
      ::close(data[side]);
    } else {
      auto made = std::make_shared<UnixLink>(home->reactor, link_sink, peer);
      made->start(UniqueFd(data[side]), UniqueFd(control[side]));
      link = made;
    }
    if (side == 1) {
      if (flooding) flood(*link);
      drive_until(*home->driver, [] { return false; }, 60'000'000'000);
      _exit(2);
    }
  }
  ~TwoProcesses() {
    link->close();
    home->reactor.stop();
    ::kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    sink.take();
  }
  bool wait_until(const std::function<bool()>& ready) { return drive_until(*home->driver, ready); }

  RecordingSink sink;
  pid_t child = -1;
  std::unique_ptr<Home> home;
  std::shared_ptr<Link> link;
};

class LinkProcesses : public ::testing::TestWithParam<Kind> {};

TEST_P(LinkProcesses, EchoKeepsOrderAndContent) {
  TwoProcesses two(GetParam(), false);
  std::vector<std::byte> bytes(2 << 20);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 131 >> 3);
  constexpr uint64_t kCount = 600;
  auto size_of = [&](uint64_t i) { return i % 50 == 0 ? bytes.size() : i * 7919 % 60'000; };
  for (uint64_t i = 0; i < kCount; ++i) {
    const ByteSpan part(bytes.data(), size_of(i));
    Outgoing outgoing{FrameHeader{}, as_byte_span(&i, sizeof i), {&part, 1}};
    ASSERT_TRUE(two.link->send(outgoing));
  }
  ASSERT_TRUE(two.wait_until([&] { return two.sink.frames() == kCount; }));
  auto frames = two.sink.take();
  for (uint64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(std::memcmp(frames[i]->body.data(), &i, sizeof i), 0);
    ASSERT_EQ(frames[i]->parts[0].size, size_of(i));
    ASSERT_EQ(std::memcmp(frames[i]->parts[0].data, bytes.data(), size_of(i)), 0);
  }
}

TEST_P(LinkProcesses, AKillAtAnyMomentEndsTheLinkAndHangsNobody) {
  for (int round = 0; round < rounds(60, 12); ++round) {
    TwoProcesses two(GetParam(), round % 2 == 1);
    std::atomic<bool> stop{false};
    std::vector<std::byte> bytes(100'000, std::byte{1});
    std::thread sender([&] {
      const ByteSpan part(bytes.data(), bytes.size() >> (round % 8));
      Outgoing outgoing{FrameHeader{}, {}, {&part, 1}};
      while (!stop && two.link->send(outgoing)) {
        while (two.link->backlog() > 1 << 20 && !two.link->closed() && !stop) sched_yield();
      }
    });
    ASSERT_TRUE(two.wait_until([&] { return two.sink.frames() >= static_cast<size_t>(round); }));
    ::kill(two.child, SIGKILL);
    const bool ended = two.wait_until([&] { return two.sink.closed(); });
    stop = true;
    sender.join();
    ASSERT_TRUE(ended) << "round " << round;
    // What a flooding child had published is whole and in order.
    if (round % 2 == 1) {
      uint64_t next = 0;
      for (const auto& frame : two.sink.take()) {
        Frame head;
        if (frame->body.size() != sizeof head) continue;
        std::memcpy(&head, frame->body.data(), sizeof head);
        ASSERT_EQ(head.number, next++);
        ASSERT_EQ(frame->parts[0].size, head.size);
      }
    }
    two.sink.take();
    EXPECT_EQ(two.home->arena->bytes_held(), 0u) << "slabs lent to the dead";
  }
}

// A stopped process is slow, not dead: nothing fails, and what was sent arrives when it goes on.
TEST_P(LinkProcesses, AStoppedPeerIsOnlySlow) {
  TwoProcesses two(GetParam(), false);
  ::kill(two.child, SIGSTOP);
  std::vector<std::byte> bytes(10'000, std::byte{1});
  Outgoing outgoing{FrameHeader{}, bytes, {}};
  constexpr size_t kCount = 2000;  // more than the kernel keeps for a connection: net.ipv4.tcp_wmem and tcp_rmem, 10 MB
  for (size_t i = 0; i < kCount; ++i) ASSERT_TRUE(two.link->send(outgoing));
  EXPECT_GT(two.link->backlog(), 0u);
  ::kill(two.child, SIGCONT);
  ASSERT_TRUE(two.wait_until([&] { return two.sink.frames() == kCount; }));
  EXPECT_FALSE(two.sink.closed());
}

INSTANTIATE_TEST_SUITE_P(Shm, LinkProcesses, ::testing::Values(Kind::kShm), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(Unix, LinkProcesses, ::testing::Values(Kind::kUnix), [](const auto&) { return "link"; });
INSTANTIATE_TEST_SUITE_P(Tcp, LinkProcesses, ::testing::Values(Kind::kTcp), [](const auto&) { return "link"; });

}  // namespace
}  // namespace monarch::testing
