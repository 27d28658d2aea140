// Rings and an arena in shared memory, between processes of one user on one machine: net/shm/shm_link.h.
#pragma once

#include "monarch/net/local/local_socket.h"
#include "monarch/net/shm/own_bell.h"

namespace monarch {

class ShmTransport final : public LocalTransport {
 public:
  static constexpr std::string_view kName = "shm";

  ShmTransport(const ShmContext& context, OwnBell& bell) : context_(context), bell_(bell) {}

  std::string_view name() const override { return kName; }
  char code() const override { return 's'; }
  std::shared_ptr<Link> new_link(LinkSink& sink, NodeId peer) override;
  std::unique_ptr<LinkSetup> new_setup() override;
  Result<ChildEnds> start_to_child(Link& link) override;
  Status start_to_parent(Link& link, ChildEnds ends) override;

 private:
  class Setup;
  const ShmContext context_;
  OwnBell& bell_;
};

}  // namespace monarch
