// One per process: the reactor, the bell and the driver, the node with its links, the host object. `main`, or the
// module initialisation, makes it and wires it; nothing in the library looks for it.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "monarch/actor/node.h"
#include "monarch/actor/trees.h"
#include "monarch/base/forked.h"
#include "monarch/net/shm/received.h"
#include "monarch/net/transports.h"
#include "monarch/net/connector.h"
#include "monarch/host/agent.h"
#include "monarch/host/any_runtime.h"
#include "monarch/host/call_watch.h"
#include "monarch/host/death_watch.h"
#include "monarch/host/host.h"
#include "monarch/host/membership/gateways.h"
#include "monarch/host/membership/jobs.h"
#include "monarch/host/membership/partings.h"
#include "monarch/host/membership/places.h"
#include "monarch/host/membership/reception.h"
#include "monarch/host/remote/output_inlet.h"
#include "monarch/host/output/output_pump.h"
#include "monarch/host/remote/output_relay.h"
#include "monarch/host/stacks/process_stacks.h"

namespace monarch {

class ProcessRuntime final : public AnyRuntime, private ForkWatcher {
 public:
  struct Options {
    std::string transport = "shm";  // one of net/transports.h
    uint64_t arena_bytes_max = 0;  // for the whole job; 0: half of memory_limit()
    // Any thread. A one-way message that the client itself sent found nobody.
    std::function<void(const ActorId& dest, const Failure& why)> on_undeliverable;
    // Any thread; must not block. Something that the client owns has failed (Node::Hooks).
    std::function<void(MeshFailure)> on_mesh_failure;
    std::function<void(std::vector<MeshFailure>)> on_restart_wanted;
    // Worker, any thread: from now on wait_for_stop() returns at once. Must not block.
    std::function<void()> on_stop;
    // Reactor. The actors here that are at something.
    std::function<std::vector<RunningActor>()> running_actors;
    int stdout_fd = 1;  // root: where the lines of workers go; -1: nowhere
    int stderr_fd = 2;
  };

  // The runtime of a script: the root of its job. A shortage is an error (kUnavailable), here and below; it may be tried
  // again.
  static Result<std::unique_ptr<ProcessRuntime>> make_root(Options options);
  // The runtime of a worker. `keep` is given it before the first frame is handled, which may then be at once: it sets the
  // cell factories, and has put the runtime where they look for it. It is to be destroyed after an error too.
  static Status make_worker(const Bootstrap& bootstrap, BootstrapFds fds, Options options,
                            const std::function<void(std::unique_ptr<ProcessRuntime>)>& keep);
  // The runtime of a host's gateway (membership/gateways.h): a worker that the script reaches over a network, at `listen`.
  static Result<std::unique_ptr<ProcessRuntime>> make_gateway(const Bootstrap& bootstrap, TcpEndpoint listen,
                                                              Options options);
  ~ProcessRuntime() override;

  Reactor& reactor() { return *reactor_; }
  Timers& timers() override { return *reactor_; }
  Driver& driver() override { return *driver_; }
  Node& node() override { return *node_; }
  ProcessRuntime* of_machine() override { return this; }
  Host& host() { return *host_; }
  DeathWatch& deaths() { return *deaths_; }
  CallWatch& call_watch() { return *call_watch_; }
  // Any thread. Hosts that their monarch-hostds start for this process (Launch::hostd), as one mesh; returns before they
  // exist. Those that are reached over TCP only in a script: kUnsupported. One of these of which so long nothing is heard
  // is held for lost: what the first call says counts, kHostLeaseMinNs at least.
  Result<std::vector<NodeId>> attach(const std::vector<Launch>& launches, int64_t host_lease_ns);
  static constexpr int64_t kHostLeaseMinNs = 500'000'000;
  // Of a gateway: on which port it is dialled.
  uint16_t tcp_port() const;
  // Of a gateway, after stop_children(). Returns when the script has what they have printed, or after `limit_ns`.
  void finish_output(int64_t limit_ns) { relay_->finish(limit_ns); }
  // Of a worker that is a host; null in others.
  Agent* agent() { return agent_.get(); }
  NodeId parent() const { return parent_; }
  // Of the host that this process is on.
  const HostPlace& place() const { return host_->place(); }
  const Identity& identity() const { return connector_->identity(); }
  // False: other hosts are reached in another way than by connections from here (TcpTransport::go_by).
  bool dials_hosts() const { return tcp_ == nullptr || !tcp_->has_way(); }

