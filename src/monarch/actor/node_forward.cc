// Frames that pass through a node, and those that did not arrive whole (node.h: reach_through).
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "monarch/actor/calls.h"
#include "monarch/actor/directory.h"
#include "monarch/actor/flow.h"
#include "monarch/actor/forwarding.h"
#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/reductions.h"
#include "monarch/actor/routes.h"
#include "monarch/base/log.h"
#include "monarch/wire/cast.h"
#include "monarch/wire/cast_parts.h"
#include "monarch/wire/failure.h"

namespace monarch {

namespace {

std::string lost_text(const Message& message) {
  return "there was no room for a message of " + std::to_string(message.lost_bytes) +
         " bytes where it arrived (memory or file descriptors)";
}

bool is_reply(FrameKind kind) {
  return kind == FrameKind::kReply || kind == FrameKind::kReplyError || kind == FrameKind::kReplyFailed;
}

bool is_new_work(FrameKind kind) {
  return kind == FrameKind::kRequest || kind == FrameKind::kOneway || kind == FrameKind::kCast;
}

}  // namespace

void Node::reach_through(NodeId node, NodeId gateway) { routes_->set_gateway(node, gateway); }

// True: it is for this node, and `message` is as if it had come from its origin. False: it has been passed on, or refused.
bool Node::arrived_by_route(Link& link, MessagePtr& message, bool control) {
  const FrameRoute route = message->route();
  const Outgoing head{message->header, message->body, {}, 0, route};
  if (route.origin == id_) {
    if (route.destination != id_) {
      refuse_onward(link, head, "the way to the process leads back to this one");
    }
    return false;
  }
  std::string why;
  if (const FailurePtr dead = why_down(route.origin)) {
    why = "the process that this was sent to holds its sender for dead: " + dead->text();
  } else if (route.origin != link.peer() && !routes_->hear_through(route.origin, link.peer())) {
    why = "the process on the way may not speak for the sender, which has another way";
  }
  if (!why.empty()) {
    refuse_onward(link, head, why);
    return false;
  }
  if (route.destination != id_) {
    forward(link, std::move(message), control);
    return false;
  }
  message->from = route.origin;
  message->header.flags &= ~uint32_t{kFlagRouted};
  return true;
}

std::shared_ptr<std::byte> Node::memory_for(Link&, const FrameHeader& header, const FrameRoute& route, uint64_t size) {
  const bool is_for_several = header.kind == FrameKind::kCast || header.kind == FrameKind::kTreeCast;
  const bool is_here = host_number(route.destination) == host_number(id_);
  const bool goes_on = route.destination != 0 && route.destination != id_ && is_here;
  return (is_for_several || goes_on) && hooks_.memory_to_pass_on ? hooks_.memory_to_pass_on(size) : nullptr;
}

void Node::forward(Link& link, MessagePtr passing, bool control) {
  const std::shared_ptr<const Message> message = std::move(passing);  // shared: with links that keep it, not a copy
  if (!control && reductions_->take(message)) return;
  FrameRoute route = message->route();
  if (message->lost_bytes != 0) return forward_lost(link, *message, route);
  ++route.hops;
  std::vector<ByteSpan> parts;
  for (const Part& part : message->parts) parts.emplace_back(part.data, part.size);
  Outgoing outgoing{message->header, message->body, parts};
  outgoing.route = route;
  forward_on(link, outgoing, control, message);
}

// `link`: which it came on. `keeper` holds what it is made of.
void Node::forward_on(Link& link, const Outgoing& outgoing, bool control, const std::shared_ptr<const void>& keeper) {
  const FrameRoute& route = outgoing.route;
  const FrameHeader& header = outgoing.header;
  if (route.hops > kHopsMax) return refuse_onward(link, outgoing, "it is too far away");
  const std::shared_ptr<Link> onward = routes_->find(route.destination);
  Failure why("the process cannot be reached from the one on the way");
  if (onward == nullptr || onward->peer() == link.peer()) {
    if (const FailurePtr dead = routes_->why_unreachable(route.destination)) why = *dead;
    return refuse_onward(link, outgoing, why);
  }
  routes_->note_forwarded(route.origin, route.destination);
  try {
    if (control) {
      if (onward->send_control(outgoing)) return;
    } else if (put(*onward, outgoing, keeper)) {
      if (is_new_work(header.kind) && backlog_to(*onward) > kBacklogMax) {
        forwarding_->hold({route.origin, route.destination}, onward);
      }
      return;
    }
  } catch (const std::bad_alloc&) {
    return refuse_onward(link, outgoing, "there is no memory for it in the process on the way");
  }
  // Its link has ended. What it has died of will be known in a moment, and is what its origin is to hear.
  const UnsentMessage kept{header.sender, {route.destination, header.dest}, UnsentMessage::Passing{header, route}};
  Failure ignored;
  if (header.kind != FrameKind::kCast && routes_->keep_unsent(kept, &ignored)) return;
  if (const FailurePtr dead = routes_->why_unreachable(route.destination)) why = *dead;
  refuse_onward(link, outgoing, why);
}

bool Node::tell_origin(const Forwarding::Pair& pair, FrameKind kind) {
  const std::shared_ptr<Link> back = routes_->find(pair.origin);
  Outgoing notice{FrameHeader{}, {}, {}};
  notice.header.kind = kind;
  notice.header.dest = kWholeNode;
  notice.header.flags = kFlagRouted;
  notice.route = {pair.destination, pair.origin, 1, 0};
  return back != nullptr && back->send_control(notice);
}

// As refuse_routed(), to each of those whom it is for.
void Node::refuse_onward(Link& link, const Outgoing& outgoing, const Failure& why) {
  if (outgoing.header.kind != FrameKind::kCast) return refuse_routed(&link, outgoing.header, outgoing.route, why);
  auto cast = decode_cast(outgoing.body);
  if (!cast) return;
  FrameHeader header = cast->header;
  for (const CastTarget& target : cast->targets) {
    header.dest = target.dest;
    header.rank = target.rank;
    refuse_routed(&link, header, {outgoing.route.origin, target.node, 0, 0}, why);
  }
}

// A frame for several actors has been lost, whom nobody knows any more: whoever has not answered by now never will.
void Node::lost_for_all(const Message& message) {
  auto why = Failure::decode(message.body);
  end_call(message.header.dest, why ? *why : Failure(Failure::Kind::kLost, "a message to several actors was lost"));
}

// A frame for several actors of this host.
void Node::spread(Link& link, MessagePtr spreading) {
  const std::shared_ptr<const Message> message = std::move(spreading);
  auto cast = decode_cast(message->body);
  if (!cast) return log_line("ignored a frame for several actors: " + cast.error().message);
  spread_to(link, message, message->from, {cast->header, cast->body, {}}, cast->targets);
}

// `outgoing` without parts, which are those of `message`.
void Node::spread_to(Link& link, const std::shared_ptr<const Message>& message, NodeId from, Outgoing outgoing,
                     const std::vector<CastTarget>& targets) {
  reductions_->begin(from, outgoing.header, targets);
  std::vector<ByteSpan> parts;
  for (const Part& part : message->parts) parts.emplace_back(part.data, part.size);
  outgoing.parts = parts;
  CastParts shared;
  outgoing.cast = &shared;
  for (const CastTarget& target : targets) {
    outgoing.header.dest = target.dest;
    outgoing.header.rank = target.rank;
    if (target.node == id_) {
      outgoing.header.flags &= ~uint32_t{kFlagRouted};
      dispatch(Message::copy_of(outgoing, from));
      continue;
    }
    outgoing.header.flags |= kFlagRouted;
    outgoing.route = {from, target.node, 1, 0};
    host_number(target.node) == host_number(id_)
        ? forward_on(link, outgoing, false, message)
        : refuse_routed(&link, outgoing.header, outgoing.route, "it is not on the host that this was sent to");
  }
}

// The answer that somebody waits for, or what its sender is to know.
void Node::forward_lost(Link& link, const Message& message, const FrameRoute& route) {
  if (!is_reply(message.header.kind)) return refuse_routed(&link, message.header, route, lost_text(message));
  FrameHeader request;
  request.token = message.header.dest;
  request.rank = message.header.rank;
  reply_failed(request, route.destination, lost_text(message));
}

bool Node::let_go(NodeId gateway, const Failure& why) {
  const auto is_there = [host = host_number(gateway)](NodeId node) { return host_number(node) == host; };
  const std::vector<std::shared_ptr<Link>> links = routes_->let_go(gateway);  // first: what is sent from now on is new
  flow_->forget_nodes(is_there);
  calls_->fail_owed(is_there, why);
  for (const auto& link : links) tree_session_over(*link, why);
  const std::vector<Routes::Unsent> unsent = routes_->take_unsent(gateway);
  for (const Routes::Unsent& message : unsent) tell_unsent(message, why);
  reductions_->let_go(gateway);
  hurry_notices(0);
  bool is_missed = links.empty() || !unsent.empty();
  for (const auto& link : links) {
    is_missed = is_missed || link->opened();
    for (const auto& message : link->close_unfinished()) {
      is_missed = is_missed || message->header.kind != FrameKind::kTreeCast;
      let_go_of(*link, *message, why);
    }
    end_arrivals(*link);
  }
  return is_missed;
}

// It may have arrived, or not. Who waits for an answer has been told by the failure of its call.
void Node::let_go_of(Link& link, const Message& message, const Failure& why) {
  const bool routed = (message.header.flags & kFlagRouted) != 0;
  const FrameRoute route = routed ? message.route() : FrameRoute{id_, link.peer(), 0, 0};
  Outgoing outgoing{message.header, message.body, {}};
  outgoing.route = route;
  if (is_new_work(message.header.kind)) return refuse_onward(link, outgoing, why);
  if (message.header.kind == FrameKind::kTreeCast) return let_go_of_tree(link, message);
  if (message.header.kind != FrameKind::kActorEnded) return;
  // Its owner must hear of it, and may hear it twice.
  const std::shared_ptr<Link> again = routes_->find(route.destination);
  if (again != nullptr) static_cast<void>(put(*again, outgoing, nullptr));
}

// Its origin is told on the way to it; where there is none, since it is held for dead here, by whom the frame came, if it
// came by anybody.
void Node::refuse_routed(Link* link, const FrameHeader& header, const FrameRoute& route, const Failure& why) {
  if (header.kind == FrameKind::kRequest) reductions_->give_up(route.origin, header.token);
  const ActorId dest{route.destination, header.dest};
  const ByteSpan part = as_byte_span(&dest, sizeof dest);
  const std::string record = why.encoded();
  Outgoing answer{FrameHeader{}, as_byte_span(record.data(), record.size()), {}};
  if (header.token != 0) {
    answer.header.kind = FrameKind::kReplyFailed;
    answer.header.dest = header.token;
    answer.header.rank = header.rank;
  } else if ((header.kind == FrameKind::kOneway || header.kind == FrameKind::kCast) && (header.flags & kFlagQuiet) == 0) {
    answer.header.kind = FrameKind::kUndeliverable;
    answer.header.dest = header.sender;
    answer.parts = {&part, 1};
  } else {
    return;
  }
  if (routes_->closing()) return;
  std::string ignored;
  if (send(route.origin, answer, &ignored) || link == nullptr) return;
  const std::shared_ptr<Link> back = routes_->find_direct(link->peer());
  send_on(back ? *back : *link, route.origin, answer, false);
}

// There was no memory here for what it said. Whoever waits for it hears so; it is nobody's death.
void Node::refuse_lost(const Message& message) {
  const FrameHeader& header = message.header;
  const Failure why(lost_text(message));
  log_line_limited("a message was lost", why.text());
  if (is_reply(header.kind) && header.rank == kEveryRank) return end_call(header.dest, why);
  if (is_reply(header.kind)) return calls_->answer(header.dest, header.rank, make_failure(header.dest, header.rank, why));
  // Whose answers they are have them still, and nobody is to wait for them here.
  if (header.kind == FrameKind::kTreeReply) return reductions_->give_up(header.sender, header.dest);
  if (header.kind == FrameKind::kSpawn) return directory_->refuse_actor(header.dest, why);
  refuse(message, why);
}

}  // namespace monarch
