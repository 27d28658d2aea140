#include "monarch/actor/flow.h"

#include <mutex>

namespace monarch {

void Flow::set_held(const ActorId& actor, bool held) {
  std::lock_guard lock(mutex_);
  if (held) {
    held_.insert(actor);
  } else {
    held_.erase(actor);
  }
  any_.store(!held_.empty(), std::memory_order_relaxed);
}

bool Flow::is_held(const ActorId& actor) const {
  if (!any_.load(std::memory_order_relaxed)) return false;
  std::lock_guard lock(mutex_);
  return held_.contains(actor);
}

void Flow::forget_nodes(const std::function<bool(NodeId)>& gone) {
  std::lock_guard lock(mutex_);
  std::erase_if(held_, [&gone](const ActorId& id) { return gone(id.node); });
  any_.store(!held_.empty(), std::memory_order_relaxed);
}

}  // namespace monarch
