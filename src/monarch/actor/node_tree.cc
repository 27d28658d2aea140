// Casts that go through a tree of hosts (docs/design/035, cast_tree.h).
#include <algorithm>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "monarch/actor/flow.h"
#include "monarch/actor/forwarding.h"
#include "monarch/actor/node.h"
#include "monarch/actor/routes.h"
#include "monarch/actor/trees.h"
#include "monarch/base/log.h"
#include "monarch/wire/failure.h"
#include "monarch/wire/tree_cast.h"

namespace monarch {

namespace {

constexpr uint32_t kFanOutMax = 64;  // whatever a peer says: more is work for the reactor

uint64_t bytes_of(const Outgoing& outgoing) {
  uint64_t bytes = outgoing.body.size();
  for (const ByteSpan& part : outgoing.parts) bytes += part.size();
  return bytes;
}

// What a link sends, for as long as that takes.
struct Encoded {
  std::string body;
  std::shared_ptr<const Message> source;  // shared: whose parts go along, with all links that send them
};

bool send_tree_frame(Link& link, std::string body, std::shared_ptr<const Message> source, NodeId origin,
                     uint64_t number, uint64_t time_left_ns) {
  const auto encoded = std::make_shared<const Encoded>(Encoded{std::move(body), std::move(source)});
  std::vector<ByteSpan> parts;
  for (const Part& part : encoded->source->parts) parts.emplace_back(part.data, part.size);
  Outgoing frame{FrameHeader{}, as_byte_span(encoded->body.data(), encoded->body.size()), parts};
  frame.header.kind = FrameKind::kTreeCast;
  frame.header.dest = origin;
  frame.header.token = number;
  frame.header.rank = kEveryRank;
  frame.header.time_left_ns = time_left_ns;
  return link.send_kept(frame, encoded);
}

}  // namespace

void Node::set_cast_trees(const CastTreeLimits& limits) { trees_->limits = limits; }

// Whether it leads to the gateway of another host.
bool Node::is_elsewhere(const Link& link) const {
  return hooks_.gateway_there && host_number(link.peer()) != host_number(id_);
}

// ---- Sending ----

// All data frames but kTreeCasts: what follows a cast to that host must not overtake it.
bool Node::put(Link& link, const Outgoing& outgoing, const std::shared_ptr<const void>& keeper) {
  const auto send = [&] { return keeper ? link.send_kept(outgoing, keeper) : link.send(outgoing); };
  if (!trees_->any.load(std::memory_order_acquire) || !is_elsewhere(link)) return send();
  std::lock_guard lock(trees_->mutex);
  if (const uint64_t number = trees_->origin.fence(link.peer()); number != 0) {
    Outgoing fence{FrameHeader{}, {}, {}};
    fence.header.kind = FrameKind::kTreeFence;
    fence.header.token = number;
    if (!link.send(fence)) return false;
    trees_->origin.fenced(link.peer(), number);
  }
  if (!send()) return false;
  trees_->origin.sent_behind(link.peer(), bytes_of(outgoing));
  return true;
}

uint64_t Node::backlog_to(const Link& link) const {
  const uint64_t waiting = link.backlog();
  if (!trees_->any.load(std::memory_order_acquire) || !is_elsewhere(link)) return waiting;
  std::lock_guard lock(trees_->mutex);
  return waiting + trees_->origin.backlog(link.peer());
}

// `elsewhere`, by host: takes out those that it has sent to. Who cannot be reached is found out without a tree.
void Node::send_by_tree(const Members& members, std::vector<std::pair<HostNumber, uint32_t>>& elsewhere,
                        const Outgoing& outgoing) {
  size_t count = 0;
  for (size_t i = 0; i < elsewhere.size(); ++i) count += i == 0 || elsewhere[i].first != elsewhere[i - 1].first;
  if (trees_->none.load(std::memory_order_relaxed) || !trees_->limits.wants(count, bytes_of(outgoing))) return;
  try {
    std::vector<TreeHost> hosts;
    std::vector<CastTarget> targets;
    std::vector<std::pair<HostNumber, uint32_t>> others;
    for (auto first = elsewhere.begin(); first != elsewhere.end();) {
      const auto is_other = [&](const auto& each) { return each.first != first->first; };
      const auto is_reached = [&](const auto& each) { return routes_->find(members.ids[each.second].node) != nullptr; };
      const auto end = std::find_if(first, elsewhere.end(), is_other);
      const NodeId gateway = hooks_.gateway_there(members.ids[first->second].node);
      const bool reached = gateway != 0 && routes_->find(gateway) != nullptr && std::all_of(first, end, is_reached);
      if (reached) {
        hosts.push_back({gateway, 0, 0, static_cast<uint32_t>(end - first), 0});
        for (; first != end; ++first) {
          const ActorId& id = members.ids[first->second];
          targets.push_back({id.node, id.index, first->second, 0});
        }
      } else {
        others.insert(others.end(), first, end);
        first = end;
      }
    }
    if (!trees_->limits.wants(hosts.size(), bytes_of(outgoing))) return;
    TreeCast cast{outgoing.header, 0, id_, kFanOutMin, as_byte_span(hosts.data(), hosts.size() * sizeof(TreeHost)),
                  as_byte_span(targets.data(), targets.size() * sizeof(CastTarget)), outgoing.body};
    cast.header.rank = static_cast<uint32_t>(outgoing.reducer);  // as wire/cast.h; each target has its own rank
    const std::string body = encode_tree_cast(cast);
    Outgoing request = outgoing;
    request.header.kind = FrameKind::kTreeCast;
    request.header.dest = 0;
    request.header.rank = kEveryRank;
    request.cast = nullptr;
    request.body = as_byte_span(body.data(), body.size());
    const NodeId own = hooks_.gateway_of(hosts.front().gateway);
    if (own != 0) {
      if (!send(own, request)) return;
    } else {
      std::shared_ptr<const Message> source = Message::copy_of(request, id_);
      auto decoded = decode_tree_cast(source->body);
      begin_tree(nullptr, std::move(source), *decoded);
    }
    elsewhere = std::move(others);
  } catch (const std::bad_alloc&) {
    // As without a tree, which finds out who gets it.
  }
}

// A cast of this host, which came on `link`, or was made here. Throws std::bad_alloc: nothing has been sent.
void Node::begin_tree(Link* link, std::shared_ptr<const Message> request, const TreeCast& cast) {
  Tree tree;
  tree.cast = cast;
  tree.cast.origin = id_;
  tree.cast.hosts = {};
  tree.bytes = request->total_bytes();
  tree.source = std::move(request);
  tree.fan_out = trees_->limits.fan_out(tree.bytes);
  if (cast.header.time_left_ns != 0) {
    const uint64_t left_ns = std::min<uint64_t>(cast.header.time_left_ns, kNoDeadline / 2);
    tree.deadline_ns = timers_.now_ns() + static_cast<int64_t>(left_ns);
  }
  std::vector<TreeRange> refused;
  std::vector<std::shared_ptr<Link>> full;
  CastOrigin::Sends sends;
  {
    std::lock_guard lock(trees_->mutex);
    if (trees_->stopped) return;
    uint64_t first_target = 0;
    for (uint32_t i = 0; i < cast.host_count(); ++i) {
      TreeHost host = cast.host(i);
      const std::shared_ptr<Link> to = routes_->find(host.gateway);
      if (to == nullptr || to->peer() != host.gateway || trees_->let_go.contains(host.gateway)) {
        refused.push_back({i, 1});
      } else {
        host.after = to->data_frames_sent();
        tree.hosts.push_back({host, first_target});
        if (cast.sender != id_) full.push_back(to);
      }
      first_target += host.targets;
    }
    trees_->any.store(true, std::memory_order_release);
    trees_->origin.send(std::move(tree), timers_.now_ns(), sends);
    arm_trees();
  }
  send_trees(std::move(sends));
  for (const std::shared_ptr<Link>& to : full) {
    routes_->note_forwarded(cast.sender, to->peer());
    if (backlog_to(*to) > kBacklogMax) forwarding_->hold({cast.sender, to->peer()}, to);
  }
  for (const TreeRange& host : refused) {
    const FailurePtr dead = why_down(cast.host(host.first).gateway);
    const Failure unreached(Failure::Kind::kUnreachable, "the host of the process cannot be reached");
    refuse_targets(link, part_of(cast, host), dead ? *dead : unreached);
  }
}

void Node::send_trees(CastOrigin::Sends sends) {
  for (size_t i = 0; i < sends.size(); ++i) {
    const CastOrigin::Send send = sends[i];
    const Tree& tree = *send.tree;
    const TreeHost& first = tree.hosts[send.hosts.first].at;
    const std::shared_ptr<Link> link = routes_->find(first.gateway);
    const uint64_t left_ns = time_left_ns(tree.deadline_ns);
    try {
      if (link != nullptr &&
          send_tree_frame(*link, encode_tree(tree, send.hosts), tree.source, id_, first.number, left_ns)) {
        continue;
      }
    } catch (const std::bad_alloc&) {
      std::lock_guard lock(trees_->mutex);
      trees_->unsent.push_back(send);
      continue;
    }
    if (!is_down(first.gateway)) continue;  // node_down() will come
    std::lock_guard lock(trees_->mutex);
    trees_->origin.down(first.gateway, timers_.now_ns(), sends);
  }
}

// mutex of trees_ held.
void Node::arm_trees() {
  trees_->any.store(!trees_->origin.idle(), std::memory_order_release);
  if (trees_->origin.idle() || trees_->stopped || trees_->timer != 0) return;
  trees_->timer = timers_.after(Trees::kLookNs, [this] { look_at_trees(); });
}

void Node::look_at_trees() {
  CastOrigin::Sends sends;
  {
    std::lock_guard lock(trees_->mutex);
    trees_->timer = 0;
    if (trees_->stopped) return;
    sends = std::exchange(trees_->unsent, {});
    trees_->origin.look(timers_.now_ns(), sends);
    arm_trees();
  }
  send_trees(std::move(sends));
}

void Node::tree_host_down(NodeId node) {
  trees_->forget(node);
  CastOrigin::Sends sends;
  {
    std::lock_guard lock(trees_->mutex);
    trees_->origin.down(node, timers_.now_ns(), sends);
    arm_trees();
  }
  send_trees(std::move(sends));
}

// The hosts do not reach each other, or did not for a while (docs/design/034).
void Node::tree_host_let_go(NodeId gateway) {
  CastOrigin::Sends sends;
  {
    std::lock_guard lock(trees_->mutex);
    trees_->let_go.insert(gateway);
    trees_->none.store(true, std::memory_order_relaxed);
    trees_->origin.down(gateway, timers_.now_ns(), sends);
    arm_trees();
  }
  send_trees(std::move(sends));
}

void Node::on_tree_control(Link& link, const FrameHeader& header) {
  CastOrigin::Sends sends;
  std::optional<CastOrigin::Send> lost;
  {
    const int64_t now_ns = timers_.now_ns();
    std::lock_guard lock(trees_->mutex);
    if (header.kind == FrameKind::kTreeTaken) {
      if (!trees_->origin.taken(link.peer(), header.token, now_ns)) {
        log_malformed("a host takes casts that were not sent to it");
      }
    } else if (header.method == 0) {
      trees_->origin.missed(header.dest, header.token, now_ns, sends);
    } else {
      lost = trees_->origin.lost(link.peer(), header.token, now_ns, sends);
    }
    arm_trees();
  }
  send_trees(std::move(sends));
  if (!lost) return;
  const Tree::Host& host = lost->tree->hosts[lost->hosts.first];
  TreeCast part = lost->tree->cast;
  part.targets = part.targets.subspan(host.first_target * sizeof(CastTarget), host.at.targets * sizeof(CastTarget));
  refuse_targets(nullptr, part, "there was no room for a message of " + std::to_string(lost->tree->bytes) +
                                    " bytes where it arrived (memory or file descriptors)");
}

void Node::refuse_targets(Link* link, const TreeCast& cast, const Failure& why) {
  FrameHeader header = cast.header;
  for (size_t i = 0; i < cast.target_count(); ++i) {
    const CastTarget target = cast.target(i);
    header.dest = target.dest;
    header.rank = target.rank;
    refuse_routed(link, header, {cast.sender, target.node, 0, 0}, why);
  }
}

// What it was to bring to the host that has been let go; the others are sent it by its origin.
void Node::let_go_of_tree(Link& link, const Message& message, const Failure& why) {
  auto cast = decode_tree_cast(message.body);
  if (!cast) return;
  if (cast->origin == id_) return refuse_targets(&link, part_of(*cast, {0, 1}), why);
  tell_of_tree(cast->origin, FrameKind::kTreeMissed, link.peer(), message.header.token, 0);
}

// ---- What arrives ----

// A data frame of another gateway.
void Node::from_elsewhere(Link& link, MessagePtr message) {
  const NodeId peer = link.peer();
  const bool is_tree = message->header.kind == FrameKind::kTreeCast && (message->header.flags & kFlagRouted) == 0;
  const auto from = trees_->from_of(peer);
  {
    std::lock_guard lock(from->mutex);
    const Link* const before = std::exchange(from->link, &link);
    if (before != nullptr && before != &link) {  // another session: what the one before holds back waits in vain
      from->arrivals.begin_anew();
      drain(link, peer, *from);
    }
    from->arrivals.direct(is_tree ? nullptr : std::exchange(message, nullptr));
    drain(link, peer, *from);
  }
  if (is_tree) on_tree_cast(link, std::move(message));
}

// The lock of `from` held. Delivers what of `origin` is to be delivered now. `link`: on which the last of it came.
void Node::drain(Link& link, NodeId origin, TreesFrom& from) {
  while (auto arrival = from.arrivals.next()) {
    if (auto* message = std::get_if<MessagePtr>(&*arrival)) {
      if (link.peer() == origin) {
        take(link, std::move(*message));
      } else if (const std::shared_ptr<Link> own = routes_->find(origin)) {
        take(*own, std::move(*message));
      }  // else it is dead
    } else {
      spread_tree(link, std::get<CastArrivals::Cast>(*arrival), origin);
    }
  }
  if (from.arrivals.taken() == from.told) return;
  from.told = from.arrivals.taken();
  tell_of_tree(origin, FrameKind::kTreeTaken, 0, from.told, 0);
}

void Node::tell_of_tree(NodeId origin, FrameKind kind, NodeId gateway, uint64_t number, uint32_t why) {
  Outgoing notice{FrameHeader{}, {}, {}};
  notice.header.kind = kind;
  notice.header.dest = gateway;
  notice.header.token = number;
  notice.header.method = why;
  const std::shared_ptr<Link> back = routes_->find(origin);
  if (back != nullptr && back->peer() == origin) static_cast<void>(back->send_control(notice));  // else it is dead
}

void Node::on_tree_cast(Link& link, MessagePtr arrived) {
  const std::shared_ptr<const Message> message = std::move(arrived);
  const FrameHeader& header = message->header;
  if (message->lost_bytes != 0) {
    if (is_down(header.dest) || hooks_.gateway_there(header.dest) != header.dest) return;
    const auto from = trees_->from_of(header.dest);
    std::lock_guard lock(from->mutex);
    if (from->arrivals.lost(header.token)) tell_of_tree(header.dest, FrameKind::kTreeMissed, id_, header.token, 1);
    return drain(link, header.dest, *from);
  }
  auto cast = decode_tree_cast(message->body);
  if (!cast) return log_malformed(cast.error().message);
  if (!is_elsewhere(link)) {
    const bool is_own = cast->origin == 0 && cast->sender == message->from;
    if (!is_own) return log_malformed("a cast in the name of another process");
    return begin_tree(&link, message, *cast);
  }
  const TreeHost own = cast->host(0);
  const NodeId origin = cast->origin;
  if (own.gateway != id_ || origin == 0 || origin == id_ || hooks_.gateway_there(origin) != origin ||
      (cast->sender != origin && hooks_.gateway_there(cast->sender) != origin)) {
    return log_malformed("a cast that does not belong here");
  }
  if (is_down(origin)) return;
  pass_on(*cast, message);
  CastArrivals::Cast here{own.after, message, part_of(*cast, {0, 1}), 0};
  if (header.time_left_ns != 0) {
    const uint64_t left_ns = std::min<uint64_t>(header.time_left_ns, kNoDeadline / 2);
    here.deadline_ns = timers_.now_ns() + static_cast<int64_t>(left_ns);
  }
  const auto from = trees_->from_of(origin);
  std::lock_guard lock(from->mutex);
  from->arrivals.cast(own.number, std::move(here));
  drain(link, origin, *from);
}

void Node::pass_on(const TreeCast& cast, const std::shared_ptr<const Message>& message) {
  const auto rest = static_cast<uint32_t>(cast.host_count() - 1);
  for (TreeRange group : split_tree({1, rest}, std::min(cast.fan_out, kFanOutMax))) {
    for (bool sent = false; !sent && group.count > 0; ++group.first, --group.count) {
      const TreeHost next = cast.host(group.first);
      try {
        const std::shared_ptr<Link> onward = routes_->find(next.gateway);
        sent = onward != nullptr && onward->peer() == next.gateway &&
               send_tree_frame(*onward, encode_tree_cast(part_of(cast, group)), message, cast.origin, next.number,
                               message->header.time_left_ns);
      } catch (const std::bad_alloc&) {
      }
      if (!sent) tell_of_tree(cast.origin, FrameKind::kTreeMissed, next.gateway, next.number, 0);
    }
  }
}

void Node::spread_tree(Link& link, const CastArrivals::Cast& arrived, NodeId origin) {
  if (arrived.message == nullptr) return;  // lost
  const TreeCast& cast = arrived.cast;
  if (is_down(cast.sender)) return;
  if (cast.sender != origin && !routes_->hear_through(cast.sender, origin)) {
    return refuse_targets(&link, cast, "the process on the way may not speak for the sender, which has another way");
  }
  std::vector<CastTarget> targets;
  for (size_t i = 0; i < cast.target_count(); ++i) {
    const CastTarget target = cast.target(i);
    if (target.node == 0 || target.reserved != 0) return log_malformed("a cast to nobody");
    targets.push_back(target);
  }
  Outgoing outgoing{cast.header, cast.body, {}};
  outgoing.header.time_left_ns = time_left_ns(arrived.deadline_ns);
  spread_to(link, arrived.message, cast.sender, outgoing, targets);
}

}  // namespace monarch
