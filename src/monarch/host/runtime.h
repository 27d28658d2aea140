// One per process: the reactor, the bell and the driver, the node with its links, the host object. `main`, or the
// module initialisation, makes it and wires it; nothing in the library looks for it.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "monarch/actor/node.h"
#include "monarch/host/connector.h"
#include "monarch/host/host.h"
#include "monarch/host/output/output_pump.h"

namespace monarch {

class ProcessRuntime {
 public:
  struct Options {
    Transport transport = Transport::kShm;
    uint64_t arena_bytes_max = 0;  // 0: a quarter of the machine's memory
    // Any thread. A one-way message that the client itself sent found nobody.
    std::function<void(const std::string&)> on_undeliverable;
    int stdout_fd = 1;  // root: where the lines of workers go; -1: nowhere
    int stderr_fd = 2;
  };

  // The runtime of a script: the root of its job.
  static Result<std::unique_ptr<ProcessRuntime>> make_root(Options options);
  // The runtime of a worker. `wire` is called before the first frame is handled: it sets the cell factories.
  static Result<std::unique_ptr<ProcessRuntime>> make_worker(const Bootstrap& bootstrap, BootstrapFds fds,
                                                             Options options,
                                                             const std::function<void(ProcessRuntime&)>& wire);
  ~ProcessRuntime();

  Reactor& reactor() { return reactor_; }
  Driver& driver() { return *driver_; }
  Node& node() { return *node_; }
  Host& host() { return *host_; }
  NodeId parent() const { return parent_; }
  const JobId& job() const { return identity_.job; }
  // What shows the output of the job's workers. Null in a worker.
  OutputPump* output() { return output_.get(); }

  // Worker: waits until the owner asks this process to end, or is gone. Returns the reason. At most `limit_ns` at a
  // time; nullopt: not yet (the caller looks at its signals).
  std::optional<std::string> wait_for_stop(int64_t limit_ns);

  // Any thread. Somebody here was told that a call has failed which these had a part in (Host::note_observed): tells it
  // to the hosts of those that are dead, wherever they are.
  void note_observed(const Members& members);

  // Stops all processes of this host object, and waits for their end. Not from the reactor.
  void stop_children(const std::string& reason, int64_t grace_ns);
  // Around fork(): the child may not use the runtime, and keeps nothing of it open.
  void before_fork();
  void after_fork_in_parent();
  void after_fork_in_child();

  // Stops all processes of this host object, closes the links, ends the reactor. Idempotent. Not from the reactor.
  void shutdown(int64_t grace_ns);

 private:
  ProcessRuntime() = default;
  void build(const Identity& identity, OwnBell bell, OutputRoute output, Options options);
  void on_control(Link& link, MessagePtr message);
  bool on_link_lost(NodeId node, const Error& why);
  void request_stop(const std::string& reason, int64_t limit_ns);
  void on_notice(Link& from, NodeId node, const std::string& why);
  void on_observed(NodeId from, NodeId node);
  void spread_notice(NodeId from, NodeId node, const std::string& why);

  Reactor reactor_;
  Identity identity_;
  OwnBell bell_;
  NodeId parent_ = 0;
  std::shared_ptr<Arena> arena_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<OutputPump> output_;
  std::unique_ptr<Host> host_;
  bool shut_down_ = false;

  std::mutex notice_mutex_;
  std::unordered_map<NodeId, std::string> notices_;  // what hosts said of nodes that ended
  std::unordered_set<NodeId> observed_;              // whose end somebody was told of

  std::mutex stop_mutex_;
  std::condition_variable stop_condition_;
  bool asked_to_stop_ = false;
  std::optional<std::string> stop_reason_;
};

}  // namespace monarch
