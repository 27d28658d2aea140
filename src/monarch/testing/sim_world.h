// SimWorld: a virtual clock, a network and nodes, all from one seed, on one thread. The same seed gives the same
// run, so a failure is one line to reproduce: MONARCH_SIM_SEED=<n>.
//
// The nodes are real (actor/node.h); what is simulated is time and the links. A link is FIFO per lane and reliable
// until it dies; then of what was under way each direction still delivers a prefix, and loses the rest. Both ends hear
// on_closed once, after the last frame of that prefix. Of a large one behind it some bytes may have come, with which a
// session goes on. Nothing in here sleeps or makes a thread.
//
// Nodes may lie on several hosts. Between hosts there are sessions, with the code of the product (net/resuming_link.h):
// what breaks is a carrier, and the session goes on with the next, unless nothing gets through for as long as the lease.
//
// A node may be a process that another one has started: its parent learns how it ended, and tells others, who believe
// whom a process would believe, tell it on, and are told over links. What Deaths says is done, as in
// host/death_watch.h.
//
// A node wants a Driver, because a thread that waits for a call has to be woken through one. Here nobody waits on a
// thread: each world has one real Driver over a reactor that is never started, and no link rings its bell.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "monarch/actor/deaths.h"
#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/base/random.h"
#include "monarch/loop/driver.h"
#include "monarch/loop/timers.h"
#include "monarch/net/sessions.h"
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
  std::unique_ptr<RecordAssembler> take_begun() override;
  bool go_on_with(std::unique_ptr<RecordAssembler> begun) override;
  bool send_rest(const Outgoing& outgoing, std::shared_ptr<const void> keeper, uint64_t begun) override;
  void peer_died(const Error& why) override;
  void close() override;
  uint64_t backlog() const override { return 0; }
  uint64_t session() const override { return session_; }
  bool opened() const override { return session_ != 0; }
  uint64_t data_frames_sent() const override { return data_.sent; }
  std::string_view transport() const override { return "sim"; }

 private:
  friend class SimWorld;
  struct Lane {
    uint64_t next_arrival_ns = 0;  // of the last message under way: the next one comes no earlier
    uint64_t sent = 0;             // messages given to this lane
    uint64_t allowed = UINT64_MAX; // how many of them arrive: all, until the link dies
    uint64_t arrived = 0;          // how many of them have
    std::map<uint64_t, std::vector<std::byte>> large;  // under way, by number: what of their records is sent here
  };
  // A larger record may come in part.
  static constexpr uint64_t kWholeMax = 64 << 10;
  void transmit(Lane& lane, bool control, MessagePtr message);
  bool transmit_bytes(const Outgoing& outgoing, uint64_t begun);
  MessagePtr read(ByteSpan bytes);
  void hear_end(const Error& why);
  void hear_end_at(int64_t time_ns, const Error& why);

  SimWorld& world_;
  const NodeId here_;
  LinkSink& sink_;
  std::weak_ptr<SimLink> other_;  // weak: each node owns its own end
  Lane data_, control_;           // outbound
  std::unique_ptr<RecordAssembler> reader_;  // of large frames from the other side
  bool told_ = false;
  uint64_t session_ = 0;          // connect()
};

// Who lives on the nodes of a world, where those are whole processes: it does with their ends what a process does.
class SimResidents {
 public:
  virtual ~SimResidents() = default;
  // Before the node is made: what it is to call. `dial` is the world's.
  virtual void wire(NodeId node, Node::Hooks& hooks) = 0;
  // The node has been killed: nothing runs there any more.
  virtual void killed(NodeId node) = 0;
  // Its parent learns that it is at its end, or (`exited`) that it has ended.
  virtual void told_of_end(NodeId parent, NodeId child, bool exited) = 0;
};

class SimWorld final : public Timers {
 public:
  struct Faults {
    int64_t delay_min_ns = 1'000;
    int64_t delay_max_ns = 2'000'000;
    // How long after the end of a process its parent may learn of that.
    int64_t notice_max_ns = 5'000'000;
    // A node is put on one of so many hosts, by chance.
    int hosts = 1;
    int64_t lease_ns = 2'000'000'000;  // of links between hosts
  };
  explicit SimWorld(uint64_t seed) : SimWorld(seed, Faults{}) {}
  // `driver`: instead of one of its own, which outlives the world.
  SimWorld(uint64_t seed, Faults faults, SimResidents* residents = nullptr, Driver* driver = nullptr);
  ~SimWorld() override;

