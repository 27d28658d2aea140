#include "monarch/net/socket_lane.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "monarch/base/clock.h"
#include "monarch/base/system.h"

namespace monarch {
namespace {

class Lanes : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    sockets_[0].reset(pair[0]);
    sockets_[1].reset(pair[1]);
    SocketLane::Events events;
    events.on_message = [this](SocketLane::Received received) {
      std::lock_guard lock(mutex_);
      messages_.push_back(std::move(received.message));
      fds_.push_back(std::move(received.fd));
      lost_ += received.fd_lost;
    };
    events.on_closed = [this](const Error& why) {
      why_ = why.message;
      ++closed_;
    };
    owner_ = std::make_shared<int>(0);
    sender_ = std::make_unique<SocketLane>(
        reactor_, 1, kRecordSizeMax,
        SocketLane::Events{nullptr, [](SocketLane::Received) {}, [this](const Error&) { ++sender_closed_; }});
    receiver_ = std::make_unique<SocketLane>(reactor_, 2, uint64_t{1} << 20, std::move(events));
    reactor_.start();
  }
  void TearDown() override { reactor_.stop(); }
  bool wait_until(const std::function<bool()>& ready) {
    const int64_t deadline = monotonic_ns() + 10'000'000'000;
    while (!ready()) {
      if (monotonic_ns() > deadline) return false;
      sched_yield();
    }
    return true;
  }
  size_t count() {
    std::lock_guard lock(mutex_);
    return messages_.size();
  }
  static Outgoing numbered(uint64_t number, ByteSpan body = {}) {
    Outgoing outgoing{FrameHeader{}, body, {}};
    outgoing.header.token = number;
    return outgoing;
  }

  Reactor reactor_;
  std::shared_ptr<int> owner_;
  UniqueFd sockets_[2];
  std::unique_ptr<SocketLane> sender_, receiver_;
  std::mutex mutex_;
  std::vector<MessagePtr> messages_;
  std::vector<UniqueFd> fds_;
  int lost_ = 0;
  std::atomic<int> closed_{0}, sender_closed_{0};
  std::string why_;
};

