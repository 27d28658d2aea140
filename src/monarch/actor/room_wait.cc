#include "monarch/actor/room_wait.h"

#include <algorithm>

#include "monarch/base/log.h"

namespace monarch {

int64_t RoomWait::next_look_ns() {
  const int64_t now_ns = node_.clock().now_ns();
  if (start_ns_ == 0) {
    start_ns_ = now_ns;
    backlog_max_ /= 2;
  } else {
    look_ns_ = std::min(2 * look_ns_, kLookMaxNs);
  }
  return now_ns + look_ns_;
}

bool RoomWait::is_slow() {
  if (told_ || node_.clock().now_ns() - start_ns_ < kSlowNs) return false;
  return told_ = true;
}

void RoomWait::say_slow(const std::string& receiver) const {
  log_line(has_call() ? "a message to " + receiver + " has waited for 5 s: what was sent before it has not been taken yet"
                      : "a call to " + receiver + " has waited for 5 s: so many calls of this process have not been " +
                            "answered yet that no more can be made");
}

}  // namespace monarch
