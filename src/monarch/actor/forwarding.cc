#include "monarch/actor/forwarding.h"

#include <mutex>

#include "monarch/actor/node.h"

namespace monarch {

void Forwarding::hold(const Pair& pair, const std::shared_ptr<Link>& onward) {
  std::lock_guard lock(mutex_);
  if (stopped_ || held_.contains(pair) || !tell_(pair, FrameKind::kHold)) return;
  held_.emplace(pair, onward);
  arm();
}

void Forwarding::arm() {
  if (timer_ == 0) timer_ = timers_.after(kLookNs, [this] { look(); });
}

void Forwarding::look() {
  std::lock_guard lock(mutex_);
  timer_ = 0;
  ++looks_;
  if (stopped_) return;
  std::erase_if(held_, [this](const auto& each) {
    const auto& [pair, link] = each;
    const std::shared_ptr<Link> onward = link.lock();
    if (onward && !onward->closed() && backlog_(*onward) > Node::kBacklogMax / 2) {
      // Again: another gateway on the way, which holds for the same, may have told it to go on.
      if (looks_ % kTellAgainEvery == 0 && backlog_(*onward) > Node::kBacklogMax) {
        static_cast<void>(tell_(pair, FrameKind::kHold));
      }
      return false;
    }
    static_cast<void>(tell_(pair, FrameKind::kResume));  // else it is dead
    return true;
  });
  if (!held_.empty()) arm();
}

void Forwarding::stop() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  held_.clear();
  if (timer_ != 0) timers_.cancel(timer_);
}

size_t Forwarding::held() const {
  std::lock_guard lock(mutex_);
  return held_.size();
}

}  // namespace monarch
