// The fork server's protocol: one SOCK_SEQPACKET socket between the host object and a single-threaded, pre-imported
// process that forks workers. The host sends (node, its descriptors); the server answers with pids and, as the parent
// of the workers, with their exit statuses. EOF from the host ends the server, and by PDEATHSIG its workers.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "monarch/host/bootstrap.h"
#include "monarch/host/process.h"

namespace monarch {

// What the server tells the host.
struct ForkReport {
  enum Kind : uint32_t { kReady = 1, kSpawned = 2, kExited = 3, kFailed = 4 };
  uint32_t kind = 0;
  int32_t pid = 0;
  NodeId node = 0;
  int32_t code = 0;
  int32_t signal = 0;  // of kFailed: errno
};

// The server's side; used by the language that forks (python/monarch/_forkserver.py). Single-threaded.
class ForkServer {
 public:
  explicit ForkServer(int socket) : socket_(socket) {}

  struct Request {
    NodeId node;
    BootstrapFds fds;
  };
  // Blocks until a worker is wanted; reaps meanwhile. nullopt: the host is gone.
  std::optional<Request> next();
  // Is a worker wanted now, or within `wait_ms` (-1: for ever)? Reaps meanwhile. True also if the host is gone.
  bool has_request(int wait_ms);
  // Reports the workers that have ended.
  void reap();
  void report_ready();
  void report_spawned(NodeId node, pid_t pid);
  void report_failed(NodeId node, int error);

 private:
  void report(const ForkReport& report);

  const int socket_;
  std::unordered_map<pid_t, NodeId> children_;
};

// The host's side: sends one request. False: the server is gone or its queue is full (errno says which).
bool send_fork_request(int socket, NodeId node, const std::array<int, kFdCount>& fds);

}  // namespace monarch
