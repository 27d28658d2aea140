// Trees of owners over seeds: a script, processes on one host or several, and actors in them that own meshes of actors and
// of processes, which fail, climb, are made anew and end, on the real nodes of a SimWorld. What the core decides is the
// product's; what a front does beside it (hooks, respawn(), restart policies, the end of what an actor owns) is done here
// as the Python front does it (python/monarch/_meshes/origins.py and owned.py, _running/restarting.py).
//
// What must hold at any moment is checked when it happens, the rest when nothing happens any more (check()).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "monarch/testing/sim_world.h"

namespace monarch::testing {

class OwnerWorld {
 public:
  struct Mesh;
  struct Actor;

  OwnerWorld(uint64_t seed, SimWorld::Faults faults);
  ~OwnerWorld();
  OwnerWorld(const OwnerWorld&) = delete;

  SimWorld& sim() { return sim_; }
  NodeId script() const { return script_; }

  // ---- What owners do. `by`: null for the client of the script ----
  using Ranks = std::vector<uint32_t>;
  struct Policy {
    int times = 0;     // 0: there is none
    bool all = false;  // one for all; else one for one
  };
  Mesh& spawn_actors(Actor* by, const std::vector<NodeId>& nodes, Mesh* procs, Policy policy);
  Mesh& spawn_procs(Actor* by, NodeId parent, size_t count, Policy policy);
  // Its owner ends it.
  void let_go(Mesh& mesh);
  // Those of these ranks that have ended, and those `stopped` for it. False: somebody else was faster.
  bool respawn_actors(Mesh& mesh, const Ranks& ranks, const Ranks& stopped = {});
  // The same of processes, with what their owner had spawned there. `racing`: it does not wait for others who do so.
  void respawn_procs(Mesh& procs, const Ranks& ranks, bool racing, std::map<Mesh*, Ranks> stopped = {},
                     std::function<void(bool)> done = [](bool) {});
  bool restart(NodeId at, const Node::Restart& order);
  // The core refuses it whole: some of that lives.
  void respawn_living(Mesh& mesh, uint32_t rank);
  // Of a mesh, by who has started it, or stands in its way.
  void call(NodeId caller, const Actor* by, Mesh& mesh, const Ranks& ranks, uint32_t what, bool oneway);
  void ask_to_end(NodeId process);

  // ---- What there is ----
  Mesh* any_mesh(bool procs);
  Actor* any_actor();                 // that lives, in a process that runs; null: none
  NodeId any_process();               // that has not ended; not the script
  std::vector<NodeId> processes() const;  // the same, all, with the script
  const std::vector<std::unique_ptr<Mesh>>& meshes() const { return meshes_; }
  bool owner_lives(const Mesh& mesh) const;
  bool runs(NodeId id) const { return sim_.alive(id) && !sim_.stopped(id); }
  NodeId add_agent(int host);  // which starts processes there for the script
  const std::vector<NodeId>& agents() const { return agents_; }
  // The script's hook deals with everything, and does nothing.
  void be_passive() { passive_ = true; }
  // Nodes of two hosts may be dead to each other.
  void note_parted() { parted_ = true; }
  void note_short() { short_ = true; }

  // What an endpoint does.
  enum Endpoint : uint32_t { kEcho, kRaise, kFail, kStopSelf, kSpawn, kTell, kSlow, kEndpoints };
  void grow(Actor* by);       // it spawns something
  void act();                 // somebody does something
  uint64_t respawns() const { return respawns_; }
  // What has not held, a line each; empty: all has.
  const std::string& violations() const { return violations_; }
  std::string state();

  // Nothing happens any more.
  void check();
  // Everything is called from somewhere, through handles as old as what they name, and answers as who is there now.
  void probe();

 private:
  struct Factory : CellFactory {
    explicit Factory(OwnerWorld& w) : world(w) {}
    std::shared_ptr<Cell> make(Node& node, ActorIndex index, MessagePtr spawn) override;
    OwnerWorld& world;
  };
  struct Process {
    NodeId parent = 0;
    bool asked_to_end = false;
  };
  struct Call {
    NodeId caller;
    Mesh* mesh;
    Ranks ranks;
    Ranks epochs;  // of each rank: the one that the caller knew of
    std::shared_ptr<PendingCall> call;
    bool is_probe = false;
  };

  bool can_start_for(NodeId parent, NodeId owner);
  NodeId start_process(NodeId parent, NodeId owner);
  Mesh& add_mesh(Actor* by, std::shared_ptr<const Members> members, bool is_procs, Mesh* procs, Policy policy);
  void note_made(Mesh& mesh, const Ranks& candidates, int64_t now_ns);
  Ranks ended_of(const Mesh& mesh, const Ranks& among);
  Ranks fallen_on(const Mesh& mesh, const std::set<NodeId>& nodes);
  NodeId node_of(const Mesh& mesh, uint32_t rank);  // as its owner knows it

