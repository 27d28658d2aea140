#include "monarch/host/start/host_dial.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "monarch/base/log.h"
#include "monarch/base/random.h"
#include "monarch/base/system.h"
#include "monarch/host/membership/token_file.h"
#include "monarch/wire/failure.h"

namespace monarch {

namespace {

constexpr int64_t kRetryNs = 20'000'000;
constexpr std::string_view kUnnamed = "service";
constexpr size_t kIdentityMax = 128;

bool is_identity(std::string_view text) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == '<' || c == '>';
  };
  return !text.empty() && text.size() <= kIdentityMax && std::all_of(text.begin(), text.end(), good);
}

// The number, where there is one.
std::string_view what_counts(std::string_view identity) {
  const size_t number = identity.find('<');
  return number == std::string_view::npos ? identity : identity.substr(number);
}

}  // namespace

std::string HostdAddress::to_text() const {
  return (identity.empty() ? "" : identity + "@") + (tcp ? tcp->to_text() : "ipc://" + path);
}

std::optional<std::string> HostdAddress::refuses(const std::string& wanted) const {
  const std::string own = identity.empty() ? std::string(kUnnamed) : identity;
  if (wanted.empty() || what_counts(wanted) == what_counts(own)) return std::nullopt;
  return "it is " + own + ", not " + wanted;
}

Result<HostdAddress> HostdAddress::parse(const std::string& whole, std::string token_file) {
  static constexpr std::string_view kIpc = "ipc://", kTls = "tls://";
  HostdAddress address;
  address.token_file = std::move(token_file);
  std::string text = whole;
  if (const size_t at = text.find('@'); at < text.find("://")) {
    address.identity = text.substr(0, at);
    text.erase(0, at + 1);
    if (!is_identity(address.identity)) {
      return Error{ErrorCode::kMalformed, "what stands in front of '@" + text.substr(0, 80) +
                                              "' is no identity of a host, such as service or service<2MuAHeDjLCEd>"};
    }
  }
  if (text.starts_with(kIpc)) {
    address.path = text.substr(kIpc.size());
    sockaddr_un checked;
    if (auto size = socket_address(address.path, checked); !size) return size.error();
    return address;
  }
  // It is TLS always.
  for (size_t at = 0; at != std::string::npos; at = text.find('@', at + 1)) {
    const size_t scheme = at == 0 ? 0 : at + 1;
    if (text.compare(scheme, kTls.size(), kTls) == 0) text.replace(scheme, kTls.size(), "tcp://");
  }
  auto tcp = TcpAddress::parse(text);
  if (!tcp) return tcp.error();
  address.tcp = std::move(*tcp);
  return address;
}

Result<socklen_t> socket_address(const std::string& path, sockaddr_un& address) {
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Error{ErrorCode::kUnsupported, "the path of a socket has from 1 to " +
                                              std::to_string(sizeof address.sun_path - 1) + " bytes, and " + path +
                                              " has " + std::to_string(path.size())};
  }
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  const size_t size = offsetof(sockaddr_un, sun_path) + path.size() + (path[0] == '@' ? 0 : 1);
  return static_cast<socklen_t>(size);
}

std::string waits_for(const HostdAddress& address, const std::string& more, int64_t left_ns, const std::string& why) {
  const int64_t left_s = (left_ns + 500'000'000) / 1'000'000'000;
  return "waiting for the host at " + address.to_text() + more + ", for " + std::to_string(left_s) + " s yet: " + why;
}

Error no_token(const Error& why) { return {why.code, "this process has no token to show it: " + why.message}; }

HelloIdentity hostd_identity(const NodeKey& key, const JobToken& token) {
  static constexpr char kEveryHostd[sizeof(JobId) + 1] = "monarch-hostd-01";
  HelloIdentity identity;
  identity.node = key.id();
  identity.key = key;
  identity.token = token;
  std::memcpy(identity.job.data(), kEveryHostd, identity.job.size());
  return identity;
}

