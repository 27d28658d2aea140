// Sessions over TCP whose data is spread over several connections: what goes wrong with some of them, or between them.
#include <errno.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "monarch/base/clock.h"
#include "monarch/base/log.h"
#include "monarch/base/system.h"
#include "monarch/net/tcp/stripe_reader.h"
#include "monarch/net/tcp/tcp_link.h"
#include "monarch/net/tls/credentials.h"
#include "monarch/testing/tcp_pair.h"
#include "monarch/testing/tcp_session.h"

namespace monarch::testing {
namespace {

constexpr int kStripes = 3;
constexpr size_t kLarge = 12 << 20;

class TcpStripes : public TcpSessionTest {
 protected:
  static TcpTransport::Options options(int64_t silence_ns = 20 * kSecond) {
    TcpTransport::Options options = options_with(60 * kSecond, silence_ns);
    options.stripes = kStripes;
    return options;
  }
  // Connected, but not striped.
  void begin(const TcpTransport::Options& options) {
    start(options);
    dial();
    send_one(*a_->link, 0, 10);
    ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 1; }));
    b_->sink.take();
  }
  // Large enough to be striped, by all of them.
  void begin_striped(const TcpTransport::Options& options) {
    begin(options);
    const std::vector<std::byte> bytes = pattern(kLarge, 1);
    for (int i = 0; i < 50 && !all_have(1 << 20); ++i) {
      send_large(*a_->link, bytes);
      ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 1; }));
      b_->sink.take();
    }
    ASSERT_TRUE(all_have(1 << 20));
  }
  bool all_have(uint64_t bytes) {
    const auto each = proxy_->bytes_of_each();
    return each.size() == 1 + kStripes &&
           std::all_of(each.begin() + 1, each.end(), [&](uint64_t count) { return count >= bytes; });
  }
  static void send_large(Link& link, ByteSpan bytes, uint64_t token = 0) {
    const ByteSpan parts[] = {bytes};
    Outgoing outgoing{FrameHeader{}, bytes.first(100), parts};  // as much as makes it read part by part
    outgoing.header.token = token;
    ASSERT_TRUE(link.send(outgoing));
  }
  // What is sent among each other both ways while `harm` is done comes once, whole and in order.
  template <typename Harm>
  void nothing_is_lost(Harm harm, uint64_t count = 6) {
    const std::vector<std::byte> bytes = pattern(kLarge, 2);
    for (uint64_t i = 0; i < count; ++i) {
      for (Link* from : {a_->link.get(), b_->present().get()}) {
        if (i % 2 == 0) {
          send_large(*from, bytes, i);
        } else {
          send_one(*from, i, 100 * i);
        }
      }
    }
    harm();
    ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == count && a_->sink.frames() == count; }));
    for (TcpProcess* process : {a_.get(), b_.get()}) {
      const auto frames = process->sink.take();
      for (uint64_t i = 0; i < count; ++i) {
        ASSERT_EQ(frames[i]->header.token, i);
        if (i % 2 != 0) {
          ASSERT_EQ(frames[i]->body.size(), 100 * i);
          continue;
        }
        ASSERT_EQ(frames[i]->parts.size(), 1u);
        ASSERT_TRUE(same({frames[i]->parts[0].data, frames[i]->parts[0].size}, bytes)) << i;
      }
      EXPECT_FALSE(process->sink.closed());
    }
    EXPECT_EQ(b_->sessions, 1) << "it is one session";
  }
  bool wait_for_bytes(uint64_t more) {
    const uint64_t until = proxy_->bytes() + more;
    return wait_until([&] { return proxy_->bytes() >= until; });
  }
};

TEST_F(TcpStripes, WhatIsSmallHasOneConnection) {
  begin(options());
  flood(*a_->link, 500, 9000);
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 500; }));
  EXPECT_EQ(proxy_->connections(), 1);
}

// Each connection has but so much of the network, as in clouds.
TEST_F(TcpStripes, WhatIsLargeIsSpreadOverAllWhoeverSendsIt) {
  for (const bool back : {false, true}) {
    SCOPED_TRACE(back ? "from the one that was dialled" : "from the dialer");
    begin(options());
    proxy_->limit_each(30 << 20);
    const std::vector<std::byte> bytes = pattern(3 * kLarge, 3);
    send_large(back ? *b_->present() : *a_->link, bytes, 7);
    RecordingSink& sink = back ? a_->sink : b_->sink;
    ASSERT_TRUE(wait_until([&] { return sink.frames() == 1; }));
    const auto frames = sink.take();
    EXPECT_TRUE(same({frames[0]->parts[0].data, frames[0]->parts[0].size}, bytes));
    ASSERT_EQ(proxy_->connections(), 1 + kStripes);
    const auto each = proxy_->bytes_of_each();
    EXPECT_LT(*std::max_element(each.begin(), each.end()), bytes.size() * 3 / 5) << "what one alone would take";
  }
}

