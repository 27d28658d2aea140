// The host object does what a host does: it starts processes, knows how they ended, and stops them. It lives on the
// reactor of the process that it belongs to. Two ways to start a worker, with the same outcome: fork from a warm,
// single-threaded fork server, or a clean exec.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "monarch/actor/node.h"
#include "monarch/host/connector.h"
#include "monarch/host/fork_server.h"
#include "monarch/host/job_address.h"
#include "monarch/host/output/output_route.h"
#include "monarch/host/process.h"

namespace monarch {

// Whose processes are started, if another process has asked this one for them.
struct SpawnOrder {
  NodeId owner = 0;   // they end when it has gone down; 0: they are this process's own
  uint64_t mesh = 0;  // an id of the mesh that they are a part of; 0: they are all of a new one
};

class Host {
 public:
  // `output` leads to what shows the output of workers.
  Host(Reactor& reactor, Node& node, Connector& connector, JobAddress address, OutputRoute output);
  ~Host();

  // Any thread. The command that becomes the fork server; `argv` gets the number of its socket appended. Starting takes
  // a while and happens in the background; workers that are wanted meanwhile wait. If it dies it can be started again.
  void start_fork_server(std::vector<std::string> argv, std::vector<std::string> env, std::string cwd);
  bool has_fork_server() const { return fork_server_wanted_.load(); }

  struct Launch {
    bool use_fork_server = true;
    std::string program;            // exec only; empty: argv[0]
    std::vector<std::string> argv;  // exec only; gets the number of the bootstrap descriptor appended
    std::vector<std::string> env;   // exec only
    std::string cwd;                // exec only; empty: as here
    std::string payload;            // for the language on top
    std::string label;              // for people: "rank {'gpus': 2/4} of procs 'trainer'"
    OutputName output;              // who it is in what it prints
    uint32_t tail_lines = 0;        // so many of its last lines on stderr are told with its death
  };
  // Any thread. New processes, one for each entry, which are one mesh and can be sent to at once. Returns before they
  // exist; one that cannot be started is a node that goes down.
  Result<std::vector<NodeId>> spawn(const std::vector<Launch>& launches, SpawnOrder order = {});

  // Any thread. Asks the processes to end, kills those that have not after `grace_ns`; `done` runs on the reactor when
  // all have ended. Later calls to them fail with "stopped: <reason>". Twice is fine. Those of another owner end when they
  // have seen what that sent to them (ProcessRuntime::release), or soon in any case.
  void stop(const std::vector<NodeId>& nodes, const std::string& reason, int64_t grace_ns, std::function<void()> done);
  // As stop, for every process that is left; no process is started any more.
  void stop_all(const std::string& reason, int64_t grace_ns, std::function<void()> done);

  // Any thread. How the lines of these processes are shown from now on; `done` runs on the reactor when the change is
  // made, and what they had printed before is out.
  Status set_output(const std::vector<NodeId>& nodes, const OutputOptions& options, std::function<void()> done);

  // Node's hook. What was started for `node` is stopped.
  void on_down(NodeId node);
  // Node's hook: a link ended. True: it is a process of ours, whose end will be declared with its exit status.
  bool on_link_lost(NodeId node);

  // Any thread. -1 while it is not known.
  pid_t pid_of(NodeId node) const;
  bool is_child(NodeId node) const;

  // Any thread. Somebody was told that a call which `node` had a part in has failed, or was told `why`. A death of which
  // nobody is told within a second, or before the end of this host, is one line on stderr; who is told that a mesh has
  // lost one process need not be told of the others that it loses at the same time. Not our node: nothing happens.
  void note_observed(NodeId node);
  void note_observed(const std::string& why);
  // Reactor, or after it has ended.
  void report_unobserved();

  // Reactor. Starts the guard of this process, if it does not run: it ends what this one leaves behind when it is killed.
  // That of a script takes away the job's token, too.
  void start_guard();

  // In a child that fork() made: what it must not keep open.
  void after_fork_in_child() {
    guard_pipe_.reset();
    output_.after_fork_in_child();
  }

 private:
  struct Child {
    std::string label;
    NodeId owner = 0;
    std::shared_ptr<Link> link;
    pid_t pid = -1;
    Process process;  // exec only
    bool exited = false;
    ExitStatus status;
    bool link_lost = false;
    bool declared = false;
    std::string stopping;  // reason; empty: nobody has asked it to stop
    bool forked = false;
    bool kill_when_known = false;
    bool cut_off = false;  // it lived on without its link, and was killed for it
    std::string epitaph;   // declared, though nobody had asked it to stop
    int64_t declared_ns = 0;
    uint32_t tail_lines = 0;
    bool tail_asked = false;
    std::optional<std::string> tail;  // its last lines on stderr, once they are known
    int64_t observed_ns = 0;  // when somebody was last told that a call which needs it has failed; 0: never
    bool reported = false;
  };
  struct Waiting {
    std::vector<NodeId> nodes;
    std::function<void()> done;
  };

  void launch_fork(NodeId node, BootstrapFds fds);
  void launch_exec(NodeId node, const Launch& launch, Bootstrap bootstrap, BootstrapFds fds);
  void send_fork(NodeId node, const BootstrapFds& fds);
  void send_waiting_forks();
  void on_fork_server();
  void on_fork_report(const ForkReport& report);
  void fork_server_lost();
  void report_unobserved(NodeId node);
  void on_spawned(NodeId node, pid_t pid);
  void on_exited(NodeId node, ExitStatus status);
  void on_not_started(NodeId node, const std::string& why);
  void settle(NodeId node);
  bool has_tail(NodeId node);
  void note_tail(NodeId node, const std::string& text);
  void tell_others(NodeId node, const std::string& why);
  void kill_child(NodeId node);
  void check_waiting();

  Reactor& reactor_;
  Node& node_;
  Connector& connector_;
  const JobAddress address_;
  OutputRoute output_;

  mutable std::mutex mutex_;
  std::unordered_map<NodeId, Child> children_;

  // Reactor only.
  UniqueFd guard_pipe_;
  Process guard_;
  bool guard_started_ = false;
  Process fork_server_;
  UniqueFd fork_socket_;
  bool fork_ready_ = false;
  bool ending_ = false;
  std::atomic<bool> fork_server_wanted_{false};
  struct ForkRequest {
    NodeId node;
    BootstrapFds fds;
  };
  std::deque<ForkRequest> fork_queue_;
  int forks_under_way_ = 0;  // sent, not yet reported
  std::vector<Waiting> waiting_;
};

}  // namespace monarch
