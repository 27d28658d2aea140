// The sessions of one process (net/resuming_link.h): makes those that are dialled, and finds out to which of them, if to
// any, a link belongs that a peer has dialled.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "monarch/base/random.h"
#include "monarch/net/resuming_link.h"

namespace monarch {

class Sessions final : public std::enable_shared_from_this<Sessions> {
 public:
  struct Events {
    // Reactor. A peer has opened a session; what it says comes next. `guest`: it is of another job.
    std::function<void(std::shared_ptr<Link>, bool guest)> on_accepted;
    // Any thread. Who is known to be dead opens no session: it learns so that it is, and is never half of that. May be
    // empty.
    std::function<bool(NodeId)> is_down;
  };

  // shared_ptr: its sessions hold it too, so that they may end after whoever made it.
  static std::shared_ptr<Sessions> make(Timers& timers, Random& random, LinkSink& sink, Events events) {
    return std::shared_ptr<Sessions>(new Sessions(timers, random, sink, std::move(events)));
  }

  // Any thread. A link to `peer` that is made by `dial`, again and again.
  std::shared_ptr<Link> dial(NodeId peer, int64_t lease_ns, ResumingLink::Dial dial);
  // As dial(), once it has been told to begin(). `opening_ns`: Peer.
  std::shared_ptr<ResumingLink> make_session(NodeId peer, int64_t lease_ns, ResumingLink::Dial dial,
                                             int64_t opening_ns = 0);
  // Reactor. The link to `peer`, who has dialled, that `make` makes (not started).
  std::shared_ptr<Link> accepted(NodeId peer, bool guest, int64_t lease_ns, const ResumingLink::Dial& make);
  // No carrier is used any more, and no timer runs. The last.
  void end();

  // How long a link that was dialled may take to say which session it is for, and one that is to be a stripe to be it.
  static constexpr int64_t kFirstFrameNs = 5'000'000'000;
  size_t carriers() const;

  // ---- From carriers and sessions ----
  void on_first(Carrier& carrier, Link& link, const Message& message);
  void drop(Carrier& carrier, const char* what);
  void keep(std::shared_ptr<Carrier> carrier);
  // Of a link that is to be a stripe of another one, and soon.
  void keep_stripe(std::shared_ptr<Carrier> carrier);
  // Later, from the reactor.
  void close_later(std::shared_ptr<Link> link);
  void forget(const ResumingLink& session);
  Timers& timers() { return timers_; }
  LinkSink& sink() { return sink_; }

 private:
  Sessions(Timers& timers, Random& random, LinkSink& sink, Events events)
      : timers_(timers), random_(random), sink_(sink), events_(std::move(events)) {}
  std::shared_ptr<ResumingLink> find_or_make(const Carrier& carrier, const SessionFrame& frame, bool* made);
  void end_unless_used(const std::shared_ptr<Carrier>& carrier, int64_t after_ns);
  void on_stripe(Carrier& carrier, Link& link, const SessionFrame& frame);
  void end_older(const ResumingLink& session);
  std::vector<std::shared_ptr<Carrier>> take_over();

  Timers& timers_;
  Random& random_;
  LinkSink& sink_;
  const Events events_;

  mutable Mutex mutex_{LockRank::kSessions};
  std::map<std::pair<NodeId, uint64_t>, std::weak_ptr<ResumingLink>> opened_;  // by others; weak: Routes owns them
  std::vector<std::shared_ptr<Carrier>> carriers_;
};

}  // namespace monarch
