// MeshRef: the actors behind a mesh view, as the core sees them. EndpointBase: one endpoint of such a view.
#pragma once

#include <memory>
#include <vector>

#include "monarch/mesh/view.h"
#include "state.h"
#include "support.h"

namespace monarch {

// As mesh/view.h has it. `receiver` is named, by str(), when it takes long. False: an exception is set.
bool wait_for_room(ProcessRuntime& runtime, const Members& members, PyObject* receiver, int64_t deadline_ns);

// For what has no future to fail: whether the message is small enough to be sent (codec_max_frame_length). False:
// SupervisionError is set.
bool check_size(ProcessRuntime& runtime, const class Encoded& encoded);

bool add_mesh_types(PyObject* module);

}  // namespace monarch
