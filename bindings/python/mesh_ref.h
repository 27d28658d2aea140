// MeshRef: the actors behind a mesh view, as the core sees them. EndpointBase: one endpoint of such a view.
#pragma once

#include <memory>
#include <vector>

#include "monarch/actor/pending_call.h"
#include "support.h"

namespace monarch {

struct MeshRefState {
  std::shared_ptr<const Members> members;
  uint8_t flags = 0;            // kFlagScalarView, kFlagView
  std::vector<std::byte> view;  // with kFlagView: the part that describes the view
};

bool add_mesh_types(PyObject* module);

}  // namespace monarch
