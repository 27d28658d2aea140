#include "monarch/net/tcp/tcp_address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>

namespace monarch {

namespace {

constexpr std::string_view kScheme = "tcp://", kFd = "fd";
constexpr size_t kSchemeSizeMax = 32;  // of another transport, which is named
constexpr size_t kHostSizeMax = 253;   // of a name, RFC 1035
constexpr size_t kTextSizeMax = 2048;  // what is longer is nothing that anybody has typed
constexpr size_t kAnswersMax = 16;     // of one name

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
}

bool is_name(std::string_view host) {
  return !host.empty() && host.size() <= kHostSizeMax && host[0] != '-' && std::all_of(host.begin(), host.end(), is_plain);
}

bool is_v6(std::string_view host) {
  const size_t percent = host.find('%');
  const std::string address(host.substr(0, percent));
  in6_addr bytes;
  if (address.size() > INET6_ADDRSTRLEN || address.find('\0') != address.npos) return false;
  if (inet_pton(AF_INET6, address.c_str(), &bytes) != 1) return false;
  if (percent == std::string_view::npos) return true;
  const std::string_view interface = host.substr(percent + 1);
  return interface.size() < IF_NAMESIZE && is_name(interface);
}

// A bad text is shown, but not a page of it.
Error bad(std::string_view text, const std::string& why) {
  std::string shown;
  for (const char c : text.substr(0, 80)) shown += c >= ' ' && c <= '~' ? c : '?';
  return {ErrorCode::kMalformed, "'" + shown + (text.size() > 80 ? "..." : "") + "' is no address: " + why +
                                     "; write tcp://HOST:PORT, tcp://[IPV6]:PORT or tcp://*:PORT"};
}

// There is one way to write it.
template <typename Number>
bool read_number(std::string_view text, Number& number) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || rest != text.data() + text.size()) return false;
  return text[0] != '-' && (text[0] != '0' || text.size() == 1);
}

Result<TcpEndpoint> parse_endpoint(std::string_view whole, std::string_view text) {
  if (!text.starts_with(kScheme)) {
    const size_t colon = text.find("://");
    const bool other = colon <= kSchemeSizeMax && is_name(text.substr(0, colon));
    if (!other) return bad(whole, "it does not begin with tcp://");
    return bad(whole, "'" + std::string(text.substr(0, colon)) + "' is another transport");
  }
  text.remove_prefix(kScheme.size());
  TcpEndpoint endpoint;
  size_t end;
  if (text.starts_with('[')) {
    end = text.find(']');
    if (end == std::string_view::npos) return bad(whole, "a bracket is not closed");
    endpoint.host = text.substr(1, end - 1);
    if (!is_v6(endpoint.host)) return bad(whole, "what is in the brackets is no address of IPv6");
    ++end;
  } else {
    end = text.find(':');
    endpoint.host = text.substr(0, end);
    if (end != std::string_view::npos && text.find(':', end + 1) != std::string_view::npos) {
      return bad(whole, "an address of IPv6 stands in brackets");
    }
    if (!endpoint.everywhere() && !is_name(endpoint.host)) return bad(whole, "there is no name or address of a host");
  }
  if (end == std::string_view::npos || end >= text.size() || text[end] != ':') return bad(whole, "there is no port");
  const std::string_view port = text.substr(end + 1);
  if (port.starts_with(kFd)) {
    if (!read_number(port.substr(kFd.size()), endpoint.fd)) return bad(whole, "a descriptor is written as fd7");
  } else if (!read_number(port, endpoint.port)) {
    return bad(whole, "a port is a number from 0 to 65535");
  }
  return endpoint;
}

bool is_v6_text(const std::string& host) { return host.find(':') != std::string::npos; }

}  // namespace

std::string TcpEndpoint::to_text() const {
  return std::string(kScheme) + (is_v6_text(host) ? "[" + host + "]" : host) + ":" +
         (fd >= 0 ? std::string(kFd) + std::to_string(fd) : std::to_string(port));
}

std::string TcpAddress::to_text() const { return bind ? dial.to_text() + "@" + bind->to_text() : dial.to_text(); }

Result<TcpAddress> TcpAddress::parse(std::string_view text) {
  if (text.size() > kTextSizeMax) return bad(text, "it is " + std::to_string(text.size()) + " characters long");
  TcpAddress address;
  const size_t at = text.find('@');
  auto first = parse_endpoint(text, text.substr(0, at));
  if (!first) return first.error();
  address.dial = std::move(*first);
  if (at == std::string_view::npos) return address;
  auto second = parse_endpoint(text, text.substr(at + 1));
  if (!second) return second.error();
  address.bind = std::move(*second);
  if (auto dialled = address.check_dialled(); !dialled) return dialled.error();
  return address;
}

Status TcpAddress::check_dialled() const {
  if (dial.everywhere()) return bad(to_text(), "nobody can connect to '" + dial.host + "'");
  if (dial.fd >= 0) return bad(to_text(), "nobody can connect to a descriptor");
  if (dial.port == 0) return bad(to_text(), "nobody can connect to port 0");
  return Ok{};
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return 0;
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  if (family() != AF_INET6) return false;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == IN_LOOPBACKNET);
}

std::string SocketAddress::host() const {
  char host[NI_MAXHOST];
  return getnameinfo(get(), size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0 ? host : "";
}

std::string SocketAddress::to_text() const {
  const std::string numeric = host();
  return numeric.empty() ? "an unknown address" : TcpEndpoint{numeric, port()}.to_text();
}

SocketAddress SocketAddress::of_socket(int socket) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return {};
  return address;
}

SocketAddress SocketAddress::of_peer(int socket) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return {};
  return address;
}

namespace {
Result<std::vector<SocketAddress>> ask(const TcpEndpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* answers = nullptr;
  const int error = getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &answers);
  if (error != 0) {
    const char* why = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
    return Error{ErrorCode::kUnavailable, "the address of '" + endpoint.host + "' cannot be found: " + why};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(answers, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* answer = answers; answer != nullptr && addresses.size() < kAnswersMax; answer = answer->ai_next) {
    if (answer->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, answer->ai_addr, answer->ai_addrlen);
    address.size = answer->ai_addrlen;
  }
  return addresses;
}
}  // namespace

std::optional<SocketAddress> numeric_address(const TcpEndpoint& endpoint) {
  auto addresses = ask(endpoint, AI_NUMERICHOST);
  if (!addresses || addresses->empty()) return std::nullopt;
  return addresses->front();
}

Result<std::vector<SocketAddress>> look_up(const TcpEndpoint& endpoint) { return ask(endpoint, AI_ADDRCONFIG); }

}  // namespace monarch
