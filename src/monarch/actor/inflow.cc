#include "monarch/actor/inflow.h"

#include <algorithm>

#include "monarch/actor/node.h"

namespace monarch {

Inflow::Inflow(Node& node, ActorIndex index, std::shared_ptr<Inflow> owner)
    : node_(node), index_(index), owner_(std::move(owner)) {
  if (!owner_) return;
  std::lock_guard lock(owner_->ports_mutex_);
  owner_->ports_.push_back(this);
}

Inflow::~Inflow() {
  if (!owner_) return;
  std::lock_guard lock(owner_->ports_mutex_);
  std::erase(owner_->ports_, this);
  if (holding_.load(std::memory_order_seq_cst)) owner_->holding_ports_.fetch_sub(1, std::memory_order_seq_cst);
}

void Inflow::hold(const Message& message, uint64_t waiting) {
  if (message.header.kind != FrameKind::kOneway && message.header.kind != FrameKind::kRequest) return;
  std::lock_guard lock(mutex_);
  if (is_blocked()) return;
  const auto known = std::ranges::find(held_, message.from, &Held::node);
  if (known != held_.end()) {
    if (waiting < known->told_at + kTellAgainBytes) return;
    known->told_at = waiting;
    if (!node_.tell_sender(message.from, FrameKind::kHold, index_)) held_.erase(known);
    return;
  }
  held_.push_back({message.from, waiting});
  if (!holding_.exchange(true, std::memory_order_seq_cst) && owner_) {
    owner_->holding_ports_.fetch_add(1, std::memory_order_seq_cst);
  }
  // An actor that began to wait before it could see holding_ has not released anybody. (Whoever makes room sees it: this
  // message is yet to be taken.)
  if (is_blocked()) {
    held_.pop_back();
    return;  // holding_ may be too much now: release() will look
  }
  // Nothing more comes from one that cannot be told.
  if (!node_.tell_sender(message.from, FrameKind::kHold, index_)) held_.pop_back();
}

void Inflow::release() {
  std::lock_guard lock(mutex_);
  if (holding_.exchange(false, std::memory_order_seq_cst) && owner_) {
    owner_->holding_ports_.fetch_sub(1, std::memory_order_seq_cst);
  }
  // Who cannot be told is dead, and sends nothing any more.
  for (const Held& held : held_) static_cast<void>(node_.tell_sender(held.node, FrameKind::kResume, index_));
  held_.clear();
}

void Inflow::release_ports() {
  std::lock_guard lock(ports_mutex_);
  for (Inflow* port : ports_) {
    if (port->holding_.load(std::memory_order_seq_cst)) port->release();
  }
}

}  // namespace monarch
