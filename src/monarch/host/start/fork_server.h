// The fork server's protocol: one SOCK_SEQPACKET socket between the host object and a single-threaded, pre-imported
// process that forks workers. The host sends (node, its descriptors); the server answers with pids and, as the parent
// of the workers, with their exit statuses. EOF from the host, or SIGTERM, ends the server and all that descends from it:
// as a subreaper it gets the orphans of its workers, those with sessions of their own included.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "monarch/base/clock.h"
#include "monarch/host/start/bootstrap.h"
#include "monarch/host/start/process.h"

namespace monarch {

// What the server tells the host. With kSpawned comes the worker's pidfd, unless the server has no descriptors left. With
// kExited the worker has been reaped; but not one whose pidfd did not come: while the host knows it by its number only,
// that must be nobody else's.
struct ForkReport {
  enum Kind : uint32_t { kReady = 1, kSpawned = 2, kExited = 3, kFailed = 4 };
  uint32_t kind = 0;
  int32_t pid = 0;
  NodeId node = 0;
  int32_t code = 0;
  int32_t signal = 0;  // of kFailed: errno
};

// The server's side; used by the language that forks (python/monarch/_programs/fork_server.py). Single-threaded.
class ForkServer {
 public:
  ForkServer(int socket, Clock& clock);

  struct Request {
    NodeId node;
    BootstrapFds fds;
  };
  // Blocks until a worker is wanted; reaps meanwhile. nullopt: the host is gone, and all workers are.
  std::optional<Request> next();
  // Is a worker wanted now, or within `wait_ms` (-1: for ever)? Reaps meanwhile. True also if the host is gone.
  bool has_request(int wait_ms);
  // Reports the workers that have ended.
  void reap();
  void report_ready();
  void report_spawned(NodeId node, pid_t pid);
  void report_failed(NodeId node, int error);

 private:
  // Whether the descriptor went along.
  bool report(const ForkReport& report, int pidfd = -1);

  const int socket_;
  Clock& clock_;
  struct Worker {
    NodeId node;
    bool has_pidfd;  // the host has it
  };
  std::unordered_map<pid_t, Worker> children_;
};

// Of a process without threads that takes over whatever its children leave, and ends all of it on SIGTERM.
void become_subreaper(Clock& clock);
// Kills all that descends from a subreaper, and reaps it.
void end_descendants();

// In a worker, first thing: forgets what only the server does.
void leave_fork_server();

// The host's side: sends one request. False: the server is gone or its queue is full (errno says which).
bool send_fork_request(int socket, NodeId node, const std::array<int, kFdCount>& fds);
// The host's side: the next report, if there is one. nullopt: none (EAGAIN), or the server is gone. `pidfd`: if one came.
std::optional<ForkReport> receive_fork_report(int socket, UniqueFd* pidfd);

}  // namespace monarch
