#pragma once

#include <vector>

#include "monarch/base/ids.h"

namespace monarch {

// The actors that a mesh view is made of, by rank. Immutable; shared by the view and the calls that are under way on
// it.
struct Members {
  std::vector<ActorId> ids;
};

}  // namespace monarch
