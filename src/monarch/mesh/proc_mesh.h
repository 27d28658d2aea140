// ProcMesh: a handle to processes with named dimensions, on which actors are spawned. A value; the processes live until
// stop() or until the runtime that started them ends.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "monarch/mesh/actor_mesh.h"

namespace monarch {

// Who started the processes: the host layer. Outlives every ProcMesh that it made.
class ProcOwner {
 public:
  virtual ~ProcOwner() = default;
  // Ends the processes and waits until they have ended.
  virtual void stop(const std::vector<NodeId>& nodes, const std::string& reason) = 0;
};

namespace internal {

// How the processes of a mesh were started, and what was spawned on them from here.
struct ProcOrigin {
  std::function<std::vector<NodeId>(const std::vector<uint32_t>& ranks)> start;  // others of the same kind
  uint64_t supervised = 0;  // Supervisor::MeshId
  std::mutex mutex;
  std::vector<std::shared_ptr<const MeshInfo>> spawned;  // shared: with handles of them
};

}  // namespace internal

class ProcMesh {
 public:
  // `node`: of this process. `owner`: null if these processes are not to be stopped. `origin`: null if no others are to be
  // started in their place; shared by the mesh and its slices.
  ProcMesh(Node& node, ProcOwner* owner, std::string name, std::vector<NodeId> nodes, const Extent& extent,
           std::shared_ptr<internal::ProcOrigin> origin = nullptr);

  const std::string& name() const { return name_; }
  const Extent& extent() const { return region_.extent(); }
  int64_t size() const { return region_.size(); }
  std::vector<NodeId> nodes() const;  // by rank

  // Throws std::invalid_argument.
  ProcMesh slice(const std::vector<DimSelection>& selections) const;

  // One actor in each process. Returns at once: calls may be sent before the actors exist. What goes wrong (a
  // constructor that throws) is what the calls fail with.
  template <typename A, typename... Args>
  ActorMesh<A> spawn(std::string name, const Args&... args) const {
    static_assert(std::is_constructible_v<A, const Args&...>, "no constructor of this actor takes these arguments");
    ValueWriter arguments;
    arguments.begin_tuple(sizeof...(Args));
    (encode(arguments, args), ...);
    return ActorMesh<A>(spawn_encoded(internal::class_name<A>(), std::move(name), arguments));
  }
  // As spawn, for a class that is only known by name; `arguments` is an encoded tuple.
  internal::MeshView spawn_encoded(std::string class_name, std::string name, const ValueWriter& arguments) const;

  // Starts processes in the place of those that have ended, with all actors that this process has spawned on them:
  // whoever has a handle of either reaches the new ones, the other ranks stay as they are. `ranks`: of the whole mesh.
  // Returns before they are up. Throws std::invalid_argument for one that lives, std::logic_error if these processes
  // are not this program's to start, std::runtime_error if the machine refuses.
  void respawn(const std::vector<uint32_t>& ranks) const;

  // Ends the processes and waits for that. Throws std::logic_error if they are not this program's to stop.
  void stop(const std::string& reason = "stop() was called") const;

 private:
  Node* node_;
  ProcOwner* owner_;
  std::string name_;
  std::shared_ptr<const std::vector<NodeId>> all_nodes_;  // shared by the mesh and its slices
  Region region_;
  std::shared_ptr<internal::ProcOrigin> origin_;
};

}  // namespace monarch
