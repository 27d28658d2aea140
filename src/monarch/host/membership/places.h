// Where the gateways of a job's other hosts are dialled (host/membership/gateways.h). The script knows, since it has
// attached to them; a gateway that wants to talk to another one asks the script, once, and what is sent meanwhile waits.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "monarch/actor/node.h"
#include "monarch/net/connector.h"
#include "monarch/net/resuming_link.h"
#include "monarch/net/tcp/tcp_transport.h"

namespace monarch {

class Places {
 public:
  // `tcp` is one of the connector's.
  Places(Timers& timers, Node& node, Connector& connector, TcpTransport& tcp, NodeId script)
      : timers_(timers), node_(node), connector_(connector), tcp_(tcp), script_(script) {}

  // Any thread; must not block. As Connector::dial().
  std::shared_ptr<Link> dial(NodeId node);

  // ---- Script ----
  // Any thread. The link to a gateway that is about to be, and goes on with placed().
  std::shared_ptr<Link> expect(NodeId gateway);
  // Reactor. It is there.
  Status placed(NodeId gateway, const TcpAddress& address);
  // Reactor. It is down.
  void gone(NodeId gateway);
  // Reactor. kWhereIs.
  void asked(Link& link, NodeId gateway);

  // ---- Gateway ----
  // Reactor. kPlace.
  void answered(NodeId gateway, const std::string& place);

 private:
  std::shared_ptr<ResumingLink> take_parked(NodeId gateway);
  static void tell(Link& link, NodeId gateway, const std::string& place);

  Timers& timers_;
  Node& node_;
  Connector& connector_;
  TcpTransport& tcp_;
  const NodeId script_;

  std::mutex mutex_;  // a leaf
  std::map<NodeId, std::shared_ptr<ResumingLink>> parked_;  // links that begin when it is known where their peers are
  std::map<NodeId, std::vector<NodeId>> askers_;            // of gateways that are about to be
};

}  // namespace monarch
