// TCP, between hosts. Where nodes are it is told (set_place()); a name is looked up aside (net/tcp/lookup.h), and all its
// addresses are tried in turn, one with each dial. It has a lease: its links are carriers of sessions (net/sessions.h),
// which redial.
//
// With TLS (net/tls) when there is a context for it; without one only this machine is reached, and listened to, unless it
// is said that anything may be (plain_anywhere).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "monarch/base/mutex.h"
#include "monarch/loop/reactor.h"
#include "monarch/net/tcp/lookup.h"
#include "monarch/net/tcp/tcp_address.h"
#include "monarch/net/tcp/tcp_link.h"
#include "monarch/net/tls/tls_channel.h"
#include "monarch/net/transport.h"

namespace monarch {

class TcpTransport final : public Transport {
 public:
  static constexpr std::string_view kName = "tcp";

  struct Options {
    std::optional<TcpAddress> listen;  // none: it is not dialled
    int64_t lease_ns = 30'000'000'000;
    // When so long nothing has come, not even a sign of life, a connection is gone. Not less than 0.1 s.
    int64_t silence_ns = 5'000'000'000;
    // From connecting to the peer's proof.
    int64_t dial_ns = 4'000'000'000;
    Lookup::Ask look_up = &monarch::look_up;  // the addresses of a name; on a thread of its own
    // How many more connections the data of one link is spread over (TcpLink::use_stripes).
    int stripes = TcpLink::kAsNeeded;
    // shared: with its channels. None: what is sent can be read and changed by whoever is on the way.
    std::shared_ptr<const TlsContext> tls;
    // Without TLS: other machines too.
    bool plain_anywhere = false;
  };

  TcpTransport(Reactor& reactor, Options options);
  ~TcpTransport() override;

  // Any thread. Where `node` is dialled from now on. kMalformed: nobody can be there.
  Status set_place(NodeId node, const TcpAddress& address);
  void forget_place(NodeId node);
  bool knows_place(NodeId node) const { return place_of(node) != nullptr; }
  std::optional<TcpAddress> known_place(NodeId node) const;
  // Any thread. From now on connections are made with this TLS and these limits (Options).
  void use(std::shared_ptr<const TlsContext> tls, int64_t lease_ns, int64_t silence_ns, int64_t dial_ns);
  bool has_tls() const { return tls() != nullptr; }
  // Makes a stream to `to` in another way than by a connection from here; as connect(), and on its threads.
  using Way = std::function<Result<std::unique_ptr<Channel>>(const TcpEndpoint& to, bool* busy)>;
  // Any thread. From now on peers are reached like that: names mean what they mean at the other end of it.
  void go_by(Way way);
  bool has_way() const { return way() != nullptr; }
  // Any thread. Where this process is dialled, once it listens: what others are told.
  std::optional<TcpAddress> place() const;

  std::string_view name() const override { return kName; }
  char code() const override { return 't'; }
  int64_t lease_ns() const override { return lease_ns_; }
  // As long as a peer lives that was there: silence, then the lease.
  int64_t opening_ns() const override { return silence_ns_ + lease_ns_; }
  int64_t dial_limit_ns() const override { return dial_ns_; }
  bool open_to_strangers() const override { return true; }
  std::string describe(const Identity& own) const override;
  bool reaches(const Identity& as, NodeId peer) const override;
  // kUnsupported: the address must not be listened on, or is not one of this machine's.
  Result<UniqueFd> listen(const JobId& job, NodeId node) override;
  Result<std::unique_ptr<Channel>> connect(const Identity& as, NodeId peer, bool* busy) override;
  Result<std::unique_ptr<Channel>> admit(UniqueFd socket) const override;
  std::shared_ptr<Link> new_link(LinkSink& sink, NodeId peer) override;
  std::unique_ptr<LinkSetup> new_setup() override;
  // A child is on this machine: kUnsupported.
  Result<ChildEnds> start_to_child(Link& link) override;
  Status start_to_parent(Link& link, ChildEnds ends) override;

 private:
  class Setup;
  struct Place {
    Place(const TcpAddress& at, Lookup::Ask ask) : address(at), lookup(at.dial, ask) {}
    const TcpAddress address;
    Lookup lookup;
    std::atomic<size_t> next{0};     // which of its addresses is tried next
    std::atomic<size_t> refused{0};  // in a row
  };
  std::shared_ptr<Place> place_of(NodeId node) const;
  std::shared_ptr<const TlsContext> tls() const;
  std::shared_ptr<const Way> way() const;
  Status allow(const SocketAddress& address, const char* what) const;
  Result<std::unique_ptr<Channel>> channel_over(std::unique_ptr<Channel> stream, bool accepts) const;
  Result<UniqueFd> listen_on(const TcpEndpoint& at);
  Result<UniqueFd> listen_at(const SocketAddress& address);
  Result<UniqueFd> take_over(int fd) const;
  static Result<bool> outcome(Place& place, size_t addresses, const SocketAddress& to, int error);
  int unsent_ms() const;

  Reactor& reactor_;
  const Options options_;
  std::atomic<int64_t> lease_ns_, silence_ns_, dial_ns_;
  mutable Mutex mutex_{LockRank::kTcpPlaces};
  std::map<NodeId, std::shared_ptr<Place>> places_;  // shared: with dials under way
  std::optional<TcpAddress> own_;
  std::shared_ptr<const TlsContext> tls_;
  std::shared_ptr<const Way> way_;  // null: connections from here. shared: with whoever goes by it
};

}  // namespace monarch
