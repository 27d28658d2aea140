// SimWorld: a virtual clock, a network and nodes, all from one seed, on one thread. The same seed gives the same
// run, so a failure is one line to reproduce: MONARCH_SIM_SEED=<n>.
//
// The nodes are real (actor/node.h); what is simulated is time and the links. A link is FIFO per lane and reliable
// until it dies; then of what was under way each direction still delivers a prefix, and loses the rest. Both ends hear
// on_closed once, after the last frame of that prefix. Nothing in here sleeps or makes a thread.
//
// A node wants a Driver, because a thread that waits for a call has to be woken through one. Here nobody waits on a
// thread: each world has one real Driver over a reactor that is never started, and no link rings its bell.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "monarch/actor/node.h"
#include "monarch/base/clock.h"
#include "monarch/base/random.h"
#include "monarch/testing/home.h"

namespace monarch::testing {

class SimWorld;

// One end of a simulated link.
class SimLink final : public Link, public std::enable_shared_from_this<SimLink> {
 public:
  SimLink(SimWorld& world, NodeId here, NodeId peer, LinkSink& sink)
      : Link(peer), world_(world), here_(here), sink_(sink) {}
  ~SimLink() override = default;

  bool send(const Outgoing& outgoing) override;
  bool send_control(const Outgoing& outgoing) override;
  void peer_died(const Error& why) override;
  void close() override;
  uint64_t backlog() const override { return 0; }
  std::string_view transport() const override { return "sim"; }

 private:
  friend class SimWorld;
  struct Lane {
    uint64_t next_arrival_ns = 0;  // of the last message under way: the next one comes no earlier
    uint64_t sent = 0;             // messages given to this lane
    uint64_t allowed = UINT64_MAX; // how many of them arrive: all, until the link dies
  };
  bool transmit(Lane& lane, bool control, const Outgoing& outgoing);
  void hear_end(const Error& why);

  SimWorld& world_;
  const NodeId here_;
  LinkSink& sink_;
  std::weak_ptr<SimLink> other_;  // weak: each node owns its own end
  Lane data_, control_;           // outbound
  bool told_ = false;
};

class SimWorld final : public Clock {
 public:
  struct Faults {
    int64_t delay_min_ns = 1'000;
    int64_t delay_max_ns = 2'000'000;
    // How long after the end of a link its node is declared down by whoever knows why; 0: at once, by the link's end.
    int64_t notice_max_ns = 5'000'000;
  };
  explicit SimWorld(uint64_t seed) : SimWorld(seed, Faults{}) {}
  SimWorld(uint64_t seed, Faults faults);
  ~SimWorld() override;

  // ---- Time and chance ----
  int64_t now_ns() override { return now_ns_; }
  void at(int64_t time_ns, std::function<void()> task);
  void after(int64_t delay_ns, std::function<void()> task) { at(now_ns_ + delay_ns, std::move(task)); }
  uint64_t random(uint64_t below);  // uniform in [0, below)
  bool chance(uint32_t percent) { return random(100) < percent; }
  int64_t delay_ns() {
    return faults_.delay_min_ns +
           static_cast<int64_t>(random(static_cast<uint64_t>(faults_.delay_max_ns - faults_.delay_min_ns + 1)));
  }
  // Runs one event; false: nothing is left to happen.
  bool step();
  // Runs until nothing is left to happen. False: more than `events_max` happened, which is a livelock.
  bool run(uint64_t events_max = 10'000'000);

  // ---- Nodes ----
  // A node that dials others when it has something for them.
  NodeId add_node();
  Node& node(NodeId id);
  bool alive(NodeId id) const;
  // The process dies: its links end, each having delivered a random prefix of what was under way. Its Node object
  // stays, cut off from the world, until the world ends.
  void kill(NodeId id, const std::string& reason);
  // The link between two nodes dies, both live on; each takes the other for dead. False: there is none.
  bool cut(NodeId a, NodeId b);
  // Has anything ever come between the two? Then what was under way may be lost.
  bool severed(NodeId a, NodeId b) const;
  // A link between two nodes, as a pair of ends with sinks of their own (link_suite.h).
  std::pair<std::shared_ptr<SimLink>, std::shared_ptr<SimLink>> connect(NodeId a, LinkSink& sink_a, NodeId b,
                                                                        LinkSink& sink_b);
  // Ends a link: a prefix of what is under way is still delivered.
  void break_link(const std::shared_ptr<SimLink>& end, const Error& why);

  Driver& driver() { return *driver_; }
  uint64_t events() const { return events_; }

  // Nothing happens any more: the queue is dropped and every node closes (what waits in it fails now). Whatever
  // cells and calls refer to must still be there. Idempotent; the destructor calls it.
  void end();

 private:
  friend class SimLink;
  struct SimNode {
    std::unique_ptr<Node> node;
    bool alive = true;
    std::string reason;
  };
  std::shared_ptr<Link> dial(NodeId from, NodeId to);
  bool on_link_lost(NodeId at, NodeId peer, const Error& why);

  const Faults faults_;
  uint64_t state_;
  int64_t now_ns_ = 0;
  uint64_t next_order_ = 0;
  uint64_t events_ = 0;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> queue_;  // by time, then by order of scheduling

  Reactor reactor_;  // never started
  OwnBell bell_;
  std::unique_ptr<Driver> driver_;
  std::map<NodeId, SimNode> nodes_;
  std::vector<std::shared_ptr<SimLink>> ends_;
  std::map<std::pair<NodeId, NodeId>, bool> severed_;
};

// The seeds that a test runs: MONARCH_SIM_SEED=n only that one, MONARCH_SIM_SEEDS=n that many, else `full`, or `brief`
// in the short form.
std::vector<uint64_t> sim_seeds(int full, int brief);

// "MONARCH_SIM_SEED=17 <test binary> --gtest_filter=Suite.Test", of the running test.
std::string reproduction(uint64_t seed, const std::string& binary, const std::string& test);

}  // namespace monarch::testing
