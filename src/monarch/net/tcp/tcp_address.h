// Addresses of TCP, as people write them:
//
//   tcp://host:port         host: a name, or an address of IPv4
//   tcp://[v6]:port         an address of IPv6, perhaps with its interface: [fe80::1%eth0]
//   tcp://*:port            on all interfaces, as is tcp://[::]:port; only to listen on
//   tcp://A:p@tcp://B:q     listens on B and is reached at A (a forwarded port, a name that only others know)
//   tcp://host:fd7          a socket that this process has been given, as its descriptor 7; only to listen on
//
// Port 0 is only to listen on: the kernel chooses one.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "monarch/base/result.h"

namespace monarch {

// One end: where to listen, or whom to connect to.
struct TcpEndpoint {
  std::string host;  // "*": everywhere
  uint16_t port = 0;
  int fd = -1;  // in place of the port: a socket that is there

  bool everywhere() const { return host == "*" || host == "::" || host == "0.0.0.0"; }
  std::string to_text() const;  // "tcp://host:port"
  bool operator==(const TcpEndpoint&) const = default;
};

struct TcpAddress {
  TcpEndpoint dial;                 // where others find it
  std::optional<TcpEndpoint> bind;  // where it listens, if that is somewhere else

  const TcpEndpoint& listening() const { return bind ? *bind : dial; }
  std::string to_text() const;
  // kMalformed: what is wrong with `text`, and how it is written.
  static Result<TcpAddress> parse(std::string_view text);
  // Somebody can connect to it. kMalformed: why not.
  Status check_dialled() const;
  bool operator==(const TcpAddress&) const = default;
};

// What the kernel understands.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  uint16_t port() const;
  bool is_loopback() const;  // of this machine only
  std::string host() const;  // "1.2.3.4"
  std::string to_text() const;  // "tcp://1.2.3.4:5"

  // Of a socket: its own end, or that of its peer. Family 0: it has none.
  static SocketAddress of_socket(int socket);
  static SocketAddress of_peer(int socket);
};

// Without asking anybody: `endpoint` is numeric. None: it has a name.
std::optional<SocketAddress> numeric_address(const TcpEndpoint& endpoint);
// Asks whoever the system asks, which may take as long as that likes: not on the reactor. In the order in which they are to
// be tried. kUnavailable: the name is not known now, and what the system says of it.
Result<std::vector<SocketAddress>> look_up(const TcpEndpoint& endpoint);

}  // namespace monarch
