#include "monarch/net/greeting.h"

#include <errno.h>
#include <sys/epoll.h>

#include "monarch/base/system.h"
#include "monarch/net/transport.h"

namespace monarch {

namespace {

// The limit is measured in steps: a process that is stopped loses one of them, however long that takes.
constexpr int kLimitSteps = 8;

}  // namespace

HelloIdentity hello_identity(const Identity& identity) {
  HelloIdentity hello;
  hello.node = identity.node;
  hello.key = identity.key;
  hello.job = identity.job;
  hello.token = identity.token;
  hello.features = kFeatureShm | kFeatureArena | (identity.guest ? kFeatureGuest : 0);
  return hello;
}

Greeting::Greeting(Reactor& reactor, std::unique_ptr<Channel> channel, HelloRole role, const Identity& identity,
                   Random& random, int64_t limit_ns, Events events)
    : reactor_(reactor), channel_(std::move(channel)), role_(role), hello_(role, hello_identity(identity), random),
      limit_ns_(limit_ns), events_(std::move(events)), wanted_(hello_.bytes_wanted()) {}

void Greeting::begin() {
  reactor_.add(channel_->fd(), EPOLLIN, [this](uint32_t) { on_ready(); });
  watch_limit(kLimitSteps);
  establish();
}

// Something has come, or what the channel has waited for has happened.
void Greeting::on_ready() {
  if (!establish()) return;
  if (waits_for_room_ && channel_->flush()) watch_room(false);
  read();
}

void Greeting::watch_room(bool room) {
  if (std::exchange(waits_for_room_, room) == room) return;
  reactor_.modify(channel_->fd(), room ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

bool Greeting::establish() {
  if (established_) return true;
  auto done = channel_->establish();
  if (!done) return end(done.error()), false;
  watch_room(channel_->wants_room());
  if (!*done) return false;
  established_ = true;
  if (const auto binding = channel_->binding()) hello_.bind_to(*binding);
  // A dialer that has died since has left its own open: read first, to know who it was.
  if (!send_bytes(hello_.open_bytes()) && role_ == HelloRole::kDialer) gone("the peer went away");
  return !over_;
}

void Greeting::watch_limit(int steps_left) {
  limit_ = reactor_.after(limit_ns_ / kLimitSteps, [this, steps_left] {
    if (steps_left > 1) return watch_limit(steps_left - 1);
    limit_ = 0;
    end({ErrorCode::kDeadline, "no hello in time"});
  });
}

void Greeting::lift_limit() {
  if (limit_ != 0) reactor_.cancel(std::exchange(limit_, 0));
}

void Greeting::stop() {
  if (std::exchange(over_, true)) return;
  lift_limit();
  if (channel_) reactor_.remove(channel_->fd());
  channel_.reset();
}

std::unique_ptr<Channel> Greeting::take_channel() {
  std::unique_ptr<Channel> channel = std::move(channel_);
  reactor_.remove(channel->fd());
  stop();
  return channel;
}

bool Greeting::send_bytes(ByteSpan bytes) {
  return channel_->send_all(bytes, {});
}

bool Greeting::send(char byte, const std::vector<int>& fds) {
  MONARCH_CHECK(fds.size() <= LinkSetup::kFdsMax);
  return channel_->send_all(as_byte_span(&byte, 1), fds);
}

void Greeting::read() {
  while (!over_) {
    std::byte buffer[256];
    MONARCH_CHECK(wanted_ <= sizeof buffer);
    auto received = channel_->receive({buffer, wanted_ - have_.size()});
    if (received.size < 0 && errno == EAGAIN) return;
    if (received.size <= 0) return gone("the peer closed the connection during the hello");
    fds_lost_ |= received.lost;
    for (UniqueFd& fd : received.fds) fds_.push_back(std::move(fd));
    // They belong beside a byte that follows a good hello, three at most.
    const bool in_turn = proved_ ? fds_.size() <= LinkSetup::kFdsMax : fds_.empty() && !fds_lost_;
    if (!in_turn) return end({ErrorCode::kMalformed, "descriptors out of turn"});
    have_.insert(have_.end(), buffer, buffer + received.size);
    if (!proved_ && !hello_.may_begin_with(have_)) {
      const bool alert = have_[0] == std::byte{21};  // what TLS says to who does not speak it
      return end({ErrorCode::kMalformed, alert ? "the peer speaks TLS, and this side does not" : "not a monarch peer"});
    }
    if (have_.size() < wanted_) continue;
    std::vector<std::byte> bytes = std::move(have_);
    have_.clear();
    step(bytes);
  }
}

// One complete piece has come: the peer's open, its proof, or a byte, perhaps with descriptors.
void Greeting::step(const std::vector<std::byte>& bytes) {
  if (proved_) {
    return events_.on_setup(static_cast<char>(bytes[0]), std::exchange(fds_, {}), std::exchange(fds_lost_, false));
  }
  if (hello_.state() == Handshake::State::kAwaitingOpen) {
    auto proof = hello_.on_open(bytes);
    if (!proof) return end(proof.error());
    if (!send_bytes(*proof)) return gone("the peer went away");
    wanted_ = hello_.bytes_wanted();
    return;
  }
  auto peer = hello_.on_proof(bytes);
  if (!peer) return end(peer.error());
  proved_ = true;
  wanted_ = 1;
  events_.on_proved(*peer);
}

void Greeting::gone(const char* why) {
  if (const auto fault = channel_->fault()) return end(*fault);
  const bool good_so_far = role_ == HelloRole::kAcceptor && hello_.state() != Handshake::State::kAwaitingOpen;
  end({ErrorCode::kClosed, why}, !good_so_far);
}

void Greeting::end(const Error& why, bool news) {
  if (over_) return;
  events_.on_end(why, news);  // first: who sees the connection closed may look for what was said of it
  stop();
}

}  // namespace monarch
