// This process's own bell, and what peers are given of it.
#pragma once

#include "monarch/base/unique_fd.h"
#include "monarch/loop/bell.h"
#include "monarch/net/shm/shared_memory.h"
#include "monarch/net/shm/shm_link.h"

namespace monarch {

struct OwnBell {
  UniqueFd page_fd;
  UniqueFd event_fd;
  Mapping page;

  BellPage& bell() { return *static_cast<BellPage*>(page.get()); }
  static Result<OwnBell> make();
  // From descriptors that the parent made.
  static Result<OwnBell> adopt(UniqueFd page_fd, UniqueFd event_fd);
  // The same bell as a peer has it. kUnavailable: no descriptor or no memory for it. kMalformed: it is no bell, or one at
  // which whoever rings would have to wait.
  static Result<PeerBell> of_peer(UniqueFd page_fd, UniqueFd event_fd);
};

}  // namespace monarch
