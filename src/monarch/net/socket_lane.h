// Records over one stream socket, non-blocking, driven by the reactor. The sending thread writes inline while the
// socket takes it; the rest is queued and sent when the reactor sees room. File descriptors may travel beside a record.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "monarch/base/unique_fd.h"
#include "monarch/loop/reactor.h"
#include "monarch/net/message.h"

namespace monarch {

class SocketLane {
 public:
  struct Events {
    // On the reactor or in pump(), with the lane's read side locked: must not call pump() or stop() of this lane.
    std::function<void(MessagePtr message, UniqueFd fd)> on_message;
    // At most once. Runs on the reactor.
    std::function<void(const Error& why)> on_closed;
  };

  // Owns `socket` (a connected stream socket). `peer` becomes Message::from.
  SocketLane(Reactor& reactor, UniqueFd socket, NodeId peer, uint64_t record_size_max, Events events);
  ~SocketLane();
  SocketLane(const SocketLane&) = delete;
  SocketLane& operator=(const SocketLane&) = delete;

  // Begins to read. `owner` lives for as long as an event of this lane is under way.
  void start(std::weak_ptr<void> owner);
  // Stops reading and closes; no event afterwards, except an on_closed that is running on the reactor now.
  void stop();

  // Any thread. Returns true if everything went to the kernel at once. `fd` (borrowed) travels with the record.
  bool send(const Outgoing& outgoing, int fd = -1);
  // Any thread. Reads what is there now. False: the stream ended or is malformed.
  bool pump();
  // Any thread. Is there something to be read now?
  bool readable();
  uint64_t backlog() const { return backlog_.load(std::memory_order_relaxed); }

 private:
  struct Queued {
    std::vector<std::byte> bytes;
    size_t sent = 0;
    UniqueFd fd;
  };
  void on_events(uint32_t events);
  bool read_some(bool* more);
  void flush_locked();
  bool write_some(Queued& queued);

  Reactor& reactor_;
  const NodeId peer_;
  Events events_;

  std::mutex read_mutex_;
  RecordAssembler assembler_;
  UniqueFd pending_fd_;
  std::string read_error_;
  bool ended_ = false;

  std::mutex write_mutex_;  // also guards the life of socket_ against writers
  UniqueFd socket_;
  std::deque<Queued> queue_;
  std::atomic<uint64_t> backlog_{0};
  bool started_ = false;     // the reactor knows socket_
  bool want_write_ = false;
  bool stopped_ = false;
};

}  // namespace monarch
