// Sessions over TCP: two connectors as two processes of one job, with a network between them that misbehaves.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "monarch/base/host_name.h"
#include "monarch/base/log.h"
#include "monarch/base/log_writer.h"
#include "monarch/net/tcp/tcp_channel.h"
#include "monarch/net/tcp/tcp_link.h"
#include "monarch/testing/tcp_pair.h"
#include "monarch/testing/tcp_session.h"

namespace monarch::testing {
namespace {

// Of refused connections the log tells ten within a second, those of other tests among them.
void capture_log() {
  std::this_thread::sleep_for(std::chrono::nanoseconds(LogLimit::kPeriodNs));
  ::testing::internal::CaptureStderr();
}

class TcpSession : public TcpSessionTest {
 protected:
  void flood_through_cuts(const TcpTransport::Options& options, uint64_t count);
  void large_frames_through_short_connections(const TcpTransport::Options& options);
};

// So many messages one way, and a quarter of them back.
void TcpSession::flood_through_cuts(const TcpTransport::Options& options, uint64_t count) {
  start(options);
  dial();
  const uint64_t back_count = count / 4;
  std::thread there([&] { flood(*a_->link, count, 9000); });
  std::thread back([&] {
    while (!b_->present()) sched_yield();
    flood(*b_->present(), back_count, 700);
  });
  int cuts = -1;
  const bool all = wait_until([&] {
    // The next is at another byte each time.
    if (proxy_->cuts() != cuts) {
      cuts = proxy_->cuts();
      proxy_->cut_after(400'000 + static_cast<uint64_t>(cuts) * 7'919 % 3'000'000);
    }
    return b_->sink.frames() == count && a_->sink.frames() == back_count;
  });
  there.join();
  back.join();
  ASSERT_TRUE(all);
  expect_in_order(b_->sink, count, 9000);
  expect_in_order(a_->sink, back_count, 700);
  EXPECT_GT(cuts, 5);
  EXPECT_EQ(b_->sessions, 1) << "it is one session";
  EXPECT_FALSE(a_->sink.closed() || b_->sink.closed());
}

TEST_F(TcpSession, LosesNothingHoweverOftenItsConnectionIsCutInAFlood) {
  flood_through_cuts(options_with(60 * kSecond), static_cast<uint64_t>(rounds(20'000, 6'000)));
  EXPECT_TRUE(wait_until([&] { return a_->link->backlog() == 0; }));
  EXPECT_LE(a_->connector->carriers(), 6u);
}

// Of each connection only so much gets through that none of them brings the whole of it.
void TcpSession::large_frames_through_short_connections(const TcpTransport::Options& options) {
  start(options);
  dial();
  send_one(*a_->link, 0, 10);
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 1; }));
  const std::vector<std::byte> bytes = pattern(24 << 20, 1);
  const ByteSpan all(bytes);
  const ByteSpan parts[] = {all.first(10 << 20), all.subspan(10 << 20, 5), all.subspan((10 << 20) + 5)};
  proxy_->cut_always_after(3'000'001);
  for (Link* from : {a_->link.get(), b_->present().get()}) {
    ASSERT_TRUE(from->send(Outgoing{FrameHeader{}, {}, parts}));
    send_one(*from, 7, 10);
  }
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 3 && a_->sink.frames() == 2; }, 20 * kSecond));
  EXPECT_GE(proxy_->cuts(), 16) << "48 MiB in pieces of 3 MB";
  for (TcpProcess* process : {a_.get(), b_.get()}) {
    const auto frames = process->sink.take();
    const auto& large = *frames[frames.size() - 2];
    ASSERT_EQ(large.parts.size(), std::size(parts));
    for (size_t i = 0; i < std::size(parts); ++i) {
      EXPECT_TRUE(same({large.parts[i].data, large.parts[i].size}, parts[i])) << i;
    }
    EXPECT_EQ(frames.back()->header.token, 7u);
    EXPECT_FALSE(process->sink.closed());
  }
  EXPECT_EQ(b_->sessions, 1);
}

TEST_F(TcpSession, AFrameThatIsLargerThanWhatAnyConnectionCarriesGetsThrough) {
  large_frames_through_short_connections(options_with(20 * kSecond));
}

