// Two ends of one connection of TCP, on this machine.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "monarch/base/check.h"
#include "monarch/base/system.h"

namespace monarch::testing {

inline void make_tcp_pair(UniqueFd out[2]) {
  UniqueFd listener = sys::make_socket(AF_INET, SOCK_STREAM);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  MONARCH_CHECK(listener && bind(listener.get(), any, size) == 0 && listen(listener.get(), 1) == 0);
  MONARCH_CHECK(getsockname(listener.get(), any, &size) == 0);
  out[0] = sys::make_socket(AF_INET, SOCK_STREAM);
  MONARCH_CHECK(out[0] && connect(out[0].get(), any, size) == 0);
  out[1] = sys::accept(listener.get());
  MONARCH_CHECK(out[1]);
  const int on = 1;
  for (int side = 0; side < 2; ++side) setsockopt(out[side].get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace monarch::testing
