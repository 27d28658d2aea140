// Sessions over TCP whose data is spread over several connections: what goes wrong with some of them, or between them.
#include <algorithm>
#include <string>

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
    proxy_->limit_each(60 << 20);
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
  nothing_is_lost([&] { proxy_->hold_one(2); });
  EXPECT_GT(a_->carriers(), 1u);
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
  void say(ByteSpan bytes) {
    ASSERT_EQ(write(peer_.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  void expect_malformed() {
    ASSERT_TRUE(drive_until(*home_.driver, [&] { return sink_.closed(); }));
    EXPECT_EQ(sink_.why().code, ErrorCode::kMalformed) << sink_.why().message;
  }

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
  UniqueFd pair[2];
  make_tcp_pair(pair);
  const auto stripe = std::make_shared<TcpLink>(home_.reactor, sink_, 1, 0);
  ASSERT_TRUE(stripe->become_stripe_of(link_));
  stripe->start(std::make_unique<SocketChannel>(std::move(pair[0])));
  const ChunkHeader word = encode_chunk(ChunkLane::kStripe, 0);
  ASSERT_EQ(write(pair[1].get(), word.data(), word.size()), 8);
  ASSERT_TRUE(drive_until(*home_.driver, [&] { return stripe->over() && link_->stripe_count() == 1; }));
  const StripeHeader header = encode_stripe_chunk(kStripeChunkMax + 1, 0);
  ASSERT_EQ(write(pair[1].get(), header.data(), header.size()), 16);
  expect_malformed();
}

}  // namespace
}  // namespace monarch::testing