// In the hello, in what follows it, in the first frames: wherever it is cut, all comes once.
TEST_F(TcpSession, LosesNothingWhicheverByteIsTheLastOne) {
  start(options_with(60 * kSecond));
  dial();
  send_one(*a_->link, 0, 100);
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 1; }));
  uint64_t sent = 1;
  const uint64_t step = static_cast<uint64_t>(rounds(7, 41));
  for (uint64_t byte = 1; byte < 1500; byte += step, ++sent) {
    const int cuts = proxy_->cuts();
    proxy_->cut();  // the next one begins with the first byte of a hello
    proxy_->cut_after(byte);
    send_one(*a_->link, sent, 100);
    ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == sent + 1; })) << byte;
    ASSERT_TRUE(wait_until([&] { return proxy_->cuts() > cuts; }));
  }
  const auto frames = b_->sink.take();
  for (uint64_t i = 0; i < sent; ++i) ASSERT_EQ(frames[i]->header.token, i);
  EXPECT_EQ(b_->sessions, 1);
  EXPECT_FALSE(a_->sink.closed() || b_->sink.closed());
}

TEST_F(TcpSession, ANetworkThatIsGoneForAWhileIsNoticedAndNothingIsLost) {
  start(options_with(60 * kSecond, kSecond / 2));
  dial();
  flood(*a_->link, 10, 1000);
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 10; }));
  const uint32_t before = a_->carriers();
  proxy_->hold();
  for (uint64_t i = 10; i < 20; ++i) send_one(*a_->link, i, i % 1000);
  ASSERT_TRUE(wait_until([&] { return a_->carriers() > before; })) << "a silent connection is given up";
  EXPECT_EQ(b_->sink.frames(), 10u);
  proxy_->heal();
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 20; }));
  expect_in_order(b_->sink, 20, 1000);
  EXPECT_EQ(b_->sessions, 1);
  EXPECT_FALSE(a_->sink.closed() || b_->sink.closed());
}

TEST_F(TcpSession, ANetworkThatIsGoneForLongerThanTheLeaseIsADeathForBoth) {
  start(options_with(kSecond, kSecond / 2));
  dial();
  flood(*a_->link, 10, 1000);
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 10; }));
  proxy_->hold();
  ASSERT_TRUE(wait_until([&] { return a_->sink.closed() && b_->sink.closed(); }));
  EXPECT_EQ(a_->sink.why().code, ErrorCode::kClosed);
  EXPECT_EQ(b_->sink.why().code, ErrorCode::kClosed);
  EXPECT_EQ(a_->sink.why().message, "nothing has come from it for 1.5 s (host_lease)");
  // What comes later finds nobody, and is not half of anything.
  proxy_->heal();
  EXPECT_FALSE(a_->link->send(Outgoing{FrameHeader{}, {}, {}}));
  EXPECT_EQ(b_->sink.frames(), 10u);
}

// As long as one that was there, of which nothing is heard.
TEST_F(TcpSession, WhoIsDialledForTheFirstTimeHasTheSilenceAndTheLease) {
  TcpTransport::Options options = options_with(kSecond / 4, kSecond / 2);
  options.dial_ns = kSecond / 8;
  start(options);
  proxy_->hold();
  const int64_t begun_ns = monotonic_ns();
  dial();
  ASSERT_TRUE(wait_until([&] { return a_->sink.closed(); }));
  EXPECT_GE(monotonic_ns() - begun_ns, kSecond * 3 / 4);
  EXPECT_EQ(b_->sessions, 0);
}

TEST_F(TcpSession, ASlowNetworkIsOnlySlow) {
  start(options_with(60 * kSecond, kSecond));
  proxy_->delay(150'000'000);
  dial();
  flood(*a_->link, 200, 9000);
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 200; }));
  expect_in_order(b_->sink, 200, 9000);
  EXPECT_EQ(a_->carriers(), 1u);
}

TEST_F(TcpSession, WhereNobodyListensAnyMoreItEndsAtOnce) {
  start(options_with(600 * kSecond));
  dial();
  flood(*a_->link, 10, 10);
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 10; }));
  proxy_->close_port();
  proxy_->cut();
  ASSERT_TRUE(wait_until([&] { return a_->sink.closed(); }));
  EXPECT_EQ(a_->sink.why().code, ErrorCode::kClosed);
  EXPECT_NE(a_->sink.why().message.find("cannot be reached: Connection refused"), std::string::npos)
      << a_->sink.why().message;
}

