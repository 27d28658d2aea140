// Failures of what somebody in this process owns, on their way to who decides about them. An actor with a __supervise__
// hook is asked on its own thread (actor_cell.h). For the others, and for the client, python/monarch/_running/unhandled.py
// decides, on a thread that is there once something has failed.
//
// Who decides asks whether somebody is told in another way: by an exception that a call of this process raises.
#pragma once

#include <memory>

#include "monarch/actor/supervisor.h"
#include "support.h"

namespace monarch {

class PendingCall;
class PyCell;

// Any thread, no GIL needed. `owner`: an actor without a hook; null: the client.
void watch_failure(MeshFailure failure, std::shared_ptr<PyCell> owner);
// Any thread. A one-way message of the client has found nobody: a line on stderr. If that is for a failure of what it
// owns, the line waits until that has been dealt with, and is dropped if that is reported.
void say_undeliverable(const ActorId& dest, const Failure& why);

// ---- GIL held ----

// What python/monarch/_errors/mesh_failure.py makes a MeshFailure of; a new reference.
PyObject* describe_failure(const MeshFailure& failure);
// Somebody looks at a call that has failed because something of its members has. `at_the_end`: it is named among what a
// script has lost.
void note_told(const PendingCall& call, bool at_the_end);
// A future goes, and nobody has looked at it.
void note_unlooked();

bool add_supervision(PyObject* module);

}  // namespace monarch