TEST_F(TcpStripes, WithTlsNothingIsLostEither) {
  TcpTransport::Options secret = options();
  secret.tls = TlsContext::make(Authority::make().value().issue("both").value()).value();
  begin_striped(secret);
  nothing_is_lost([] {});
  nothing_is_lost([&] { proxy_->cut(); });
}

TEST_F(TcpStripes, OneThatBreaksCostsNothing) {
  for (int connection = 0; connection <= kStripes; ++connection) {
    begin_striped(options());
    proxy_->limit_each(200 << 20);
    nothing_is_lost([&] {
      ASSERT_TRUE(wait_for_bytes(5 << 20));
      proxy_->cut_one(connection, connection % 2 == 1);
    });
    ASSERT_TRUE(wait_until([&] { return proxy_->connections() > 1 + kStripes; }));  // all may have come before the harm
    EXPECT_EQ(proxy_->connections(), 1 + kStripes + 1) << "for a minute it does without";
  }
}

TEST_F(TcpStripes, WhereverAllOfThemBreakNothingIsLost) {
  const uint64_t step = static_cast<uint64_t>(rounds(3'111'111, 12'345'678));
  for (uint64_t bytes = 1; bytes < 60'000'000; bytes += step) {
    begin(options());
    nothing_is_lost([&] { proxy_->cut_after(bytes); });
  }
}

TEST_F(TcpStripes, OneThatIsSilentIsNoticedAndCostsNothing) {
  begin_striped(options(kSecond / 2));
  proxy_->hold_one(2);
  nothing_is_lost([] {});
  EXPECT_GT(a_->carriers(), 1u);
}

// Firewalls forget connections on which nothing is said.
TEST_F(TcpStripes, OnAllOfThemSomethingIsSaidWhileThereIsNothingToSend) {
  begin_striped(options(2 * kSecond));
  const auto before = proxy_->bytes_of_each();
  const auto has_more = [&] {
    const auto each = proxy_->bytes_of_each();
    for (size_t i = 0; i < each.size(); ++i) {
      if (each[i] < before[i] + 12 * kStripeHeader) return false;
    }
    return true;
  };
  ASSERT_TRUE(wait_until(has_more));
  EXPECT_EQ(a_->carriers(), 1u);
}

TEST_F(TcpStripes, OneThatFallsSilentThenIsNoticedBeforeItIsNeeded) {
  for (int connection = 1; connection <= kStripes; ++connection) {
    begin_striped(options(kSecond / 2));
    proxy_->hold_one(connection);
    ASSERT_TRUE(wait_until([&] { return a_->carriers() > 1; }));
    nothing_is_lost([] {});
  }
}

TEST_F(TcpStripes, WhatIsSmallGetsThroughThoughAllOfThemAreSilent) {
  begin_striped(options(kSecond / 2));
  for (int i = 1; i <= kStripes; ++i) proxy_->hold_one(i);
  send_one(*a_->link, 1, 10);
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 1; }));
}

// Nothing of the data gets through, and control does.
TEST_F(TcpStripes, ControlWaitsForNoData) {
  begin_striped(options());
  for (int i = 1; i <= kStripes; ++i) proxy_->hold_one(i);
  send_large(*a_->link, pattern(kLarge, 4));
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(a_->link->send_control(Outgoing{FrameHeader{}, {}, {}}));
  ASSERT_TRUE(wait_until([&] { return b_->sink.controls() == 10; }));
  EXPECT_EQ(b_->sink.frames(), 0u);
  EXPECT_EQ(a_->carriers(), 1u);
}

TEST_F(TcpStripes, WhoClosesItIsHeardBehindAllThatItHasSent) {
  begin_striped(options());
  proxy_->limit_each(30 << 20);  // the end of the first comes long before that of the others
  send_large(*a_->link, pattern(kLarge, 5));
  send_one(*a_->link, 1, 10);
  ASSERT_TRUE(wait_until([&] { return a_->link->backlog() == 0; }));
  a_->link->close();
  ASSERT_TRUE(wait_until([&] { return b_->sink.closed(); }));
  EXPECT_EQ(b_->sink.frames(), 2u);
}

