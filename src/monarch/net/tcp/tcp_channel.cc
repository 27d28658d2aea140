#include "monarch/net/tcp/tcp_channel.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <utility>

namespace monarch {

TcpChannel::~TcpChannel() {
  if (outcome_ != nullptr) static_cast<void>(outcome_(ETIMEDOUT));  // given up
}

Result<bool> TcpChannel::establish() {
  if (outcome_ == nullptr) return true;
  pollfd socket{fd(), POLLOUT, 0};
  if (poll(&socket, 1, 0) == 0) return false;
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return std::exchange(outcome_, nullptr)(error);
}

void prepare_tcp_socket(int socket, int unsent_ms) {
  // None of these can fail on a socket of TCP for want of something; what is not set costs time and nothing else.
  const int on = 1;
  static_cast<void>(setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
  static_cast<void>(setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &unsent_ms, sizeof unsent_ms));
  static_cast<void>(fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK));
}

// SO_RCVBUF would do it as well, but a buffer whose size was given is never made larger. SO_RCVLOWAT leaves that to the
// kernel (tcp_set_rcvlowat(), net/ipv4/tcp.c, of Linux 4.18 and later), and is taken back for those who wait.
void widen_tcp_socket(int socket, int bytes) {
  for (const int low : {bytes, 1}) static_cast<void>(setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
}

}  // namespace monarch
