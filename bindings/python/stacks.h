// Stacks of Python code, written without the GIL (src/monarch/host/stacks).
#pragma once

#include <nanobind/nanobind.h>

namespace monarch {

// GIL held; before the runtime of this process starts. Threads that take the signal of ThreadStacks write what Python runs
// on them, as `faulthandler` does. Without that they write their native frames only.
void write_stacks_of_python();

void bind_stacks(nanobind::module_& m);

}  // namespace monarch
