#include "monarch/host/start/relay.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "monarch/base/host_name.h"
#include "monarch/base/random.h"
#include "monarch/base/system.h"
#include "monarch/host/membership/token_file.h"
#include "monarch/net/tcp/tcp_channel.h"

namespace monarch {

namespace {

constexpr NodeId kThrough = 1;  // whom a relay's dialer knows
constexpr int64_t kConnectLimitNs = 4'000'000'000;  // for each address
constexpr int64_t kNextAddressNs = 250'000'000;     // until the next is tried beside it (RFC 8305)
constexpr int kAnswerLimitMs = 5000;
constexpr int kUnsentMs = 30'000;
constexpr size_t kPieceBytes = 64 << 10;
constexpr int kPiecesAtOnce = 16;  // before the other direction has its turn
// Of connections on which nothing is said, how soon it is known that the other machine is gone.
constexpr int kKeepAliveS = 30, kKeepAliveEveryS = 10, kKeepAlives = 3;

}  // namespace

Result<std::shared_ptr<TcpTransport>> make_hostd_dialer(Reactor& reactor, const JobToken& token,
                                                        const HostdAddress& address) {
  const auto trust = address.trusts_all ? TlsContext::Trust::kAnybody : TlsContext::Trust::kAuthority;
  auto tls = address.credentials ? TlsContext::make(*address.credentials, trust)
                                 : TlsContext::of_secret(token, host_name(), trust);
  if (!tls) return tls.error();
  TcpTransport::Options options;
  options.tls = std::move(*tls);
  return std::make_shared<TcpTransport>(reactor, std::move(options));
}

// ---- The script ----

Relay::~Relay() { OPENSSL_cleanse(token_.data(), token_.size()); }

// Once: the file may be gone when a connection is made anew.
Status Relay::begin() {
  if (dialer_) return Ok{};
  auto token = read_token_file(through_.token_file);
  if (!token) return Error{ErrorCode::kUnsupported, token.error().message};
  auto made = make_hostd_dialer(reactor_, *token, through_);
  if (!made) return made.error();
  if (auto set = (*made)->set_place(kThrough, *through_.tcp); !set) return set.error();
  token_ = *token;
  dialer_ = std::move(*made);
  return Ok{};
}

Result<std::unique_ptr<Channel>> Relay::connect(const TcpEndpoint& to, bool* busy) {
  *busy = false;
  if (auto begun = begin(); !begun) return begun.error();
  SystemRandom random;
  const NodeKey key = NodeKey::make(random);
  auto under = dialer_->connect({key.id(), key, {}, token_}, kThrough, busy);
  if (!under) {
    return Error{ErrorCode::kUnavailable, "by way of " + through_.to_text() + ": " + under.error().message};
  }
  return std::unique_ptr<Channel>(std::make_unique<RelayedChannel>(std::move(*under), hostd_identity(key, token_),
                                                                   RelayOrder{to, through_.identity},
                                                                   through_.to_text(), random));
}

TcpTransport::Way by_way_of(Reactor& reactor, const HostdAddress& through) {
  return [relay = std::make_shared<Relay>(reactor, through)](const TcpEndpoint& to, bool* busy) {  // shared: it is copied
    return relay->connect(to, busy);
  };
}

RelayedChannel::RelayedChannel(std::unique_ptr<Channel> under, const HelloIdentity& identity, RelayOrder order,
                               std::string through, Random& random)
    : under_(std::move(under)),
      order_(std::move(order)),
      through_(std::move(through)),
      hello_(HelloRole::kDialer, identity, random) {}

Result<bool> RelayedChannel::establish() {
  if (stage_ != Stage::kUnder) static_cast<void>(under_->flush());
  while (stage_ != Stage::kOpen) {
    auto done = step();
    if (done && !*done) return false;
    if (done) continue;
    Error why = done.error();
    // As in connect().
    if (why.code == ErrorCode::kRefused && stage_ != Stage::kAnswer) why.code = ErrorCode::kClosed;
    return Error{why.code, "by way of " + through_ + ": " + why.message};
  }
  return true;
}

// False: not yet.
Result<bool> RelayedChannel::step() {
  switch (stage_) {
    case Stage::kUnder:
      return begin_hello();
    case Stage::kHello:
      return on_hello();
    case Stage::kSize:
    case Stage::kAnswer:
      return on_answer();
    case Stage::kOpen:
      break;
  }
  return true;
}

Result<bool> RelayedChannel::begin_hello() {
  auto done = under_->establish();
  if (!done || !*done) return done;
  if (const auto binding = under_->binding()) hello_.bind_to(*binding);
  if (!under_->send_all(hello_.open_bytes(), {})) return gone();
  stage_ = Stage::kHello;
  return true;
}

Result<bool> RelayedChannel::on_hello() {
  auto filled = fill(hello_.bytes_wanted());
  if (!filled || !*filled) return filled;
  const std::vector<std::byte> bytes = std::exchange(have_, {});
  if (hello_.state() == Handshake::State::kAwaitingOpen) {
    auto proof = hello_.on_open(bytes);
    if (!proof) return proof.error();
    if (!under_->send_all(*proof, {})) return gone();
    return true;
  }
  if (auto peer = hello_.on_proof(bytes); !peer) return peer.error();
  const std::string order = encode_order(order_);
  if (!under_->send_all(as_byte_span(order.data(), order.size()), {})) return gone();
  stage_ = Stage::kSize;
  return true;
}

Result<bool> RelayedChannel::on_answer() {
  auto filled = fill(stage_ == Stage::kSize ? sizeof answer_size_ : answer_size_);
  if (!filled || !*filled) return filled;
  const std::vector<std::byte> bytes = std::exchange(have_, {});
  if (stage_ == Stage::kSize) {
    std::memcpy(&answer_size_, bytes.data(), sizeof answer_size_);
    if (answer_size_ == 0 || answer_size_ > kAttachBytesMax) return Error{ErrorCode::kMalformed, "no answer"};
    stage_ = Stage::kAnswer;
    return true;
  }
  auto report = decode_report(bytes);
  if (!report) return report.error();
  if (report->kind == HostReport::kRefused) return Error{ErrorCode::kRefused, report->text};
  if (report->kind == HostReport::kUnreachable) return Error{ErrorCode::kClosed, report->text};
  if (report->kind != HostReport::kConnected) return Error{ErrorCode::kUnsupported, report->text};
  stage_ = Stage::kOpen;
  return true;
}

// No byte more than is wanted: what follows is not for this.
Result<bool> RelayedChannel::fill(size_t wanted) {
  while (have_.size() < wanted) {
    std::array<std::byte, 512> piece;
    const iovec into{piece.data(), std::min(piece.size(), wanted - have_.size())};
    const ssize_t count = under_->read({&into, 1});
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (count <= 0) return gone();
    have_.insert(have_.end(), piece.begin(), piece.begin() + count);
    if (stage_ == Stage::kHello && !hello_.may_begin_with(have_)) {
      return Error{ErrorCode::kMalformed, "what listens there is no monarch-hostd"};
    }
  }
  return true;
}

Error RelayedChannel::gone() const {
  if (const auto fault = under_->fault()) return *fault;
  return {ErrorCode::kClosed, "it closed the connection"};
}

// ---- Its keeper there ----

namespace {

// What comes at one end and goes to the other.
class Direction {
 public:
  Direction(Channel& from, Channel& to) : from_(from), to_(to), piece_(kPieceBytes) {}

