// What this process is on a connection: a member of its own job, or a guest of another.
#pragma once

#include "monarch/base/ids.h"
#include "monarch/wire/hello.h"

namespace monarch {

struct Identity {
  NodeId node = 0;  // the key's
  NodeKey key{};
  JobId job{};
  JobToken token{};
  bool guest = false;
};

}  // namespace monarch