TEST_F(TcpSession, WhoClosesItIsHeardBehindAllThatItHasSentWhateverIsStillToBeRead) {
  start(options_with(600 * kSecond));
  dial();
  send_one(*a_->link, 0, 10);
  ASSERT_TRUE(wait_until([&] { return b_->present() != nullptr; }));
  flood(*b_->present(), 300, 9000);  // what a_ has not read when it closes
  flood(*a_->link, 300, 9000);
  ASSERT_TRUE(wait_until([&] { return a_->link->backlog() == 0; }));
  a_->link->close();
  ASSERT_TRUE(wait_until([&] { return b_->sink.closed(); }));
  EXPECT_EQ(b_->sink.frames(), 301u);
}

// ---- Addresses ----

TEST_F(TcpSession, AllAddressesOfANameAreTriedInTurn) {
  TcpTransport::Options options = options_with(60 * kSecond);
  // At the first nobody listens, at the second somebody takes no connection, and only the third is the one.
  static UniqueFd full;
  full = sys::make_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
  options.look_up = [](const TcpEndpoint& asked) -> Result<std::vector<SocketAddress>> {
    const TcpEndpoint second{"127.0.0.1", SocketAddress::of_socket(full.get()).port()};
    return std::vector{*numeric_address({"127.0.0.3", asked.port}), *numeric_address(second),
                       *numeric_address({"127.0.0.1", asked.port})};
  };
  options.dial_ns = kSecond / 2;
  const SocketAddress any = numeric_address({"127.0.0.1", 0}).value();
  ASSERT_EQ(bind(full.get(), any.get(), any.size), 0);
  ASSERT_EQ(listen(full.get(), 0), 0);
  const SocketAddress there = SocketAddress::of_socket(full.get());
  UniqueFd fills[4];
  for (UniqueFd& one : fills) {
    one = sys::make_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
    static_cast<void>(connect(one.get(), there.get(), there.size));
  }
  start(options);
  const uint16_t port = b_->tcp->place()->dial.port;
  ASSERT_TRUE(a_->tcp->set_place(b_->node, TcpAddress{{"many.example", port}, std::nullopt}).ok());
  dial();
  flood(*a_->link, 10, 10);
  EXPECT_TRUE(wait_until([&] { return b_->sink.frames() == 10; }));
  EXPECT_FALSE(a_->sink.closed());
  EXPECT_GE(a_->carriers(), 3u);
  // Only when none of them is left it is gone.
  full.reset();
  for (UniqueFd& one : fills) one.reset();
  b_->home.reactor.post_and_wait([&] { b_->connector->close(); });
  b_->present()->close();
  EXPECT_TRUE(wait_until([&] { return a_->sink.closed(); }));
}

TEST_F(TcpSession, ItIsGoneWhereNobodyListensAtAnyOfItsAddresses) {
  TcpTransport::Options options = options_with(600 * kSecond);
  options.look_up = [](const TcpEndpoint& asked) -> Result<std::vector<SocketAddress>> {
    return std::vector{*numeric_address({"127.0.0.3", asked.port}), *numeric_address({"127.0.0.4", asked.port})};
  };
  start(options);
  const uint16_t port = b_->tcp->place()->dial.port;
  ASSERT_TRUE(a_->tcp->set_place(b_->node, TcpAddress{{"many.example", port}, std::nullopt}).ok());
  dial();
  ASSERT_TRUE(wait_until([&] { return a_->sink.closed(); }));
  EXPECT_NE(a_->sink.why().message.find("127.0.0."), std::string::npos) << a_->sink.why().message;
  EXPECT_EQ(a_->carriers(), 2u);
}

TEST_F(TcpSession, ANameThatNobodyKnowsIsNamedWhenTheLeaseIsOver) {
  start(options_with(kSecond / 2, kSecond));
  ASSERT_TRUE(a_->tcp->set_place(b_->node, address_of("tcp://no-such-host.invalid:7")).ok());
  dial();
  ASSERT_TRUE(wait_until([&] { return a_->sink.closed(); }));
  EXPECT_NE(a_->sink.why().message.find("the address of 'no-such-host.invalid'"), std::string::npos)
      << a_->sink.why().message;
}

