// MeshRef: the actors behind a mesh view, as the core sees them. EndpointBase: one endpoint of such a view.
#pragma once

#include <memory>
#include <vector>

#include "monarch/mesh/view.h"
#include "state.h"
#include "support.h"
#include "unseen.h"

namespace monarch {

// As mesh/view.h has it. `receiver` is named, by str(), when it takes long. False: an exception is set.
bool wait_for_room(AnyRuntime& runtime, const Members& members, bool is_call, PyObject* receiver, int64_t deadline_ns);

// For what has no future to fail: whether the message is small enough to be sent (codec_max_frame_length). False:
// SupervisionError is set.
bool check_size(AnyRuntime& runtime, const class Encoded& encoded);

// Of a MeshRef; null with TypeError set for anything else.
std::shared_ptr<const Members> members_of(PyObject* mesh_ref);

// At the end of a script: whether the actors that it has sent one-way messages have handled them. A request that nobody
// serves is refused after all that was sent before it.
struct AskedOneWay {
  std::shared_ptr<PendingCall> refusals;
  Label label;
  uint32_t messages;  // that were sent through the endpoint
};
std::vector<AskedOneWay> ask_about_one_way();
// Somebody looks at the answers of a call, which was sent after so many one-way messages: these have been handled by who
// has answered, since what one sends to another stays in order.
void note_answered(const PendingCall& call, uint64_t one_way_before);
void forget_one_way();

bool add_mesh_types(PyObject* module);

}  // namespace monarch
