// HostMesh: where processes are started: the machine that this program runs on, or those that it has attached to, where a
// monarch-hostd runs (host/hostd.h), along the dimension "hosts". A value; lives no longer than its Runtime.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "monarch/mesh/future.h"
#include "monarch/mesh/proc_mesh.h"

namespace monarch {

class Runtime;  // host/controller.h

using Dims = std::vector<std::pair<std::string, int64_t>>;  // {{"racks", 2}, {"gpus", 8}}, outermost first

// How processes are started, beside their number. They have the environment and the working directory of whoever starts
// them: this program, or the monarch-hostd of their machine.
struct ProcOptions {
  std::string name = "procs";  // for people
  // Empty: this program, which lies at the same path on every host. Or the path there of another one, built with the same
  // version, that makes a Runtime first thing in main(): its actors are the ones that can be spawned.
  std::string program{};
  std::optional<std::vector<std::string>> args{};  // of main() there; none: this program's own
  std::vector<std::pair<std::string, std::optional<std::string>>> env{};  // added to what they have; none: taken away
};

struct AttachOptions {
  std::string name = "hosts";  // for people
  // What both sides know. Empty: the file that MONARCH_TOKEN_FILE names, or else hosts.token in this user's runtime folder.
  std::string token_file{};
  // PEM, for tcp://: this program's own certificate, behind its key, and whose certificates it believes. They go together;
  // without them both sides make theirs from the token.
  std::string key_file{}, ca_file{};
  bool trust_all_connections = false;  // for tcp://: whatever certificate a host has, the token says whether it is one
  std::chrono::nanoseconds host_lease = std::chrono::seconds(5);  // for tcp://: who is silent for so long is lost
  std::chrono::nanoseconds ready_timeout = std::chrono::seconds(30);  // for a host that does not run yet
};

namespace internal {

// Hosts that were attached to. All handles of them and their slices own it together.
struct AttachedHosts;

}  // namespace internal

class HostMesh {
 public:
  // This machine, which has no dimensions.
  explicit HostMesh(Runtime& runtime);

  const std::string& name() const;
  const Extent& extent() const { return region_.extent(); }
  int64_t size() const { return region_.size(); }

  // Throws std::invalid_argument.
  HostMesh slice(const std::vector<DimSelection>& selections) const;

  // Is there when all of these hosts are ready; fails, naming the address, with one that cannot be attached to.
  Future<void> initialized() const;

  // New processes: for each host one for each element of `per_host`, or one if it is empty. Their mesh has the dimensions
  // of the hosts, then these. Returns before they run; on hosts that were attached to, when those have taken the order.
  // Throws std::invalid_argument for dimensions that make no mesh, std::runtime_error if this machine refuses, and
  // SupervisionError if one of the hosts does or is not there: then none is started.
  ProcMesh spawn_procs(const Dims& per_host, const ProcOptions& options) const;
  ProcMesh spawn_procs(const Dims& per_host, const std::string& name = "procs") const {
    ProcOptions options;
    options.name = name;
    return spawn_procs(per_host, options);
  }

  // Ends what was spawned through these hosts and lets go of them: each monarch-hostd is there for the next program.
  // Waits for that. Throws std::logic_error for this machine.
  void stop(const std::string& reason = "stop() was called") const;
  // As stop(), and ends each monarch-hostd.
  void shutdown(const std::string& reason = "shutdown() was called") const;

 private:
  friend class Runtime;
  HostMesh(Runtime& runtime, std::shared_ptr<internal::AttachedHosts> hosts);

  std::vector<NodeId> nodes() const;  // by rank
  void end(const std::string& what, const std::string& reason, bool shut_down) const;

  Runtime* runtime_;
  std::shared_ptr<internal::AttachedHosts> hosts_;  // null: this machine
  Region region_;
};

}  // namespace monarch