TEST_F(TcpStripes, WhereThereIsNoRoomForMoreConnectionsItDoesWithout) {
  begin(options());
  proxy_->close_port();
  nothing_is_lost([] {});
  EXPECT_EQ(proxy_->connections(), 1);
  EXPECT_EQ(a_->carriers(), 1u);
}

// So many that each needs one could be had, and nothing would be left.
class FewDescriptors {
 public:
  FewDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const UniqueFd next(dup(0));
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(next.get()) + sys::kSpareDescriptors / 2;
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(TcpStripes, WhereDescriptorsAreFewItDoesWithout) {
  begin(options());
  const FewDescriptors few;
  nothing_is_lost([] {});
  EXPECT_EQ(proxy_->connections(), 1);
}

TEST_F(TcpStripes, TheirConnectionsGoWithTheSession) {
  begin_striped(options());
  EXPECT_TRUE(wait_until([&] { return a_->connector->carriers() == 1; }));
  EXPECT_TRUE(wait_until([&] { return b_->connector->carriers() == 1; }));
  a_->link->close();
  EXPECT_TRUE(wait_until([&] { return b_->sink.closed(); }));
}

TEST(StripeCount, IsANumberOrWhatIsNeeded) {
  EXPECT_EQ(TcpLink::stripes_from(nullptr), TcpLink::kAsNeeded);
  EXPECT_EQ(TcpLink::stripes_from("0"), 0);
  EXPECT_EQ(TcpLink::stripes_from("16"), 16);
  for (const char* text : {"", "-1", "17", "4x", " 4", "99999999999999"}) EXPECT_FALSE(TcpLink::stripes_from(text)) << text;
}

// ---- Who says what makes no sense ----

// Takes so much and no more, or fails; has input that cannot be read yet.
class OddChannel final : public SocketChannel {
 public:
  struct Oddities {
    std::atomic<bool> fails{false}, has_input{false};
    std::atomic<size_t> room{SIZE_MAX}, reads{0};
  };
  OddChannel(UniqueFd socket, Oddities& odd) : SocketChannel(std::move(socket)), odd_(odd) {}
  ssize_t write(std::span<const iovec> pieces) override {
    if (odd_.fails) return errno = EPIPE, -1;
    if (odd_.room == 0) return errno = EAGAIN, -1;
    iovec first = pieces[0];
    first.iov_len = std::min<size_t>(first.iov_len, odd_.room);
    const ssize_t count = SocketChannel::write({&first, 1});
    if (count > 0) odd_.room -= static_cast<size_t>(count);
    return count;
  }
  ssize_t read(std::span<const iovec> into) override {
    ++odd_.reads;
    return SocketChannel::read(into);
  }
  bool is_drained() const override { return false; }
  bool has_input() const override { return odd_.has_input; }

