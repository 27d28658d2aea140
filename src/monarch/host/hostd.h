// monarch-hostd: a host that outlives its clients, without any language on top. It is three kinds of process, all of them
// this program, forked from one another while they have a single thread:
//
//   the daemon   listens on a unix socket, or over TCP with TLS, and lets those in who know the token of its user's file
//                (wire/hello.h);
//   a keeper     one for each client: a fork server (start/fork_server.h) that makes the host process which its client asks
//                for. As a subreaper it gets whatever that leaves, and when the client's socket ends, however the client
//                went, it ends all of it. Over TCP the end of a connection says nothing about the client: there it is the
//                host that ends, when the link to its client is over (start/attach.h);
//                One that is to pass on what a client and another host say (start/relay.h) starts nothing;
//   a host       a member of the client's job, as a worker is: its node, made by the client, has an agent (agent.h) and a
//                host object. It starts processes, reaps them and says how they ended.
//
// When a client has gone, the daemon starts a fork server for the next one (start/warm_server.h), who then need not wait
// for an interpreter. All fork servers of a daemon are started with the same command and environment, its own.
//
// So nothing of one client is left to the next, and a client that does harm harms its own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "monarch/base/clock.h"
#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"
#include "monarch/host/start/bootstrap.h"
#include "monarch/host/start/launch.h"
#include "monarch/host/start/warm_server.h"
#include "monarch/net/tcp/tcp_transport.h"
#include "monarch/wire/hello.h"

namespace monarch {

class HostDaemon {
 public:
  struct Options {
    HostdAddress address;
    LaunchDefaults defaults;
    std::optional<JobToken> token;  // none: that of the address's file
    UniqueFd lifeline;  // it ends when this does, unless a byte came before; none: it stays
  };
  // Makes the token, if there is none, and listens. kUnavailable: another one listens there.
  // `reactor` is never started: it is a clock.
  static Result<std::unique_ptr<HostDaemon>> make(Reactor& reactor, Options options);
  ~HostDaemon();
  // Where it listens.
  const HostdAddress& address() const { return options_.address; }

  // Serves until SIGTERM or SIGINT, the end of the lifeline, or the order of a client (Agent::kEnd); then ends all that it
  // has started, and gives it time to do so well. A single thread, which has these signals blocked; children of it never
  // return. The exit status.
  int run();

  static constexpr int64_t kEndLimitNs = 5'000'000'000;  // for processes to end well
  // Who have not proved themselves yet; others wait in the kernel's queue. While so many are there, each of them goes
  // after kGiveWayNs, or who says nothing would keep everybody out.
  static constexpr size_t kStrangersMax = 256;
  static constexpr int64_t kGiveWayNs = 500'000'000;
  // How long a fork server waits, warm, for the next client.
  static constexpr int64_t kWarmLimitNs = 900'000'000'000;

 private:
  struct Stranger {
    std::unique_ptr<Channel> channel;
    std::unique_ptr<Handshake> hello;
    int64_t began_ns;
    bool established = false;
    std::vector<std::byte> have{};
  };

  HostDaemon(Reactor& reactor, Options options)
      : reactor_(reactor), clock_(reactor), options_(std::move(options)) {}
  Status listen();
  Status listen_tcp();
  int64_t stranger_limit_ns() const;
  int64_t next_ns() const;
  bool lifeline_ended();
  bool may_accept();
  void accept();
  bool hear(Stranger& stranger);
  void admit(std::unique_ptr<Channel> channel);
  void be_keeper();
  [[noreturn]] void keep(UniqueFd socket);
  bool is_meant(int socket);
  [[noreturn]] void keep_remote(Channel& channel);
  void tell_of(Channel& channel, pid_t host, int started, UniqueFd client);
  [[noreturn]] void be_host(BootstrapFds fds, int started = -1, int client = -1);
  void warm_up();
  void reap();
  void end();
  void say(const std::string& line);

  Reactor& reactor_;
  Clock& clock_;
  Options options_;
  JobToken token_{};
  std::unique_ptr<TcpTransport> tcp_;  // null: on this machine
  TcpEndpoint hosts_listen_;           // beside it, each at a port of its own
  UniqueFd listener_, signals_;
  UniqueFd alive_[2];   // to read: ends when the daemon does, or, with a byte, is about to
  UniqueFd orders_[2];  // a byte: a client wants the daemon to end
  std::vector<Stranger> strangers_, heard_;  // heard_: those that this round is about
  int64_t accept_after_ns_ = 0;              // there was a shortage
  std::vector<pid_t> keepers_;
  WarmServer warm_;             // in a keeper: for its first host
  std::vector<pid_t> holders_;  // of that, and of those that were given away
  pid_t without_warm_ = -1;     // the last keeper that has cost the daemon one, or the time at which there was to be one
  int64_t warm_change_ns_ = 0;  // when it is to be started, or has waited long enough; 0: neither
  int64_t said_ns_ = 0;
  uint64_t unsaid_ = 0;
};

}  // namespace monarch
