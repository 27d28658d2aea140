// Answers that are combined on their way, at a gateway and where they arrive (actor/reductions.h).
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "monarch/actor/calls.h"
#include "monarch/actor/node.h"
#include "monarch/actor/reductions.h"
#include "monarch/actor/routes.h"
#include "monarch/wire/replies.h"

namespace monarch {

std::unique_ptr<Reductions> Node::make_reductions() {
  return std::make_unique<Reductions>(
      id_, timers_,
      Reductions::Hooks{[this](const Reductions::Answer& answer) { pass_on(answer); },
                        [this](NodeId origin, const Outgoing& together) { return send(origin, together); }});
}

// An answer that was held, to its caller; nobody waits for it if that cannot be reached.
void Node::pass_on(const std::shared_ptr<const Message>& answer) {
  FrameRoute route = answer->route();
  ++route.hops;
  const std::shared_ptr<Link> onward = routes_->find(route.destination);
  if (onward == nullptr) return;
  try {
    std::vector<ByteSpan> parts;
    for (const Part& part : answer->parts) parts.emplace_back(part.data, part.size);
    Outgoing outgoing{answer->header, answer->body, parts};
    outgoing.route = route;
    static_cast<void>(put(*onward, outgoing, answer));
  } catch (const std::bad_alloc&) {
    FrameHeader request;
    request.token = answer->header.dest;
    request.rank = answer->header.rank;
    reply_failed(request, route.destination, "there is no memory for its answer in the process on the way");
  }
}

// The answers of several ranks, or what has become of them all.
void Node::answered_together(MessagePtr message) {
  if (message->header.kind != FrameKind::kReply) return lost_for_all(*message);
  const uint64_t token = message->header.dest;
  auto entries = decode_replies(message->body, message->parts.size());
  if (!entries) return end_call(token, Failure("the answers of several ranks came as " + entries.error().message));
  const std::shared_ptr<Message> whole = std::move(message);  // shared: the answers lie in it
  auto next = whole->parts.begin();
  try {
    std::vector<PendingCall::Answer> answers;
    answers.reserve(entries->size());
    std::vector<ByteSpan> parts;
    for (const ReplyEntry& entry : *entries) {
      if (entry.parts == 0) {
        answers.push_back({entry.rank, nullptr});
        continue;
      }
      parts.clear();
      for (uint32_t i = 0; i < entry.parts; ++i, ++next) parts.emplace_back(next->data, next->size);
      Outgoing answer{FrameHeader{}, {}, {}};
      answer.header.kind = FrameKind::kReply;
      answer.header.flags = entry.flags;
      answer.header.dest = token;
      answer.header.rank = entry.rank;
      answer.body = parts.front();
      answer.parts = std::span(parts).subspan(1);
      uint64_t bytes = answer.body.size();
      for (const ByteSpan& part : answer.parts) bytes += part.size();
      // Of what is small whoever keeps it is not to keep the answers of all.
      const bool is_small = bytes <= Reductions::kGatheredBytesMax;
      answers.push_back({entry.rank, Message::copy_of(answer, whole->from, is_small ? nullptr : whole)});
    }
    calls_->answer(token, answers);
  } catch (const std::bad_alloc&) {
    end_call(token, Failure("there is no memory for the answers of several ranks"));
  }
}

}  // namespace monarch
