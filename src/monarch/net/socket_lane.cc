#include "monarch/net/socket_lane.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>

namespace monarch {

SocketLane::SocketLane(Reactor& reactor, UniqueFd socket, NodeId peer, uint64_t record_size_max, Events events)
    : reactor_(reactor), peer_(peer), events_(std::move(events)), assembler_(record_size_max),
      socket_(std::move(socket)) {
  fcntl(socket_.get(), F_SETFL, fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
}

SocketLane::~SocketLane() { stop(); }

void SocketLane::start(std::weak_ptr<void> owner) {
  std::lock_guard lock(write_mutex_);
  if (stopped_) return;
  started_ = true;
  const uint32_t events = want_write_ ? EPOLLIN | EPOLLOUT : EPOLLIN;
  reactor_.add(socket_.get(), events, [this, owner = std::move(owner)](uint32_t ready) {
    if (auto kept = owner.lock()) on_events(ready);
  });
}

void SocketLane::stop() {
  std::scoped_lock lock(read_mutex_, write_mutex_);
  if (std::exchange(stopped_, true)) return;
  reactor_.remove(socket_.get());
  socket_.reset();
  queue_.clear();
  backlog_ = 0;
}

bool SocketLane::send(const Outgoing& outgoing, int fd) {
  std::lock_guard lock(write_mutex_);
  if (stopped_) return false;
  Queued queued{encode_to_vector(outgoing), 0, UniqueFd(fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1)};
  if (queue_.empty() && write_some(queued)) return true;
  backlog_ += queued.bytes.size() - queued.sent;
  queue_.push_back(std::move(queued));
  if (!want_write_) {
    want_write_ = true;
    if (started_) reactor_.modify(socket_.get(), EPOLLIN | EPOLLOUT);
  }
  return false;
}

// Writes as much as the socket takes. True: all of it. A broken socket counts as written: its reader will say so.
bool SocketLane::write_some(Queued& queued) {
  while (queued.sent < queued.bytes.size()) {
    iovec iov{queued.bytes.data() + queued.sent, queued.bytes.size() - queued.sent};
    msghdr message{};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    if (queued.fd) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      const int fd = queued.fd.get();
      std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    const ssize_t count = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EINTR) continue;
      return errno != EAGAIN && errno != EWOULDBLOCK;
    }
    queued.sent += static_cast<size_t>(count);
    queued.fd.reset();
  }
  return true;
}

void SocketLane::flush_locked() {
  while (!queue_.empty()) {
    Queued& front = queue_.front();
    const size_t before = front.sent;
    const bool done = write_some(front);
    backlog_ -= (done ? front.bytes.size() : front.sent) - before;
    if (!done) return;
    queue_.pop_front();
  }
  if (want_write_) {
    want_write_ = false;
    reactor_.modify(socket_.get(), EPOLLIN);
  }
}

void SocketLane::on_events(uint32_t events) {
  if (events & EPOLLOUT) {
    std::lock_guard lock(write_mutex_);
    if (!stopped_) flush_locked();
  }
  if ((events & ~uint32_t{EPOLLOUT}) == 0) return;
  if (pump()) return;
  Error why;
  {
    std::scoped_lock lock(read_mutex_, write_mutex_);
    if (stopped_) return;
    reactor_.remove(socket_.get());
    stopped_ = true;
    socket_.reset();
    why = read_error_.empty() ? Error{ErrorCode::kClosed, "the peer closed the connection"}
                              : Error{ErrorCode::kMalformed, read_error_};
  }
  events_.on_closed(why);
}

bool SocketLane::readable() {
  std::lock_guard lock(read_mutex_);
  if (ended_ || stopped_) return false;
  char byte;
  return recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

bool SocketLane::pump() {
  std::lock_guard lock(read_mutex_);
  if (ended_ || stopped_) return !ended_;
  bool more = true;
  // Bounded, so that one chatty peer cannot keep the reactor from the others.
  for (int round = 0; more && round < 64; ++round) {
    if (!read_some(&more)) {
      ended_ = true;
      return false;
    }
  }
  return true;
}

bool SocketLane::read_some(bool* more) {
  std::span<std::byte> into = assembler_.buffer();
  iovec iov{into.data(), into.size()};
  msghdr message{};
  message.msg_iov = &iov;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t count = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0) {
    *more = errno == EINTR;
    return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK;
  }
  if (count == 0) return false;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    // One is what our side sends; the room for it holds two, and the second would leak.
    for (size_t at = 0; at + sizeof(int) <= header->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + at, sizeof fd);
      pending_fd_.reset(fd);
    }
  }
  if (!assembler_.advance(static_cast<size_t>(count), peer_)) {
    read_error_ = assembler_.error();
    return false;
  }
  if (MessagePtr done = assembler_.take()) events_.on_message(std::move(done), std::move(pending_fd_));
  *more = true;
  return true;
}

}  // namespace monarch
