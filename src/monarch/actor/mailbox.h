// Where the messages of one actor wait: many senders, one receiver, first in first out.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "monarch/net/message.h"

namespace monarch {

class Mailbox {
 public:
  // Any thread. False: the mailbox is closed; the message stays with the caller.
  bool push(MessagePtr& message) {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    queue_.push(std::move(message));
    size_.fetch_add(1, std::memory_order_release);
    return true;
  }
  // The receiver's thread. The next message; null: none waits. Not all at once: another thread may have to answer what
  // waits (PyCell::abandon).
  MessagePtr pop() {
    std::lock_guard lock(mutex_);
    MessagePtr message = queue_.pop();
    if (message) size_.fetch_sub(1, std::memory_order_relaxed);
    return message;
  }
  // Any thread. The method of the request `token` of that node, if it waits in here; else -1.
  int64_t method_of(NodeId caller, uint64_t token) {
    std::lock_guard lock(mutex_);
    const Message* found = queue_.find([&](const Message& message) {
      return message.from == caller && message.header.token == token && message.header.kind == FrameKind::kRequest;
    });
    return found == nullptr ? -1 : static_cast<int64_t>(found->header.method);
  }
  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }
  // Refuses what comes from now on and hands over what waits.
  void close(MessageQueue& rest) {
    std::lock_guard lock(mutex_);
    closed_ = true;
    rest.take(queue_);
    size_.store(0, std::memory_order_relaxed);
  }

 private:
  std::mutex mutex_;
  MessageQueue queue_;
  std::atomic<uint32_t> size_{0};
  bool closed_ = false;
};

}  // namespace monarch
