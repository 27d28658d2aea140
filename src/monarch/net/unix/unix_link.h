// The link over two unix stream sockets, one a lane: for hosts where shared memory cannot be had. Everything is read by
// the reactor; the end of either socket is the end of the link.
#pragma once

#include <memory>

#include "monarch/base/mutex.h"
#include "monarch/net/link.h"
#include "monarch/net/socket_lane.h"

namespace monarch {

class UnixLink final : public Link, public std::enable_shared_from_this<UnixLink> {
 public:
  UnixLink(Reactor& reactor, LinkSink& sink, NodeId peer);
  ~UnixLink() override;

  // Any thread, once: the connected sockets. What was sent before waits until now.
  void start(UniqueFd data, UniqueFd control);

  bool send(const Outgoing& outgoing) override;
  bool send_control(const Outgoing& outgoing) override;
  void peer_died(const Error& why) override;
  void close() override;
  uint64_t backlog() const override { return data_.backlog(); }
  std::string_view transport() const override { return "unix"; }

 private:
  SocketLane::Events data_events();
  SocketLane::Events control_events();
  void finish(const Error& why);

  Reactor& reactor_;
  LinkSink& sink_;
  SocketLane data_;
  SocketLane control_;
  Mutex finish_mutex_{LockRank::kUnixLink};
  bool finished_ = false;
};

}  // namespace monarch
