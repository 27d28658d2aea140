// How much waits for one actor, and who is asked to hold back: back-pressure (docs/design/006).
//
// The receiving node counts the bytes that wait in an actor's mailbox. Above kBytesMax, each node that sends one more
// is told to hold (FrameKind::kHold); when half of it is gone, they are told to go on (kResume). What is a flood
// (Node::is_flood) waits meanwhile (Node::has_room). What was under way already still comes, so a mailbox grows to
// kBytesMax and what the links of its senders had taken.
//
// Never a deadlock (invariant FLOW-1): an actor that itself waits for others, for a call's answer or for room, holds
// nobody back, or two actors that flood or ask each other could wait for ever; nor do the ports that it has opened.
// Liveness goes before the bound.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "monarch/base/check.h"
#include "monarch/base/ids.h"
#include "monarch/base/mutex.h"
#include "monarch/net/message.h"

namespace monarch {

class Node;

class Inflow {
 public:
  static constexpr uint64_t kBytesMax = uint64_t{64} << 20;
  // A node that was told to hold, and goes on, is told again after so much: it has forgotten it since its host and this one
  // have parted. What was under way when it was told is no more than that (Node::kBacklogMax).
  static constexpr uint64_t kTellAgainBytes = uint64_t{16} << 20;

  // `owner`: of a port, the inflow of the actor that has opened it; of an actor that shares its thread, that of all of
  // them. shared: either may be gone first.
  Inflow(Node& node, ActorIndex index, std::shared_ptr<Inflow> owner = nullptr);
  ~Inflow();

  // What a waiting message counts for: its bytes and what it costs besides, or empty ones would be free. The same from
  // arrived() to taken().
  static uint64_t cost_of(const Message& message) {
    return message.total_bytes() + (message.header.kind == FrameKind::kRequest ? kCallCost : kMessageCost);
  }

  // Any thread, before the message can be taken.
  void arrived(const Message& message) {
    const uint64_t cost = cost_of(message);
    const uint64_t waiting = waiting_.fetch_add(cost, std::memory_order_seq_cst) + cost;
    if (waiting > kBytesMax) hold(message, waiting);
  }
  // Any thread: a message that had arrived waits no more.
  void taken(uint64_t cost) {
    const uint64_t before = waiting_.fetch_sub(cost, std::memory_order_seq_cst);
    MONARCH_CHECK(before >= cost);
    const uint64_t left = before - cost;
    if (left < kBytesMax / 2 && holding_.load(std::memory_order_seq_cst)) release();
  }

  // Any thread; they nest. The actor waits for others: until end_blocking() nobody is held.
  void begin_blocking() {
    blocked_.fetch_add(1, std::memory_order_seq_cst);
    if (holding_.load(std::memory_order_seq_cst)) release();
    if (holding_ports_.load(std::memory_order_seq_cst) > 0) release_ports();
  }
  void end_blocking() { blocked_.fetch_sub(1, std::memory_order_seq_cst); }

 private:
  static constexpr uint64_t kMessageCost = 256;
  static constexpr uint64_t kCallCost = 1024;  // with what whoever waits for the answer keeps

  void hold(const Message& message, uint64_t waiting);
  void release();
  void release_ports();
  bool is_blocked() const {
    return blocked_.load(std::memory_order_seq_cst) > 0 ||
           (owner_ && owner_->blocked_.load(std::memory_order_seq_cst) > 0);
  }

  Node& node_;
  const ActorIndex index_;
  const std::shared_ptr<Inflow> owner_;
  std::atomic<uint64_t> waiting_{0};
  std::atomic<int> blocked_{0};
  std::atomic<bool> holding_{false};  // held_ is not empty
  Mutex mutex_{LockRank::kInflow};
  struct Held {
    NodeId node;
    uint64_t told_at;  // what was waiting then
  };
  std::vector<Held> held_;
  std::atomic<int> holding_ports_{0};  // of ports_: how many are holding_
  Mutex ports_mutex_{LockRank::kInflowPorts};
  std::vector<Inflow*> ports_;
};

// Around a wait of the actor whose inflow it is; null: not an actor.
class InflowBlocked {
 public:
  explicit InflowBlocked(Inflow* inflow) : inflow_(inflow) {
    if (inflow_ != nullptr) inflow_->begin_blocking();
  }
  ~InflowBlocked() {
    if (inflow_ != nullptr) inflow_->end_blocking();
  }
  InflowBlocked(const InflowBlocked&) = delete;
  InflowBlocked& operator=(const InflowBlocked&) = delete;

 private:
  Inflow* const inflow_;
};

}  // namespace monarch
