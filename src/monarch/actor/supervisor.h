// What the actors of a process own, and its client: whoever has spawned a mesh is its owner, in that process, and is the
// one who is told when something of it fails. Nobody else is, whoever else has handles of it. Any thread.
//
// Each rank of a mesh fails once, and again after it has been made anew; what fails because its owner has asked for its end
// does not fail.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "monarch/actor/members.h"
#include "monarch/wire/failure.h"

namespace monarch {

struct OwnedMesh {
  ActorIndex owner = 0;     // 0: the client
  bool is_procs = false;    // else of actors
  std::string name;         // as it was spawned
  std::string class_name;   // of actors
  std::string creator;      // the owner, for people: the chain of who made whom; empty: not known
  std::vector<std::string> labels;
  std::vector<int64_t> sizes;
  std::shared_ptr<const Members> members;  // shared: with views of it. By rank; of processes with index 0
  bool restarts = false;    // it has a restart policy, which is asked before the owner is
};

// One rank of an owned mesh has failed.
struct MeshFailure {
  std::shared_ptr<const OwnedMesh> mesh;  // shared: with the table, which may let go of it
  uint32_t rank = 0;
  FailurePtr why;
  uint64_t mesh_id = 0;  // Supervisor::MeshId
  int64_t made_ns = 0;    // when the rank was last made anew, on the node's clock; 0: never
  std::string history{};  // how often it had been made anew before, in a line; empty: never

  std::vector<int64_t> coordinates() const { return coordinates_of(rank, mesh->sizes); }
  // "<root>.<Trainer trainers{'gpus': 3/8}>"
  std::string who() const;
  // Who has failed, and of what; several lines if there are a traceback or last lines.
  std::string report() const;
  // What it all began with, in a line.
  std::string origin() const;
};

class Supervisor {
 public:
  using MeshId = uint64_t;

  MeshId add(OwnedMesh mesh);
  // It has ended as its owner wished, or its owner has ended: nothing that happens to it is told any more.
  void remove(MeshId id);

  // An actor, which `why` names, has failed, or has stopped itself (kActorStopped: nobody is to be told). `epoch`: in which
  // it was made. Of an earlier one than the one that is there by now nothing is told.
  std::vector<MeshFailure> actor_ended(const FailurePtr& why, uint32_t epoch);
  // These processes are asked to end: what becomes of them from now on, and of what is in them, is no failure.
  void note_stopping(const std::vector<NodeId>& nodes);
  // Actors of one mesh, as they were spawned, have just been sent a stop.
  void note_stopped(const Members& actors);
  // A process is down; of one that was asked to end nobody is told. First its actors, in the order of their spawns.
  std::vector<MeshFailure> node_down(NodeId node, const FailurePtr& why);

  // ---- What is made anew ----
  // From now on it has a restart policy.
  void set_restarts(MeshId id);
  // The ranks that have ended, by their number; none of a mesh that is not known (any more).
  std::optional<std::vector<uint32_t>> ended(MeshId id) const;
  // Those of them that lived until their process ended, which nobody had asked to.
  std::vector<uint32_t> fallen(MeshId id) const;
  // It has ended, and its process too: it comes back with that one.
  void note_fallen(MeshId id, uint32_t rank);
  std::shared_ptr<const Members> members(MeshId id) const;  // as they are now; null: it is not known
  // Whether this has not been made anew since: not the one that has failed meanwhile in its place, either.
  bool is_current(const MeshFailure& failure) const;
  struct Restarted {
    std::shared_ptr<const Members> members;  // shared: with the mesh
    ActorIndex first = 0;  // the lowest index
    uint64_t count = 1;    // up to the highest
    uint32_t epoch = 0;    // how often some of it has been made anew, this time included
    std::vector<uint32_t> ranks;
    std::vector<NodeId> named;  // where they were spawned, which handles name
  };
  // These ranks, which have ended, are there again, and `stopped`, which their owner has stopped for it, but those that
  // have failed meanwhile, or that somebody else has made anew since. None: the mesh is not known, one of `ranks` has not
  // ended, or nothing is to be made anew.
  std::optional<Restarted> restart(MeshId id, const std::vector<uint32_t>& ranks,
                                   const std::vector<uint32_t>& stopped = {}, int64_t now_ns = 0);
  // `next` is there in the place of a process that has ended. Returns where its actors were spawned, which handles name.
  std::vector<NodeId> replace(NodeId ended, NodeId next);
  bool owns(ActorIndex first) const;  // a mesh of actors, of which that is the lowest index

  size_t size() const;

 private:
  struct Entry {
    std::shared_ptr<const OwnedMesh> mesh;  // shared: with failures that are being told
    std::shared_ptr<const Members> spawned; // shared: with `mesh`, until somebody is replaced
    std::set<uint32_t> ended{};             // ranks
    std::set<uint32_t> failed{};            // those that nobody had asked to end: the mesh may be made anew
    std::set<uint32_t> fallen{};            // those of them that lived until their process ended
    std::set<uint32_t> stopped{};           // those that were sent a stop, and not made anew since
    struct Made {
      int64_t when_ns = 0;
      uint32_t epoch = 0;
    };
    std::map<uint32_t, Made> made{};  // of those that were made anew: the last time
    uint32_t epoch = 0;

    int64_t made_ns(uint32_t rank) const;  // 0: never
  };
  bool note_end(MeshId id, Entry& entry, uint32_t rank, const FailurePtr& why, bool wanted,
                std::vector<MeshFailure>& failures);
  void erase(std::map<MeshId, Entry>::iterator found);
  std::pair<std::map<MeshId, Entry>::iterator, uint32_t> find(const ActorId& id, bool spawned);

  mutable std::mutex mutex_;  // a leaf
  std::map<MeshId, Entry> meshes_;
  std::map<ActorIndex, MeshId> by_index_;  // those of actors, by the lowest index: who spawns numbers a mesh in a row
  std::set<NodeId> stopping_;
  MeshId last_id_ = 0;
};

}  // namespace monarch
