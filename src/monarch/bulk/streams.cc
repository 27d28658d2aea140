#include "monarch/bulk/streams.h"

#include <algorithm>
#include <utility>

#include "monarch/base/host_name.h"
#include "monarch/net/tls/tls_channel.h"

namespace monarch {

namespace {

HelloIdentity hello_identity(const Identity& identity) {
  HelloIdentity hello;
  hello.node = identity.node;
  hello.key = identity.key;
  hello.job = identity.job;
  hello.token = identity.token;
  return hello;
}

}  // namespace

Streams::Streams(Bulk& bulk, Reactor& reactor, StreamOptions options)
    : bulk_(bulk),
      reactor_(reactor),
      options_(std::move(options)),
      identity_(hello_identity(options_.identity)),
      sockets_(reactor) {}

bool Streams::leads_to(NodeId owner) const {
  return (options_.within_hosts || host_number(owner) != host_number(identity_.node)) && options_.dials();
}

void Streams::use(bool enciphers, uint32_t lanes) {
  enciphers_ = enciphers;
  lanes_ = std::clamp<uint32_t>(lanes, 1, kLanesMax);
}

std::shared_ptr<Stream> Streams::to(NodeId owner, uint32_t lane) {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Stream>& there = to_[{owner, lane}];
  if (there) return there;
  Stream::Hooks hooks;
  hooks.find_address = [this, owner](auto found) { bulk_.ask_for_stream(owner, std::move(found)); };
  hooks.connect = [this, owner](const StreamAddress& address, bool* busy) { return connect(owner, address, busy); };
  hooks.is_down = [this, owner] { return bulk_.node_.is_down(owner); };
  hooks.close_there = [this, owner](uint64_t number, auto done) {
    bulk_.ask_to_close_stream(owner, number, std::move(done));
  };
  there = std::make_shared<Stream>(owner, identity_, sockets_, std::move(hooks));
  if (stopped_) there->stop();
  return there;
}

Result<std::unique_ptr<TcpTransport>> Streams::make_network(bool enciphered, std::optional<TcpAddress> listen) {
  TcpTransport::Options options;
  options.listen = std::move(listen);
  options.plain_anywhere = !enciphered;
  if (enciphered) {
    auto tls = TlsContext::of_secret(options_.identity.token, host_name());
    if (!tls) return tls.error();
    options.tls = std::move(*tls);
  }
  return std::make_unique<TcpTransport>(reactor_, std::move(options));
}

Result<std::unique_ptr<Channel>> Streams::connect(NodeId owner, const StreamAddress& address, bool* busy) {
  if (!address.enciphered && enciphers_) {
    return Error{ErrorCode::kUnsupported, "its process would send them without TLS, and this one would not"};
  }
  TcpTransport* network;
  {
    std::lock_guard lock(mutex_);
    std::unique_ptr<TcpTransport>& made = dialers_[address.enciphered];
    if (!made) {
      auto fresh = make_network(address.enciphered, std::nullopt);
      if (!fresh) return fresh.error();
      made = std::move(*fresh);
    }
    network = made.get();
  }
  const TcpAddress place{{address.host, address.port}, std::nullopt};
  if (auto set = network->set_place(owner, place); !set) return set.error();
  return network->connect(options_.identity, owner, busy);
}

StreamAddress Streams::open_door(const StreamDoor::Serve& serve) {
  std::lock_guard lock(mutex_);
  if (door_ || stopped_) return address_;
  address_ = {options_.dialled_at, 0, enciphers_, ""};
  if (options_.dialled_at.empty()) {
    address_.why_not = "its host is not dialled over a network";
    return address_;
  }
  auto network = make_network(address_.enciphered, TcpAddress{{options_.listens_at, 0}, std::nullopt});
  if (!network) return address_.why_not = network.error().message, address_;
  auto door = StreamDoor::open(**network, sockets_, identity_, serve);
  if (!door) return address_.why_not = door.error().message, address_;
  listener_ = std::move(*network);
  door_ = std::move(*door);
  address_.port = door_->port();
  return address_;
}

void Streams::close_stream(uint64_t number, std::function<void()> done) {
  StreamDoor* door;
  {
    std::lock_guard lock(mutex_);
    door = door_.get();
  }
  door == nullptr ? done() : door->close_stream(number, std::move(done));
}

void Streams::stop() {
  decltype(to_) to;
  StreamDoor* door;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    address_ = {};
    to = to_;
    door = door_.get();
  }
  for (const auto& [lane, stream] : to) stream->stop();
  if (door != nullptr) door->stop();
}

}  // namespace monarch
