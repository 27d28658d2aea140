// Streams where something goes wrong; that they carry bytes as every other way does, bulk_test.cc tries.
#include "monarch/bulk/stream.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <future>
#include <latch>
#include <thread>

#include "monarch/base/system.h"
#include "monarch/bulk/bulk_frames.h"
#include "monarch/net/greeting.h"
#include "monarch/net/tcp/tcp_channel.h"
#include "monarch/net/tls/tls_channel.h"
#include "monarch/testing/bulk_side.h"
#include "monarch/testing/bytes.h"

namespace monarch::testing {
namespace {

using Code = BulkOutcome::Code;
using Kind = BulkOperation::Kind;

constexpr int64_t kSecond = 1'000'000'000;
constexpr uint64_t kSize = uint64_t{24} << 20;

struct Side : BulkSide {
  explicit Side(const std::string& dialled_at = "127.0.0.1") : BulkSide(Paths{false, false, false}, dialled_at) {}
};

class StreamsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    owner.link_to(other);
    for (uint64_t i = 0; i < kSize; i += 512) data[i] = static_cast<std::byte>(i / 512 % 251);
    handle = owner.bulk->add(Memory(data.data(), kSize), true, nullptr).value();
  }
  ~StreamsTest() override {
    owner.end();
    other.end();
  }
  BulkOutcome run(Kind kind, const BufferHandle& at, const Memory& local, int64_t deadline_ns = kNoDeadline) {
    std::latch done(1);
    BulkOutcome outcome;
    other.bulk->submit({{kind, at, local, nullptr, 0, 0}}, deadline_ns, [&](std::vector<BulkOutcome> all) {
      outcome = std::move(all[0]);
      done.count_down();
    });
    done.wait();
    return outcome;
  }
  void expect_read() {
    std::fill(here.begin(), here.end(), std::byte{255});
    ASSERT_EQ(run(Kind::kRead, handle, Memory(here.data(), kSize)).code, Code::kDone);
    EXPECT_TRUE(same(here, data));
  }
  // Connected: else what is slow to be goes by the link.
  void connect(uint32_t lanes = 1) {
    other.bulk->streams()->use(true, lanes);
    for (uint32_t lane = 0; lane < lanes; ++lane) {
      std::latch done(1);
      other.bulk->streams()->to(owner.node.id(), lane)->explain(kNoDeadline, [&](Way way, const std::string& why) {
        EXPECT_NE(way, Way::kNone) << why;
        done.count_down();
      });
      done.wait();
    }
  }
  std::string explained(Path path) {
    std::string text;
    std::latch done(1);
    other.bulk->explain(handle, kNoDeadline, [&](Path found, const std::string& why) {
      EXPECT_EQ(found, path) << why;
      text = why;
      done.count_down();
    });
    done.wait();
    return text;
  }
  uint16_t door() { return owner.bulk->streams()->open_door({}).port; }

  Side owner, other;
  std::vector<std::byte> data = std::vector<std::byte>(kSize), here = std::vector<std::byte>(kSize);
  BufferHandle handle;
};

// Connected sockets of this process over TCP, of both ends.
std::vector<int> tcp_sockets() {
  std::vector<int> found;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.ss_family == AF_INET) found.push_back(fd);
  }
  return found;
}

UniqueFd connect_to(uint16_t port) {
  UniqueFd socket = sys::make_socket(AF_INET, SOCK_STREAM);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return socket;
}

TEST_F(StreamsTest, WhatIsLargeGoesOverSeveralAtATime) {
  connect(3);
  expect_read();
  EXPECT_EQ(other.bulk->streams()->done(), 3u);
  EXPECT_EQ(tcp_sockets().size(), 6u);
  std::fill(here.begin(), here.end(), std::byte{4});
  ASSERT_EQ(run(Kind::kWrite, handle, Memory(here.data(), kSize)).code, Code::kDone);
  EXPECT_TRUE(same(data, here));
}

