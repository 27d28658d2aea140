#include "monarch/net/local/local_socket.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "monarch/base/hex.h"
#include "monarch/base/system.h"

namespace monarch {

namespace {

constexpr int kBacklog = 512;

socklen_t address_of(const JobId& job, NodeId node, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const std::string name = local_name(job, node);
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace

std::string local_name(const JobId& job, NodeId node) {
  return "monarch-" + to_hex(job.data(), job.size()) + "-" + to_hex(&node, sizeof node);
}

std::string LocalTransport::describe(const Identity& own) const { return "@" + local_name(own.job, own.node); }

Result<UniqueFd> LocalTransport::listen(const JobId& job, NodeId node) {
  sockaddr_un address;
  const socklen_t size = address_of(job, node, &address);
  UniqueFd listener = sys::make_socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK);
  if (!listener || bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener.get(), kBacklog) != 0) {
    return sys::shortage_error("listen for peers");
  }
  return listener;
}

Result<std::unique_ptr<Channel>> LocalTransport::connect(const Identity& as, NodeId peer, bool* busy) {
  *busy = false;
  sockaddr_un address;
  const socklen_t size = address_of(as.job, peer, &address);
  UniqueFd socket = sys::make_socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK);
  if (!socket) return sys::shortage_error("make a socket to another process");
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) == 0) {
    return std::unique_ptr<Channel>(std::make_unique<SocketChannel>(std::move(socket)));
  }
  // Only this is its word: it listens from before it exists to its end. EAGAIN: its queue is full. Anything else is ours.
  if (errno == ECONNREFUSED) {
    return Error{ErrorCode::kClosed, std::string("the process cannot be reached: ") + std::strerror(errno)};
  }
  *busy = errno == EAGAIN;
  return sys::shortage_error("connect to another process");
}

Result<std::unique_ptr<Channel>> LocalTransport::admit(UniqueFd socket) const {
  ucred peer;
  socklen_t size = sizeof peer;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid()) {
    return std::unique_ptr<Channel>(std::make_unique<SocketChannel>(std::move(socket)));
  }
  return Error{ErrorCode::kUnsupported, "it comes from another user"};
}

}  // namespace monarch
