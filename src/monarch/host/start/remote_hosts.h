// Attaches a script to monarch-hostds that are reached over TCP: connects to each, shows that both know the token, and says
// who is to be started there (attach.h). The connection stays for what the host's keeper has to say of its end; what the
// two have to do with each other otherwise goes over the link between their nodes, which has a lease of its own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>

#include "monarch/host/start/attach.h"
#include "monarch/host/start/host_dial.h"
#include "monarch/host/start/relay.h"
#include "monarch/loop/reactor.h"
#include "monarch/net/greeting.h"
#include "monarch/net/tcp/tcp_transport.h"

namespace monarch {

class RemoteHosts {
 public:
  // All on the reactor: on_started and later on_exited or on_lost, or on_not_started, each once at most.
  struct Events {
    std::function<void(NodeId, const TcpAddress&, const HostReport&)> on_started;
    std::function<void(NodeId, const ExitStatus&)> on_exited;
    std::function<void(NodeId, const std::string& why)> on_not_started;
    std::function<void(NodeId, const std::string& why)> on_lost;  // nobody says any more what becomes of it
  };

  RemoteHosts(Reactor& reactor, Events events) : reactor_(reactor), events_(std::move(events)) {}
  // After the reactor has ended.
  ~RemoteHosts();

  // Any thread. While nobody listens there it is tried again, for as long as the address says.
  void attach(HostdAddress address, Bootstrap order);
  // Reactor.
  bool has(NodeId node) const { return remotes_.contains(node); }
  // Reactor. Its keeper is told to kill it; nothing if it is not there any more.
  void kill(NodeId node);
  // Any thread. The link to a node, which may be one of these, is over, with that text.
  void link_lost(NodeId node, const std::string& why);

  // How long after the end of its link its keeper, if that is there, may take to say how it has ended.
  static constexpr int64_t kReportLimitNs = 300'000'000;

 private:
  struct Remote {
    HostdAddress address;
    Bootstrap order;
    int64_t until_ns = 0;
    std::shared_ptr<TcpTransport> dialer;
    std::unique_ptr<Greeting> greeting;
    std::unique_ptr<Channel> channel;
    AttachReader reader;
    bool started = false;
    bool killed = false;
    bool is_awaited = false;  // it could not be reached at the first try
    std::optional<std::string> link_lost{};  // why
  };

  void attempt(NodeId node);
  std::string hint(NodeId node, const Error& why) const;
  void again(NodeId node, const std::string& why);
  ptrdiff_t awaited() const;
  void tell_of_wait(const Remote& remote, int64_t left_ns, const std::string& why);
  void on_proved(NodeId node);
  void on_ready(NodeId node);
  void on_report(NodeId node, const HostReport& report);
  void fail(NodeId node, const std::string& why);
  void drop(NodeId node);
  void let_go(Remote& remote);
  void give_up(NodeId node);
  Result<std::shared_ptr<TcpTransport>> dialer(const JobToken& token, const HostdAddress& address);

  Reactor& reactor_;
  const Events events_;
  SystemRandom random_;
  using Certified = std::tuple<JobToken, bool, std::shared_ptr<const Credentials>, std::shared_ptr<const HostdAddress>>;
  std::map<Certified, std::weak_ptr<TcpTransport>> dialers_;  // of remotes_
  std::unordered_map<NodeId, Remote> remotes_;
  bool told_of_wait_ = false;  // of those that are waited for now
};

}  // namespace monarch
