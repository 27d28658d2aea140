#include "monarch/net/socket_lane.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "monarch/base/forked.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {
// What one event reads, or writes, at most (and the rest of a record): one chatty peer, or one that takes as fast as we
// write, must not keep the reactor from the others. It comes again, since epoll is level-triggered.
constexpr uint64_t kBytesPerEvent = 1 << 20;
constexpr int kReadsPerEvent = 256;
constexpr int64_t kShortageRetryNs = 10'000'000;

bool is_shortage(int error) {
  return error == ETOOMANYREFS || error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}
}  // namespace

SocketLane::SocketLane(Reactor& reactor, NodeId peer, uint64_t record_size_max, Events events)
    : reactor_(reactor), peer_(peer), events_(std::move(events)), assembler_(ArenaParts::kRefused, record_size_max) {}

SocketLane::~SocketLane() {
  if (!stopped_) stop();
}

void SocketLane::start(UniqueFd socket, std::weak_ptr<void> owner) {
  fcntl(socket.get(), F_SETFL, fcntl(socket.get(), F_GETFL) | O_NONBLOCK);
  std::scoped_lock lock(read_mutex_, write_mutex_);
  if (stopped_) return;
  socket_ = std::move(socket);
  owner_ = owner;
  reactor_.add(socket_.get(), EPOLLIN, [this, owner = std::move(owner)](uint32_t ready) {
    if (auto kept = owner.lock()) on_events(ready);
  });
  flush_locked();
}

void SocketLane::stop() {
  if (in_forked_child()) return;
  // On the reactor nothing can be under way but what calls this.
  std::unique_lock delivery(delivery_mutex_, std::defer_lock);
  if (!reactor_.on_reactor_thread()) delivery.lock();
  std::scoped_lock lock(read_mutex_, write_mutex_);
  if (std::exchange(stopped_, true)) return;
  if (socket_) reactor_.remove(socket_.get());
  socket_.reset();
  queue_.clear();
  aside_.clear();
  inbox_.clear();
  backlog_ = 0;
}

// ---- Writing ----

bool SocketLane::send(const Outgoing& outgoing, int fd) {
  if (in_forked_child()) return false;
  Queued queued{encode_to_vector(outgoing), 0, fd};
  std::lock_guard lock(write_mutex_);
  if (stopped_) return false;
  const bool follows = fd >= 0 && !aside_.empty();
  if (queue_.empty() && socket_ && !follows) {
    const Written written = write_some(queued, UINT64_MAX);
    if (written == Written::kAll) return true;
    if (written == Written::kShortage && queued.fd >= 0) {
      backlog_ += queued.bytes.size();
      put_aside_locked(std::move(queued));
      return false;
    }
    wait_for_room_locked(written);
  }
  backlog_ += queued.bytes.size() - queued.sent;
  if (follows) {
    put_aside_locked(std::move(queued));
    return false;
  }
  queue_.push_back(std::move(queued));
  return false;
}

// Writes as much as the socket takes, about `bytes_max` at most. A broken socket counts as written: its reader says so.
SocketLane::Written SocketLane::write_some(Queued& queued, uint64_t bytes_max) {
  uint64_t bytes = 0;
  while (queued.sent < queued.bytes.size()) {
    if (bytes >= bytes_max) return Written::kNoRoom;
    const auto rest = std::span(queued.bytes).subspan(queued.sent);
    const std::span<const int> beside(&queued.fd, queued.fd >= 0 ? 1 : 0);
    const ssize_t count = sys::send_message(socket_.get(), rest, beside, MSG_DONTWAIT);
    if (count < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Written::kNoRoom;
      return is_shortage(errno) ? Written::kShortage : Written::kAll;
    }
    queued.sent += static_cast<size_t>(count);
    queued.fd = -1;
    bytes += static_cast<size_t>(count);
  }
  return Written::kAll;
}

void SocketLane::flush_locked() {
  uint64_t left = kBytesPerEvent;
  while (!queue_.empty()) {
    Queued& front = queue_.front();
    const size_t before = front.sent;
    const Written written = left == 0 ? Written::kNoRoom : write_some(front, left);
    const uint64_t count = (written == Written::kAll ? front.bytes.size() : front.sent) - before;
    backlog_ -= count;
    left -= std::min(left, count);
    if (written == Written::kShortage && front.fd >= 0) {
      put_aside_locked(std::move(front));
    } else if (written != Written::kAll) {
      return wait_for_room_locked(written);
    }
    queue_.pop_front();
  }
  watch_locked(false);
}

