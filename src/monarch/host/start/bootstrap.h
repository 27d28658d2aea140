// What a new worker process is given: thirteen file descriptors and, in the first of them, behind pages for its life and
// its last words (life.h), this record. Nothing secret goes by argument or environment.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "monarch/base/ids.h"
#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"
#include "monarch/net/transport.h"
#include "monarch/wire/hello.h"

namespace monarch {

inline constexpr uint32_t kBootstrapVersion = 12;

// Of a host that is reached over a network: by what name or address, and where its processes may listen. Empty: it is not.
struct HostPlace {
  std::string dialled_at, listens_at;
};

struct Bootstrap {
  NodeKey key{};           // of the new node
  NodeId parent = 0;
  NodeId owner = 0;        // on whose behalf the parent starts it; mostly the parent itself
  int64_t parent_pid = 0;  // of the process that starts it: the fork server, or the host's own
  bool is_host = false;    // it has an agent
  JobId job{};
  JobToken token{};
  int64_t host_lease_ns = 0;  // when a host that says nothing is held for lost; of one that is reached over a network
  std::string transport;  // "shm" or "unix"
  std::string address;    // the job's: JobAddress as text
  HostPlace place;        // of its host
  std::string payload;    // for the language on top: Python's paths and environment
};

// The descriptors, in this order.
enum BootstrapFd {
  kFdRecord,
  kFdSocket,
  kFdData,
  kFdBell,
  kFdEvent,
  kFdParentBell,
  kFdParentEvent,
  kFdListener,
  kFdGuard,
  kFdStdout,  // what it prints to; after an exec they are 1 and 2 already, and none are given
  kFdStderr,
  kFdOutput,  // for its own workers' (output/output_route.h)
  kFdBudget,  // the job's shared memory (net/shm/arena_budget.h); lent by who starts it, never closed there
  kFdCount
};

using BootstrapFds = std::array<UniqueFd, kFdCount>;

// Those of them that are the ends of the new process's link to its parent, and back.
void put_ends(BootstrapFds& fds, ChildEnds ends);
ChildEnds take_ends(BootstrapFds& fds);

// A memfd with the record (close-on-exec); `numbers` are the descriptors' numbers in the child, empty when they are
// handed over another way.
Result<UniqueFd> write_bootstrap(const Bootstrap& bootstrap, const std::vector<int>& numbers);
// Reads the record, once; `numbers` as written.
Result<Bootstrap> read_bootstrap(int fd, std::vector<int>* numbers);
// In the new process: stdout and stderr become what it was given, and C code writes each line as it ends.
void take_up_output(BootstrapFds& fds);

}  // namespace monarch
