// Records over one stream socket, non-blocking, driven by the reactor. The sending thread writes inline while the
// socket takes it; the rest is queued and sent when the reactor sees room. File descriptors may travel beside a record;
// one that the kernel does not take now (this user has too many under way) waits aside, and lets the others pass.
//
// Locks, in this order: delivery, read, write. In a child of a user's fork() nothing here does anything.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "monarch/base/mutex.h"
#include "monarch/base/unique_fd.h"
#include "monarch/loop/reactor.h"
#include "monarch/net/message.h"

namespace monarch {

class SocketLane {
 public:
  struct Received {
    MessagePtr message;
    UniqueFd fd;
    bool fd_lost = false;  // one came, but this process had no room for it
  };
  enum class Verdict { kDone, kDeliver, kMalformed };
  struct Events {
    // Whoever reads (the reactor, or who calls pump()), with the lane locked: what cannot wait for the reactor. May lock
    // only what is ranked below lanes. May be empty: all is delivered.
    std::function<Verdict(Received&)> on_read;
    // Reactor, in the order of arrival.
    std::function<void(Received)> on_message;
    // Reactor, at most once.
    std::function<void(const Error& why)> on_closed;
  };

  // `peer` becomes Message::from.
  SocketLane(Reactor& reactor, NodeId peer, uint64_t record_size_max, Events events);
  ~SocketLane();
  SocketLane(const SocketLane&) = delete;
  SocketLane& operator=(const SocketLane&) = delete;

  // Any thread, once: owns `socket` (a connected stream socket), and begins to read. What was sent before goes now.
  // `owner` lives for as long as an event of this lane is under way.
  void start(UniqueFd socket, std::weak_ptr<void> owner);
  // Any thread. Stops reading and closes; no event afterwards, except one that is running on the reactor when the reactor
  // itself calls this, and an on_closed that is running.
  void stop();

  // Any thread. True: everything went to the kernel at once. `fd` travels with the record; it is borrowed until it has gone
  // or the lane stops.
  bool send(const Outgoing& outgoing, int fd = -1);
  // Any thread. Reads what is there now, bounded. False: the stream ended or is malformed.
  bool pump();
  // Reactor. Reads and delivers until nothing is there.
  void drain();
  // Any thread. Is there something to be read now?
  bool readable();
  uint64_t backlog() const { return backlog_.load(std::memory_order_relaxed); }

 private:
  struct Queued {
    std::vector<std::byte> bytes;
    size_t sent = 0;
    int fd = -1;
  };
  enum class Written { kAll, kNoRoom, kShortage };
  void on_events(uint32_t events);
  bool read_all();
  bool read_some(bool* more, uint64_t* bytes);
  void deliver();
  void flush_locked();
  Written write_some(Queued& queued, uint64_t bytes_max);
  void wait_for_room_locked(Written why);
  void put_aside_locked(Queued queued);
  void retry_later_locked();
  void watch_locked(bool for_room);

  Reactor& reactor_;
  const NodeId peer_;
  const Events events_;

  Mutex delivery_mutex_{LockRank::kLaneDelivery};

  Mutex read_mutex_{LockRank::kLaneRead};  // also guards the life of socket_ against readers
  RecordAssembler assembler_;
  UniqueFd pending_fd_;
  bool pending_fd_lost_ = false;
  std::deque<Received> inbox_;  // read, and not yet delivered
  std::string read_error_;
  bool ended_ = false;

  Mutex write_mutex_{LockRank::kLaneWrite};  // also guards the life of socket_ against writers
  UniqueFd socket_;
  std::weak_ptr<void> owner_;
  std::deque<Queued> queue_;
  std::deque<Queued> aside_;  // with descriptors, of which nothing is sent; in order among themselves
  std::atomic<uint64_t> backlog_{0};
  bool want_write_ = false;   // the reactor has been told to look for room
  bool retry_armed_ = false;  // a shortage: a timer will try again
  bool stopped_ = false;      // written with both sides locked
};

}  // namespace monarch
