// The link over two unix stream sockets, one a lane: for hosts where shared memory cannot be had. Everything is read by
// the reactor; the end of either socket is the end of the link.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "monarch/net/link.h"
#include "monarch/net/socket_lane.h"

namespace monarch {

class UnixLink final : public Link, public std::enable_shared_from_this<UnixLink> {
 public:
  UnixLink(Reactor& reactor, LinkSink& sink, NodeId peer) : Link(peer), reactor_(reactor), sink_(sink) {}
  ~UnixLink() override { close(); }

  // Any thread, once: the connected sockets. What was sent before waits until now.
  void start(UniqueFd data, UniqueFd control);
  // Any thread, instead of start(): the peer cannot be reached.
  void fail(const Error& why) { finish(why); }

  bool send(const Outgoing& outgoing) override;
  bool send_control(const Outgoing& outgoing) override;
  void peer_died(const Error& why) override;
  void close() override;
  uint64_t backlog() const override;
  std::string_view transport() const override { return "unix"; }

 private:
  void finish(const Error& why);

  Reactor& reactor_;
  LinkSink& sink_;
  mutable std::mutex mutex_;
  std::vector<MessagePtr> early_;  // sent before start()
  std::unique_ptr<SocketLane> data_;
  std::unique_ptr<SocketLane> control_;
  bool finished_ = false;
};

}  // namespace monarch
