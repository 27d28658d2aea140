// Runs Deaths (actor/deaths.h) for a process: tells it what happens here, and does what it says. What it says is down, is
// down at once, and others are told at once; everything else is done on the reactor, since news come from inside of links.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "monarch/actor/deaths.h"
#include "monarch/actor/node.h"
#include "monarch/loop/timers.h"

namespace monarch {

class DeathWatch {
 public:
  struct Hooks {
    // All on the reactor.
    std::function<void(NodeId child)> kill;
    std::function<void(NodeId)> on_buried;                       // it is down, and its links are closed
    std::function<void(const std::vector<NodeId>&)> stop_orphans;
    std::function<void(const std::string& reason)> end_self;
    // The last lines of a child are to be read; `done` is given them, now or later on the reactor, or nothing.
    std::function<void(NodeId, uint32_t lines, std::function<void(std::string)> done)> last_lines;
    std::function<bool(NodeId)> is_guest;    // of this process's job, whose script this is
    std::function<bool(NodeId)> is_foreign;  // of another job
    std::function<NodeId(NodeId)> script_of;  // of a job that this process is a guest of; 0: the node is of none
  };

  // Whoever keeps something for nodes of this job, in whatever layer, and must let go of it (memory, references).
  using Observer = std::function<void(NodeId, const Failure& why)>;

  // `node` is what is told of deaths. Before its first link; `hooks` may be called from then on.
  DeathWatch(Timers& timers, Node& node, Hooks hooks);

  // ---- Any thread: who is who (see Deaths) ----
  void set_parent(NodeId parent, Failure why);
  void add_child(NodeId node, NodeId owner, Failure who, uint32_t last_lines);
  void add_neighbour(NodeId node, bool believed);
  void add_hosted(const std::vector<NodeId>& nodes, NodeId host);
  // A child, or one below it, says that it has started this process. It is told further up.
  void on_hosts(NodeId from, NodeId node);
  bool stop_asked(NodeId node, const std::string& reason);
  void end_as_host(const std::string& because);
  bool is_child(NodeId node) const;
  int64_t pid_of(NodeId node) const;
  // The same of a process of this machine: what /proc says under that number is about it. -1: it is none, or not known.
  int64_t pid_here(NodeId node) const;
  // A process that this one has started, and that is not down: all that is known of it.
  std::optional<Failure> who_is(NodeId child) const;
  // That has started this process, which this one has not; 0: not known.
  NodeId host_of(NodeId node) const;
  // Whom to ask about a process that this one has not started: who is above it, or the script of its job. 0: nobody is
  // known, or this is the script.
  NodeId who_knows(NodeId node) const;
  FailurePtr why_down(NodeId node) const;

  // Any thread. `observer` is called on the reactor, once for each node that is found dead from now on, when calls to it
  // fail already; its links may still be open. It must not block, and lives as long as the reactor runs.
  void add_observer(Observer observer);

  // ---- Any thread: what happens ----
  void started(NodeId node, int64_t pid);
  void dying(NodeId node, const ExitStatus& status);
  void exited(NodeId node, const ExitStatus& status);
  void not_started(NodeId node, const std::string& why);
  void link_lost(NodeId node, const Error& why);
  // Of the gateway of a third host (Node::Hooks::is_third): the session to it is over; it has opened another one.
  void out_of_reach(NodeId gateway, Failure failure);
  void reached(NodeId gateway);
  // Of a node that is reached through another one (Node::Hooks::on_way_lost).
  void way_lost(NodeId node, FailurePtr failure);
  // `from` says so; of what it may not speak, nothing is taken.
  void noticed(NodeId from, NodeId node, FailurePtr failure);
  // `from`, or this process, says who is there in the place of the dead, and passes it on.
  void restarted(NodeId from, Successions::Notice notice);
  // As noticed, for what this process knows for sure.
  void known(NodeId node, Failure failure);

  // Somebody here, or at `from`, was told that a call has failed which `node` had a part in: it need not be said again.
  void observed(NodeId from, NodeId node);
  // Reactor. A process below asks what `node` has died of.
  void answer_inquiry(Link& link, NodeId node);
  // Any thread, or after the reactor has ended: a line for each death that nobody was told of.
  void report_rest();

 private:
  void feed(const Deaths::Event& event);
  void tick();
  void arm();  // mutex_ held
  void run(Deaths::Actions actions);
  void tell(const Deaths::Action& action);
  void act(const Deaths::Action& action);
  void end_links(const Deaths::Action& action);
  std::vector<std::shared_ptr<Link>> open_links(NodeId node) const;
  void tell_observers(const Deaths::Action& action);
  void ask_lines(const Deaths::Action& action);
  void inquire(NodeId node);
  void tell_tree(NodeId node, NodeId except, const std::string& body);
  bool is_told(NodeId peer) const;

  Timers& timers_;
  Node& node_;
  const Hooks hooks_;

  mutable std::mutex mutex_;  // a leaf: actions are done without it
  std::vector<std::shared_ptr<const Observer>> observers_;  // shared: with a call of it under way
  Deaths deaths_;
  NodeId parent_ = 0;
  int64_t armed_ns_ = INT64_MAX;  // when tick() is called next
};

}  // namespace monarch
