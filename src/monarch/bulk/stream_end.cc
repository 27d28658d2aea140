#include "monarch/bulk/stream_end.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "monarch/base/clock.h"
#include "monarch/base/random.h"

namespace monarch {

namespace {

Error closed(const char* why) { return {ErrorCode::kClosed, why}; }
// Whoever moves nothing for so long is stopped, or not to be reached: its stream is of no use.
constexpr int64_t kStallNs = 10'000'000'000;
// Between two looks around.
constexpr size_t kStepBytes = size_t{4} << 20;
// Of memory that UCX has: whoever drops it waits so long at most.
constexpr int64_t kWantedLookNs = 50'000'000;

// A peer that has vanished is known after that, in seconds; one that has stopped answers.
void keep_alive(int socket) {
  const int on = 1, idle = 2, every = 1, count = 3;
  static_cast<void>(setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
  static_cast<void>(setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle));
  static_cast<void>(setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every));
  static_cast<void>(setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count));
}

bool comes_again(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ENOMEM; }

}  // namespace

// ---- StreamSockets ----

void StreamSockets::add(int fd) {
  std::lock_guard lock(mutex_);
  open_.insert(fd);
}

void StreamSockets::remove(int fd) {
  std::lock_guard lock(mutex_);
  open_.erase(fd);
}

void StreamSockets::after_fork_in_child() {
  if (!reactor_.has_its_descriptors()) return;  // they are somebody else's by now
  for (const int fd : open_) ::close(fd);
}

// ---- StreamEnd ----

StreamEnd::StreamEnd(std::unique_ptr<Channel> channel, StreamSockets& sockets, int stop, Look look)
    : channel_(std::move(channel)), sockets_(sockets), stop_(stop), look_(std::move(look)) {
  sockets_.add(channel_->fd());
  keep_alive(channel_->fd());
}

StreamEnd::~StreamEnd() { sockets_.remove(channel_->fd()); }