 private:
  Oddities& odd_;
};

class StripeWords : public ::testing::Test {
 protected:
  StripeWords() : link_(std::make_shared<TcpLink>(home_.reactor, sink_, 1, 0)) {
    UniqueFd pair[2];
    make_tcp_pair(pair);
    link_->start(std::make_unique<SocketChannel>(std::move(pair[0])));
    peer_ = std::move(pair[1]);
  }
  ~StripeWords() override {
    link_->close();
    home_.reactor.stop();
  }
  void say(ByteSpan bytes) { say_on(peer_, bytes); }
  static void say_on(const UniqueFd& socket, ByteSpan bytes) {
    while (!bytes.empty()) {
      const ssize_t count = write(socket.get(), bytes.data(), bytes.size());
      ASSERT_GT(count, 0);
      bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }
  // The other end of a stripe of the link.
  UniqueFd add_stripe() {
    UniqueFd pair[2];
    make_tcp_pair(pair);
    add_stripe(std::make_unique<SocketChannel>(std::move(pair[0])), pair[1]);
    return std::move(pair[1]);
  }
  void add_stripe(std::unique_ptr<Channel> channel, const UniqueFd& peer) {
    const size_t before = link_->stripe_count();
    const auto stripe = std::make_shared<TcpLink>(home_.reactor, sink_, 1, 0);
    EXPECT_TRUE(stripe->become_stripe_of(link_));
    stripe->start(std::move(channel));
    say_on(peer, encode_chunk(ChunkLane::kStripe, 0));
    EXPECT_TRUE(drive_until(*home_.driver, [&] { return stripe->over() && link_->stripe_count() == before + 1; }));
  }
  static std::vector<std::byte> numbered(uint64_t number, size_t body_size) {
    const std::vector<std::byte> body(body_size, std::byte{7});
    Outgoing outgoing{FrameHeader{}, body, {}};
    outgoing.header.token = number;
    const std::vector<std::byte> record = encode_to_vector(outgoing);
    const StripeHeader header = encode_stripe_chunk(static_cast<uint32_t>(record.size()), number);
    std::vector<std::byte> bytes(header.begin(), header.end());
    bytes.insert(bytes.end(), record.begin(), record.end());
    return bytes;
  }
  void expect_malformed() {
    ASSERT_TRUE(drive_until(*home_.driver, [&] { return sink_.closed(); }));
    EXPECT_EQ(sink_.why().code, ErrorCode::kMalformed) << sink_.why().message;
  }

  OddChannel::Oddities odd_, odd_stripe_;  // outlive all links
  Home home_;
  RecordingSink sink_;
  std::shared_ptr<TcpLink> link_;
  UniqueFd peer_;
};

TEST_F(StripeWords, OfALinkThatIsToBeNoStripe) {
  say(encode_chunk(ChunkLane::kStripe, 0));
  expect_malformed();
}

TEST_F(StripeWords, DataBehindTheWordThatItComesElsewhere) {
  say(encode_chunk(ChunkLane::kStriped, 0));
  say(encode_chunk(ChunkLane::kData, 10));
  expect_malformed();
}

TEST_F(StripeWords, TheSameWordTwice) {
  say(encode_chunk(ChunkLane::kStriped, 0));
  say(encode_chunk(ChunkLane::kStriped, 0));
  expect_malformed();
}

TEST_F(StripeWords, OfChunksThatCannotBe) {
  const UniqueFd stripe = add_stripe();
  say_on(stripe, encode_stripe_chunk(kStripeChunkMax + 1, 0));
  expect_malformed();
}

// Else each of its chunks would need the way once more when its turn comes.
TEST_F(StripeWords, WhatIsNotInTurnHasComeAlready) {
  const UniqueFd first = add_stripe(), second = add_stripe();
  say(encode_chunk(ChunkLane::kStriped, 0));
  std::vector<std::byte> early;
  for (uint64_t number = 1; number <= 4; ++number) {
    const std::vector<std::byte> chunk = numbered(number, 250 << 10);
    early.insert(early.end(), chunk.begin(), chunk.end());
  }
  say_on(second, early);
  ASSERT_TRUE(drive_until(*home_.driver, [&] {
    int unacknowledged = 0;
    MONARCH_CHECK(ioctl(second.get(), SIOCOUTQ, &unacknowledged) == 0);
    return unacknowledged == 0;
  }));
  say_on(first, numbered(0, 100));
  ASSERT_TRUE(drive_until(*home_.driver, [&] { return sink_.frames() == 5; }));
}

TEST_F(StripeWords, AreNotAnsweredWhereDescriptorsAreFew) {
  UniqueFd pair[2];
  make_tcp_pair(pair);
  RecordingSink sink;
  const auto stripe = std::make_shared<TcpLink>(home_.reactor, sink, 1, 0);
  stripe->start(std::make_unique<SocketChannel>(std::move(pair[0])));
  {
    const FewDescriptors few;
    EXPECT_FALSE(stripe->become_stripe_of(link_));
  }
  EXPECT_TRUE(stripe->become_stripe_of(link_));
  stripe->close();
}

TEST_F(StripeWords, OfALinkThatIsNotWantedAsOneAreNoMistake) {
  UniqueFd pair[2];
  make_tcp_pair(pair);
  RecordingSink sink;
  const auto stripe = std::make_shared<TcpLink>(home_.reactor, sink, 1, 0);
  EXPECT_FALSE(stripe->become_stripe_of(nullptr));
  stripe->start(std::make_unique<SocketChannel>(std::move(pair[0])));
  ::testing::internal::CaptureStderr();
  say_on(pair[1], encode_chunk(ChunkLane::kStripe, 0));
  home_.reactor.post_and_wait([] {});
  home_.reactor.post_and_wait([] {});
  stripe->close();
  flush_log();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// ---- The end of one, and what has come by others ----

class StripeEnds : public StripeWords {
 protected:
  void expect_frames(size_t count) {
    ASSERT_TRUE(drive_until(*home_.driver, [&] { return sink_.closed(); }));
    EXPECT_EQ(sink_.frames(), count);
  }
};

TEST_F(StripeEnds, WhoHasDiedIsHeardHoweverMuchHasComeBefore) {
  const UniqueFd stripe = add_stripe();
  say(encode_chunk(ChunkLane::kStriped, 0));
  uint64_t number = 0;
  for (; number < 260; ++number) {
    say_on(stripe, numbered(number, (1 << 20) - 1000));
    ASSERT_TRUE(drive_until(*home_.driver, [&] { return sink_.frames() == 1; }));
    sink_.take();
  }
  home_.reactor.post_and_wait([&] {
    say_on(stripe, numbered(number, 100));
    link_->peer_died({ErrorCode::kClosed, "it was killed"});
  });
  expect_frames(1);
}

TEST_F(StripeEnds, OneThatIsResetTakesNothingAlongThatOthersHaveBrought) {
  UniqueFd first = add_stripe(), second = add_stripe();
  say(encode_chunk(ChunkLane::kStriped, 0));
  const linger at_once{1, 0};
  setsockopt(first.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  home_.reactor.post_and_wait([&] {
    first.reset();
    say_on(second, numbered(0, 100));
  });
  expect_frames(1);
}

TEST_F(StripeEnds, InTheMiddleOfAChunkIsToldAtOnce) {
  UniqueFd first = add_stripe(), second = add_stripe();
  say(encode_chunk(ChunkLane::kStriped, 0));
  const auto whole = numbered(0, 100);
  say_on(first, ByteSpan(whole).first(50));
  say_on(second, numbered(1, 100));
  const int64_t begin_ns = monotonic_ns();
  first.reset();
  second.reset();
  peer_.reset();
  expect_frames(0);
  EXPECT_LT(monotonic_ns() - begin_ns, kSecond * 3 / 2) << "2 s is how long more is waited for";
}

TEST_F(StripeEnds, HalfOfWhatAChannelHasIsWaitedForInPeace) {
  UniqueFd pair[2];
  make_tcp_pair(pair);
  add_stripe(std::make_unique<OddChannel>(std::move(pair[0]), odd_), pair[1]);
  say(encode_chunk(ChunkLane::kStriped, 0));
  odd_.has_input = true;
  say_on(pair[1], numbered(0, 100));
  ASSERT_TRUE(drive_until(*home_.driver, [&] { return sink_.frames() == 1; }));
  const size_t before = odd_.reads;
  for (int i = 0; i < 100; ++i) home_.reactor.post_and_wait([] {});
  EXPECT_LT(odd_.reads - before, 10u);
}

// Half of a chunk stands on it, and what is written next would be taken for the other half.
TEST_F(StripeEnds, OfOneThatCannotBeWrittenToNothingMoreIsWritten) {
  UniqueFd main[2], pair[2];
  make_tcp_pair(main);
  make_tcp_pair(pair);
  link_->close();
  link_ = std::make_shared<TcpLink>(home_.reactor, sink_, 1, 0);
  auto first = std::make_unique<OddChannel>(std::move(main[0]), odd_);
  auto stripe = std::make_unique<OddChannel>(std::move(pair[0]), odd_stripe_);
  odd_.room = 100;
  link_->start(std::move(first));
  const std::vector<std::byte> body(5000, std::byte{1});
  ASSERT_TRUE(link_->send(Outgoing{FrameHeader{}, body, {}}));
  add_stripe(std::move(stripe), pair[1]);
  odd_stripe_.fails = true;
  home_.reactor.post_and_wait([&] {
    link_->send(Outgoing{FrameHeader{}, body, {}});
    odd_.room = SIZE_MAX;
    link_->send_control(Outgoing{FrameHeader{}, {}, {}});
  });
  ASSERT_TRUE(drive_until(*home_.driver, [&] { return sink_.closed(); }));
  std::byte got[4096];
  EXPECT_EQ(recv(main[1].get(), got, sizeof got, MSG_DONTWAIT), 100);
}

}  // namespace
}  // namespace monarch::testing
