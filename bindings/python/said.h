// What is said once on stderr.
#pragma once

#include <mutex>

#include "monarch/actor/recent.h"
#include "monarch/base/ids.h"
#include "monarch/wire/failure.h"

namespace monarch {

// Of whom it has been said on stderr that messages cannot be delivered: a thousand to one dead process are one line.
class Said {
 public:
  bool first_time(const ActorId& dest, const Failure& why) {
    std::lock_guard lock(mutex_);
    const uint64_t who = why.is_death() ? dest.node : dest.index;
    if (said_.contains(who)) return false;
    said_.put(who, {});
    return true;
  }

 private:
  struct Nothing {};
  std::mutex mutex_;
  Recent<uint64_t, Nothing> said_{4096};
};

}  // namespace monarch
