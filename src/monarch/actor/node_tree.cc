// Casts that go through a tree of hosts (docs/design/035, cast_tree.h).
#include <algorithm>
#include <charconv>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "monarch/actor/flow.h"
#include "monarch/actor/forwarding.h"
#include "monarch/actor/node.h"
#include "monarch/actor/reductions.h"
#include "monarch/actor/routes.h"
#include "monarch/actor/trees.h"
#include "monarch/base/log.h"
#include "monarch/wire/cast.h"
#include "monarch/wire/failure.h"
#include "monarch/wire/tree_cast.h"

namespace monarch {

namespace {

constexpr uint32_t kFanOutMax = 64;  // whatever a peer says: more is work for the reactor
constexpr uint32_t kMissed = 0, kMissedNoMemory = 1, kMissedWithRest = 2;  // `method` of a kTreeMissed

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

std::vector<ByteSpan> parts_of(const Message& message) {
  std::vector<ByteSpan> parts;
  for (const Part& part : message.parts) parts.emplace_back(part.data, part.size);
  return parts;
}

// As group() makes it.
bool each_host_once(const TreeCast& cast) {
  for (size_t i = 1; i < cast.host_count(); ++i) {
    if (host_number(cast.host(i - 1).gateway) >= host_number(cast.host(i).gateway)) return false;
  }
  return true;
}

// To that host, which passes the rest on.
bool send_tree_frame(Link& link, std::string body, std::shared_ptr<const Message> source, NodeId origin,
                     const TreeHost& host, uint64_t time_left_ns) {
  const auto encoded = std::make_shared<const Encoded>(Encoded{std::move(body), std::move(source)});
  const std::vector<ByteSpan> parts = parts_of(*encoded->source);
  Outgoing frame{FrameHeader{}, as_byte_span(encoded->body.data(), encoded->body.size()), parts};
  frame.header.kind = FrameKind::kTreeCast;
  frame.header.dest = origin;
  frame.header.token = host.number;
  frame.header.sender = host.session;
  frame.header.rank = kEveryRank;
  frame.header.time_left_ns = time_left_ns;
  return link.send_kept(frame, encoded);
}

}  // namespace

std::optional<CastTreeLimits> CastTreeLimits::from(const char* text) {
  CastTreeLimits limits;
  if (text == nullptr) return limits;
  uint32_t hosts = 0;
  const char* const end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, hosts);
  if (rest != end || error != std::errc()) return std::nullopt;
  limits.large_hosts = limits.small_hosts = limits.answer_hosts = hosts == 0 ? UINT32_MAX : hosts;
  return limits;
}

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
  if (!keeper && !outgoing.parts.empty()) {  // copied here, not while all others wait
    const std::shared_ptr<const Message> copy = Message::copy_of(outgoing, id_);
    const std::vector<ByteSpan> parts = parts_of(*copy);
    Outgoing kept = outgoing;
    kept.body = copy->body;
    kept.parts = parts;
    return put(link, kept, copy);
  }
  std::lock_guard lock(trees_->mutex);
  if (const uint64_t number = trees_->origin.fence(link.peer(), link.session()); number != 0) {
    Outgoing fence{FrameHeader{}, {}, {}};
    fence.header.kind = FrameKind::kTreeFence;
    fence.header.token = number;
    if (!link.send(fence)) return false;
    trees_->origin.fenced(link.peer(), number);
  }
  if (!send()) return false;
  trees_->origin.sent_behind(link.peer(), link.session(), bytes_of(outgoing));
  return true;
}

uint64_t Node::backlog_to(const Link& link) const {
  const uint64_t waiting = link.backlog();
  if (!trees_->any.load(std::memory_order_acquire) || !is_elsewhere(link)) return waiting;
  std::lock_guard lock(trees_->mutex);
  return waiting + trees_->origin.backlog(link.peer());
}

// What is kept of a cast of this process while it is under way.
struct KeptCast {
  MessagePtr message;
  std::shared_ptr<const MembersByHost> to;  // shared: with all casts to these
};