// More than the socket takes, before anybody has started: it waits, and goes when both have.
TEST_F(Lanes, WhatIsSentBeforeTheStartArrivesAfterIt) {
  const std::vector<std::byte> bytes(900'000, std::byte{1});
  for (uint64_t i = 0; i < 3; ++i) EXPECT_FALSE(sender_->send(numbered(i, bytes)));
  EXPECT_GT(sender_->backlog(), 0u);
  sender_->start(std::move(sockets_[0]), owner_);
  receiver_->start(std::move(sockets_[1]), owner_);
  ASSERT_TRUE(wait_until([&] { return count() == 3 && sender_->backlog() == 0; }));
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(messages_[i]->header.token, i);
}

TEST_F(Lanes, DescriptorsStayBesideTheirRecord) {
  sender_->start(std::move(sockets_[0]), owner_);
  receiver_->start(std::move(sockets_[1]), owner_);
  std::vector<ino_t> inodes;
  const std::vector<std::byte> bytes(60'000, std::byte{1});
  std::vector<UniqueFd> sent;  // borrowed until they have gone
  for (uint64_t i = 0; i < 200; ++i) {
    UniqueFd& fd = sent.emplace_back(i % 3 == 0 ? open("/proc/self/stat", O_RDONLY | O_CLOEXEC) : -1);
    struct stat status {};
    if (fd) fstat(fd.get(), &status);
    inodes.push_back(status.st_ino);
    sender_->send(numbered(i, i % 7 == 0 ? ByteSpan(bytes) : ByteSpan{}), fd ? fd.get() : -1);
  }
  ASSERT_TRUE(wait_until([&] { return count() == 200; }));
  for (uint64_t i = 0; i < 200; ++i) {
    ASSERT_EQ(messages_[i]->header.token, i);
    ASSERT_EQ(static_cast<bool>(fds_[i]), i % 3 == 0) << i;
  }
}

// Short of something that descriptors need, on either side: the record arrives all the same, and its receiver knows.
TEST_F(Lanes, AShortageOfDescriptorsLosesNoRecordAndIsTold) {
  sender_->start(std::move(sockets_[0]), owner_);
  receiver_->start(std::move(sockets_[1]), owner_);
  UniqueFd fd(open("/proc/self/stat", O_RDONLY | O_CLOEXEC));
  sys::fail_nth(1);
  EXPECT_FALSE(sender_->send(numbered(1), fd.get())) << "the kernel did not take it";
  EXPECT_TRUE(sender_->send(numbered(0))) << "it waits for no descriptor";
  ASSERT_TRUE(wait_until([&] { return count() == 2; }));
  EXPECT_TRUE(fds_[1]);
  EXPECT_EQ(sys::calls_seen(), 3u) << "tried, tried again, received";
  sys::fail_nth(2);
  EXPECT_TRUE(sender_->send(numbered(2), fd.get()));
  ASSERT_TRUE(wait_until([&] { return count() == 3; }));
  EXPECT_TRUE(sender_->send(numbered(3), fd.get()));
  ASSERT_TRUE(wait_until([&] { return count() == 4; }));
  sys::fail_nth(0);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(messages_[i]->header.token, i);
  EXPECT_EQ(lost_, 1);
  EXPECT_FALSE(fds_[2]);
  EXPECT_TRUE(fds_[3]);
  EXPECT_EQ(closed_ + sender_closed_, 0);
}

TEST_F(Lanes, APartInAnArenaEndsTheLane) {
  receiver_->start(std::move(sockets_[1]), owner_);
  const std::vector<std::byte> bytes(16);
  const ByteSpan part(bytes);
  const uint64_t location = ArenaLocation{0, false, 0}.pack();
  const auto record = encode_to_vector(Outgoing{FrameHeader{}, {}, {&part, 1}}, {&location, 1});
  ASSERT_EQ(write(sockets_[0].get(), record.data(), record.size()), static_cast<ssize_t>(record.size()));
  ASSERT_TRUE(wait_until([&] { return closed_ == 1; }));
  EXPECT_EQ(count(), 0u);
  EXPECT_NE(why_.find("arena"), std::string::npos) << why_;
}

// What a thread other than the reactor reads is delivered by the reactor, in order.
TEST_F(Lanes, WhoeverReadsTheReactorDelivers) {
  receiver_->start(std::move(sockets_[1]), owner_);
  sender_->start(std::move(sockets_[0]), owner_);
  std::atomic<bool> held{false}, release{false};
  reactor_.post([&] {
    held = true;
    while (!release) sched_yield();
  });
  ASSERT_TRUE(wait_until([&] { return held.load(); }));
  for (uint64_t i = 0; i < 50; ++i) sender_->send(numbered(i));
  while (receiver_->readable()) ASSERT_TRUE(receiver_->pump());
  EXPECT_EQ(count(), 0u);
  release = true;
  ASSERT_TRUE(wait_until([&] { return count() == 50; }));
  for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(messages_[i]->header.token, i);
}

TEST_F(Lanes, ARecordAboveTheLimitEndsTheLane) {
  sender_->start(std::move(sockets_[0]), owner_);
  receiver_->start(std::move(sockets_[1]), owner_);
  sender_->send(numbered(1));
  const std::vector<std::byte> bytes(2 << 20, std::byte{1});
  sender_->send(numbered(2, bytes));
  ASSERT_TRUE(wait_until([&] { return closed_ == 1 && sender_closed_ == 1; }));
  EXPECT_EQ(count(), 1u);
  EXPECT_NE(why_.find("is not allowed"), std::string::npos) << why_;
}

TEST_F(Lanes, TheEndIsToldOnceAfterTheLastMessage) {
  sender_->start(std::move(sockets_[0]), owner_);
  receiver_->start(std::move(sockets_[1]), owner_);
  for (uint64_t i = 0; i < 500; ++i) sender_->send(numbered(i));
  ASSERT_TRUE(wait_until([&] { return sender_->backlog() == 0; }));
  sender_->stop();
  sender_->stop();
  EXPECT_FALSE(sender_->send(numbered(0)));
  ASSERT_TRUE(wait_until([&] { return closed_ == 1; }));
  EXPECT_EQ(count(), 500u);
}

TEST_F(Lanes, AnEventWhoseOwnerIsGoneIsDropped) {
  receiver_->start(std::move(sockets_[1]), owner_);
  owner_.reset();
  sender_->send(numbered(1));
  for (int i = 0; i < 20; ++i) reactor_.post_and_wait([] {});
  EXPECT_EQ(count(), 0u);
  receiver_->stop();
}

}  // namespace
}  // namespace monarch
