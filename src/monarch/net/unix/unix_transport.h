// Two stream sockets, between processes of one user on one machine, where shared memory cannot be had
// (net/unix/unix_link.h).
#pragma once

#include "monarch/net/local/local_socket.h"
#include "monarch/net/shm/own_bell.h"

namespace monarch {

class UnixTransport final : public LocalTransport {
 public:
  static constexpr std::string_view kName = "unix";

  UnixTransport(Reactor& reactor, OwnBell& bell) : reactor_(reactor), bell_(bell) {}

  std::string_view name() const override { return kName; }
  char code() const override { return 'u'; }
  std::shared_ptr<Link> new_link(LinkSink& sink, NodeId peer) override;
  std::unique_ptr<LinkSetup> new_setup() override;
  Result<ChildEnds> start_to_child(Link& link) override;
  Status start_to_parent(Link& link, ChildEnds ends) override;

 private:
  class Setup;
  Reactor& reactor_;
  OwnBell& bell_;
};

}  // namespace monarch
