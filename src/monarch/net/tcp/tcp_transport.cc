#include "monarch/net/tcp/tcp_transport.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <new>

#include "monarch/base/host_name.h"
#include "monarch/base/system.h"
#include "monarch/net/tcp/tcp_channel.h"

namespace monarch {

namespace {

constexpr int kBacklog = 512;

SocketAddress every_interface(int family, uint16_t port) {
  SocketAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    v6->sin6_port = htons(port);
    v6->sin6_addr = in6addr_any;
    address.size = sizeof *v6;
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    v4->sin_port = htons(port);
    v4->sin_addr.s_addr = htonl(INADDR_ANY);
    address.size = sizeof *v4;
  }
  return address;
}

}  // namespace

// One socket, which both ends have: nothing more is to be handed over.
class TcpTransport::Setup final : public LinkSetup {
 public:
  Result<std::vector<int>> offer() override { return std::vector<int>{}; }
  Result<std::vector<int>> accept(std::vector<UniqueFd> fds) override {
    if (!fds.empty()) return Error{ErrorCode::kMalformed, "an offer with descriptors that nobody wants"};
    return std::vector<int>{};
  }
  Status agree(std::vector<UniqueFd> fds) override {
    if (!fds.empty()) return Error{ErrorCode::kMalformed, "bad answer"};
    return Ok{};
  }
  void start(Link& link, std::unique_ptr<Channel> channel) override {
    static_cast<TcpLink&>(link).start(std::move(channel));
  }
};

TcpTransport::TcpTransport(Reactor& reactor, Options options)
    : reactor_(reactor),
      options_(std::move(options)),
      lease_ns_(options_.lease_ns),
      silence_ns_(options_.silence_ns),
      dial_ns_(options_.dial_ns),
      tls_(options_.tls) {
  MONARCH_CHECK(options_.lease_ns > 0 && options_.silence_ns >= 100'000'000 && options_.dial_ns > 0);
}

TcpTransport::~TcpTransport() = default;

// ---- Where nodes are ----

Status TcpTransport::set_place(NodeId node, const TcpAddress& address) {
  if (auto dialled = address.check_dialled(); !dialled) return dialled;
  auto place = std::make_shared<Place>(address, options_.look_up);  // shared: see places_
  std::lock_guard lock(mutex_);
  std::shared_ptr<Place>& known = places_[node];
  if (!known || !(known->address == address)) known.swap(place);
  return Ok{};
}

void TcpTransport::forget_place(NodeId node) {
  std::lock_guard lock(mutex_);
  places_.erase(node);
}

std::optional<TcpAddress> TcpTransport::known_place(NodeId node) const {
  const std::shared_ptr<Place> place = place_of(node);
  return place ? std::optional(place->address) : std::nullopt;
}

void TcpTransport::use(std::shared_ptr<const TlsContext> tls, int64_t lease_ns, int64_t silence_ns, int64_t dial_ns) {
  lease_ns_ = lease_ns;
  silence_ns_ = silence_ns;
  dial_ns_ = dial_ns;
  std::lock_guard lock(mutex_);
  tls_ = std::move(tls);
}

std::shared_ptr<const TlsContext> TcpTransport::tls() const {
  std::lock_guard lock(mutex_);
  return tls_;
}

void TcpTransport::go_by(Way way) {
  auto made = std::make_shared<const Way>(std::move(way));
  std::lock_guard lock(mutex_);
  way_ = std::move(made);
}

std::shared_ptr<const TcpTransport::Way> TcpTransport::way() const {
  std::lock_guard lock(mutex_);
  return way_;
}

std::shared_ptr<TcpTransport::Place> TcpTransport::place_of(NodeId node) const {
  std::lock_guard lock(mutex_);
  const auto found = places_.find(node);
  return found == places_.end() ? nullptr : found->second;
}

bool TcpTransport::reaches(const Identity&, NodeId peer) const { return place_of(peer) != nullptr; }

std::optional<TcpAddress> TcpTransport::place() const {
  std::lock_guard lock(mutex_);
  return own_;
}