// `elsewhere`: host by host. Those of hosts all of whose members are known to be reached; `others` has the others.
std::shared_ptr<const MembersByHost> Node::group(const Members& members, const RanksByHost& elsewhere,
                                                 RanksByHost& others) {
  const auto groups = std::make_shared<MembersByHost>();
  const uint64_t changes = routes_->changes();
  groups->targets.reserve(elsewhere.size());
  for (auto first = elsewhere.begin(); first != elsewhere.end();) {
    const auto is_other = [host = first->first](const auto& each) { return each.first != host; };
    const auto is_reached = [&](const auto& each) { return routes_->find(members.ids[each.second].node) != nullptr; };
    const auto end = std::find_if(first, elsewhere.end(), is_other);
    const NodeId gateway = hooks_.gateway_there(members.ids[first->second].node);
    if (gateway != 0 && routes_->find(gateway) != nullptr && std::all_of(first, end, is_reached)) {
      groups->hosts.push_back({gateway, 0, 0, 0, static_cast<uint32_t>(end - first), 0});
      for (; first != end; ++first) {
        const ActorId& id = members.ids[first->second];
        groups->targets.push_back({id.node, id.index, first->second, 0});
      }
    } else {
      others.insert(others.end(), first, end);
      first = end;
    }
  }
  if (!others.empty()) return groups;
  for (uint32_t rank = 0; rank < members.ids.size(); ++rank) {
    if (host_number(members.ids[rank].node) == host_number(id_)) groups->here.push_back(rank);
  }
  groups->hosts.shrink_to_fit();
  members.by_host.set(changes, groups);
  return groups;
}

// `elsewhere`, by host: takes out those that it has sent to. Who cannot be reached is found out without a tree.
void Node::send_by_tree(const Members& members, RanksByHost& elsewhere, const Outgoing& outgoing) {
  size_t count = 0;
  for (size_t i = 0; i < elsewhere.size(); ++i) count += i == 0 || elsewhere[i].first != elsewhere[i - 1].first;
  if (!trees_->limits.wants(count, bytes_of(outgoing))) return;
  try {
    RanksByHost others;
    const auto groups = group(members, elsewhere, others);
    if (!trees_->limits.wants(groups->hosts.size(), bytes_of(outgoing))) return;
    others.reserve(elsewhere.size());  // nothing fails once it is sent
    if (send_by_tree(groups, outgoing, others)) elsewhere.swap(others);
  } catch (const std::bad_alloc&) {
    // As without a tree, which finds out who gets it.
  }
}

// `left` has room for all of them; those that it has not been sent to are put there, host by host. False: nothing has been
// sent. Throws std::bad_alloc: the same.
bool Node::send_by_tree(const std::shared_ptr<const MembersByHost>& to, const Outgoing& outgoing, RanksByHost& left) {
  TreeCast cast{outgoing.header, 0, id_, kFanOutMin, {}, {}, outgoing.body};
  cast.hosts = as_byte_span(to->hosts.data(), to->hosts.size() * sizeof(TreeHost));
  cast.targets = as_byte_span(to->targets.data(), to->targets.size() * sizeof(CastTarget));
  cast.header.rank = static_cast<uint32_t>(outgoing.reducer);  // as wire/cast.h; each target has its own rank
  const bool is_hasty = outgoing.deadline_ns != 0 && outgoing.deadline_ns - timers_.now_ns() < Trees::kAnswersInTimeNs;
  if (outgoing.header.kind == FrameKind::kRequest && outgoing.reducer != Reducer::kNone && !is_hasty &&
      to->hosts.size() >= trees_->limits.answer_hosts) {
    std::vector<NodeId> gateways;
    for (const TreeHost& host : to->hosts) gateways.push_back(host.gateway);
    note_tree_call(outgoing.header.token, std::move(gateways), outgoing.deadline_ns);
    cast.header.rank |= kAnswersByTree;
  }
  if (const NodeId own = hooks_.gateway_of(to->hosts.front().gateway); own != 0) {
    const std::string body = encode_tree_cast(cast);
    Outgoing request = outgoing;
    request.header.kind = FrameKind::kTreeCast;
    request.header.dest = 0;
    request.header.rank = kEveryRank;
    request.cast = nullptr;
    request.body = as_byte_span(body.data(), body.size());
    return send(own, request);
  }
  const auto kept = std::make_shared<KeptCast>();  // shared: with the trees of this cast, and links that send it
  kept->message = Message::copy_of(outgoing, id_);
  kept->to = to;
  cast.body = kept->message->body;
  const std::shared_ptr<const Message> source(kept, kept->message.get());
  uint32_t host = 0;
  const CastTarget* target = to->targets.data();
  for (const uint32_t missed : begin_tree(source, cast, nullptr)) {
    for (; host < missed; ++host) target += to->hosts[host].targets;
    const HostNumber number = host_number(to->hosts[missed].gateway);
    for (uint32_t i = 0; i < to->hosts[missed].targets; ++i) left.emplace_back(number, target[i].rank);
  }
  return true;
}