void SocketLane::put_aside_locked(Queued queued) {
  aside_.push_back(std::move(queued));
  retry_later_locked();
}

// A full socket is told by epoll when it has room; nothing tells of the end of a shortage.
void SocketLane::wait_for_room_locked(Written why) {
  watch_locked(why == Written::kNoRoom);
  if (why == Written::kShortage) retry_later_locked();
}

void SocketLane::retry_later_locked() {
  if (std::exchange(retry_armed_, true)) return;
  reactor_.after(kShortageRetryNs, [this, owner = owner_] {
    auto kept = owner.lock();
    if (!kept) return;
    std::lock_guard lock(write_mutex_);
    retry_armed_ = false;
    if (stopped_) return;
    // Not into the middle of a record.
    const bool begun = !queue_.empty() && queue_.front().sent != 0;
    queue_.insert(queue_.begin() + (begun ? 1 : 0), std::move_iterator(aside_.begin()), std::move_iterator(aside_.end()));
    aside_.clear();
    flush_locked();
  });
}

void SocketLane::watch_locked(bool for_room) {
  if (std::exchange(want_write_, for_room) == for_room) return;
  reactor_.modify(socket_.get(), for_room ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

// ---- Reading ----

void SocketLane::on_events(uint32_t events) {
  if (events & EPOLLOUT) {
    std::lock_guard lock(write_mutex_);
    if (!stopped_) flush_locked();
  }
  if ((events & ~uint32_t{EPOLLOUT}) == 0) return;
  const bool alive = read_all();
  deliver();
  if (alive) return;
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

// Whoever stops the lane on another thread waits until this is over.
void SocketLane::deliver() {
  std::lock_guard delivery(delivery_mutex_);
  for (;;) {
    Received next;
    {
      std::lock_guard lock(read_mutex_);
      if (stopped_ || inbox_.empty()) return;
      next = std::move(inbox_.front());
      inbox_.pop_front();
    }
    events_.on_message(std::move(next));
  }
}

bool SocketLane::readable() {
  std::lock_guard lock(read_mutex_);
  if (ended_ || stopped_ || !socket_) return false;
  char byte;
  return recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

bool SocketLane::pump() {
  const bool alive = read_all();
  std::lock_guard lock(read_mutex_);
  if (inbox_.empty() || stopped_) return alive;
  reactor_.post([this, owner = owner_] {
    if (auto kept = owner.lock()) deliver();
  });
  return alive;
}

void SocketLane::drain() {
  while (readable() && read_all()) deliver();
  deliver();
}

bool SocketLane::read_all() {
  std::lock_guard lock(read_mutex_);
  if (ended_ || stopped_ || !socket_) return !ended_;
  bool more = true;
  uint64_t bytes = 0;
  for (int reads = 0; more && reads < kReadsPerEvent && bytes < kBytesPerEvent; ++reads) {
    if (!read_some(&more, &bytes)) {
      ended_ = true;
      return false;
    }
  }
  return true;
}

bool SocketLane::read_some(bool* more, uint64_t* bytes) {
  auto read = sys::receive_message(socket_.get(), assembler_.buffer(), MSG_DONTWAIT);
  if (read.size < 0) {
    *more = false;
    return errno == EAGAIN || errno == EWOULDBLOCK || is_shortage(errno);
  }
  if (read.size == 0) return false;
  pending_fd_lost_ |= read.lost;
  if (!read.fds.empty()) pending_fd_ = std::move(read.fds.back());  // one is what our side sends
  *more = true;
  *bytes += static_cast<size_t>(read.size);
  if (!assembler_.advance(static_cast<size_t>(read.size), peer_)) {
    read_error_ = assembler_.error();
    return false;
  }
  MessagePtr done = assembler_.take();
  if (!done) return true;
  Received received{std::move(done), std::move(pending_fd_), std::exchange(pending_fd_lost_, false)};
  const Verdict verdict = events_.on_read ? events_.on_read(received) : Verdict::kDeliver;
  if (verdict == Verdict::kMalformed) read_error_ = "it is not what may be said there";
  if (verdict == Verdict::kDeliver) inbox_.push_back(std::move(received));
  return verdict != Verdict::kMalformed;
}

}  // namespace monarch