TEST_F(TcpSession, ByAnotherWayNoNameIsLookedUpHere) {
  TcpTransport::Options options = options_with(60 * kSecond);
  options.look_up = [](const TcpEndpoint&) -> Result<std::vector<SocketAddress>> {
    ADD_FAILURE() << "it was looked up";
    return Error{ErrorCode::kUnavailable, "nowhere"};
  };
  start(options);
  const uint16_t port = b_->tcp->place()->dial.port;
  ASSERT_TRUE(a_->tcp->set_place(b_->node, TcpAddress{{"known.there", port}, std::nullopt}).ok());
  std::atomic<int> asked{0};
  a_->tcp->go_by([&asked](const TcpEndpoint& to, bool* busy) -> Result<std::unique_ptr<Channel>> {
    *busy = ++asked == 1;  // the way itself may have a name, which takes its time
    if (*busy) return Error{ErrorCode::kUnavailable, "not yet"};
    EXPECT_EQ(to.host, "known.there");
    const SocketAddress there = numeric_address({"127.0.0.1", to.port}).value();
    UniqueFd socket = sys::make_socket(AF_INET, SOCK_STREAM);
    EXPECT_EQ(connect(socket.get(), there.get(), there.size), 0);
    return std::unique_ptr<Channel>(std::make_unique<TcpChannel>(std::move(socket)));
  });
  dial();
  flood(*a_->link, 10, 10);
  EXPECT_TRUE(wait_until([&] { return b_->sink.frames() == 10; }));
  EXPECT_EQ(asked, 2);
}

TEST_F(TcpSession, WhatIsNotSaidToBeThereIsNotDialled) {
  start(options_with(kSecond));
  EXPECT_EQ(a_->connector->dial(12345), nullptr);
  EXPECT_EQ(a_->tcp->set_place(12345, address_of("tcp://*:1")).error().code, ErrorCode::kMalformed);
  EXPECT_EQ(a_->tcp->set_place(12345, address_of("tcp://host:0")).error().code, ErrorCode::kMalformed);
  a_->tcp->forget_place(b_->node);
  EXPECT_EQ(a_->connector->dial(b_->node), nullptr);
}

TEST_F(TcpSession, ListensWhereItIsToldAndSaysWhy) {
  Reactor reactor;
  const auto listened = [&](const char* at, bool plain_anywhere = false) {
    TcpTransport::Options options;
    options.listen = address_of(at);
    options.plain_anywhere = plain_anywhere;
    TcpTransport transport(reactor, options);
    auto listener = transport.listen({}, 1);
    return listener ? "yes: " + transport.place()->to_text() : listener.error().message;
  };
  EXPECT_EQ(listened("tcp://outside:77@tcp://127.0.0.1:0"), "yes: tcp://outside:77");
  EXPECT_EQ(listened("tcp://127.0.0.1:0").find("yes: tcp://127.0.0.1:"), 0u);
  EXPECT_EQ(listened("tcp://localhost:0").find("yes: tcp://localhost:"), 0u);
  EXPECT_EQ(listened("tcp://*:0"), "refused to listen on tcp://[::]:0 without TLS: anybody on the way could read and "
                                   "change what is sent");
  EXPECT_EQ(listened("tcp://*:0", true).find("yes: tcp://" + host_name() + ":"), 0u);
  EXPECT_EQ(listened("tcp://192.0.2.1:0", true), "cannot listen on tcp://192.0.2.1:0: that is not this machine");
  TcpTransport::Options options;
  options.listen = address_of("tcp://127.0.0.1:0");
  TcpTransport first(reactor, options);
  auto listener = first.listen({}, 1);
  ASSERT_TRUE(listener.ok());
  const std::string taken = first.place()->to_text();
  EXPECT_EQ(listened(taken.c_str()), "cannot listen on " + taken + ": another program listens there");
}

TEST_F(TcpSession, OtherMachinesAreNotDialledInTheClear) {
  start(options_with(600 * kSecond));
  ASSERT_TRUE(a_->tcp->set_place(b_->node, address_of("tcp://192.0.2.1:7")).ok());
  dial();
  ASSERT_TRUE(wait_until([&] { return a_->sink.closed(); }));
  EXPECT_NE(a_->sink.why().message.find("refused to connect to tcp://192.0.2.1:7 without TLS"), std::string::npos)
      << a_->sink.why().message;
}

TEST_F(TcpSession, EachShortageWhileItIsMadeIsWaitedOut) {
  for (uint64_t nth = 1, calls = 1; nth <= calls && nth < 40; ++nth) {
    start(options_with(60 * kSecond));
    sys::fail_nth(nth);
    dial();
    send_one(*a_->link, 0, 10);
    const bool arrived = wait_until([&] { return b_->sink.frames() == 1; });
    calls = sys::calls_seen();
    sys::fail_nth(0);
    ASSERT_TRUE(arrived) << nth;
    EXPECT_FALSE(a_->sink.closed());
    proxy_ = nullptr;
    a_ = nullptr;
    b_ = nullptr;
  }
}

// ---- TLS ----

