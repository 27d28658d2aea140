// The host object does what a host does: it starts processes, knows how they ended, and stops them. It lives on the
// reactor of the process that it belongs to. Two ways to start a worker, with the same outcome: fork from a warm,
// single-threaded fork server, or a clean exec.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "monarch/actor/node.h"
#include "monarch/host/death_watch.h"
#include "monarch/host/membership/job_address.h"
#include "monarch/host/output/output_route.h"
#include "monarch/host/membership/places.h"
#include "monarch/host/start/remote_hosts.h"
#include "monarch/host/start/starter.h"
#include "monarch/net/connector.h"

namespace monarch {

// Whose processes are started, if another process has asked this one for them.
struct SpawnOrder {
  NodeId owner = 0;   // they end when it has gone down; 0: they are this process's own
  uint64_t mesh = 0;  // an id of the mesh that they are a part of; 0: they are all of a new one
};

class Host {
 public:
  // `output` leads to what shows the output of workers; `budget_fd`: as Starter's.
  Host(Reactor& reactor, Node& node, Connector& connector, DeathWatch& deaths, int budget_fd, JobAddress address,
       OutputRoute output);
  ~Host();

  // Any thread. As Starter's.
  void start_fork_server(std::vector<std::string> argv, std::vector<std::string> env, WarmServer warm = {}) {
    starter_.start_fork_server(std::move(argv), std::move(env), std::move(warm));
  }
  void offer_workers_to_oom_killer() { starter_.offer_workers_to_oom_killer(); }
  bool has_fork_server() const { return starter_.has_fork_server(); }

  // Before anything is started: where this host is, for all that are started here.
  void set_place(const HostPlace& place) { place_ = place; }
  const HostPlace& place() const { return place_; }

  using Launch = monarch::Launch;
  // Any thread. New processes, one for each entry, which are one mesh and can be sent to at once. Returns before they
  // exist; one that cannot be started is a node that goes down.
  Result<std::vector<NodeId>> spawn(const std::vector<Launch>& launches, SpawnOrder order = {});
  // The same for what somebody has ordered, here or elsewhere (`owner`; 0: it is this process). Starts a fork server if one
  // is wanted and there is none.
  Result<std::vector<NodeId>> spawn(const LaunchOrder& order, const LaunchDefaults& defaults, NodeId owner = 0);

  // Any thread, in a script. A host that a monarch-hostd over TCP starts for this process (launch.hostd); `places` is to
  // know of it. Returns before it exists, as spawn(). kUnsupported: there are kHostMax already.
  Result<NodeId> attach(const Launch& launch, Places& places, int64_t host_lease_ns);

  // Any thread. Asks the processes to end, kills those that have not after `grace_ns`; `done` runs on the reactor when
  // all have ended. Later calls to them fail with "stopped: <reason>". Twice is fine. Those of another owner end when they
  // have seen what that sent to them (ProcessRuntime::release), or soon in any case.
  void stop(const std::vector<NodeId>& nodes, const std::string& reason, int64_t grace_ns, std::function<void()> done);
  // As stop, for every process that is left; no process is started any more.
  void stop_all(const std::string& reason, int64_t grace_ns, std::function<void()> done);

  // Any thread. Where those come that a program's own code starts here, and what that says of one (starter.h).
  std::string door_path() const { return starter_.door_path(); }
  void hear_news(NodeId node, LaunchNews news);

  // Any thread. How the lines of these processes are shown from now on; `done` runs on the reactor when the change is
  // made, and what they had printed before is out.
  Status set_output(const std::vector<NodeId>& nodes, const OutputOptions& options, std::function<void()> done);

  // Any thread. -1 while it is not known.
  pid_t pid_of(NodeId node) const { return static_cast<pid_t>(deaths_.pid_of(node)); }

  // Any thread. The link to a process has ended.
  void link_lost(NodeId node, const std::string& why) {
    if (places_.load() != nullptr) remotes_.link_lost(node, why);
  }

  // ---- What DeathWatch asks for; on the reactor ----
  void kill(NodeId child) { remotes_.has(child) ? remotes_.kill(child) : starter_.kill(child); }
  void stop_orphans(const std::vector<NodeId>& nodes);
  void on_buried(NodeId node);
  void last_lines(NodeId node, uint32_t lines, std::function<void(std::string)> done);

  // Reactor. As Starter's.
  void start_guard() { starter_.start_guard(); }

  // In a child that fork() made: what it must not keep open.
  void after_fork_in_child() {
    starter_.after_fork_in_child();
    output_.after_fork_in_child();
  }

 private:
  struct Child {
    NodeId owner = 0;
    std::shared_ptr<Link> link;
    bool of_hostd = false;
    bool buried = false;
    bool ended = false;  // nothing of it is left, but what it has started; it may be dead before
  };
  struct Waiting {
    std::vector<NodeId> nodes;
    std::function<void()> done;
  };

  void add_child(const Launch& launch, NodeId node, NodeId owner, std::shared_ptr<Link> link);
  bool is_new(NodeId node) const;
  Bootstrap bootstrap_of(const Launch& launch, const NodeKey& key, NodeId owner) const;
  RemoteHosts::Events remote_events();
  ExitStatus explained(NodeId child, const ExitStatus& status) const;
  void on_ended(NodeId node);
  void note(NodeId node, bool Child::*what);
  void check_waiting();

  Reactor& reactor_;
  Node& node_;
  Connector& connector_;
  const JobAddress address_;
  HostPlace place_;
  OutputRoute output_;

  DeathWatch& deaths_;

  mutable std::mutex mutex_;
  std::unordered_map<NodeId, Child> children_;  // until they are down and have ended

  // Reactor only.
  bool ending_ = false;
  std::vector<Waiting> waiting_;

  std::atomic<HostNumber> hosts_{0};   // so many have been attached
  std::atomic<Places*> places_{nullptr};  // since the first of them
  std::atomic<int64_t> host_lease_ns_{0};  // likewise

  // Last: they tell this object what becomes of its processes.
  RemoteHosts remotes_;
  Starter starter_;
};

}  // namespace monarch
