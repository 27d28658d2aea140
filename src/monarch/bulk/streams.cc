#include "monarch/bulk/streams.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "monarch/base/host_name.h"
#include "monarch/net/greeting.h"
#include "monarch/net/tls/tls_channel.h"

namespace monarch {

namespace {

// What has not ended is looked for when there are twice as many, and so many more.
constexpr size_t kOwnersMin = 16;
// To an owner, for operations that are asked for side by side.
constexpr uint32_t kBesideMax = 4;

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

void Streams::use(bool enciphers, uint32_t lanes, bool may_use_ucx) {
  may_use_ucx_ = may_use_ucx;
  enciphers_ = enciphers;
  lanes_ = std::clamp<uint32_t>(lanes, 1, kLanesMax);
}

// With the lock. Those that nobody uses, and of the dead also those whose thread waits for more.
void Streams::prune() {
  std::erase_if(ended_, [](const auto& each) { return each->is_at_rest(); });
  std::vector<NodeId> owners;
  std::erase_if(to_, [&](auto& each) {
    auto& [owner_and_lane, stream] = each;
    const bool is_dead = stream->is_idle() && bulk_.node_.is_down(owner_and_lane.first);
    if (!is_dead && !stream->is_at_rest()) return false;
    stream->end();
    if (!stream->is_at_rest()) ended_.push_back(std::move(stream));
    owners.push_back(owner_and_lane.first);
    return true;
  });
  for (const NodeId owner : owners) {
    const auto next = to_.lower_bound({owner, 0});
    if (next != to_.end() && next->first.first == owner) continue;  // another lane of it is in use
    for (auto& [enciphered, network] : dialers_) network->forget_place(owner);
  }
  prune_at_ = 2 * to_.size() + kOwnersMin;
}

std::shared_ptr<Stream> Streams::to(NodeId owner, uint32_t lane) {
  std::lock_guard lock(mutex_);
  if (to_.size() >= prune_at_) prune();
  std::shared_ptr<Stream>& there = to_[{owner, lane}];
  if (!there) there = make(owner);
  if (stopped_) there->end();
  return there;
}

bool Streams::may_go_by_ucx(NodeId owner) {
  if (!tries_ucx()) return false;
  std::vector<std::shared_ptr<Stream>> its;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [owner_and_lane, stream] : to_) {
      if (owner_and_lane.first == owner) its.push_back(stream);
    }
  }
  return std::ranges::all_of(its, [](const auto& each) { return each->may_go_by_ucx(); });
}

std::shared_ptr<Stream> Streams::make(NodeId owner) {
  Stream::Hooks hooks;
  hooks.tries_ucx = tries_ucx();
  hooks.find_address = [this, owner](int64_t deadline_ns, auto found) {
    bulk_.ask_for_stream(owner, deadline_ns, std::move(found));
  };
  hooks.connect = [this, owner](const StreamAddress& address, bool* busy) { return connect(owner, address, busy); };
  hooks.is_down = [this, owner] { return bulk_.node_.is_down(owner); };
  hooks.close_there = [this, owner](uint64_t number, int64_t deadline_ns, auto done) {
    bulk_.ask_to_close_stream(owner, number, deadline_ns, std::move(done));
  };
  return std::make_shared<Stream>(owner, identity_, sockets_, std::move(hooks));
}

uint32_t Streams::idle_lane(NodeId owner) {
  std::lock_guard lock(mutex_);
  for (uint32_t lane = 0; lane < kBesideMax; ++lane) {
    const auto found = to_.find({owner, lane});
    if (found == to_.end() || found->second->is_idle()) return lane;
  }
  return 0;
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
  TcpTransport* network = nullptr;
  {
    std::lock_guard lock(mutex_);
    const auto found = dialers_.find(address.enciphered);
    if (found != dialers_.end()) network = found->second.get();
  }
  if (network == nullptr) {
    auto fresh = make_network(address.enciphered, std::nullopt);
    if (!fresh) return fresh.error();
    std::lock_guard lock(mutex_);
    network = dialers_.emplace(address.enciphered, std::move(*fresh)).first->second.get();  // another's, if that was first
  }
  const TcpAddress place{{address.host, address.port}, std::nullopt};
  if (auto set = network->set_place(owner, place); !set) return set.error();
  return network->connect(options_.identity, owner, busy);
}

StreamAddress Streams::open_door(const StreamDoor::Serve& serve) {
  std::lock_guard opening(opening_);
  {
    std::lock_guard lock(mutex_);
    if (door_ || stopped_) return address_;
  }
  StreamAddress address{options_.dialled_at, 0, enciphers_, "its host is not dialled over a network"};
  if (options_.dialled_at.empty()) return address;
  const auto failed = [&](const Error& why) {
    address.why_not = why.message;
    return address;
  };
  auto network = make_network(address.enciphered, TcpAddress{{options_.listens_at, 0}, std::nullopt});
  if (!network) return failed(network.error());
  auto door = StreamDoor::open(**network, sockets_, identity_, serve);
  if (!door) return failed(door.error());
  address.port = (*door)->port();
  address.why_not.clear();
  std::unique_lock lock(mutex_);
  if (stopped_) {
    lock.unlock();
    (*door)->stop();
    return {};
  }
  listener_ = std::move(*network);
  door_ = std::move(*door);
  address_ = address;
  return address;
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
  std::vector<std::shared_ptr<Stream>> streams;
  StreamDoor* door;
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    address_ = {};
    streams = ended_;
    for (const auto& [lane, stream] : to_) streams.push_back(stream);
    door = door_.get();
  }
  for (const auto& stream : streams) stream->stop();
  if (door != nullptr) door->stop();
  UcxEnd::finish_loading();
}

}  // namespace monarch