void HostDial::start(Reactor& reactor, HostdAddress address, Done done) {
  const int64_t until_ns = reactor.now_ns() + address.wait_ns;
  std::shared_ptr<HostDial>(new HostDial(reactor, std::move(address), until_ns, std::move(done)))->attempt();
}

void HostDial::attempt() {
  sockaddr_un address;
  auto size = socket_address(address_.path, address);
  if (!size) return give_up(size.error().message);
  socket_ = sys::make_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK);
  if (!socket_) return try_again(sys::shortage_error("make a socket").message);
  if (connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), *size) != 0) {
    const bool absent = errno == ECONNREFUSED || errno == ENOENT;
    return try_again(absent ? "nobody listens there" : std::strerror(errno));
  }
  ucred peer{};
  socklen_t peer_size = sizeof peer;
  if (getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) != 0 || peer.uid != geteuid()) {
    return give_up("it belongs to another user");
  }
  if (auto begun = begin_hello(); !begun) return give_up(begun.error().message);
}

void HostDial::try_again(const std::string& why) {
  socket_.reset();
  const int64_t left_ns = until_ns_ - reactor_.now_ns();
  if (left_ns <= 0) return give_up(why);
  if (address_.wait_ns - left_ns >= kSilentWaitNs && !std::exchange(told_of_wait_, true)) {
    log_line_limited("waits for a host", waits_for(address_, "", left_ns, why));
  }
  reactor_.after(kRetryNs, [self = shared_from_this()] { self->attempt(); });
}

Status HostDial::begin_hello() {
  auto token = read_token_file(address_.token_file);
  if (!token) return no_token(token.error());
  SystemRandom random;
  hello_ = std::make_unique<Handshake>(HelloRole::kDialer, hostd_identity(NodeKey::make(random), *token), random);
  if (sys::send_message(socket_.get(), hello_->open_bytes(), {}, MSG_DONTWAIT) < 0) {
    return Error{ErrorCode::kClosed, "it closed the connection"};
  }
  reactor_.add(socket_.get(), EPOLLIN, [self = shared_from_this()](uint32_t) { self->on_readable(); });
  reactor_.after(kHostdHelloLimitNs,
                 [self = shared_from_this()] { self->give_up("it does not answer: is it stopped?"); });
  return Ok{};
}

void HostDial::on_readable() {
  std::byte bytes[512];
  const auto got = sys::receive_message(socket_.get(), bytes, MSG_DONTWAIT);
  if (got.size < 0 && errno == EAGAIN) return;
  if (got.size <= 0) return give_up("it refused this process: " + address_.token_file + " may not hold its token");
  const ByteSpan packet(bytes, static_cast<size_t>(got.size));
  if (proved_) return on_answer({reinterpret_cast<const char*>(bytes), packet.size()});
  if (hello_->state() == Handshake::State::kAwaitingOpen) {
    auto proof = hello_->on_open(packet);
    if (!proof) return give_up(proof.error().message);
    if (sys::send_message(socket_.get(), *proof, {}, MSG_DONTWAIT) < 0) return give_up("it closed the connection");
    return;
  }
  if (auto peer = hello_->on_proof(packet); !peer) return give_up(peer.error().message);
  say_who_is_meant();
}

void HostDial::say_who_is_meant() {
  proved_ = true;
  const std::string means = kMeans + address_.identity;
  if (sys::send_message(socket_.get(), as_byte_span(means.data(), means.size()), {}, MSG_DONTWAIT) < 0) {
    give_up("it closed the connection");
  }
}

void HostDial::on_answer(std::string_view answer) {
  if (answer[0] != kServes) return give_up(std::string(answer.substr(1)));
  reactor_.remove(socket_.get());
  finish(std::move(socket_));
}

void HostDial::give_up(const std::string& why) {
  if (!done_) return;
  if (socket_) reactor_.remove(socket_.get());
  socket_.reset();
  finish(Error{ErrorCode::kClosed, not_attached(address_.to_text(), why)});
}

void HostDial::finish(Result<UniqueFd> result) {
  if (Done done = std::exchange(done_, nullptr)) done(std::move(result));
}

}  // namespace monarch