  // ---- Time and chance ----
  int64_t now_ns() override { return now_ns_; }
  void at(int64_t time_ns, std::function<void()> task);
  TimerId after(int64_t delay_ns, std::function<void()> task) override;
  void cancel(TimerId id) override;
  size_t waiting() const { return queue_.size(); }  // how much is still to happen
  uint64_t random(uint64_t below);  // uniform in [0, below)
  bool chance(uint32_t percent) { return random(100) < percent; }
  int64_t delay_ns() {
    return faults_.delay_min_ns +
           static_cast<int64_t>(random(static_cast<uint64_t>(faults_.delay_max_ns - faults_.delay_min_ns + 1)));
  }
  // Something that this process does then, or when it goes on (stop()); a dead one does nothing.
  void after_in(NodeId id, int64_t delay_ns, std::function<void()> task);
  // Runs one event; false: nothing is left to happen.
  bool step();
  // Runs until nothing is left to happen. False: more than `events_max` happened, which is a livelock.
  bool run(uint64_t events_max = 10'000'000);

  // ---- Nodes ----
  // A node that dials others when it has something for them. `host`: which one; -1: any.
  NodeId add_node(int host = -1) { return add_node_on(host < 0 ? any_host() : host, 0); }
  // A process that `parent` has started, on its host. They end with each other, as processes do. `owner`: on whose behalf,
  // with which it ends too; 0: its own.
  NodeId add_child(NodeId parent, NodeId owner = 0) { return add_node_on(host_of(parent), parent, owner); }
  // `script` uses `host`, which another one has started, and what that has started and will start: from then on the host
  // is told what the script hears of deaths, and believes it.
  void attach(NodeId script, NodeId host);
  Timers& timers_of(NodeId id) { return *nodes_.at(id).timers; }
  Deaths& deaths(NodeId id) { return *nodes_.at(id).deaths; }
  int host_of(NodeId id) const { return nodes_.at(id).host; }
  Sessions& sessions(NodeId id) { return *nodes_.at(id).sessions; }
  Node& node(NodeId id);
  bool alive(NodeId id) const;
  // The process dies: its links end, each having delivered a random prefix of what was under way. Its Node object
  // stays, cut off from the world, until the world ends. `why` is for who reads the test: the world learns it as a
  // process would, from its parent.
  void kill(NodeId id, std::string_view why = {});
  // The process is stopped, as by SIGSTOP: for so long nothing of it runs, and what comes for it waits.
  void stop(NodeId id, int64_t length_ns);
  bool stopped(NodeId id) const { return nodes_.contains(id) && now_ns_ <= nodes_.at(id).stopped_until_ns; }
  // The link between two nodes dies, both live on; each takes the other for dead, unless they are on two hosts: then their
  // session is resumed. False: there is none.
  bool cut(NodeId a, NodeId b);
  // All links between two hosts break, and none gets through for so long. As long as a lease or longer: the nodes of the
  // two are dead to each other, and may be so for all to whom a script says so (attach()).
  void part(int host_a, int host_b, int64_t length_ns);
  // Has anything ever come between the two? Then what was under way may be lost.
  bool severed(NodeId a, NodeId b) const;
  // The next dial of this node finds that its process is short of something.
  void fail_next_dial(NodeId id) { short_.insert(id); }
  // Who decides about failures, of each process: Node::Hooks. Before the first node.
  struct Owners {
    std::function<void(NodeId at, MeshFailure)> on_mesh_failure;
    std::function<void(NodeId at, std::vector<MeshFailure>)> on_restart_wanted;
  };
  void set_owners(Owners owners) { owners_ = std::move(owners); }
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
  // Those of one node: nothing runs in a dead one.
  struct NodeTimers final : Timers {
    NodeTimers(SimWorld& w, NodeId i) : world(w), id(i) {}
    int64_t now_ns() override { return world.now_ns(); }
    TimerId after(int64_t delay_ns, std::function<void()> task) override;
    void cancel(TimerId timer) override { world.cancel(timer); }
    SimWorld& world;
    const NodeId id;
  };
  struct SimRandom final : Random {
    explicit SimRandom(SimWorld& w) : world(w) {}
    uint64_t next_u64() override { return world.random(UINT64_MAX); }
    SimWorld& world;
  };
  struct SimNode {
    int host = 0;
    std::unique_ptr<NodeTimers> timers;
    std::shared_ptr<Sessions> sessions;  // shared: with each of them
    std::unique_ptr<Node> node;
    bool alive = true;
    std::unique_ptr<Deaths> deaths;
    NodeId parent = 0;
    NodeId script = 0;  // that has attached to it
    int64_t stopped_until_ns = -1;
    std::vector<std::function<void()>> waiting;  // while it is stopped: what is to happen in it
  };
  int any_host() { return faults_.hosts > 1 ? static_cast<int>(random(static_cast<uint64_t>(faults_.hosts))) : 0; }
  NodeId add_node_on(int host, NodeId parent, NodeId owner = 0);
  void join(NodeId child, NodeId parent, NodeId owner);
  void when_running(NodeId id, std::function<void()> task);
  void go_on(NodeId id);
  void on_timer(NodeId id, TimerId timer, const std::function<void()>& task);
  std::shared_ptr<Link> dial(NodeId from, NodeId to);
  std::shared_ptr<Link> dial_carrier(NodeId from, NodeId to, LinkSink& sink);
  std::shared_ptr<Link> connect_later(NodeId from, NodeId to, const std::pair<std::shared_ptr<SimLink>,
                                      std::shared_ptr<SimLink>>& ends, std::function<void()> join);
  bool same_host(NodeId a, NodeId b) const { return nodes_.at(a).host == nodes_.at(b).host; }
  bool is_parted(NodeId a, NodeId b) const;
  bool on_link_lost(NodeId at, NodeId peer, const Error& why);
  void feed(NodeId at, const Deaths::Event& event);
  void act(NodeId at, Deaths::Actions actions);
  void act(NodeId at, const Deaths::Action& action);
  void end_links(NodeId at, const Deaths::Action& action);
  void close_links(NodeId at, NodeId gone);
  void tell(NodeId at, const Deaths::Action& action);
  void inquire(NodeId at, NodeId gone);
  void on_control(NodeId at, Link& link, const Message& message);
  void restarted(NodeId at, NodeId from, Successions::Notice notice);
  void tell_parent_of(NodeId gone);

