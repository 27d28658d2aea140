// A way in which two processes can be linked. A new one is a folder of net/ with a Transport and its Link, one line in
// net/transports.cc, and an instantiation of the suite (testing/link_suite.h).
//
// A link is made in three steps, the middle one of which is the same for all (net/connector.h):
//   1. the transport connects a channel to its peer (net/channel.h), or listens for those of others;
//   2. on that channel both ends prove who they are (wire/hello.h);
//   3. the dialer names the transport and hands over what the link needs, in descriptors; the acceptor answers with what
//      it has to give: one Setup at each end. When the dialer has all of it, it says so, and the link takes the channel
//      over at both ends. Whatever ends before that was no link, and its end no death: the dialer begins again.
// To a child that this process is about to start there is a shorter way: the two ends are made here.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "monarch/base/clock.h"
#include "monarch/base/unique_fd.h"
#include "monarch/net/channel.h"
#include "monarch/net/identity.h"
#include "monarch/net/link.h"

namespace monarch {

// One link that is being set up, at one of its ends. On the reactor.
class LinkSetup {
 public:
  static constexpr size_t kFdsMax = 3;

  virtual ~LinkSetup() = default;
  // Dialer: what goes to the peer beside the offer; borrowed until the next call. kUnavailable: not now.
  virtual Result<std::vector<int>> offer() = 0;
  // Acceptor: takes what came with the offer and gives what goes back. kMalformed: the peer sends nonsense.
  virtual Result<std::vector<int>> accept(std::vector<UniqueFd> fds) = 0;
  // Dialer: takes what came back.
  virtual Status agree(std::vector<UniqueFd> fds) = 0;
  // Both, last: `link`, made by the same transport, begins to carry frames.
  virtual void start(Link& link, std::unique_ptr<Channel> channel) = 0;
};

// What a child has to be given so that it can take up its end of a link to its parent, and be dialled by others. Which of
// them there are is the transport's business.
struct ChildEnds {
  UniqueFd socket;
  UniqueFd data;
  UniqueFd bell;
  UniqueFd event;
  UniqueFd parent_bell;
  UniqueFd parent_event;
  UniqueFd listener;
};

class Transport {
 public:
  virtual ~Transport() = default;

  // "shm", "unix": for people, in the configuration and in a bootstrap record.
  virtual std::string_view name() const = 0;
  // Names it on the wire, in an offer.
  virtual char code() const = 0;
  // How long a peer lives on whose link has broken: so long its session is resumed (net/resuming_link.h). 0: the end of a
  // link is the end, as on one host.
  virtual int64_t lease_ns() const { return 0; }
  // How long the first link of a session may take.
  virtual int64_t opening_ns() const { return lease_ns(); }
  // Where this process, as `own`, can be dialled; one line. Transports that share a listener say the same; empty: it does
  // not listen.
  virtual std::string describe(const Identity& own) const = 0;
  // Whether `peer`, dialled as `as`, may be there to be found by this transport.
  virtual bool reaches(const Identity& as, NodeId peer) const = 0;

  // A socket on which `node` of `job` is found from now on, non-blocking.
  virtual Result<UniqueFd> listen(const JobId& job, NodeId node) = 0;
  // Connects to the peer; never blocks. kUnavailable: try again later (`*busy`: it lives, but has too many others waiting);
  // kClosed: it is not there, and if it ever was, it is dead. With a lease, that is where it was has answered and says so.
  // What the returned one finds out later, it says itself (Channel::establish()).
  virtual Result<std::unique_ptr<Channel>> connect(const Identity& as, NodeId peer, bool* busy) = 0;
  // How long it may take from there until the peer has proved itself, if that is less than the connector's own limit.
  virtual int64_t dial_limit_ns() const { return kNoDeadline; }
  // Who has connected may speak: over what. Or it is refused, with why.
  virtual Result<std::unique_ptr<Channel>> admit(UniqueFd socket) const = 0;
  // Anybody can connect, not this user alone: who is slow to prove itself makes room for others.
  virtual bool open_to_strangers() const { return false; }

  // A link that is not started.
  virtual std::shared_ptr<Link> new_link(LinkSink& sink, NodeId peer) = 0;
  virtual std::unique_ptr<LinkSetup> new_setup() = 0;

  // Any thread. The two ends of a link to a child: `link` (not started) is started, the rest is for the child, beside its
  // listener. On failure nothing has happened.
  virtual Result<ChildEnds> start_to_child(Link& link) = 0;
  // In the child.
  virtual Status start_to_parent(Link& link, ChildEnds ends) = 0;
};

}  // namespace monarch