  // What is told.
  Mesh& noticed(NodeId at, const MeshFailure& failure);
  void told(NodeId at, const Actor* by, const MeshFailure& failure);
  void asked(const Actor* by, const MeshFailure& failure);
  void wanted(NodeId at, std::vector<MeshFailure> failures);
  void decide_together(NodeId at, std::shared_ptr<std::vector<MeshFailure>> together);
  void give_up(NodeId at, const std::vector<MeshFailure>& together);
  void handled(const std::vector<MeshFailure>& together);
  void client_decides(const MeshFailure& failure);
  Ranks stop_others(Mesh& mesh, uint32_t failed);

  void check_calls();
  void check_rank(Mesh& mesh, uint32_t rank);
  void check_actor(const Actor& actor);
  void check_known_everywhere();
  void check_nothing_left();
  bool was_to_end(const Mesh& mesh, NodeId process);
  Actor* current(const Mesh& mesh, uint32_t rank);
  static std::string name_of(const Mesh& mesh, uint32_t rank);
  static Mesh& mesh_of(const MeshFailure& failure, OwnerWorld& world);

  void expect(bool holds, const char* what) {
    if (!holds) violated(what, {});
  }
  // `of`: what it is about, made if need be.
  template <typename Text>
  void expect(bool holds, const char* what, Text&& of) {
    if (!holds) violated(what, of());
  }
  void violated(const char* what, const std::string& of);

  SimWorld sim_;
  Factory factory_{*this};
  NodeId script_ = 0;
  std::vector<NodeId> agents_;
  std::map<NodeId, Process> processes_;
  std::vector<std::unique_ptr<Mesh>> meshes_;
  std::vector<std::shared_ptr<Actor>> actors_;  // shared: with directories
  std::map<std::tuple<const Mesh*, uint32_t, uint32_t>, Actor*> by_epoch_;  // mesh, rank, epoch
  std::vector<Call> calls_;
  bool parted_ = false, short_ = false, passive_ = false;
  uint64_t respawns_ = 0;
  std::string violations_;
};

// What somebody has spawned.
struct OwnerWorld::Mesh {
  struct Rank {
    Ranks epochs{0};       // in which it was made; the last is that of who is there
    NodeId node = 0;       // where it is to be
    int64_t made_ns = 0;   // when that was; 0: when it was spawned
    bool was_stopped = false;  // to be made anew with others
    int budget = 0;        // how often its policy has made it anew
    int respawns = 0;      // how often a hook has
    std::map<int64_t, int> noticed, told;  // how often, by made_ns
    std::set<int64_t> handled;             // by a policy
    std::set<uint32_t> stopped;            // epochs of those that were stopped, to be made anew with others
  };
  uint32_t number = 0;
  bool is_procs = false;
  NodeId node = 0;         // of its owner
  ActorIndex owner = 0;
  Actor* by = nullptr;     // null: the client
  Supervisor::MeshId id = 0;
  std::shared_ptr<const Members> members;  // shared: with the node; as it was spawned
  std::shared_ptr<const Message> spawn;    // shared: with restarts under way
  Mesh* procs = nullptr;         // of actors: the processes of their owner that they are in
  std::vector<Mesh*> spawned;    // of processes: what their owner has spawned there
  Policy policy;
  bool let_go = false;           // its owner has ended it, or has ended
  bool restarting = false, deciding = false;
  uint32_t constructor_fails = 0;  // percent
  std::vector<Rank> ranks;
};

// From its spawn to its end.
struct OwnerWorld::Actor : Cell, std::enable_shared_from_this<Actor> {
  enum class Life { kBegins, kLives, kEnds, kOver };

  Actor(OwnerWorld& w, Node& n, ActorIndex i, Mesh& m, uint32_t r, uint32_t e)
      : world(w), node(n), index(i), mesh(m), rank(r), epoch(e) {}
  void deliver(MessagePtr message) override;
  void supervise(MeshFailure failure) override;

  void ready();
  void turn();
  void construct();
  void handle(MessagePtr message);
  void ask();
  void decide(const MeshFailure& failure);
  void refuse(MessagePtr message);
  void fail(const std::string& why, const std::string& origin = {});
  void end(Failure::Kind kind, const std::string& why, const std::string& origin, bool by_itself);
  void over();
  bool lives() const { return life == Life::kLives; }
  bool is_replaced() const { return mesh.ranks[rank].epochs.back() != epoch; }
  std::string who() const;

  OwnerWorld& world;
  Node& node;
  const ActorIndex index;
  Mesh& mesh;
  const uint32_t rank, epoch;
  Life life = Life::kBegins;
  bool busy = false;    // a turn is to come, or a hook decides
  bool failed = false;  // else, if it has ended: it was to
  std::string origin;   // what it all began with, if it has failed
  std::deque<MessagePtr> inbox;
  std::deque<MeshFailure> failures;
  std::deque<MessagePtr> stops;  // that came after its end
  std::optional<Failure> epitaph;
  std::vector<Mesh*> owned;
};

}  // namespace monarch::testing