  // Moves what there is, as long as the other end takes it at once. False: one of them is broken.
  bool move() {
    more_ = false;
    for (int pieces = 0; pieces < kPiecesAtOnce; ++pieces) {
      if (!write() || !to_.flush()) return errno == EAGAIN || begin_ == end_;
      if (ended_) return end();
      if (!read()) return errno == EAGAIN || errno == EINTR;
    }
    more_ = true;
    return true;
  }
  bool over() const { return over_; }
  bool wants_input() const { return !ended_ && !wants_room(); }
  bool wants_room() const { return begin_ != end_ || to_.wants_room(); }
  bool has_more() const { return more_; }  // though nothing will tell of it

 private:
  bool read() {
    const iovec into{piece_.data(), piece_.size()};
    const ssize_t count = from_.read({&into, 1});
    if (count < 0) return false;
    ended_ = count == 0;
    begin_ = 0;
    end_ = static_cast<size_t>(count);
    return true;
  }
  bool write() {
    while (begin_ != end_) {
      const iovec rest{piece_.data() + begin_, end_ - begin_};
      const ssize_t count = to_.write({&rest, 1});
      if (count < 0) return false;
      begin_ += static_cast<size_t>(count);
    }
    return true;
  }
  bool end() {
    if (!std::exchange(over_, true)) to_.end_output();
    return true;
  }