  const Faults faults_;
  SimResidents* const residents_;
  uint64_t state_;
  int64_t now_ns_ = 0;
  uint64_t next_order_ = 1;
  uint64_t events_ = 0;
  std::map<std::pair<int64_t, uint64_t>, std::function<void()>> queue_;  // by time, then by order of scheduling
  std::map<TimerId, int64_t> timers_;  // those in the queue: their time; an id is the order of scheduling

  struct OwnDriver {
    Reactor reactor;  // never started
    OwnBell bell = OwnBell::make().value();
    Driver driver{reactor, bell.bell(), bell.event_fd.get()};
  };
  const std::unique_ptr<OwnDriver> own_driver_;
  Driver* const driver_;
  std::map<NodeId, SimNode> nodes_;
  std::vector<std::shared_ptr<SimLink>> ends_;  // both of each link
  std::map<std::pair<NodeId, NodeId>, bool> severed_;
  std::set<NodeId> short_;
  Owners owners_;
  bool attached_ = false;
  SimRandom sim_random_{*this};
  std::map<std::pair<int, int>, int64_t> parted_until_;
};

// The seeds that a test runs: MONARCH_SIM_SEED=n only that one, MONARCH_SIM_SEEDS=n that many, from MONARCH_SIM_FIRST=n on
// (else from 1), else `full`, or `brief` in the short form.
std::vector<uint64_t> sim_seeds(int full, int brief);

// "MONARCH_SIM_SEED=17 <test binary> --gtest_filter=Suite.Test", of the running test.
std::string reproduction(uint64_t seed, const std::string& binary, const std::string& test);

}  // namespace monarch::testing