std::shared_ptr<const TlsContext> tls_of(const Authority& authority, const char* name) {
  return TlsContext::make(authority.issue(name).value()).value();
}

TEST_F(TcpSession, WithTlsLosesNothingHoweverOftenItsConnectionIsCut) {
  const Authority authority = Authority::make().value();
  TcpTransport::Options options = options_with(60 * kSecond);
  options.tls = tls_of(authority, "both");
  flood_through_cuts(options, static_cast<uint64_t>(rounds(10'000, 3'000)));
}

TEST_F(TcpSession, WithTlsAFrameThatIsLargerThanWhatAnyConnectionCarriesGetsThrough) {
  const auto authority = Authority::make().value();
  TcpTransport::Options options = options_with(20 * kSecond);
  options.tls = tls_of(authority, "both");
  large_frames_through_short_connections(options);
}

TEST_F(TcpSession, WithTlsLosesNothingWhicheverByteIsTheLastOne) {
  const Authority authority = Authority::make().value();
  TcpTransport::Options options = options_with(60 * kSecond);
  options.tls = tls_of(authority, "both");
  start(options);
  dial();
  uint64_t sent = 0;
  const uint64_t step = static_cast<uint64_t>(rounds(61, 331));
  for (uint64_t byte = 1; byte < 5000; byte += step, ++sent) {
    const int cuts = proxy_->cuts();
    proxy_->cut();
    proxy_->cut_after(byte);
    send_one(*a_->link, sent, 100);
    ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == sent + 1; })) << byte;
    ASSERT_TRUE(wait_until([&] { return proxy_->cuts() > cuts; }));
  }
  const auto frames = b_->sink.take();
  for (uint64_t i = 0; i < sent; ++i) ASSERT_EQ(frames[i]->header.token, i);
  EXPECT_FALSE(a_->sink.closed() || b_->sink.closed());
}

TEST_F(TcpSession, WithTlsAPeerOfAnotherAuthorityIsRefusedAtOnceOnBothSides) {
  capture_log();
  const Authority ours = Authority::make().value(), theirs = Authority::make().value();
  TcpTransport::Options options = options_with(600 * kSecond);
  options.tls = tls_of(ours, "a");
  TcpTransport::Options others = options;
  others.tls = tls_of(theirs, "b");
  a_ = std::make_unique<TcpProcess>(job_, options);
  b_ = std::make_unique<TcpProcess>(job_, others);
  ASSERT_TRUE(a_->tcp->set_place(b_->node, *b_->tcp->place()).ok());
  dial();
  ASSERT_TRUE(wait_until([&] { return a_->sink.closed(); }));
  EXPECT_NE(a_->sink.why().message.find("certificate is not one of this job's"), std::string::npos)
      << a_->sink.why().message;
  EXPECT_EQ(b_->sessions, 0);
  // Who believes anybody is refused by who does not.
  b_ = nullptr;
  Home waiting;
  TcpTransport::Options trusting = options;
  trusting.tls = TlsContext::make(theirs.issue("c").value(), TlsContext::Trust::kAnybody).value();
  TcpProcess c(job_, trusting);
  ASSERT_TRUE(c.tcp->set_place(a_->node, *a_->tcp->place()).ok());
  c.link = c.connector->dial(a_->node);
  ASSERT_TRUE(drive_until(*c.home.driver, [&] { return c.sink.closed(); }));
  EXPECT_NE(c.sink.why().message.find("TLS with the peer has ended"), std::string::npos) << c.sink.why().message;
  flush_log();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("refused a connection: "), std::string::npos) << said;
}

TEST_F(TcpSession, WhoTrustsAllConnectionsIsStillAskedForTheToken) {
  const Authority ours = Authority::make().value(), theirs = Authority::make().value();
  TcpTransport::Options options = options_with(600 * kSecond);
  options.tls = TlsContext::make(ours.issue("a").value(), TlsContext::Trust::kAnybody).value();
  TcpTransport::Options others = options;
  others.tls = TlsContext::make(theirs.issue("b").value(), TlsContext::Trust::kAnybody).value();
  a_ = std::make_unique<TcpProcess>(job_, options);
  b_ = std::make_unique<TcpProcess>(job_, others);
  ASSERT_TRUE(a_->tcp->set_place(b_->node, *b_->tcp->place()).ok());
  dial();
  flood(*a_->link, 10, 10);
  ASSERT_TRUE(wait_until([&] { return b_->sink.frames() == 10; }));
  Identity another = job_;
  another.token[0] ^= std::byte{1};
  TcpProcess c(another, options);
  ASSERT_TRUE(c.tcp->set_place(b_->node, *b_->tcp->place()).ok());
  c.link = c.connector->dial(b_->node);
  ASSERT_TRUE(drive_until(*c.home.driver, [&] { return c.sink.closed(); }));
  EXPECT_EQ(b_->sessions, 1);
}

