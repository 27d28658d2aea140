// Forks of users in a process with a runtime (monarch/base/forked.h has the rule).
#pragma once

#include "monarch/base/forked.h"
#include "support.h"

namespace monarch {

// GIL held. This is a forked child, and code of the user's has given it back to what serves an actor of its parent: ends it
// as a process of its own. With the exception that is set: as the end of a program by that, else with status 0.
[[noreturn]] void end_forked_child();

// After each call of the user's code on a thread that serves actors.
inline void end_if_forked() {
  if (__builtin_expect(in_forked_child(), 0)) end_forked_child();
}

}  // namespace monarch