std::string TcpTransport::describe(const Identity&) const {
  if (const auto own = place()) return own->dial.to_text();
  return options_.listen ? options_.listen->to_text() : "";
}

Status TcpTransport::allow(const SocketAddress& address, const char* what) const {
  if (has_tls() || options_.plain_anywhere || address.is_loopback()) return Ok{};
  return Error{ErrorCode::kUnsupported, std::string("refused to ") + what + " " + address.to_text() +
                                            " without TLS: anybody on the way could read and change what is sent"};
}

int TcpTransport::unsent_ms() const {
  return static_cast<int>(std::clamp<int64_t>(lease_ns_ / 1'000'000, 10'000, INT_MAX));
}

// ---- Listening ----

Result<UniqueFd> TcpTransport::listen(const JobId&, NodeId) {
  if (!options_.listen) return Error{ErrorCode::kBug, "this process has no address to listen on"};
  const TcpEndpoint& at = options_.listen->listening();
  auto listener = at.fd >= 0 ? take_over(at.fd) : listen_on(at);
  if (!listener) return listener;
  TcpAddress own{options_.listen->dial, std::nullopt};
  if (own.dial.everywhere()) own.dial.host = host_name();
  if (own.dial.port == 0) own.dial.port = SocketAddress::of_socket(listener->get()).port();
  own.dial.fd = -1;
  std::lock_guard lock(mutex_);
  own_ = std::move(own);
  return listener;
}

Result<UniqueFd> TcpTransport::listen_on(const TcpEndpoint& at) {
  std::vector<SocketAddress> addresses;
  if (at.everywhere() && at.host != "0.0.0.0") {
    addresses = {every_interface(AF_INET6, at.port), every_interface(AF_INET, at.port)};
  } else if (auto found = look_up(at); found) {  // nothing runs here yet that would have to wait
    addresses = std::move(*found);
  } else {
    return found.error();
  }
  for (const SocketAddress& address : addresses) {
    if (auto allowed = allow(address, "listen on"); !allowed) return allowed.error();
  }
  Result<UniqueFd> listener = Error{ErrorCode::kUnavailable, "no address to listen on"};
  for (const SocketAddress& address : addresses) {
    listener = listen_at(address);
    if (listener) break;
  }
  return listener;
}

// Whoever has started this process has bound it, and may listen already.
Result<UniqueFd> TcpTransport::take_over(int fd) const {
  const auto bad = [fd](const std::string& why) {
    return Error{ErrorCode::kUnsupported, "cannot listen on descriptor " + std::to_string(fd) + ": " + why};
  };
  int type = 0, listens = 0;
  socklen_t size = sizeof type;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
    return bad(errno == EBADF ? "this process has not been given one" : "it is no socket");
  }
  const SocketAddress address = SocketAddress::of_socket(fd);
  if (type != SOCK_STREAM || (address.family() != AF_INET && address.family() != AF_INET6)) {
    return bad("it is no socket of TCP");
  }
  if (address.port() == 0) return bad("it is not bound to a port");
  if (auto allowed = allow(address, "listen on"); !allowed) return allowed.error();
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0) listens = 0;
  if (listens == 0 && ::listen(fd, kBacklog) != 0) return bad(std::strerror(errno));
  if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) return bad(std::strerror(errno));
  return UniqueFd(fd);
}

Result<UniqueFd> TcpTransport::listen_at(const SocketAddress& address) {
  const std::string what = "listen on " + address.to_text();
  UniqueFd listener = sys::make_socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK);
  const int on = 1, off = 0;
  if (listener && address.family() == AF_INET6) {
    static_cast<void>(setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
  }
  // A port whose last user's connections are still being forgotten is free.
  if (listener) static_cast<void>(setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
  if (listener && bind(listener.get(), address.get(), address.size) == 0 && ::listen(listener.get(), kBacklog) == 0) {
    return listener;
  }
  if (errno == EADDRINUSE) return Error{ErrorCode::kUnavailable, "cannot " + what + ": another program listens there"};
  if (errno == EADDRNOTAVAIL) return Error{ErrorCode::kUnsupported, "cannot " + what + ": that is not this machine"};
  if (errno == EACCES) return Error{ErrorCode::kUnsupported, "cannot " + what + ": this user may not have that port"};
  return sys::shortage_error(what.c_str());
}

Result<std::unique_ptr<Channel>> TcpTransport::admit(UniqueFd socket) const {
  prepare_tcp_socket(socket.get(), unsent_ms());
  return channel_over(std::make_unique<TcpChannel>(std::move(socket)), true);
}

Result<std::unique_ptr<Channel>> TcpTransport::channel_over(std::unique_ptr<Channel> stream, bool accepts) const {
  auto context = tls();
  if (!context) return stream;
  try {
    return std::unique_ptr<Channel>(std::make_unique<TlsChannel>(std::move(stream), std::move(context), accepts));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::kUnavailable, "out of memory for TLS with another host"};
  }
}

