// Makes links: to children (before they exist), to the parent, and between any two processes that can reach each other, of
// one job or one of them a guest. Which sockets and links there are is the transports' business (net/transport.h); this is
// what is the same for all: listening, dialling, the hello (wire/hello.h), time limits, and what a shortage of our own
// means: it is waited out, and never taken for the death of a peer.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "monarch/base/random.h"
#include "monarch/loop/reactor.h"
#include "monarch/net/transport.h"

namespace monarch {

class ResumingLink;
class Sessions;

class Connector {
 public:
  struct Events {
    // Reactor. A peer dialled us and has all that it needs; the link is started next, unless it is closed. `guest`: it is
    // of another job. With a lease (Transport): a peer has opened a session.
    std::function<void(std::shared_ptr<Link>, bool guest)> on_accepted;
    // Any thread. As what a node is dialled; null: always as `identity`.
    std::function<Identity(NodeId)> identity_for;
    // Any thread. Who is dead for this process, and opens no session any more; null: nobody.
    std::function<bool(NodeId)> is_down;
  };

  struct Limits {
    // A stranger has this long to prove itself. A peer that was dialled may take long to start, but is known to live.
    int64_t accept_ns = 5'000'000'000;
    int64_t dial_ns = 120'000'000'000;
  };

  // `transports`: all that this process has, best first; `preferred` is the name of the one that it uses itself.
  Connector(Reactor& reactor, std::vector<std::unique_ptr<Transport>> transports, std::string_view preferred,
            const Identity& identity) : Connector(reactor, std::move(transports), preferred, identity, Limits{}) {}
  Connector(Reactor& reactor, std::vector<std::unique_ptr<Transport>> transports, std::string_view preferred,
            const Identity& identity, const Limits& limits);
  ~Connector();

  // Where frames of links made from now on go. Before any other call.
  void set_sink(LinkSink& sink, Events events);

  // Any thread. A link to a process that does not exist yet; what is sent waits in it. Others may dial that process from
  // now on: they wait until it answers, and learn from the kernel if it never will, which is when `listener` is closed.
  // kUnavailable: there is nothing to make it of.
  struct NewChild {
    std::shared_ptr<Link> link;
    UniqueFd listener;
  };
  Result<NewChild> new_child(NodeId child);
  // Any thread, once for each, when the process is about to start: its link is started. What it has to be given, beside its
  // listener. After kUnavailable it may be tried again.
  Result<ChildEnds> start_child(Link& link) { return preferred_->start_to_child(link); }
  // The same link's other end, in the child.
  Result<std::shared_ptr<Link>> adopt_parent(NodeId parent, ChildEnds ends);

  // Reactor. Begins to accept peers; a worker does so on the socket that its parent made for it.
  Status listen(UniqueFd listener = {});
  // Any thread. A link that connects in the background; what is sent meanwhile waits in it. Null: no transport reaches
  // the node; one of another host of the job (base/ids.h) none without a lease. It ends with kClosed if the peer is not
  // there, which only the kernel can say: a connection that ends in the middle of its hello is made anew. It ends with
  // kUnavailable if there has been nothing to make it of, or each hello was cut short, for kShortageLimitNs or for the
  // lease of its transport, or if nothing is said for as long as a dial may take: the peer is stopped, perhaps.
  std::shared_ptr<Link> dial(NodeId node);
  // Any thread. The link to a process of another host that is about to be; what is sent waits in it until it is to begin().
  // The transport with a lease must be there. `opening_ns`: how long its first link may take, and each attempt half of it,
  // where that is more than the transport's own time.
  std::shared_ptr<ResumingLink> new_remote(NodeId node, int64_t opening_ns = 0);
  // Reactor. No more peers, and those half way are dropped.
  void close();

  const Identity& identity() const { return identity_; }
  std::string_view transport() const { return preferred_->name(); }
  // How many connections sessions hold, also those that are over and not yet let go.
  size_t carriers() const;

  static constexpr int64_t kShortageLimitNs = 30'000'000'000;

 private:
  class Joining;
  struct Listener {
    Transport* transport;
    UniqueFd socket;
    bool paused = false;
    bool short_said = false;  // that it cannot accept, for want of descriptors
    bool looks_for_room = false;
    size_t strangers = 0;     // those who have dialled us there and not yet proved themselves
  };
  struct Dial {
    std::shared_ptr<Link> link;
    Transport* transport;
    int attempt = 0;
    int64_t failing_since_ns = 0;  // 0: it does not
    bool told = false;             // what is short
    bool of_session = false;       // the session redials, and wants to know why this has not become a link
    int64_t limit_ns = 0;          // for this attempt; the transport's own at least
  };

  std::shared_ptr<ResumingLink> new_session(Transport& transport, NodeId node, int64_t opening_ns);
  std::shared_ptr<Link> connect(Transport& transport, NodeId node, LinkSink& sink, bool of_session, int64_t limit_ns);
  void accept(Listener& listener);
  void pause(Listener& listener, int64_t delay_ns);
  void resume_listeners();
  void start_joining(std::unique_ptr<Channel> channel, const Identity& identity, Transport* transport, Dial dial,
                     Listener* listener);
  void end_joining(Joining* joining);
  void look_for_room(Listener& listener);
  void no_stranger_any_more(const Joining& joining);
  void try_dial(Dial dial);
  void dial_again(Dial dial, const Error& why, bool tell = true);
  void dial_failed(const Dial& dial, const Error& why, bool for_good);
  Transport* transport_of(char code) const;

  Reactor& reactor_;
  const std::vector<std::unique_ptr<Transport>> transports_;
  Transport* preferred_;
  const Identity identity_;
  const Limits limits_;
  SystemRandom random_;
  LinkSink* sink_ = nullptr;
  std::shared_ptr<Sessions> sessions_;  // shared: with each of them
  Events events_;
  // Reactor only.
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_map<Joining*, std::unique_ptr<Joining>> joinings_;
  bool closed_ = false;
};

}  // namespace monarch