  Channel& from_;
  Channel& to_;
  std::vector<std::byte> piece_;
  size_t begin_ = 0, end_ = 0;  // of piece_: not written yet
  bool ended_ = false;          // from_ has
  bool over_ = false;           // and to_ has all of it, and knows
  bool more_ = false;
};

pollfd waits(const Channel& channel, bool input, bool room) {
  const short events = static_cast<short>((input ? POLLIN : 0) | (room ? POLLOUT : 0));
  return {events == 0 ? -1 : channel.fd(), events, 0};
}

void keep_alive(int socket) {
  const std::array<std::pair<int, int>, 3> limits = {
      {{TCP_KEEPIDLE, kKeepAliveS}, {TCP_KEEPINTVL, kKeepAliveEveryS}, {TCP_KEEPCNT, kKeepAlives}}};
  const int on = 1;
  static_cast<void>(setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
  for (const auto& [what, value] : limits) static_cast<void>(setsockopt(socket, IPPROTO_TCP, what, &value, sizeof value));
}

// Connections to all addresses of a host, until one is there.
class Connecting {
 public:
  Connecting(std::vector<SocketAddress> addresses, Clock& clock) : addresses_(std::move(addresses)), clock_(clock) {}

  // Nobody wants it any more when `client` goes away, or `ends` becomes readable or ends.
  Result<UniqueFd> wait(const Channel& client, int ends) {
    for (;;) {
      begin_next();
      std::vector<pollfd> fds = {{client.fd(), POLLRDHUP, 0}, {ends, POLLIN, 0}};
      int64_t until_ns = next_ < addresses_.size() ? next_ns_ : INT64_MAX;
      for (const Attempt& attempt : attempts_) {
        fds.push_back({attempt.socket.get(), POLLOUT, 0});
        until_ns = std::min(until_ns, attempt.until_ns);
      }
      if (attempts_.empty() && next_ == addresses_.size()) return why_not();
      const int64_t left_ms = (until_ns - clock_.now_ns()) / 1'000'000 + 1;
      if (poll(fds.data(), fds.size(), static_cast<int>(std::max<int64_t>(left_ms, 0))) < 0 && errno != EINTR) break;
      if (fds[0].revents != 0 || fds[1].revents != 0) break;
      for (size_t i = attempts_.size(); i-- > 0;) {
        if (fds[i + 2].revents == 0 && clock_.now_ns() < attempts_[i].until_ns) continue;
        Attempt attempt = std::move(attempts_[i]);
        attempts_.erase(attempts_.begin() + static_cast<ptrdiff_t>(i));
        const int error = fds[i + 2].revents == 0 ? ETIMEDOUT : error_of(attempt.socket.get());
        if (error == 0) return std::move(attempt.socket);
        failed(attempt.address, error);
      }
    }
    return Error{ErrorCode::kClosed, "nobody waits for it any more"};
  }

 private:
  struct Attempt {
    SocketAddress address;
    UniqueFd socket;
    int64_t until_ns;
  };

  static int error_of(int socket) {
    int error = 0;
    socklen_t size = sizeof error;
    return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
  }

  // The next address, if its time has come, or none is being tried.
  void begin_next() {
    while (next_ < addresses_.size() && (attempts_.empty() || clock_.now_ns() >= next_ns_)) {
      const SocketAddress& address = addresses_[next_++];
      next_ns_ = clock_.now_ns() + kNextAddressNs;
      UniqueFd socket = sys::make_socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK);
      const bool begun = socket && (connect(socket.get(), address.get(), address.size) == 0 || errno == EINPROGRESS);
      if (!begun) {
        failed(address, errno);
      } else {
        attempts_.push_back({address, std::move(socket), clock_.now_ns() + kConnectLimitNs});
      }
    }
  }

  void failed(const SocketAddress& address, int error) {
    all_refuse_ = all_refuse_ && error == ECONNREFUSED;
    why_ = address.to_text() + " cannot be reached: " + std::strerror(error);
  }

  Error why_not() const { return {all_refuse_ ? ErrorCode::kRefused : ErrorCode::kUnavailable, why_}; }

  const std::vector<SocketAddress> addresses_;
  Clock& clock_;
  size_t next_ = 0;
  int64_t next_ns_ = 0;
  std::vector<Attempt> attempts_;
  bool all_refuse_ = true;
  std::string why_;
};

}  // namespace

void pass_on(Channel& client, const RelayOrder& order, int ends, Clock& clock) {
  auto addresses = look_up(order.to);
  auto socket = addresses ? Connecting(std::move(*addresses), clock).wait(client, ends) : addresses.error();
  HostReport report{.kind = HostReport::kConnected};
  if (!socket) {
    const bool refused = socket.error().code == ErrorCode::kRefused;
    report = {.kind = refused ? HostReport::kRefused : HostReport::kUnreachable, .text = socket.error().message};
  }
  const bool told = write_all(client, encode_report(report), kAnswerLimitMs);
  if (!told || !socket) return client.end_output();
  prepare_tcp_socket(socket->get(), kUnsentMs);
  keep_alive(socket->get());
  keep_alive(client.fd());
  TcpChannel there(std::move(*socket));
  Direction to_there(client, there), to_client(there, client);
  while (to_there.move() && to_client.move() && !(to_there.over() && to_client.over())) {
    pollfd fds[] = {waits(client, to_there.wants_input(), to_client.wants_room()),
                    waits(there, to_client.wants_input(), to_there.wants_room()),
                    {ends, POLLIN, 0}};
    const bool more = to_there.has_more() || to_client.has_more();
    if (poll(fds, 3, more ? 0 : -1) < 0 && errno != EINTR) return;
    if (fds[2].revents != 0) return;
  }
}

}  // namespace monarch