TEST_F(TcpSession, BetweenTlsAndPlainThereIsNothing) {
  const Authority authority = Authority::make().value();
  TcpTransport::Options plain = options_with(600 * kSecond), secret = plain;
  secret.tls = tls_of(authority, "b");
  for (const bool dialer_has_it : {false, true}) {
    a_ = std::make_unique<TcpProcess>(job_, dialer_has_it ? secret : plain);
    b_ = std::make_unique<TcpProcess>(job_, dialer_has_it ? plain : secret);
    ASSERT_TRUE(a_->tcp->set_place(b_->node, *b_->tcp->place()).ok());
    dial();
    ASSERT_TRUE(wait_until([&] { return a_->sink.closed(); })) << dialer_has_it;
    const char* what = dialer_has_it ? "TLS with the peer cannot begin" : "the peer speaks TLS, and this side does not";
    EXPECT_NE(a_->sink.why().message.find(what), std::string::npos) << a_->sink.why().message;
    EXPECT_EQ(b_->sessions, 0);
    b_ = nullptr;
    a_ = nullptr;
  }
}

TEST_F(TcpSession, WithTlsAnywhereMayBeListenedOn) {
  Reactor reactor;
  TcpTransport::Options options;
  options.listen = address_of("tcp://*:0");
  options.tls = tls_of(Authority::make().value(), "a");
  TcpTransport transport(reactor, options);
  EXPECT_TRUE(transport.listen({}, 1).ok());
}

// ---- Strangers ----

