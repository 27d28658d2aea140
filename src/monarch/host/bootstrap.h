// What a new worker process is given: nine file descriptors and, in the first of them, this record. Nothing secret goes
// by argument or environment.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "monarch/base/ids.h"
#include "monarch/base/result.h"
#include "monarch/base/unique_fd.h"
#include "monarch/wire/hello.h"

namespace monarch {

inline constexpr uint32_t kBootstrapVersion = 2;

struct Bootstrap {
  NodeId node = 0;
  NodeId parent = 0;
  int64_t parent_pid = 0;  // of the process that starts it: the fork server, or the host's own
  JobId job{};
  JobToken token{};
  std::string transport;  // "shm" or "unix"
  std::string address;    // the job's: JobAddress as text
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
  kFdCount
};

using BootstrapFds = std::array<UniqueFd, kFdCount>;

// A memfd with the record (close-on-exec); `numbers` are the descriptors' numbers in the child, empty when they are
// handed over another way.
Result<UniqueFd> write_bootstrap(const Bootstrap& bootstrap, const std::vector<int>& numbers);
// Reads the record; `numbers` as written.
Result<Bootstrap> read_bootstrap(int fd, std::vector<int>* numbers);

}  // namespace monarch
