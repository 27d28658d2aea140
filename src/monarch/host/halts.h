// Which processes do nothing though they live: stopped by a signal, held by a debugger, frozen with their cgroup, or held
// in the kernel. Decided from what the kernel says of them and from whether their reactor answers. Who computes, with the
// GIL or without, or sleeps in code of its own, has a reactor that answers, and is not among them; nor is one that is only
// slow.
//
// Halts is pure: (now, node, sighting) -> what has changed. look_at_process() asks the kernel. Not thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>

#include "monarch/base/ids.h"

namespace monarch {

enum class Halt : uint8_t {
  kNone,
  kStopped,  // by SIGSTOP or another such signal
  kTraced,   // by a debugger
  kFrozen,   // its cgroup is frozen
  kHeld,     // in the kernel, in a wait that no signal ends (state D): no answer and no work at kDoubtfulLooks in a row
};

// "is stopped (SIGSTOP)": after the name of a process.
const char* describe(Halt halt);

class Halts {
 public:
  struct Sighting {
    char state = '?';     // as in /proc: R, S, D, T, t, ...; '?': nothing was to be seen
    bool frozen = false;  // its cgroup
    bool silent = false;  // its reactor was asked at the look before, and has not answered
    bool waited = false;  // calls wait for it
    uint64_t work = 0;    // what it has done so far: faults and ticks of CPU time
  };
  struct Change {
    Halt before;
    Halt now;
    int64_t since_ns;  // of `before`, where that is a halt; else of `now`
  };

  static constexpr int kDoubtfulLooks = 5;  // and one before, that asks: within two seconds, at Calls::kLookNs

  // Somebody has looked. Nothing: it is as it was, or it is not known how it is: it could not be looked at, or it has
  // ended, which is told otherwise.
  std::optional<Change> look(int64_t now_ns, NodeId node, const Sighting& sighting);
  // It has ended, or nobody looks any more.
  void forget(NodeId node) {
    halted_.erase(node);
    doubtful_.erase(node);
  }
  struct Halted {
    Halt halt = Halt::kNone;
    int64_t since_ns = 0;
    int64_t waited_ns = 0;  // of that time, while calls waited for it: from one look to the next one
    int64_t looked_ns = 0;  // when it was seen last
    bool waited = false;    // then
  };
  const std::map<NodeId, Halted>& halted() const { return halted_; }

 private:
  static void count_wait(int64_t now_ns, Halted& halted, bool waited);

  std::map<NodeId, Halted> halted_;
  struct Doubt {
    int looks = 0;  // in a row, in state D, without an answer and without any work in between
    uint64_t work = 0;
  };
  std::map<NodeId, Doubt> doubtful_;
};

// The state of this process; '?': it is gone, or nothing can be read now, for want of descriptors.
char state_of_process(pid_t pid);
// Asks the kernel; whether it is frozen of who is `silent` only.
Halts::Sighting look_at_process(pid_t pid, bool silent, bool waited);

}  // namespace monarch
