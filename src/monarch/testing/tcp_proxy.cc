#include "monarch/testing/tcp_proxy.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>

#include "monarch/base/check.h"
#include "monarch/base/clock.h"

namespace monarch::testing {

namespace {

constexpr size_t kRoom = 1 << 20;  // of each direction
constexpr size_t kOneRead = 64 << 10;

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

UniqueFd tcp_socket() {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  MONARCH_CHECK(socket);
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

}  // namespace

TcpProxy::TcpProxy(uint16_t to_port)
    : to_port_(to_port), listener_(tcp_socket()), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  MONARCH_CHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  MONARCH_CHECK(listen(listener_.get(), 512) == 0);
  MONARCH_CHECK(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { run(); });
}

TcpProxy::~TcpProxy() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
}

void TcpProxy::wake() { eventfd_write(wake_.get(), 1); }

void TcpProxy::cut(bool with_reset) {
  std::lock_guard lock(mutex_);
  end_all(with_reset);
  wake();
}

void TcpProxy::cut_after(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  cut_after_ = bytes;
}

void TcpProxy::cut_always_after(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  cut_after_ = cut_again_after_ = bytes;
}

void TcpProxy::hold() {
  std::lock_guard lock(mutex_);
  held_ = true;
  wake();
}

void TcpProxy::heal() {
  std::lock_guard lock(mutex_);
  held_ = false;
  wake();
}

void TcpProxy::delay(int64_t delay_ns) {
  std::lock_guard lock(mutex_);
  delay_ns_ = delay_ns;
  wake();
}

void TcpProxy::limit_each(uint64_t bytes_per_s) {
  std::lock_guard lock(mutex_);
  bytes_per_s_ = bytes_per_s;
}

void TcpProxy::hold_one(int connection) {
  std::lock_guard lock(mutex_);
  for (auto& pair : pairs_) pair->held |= pair->number == connection;
  wake();
}

void TcpProxy::cut_one(int connection, bool with_reset) {
  std::lock_guard lock(mutex_);
  for (auto& pair : pairs_) {
    if (pair->number == connection) end(*pair, with_reset);
  }
  wake();
}

std::vector<uint64_t> TcpProxy::bytes_of_each() const {
  std::lock_guard lock(mutex_);
  return bytes_of_each_;
}

void TcpProxy::close_port() {
  std::lock_guard lock(mutex_);
  listener_.reset();
  wake();
}

