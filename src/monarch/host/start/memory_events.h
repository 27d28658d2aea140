// Whether the kernel has killed for want of memory: what it has counted, before a process died by SIGKILL and after. It
// does not say whom it killed, so this is what can be known and no more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "monarch/base/unique_fd.h"
#include "monarch/wire/failure.h"

namespace monarch {

// Counted by the kernel since it, or the cgroup, is there. Nothing: not known here.
struct MemoryEvents {
  std::optional<uint64_t> cgroup_kills;  // by its OOM killer, of processes in the cgroup of this process
  std::optional<uint64_t> limit_hits;    // so often the cgroup was at its memory limit
  std::optional<uint64_t> kills;         // on the whole machine

  bool operator==(const MemoryEvents&) const = default;
};

// What killed a process that has died by SIGKILL. `known` are the events that earlier deaths account for, or that were
// there before the first process was started; this one's is added to them.
OutOfMemory judge_kill(MemoryEvents& known, const MemoryEvents& now);

// What this process and others of its cgroup may have: the machine's memory, or the least limit of the cgroup and those
// that it is within. `root`: as below.
uint64_t memory_limit(const std::string& root = "");

// Reads the counters of this process's own cgroup (version 2 or 1), and those of the machine. The cgroup's files stay
// open, since they are read again while somebody waits for the word of a death.
class MemoryEventsReader {
 public:
  // `root`: of the file system, for tests.
  explicit MemoryEventsReader(std::string root = "");
  MemoryEvents read();

 private:
  struct File {
    std::string path;  // empty: there is none
    UniqueFd fd{};     // once it could be opened
    std::string text();
  };
  void find_files();

  std::string root_;
  bool has_cgroup_ = false;  // it could be read which one; else the next read() tries again
  File events_;
  File limits_;
};

}  // namespace monarch