class TcpStrangers : public TcpSession {
 protected:
  // b_ is the one that they connect to; a_ has a session with it.
  void start_both(Connector::Limits limits = {}, std::shared_ptr<const TlsContext> tls = nullptr) {
    options_ = options_with(600 * kSecond);
    options_.tls = std::move(tls);
    a_ = std::make_unique<TcpProcess>(job_, options_);
    b_ = std::make_unique<TcpProcess>(job_, options_, limits);
    place_ = *b_->tcp->place();
    there_ = numeric_address(place_.dial).value();
    ASSERT_TRUE(a_->tcp->set_place(b_->node, place_).ok());
    dial();
    expect_that_it_lives();
  }
  void expect_that_it_lives() {
    const size_t before = b_->sink.frames();
    send_one(*a_->link, 0, 100);
    EXPECT_TRUE(wait_until([&] { return b_->sink.frames() > before; }));
    EXPECT_FALSE(a_->sink.closed() || b_->sink.closed());
    EXPECT_EQ(a_->carriers(), 1u);
  }
  // And another one still gets in.
  void expect_that_it_listens() {
    TcpProcess c(job_, options_);
    ASSERT_TRUE(c.tcp->set_place(b_->node, place_).ok());
    const size_t before = b_->sink.frames();
    c.link = c.connector->dial(b_->node);
    send_one(*c.link, 0, 100);
    EXPECT_TRUE(wait_until([&] { return b_->sink.frames() > before; }, 120 * kSecond));
  }
  UniqueFd stranger(bool waits = true) {
    UniqueFd socket = sys::make_socket(AF_INET, SOCK_STREAM | (waits ? 0 : SOCK_NONBLOCK));
    const int connected = connect(socket.get(), there_.get(), there_.size);
    EXPECT_TRUE(connected == 0 || (!waits && errno == EINPROGRESS));
    return socket;
  }
  static void say(const UniqueFd& socket, ByteSpan bytes) {
    EXPECT_EQ(send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  // What it answers, `size` bytes of it at most; less: it has closed the connection.
  static std::vector<std::byte> hear(const UniqueFd& socket, size_t size) {
    const timeval limit{30, 0};
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    std::vector<std::byte> heard(size);
    size_t have = 0;
    while (have < size) {
      const ssize_t count = recv(socket.get(), heard.data() + have, size - have, 0);
      EXPECT_FALSE(count < 0 && errno == EAGAIN) << "it is not closed";
      if (count <= 0) break;
      have += static_cast<size_t>(count);
    }
    heard.resize(have);
    return heard;
  }
  HelloIdentity member() {
    const NodeKey key = NodeKey::make(random_);
    return {.node = key.id(), .key = key, .job = job_.job, .token = job_.token};
  }
  static int lines(const std::string& text) { return static_cast<int>(std::count(text.begin(), text.end(), '\n')); }

  SystemRandom random_;
  TcpTransport::Options options_;
  TcpAddress place_;
  SocketAddress there_;
};

TEST_F(TcpStrangers, RandomBytesCostTheirConnectionAndAFewLines) {
  for (const bool tls : {false, true}) {
    capture_log();
    start_both({}, tls ? tls_of(Authority::make().value(), "both") : nullptr);
    std::mt19937 random(7);
    const int64_t start_ns = b_->home.reactor.now_ns();
    for (int i = 0; i < 300; ++i) {
      std::vector<std::byte> bytes(200 + random() % 1000);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      const UniqueFd socket = stranger();
      say(socket, bytes);
      EXPECT_LT(hear(socket, 4096).size(), 4096u);
    }
    const int64_t seconds = (b_->home.reactor.now_ns() - start_ns) / kSecond + 1;
    expect_that_it_lives();
    expect_that_it_listens();
    flush_log();
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("refused a connection: "), std::string::npos) << said;
    EXPECT_LE(lines(said), 12 * (seconds + 2)) << said;
    b_ = nullptr;
    a_ = nullptr;
  }
}

TEST_F(TcpStrangers, AHelloThatIsDrawnOutIsEnded) {
  start_both({.accept_ns = 400'000'000});
  Handshake hello(HelloRole::kDialer, member(), random_);
  const UniqueFd socket = stranger();
  say(socket, hello.open_bytes().first(20));
  EXPECT_LE(hear(socket, 4096).size(), kHelloOpenBytes);
  // Nor does a proof alone buy more time.
  Handshake good(HelloRole::kDialer, member(), random_);
  const UniqueFd second = stranger();
  say(second, good.open_bytes());
  say(second, good.on_open(hear(second, kHelloOpenBytes)).value());
  EXPECT_EQ(hear(second, 4096).size(), kHelloProofBytes);
  expect_that_it_lives();
  expect_that_it_listens();
}

TEST_F(TcpStrangers, AHelloThatWasRecordedOpensNothing) {
  capture_log();
  start_both();
  Handshake hello(HelloRole::kDialer, member(), random_);
  const UniqueFd first = stranger();
  say(first, hello.open_bytes());
  const HelloProof proof = hello.on_open(hear(first, kHelloOpenBytes)).value();
  say(first, proof);
  ASSERT_TRUE(hello.on_proof(hear(first, kHelloProofBytes)).ok()) << "it was a good one";
  const UniqueFd again = stranger();
  say(again, hello.open_bytes());
  EXPECT_EQ(hear(again, kHelloOpenBytes).size(), kHelloOpenBytes);
  say(again, proof);
  EXPECT_LE(hear(again, 4096).size(), kHelloProofBytes) << "it may prove itself, and then closes";
  flush_log();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("does not have the token"), std::string::npos) << said;
  expect_that_it_lives();
}

TEST_F(TcpStrangers, WhatItSaysIsNotTakenFromItself) {
  start_both();
  const UniqueFd mirror = stranger();
  const auto open = hear(mirror, kHelloOpenBytes);
  say(mirror, open);
  EXPECT_TRUE(hear(mirror, 4096).empty()) << "no proof for an echo";
  expect_that_it_lives();
}

TEST_F(TcpStrangers, AnotherVersionIsToldAtOnceAndBothAreNamed) {
  capture_log();
  start_both();
  HelloIdentity old = member();
  old.version_min = old.version_max = 1;
  Handshake hello(HelloRole::kDialer, old, random_);
  const int64_t start_ns = b_->home.reactor.now_ns();
  const UniqueFd socket = stranger();
  say(socket, hello.open_bytes());
  const auto heard = hear(socket, 4096);
  ASSERT_EQ(heard.size(), kHelloOpenBytes);
  EXPECT_LT(b_->home.reactor.now_ns() - start_ns, kSecond);
  auto refused = hello.on_open(heard);
  ASSERT_FALSE(refused.ok());
  for (const std::string& text : {refused.error().message, (flush_log(), ::testing::internal::GetCapturedStderr())}) {
    EXPECT_NE(text.find("no common protocol version"), std::string::npos) << text;
    EXPECT_NE(text.find("1"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(kProtocolVersionMax)), std::string::npos) << text;
  }
}