// ---- Dialling ----

Result<std::unique_ptr<Channel>> TcpTransport::connect(const Identity&, NodeId peer, bool* busy) {
  *busy = false;
  const std::shared_ptr<Place> place = place_of(peer);
  if (!place) return Error{ErrorCode::kUnavailable, "where the process is, is not known any more"};
  if (const auto way = this->way()) {
    auto stream = (*way)(place->address.dial, busy);
    if (!stream) return stream.error();
    return channel_over(std::move(*stream), false);
  }
  auto addresses = place->lookup.addresses(busy);
  if (!addresses) {
    if (!*busy) place->lookup.forget();  // asked again with the next dial
    return addresses.error();
  }
  const SocketAddress to = (*addresses)[place->next % addresses->size()];
  if (auto allowed = allow(to, "connect to"); !allowed) return allowed.error();
  UniqueFd socket = sys::make_socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK);
  if (!socket) return sys::shortage_error("make a socket to another host");
  prepare_tcp_socket(socket.get(), unsent_ms());
  int error = 0;
  if (::connect(socket.get(), to.get(), to.size) != 0 && errno != EINPROGRESS && errno != EINTR) error = errno;
  auto know = [place, count = addresses->size(), to](int found) { return outcome(*place, count, to, found); };
  // What is wrong here and now is told now, if it is not an answer.
  if (error == EAGAIN || error == EADDRNOTAVAIL || error == ENOBUFS || error == ENOMEM) {
    errno = error;
    return sys::shortage_error(("connect to " + to.to_text() + " (out of local ports?)").c_str());
  }
  if (error != 0) {
    const auto told = know(error);
    return told.error().code == ErrorCode::kRefused ? Error{ErrorCode::kClosed, told.error().message}
                                                    : Error{ErrorCode::kUnavailable, told.error().message};
  }
  return channel_over(std::make_unique<TcpChannel>(std::move(socket), std::move(know)), false);
}

// That nobody listens is an answer once each of its addresses has given it.
Result<bool> TcpTransport::outcome(Place& place, size_t addresses, const SocketAddress& to, int error) {
  if (error == 0) {
    place.refused = 0;
    return true;
  }
  ++place.next;
  place.refused = error == ECONNREFUSED ? place.refused + 1 : 0;
  const std::string what = to.to_text() + " cannot be reached: " + std::strerror(error);
  if (place.refused >= addresses) return Error{ErrorCode::kRefused, what};
  if (place.next % addresses == 0) place.lookup.forget();  // perhaps the host has moved
  return Error{ErrorCode::kClosed, what};
}

std::shared_ptr<Link> TcpTransport::new_link(LinkSink& sink, NodeId peer) {
  auto link = std::make_shared<TcpLink>(reactor_, sink, peer, silence_ns_);
  link->use_stripes(options_.stripes);
  return link;
}

std::unique_ptr<LinkSetup> TcpTransport::new_setup() { return std::make_unique<Setup>(); }

Result<ChildEnds> TcpTransport::start_to_child(Link&) {
  return Error{ErrorCode::kUnsupported, "a child is on this machine, and has a link of this machine"};
}

Status TcpTransport::start_to_parent(Link&, ChildEnds) {
  return Error{ErrorCode::kUnsupported, "a parent is on this machine, and has a link of this machine"};
}

}  // namespace monarch
