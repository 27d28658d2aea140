// Makes links: to children (before they exist), to the parent, and between any two processes on this host, of this job or
// one of them a guest, through abstract unix sockets (no file is left behind), the peer's uid and the hello (wire/hello.h).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "monarch/base/random.h"
#include "monarch/host/bootstrap.h"
#include "monarch/host/jobs.h"
#include "monarch/net/shm/shm_link.h"
#include "monarch/net/unix/unix_link.h"
#include "monarch/wire/hello.h"

namespace monarch {

enum class Transport { kShm, kUnix };

// This process's own bell, and what peers are given of it.
struct OwnBell {
  UniqueFd page_fd;
  UniqueFd event_fd;
  Mapping page;

  BellPage& bell() { return *static_cast<BellPage*>(page.get()); }
  static Result<OwnBell> make();
  // From descriptors that the parent made.
  static Result<OwnBell> adopt(UniqueFd page_fd, UniqueFd event_fd);
};

class Connector {
 public:
  struct Events {
    // Reactor. A peer dialled us; the link is started next. `guest`: it is of another job.
    std::function<void(std::shared_ptr<Link>, bool guest)> on_accepted;
    // Reactor. As what a node is dialled; null: always as `identity`.
    std::function<Identity(NodeId)> identity_for;
  };

  Connector(ShmContext context, OwnBell& bell, const Identity& identity, Transport transport);
  ~Connector();

  // Where frames of links made from now on go. Before any other call.
  void set_sink(LinkSink& sink, Events events);

  // Any thread. A started link to a process that does not exist yet, and what that process has to be given
  // (kFdSocket ... kFdListener; the others are left empty). Others may dial it from now on: they wait until it answers,
  // and learn from the kernel if it never will.
  Result<std::shared_ptr<Link>> make_child(NodeId child, BootstrapFds& fds);
  // The same link's other end, in the child.
  Result<std::shared_ptr<Link>> adopt_parent(const Bootstrap& bootstrap, BootstrapFds& fds);

  // Reactor. Begins to accept peers; a worker does so on the socket that its parent made for it.
  Status listen(UniqueFd listener = {});
  // Any thread. A link that connects in the background; what is sent meanwhile waits.
  std::shared_ptr<Link> dial(NodeId node);
  // Reactor. No more peers, and those half way are dropped.
  void close();

  const Identity& identity() const { return identity_; }
  Transport transport() const { return transport_; }

 private:
  class Greeting;
  void start_greeting(UniqueFd socket, const Identity& identity, std::shared_ptr<Link> link);
  void end_greeting(Greeting* greeting);
  void try_dial(const std::shared_ptr<Link>& link, int attempt);
  std::shared_ptr<Link> new_link_for(Transport transport, NodeId peer);

  ShmContext context_;
  OwnBell& bell_;
  const Identity identity_;
  const Transport transport_;
  SystemRandom random_;
  LinkSink* sink_ = nullptr;
  Events events_;
  UniqueFd listener_;                                            // reactor
  std::unordered_map<Greeting*, std::unique_ptr<Greeting>> greetings_;  // reactor
};

}  // namespace monarch