Status StreamEnd::wait(bool for_room, int64_t deadline_ns) {
  const int64_t stalled_ns = monotonic_ns() + kStallNs;
  for (;;) {
    const int64_t look_again_ns = look_();
    if (look_again_ns == 0) return closed("it is not wanted any more");
    const int64_t now_ns = monotonic_ns();
    if (now_ns >= deadline_ns) return Error{ErrorCode::kDeadline, "it took too long"};
    if (now_ns >= stalled_ns) return closed("the other side has stopped");
    const int64_t left_ns = std::max<int64_t>(std::min(deadline_ns, look_again_ns) - now_ns, 0);
    const int events = for_room ? POLLOUT : channel_->wants_room() ? POLLIN | POLLOUT : POLLIN;
    pollfd fds[] = {{channel_->fd(), static_cast<short>(events), 0}, {stop_, POLLIN, 0}};
    const int count = poll(fds, 2, static_cast<int>(std::min<int64_t>((left_ns + 999'999) / 1'000'000, 60'000)));
    if (fds[1].revents != 0) return closed("this process ends");
    if (count > 0) return Ok{};
  }
}

ssize_t StreamEnd::send_now(std::span<std::byte> from) {
  const iovec piece{from.data(), from.size()};
  return channel_->write({&piece, 1});
}

ssize_t StreamEnd::receive_now(std::span<std::byte> into) {
  const iovec piece{into.data(), into.size()};
  return channel_->read({&piece, 1});
}

Status StreamEnd::look_around(size_t moved, int64_t deadline_ns) {
  if ((since_look_ += moved) < kStepBytes) return Ok{};
  since_look_ = 0;
  return goes_on(deadline_ns);
}

Status StreamEnd::goes_on(int64_t deadline_ns) {
  if (look_() == 0) return closed("it is not wanted any more");
  return monotonic_ns() < deadline_ns ? Status(Ok{}) : Error{ErrorCode::kDeadline, "it took too long"};
}

Status StreamEnd::send(ByteSpan bytes, int64_t deadline_ns) {
  std::span<std::byte> left(const_cast<std::byte*>(bytes.data()), bytes.size());
  while (!left.empty()) {
    const ssize_t count = send_now(left.first(std::min(left.size(), kStepBytes)));
    if (count >= 0) {
      left = left.subspan(static_cast<size_t>(count));
      if (auto goes = look_around(static_cast<size_t>(count), deadline_ns); !goes) return goes;
    } else if (!comes_again(errno)) {
      return closed("the connection broke");
    } else if (auto room = wait_for_room(deadline_ns); !room) {
      return room;
    }
  }
  while (!channel_->flush()) {
    if (auto room = wait_for_room(deadline_ns); !room) return room;
  }
  return Ok{};
}

Status StreamEnd::receive(std::span<std::byte> into, int64_t deadline_ns) {
  while (!into.empty()) {
    const ssize_t count = receive_now(into.first(std::min(into.size(), kStepBytes)));
    if (count > 0) {
      into = into.subspan(static_cast<size_t>(count));
      if (auto goes = look_around(static_cast<size_t>(count), deadline_ns); !goes) return goes;
    } else if (count == 0 || !comes_again(errno)) {
      return closed("the connection has ended");
    } else if (auto input = wait_for_input(deadline_ns); !input) {
      return input;
    }
  }
  return Ok{};
}

// While a message is under way: the connection tells whether there still is somebody.
UcxEnd::Pause StreamEnd::pause_until(int64_t deadline_ns, const std::function<bool()>& is_wanted) {
  const int64_t stalled_ns = monotonic_ns() + kStallNs;
  return [this, deadline_ns, stalled_ns, &is_wanted](int fd) -> Status {
    const int64_t look_again_ns = look_();
    if (look_again_ns == 0 || (is_wanted && !is_wanted())) return closed("it is not wanted any more");
    const int64_t now_ns = monotonic_ns();
    if (now_ns >= deadline_ns) return Error{ErrorCode::kDeadline, "it took too long"};
    if (now_ns >= stalled_ns) return closed("the other side has stopped");
    const int64_t until_ns = fd < 0 ? now_ns : std::min({deadline_ns, look_again_ns, now_ns + kWantedLookNs});
    pollfd fds[] = {{fd, POLLIN, 0}, {stop_, POLLIN, 0}, {channel_->fd(), POLLRDHUP, 0}};
    poll(fds, 3, static_cast<int>((std::max<int64_t>(until_ns - now_ns, 0) + 999'999) / 1'000'000));
    if (fds[1].revents != 0) return closed("this process ends");
    return fds[2].revents == 0 ? Status(Ok{}) : closed("the connection has ended");
  };
}

Status StreamEnd::send_by_ucx(const Memory& bytes, int64_t deadline_ns, const std::function<bool()>& is_wanted) {
  Status sent = ucx_->send(bytes, pause_until(deadline_ns, is_wanted));
  moved_by_ucx_ |= sent.ok();
  return sent;
}

Status StreamEnd::receive_by_ucx(const Memory& into, int64_t deadline_ns, const std::function<bool()>& is_wanted) {
  Status came = ucx_->receive(into, pause_until(deadline_ns, is_wanted));
  moved_by_ucx_ |= came.ok();
  return came;
}

Result<NodeId> StreamEnd::greet(HelloRole role, const HelloIdentity& identity, int64_t deadline_ns) {
  for (;;) {
    auto there = channel_->establish();
    if (!there) return there.error();
    if (*there) break;
    if (auto more = wait(channel_->wants_room(), deadline_ns); !more) return more.error();
  }
  SystemRandom random;
  Handshake hello(role, identity, random);
  if (const auto binding = channel_->binding()) hello.bind_to(*binding);
  if (auto sent = send(hello.open_bytes(), deadline_ns); !sent) return sent.error();
  HelloOpenBytes open;
  if (auto came = receive(open, deadline_ns); !came) return came.error();
  auto proof = hello.on_open(open);
  if (!proof) return proof.error();
  if (auto sent = send(*proof, deadline_ns); !sent) return sent.error();
  HelloProof theirs;
  if (auto came = receive(theirs, deadline_ns); !came) return came.error();
  auto peer = hello.on_proof(theirs);
  if (!peer) return peer.error();
  if (peer->guest) return Error{ErrorCode::kUnsupported, "a process of another job"};
  return peer->node;
}

}  // namespace monarch
