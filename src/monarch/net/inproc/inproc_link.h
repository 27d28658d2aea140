// A link between two nodes of one process: messages are copied into the receiver's queue and its driver's bell is rung.
// For meshes without processes and for tests; actors of one node do not need it. In a child of a user's fork() it does
// nothing.
#pragma once

#include <memory>

#include "monarch/base/forked.h"
#include "monarch/base/mutex.h"
#include "monarch/loop/driver.h"
#include "monarch/net/link.h"

namespace monarch {

class InprocLink final : public Link, public Pollable {
 public:
  struct End {
    NodeId node;
    Driver& driver;
    Reactor& reactor;
    LinkSink& sink;
  };
  using Pair = std::pair<std::shared_ptr<InprocLink>, std::shared_ptr<InprocLink>>;

  // The two ends; the first lives at `a`, its peer is b.node, and the other way round.
  static Pair connect(const End& a, const End& b);
  InprocLink(const End& here, NodeId peer) : Link(peer), here_(here) {}
  ~InprocLink() override { close(); }

  bool send(const Outgoing& outgoing) override;
  bool send_control(const Outgoing& outgoing) override;
  void peer_died(const Error&) override {
    if (!in_forked_child()) peer_closed();
  }
  void close() override;
  uint64_t backlog() const override { return 0; }
  std::string_view transport() const override { return "inproc"; }
  bool poll() override;

 private:
  void peer_closed();
  void receive(MessagePtr message);

  End here_;
  Mutex mutex_{LockRank::kInprocLink};  // inbound_, peer_gone_
  std::weak_ptr<InprocLink> other_;  // the far end; weak: each node owns its own end
  MessageQueue inbound_;
  bool peer_gone_ = false;
  bool told_ = false;
  std::atomic<bool> torn_down_{false};
  uint32_t bell_index_ = kBellRings;
};

}  // namespace monarch