TEST_F(StreamsTest, OneThatBreaksIsMadeUpForByTheLinkAndMadeAnew) {
  for (const Kind kind : {Kind::kRead, Kind::kWrite}) {
    for (int round = 0; round < rounds(20, 5); ++round) {
      expect_read();
      std::jthread breaker([&](std::stop_token stop) {
        for (int i = 0; i < round; ++i) sched_yield();
        if (!stop.stop_requested()) {
          for (const int fd : tcp_sockets()) shutdown(fd, SHUT_RDWR);
        }
      });
      std::fill(here.begin(), here.end(), static_cast<std::byte>(round));
      ASSERT_EQ(run(kind, handle, Memory(here.data(), kSize)).code, Code::kDone);
      EXPECT_TRUE(same(here, data));
    }
  }
  expect_read();  // finds one that was broken while it was idle
  connect();
  const uint64_t before = other.bulk->streams()->done();
  expect_read();
  EXPECT_EQ(other.bulk->streams()->done(), before + 1);
}

TEST_F(StreamsTest, BothSidesMustWantItPlain) {
  owner.bulk->streams()->use(false, 1);
  expect_read();
  EXPECT_EQ(other.bulk->streams()->done(), 0u);
  const std::string why = explained(Path::kLink);
  EXPECT_NE(why.find("without TLS"), why.npos) << why;
}

TEST_F(StreamsTest, StrangersAreNotHeardAndHoldNothingUp) {
  connect();
  const uint16_t port = door();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(connect_to(port));
    EXPECT_GT(send(strangers.back().get(), "GET / HTTP/1.0\r\n\r\n", 18, MSG_NOSIGNAL), 0);
  }
  expect_read();
  for (const UniqueFd& each : strangers) {
    char bytes[4096];
    while (recv(each.get(), bytes, sizeof bytes, 0) > 0) {
    }
  }
  expect_read();
}

