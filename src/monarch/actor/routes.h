// How the nodes that this one talks to are reached, and which of them are dead. Any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "monarch/actor/recent.h"
#include "monarch/base/ids.h"
#include "monarch/base/mutex.h"
#include "monarch/base/remembered.h"
#include "monarch/wire/failure.h"
#include "monarch/base/result.h"
#include "monarch/net/peer.h"
#include "monarch/wire/frame.h"

namespace monarch {

class Link;

// A message that could not be sent: its sender is told when it is known what the node died of.
struct UnsentMessage {
  ActorIndex sender;
  ActorId dest;
  struct Passing {  // what came from another node, for that one: of any kind
    FrameHeader header;
    FrameRoute route;
  };
  std::optional<Passing> passing{};  // nothing: one-way, from here
};

class Routes {
 public:
  // Of how many dead nodes it is remembered that they are dead, and of what. An older one is asked for again: its dial is
  // refused, since no id is ever used twice, and so it is declared dead once more.
  static constexpr size_t kDeadMax = 4096;
  // How many messages wait for what their node, whose link has broken, has died of.
  static constexpr size_t kUnsentMax = 100'000;

  // Makes a link to a node that there is none to; null: it cannot be reached.
  using Dial = std::function<std::shared_ptr<Link>(NodeId)>;
  // Through whom a node is reached that nothing has been said of; 0: it is dialled.
  using GatewayOf = std::function<NodeId(NodeId)>;
  explicit Routes(Dial dial, GatewayOf gateway_of = {}, size_t dead_max = kDeadMax)
      : dial_(std::move(dial)), gateway_of_(std::move(gateway_of)), dead_(dead_max) {}

  // shared_ptr: frames under way keep their link. False: its node is held for dead, and is to be told so by the link's end.
  [[nodiscard]] bool add(std::shared_ptr<Link> link);
  // The link to `node`, made if need be; null if the node is down or cannot be reached, or when all are closed.
  std::shared_ptr<Link> find(NodeId node);
  // The link that `node` itself is at the other end of, if there is one; nobody is dialled for it.
  std::shared_ptr<Link> find_direct(NodeId node) const;
  // Another number, which no other Routes ever has, since a node has last ceased to be reached: whom find() has found
  // since this was read is found for as long as it stays.
  uint64_t changes() const { return changes_.load(std::memory_order_acquire); }
  // Those to these nodes; null: there is none, or that node is down. Nobody is dialled.
  std::vector<std::shared_ptr<Link>> find_known(const std::vector<NodeId>& nodes) const;
  std::vector<std::shared_ptr<Link>> links() const;
  // A link has ended. kReport: what its node has died of is to be told. kGiveUp: nothing is known of its node, but what
  // waits for it waits in vain.
  PeerAction link_ended(const Link& link, const Error& why);
  // There is no route to `node` from now on, until one is wanted or comes. Returns all its links. But where what it was
  // sent on never became a session, and the node has opened one meanwhile, that one is the route now, and is not returned.
  std::vector<std::shared_ptr<Link>> let_go(NodeId node);
  // From now on there is no route to anywhere. Returns all links.
  std::vector<std::shared_ptr<Link>> close();
  bool closing() const;

  // ---- Through others ----
  static constexpr size_t kGatewaysMax = 100'000;

  // What goes between two nodes goes one way in each direction, for good: who changes it lets messages overtake others.

  // find(node) gives the link to `gateway` from now on, unless there is a way to `node`. A link that comes from `node`
  // later is only listened to.
  void set_gateway(NodeId node, NodeId gateway);
  // A frame of `node` has come through `gateway`, which is the way to it if there is no other. False: not to be
  // believed, since `node` comes in another way (it has dialled this node, or come through another one), or too many
  // come so.
  bool hear_through(NodeId node, NodeId gateway);
  // Whether it is reached, or heard, through that one.
  bool is_behind(NodeId node, NodeId gateway) const;
  // All those; they are so no more.
  std::vector<NodeId> take_behind(NodeId gateway);
  // These two talk through this node. Who does so with `node`, which is forgotten.
  void note_forwarded(NodeId a, NodeId b);
  std::vector<NodeId> take_forwarded(NodeId node);

  // ---- The dead ----
  using Unsent = UnsentMessage;
  // False: its sender is to be told now; `*why`.
  bool keep_unsent(const Unsent& message, Failure* why);

  std::vector<Unsent> take_unsent(NodeId node);
  size_t unsent() const;

  // The first reason stays. Null: it was down already; else what could not be sent to it.
  std::optional<std::vector<Unsent>> mark_down(NodeId node, FailurePtr reason);
  FailurePtr why_down(NodeId node) const;  // null: it is not
  // The same; else, if its gateway is down, the failure that it is about to be declared with. Null: neither is.
  FailurePtr why_unreachable(NodeId node);
  // One relaxed load, for what is asked with every frame.
  bool any_down() const { return any_down_.load(std::memory_order_relaxed); }
  // Whether whoever may have created this actor is dead.
  bool creator_is_down(ActorIndex index, std::string* reason) const;

 private:
  struct Reach {
    Peer peer;
    std::shared_ptr<Link> link;  // that is sent on; null: none at present
    bool has_dialled = false;    // so it speaks for itself; whom only this node has dialled may have had a way before
  };
  struct Gateways {
    NodeId to = 0;
    NodeId from = 0;  // 0: not known yet
  };
  void note_change() { changes_.store(next_change(), std::memory_order_release); }
  std::vector<std::shared_ptr<Link>> take_dead_links();  // mutex_ held
  std::vector<Unsent> take_unsent_locked(NodeId node);
  FailurePtr why_unreachable_locked(NodeId node);

  NodeId gateway_to(NodeId node);  // mutex_ held; 0: there is none

  const Dial dial_;
  const GatewayOf gateway_of_;
  mutable Mutex mutex_{LockRank::kNodeRoutes};
  std::unordered_map<NodeId, Reach> routes_;
  std::vector<std::shared_ptr<Link>> all_links_;  // also those that only receive
  Recent<NodeId, FailurePtr> dead_;
  std::set<NodeId> dead_ids_;  // those of dead_, ordered, so that a creator can be found by an index
  std::unordered_map<NodeId, Gateways> gateways_;
  std::set<std::pair<NodeId, NodeId>> forwarded_;  // each pair both ways round
  std::vector<Unsent> unsent_;
  std::atomic<bool> any_down_{false};
  std::atomic<uint64_t> changes_{next_change()};  // changed with mutex_ held, after the change
  bool any_given_up_ = false;  // or let go
  bool closing_ = false;
};

}  // namespace monarch