  // ---- Handles that leave their job (docs/design/008) ----
  const JobId& job() const { return job_address_.job; }
  // Of this process's own job, for handles.
  const std::string& job_address() const { return job_address_text_; }
  // Any thread. Asks the job's script to put the token where other processes of this user find it. The call ends with
  // an answer; why_not_published() of that is empty, also if the job is about to end.
  std::shared_ptr<PendingCall> publish();
  std::string why_not_published(const PendingCall& call) const;
  // Whether the token lies there now.
  bool is_published() const;
  // Any thread. These nodes belong to the job at `address`: from now on they can be sent to, and what ends them is known.
  // The first time this process becomes a guest of that job. An error says what to do, and the next call may fare better;
  // nodes of a job that has ended are down instead, as those of this job would be. The call in the result asks that job's
  // script how the nodes are; null: there is nothing to ask. Who waits for it takes what it says with note_answer(), and
  // then knows of every death so far.
  Result<std::shared_ptr<PendingCall>> introduce(const std::string& address, const std::vector<NodeId>& nodes);
  void note_answer(const PendingCall& call, const std::vector<NodeId>& nodes);
  // Whether messages of this process may leave its job: it is a guest, or has had one.
  bool knows_other_jobs() const { return jobs_->any_other(); }
  // What shows the output of the job's workers. Null in a worker.
  OutputPump* output() { return output_.get(); }

  // Any thread. Asks processes for their stacks (host/stacks/process_stacks.h), this one too. Each rank has an answer or a
  // failure after `limit_ns`; of a process that does not answer by then, or is stopped, that is (pid, state, waits_in), as
  // ThreadStack's, with pid -1 where neither this process nor the host that has started it knows that.
  std::shared_ptr<PendingCall> ask_stacks(const std::vector<NodeId>& nodes, int64_t limit_ns);
  // Any thread. Of a process that this one has started; -1: it is none.
  int64_t pid_of_child(NodeId node) const { return deaths_->is_child(node) ? deaths_->pid_here(node) : -1; }
  // Reactor. Those of this process, as they are.
  void take_own_stacks(ThreadStacks::Done done) { stacks_->take(std::move(done)); }

  // Worker: waits until the owner asks this process to end, or is gone. Returns the reason. At most `limit_ns` at a
  // time; nullopt: not yet (the caller looks at its signals).
  std::optional<std::string> wait_for_stop(int64_t limit_ns);
  // Worker, any thread: the owner has asked this process to end.
  bool is_stopping() override;

  // ---- AnyRuntime ----
  using AnyRuntime::note_observed;
  void note_observed(NodeId node) override;
  Result<std::vector<NodeId>> spawn(const LaunchOrder& order, const LaunchDefaults& defaults, NodeId owner) override {
    return host_->spawn(order, defaults, owner);
  }
  void stop(const std::vector<NodeId>& nodes, const std::string& reason, int64_t grace_ns,
            std::function<void()> done) override {
    host_->stop(nodes, reason, grace_ns, std::move(done));
  }
  void note_hosted(NodeId host, const std::vector<NodeId>& nodes) override;
  void hear_news(NodeId node, LaunchNews news) override { host_->hear_news(node, std::move(news)); }
  NodeId host_of(NodeId node) override { return deaths_->host_of(node); }
  // Any thread. A process that a host was to start for this one will never be; `who` says which, and why.
  void not_started(NodeId node, Failure who) { deaths_->known(node, std::move(who)); }
  void release(const std::vector<NodeId>& nodes, const std::string& reason) override;
  void stop_children(const std::string& reason, int64_t grace_ns) override;
  void report_rest() override {
    deaths_->report_rest();
    node_->report_failures();
  }
  void block(ActorIndex actor, const std::shared_ptr<PendingCall>& call, int64_t waited_ns) override {
    call_watch_->block(actor, call, waited_ns);
  }
  void unblock(ActorIndex actor, const PendingCall& call) override { call_watch_->unblock(actor, call); }