// A record of TLS that has begun and does not go on.
TEST_F(StreamsTest, AStrangerWhoStopsInTheMiddleIsGivenUpWithoutAnybodySpinning) {
  connect();
  const UniqueFd stranger = connect_to(door());
  const unsigned char part[] = {22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, 1, 2, 3};
  ASSERT_EQ(send(stranger.get(), part, sizeof part, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof part));
  const clock_t before = clock();
  pollfd closed{stranger.get(), POLLIN, 0};
  EXPECT_EQ(poll(&closed, 1, 20'000), 1);
  EXPECT_LT(clock() - before, 2 * CLOCKS_PER_SEC);
}

TEST_F(StreamsTest, NobodyWaitsForWhatSomebodyElseHasAskedFor) {
  connect();
  std::vector<std::byte> word(300'000, std::byte{5}), target(300'000);
  const BufferHandle small = owner.bulk->add(Memory(target.data(), target.size()), true, nullptr).value();
  std::latch done(1);
  other.bulk->submit({{Kind::kRead, handle, Memory(here.data(), kSize), nullptr, 0, 0}}, kNoDeadline,
                     [&](auto) { done.count_down(); });
  EXPECT_EQ(run(Kind::kWrite, small, Memory(word.data(), word.size())).code, Code::kDone);
  done.wait();
  EXPECT_TRUE(same(here, data) && target == word);
  EXPECT_EQ(other.bulk->streams()->idle_lane(owner.node.id()), 0u);
}

TEST_F(StreamsTest, WhoIsNotInUseCostsNoDescriptor) {
  const auto open = [] {
    int count = 0;
    for (int fd = 0; fd < 4096; ++fd) count += fcntl(fd, F_GETFD) != -1;
    return count;
  };
  const int before = open();
  for (uint64_t i = 0; i < 500; ++i) other.bulk->streams()->to(1000 + i);
  EXPECT_EQ(open(), before);
}

// One that belongs to the job, asks for everything, and reads nothing.
// An end of a stream to the owner that nothing but a test sees to.
struct Dialler {
  Dialler(Side& from, Side& to, uint16_t port, bool plain = false) : sockets(from.home.reactor) {
    Identity identity = some_identity();
    UniqueFd socket = connect_to(port);
    prepare_tcp_socket(socket.get(), 10'000);
    std::unique_ptr<Channel> channel = std::make_unique<TcpChannel>(std::move(socket));
    if (!plain) {
      auto tls = TlsContext::of_secret(identity.token, "a test").value();
      channel = std::make_unique<TlsChannel>(std::move(channel), tls, false);
    }
    end = std::make_unique<StreamEnd>(std::move(channel), sockets, never.get(), [] { return kNoDeadline; });
    EXPECT_EQ(end->greet(HelloRole::kDialer, hello_identity(identity), limit_ns).value(), to.node.id());
    const uint64_t number = 5;
    EXPECT_TRUE(end->send(std::as_bytes(std::span(&number, 1)), limit_ns).ok());
  }
  void ask(const StreamRequest& request) {
    ValueWriter value;
    encode(value, request);
    EXPECT_TRUE(send_value(*end, value.written(), limit_ns).ok());
  }
  AnswerBody answer() { return decode<AnswerBody>(receive_value(*end, limit_ns).value()).value(); }

  const int64_t limit_ns = monotonic_ns() + 10 * kSecond;
  StreamSockets sockets;
  const UniqueFd never = sys::make_eventfd();
  std::unique_ptr<StreamEnd> end;
};

TEST_F(StreamsTest, ADropDoesNotWaitForWhoHasStopped) {
  connect();
  Dialler dialler(other, owner, door());
  dialler.ask({static_cast<uint8_t>(Kind::kRead), {handle, 0, kSize, 0, kNoDeadline}, kNoDeadline});
  EXPECT_EQ(dialler.answer().code, static_cast<uint8_t>(Code::kDone));
  std::latch gone(1);
  owner.bulk->submit({{Kind::kDrop, handle, {}, nullptr, 0, 0}}, kNoDeadline, [&](auto) { gone.count_down(); });
  gone.wait();
  std::vector<std::byte> rest(kSize);
  EXPECT_FALSE(dialler.end->receive(rest, dialler.limit_ns).ok()) << "all of it could not be there any more";
}

TEST_F(StreamsTest, WhatHasComeButIsTakenAfterItsDeadlineIsNotWritten) {
  connect();
  Dialler dialler(other, owner, door());
  const auto before = data;
  constexpr uint32_t kLate = 4096;
  ValueWriter value;
  encode(value, StreamRequest{static_cast<uint8_t>(Kind::kWrite), {handle, 0, kLate, 0, kNoDeadline}, 1});
  const auto size = static_cast<uint32_t>(value.written().size());
  std::vector<std::byte> whole(sizeof size + size + kLate, std::byte{252});
  std::memcpy(whole.data(), &size, sizeof size);
  std::ranges::copy(value.written(), whole.begin() + sizeof size);
  ASSERT_TRUE(dialler.end->send(whole, dialler.limit_ns).ok());  // one record: all of it comes at once
  std::vector<std::byte> rest(kSize);
  EXPECT_FALSE(dialler.end->receive(rest, dialler.limit_ns).ok());  // the owner has closed it
  EXPECT_TRUE(same(data, before));
}

TEST_F(StreamsTest, NobodyStartsUcxThereWhoseOwnerLeavesItOut) {
  auto ucx = UcxEnd::make();
  if (!ucx) GTEST_SKIP() << "not run: " << ucx.error().message;
  owner.bulk->streams()->use(false, 1, /*may_use_ucx=*/false);
  other.bulk->streams()->use(false, 1, false);
  expect_read();  // so that the owner has a door
  Dialler dialler(other, owner, door(), /*plain=*/true);
  StreamRequest request;
  request.kind = StreamRequest::kUseUcx;
  request.address = (*ucx)->address().value();
  dialler.ask(request);
  const AnswerBody answer = dialler.answer();
  EXPECT_EQ(answer.code, static_cast<uint8_t>(Code::kNotSo));
  EXPECT_EQ(answer.text, "its owner's: it leaves UCX out");
}

TEST_F(StreamsTest, OneThatCannotBeMadeHoldsNobodyUp) {
  const UniqueFd silent = sys::make_socket(AF_INET, SOCK_STREAM);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(silent.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(silent.get(), 1), 0);
  ASSERT_EQ(getsockname(silent.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  StreamSockets sockets(other.home.reactor);
  auto tls = TlsContext::of_secret(other.identity.token, "a test").value();
  Stream::Hooks hooks;
  hooks.find_address = [](int64_t, auto found) { found({"127.0.0.1", 1, true, ""}); };
  hooks.connect = [&](const StreamAddress&, bool*) -> Result<std::unique_ptr<Channel>> {
    UniqueFd socket = connect_to(ntohs(address.sin_port));
    prepare_tcp_socket(socket.get(), 10'000);
    return std::unique_ptr<Channel>(
        std::make_unique<TlsChannel>(std::make_unique<TcpChannel>(std::move(socket)), tls, false));
  };
  hooks.is_down = [] { return false; };
  hooks.close_there = [](uint64_t, int64_t, auto done) { done({}); };
  const auto stream = std::make_shared<Stream>(owner.node.id(), hello_identity(other.identity), sockets, hooks);
  const auto outcome_of_read = [&](int64_t limit_ns) {
    std::promise<Code> done;
    stream->submit({Kind::kRead, handle, Memory(here.data(), kSize), nullptr, 0, 0}, monotonic_ns() + limit_ns,
                   [&](const BulkOutcome& outcome) { done.set_value(outcome.code); });
    return done.get_future().get();
  };
  EXPECT_EQ(outcome_of_read(kSecond / 20), Code::kDeadline);
  EXPECT_EQ(outcome_of_read(100 * kSecond), Code::kNotSo) << "long before that";
  std::promise<std::string> why;
  stream->explain(kNoDeadline, [&](Way way, const std::string& text) {
    EXPECT_EQ(way, Way::kNone);
    why.set_value(text);
  });
  EXPECT_NE(why.get_future().get(), "");
  const int64_t since_ns = monotonic_ns();
  EXPECT_EQ(outcome_of_read(100 * kSecond), Code::kNotSo);
  EXPECT_LT(monotonic_ns() - since_ns, kSecond / 10) << "nobody waits for it a second time";
  stream->stop();
}

TEST_F(StreamsTest, OnesThatNobodyUsesAreClosedAndMadeAgain) {
  connect();
  expect_read();
  pollfd waits{-1, POLLRDHUP, 0};
  for (const int fd : tcp_sockets()) {
    sockaddr_in here_at{};
    socklen_t size = sizeof here_at;
    getsockname(fd, reinterpret_cast<sockaddr*>(&here_at), &size);
    if (ntohs(here_at.sin_port) == door()) waits.fd = fd;  // the owner's end, which gives up by itself later
  }
  ASSERT_NE(waits.fd, -1);
  EXPECT_EQ(poll(&waits, 1, 9'000), 1);
  connect();
  expect_read();
}

TEST_F(StreamsTest, AForkedChildHoldsNoneOpen) {
  connect();
  ASSERT_EQ(tcp_sockets().size(), 2u);
  const pid_t child = fork();
  if (child == 0) _exit(static_cast<int>(tcp_sockets().size()));
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  expect_read();
}

TEST(StreamsOfNowhere, WhoIsOnNoNetworkSaysSo) {
  Side owner(""), other;
  owner.link_to(other);
  std::byte byte{};
  const BufferHandle handle = owner.bulk->add(Memory(&byte, 1), true, nullptr).value();
  std::promise<std::string> why;
  other.bulk->explain(handle, kNoDeadline, [&](Path path, const std::string& text) {
    EXPECT_EQ(path, Path::kLink);
    why.set_value(text);
  });
  const std::string text = why.get_future().get();
  EXPECT_NE(text.find("tcp: its host is not dialled over a network"), text.npos) << text;
  owner.end();
  other.end();
}

}  // namespace
}  // namespace monarch::testing
