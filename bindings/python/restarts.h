// What is made anew: how an actor was spawned, kept to spawn it again, and the failures that a restart policy decides
// about.
#pragma once

#include <vector>

#include "monarch/actor/supervisor.h"
#include "monarch/wire/frame.h"
#include "support.h"

namespace monarch {

// Any thread, no GIL needed. These have a policy, or share their process with what has one.
void restart_wanted(std::vector<MeshFailure> failures);

// ---- GIL held ----

// A SpawnRecord: what was sent, to be sent again; a new reference.
PyObject* new_spawn_record(const Outgoing& spawn);

bool add_restarts(PyObject* module);

}  // namespace monarch
