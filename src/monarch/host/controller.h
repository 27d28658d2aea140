// The front of a C++ program that drives a mesh: Runtime, made first thing in main(), and this_host().
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "monarch/mesh/proc_mesh.h"

namespace monarch {

class NativeFactory;   // actor/native_cell.h
class ProcessRuntime;  // host/runtime.h

using Dims = std::vector<std::pair<std::string, int64_t>>;  // {{"hosts", 2}, {"gpus", 8}}, outermost first

// Lets the process of `runtime` run C++ actors. The owner destroys what it gets after ProcessRuntime::shutdown() and
// before the runtime. In a worker: inside make_worker's `wire`.
std::unique_ptr<NativeFactory> install_native_actors(ProcessRuntime& runtime, uint32_t threads = 0);

class Runtime;

// The machine that this program runs on, as a mesh of one host. A value; lives no longer than its Runtime.
class HostMesh {
 public:
  explicit HostMesh(Runtime& runtime) : runtime_(&runtime) {}

  // New processes of this same program, one for each element of `dims`; none: one process without dimensions. Returns
  // before they run. Throws std::invalid_argument for dimensions that make no mesh, std::runtime_error if the machine
  // refuses. `name` is for people.
  ProcMesh spawn_procs(const Dims& dims, const std::string& name = "procs") const;

 private:
  Runtime* runtime_;
};

// The program's place in the job. In the controller it is the root: its destructor stops every process that it started.
// In a process that a controller has started (the same program, found by its last arguments) the constructor runs the
// worker, and never returns.
class Runtime final : public ProcOwner {
 public:
  struct Options {
    uint32_t actor_threads = 0;  // of each process; 0: the number of cores, at most 4
    std::string transport = "shm";  // one of net/transports.h
    // The reactor's thread; must not block. Something that main() has spawned has failed, and no call of this process has
    // thrown it within a second. Empty: a report on stderr, and the process ends with status 1.
    std::function<void(const MeshFailure&)> on_unhandled_failure = {};
  };

  Runtime(int argc, char** argv) : Runtime(argc, argv, Options{}) {}
  Runtime(int argc, char** argv, Options options);
  ~Runtime() override;
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  HostMesh this_host() { return HostMesh(*this); }
  // The process of this program itself: actors spawned here share it with main().
  ProcMesh this_proc();

  ProcessRuntime& process() { return *process_; }

  // The Runtime that was made last and lives; null: none. For this_host() alone.
  static Runtime* current();

  void stop(const std::vector<NodeId>& nodes, const std::string& reason) override;

 private:
  friend class HostMesh;

  std::vector<std::string> argv_;  // of workers
  std::unique_ptr<ProcessRuntime> process_;
  std::unique_ptr<NativeFactory> actors_;
  Runtime* outer_ = nullptr;
};

// runtime.this_host() of the innermost Runtime that lives: main() made it, and a test that makes its own replaces it
// for as long as that lives. Throws std::logic_error without one.
HostMesh this_host();

}  // namespace monarch
