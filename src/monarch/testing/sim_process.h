// Whole processes on a SimWorld: each has a node, knows its children, and decides about deaths with the code of the product
// (host/death_watch.h). What is simulated is what the machine does for a process: starting, ending, signals, time, links.
// What runs in a process is up to whoever uses this (bindings/python/simulation.cc): threads on the SimStage.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "monarch/host/agent.h"
#include "monarch/host/any_runtime.h"
#include "monarch/host/death_watch.h"
#include "monarch/testing/sim_stage.h"
#include "monarch/testing/sim_world.h"
#include "monarch/wire/last_words.h"

namespace monarch::testing {

class SimMachine;

class SimProcess final : public AnyRuntime {
 public:
  SimProcess(SimMachine& machine, NodeId id);

  NodeId id() const { return id_; }
  NodeId parent() const { return parent_; }
  int64_t pid() const { return pid_; }
  int host() const { return host_; }
  const std::string& mesh() const { return mesh_; }
  int64_t rank() const { return rank_; }
  bool is_alive() const;
  const std::string& payload() const { return payload_; }

  // ---- AnyRuntime ----
  Node& node() override { return *node_; }
  Driver& driver() override;
  Timers& timers() override;
  void note_observed(NodeId node) override {
    if (node != 0) deaths_->observed(id_, node);
  }
  // Whatever `defaults` say: nothing is started, and what an order wants to have started otherwise is left out.
  Result<std::vector<NodeId>> spawn(const LaunchOrder& order, const LaunchDefaults& defaults, NodeId owner) override;
  void stop(const std::vector<NodeId>& nodes, const std::string& reason, int64_t grace_ns,
            std::function<void()> done) override;
  void note_hosted(NodeId host, const std::vector<NodeId>& nodes) override { deaths_->add_hosted(nodes, host); }
  NodeId host_of(NodeId node) override { return deaths_->host_of(node); }
  void release(const std::vector<NodeId>& nodes, const std::string& reason) override;
  void stop_children(const std::string& reason, int64_t grace_ns) override;
  bool is_stopping() override { return asked_to_stop_ || stopping_; }
  void report_rest() override;
  void block(ActorIndex, const std::shared_ptr<PendingCall>&, int64_t) override {}
  void unblock(ActorIndex, const PendingCall&) override {}

 private:
  friend class SimMachine;
  struct Child {
    NodeId owner = 0;
    bool buried = false;
    bool ended = false;
  };
  struct Waiting {
    std::vector<NodeId> nodes;
    std::function<void()> done;
  };

  void wire(Node::Hooks& hooks);
  void begin(Node& node, NodeId parent, NodeId owner);
  DeathWatch::Hooks death_hooks();
  void on_control(Link& link, const Message& message);
  void on_node_down(NodeId from, const Message& notice);
  void request_stop(const std::string& reason, int64_t limit_ns);
  void note(NodeId child, bool Child::*what);
  void check_waiting();

  SimMachine& machine_;
  const NodeId id_;
  NodeId parent_ = 0;
  NodeId owner_ = 0;
  int64_t pid_ = 0;
  int host_ = 0;
  std::string mesh_;
  int64_t rank_ = -1;
  std::string payload_;
  Node* node_ = nullptr;
  std::unique_ptr<DeathWatch> deaths_;
  std::shared_ptr<Agent> agent_;  // of a host; shared: with the node's table
  std::map<NodeId, Child> children_;
  std::vector<Waiting> waiting_;
  bool asked_to_stop_ = false;
  bool stopping_ = false;
  ExitStatus status_{};  // how it ended
  // What its actors are in, as a real one leaves it behind. Never given back: threads of the dead may still write to it.
  LastWords& last_words_;
};

// All processes of a simulated program. Those of one host share its part of the network.
class SimMachine final : private SimResidents {
 public:
  // All but `wired` with the turn of the thread that makes something happen.
  struct Events {
    std::function<void(SimProcess&, Node::Hooks&)> wired;  // the node is about to be made: what it calls in its process
    std::function<void(SimProcess&)> started;              // it runs, from now on
    std::function<void(SimProcess&, const std::string& reason)> asked_to_stop;  // it is to end itself, with exit()
    std::function<void(SimProcess&, const ExitStatus&)> ended;
    std::function<bool()> interrupted;  // as SimStage's
  };
  // `driver`: nobody else uses it, and it outlives what is left of this.
  SimMachine(uint64_t seed, SimWorld::Faults faults, int64_t patience_ns, Driver& driver, Events events);
  ~SimMachine() override;

  SimWorld& world() { return world_; }
  SimStage& stage() { return *stage_; }
  SimProcess& script() { return *script_; }
  SimProcess* find(NodeId id);
  // Those that live, in the order of their start, but the script.
  std::vector<SimProcess*> living();

  // It has been sent SIGKILL.
  void kill(SimProcess& process) { end(process, {true, 0, 9}); }
  // It ends so.
  void end(SimProcess& process, const ExitStatus& status);
  // Nothing happens any more.
  void close();

 private:
  friend class SimProcess;
  void wire(NodeId node, Node::Hooks& hooks) override;
  void killed(NodeId node) override;
  void told_of_end(NodeId parent, NodeId child, bool exited) override;
  SimProcess& add(NodeId parent, NodeId owner);
  SimProcess& start(SimProcess& starter, NodeId owner, const LaunchOrder& order, const LaunchRequest& request);

  const Events events_;
  std::map<NodeId, std::unique_ptr<SimProcess>> processes_;
  std::vector<SimProcess*> order_;
  SimWorld world_;
  std::unique_ptr<SimStage> stage_;
  SimProcess* script_ = nullptr;
  int64_t next_pid_ = 10'000'001;
};

}  // namespace monarch::testing
