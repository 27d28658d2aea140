#include "monarch/host/start/relay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "monarch/base/system.h"

namespace monarch {
namespace {

// A client, whose keeper passes on what it says to somebody who listens here.
class Passing : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = sys::make_socket(AF_INET, SOCK_STREAM);
    const SocketAddress any = numeric_address({"127.0.0.1", 0}).value();
    ASSERT_EQ(bind(listener_.get(), any.get(), any.size), 0);
    ASSERT_EQ(listen(listener_.get(), 5), 0);
    ASSERT_TRUE(sys::make_pipe(ends_));
  }
  void TearDown() override {
    client_.reset();
    there_.reset();
    if (keeper_.joinable()) keeper_.join();
  }
  void order(const TcpEndpoint& to) {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    client_ = UniqueFd(pair[0]);
    fcntl(pair[1], F_SETFL, O_NONBLOCK);
    keeper_ = std::thread([this, to, far = UniqueFd(pair[1])]() mutable {
      SocketChannel channel(std::move(far));
      pass_on(channel, {to, ""}, ends_[0].get(), clock_);
      over_ = true;
    });
  }
  TcpEndpoint here() const { return {"127.0.0.1", SocketAddress::of_socket(listener_.get()).port()}; }
  HostReport answer() {
    uint32_t size = 0;
    EXPECT_EQ(recv(client_.get(), &size, sizeof size, MSG_WAITALL), static_cast<ssize_t>(sizeof size));
    std::string bytes(size, '\0');
    EXPECT_EQ(recv(client_.get(), bytes.data(), size, MSG_WAITALL), static_cast<ssize_t>(size));
    return decode_report(as_byte_span(bytes.data(), bytes.size())).value();
  }
  void connect_through() {
    order(here());
    ASSERT_EQ(answer().kind, HostReport::kConnected);
    there_ = UniqueFd(accept(listener_.get(), nullptr, nullptr));
  }
  static std::string read_all(int socket) {
    std::string all;
    char piece[65536];
    for (ssize_t count; (count = recv(socket, piece, sizeof piece, 0)) > 0;) all.append(piece, static_cast<size_t>(count));
    return all;
  }
  static void write_all_of(int socket, const std::string& text) {
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t count = send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      ASSERT_GT(count, 0);
      sent += static_cast<size_t>(count);
    }
    shutdown(socket, SHUT_WR);
  }

  SystemClock clock_;
  UniqueFd listener_, client_, there_, ends_[2];
  std::thread keeper_;
  std::atomic<bool> over_{false};
};

TEST_F(Passing, BothDirectionsGoWholeHoweverFullTheyAreAndEndByThemselves) {
  connect_through();
  const std::string up(5'000'000, 'u'), down(7'000'000, 'd');
  // Nobody reads before both are full.
  std::thread from_client([&] { write_all_of(client_.get(), up); });
  std::thread from_there([&] { write_all_of(there_.get(), down); });
  std::string got;
  std::thread reader([&] { got = read_all(there_.get()); });
  EXPECT_EQ(read_all(client_.get()), down);
  for (std::thread* one : {&from_client, &from_there, &reader}) one->join();
  EXPECT_EQ(got, up);
  keeper_.join();
  EXPECT_TRUE(over_);
}

TEST_F(Passing, WhatOneSideHasSaidLastComesThoughTheOtherGoesOn) {
  connect_through();
  write_all_of(client_.get(), "the last");
  EXPECT_EQ(read_all(there_.get()), "the last");
  EXPECT_FALSE(over_);
  write_all_of(there_.get(), "an answer");
  EXPECT_EQ(read_all(client_.get()), "an answer");
}

TEST_F(Passing, ThatNobodyListensIsAnAnswerAndANameThatIsNotKnownIsNone) {
  const TcpEndpoint gone = here();
  listener_.reset();
  order(gone);
  const HostReport refused = answer();
  EXPECT_EQ(refused.kind, HostReport::kRefused);
  EXPECT_NE(refused.text.find("Connection refused"), std::string::npos) << refused.text;
  keeper_.join();
  order({"no-such-host.invalid", 1});
  EXPECT_EQ(answer().kind, HostReport::kUnreachable);
}

TEST_F(Passing, ItEndsWithItsDaemon) {
  connect_through();
  ends_[1].reset();
  EXPECT_EQ(read_all(client_.get()), "");
  EXPECT_EQ(read_all(there_.get()), "");
}

// Whoever connects takes a while; the client does not want to wait.
TEST_F(Passing, ItEndsWithAClientThatIsGoneBeforeThereIsAConnection) {
  UniqueFd full = sys::make_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
  const SocketAddress any = numeric_address({"127.0.0.1", 0}).value();
  ASSERT_EQ(bind(full.get(), any.get(), any.size), 0);
  ASSERT_EQ(listen(full.get(), 0), 0);
  const SocketAddress at = SocketAddress::of_socket(full.get());
  UniqueFd fills[4];
  for (UniqueFd& one : fills) {
    one = sys::make_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK);
    static_cast<void>(connect(one.get(), at.get(), at.size));
  }
  const int64_t begun_ns = monotonic_ns();
  order({"127.0.0.1", at.port()});
  client_.reset();
  keeper_.join();
  EXPECT_LT(monotonic_ns() - begun_ns, 3'000'000'000) << "an address has 4 s";
}

}  // namespace
}  // namespace monarch
