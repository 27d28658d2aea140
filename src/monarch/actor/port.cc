#include "monarch/actor/port.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "monarch/actor/calls.h"
#include "monarch/actor/directory.h"
#include "monarch/base/forked.h"

namespace monarch {

namespace {

FrameKind kind_of(uint32_t method) {
  switch (method & ~uint32_t{kPortRanked}) {
    case kPortError:
      return FrameKind::kReplyError;
    case kPortFailure:
      return FrameKind::kReplyFailed;
    default:
      return FrameKind::kReply;
  }
}
}  // namespace

class PortCell final : public Cell {
 public:
  PortCell(Node& node, ActorIndex index, std::shared_ptr<Inflow> owner)
      : node_(node), inflow_(node, index, std::move(owner)) {}

  void deliver(MessagePtr message) override {
    if (message->header.kind != FrameKind::kOneway) return node_.refuse(*message, "a port takes one-way messages only");
    inflow_.arrived(*message);
    std::shared_ptr<PortWait> wait;
    {
      std::lock_guard lock(mutex_);
      if (!closed_) {
        message->header.kind = kind_of(message->header.method);
        message->header.token = ++arrived_;
        wait = next_wait();
        if (!wait) queue_.push_back(std::move(message));
      }
    }
    if (wait) return hand_over(*wait, std::move(message));
    if (message) node_.refuse(*message, Directory::kPortClosed);
  }

  void on_node_closed(std::string_view why) override {
    std::deque<std::weak_ptr<PortWait>> waits;
    {
      std::lock_guard lock(mutex_);
      node_end_ = why;
      waits.swap(waits_);
    }
    for (const auto& weak : waits) {
      if (const auto wait = weak.lock()) wait->fill(0, make_failure(0, 0, why), node_.driver());
    }
  }

  void add(const std::shared_ptr<PortWait>& wait) {
    MessagePtr message;
    {
      std::lock_guard lock(mutex_);
      if (!queue_.empty()) {
        message = std::move(queue_.front());
        queue_.pop_front();
      } else if (node_end_.empty()) {
        waits_.push_back(wait);
        return;
      }
    }
    if (message) return hand_over(*wait, std::move(message));
    wait->fill(0, make_failure(0, 0, node_end_), node_.driver());
  }

  // A wait is given up; null: it was still in the line.
  void take_back(MessagePtr message) {
    std::shared_ptr<PortWait> wait;
    {
      std::lock_guard lock(mutex_);
      if (!message) return forget_given_up();
      if (closed_ || !node_end_.empty()) return;
      wait = next_wait();
      if (!wait) {
        inflow_.arrived(*message);
        auto after = std::find_if(queue_.begin(), queue_.end(), [&message](const MessagePtr& other) {
          return other->header.token > message->header.token;
        });
        queue_.insert(after, std::move(message));
        return;
      }
    }
    wait->fill(0, std::move(message), node_.driver());
  }

  void close() {
    std::deque<MessagePtr> rest;
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      rest.swap(queue_);
    }
    inflow_.begin_blocking();  // for good: nobody is held back by a port that is gone
    for (MessagePtr& message : rest) {
      message->header.kind = FrameKind::kOneway;
      message->header.token = 0;
      node_.refuse(*message, Directory::kPortClosed);
    }
  }

 private:
  // The first wait that has not been given up. mutex_ held.
  std::shared_ptr<PortWait> next_wait() {
    while (!waits_.empty()) {
      std::shared_ptr<PortWait> wait = waits_.front().lock();
      waits_.pop_front();
      if (wait) return wait;
    }
    return nullptr;
  }

  // Some time before those that were given up are half of the line, so that who looks now and then costs no memory.
  void forget_given_up() {
    if (++given_up_ <= waits_.size() / 2) return;
    std::erase_if(waits_, [](const auto& wait) { return wait.expired(); });
    given_up_ = 0;
  }

  void hand_over(PortWait& wait, MessagePtr message) {
    inflow_.taken(Inflow::cost_of(*message));
    wait.fill(0, std::move(message), node_.driver());
  }

  Node& node_;
  Inflow inflow_;
  Mutex mutex_{LockRank::kPort};
  std::deque<MessagePtr> queue_;  // by header.token
  uint64_t arrived_ = 0;          // number of the last message, its header.token here
  std::deque<std::weak_ptr<PortWait>> waits_;
  size_t given_up_ = 0;  // of waits_, at most
  bool closed_ = false;
  std::string node_end_;  // why nothing more will come; set once
};

PortWait::PortWait(std::shared_ptr<const Members> members, std::shared_ptr<PortReceiver> port)
    : PendingCall(std::move(members)), port_(std::move(port)) {}

PortWait::~PortWait() {
  if (in_forked_child()) return;
  abandon();  // what an await that was cancelled has begun
  if (!seen_) port_->cell_->take_back(take(0));
}

PortReceiver::PortReceiver(Node& node, ActorId address, std::shared_ptr<Inflow> owner)
    : node_(node),
      members_(std::make_shared<Members>(Members{{address}})),
      cell_(std::make_shared<PortCell>(node, address.index, std::move(owner))) {}

std::shared_ptr<PortReceiver> PortReceiver::open(Node& node, std::shared_ptr<Inflow> owner) {
  const ActorId address{node.id(), node.new_actor_index()};
  std::shared_ptr<PortReceiver> port(new PortReceiver(node, address, std::move(owner)));
  node.add_cell(address.index, port->cell_);
  return port;
}

PortReceiver::~PortReceiver() {
  if (in_forked_child()) return;
  node_.remove_port(address().index);
  cell_->close();
}

std::shared_ptr<PortWait> PortReceiver::receive() {
  auto wait = std::make_shared<PortWait>(members_, shared_from_this());
  cell_->add(wait);
  return wait;
}

namespace {
// `send(header of the answer, outgoing)` for each answer, when it comes.
void pass_on(const std::shared_ptr<PendingCall>& call, const std::function<void(const FrameHeader&, Outgoing&)>& send) {
  for (uint32_t i = 0; i < call->size(); ++i) {
    call->observe(i + 1, [call, send, i] {
      const Message& answer = *call->reply(call->arrival(i));
      std::vector<ByteSpan> parts;
      for (const Part& part : answer.parts) parts.push_back({part.data, part.size});
      Outgoing outgoing{FrameHeader{}, answer.body, parts};
      outgoing.header.flags = answer.header.flags;
      send(answer.header, outgoing);
    });
  }
}

uint32_t method_of(FrameKind kind) {
  if (kind == FrameKind::kReply) return kPortRanked | kPortValue;
  return kPortRanked | (kind == FrameKind::kReplyError ? kPortError : kPortFailure);
}
}  // namespace

void relay_answers(Node& node, const std::shared_ptr<PendingCall>& call, const ActorId& port, uint32_t first_rank) {
  pass_on(call, [&node, port, first_rank](const FrameHeader& answer, Outgoing& outgoing) {
    outgoing.header.flags |= kFlagQuiet;  // as an answer to a call that nobody waits for any more
    outgoing.header.rank = first_rank + answer.rank;
    outgoing.header.method = method_of(answer.kind);
    node.post(port, outgoing);
  });
}

void relay_answers(Node& node, const std::shared_ptr<PendingCall>& call, const FrameHeader& request, NodeId from) {
  pass_on(call, [&node, request, from](const FrameHeader& answer, Outgoing& outgoing) {
    node.reply(request, from, answer.kind, outgoing);
  });
}

}  // namespace monarch
