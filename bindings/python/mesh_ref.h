// MeshRef: the actors behind a mesh view, as the core sees them. EndpointBase: one endpoint of such a view.
#pragma once

#include <memory>
#include <vector>

#include "monarch/actor/pending_call.h"
#include "state.h"
#include "support.h"

namespace monarch {

struct MeshRefState {
  std::shared_ptr<const Members> members;
  uint8_t flags = 0;            // kFlagScalarView, kFlagView
  std::vector<std::byte> view;  // with kFlagView: the part that describes the view
};

// Waits while an actor among them, or a link to one, has too much to take (replies are not held up by this). `receiver`
// is named, by str(), when it takes long. Not beyond `deadline_ns` (0: there is none). False: an exception is set.
bool wait_for_room(ProcessRuntime& runtime, const Members& members, PyObject* receiver, int64_t deadline_ns);

// For what has no future to fail: whether the message is small enough to be sent (codec_max_frame_length). False:
// SupervisionError is set.
bool check_size(ProcessRuntime& runtime, const class Encoded& encoded);

bool add_mesh_types(PyObject* module);

}  // namespace monarch