// To the hosts of all of them as the last time, if they are reached as they were then. Of those `left` has who has not been
// sent it, host by host. Null: nothing has been sent.
std::shared_ptr<const MembersByHost> Node::send_as_before(const Members& members, const Outgoing& outgoing,
                                                          RanksByHost& left) {
  const auto known = members.by_host.get(routes_->changes());
  if (!known || !trees_->limits.wants((*known)->hosts.size(), bytes_of(outgoing))) return nullptr;
  try {
    left.reserve((*known)->targets.size());
    return send_by_tree(*known, outgoing, left) ? *known : nullptr;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// A cast of this host, which refers to what `request` keeps. Returns which of its hosts are not sent it, since there is no
// session that they are known to have; `*onward`, where asked for, are the links to the others. Throws std::bad_alloc:
// nothing has been sent.
std::vector<uint32_t> Node::begin_tree(std::shared_ptr<const Message> request, const TreeCast& cast,
                                       std::vector<std::shared_ptr<Link>>* onward) {
  Tree tree;
  tree.cast = cast;
  tree.cast.origin = id_;
  tree.cast.hosts = {};
  tree.bytes = cast.body.size();
  for (const Part& part : request->parts) tree.bytes += part.size;
  tree.source = std::move(request);
  tree.fan_out = trees_->limits.fan_out(tree.bytes);
  if (cast.header.time_left_ns != 0) {
    const uint64_t left_ns = std::min<uint64_t>(cast.header.time_left_ns, kNoDeadline / 2);
    tree.deadline_ns = timers_.now_ns() + static_cast<int64_t>(left_ns);
  }
  std::vector<NodeId> gateways;
  for (uint32_t i = 0; i < cast.host_count(); ++i) gateways.push_back(cast.host(i).gateway);
  tree.hosts.reserve(gateways.size());
  std::vector<uint32_t> left;
  CastOrigin::Sends sends;
  {
    std::lock_guard lock(trees_->mutex);
    const std::vector<std::shared_ptr<Link>> links = routes_->find_known(gateways);
    uint64_t first_target = 0;
    for (uint32_t i = 0; i < cast.host_count(); ++i) {
      TreeHost host = cast.host(i);
      const std::shared_ptr<Link>& to = links[i];
      if (to != nullptr && to->opened() && !to->closed() && trees_->origin.takes(host.gateway, to->session())) {
        host.session = to->session();
        host.after = to->data_frames_sent();
        tree.hosts.push_back({host, first_target});
        if (onward != nullptr) onward->push_back(to);
      } else {
        left.push_back(i);
      }
      first_target += host.targets;
    }
    if (tree.hosts.empty()) return left;
    arm_trees();
    trees_->origin.send(std::move(tree), timers_.now_ns(), sends);
    trees_->note_idle();
  }
  send_trees(std::move(sends));
  return left;
}

// For the process behind that link, which has sent it.
void Node::begin_tree_for(Link& link, const std::shared_ptr<const Message>& request, const TreeCast& cast) {
  std::vector<std::shared_ptr<Link>> onward;
  std::vector<uint32_t> left;
  reductions_->pass_on_of(cast.sender);
  try {
    left = begin_tree(request, cast, &onward);
  } catch (const std::bad_alloc&) {
    return refuse_targets(&link, cast, "there is no memory for it in the process on the way");
  }
  for (const std::shared_ptr<Link>& to : onward) {
    routes_->note_forwarded(cast.sender, to->peer());
    if (backlog_to(*to) > kBacklogMax) forwarding_->hold({cast.sender, to->peer()}, to);
  }
  for (const uint32_t host : left) send_star(link, request, part_of(cast, {host, 1}));
}

// To one host, as if it had come by itself.
void Node::send_star(Link& link, const std::shared_ptr<const Message>& request, const TreeCast& host) {
  std::shared_ptr<const Encoded> encoded;
  try {
    std::vector<CastTarget> targets;
    for (size_t i = 0; i < host.target_count(); ++i) targets.push_back(host.target(i));
    encoded = std::make_shared<const Encoded>(Encoded{encode_cast(host.header, targets, host.body), request});
  } catch (const std::bad_alloc&) {
    return refuse_targets(&link, host, "there is no memory for it in the process on the way");
  }
  const std::vector<ByteSpan> parts = parts_of(*request);
  Outgoing frame{request->header, as_byte_span(encoded->body.data(), encoded->body.size()), parts};
  frame.header.kind = FrameKind::kCast;
  frame.header.flags |= kFlagRouted;
  frame.route = {host.sender, host.host(0).gateway, 1, 0};
  forward_on(link, frame, false, encoded);
}

void Node::send_trees(CastOrigin::Sends sends) {
  for (const CastOrigin::Send& send : sends) {
    const Tree& tree = *send.tree;
    const TreeHost& first = tree.hosts[send.hosts.first].at;
    try {
      const std::shared_ptr<Link> link = routes_->find(first.gateway);
      if (link == nullptr) continue;  // what has become of its session is being told
      static_cast<void>(send_tree_frame(*link, encode_tree(tree, send.hosts), tree.source, id_, first,
                                        time_left_ns(tree.deadline_ns)));
    } catch (const std::bad_alloc&) {
      std::lock_guard lock(trees_->mutex);
      trees_->origin.not_sent(send);
    }
  }
}

// mutex of trees_ held.
void Node::arm_trees() {
  if (trees_->stopped || trees_->timer != 0) return;
  trees_->timer = timers_.after(Trees::kLookNs, [this] { look_at_trees(); });
}

void Node::look_at_trees() {
  CastOrigin::Sends sends;
  {
    std::lock_guard lock(trees_->mutex);
    trees_->timer = 0;
    trees_->origin.look(timers_.now_ns(), sends);
    trees_->note_idle();
    if (!trees_->origin.idle()) arm_trees();
  }
  send_trees(std::move(sends));
}

void Node::tree_host_down(NodeId node) {
  trees_->forget(node);
  CastOrigin::Sends sends;
  {
    std::lock_guard lock(trees_->mutex);
    trees_->origin.down(node, 0, timers_.now_ns(), sends);
    trees_->note_idle();
  }
  send_trees(std::move(sends));
}

// Nothing more is sent on it; its peer may be well (docs/design/034).
void Node::tree_session_over(const Link& link, const Failure& why) {
  if (link.session() == 0) return;
  CastOrigin::Sends sends, unfinished;
  {
    std::lock_guard lock(trees_->mutex);
    unfinished = trees_->origin.down(link.peer(), link.session(), timers_.now_ns(), sends);
    trees_->note_idle();
  }
  send_trees(std::move(sends));
  for (const CastOrigin::Send& part : unfinished) refuse_part(part, why);
}

void Node::on_tree_control(Link& link, const FrameHeader& header) {
  CastOrigin::Sends sends;
  std::optional<CastOrigin::Send> lost;
  {
    const int64_t now_ns = timers_.now_ns();
    std::lock_guard lock(trees_->mutex);
    if (header.kind == FrameKind::kTreeTaken) {
      if (!trees_->origin.taken(link.peer(), header.sender, header.token, now_ns)) {
        log_malformed("a host takes casts that were not sent to it");
      }
    } else if (header.method != kMissedNoMemory) {
      const bool with_rest = header.method == kMissedWithRest;
      trees_->origin.missed(header.dest, header.sender, header.token, with_rest, now_ns, sends);
    } else {
      lost = trees_->origin.lost(link.peer(), header.sender, header.token, now_ns, sends);
    }
    trees_->note_idle();
  }
  send_trees(std::move(sends));
  if (!lost) return;
  refuse_part(*lost, "there was no room for a message of " + std::to_string(lost->tree->bytes) +
                         " bytes where it arrived (memory or file descriptors)");
}

// To one host.
void Node::refuse_part(const CastOrigin::Send& part, const Failure& why) {
  const Tree::Host& host = part.tree->hosts[part.hosts.first];
  TreeCast cast = part.tree->cast;
  cast.targets = cast.targets.subspan(host.first_target * sizeof(CastTarget), host.at.targets * sizeof(CastTarget));
  refuse_targets(nullptr, cast, why);
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

// Its origin sends it anew, or says that it did not come.
void Node::let_go_of_tree(Link& link, const Message& message) {
  const FrameHeader& header = message.header;
  if (header.dest == id_) return;  // tree_session_over() does
  tell_of_tree(header.dest, FrameKind::kTreeMissed, link.peer(), header.sender, header.token, kMissedWithRest);
}

// ---- What arrives ----

// A data frame of another gateway.
void Node::from_elsewhere(Link& link, MessagePtr message) {
  const bool is_tree = message->header.kind == FrameKind::kTreeCast && (message->header.flags & kFlagRouted) == 0;
  auto from = trees_->from_of(link.peer(), link.session());
  if (from == nullptr && link.session() != 0) {
    static_cast<void>(routes_->find_direct(link.peer()));  // who dials has their lock until it listens (dial())
    from = trees_->from_of(link.peer(), link.session());
  }
  if (from == nullptr) return is_tree ? on_tree_cast(link, std::move(message)) : take(link, std::move(message));
  {
    std::lock_guard lock(from->mutex);
    from->arrivals.direct(is_tree ? nullptr : std::exchange(message, nullptr));
    drain(*from);
  }
  if (is_tree) on_tree_cast(link, std::move(message));
}

// The session is over: what it holds back waits in vain, and what casts of it are to come are refused by their origin.
void Node::end_arrivals(Link& link) {
  const auto from = trees_->from_of(link.peer(), link.session());
  if (from == nullptr) return;
  trees_->forget(link.peer(), link.session());
  MessageQueue held;
  std::lock_guard lock(from->mutex);
  from->over = true;
  from->arrivals.visit_early([this](const TreeCast& cast) { reductions_->give_up(cast.sender, cast.header.token); });
  from->arrivals.end(held);
  while (MessagePtr message = held.pop()) take(link, std::move(message));
}

// The lock of `from` held. Delivers what is to be delivered now.
void Node::drain(TreesFrom& from) {
  const std::shared_ptr<Link> link = from.link.lock();
  if (link == nullptr || from.over) return;
  while (auto arrival = from.arrivals.next()) {
    if (auto* message = std::get_if<MessagePtr>(&*arrival)) {
      take(*link, std::move(*message));
    } else {
      spread_tree(*link, std::get<CastArrivals::Cast>(*arrival));
    }
  }
  const uint64_t taken = from.arrivals.taken();
  if (taken == from.told) return;
  tell_of_tree(link->peer(), FrameKind::kTreeTaken, 0, from.session, taken, 0);
  from.told = taken;
}

void Node::tell_of_tree(NodeId origin, FrameKind kind, NodeId gateway, uint64_t session, uint64_t number, uint32_t why) {
  Outgoing notice{FrameHeader{}, {}, {}};
  notice.header.kind = kind;
  notice.header.dest = gateway;
  notice.header.sender = session;
  notice.header.token = number;
  notice.header.method = why;
  const std::shared_ptr<Link> back = routes_->find(origin);
  if (back != nullptr && back->peer() == origin) static_cast<void>(back->send_control(notice));  // else it is dead
}

void Node::on_tree_cast(Link& link, MessagePtr arrived) {
  const std::shared_ptr<const Message> message = std::move(arrived);
  const FrameHeader& header = message->header;
  if (message->lost_bytes != 0) {
    const auto from = trees_->from_of(header.dest, header.sender);
    if (from == nullptr) return;  // it is over, and its origin knows or will
    std::lock_guard lock(from->mutex);
    if (from->arrivals.lost(header.token)) {
      tell_of_tree(header.dest, FrameKind::kTreeMissed, id_, header.sender, header.token, kMissedNoMemory);
    }
    return drain(*from);
  }
  auto cast = decode_tree_cast(message->body);
  if (!cast) return log_malformed(cast.error().message);
  if (!is_elsewhere(link)) {
    const bool is_own = cast->origin == 0 && cast->sender == message->from;
    if (!is_own) return log_malformed("a cast in the name of another process");
    if (!each_host_once(*cast)) return log_malformed("a cast that names a host twice");
    return begin_tree_for(link, message, *cast);
  }
  const TreeHost own = cast->host(0);
  const NodeId origin = cast->origin;
  if (own.gateway != id_ || origin == 0 || origin == id_ || hooks_.gateway_there(origin) != origin ||
      (cast->sender != origin && hooks_.gateway_there(cast->sender) != origin)) {
    return log_malformed("a cast that does not belong here");
  }
  if (is_down(origin)) return;
  const auto from = trees_->from_of(origin, own.session);
  if (from != nullptr && (cast->header.rank & kAnswersByTree) != 0 && !is_down(cast->sender)) {
    bool is_new;
    {
      std::lock_guard lock(from->mutex);
      is_new = !from->arrivals.has_been_here(own.number);
    }
    if (is_new) await_branches(*cast, link.peer() == origin ? 0 : link.peer());
  }
  if (!pass_on(*cast, message)) reductions_->give_up(cast->sender, cast->header.token);
  if (from == nullptr) return;  // as above
  CastArrivals::Cast here{own.after, message, part_of(*cast, {0, 1}), 0};
  if (header.time_left_ns != 0) {
    const uint64_t left_ns = std::min<uint64_t>(header.time_left_ns, kNoDeadline / 2);
    here.deadline_ns = timers_.now_ns() + static_cast<int64_t>(left_ns);
  }
  std::lock_guard lock(from->mutex);
  from->arrivals.cast(own.number, std::move(here));
  drain(*from);
}

// Before it is passed on: what those answer comes here. Where there is no memory for that, it passes through.
void Node::await_branches(const TreeCast& cast, NodeId parent) try {
  const auto rest = static_cast<uint32_t>(cast.host_count() - 1);
  std::vector<CastTarget> targets;
  for (size_t i = 0; i < cast.host(0).targets; ++i) targets.push_back(cast.target(i));
  std::vector<BranchAnswers> branches;
  for (const TreeRange& group : split_tree({1, rest}, std::min(cast.fan_out, kFanOutMax))) {
    BranchAnswers& branch = branches.emplace_back(BranchAnswers{cast.host(group.first).gateway});
    for (uint32_t i = 0; i < group.count; ++i) branch.ranks += cast.host(group.first + i).targets;
  }
  reductions_->begin(cast.sender, cast.header, targets, parent, std::move(branches));
} catch (const std::bad_alloc&) {
}

// False: some of those that it was to go to first have not been sent it.
bool Node::pass_on(const TreeCast& cast, const std::shared_ptr<const Message>& message) {
  bool all = true;
  const auto rest = static_cast<uint32_t>(cast.host_count() - 1);
  for (TreeRange group : split_tree({1, rest}, std::min(cast.fan_out, kFanOutMax))) {
    for (bool sent = false; !sent && group.count > 0; ++group.first, --group.count) {
      const TreeHost next = cast.host(group.first);
      try {
        const std::shared_ptr<Link> onward = routes_->find(next.gateway);
        sent = onward != nullptr && onward->peer() == next.gateway &&
               send_tree_frame(*onward, encode_tree_cast(part_of(cast, group)), message, cast.origin, next,
                               message->header.time_left_ns);
      } catch (const std::bad_alloc&) {
      }
      if (!sent) tell_of_tree(cast.origin, FrameKind::kTreeMissed, next.gateway, next.session, next.number, kMissed);
      all = all && sent;
    }
  }
  return all;
}

// `link`: to its origin.
void Node::spread_tree(Link& link, const CastArrivals::Cast& arrived) {
  if (arrived.message == nullptr) return;  // lost
  const TreeCast& cast = arrived.cast;
  if (is_down(cast.sender)) return;
  if (cast.sender != link.peer() && !routes_->hear_through(cast.sender, link.peer())) {
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