// mutex_ held, here and below.
void TcpProxy::end(Pair& pair, bool with_reset) {
  pair.dead = true;
  for (UniqueFd& end : pair.ends) {
    const linger at_once{1, 0};
    if (with_reset) setsockopt(end.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    shutdown(end.get(), SHUT_RDWR);
  }
}

void TcpProxy::end_all(bool with_reset) {
  for (auto& pair : pairs_) end(*pair, with_reset);
  cut_after_ = cut_again_after_;
  if (!pairs_.empty()) ++cuts_;
}

void TcpProxy::accept_one() {
  UniqueFd in(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!in) return;
  const int on = 1;
  setsockopt(in.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  UniqueFd out = tcp_socket();
  const sockaddr_in address = loopback(to_port_);
  // On this machine that is decided at once.
  const int connected = connect(out.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  if (connected != 0 && errno != EINPROGRESS) return;
  auto pair = std::make_unique<Pair>();
  pair->ends[0] = std::move(in);
  pair->ends[1] = std::move(out);
  pair->number = connections_++;
  bytes_of_each_.push_back(0);
  pairs_.push_back(std::move(pair));
}

void TcpProxy::read_from(Pair& pair, int side) {
  Waiting waiting{monotonic_ns() + delay_ns_, std::vector<char>(kOneRead)};
  const ssize_t count = recv(pair.ends[side].get(), waiting.bytes.data(), waiting.bytes.size(), 0);
  if (count < 0) {
    pair.dead |= errno != EAGAIN && errno != EINTR;
    return;
  }
  Direction& direction = pair.from[side];
  if (count == 0) {
    direction.ended = true;
    return;
  }
  waiting.bytes.resize(static_cast<size_t>(count));
  if (bytes_per_s_ != 0) {
    const double takes_s = static_cast<double>(count) / static_cast<double>(bytes_per_s_);
    waiting.due_ns = std::max(waiting.due_ns, direction.free_ns) + static_cast<int64_t>(takes_s * 1e9);
    direction.free_ns = waiting.due_ns;
  }
  direction.size += waiting.bytes.size();
  direction.waiting.push_back(std::move(waiting));
}

// What has come from the other side.
void TcpProxy::write_to(Pair& pair, int side, int64_t now_ns) {
  Direction& direction = pair.from[1 - side];
  while (!direction.waiting.empty() && direction.waiting.front().due_ns <= now_ns) {
    Waiting& front = direction.waiting.front();
    const size_t left = std::min<uint64_t>(front.bytes.size() - front.sent, cut_after_);
    const ssize_t count = send(pair.ends[side].get(), front.bytes.data() + front.sent, left, MSG_NOSIGNAL);
    if (count < 0) {
      pair.dead |= errno != EAGAIN && errno != EINTR && errno != ENOTCONN;
      return;
    }
    front.sent += static_cast<size_t>(count);
    direction.size -= static_cast<size_t>(count);
    bytes_ += static_cast<uint64_t>(count);
    bytes_of_each_[static_cast<size_t>(pair.number)] += static_cast<uint64_t>(count);
    if (cut_after_ != UINT64_MAX) cut_after_ -= static_cast<uint64_t>(count);
    if (front.sent == front.bytes.size()) direction.waiting.pop_front();
    if (cut_after_ == 0) return end_all(bytes_ % 2 == 0);
  }
  if (direction.ended && !direction.told && direction.waiting.empty()) {
    direction.told = true;
    shutdown(pair.ends[side].get(), SHUT_WR);
  }
}

int TcpProxy::timeout_ms(int64_t now_ns) const {
  int64_t due_ns = INT64_MAX;
  for (const auto& pair : pairs_) {
    if (pair->held) continue;
    for (const Direction& direction : pair->from) {
      if (!direction.waiting.empty() && direction.waiting.front().due_ns > now_ns) {
        due_ns = std::min(due_ns, direction.waiting.front().due_ns);
      }
    }
  }
  return due_ns == INT64_MAX || held_ ? -1 : static_cast<int>((due_ns - now_ns + 999'999) / 1'000'000);
}

void TcpProxy::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const int64_t now_ns = monotonic_ns();
    std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}};
    if (listener_ && !held_) watched.push_back({listener_.get(), POLLIN, 0});
    const size_t first = watched.size();
    for (const auto& pair : pairs_) {
      for (int side = 0; side < 2; ++side) {
        const Direction& out = pair->from[1 - side];
        short events = 0;
        if (!pair->from[side].ended && pair->from[side].size < kRoom) events |= POLLIN;
        const bool due = !out.waiting.empty() && out.waiting.front().due_ns <= now_ns;
        if (due || (out.waiting.empty() && out.ended && !out.told)) events |= POLLOUT;
        watched.push_back({held_ || pair->held ? -1 : pair->ends[side].get(), events, 0});
      }
    }
    const int timeout = timeout_ms(now_ns);
    const size_t known = pairs_.size();
    lock.unlock();
    poll(watched.data(), watched.size(), timeout);
    lock.lock();
    eventfd_t ignored;
    if (watched[0].revents != 0) eventfd_read(wake_.get(), &ignored);
    if (held_ || stopping_) continue;
    if (first == 2 && (watched[1].revents & POLLIN) != 0 && listener_) accept_one();
    for (size_t i = 0; i < known; ++i) {
      for (int side = 0; side < 2 && !pairs_[i]->dead && !pairs_[i]->held; ++side) {
        const short ready = watched[first + 2 * i + static_cast<size_t>(side)].revents;
        if ((ready & (POLLIN | POLLHUP | POLLERR)) != 0 && !pairs_[i]->from[side].ended) read_from(*pairs_[i], side);
        if (!pairs_[i]->dead) write_to(*pairs_[i], side, monotonic_ns());
      }
    }
    std::erase_if(pairs_, [](const auto& pair) { return pair->dead || (pair->from[0].told && pair->from[1].told); });
  }
}

}  // namespace monarch::testing
