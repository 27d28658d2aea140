// The front of a C++ program that drives a mesh: Runtime, made first thing in main(), and this_host().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "monarch/host/host_mesh.h"

namespace monarch {

class NativeFactory;    // actor/native_cell.h
class ProcessRuntime;   // host/runtime.h
struct LaunchCommand;   // host/start/launch.h

// Lets the process of `runtime` run C++ actors. The owner destroys what it gets after ProcessRuntime::shutdown() and
// before the runtime. In a worker: inside make_worker's `wire`.
std::unique_ptr<NativeFactory> install_native_actors(ProcessRuntime& runtime, uint32_t threads = 0);

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
  // The hosts where these monarch-hostds run, in this order: tcp://HOST:PORT, or ipc://PATH on this machine. Returns at
  // once; one that cannot be attached to is an error of what is done with it. Each serves this program until that stops it,
  // shuts it down, or ends, and what was started there ends with that. Throws std::invalid_argument for what is no address,
  // or nonsense in `options`.
  HostMesh attach_to_workers(const std::vector<std::string>& addresses, const AttachOptions& options = {});
  // The process of this program itself: actors spawned here share it with main().
  ProcMesh this_proc();

  ProcessRuntime& process() { return *process_; }

  // The Runtime that was made last and lives; null: none. For this_host() alone.
  static Runtime* current();

  // Those of this machine and those that hosts have started for this program.
  void stop(const std::vector<NodeId>& nodes, const std::string& reason) override;

 private:
  friend class HostMesh;
  static constexpr int64_t kGraceNs = 300'000'000;  // for processes to end well

  LaunchCommand worker_command(const ProcOptions& options) const;
  void stop_own(const std::vector<NodeId>& nodes, const std::string& reason, int64_t grace_ns);
  void stop_on_hosts(const std::vector<NodeId>& nodes, const std::string& reason);

  std::vector<std::string> argv_;  // this program, and what it was called with
  std::unique_ptr<ProcessRuntime> process_;
  std::unique_ptr<NativeFactory> actors_;
  Runtime* outer_ = nullptr;
};

// runtime.this_host() of the innermost Runtime that lives: main() made it, and a test that makes its own replaces it
// for as long as that lives. Throws std::logic_error without one.
HostMesh this_host();

}  // namespace monarch