TEST_F(TcpStrangers, ThousandsThatSayNothingKeepNobodyOut) {
  capture_log();
  start_both();
  std::vector<UniqueFd> silent(static_cast<size_t>(rounds(10'000, 2'000)));
  for (UniqueFd& one : silent) one = stranger(false);
  const int64_t start_ns = b_->home.reactor.now_ns();
  for (int i = 0; i < 20; ++i) expect_that_it_lives();
  EXPECT_LT(b_->home.reactor.now_ns() - start_ns, 5 * kSecond);
  expect_that_it_listens();
  const int64_t seconds = (b_->home.reactor.now_ns() - start_ns) / kSecond + 1;
  flush_log();
  EXPECT_LE(lines(::testing::internal::GetCapturedStderr()), 12 * (seconds + 2));
}

// ---- Silence ----

TEST(TcpSilence, OfAConnectionThatIsGoneIsNoticedInTimeAndAnIdleOneLives) {
  constexpr int64_t kSilence = kSecond / 2;
  Home home_a, home_b;
  RecordingSink sink_a, sink_b;
  auto a = std::make_shared<TcpLink>(home_a.reactor, sink_a, 1, kSilence);
  auto b = std::make_shared<TcpLink>(home_b.reactor, sink_b, 2, kSilence);
  UniqueFd listener = sys::make_socket(AF_INET, SOCK_STREAM);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  TcpProxy proxy(SocketAddress::of_socket(listener.get()).port());
  const SocketAddress to = numeric_address({"127.0.0.1", proxy.port()}).value();
  UniqueFd near = sys::make_socket(AF_INET, SOCK_STREAM);
  ASSERT_EQ(connect(near.get(), to.get(), to.size), 0);
  UniqueFd far = sys::accept(listener.get());
  a->start(std::make_unique<SocketChannel>(std::move(near)));
  b->start(std::make_unique<SocketChannel>(std::move(far)));
  // Three times as many signs of life as fit in the time.
  ASSERT_TRUE(drive_until(*home_a.driver, [&] { return proxy.bytes() >= 3 * 2 * 4 * kChunkHeader; }));
  EXPECT_FALSE(sink_a.closed() || sink_b.closed());
  const int64_t start_ns = home_a.reactor.now_ns();
  proxy.hold();
  ASSERT_TRUE(drive_until(*home_a.driver, [&] { return sink_a.closed() && sink_b.closed(); }));
  const int64_t noticed_ns = home_a.reactor.now_ns() - start_ns;
  EXPECT_EQ(sink_a.why().code, ErrorCode::kClosed);
  EXPECT_NE(sink_a.why().message.find("nothing has come from it for 500 ms"), std::string::npos);
  EXPECT_GT(noticed_ns, kSilence - kSilence / 4) << "of which a sign of life had come in the last quarter before it";
  EXPECT_LT(noticed_ns, 4 * kSilence) << "on a busy machine; alone it is little more than one";
  a->close();
  b->close();
  home_a.reactor.stop();
  home_b.reactor.stop();
}

// Gigabytes that are copied on it, with pulses between.
TEST(TcpSilence, OfAReactorThatIsBusyForLongIsNoneWhereItPulses) {
  constexpr int64_t kSilence = kSecond / 2;
  Home home_a, home_b;
  RecordingSink sink_a, sink_b;
  auto a = std::make_shared<TcpLink>(home_a.reactor, sink_a, 1, kSilence);
  auto b = std::make_shared<TcpLink>(home_b.reactor, sink_b, 2, kSilence);
  UniqueFd pair[2];
  make_tcp_pair(pair);
  for (const UniqueFd& end : pair) fcntl(end.get(), F_SETFL, O_NONBLOCK);
  a->start(std::make_unique<SocketChannel>(std::move(pair[0])));
  b->start(std::make_unique<SocketChannel>(std::move(pair[1])));
  const auto be_busy = [&](bool pulses) {
    home_a.reactor.post_and_wait([&] {
      const int64_t until_ns = home_a.reactor.now_ns() + 3 * kSilence;
      while (home_a.reactor.now_ns() < until_ns) {
        if (pulses) home_a.reactor.pulse();
        poll(nullptr, 0, 10);
      }
    });
  };
  be_busy(true);
  EXPECT_FALSE(sink_a.closed() || sink_b.closed());
  home_a.reactor.pulse();  // of another thread: nothing
  be_busy(false);
  EXPECT_TRUE(sink_b.closed());
  a->close();
  b->close();
  home_a.reactor.stop();
  home_b.reactor.stop();
}

}  // namespace
}  // namespace monarch::testing
