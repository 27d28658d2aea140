// Which processes do nothing though they live: stopped by a signal, held by a debugger, frozen with their cgroup, or held
// in the kernel. Decided from what the kernel says of them and from whether their reactor answers. Who computes, with the
// GIL or without, or sleeps in code of its own, has a reactor that answers, and is not among them; nor is one that is only
// slow.
//
// Halts is pure: (now, node, sighting) -> what has changed. look_at_halt() asks the kernel. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "monarch/base/ids.h"

namespace monarch {

enum class Halt : uint8_t {
  kNone,
  kStopped,  // by SIGSTOP or another such signal
  kTraced,   // by a debugger
  kFrozen,   // its cgroup is frozen
  kHeld,     // in the kernel, in a wait that no signal ends (state D), at two looks in a row
};

// "is stopped (SIGSTOP)": after the name of a process.
const char* describe(Halt halt);

class Halts {
 public:
  struct Sighting {
    char state = '?';     // as in /proc: R, S, D, T, t, ...
    bool frozen = false;  // its cgroup
    bool silent = false;  // its reactor was asked at the look before, and has not answered
  };
  struct Change {
    Halt before;
    Halt now;
    int64_t since_ns;  // of `before`, where that is a halt; else of `now`
  };

  // Somebody has looked. Nothing: it is as it was.
  std::optional<Change> look(int64_t now_ns, NodeId node, const Sighting& sighting);
  // It has ended, or nobody looks any more.
  void forget(NodeId node) {
    halted_.erase(node);
    doubtful_.erase(node);
  }
  struct Halted {
    Halt halt = Halt::kNone;
    int64_t since_ns = 0;
  };
  const std::map<NodeId, Halted>& halted() const { return halted_; }

 private:
  std::map<NodeId, Halted> halted_;
  std::set<NodeId> doubtful_;  // in state D at the last look
};

// The state of this process; '?': it is gone.
char state_of_process(pid_t pid);
// Whether a cgroup that it is in is frozen, as far as that can be read.
bool is_frozen(pid_t pid);

}  // namespace monarch
