// Ports: mailboxes that a program opens itself. Who has the address of one sends to it, from any process; its opener
// receives. A port has an index like an actor's, so messages to it are ordinary one-way messages: in order per sender,
// bounced if there is nobody, held back when too much waits.
#pragma once

#include <deque>
#include <memory>
#include <mutex>

#include "monarch/actor/cell.h"
#include "monarch/actor/inflow.h"
#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"

namespace monarch {

// FrameHeader::method of a message to a port: what the body is, and whether FrameHeader::rank says who sent it.
enum PortMethod : uint32_t {
  kPortValue = 0,
  kPortError = 1,    // an error, as the body of kReplyError
  kPortFailure = 2,  // a Failure, as the body of kReplyFailed
  kPortRanked = 4,   // added to these
};

class PortCell;

// A place in the line for the messages of a port, as a call with one answer. To destroy it is to leave the line: a message
// that came and was never looked at goes back to its place in the port.
class PortWait final : public PendingCall {
 public:
  PortWait(std::shared_ptr<const Members> members, std::shared_ptr<class PortReceiver> port);
  ~PortWait();

  void mark_seen() { seen_ = true; }

 private:
  friend class PortCell;
  const std::shared_ptr<PortReceiver> port_;  // open while somebody waits
  std::atomic<bool> seen_{false};
};

// The receiving end. The port closes with it and the last wait: what waits then is refused, as what comes later.
class PortReceiver : public std::enable_shared_from_this<PortReceiver> {
 public:
  // `owner`: the inflow of the actor that opens it, or null. While that waits for others the port holds nobody back.
  static std::shared_ptr<PortReceiver> open(Node& node, std::shared_ptr<Inflow> owner);
  ~PortReceiver();

  // Any thread. Waits take messages in the order of these calls; fail (kReplyFailed) once the node has ended.
  std::shared_ptr<PortWait> receive();
  ActorId address() const { return members_->ids[0]; }

 private:
  friend class PortWait;
  PortReceiver(Node& node, ActorId address, std::shared_ptr<Inflow> owner);

  Node& node_;
  const std::shared_ptr<const Members> members_;
  const std::shared_ptr<PortCell> cell_;
};

// Sends the answers of `call` on to a port, each when it comes, with its rank, counted from `first_rank`; failures too. Who
// has closed the port has no use for them, and nobody is told.
void relay_answers(Node& node, const std::shared_ptr<PendingCall>& call, const ActorId& port, uint32_t first_rank);
// The same to who waits for the answer of `request`, which came from a node: the first one counts.
void relay_answers(Node& node, const std::shared_ptr<PendingCall>& call, const FrameHeader& request, NodeId from);

}  // namespace monarch
