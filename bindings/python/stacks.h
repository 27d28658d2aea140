// Stacks of Python code, written without the GIL (src/monarch/host/stacks).
#pragma once

#include <nanobind/nanobind.h>

#include "monarch/wire/last_words.h"

namespace monarch {

// GIL held; before the runtime of this process starts. Threads that take the signal of ThreadStacks write what Python runs
// on them, as `faulthandler` does. Without that they write their native frames only.
void write_stacks_of_python();

// GIL held; once, in a worker, which begins. When it crashes, its native frames are written to `left`, and those of Python
// to the same memory by way of `record`, the descriptor that it was mapped from; unless the program has `faulthandler`
// write elsewhere.
void note_crashes_of_python(LastWords& left, int record);

void bind_stacks(nanobind::module_& m);

}  // namespace monarch