  // Stops all processes of this host object, closes the links, ends the reactor, frees host(). Idempotent. Not from the
  // reactor, nor while anybody uses host(). In a child of fork(), which may not use the runtime and keeps nothing of it
  // open, neither this nor the destructor does anything. `only_output_left` is called when all processes have ended, and
  // what they have printed is all that is left to be written: for as long as the script's own reader takes.
  void shutdown(int64_t grace_ns, const std::function<void()>& only_output_left = {});

 private:
  explicit ProcessRuntime(std::unique_ptr<Reactor> reactor) : reactor_(std::move(reactor)) {}
  static Result<std::unique_ptr<ProcessRuntime>> with_reactor();
  void before_fork() override;
  void after_fork_in_parent() override;
  void after_fork_in_child() override;
  void leak();
  Status build(const Identity& identity, JobAddress address, OwnBell bell, UniqueFd budget_fd, OutputRoute output,
               Options options, std::optional<TcpTransport::Options> tcp);
  Node::Hooks node_hooks(Options& options);
  Status prepare_for_hosts(int64_t host_lease_ns, const HostdAddress* through);
  Result<OutputRoute> show_output(int stdout_fd, int stderr_fd);
  void be_child_of(const Bootstrap& bootstrap);
  Status start();
  std::shared_ptr<PendingCall> ask(NodeId script, Reception::Method method, const std::vector<NodeId>& nodes);
  DeathWatch::Hooks death_hooks();
  void on_control(Link& link, MessagePtr message);
  void on_link_lost(NodeId node, const Error& why);
  bool is_third(NodeId node) const;
  void on_out_of_reach(NodeId from, const Message& notice);
  void request_stop(const std::string& reason, int64_t limit_ns);
  void on_node_down(NodeId from, const Message& notice);
  void dismiss_guests();
  void on_overdue(const std::shared_ptr<PendingCall>& call);
  void on_stacks_wanted(NodeId asker, uint64_t token, uint32_t rank);
  struct Silent;
  void look_at_silent(const std::shared_ptr<Silent>& silent, int64_t left_ns);
  void have_looked_at(const std::shared_ptr<Silent>& silent, const std::map<NodeId, std::vector<uint32_t>>& elsewhere);

  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<Jobs> jobs_;
  JobAddress job_address_;
  std::string job_address_text_;
  OwnBell bell_;
  NodeId parent_ = 0;
  NodeId owner_ = 0;  // on whose behalf the parent has started this process; mostly the parent
  UniqueFd budget_fd_;  // nothing that uses the arena outlives it: its end gives this process's share back
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Received> received_;  // shared: with the leases of users
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<Connector> connector_;
  TcpTransport* tcp_ = nullptr;  // the connector's; null: this process is the gateway of no host
  int64_t host_lease_ns_ = 0;
  std::unique_ptr<Gateways> gateways_;
  std::unique_ptr<Places> places_;  // with tcp_
  std::unique_ptr<Partings> partings_;  // in the script
  std::unique_ptr<OutputPump> output_;   // of a root
  std::unique_ptr<OutputRelay> relay_;   // of a gateway, in its place
  std::mutex attach_mutex_;
  std::shared_ptr<OutputInlet> inlet_;  // of a root that attaches to hosts over a network; reactor, or attach_mutex_ held
  std::unique_ptr<DeathWatch> deaths_;
  std::unique_ptr<Host> host_;
  std::unique_ptr<CallWatch> call_watch_;
  std::function<std::vector<RunningActor>()> running_actors_;
  std::unique_ptr<ThreadStacks> stacks_;
  CodeMap code_map_;  // the reactor's
  struct Overdue {
    int64_t time_ns = 0;  // when stacks were taken for a call
    std::vector<NodeId> nodes;
    std::shared_ptr<PendingCall> asked;  // shared: with the calls that they were taken for
    int calls = 0;
  } overdue_;  // the reactor's
  std::shared_ptr<Reception> reception_;  // shared: with the node's table. In the script only
  std::shared_ptr<Agent> agent_;          // as reception_. In a host only
  bool shut_down_ = false;

  std::mutex stop_mutex_;
  std::condition_variable stop_condition_;
  std::function<void()> on_stop_;
  bool asked_to_stop_ = false;
  std::optional<std::string> stop_reason_;
};

}  // namespace monarch
