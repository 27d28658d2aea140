#include "monarch/actor/inflow.h"

#include <algorithm>

#include "monarch/actor/node.h"

namespace monarch {

void Inflow::hold(const Message& message) {
  if (message.header.kind != FrameKind::kOneway && message.header.kind != FrameKind::kRequest) return;
  std::lock_guard lock(mutex_);
  if (blocked_.load(std::memory_order_seq_cst) > 0) return;
  if (std::find(held_.begin(), held_.end(), message.from) != held_.end()) return;
  held_.push_back(message.from);
  holding_.store(true, std::memory_order_seq_cst);
  // An actor that began to wait before it could see holding_ has not released anybody. (Whoever makes room sees it: this
  // message is yet to be taken.)
  if (blocked_.load(std::memory_order_seq_cst) > 0) {
    held_.pop_back();
    return;  // holding_ may be too much now: release() will look
  }
  node_.tell_sender(message.from, FrameKind::kHold, index_);
}

void Inflow::release() {
  std::lock_guard lock(mutex_);
  holding_.store(false, std::memory_order_seq_cst);
  for (const NodeId node : held_) node_.tell_sender(node, FrameKind::kResume, index_);
  held_.clear();
}

}  // namespace monarch
