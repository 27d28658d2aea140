#include "monarch/actor/node.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "monarch/actor/calls.h"
#include "monarch/actor/directory.h"
#include "monarch/actor/flow.h"
#include "monarch/actor/forwarding.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/reductions.h"
#include "monarch/actor/routes.h"
#include "monarch/actor/trees.h"
#include "monarch/actor/unobserved_failures.h"
#include "monarch/base/host_name.h"
#include "monarch/base/log.h"
#include "monarch/loop/driver.h"
#include "monarch/wire/cast.h"
#include "monarch/wire/cast_parts.h"
#include "monarch/wire/failure.h"
#include "monarch/wire/replies.h"

namespace monarch {

namespace {
constexpr char kEnding[] = "this process is ending";

// Whose sender is to be told that it finds nobody.
bool is_oneway(const FrameHeader& header) {
  const bool is_cast = header.kind == FrameKind::kCast || header.kind == FrameKind::kTreeCast;
  return (header.kind == FrameKind::kOneway || is_cast) && (header.flags & kFlagQuiet) == 0;
}

std::string creator_ended(const std::string& reason) {
  return "the process that was to create this actor has ended: " + reason;
}
}  // namespace

ActorId undeliverable_dest(const Message& message) {
  ActorId dest;
  if (message.parts.size() == 1 && message.parts[0].size == sizeof dest) {
    std::memcpy(&dest, message.parts[0].data, sizeof dest);
  }
  return dest;
}

Node::Node(NodeId id, Driver& driver, Timers& timers, Hooks hooks)
    : id_(id),
      driver_(driver),
      timers_(timers),
      hooks_(std::move(hooks)),
      reductions_(make_reductions()),
      directory_(std::make_unique<Directory>(
          timers, [this](const Message& message, const Failure& why) { refuse(message, why); })),
      routes_(std::make_unique<Routes>([this](NodeId node) { return dial(node); }, hooks_.gateway_of)),
      forwarding_(std::make_unique<Forwarding>(
          timers, [this](const Forwarding::Pair& pair, FrameKind kind) { return tell_origin(pair, kind); },
          [this](const Link& link) { return backlog_to(link); })),
      trees_(std::make_unique<Trees>()),
      flow_(std::make_unique<Flow>()),
      calls_(std::make_unique<Calls>(driver, timers, Calls::Hooks{hooks_.on_overdue, hooks_.on_look})),
      supervisor_(std::make_unique<Supervisor>()),
      successions_(std::make_unique<Successions>()),
      unobserved_(std::make_unique<UnobservedFailures>(timers, [](const std::string& line) { log_line(line); })) {}

Node::~Node() {
  close_links();
  forwarding_->stop();
  trees_->stop(timers_);
  reductions_->stop();
}

// ---- Links ----

// All that came on a link from a node that is down here would be dropped, and nobody would answer: never half of a death.
void Node::add_link(std::shared_ptr<Link> link) {
  if (is_elsewhere(*link)) trees_->listen(link);
  if (!routes_->add(link)) {
    trees_->forget(link->peer(), link->session());
    return link->close();
  }
  if (!successions_->any()) return;
  const std::string body = successions_->all().encoded();
  Outgoing notice{FrameHeader{}, as_byte_span(body.data(), body.size()), {}};
  notice.header.kind = FrameKind::kRestarted;
  try {
    static_cast<void>(send_to_peer(*link, notice));  // else it is over
  } catch (const std::bad_alloc&) {
    log_line("there is no memory to say who has been made anew: some calls will find those that have ended");
  }
}

// With a lock of routes_ held.
std::shared_ptr<Link> Node::dial(NodeId node) {
  std::shared_ptr<Link> link = hooks_.dial ? hooks_.dial(node) : nullptr;
  if (link != nullptr && is_elsewhere(*link)) trees_->listen(link);
  return link;
}

bool Node::send_to_peer(Link& link, const Outgoing& outgoing) {
  const std::shared_ptr<Link> way = routes_->find_direct(link.peer());
  return put(way ? *way : link, outgoing, nullptr);
}

std::shared_ptr<Link> Node::route(NodeId node) { return routes_->find(node); }
std::vector<std::shared_ptr<Link>> Node::links() const { return routes_->links(); }

void Node::close_links() {
  for (const auto& link : routes_->close()) link->close();
  calls_->fail_owed([this](NodeId node) { return node != id_; }, kEnding);
  for (const auto& cell : directory_->close(kEnding)) cell->on_node_closed(kEnding);
}

FailurePtr Node::why_down(NodeId node) const { return routes_->why_down(node); }

void Node::node_down(NodeId node, FailurePtr reason) { nodes_down({{node, std::move(reason)}}); }

void Node::nodes_down(std::vector<Down> lost) {
  std::vector<std::optional<std::vector<Routes::Unsent>>> unsent;
  unsent.reserve(lost.size());
  for (const Down& down : lost) unsent.push_back(routes_->mark_down(down.node, down.reason));
  for (size_t i = 0; i < lost.size(); ++i) {
    if (!unsent[i]) continue;
    tell_of_down(lost[i].node, lost[i].reason);
    for (const Routes::Unsent& message : *unsent[i]) tell_unsent(message, *lost[i].reason);
  }
}

void Node::tell_of_down(NodeId node, const FailurePtr& reason) {
  reductions_->node_down(node);
  flow_->forget_nodes([node](NodeId gone) { return gone == node; });
  tree_host_down(node);
  successions_->ended(node, reason->kind == Failure::Kind::kStopped);
  supervise(supervisor_->node_down(node, reason));
  // Dead first, then the slots: a call that opens its slot later sees the death when it sends (cast()). So does a message
  // that comes too early for an actor of the dead (keep_early()).
  calls_->fail_owed([node](NodeId owing) { return owing == node; }, *reason);
  if (is_gateway_elsewhere(node)) hurry_notices(0);
  directory_->refuse_early_of(node, creator_ended(reason->text()));
  tell_those_behind(node, *reason);
  stop_owned_by(node, *reason);
}

// Those who talk with the dead through this node, and those whom this node reaches through it.
void Node::tell_those_behind(NodeId node, const Failure& reason) {
  const std::string record = reason.encoded();
  Outgoing notice{FrameHeader{}, as_byte_span(record.data(), record.size()), {}};
  notice.header.kind = FrameKind::kNodeDown;
  notice.header.dest = node;
  for (const NodeId other : routes_->take_forwarded(node)) {
    const std::shared_ptr<Link> link = routes_->find_direct(other);
    if (link != nullptr) static_cast<void>(link->send_control(notice));  // if it is dead, it need not know
  }
  for (const NodeId behind : routes_->take_behind(node)) {
    Failure why(Failure::Kind::kLost, "the process on the way to it has ended: " + reason.text());
    if (host_number(node) != host_number(id_) && host_number(node) == host_number(behind)) {
      why = reason;
      why.of_host = true;
    }
    way_lost(behind, std::move(why));
  }
}

void Node::way_lost(NodeId node, Failure why) {
  why.node = node;
  auto record = std::make_shared<Failure>(std::move(why));
  hooks_.on_way_lost ? hooks_.on_way_lost(node, std::move(record)) : node_down(node, std::move(record));
}

void Node::on_closed(Link& link, const Error& why) {
  end_arrivals(link);
  const bool third = hooks_.is_third && hooks_.is_third(link.peer());
  const PeerAction action = routes_->link_ended(link, third ? Error{ErrorCode::kClosed, why.message} : why);
  if (action == PeerAction::kGiveUp) {
    tree_session_over(link, {Failure::Kind::kUnreachable, why.message});
    return give_up(link.peer(), why.message);
  }
  if (hooks_.on_link_lost && hooks_.on_link_lost(link.peer(), why)) return;
  node_down(link.peer(), std::make_shared<Failure>(Failure::Kind::kLost, why.message));
}

// This process has had nothing to make a link of. What waits for the node ends with that reason; the node itself may be
// well, and is dialled again by the next message to it.
void Node::give_up(NodeId node, const std::string& why) {
  calls_->fail_owed([node](NodeId owing) { return owing == node; }, {Failure::Kind::kUnreachable, why});
  for (const Routes::Unsent& message : routes_->take_unsent(node)) tell_unsent(message, {Failure::Kind::kUnreachable, why});
}

void Node::tell_unsent(const UnsentMessage& message, const Failure& why) {
  if (message.passing) return refuse_routed(nullptr, message.passing->header, message.passing->route, why);
  undeliverable(message.sender, id_, message.dest, why);
}

void Node::on_control(Link& link, MessagePtr message) {
  const bool routed = (message->header.flags & kFlagRouted) != 0;
  if (routed && !arrived_by_route(link, message, true)) return;
  const FrameHeader& header = message->header;
  if (header.kind == FrameKind::kHold || header.kind == FrameKind::kResume) {
    if (routes_->any_down() && is_down(message->from)) return;
    return flow_->set_held({message->from, header.dest}, header.kind == FrameKind::kHold);
  }
  if (header.kind == FrameKind::kAskStacks) {
    if (hooks_.on_stacks_wanted) hooks_.on_stacks_wanted(message->from, header.token, header.rank);
    return;
  }
  if (header.kind == FrameKind::kStacks) return answer_stacks(header.dest, header.rank, message->body);
  if (header.kind == FrameKind::kProbe || header.kind == FrameKind::kSilent) {
    if (hooks_.on_inquiry) hooks_.on_inquiry(std::move(message));
    return;
  }
  if (routed) return;  // what is said about processes is said by neighbours
  if (header.kind == FrameKind::kTreeTaken || header.kind == FrameKind::kTreeMissed) return on_tree_control(link, header);
  if (header.kind == FrameKind::kNodeDown && !message->body.empty() && routes_->is_behind(header.dest, link.peer())) {
    auto failure = Failure::decode(message->body);
    if (!failure) failure = Failure(Failure::Kind::kLost, "the process on the way to it has lost it");
    return way_lost(header.dest, std::move(*failure));
  }
  if (hooks_.on_control) hooks_.on_control(link, std::move(message));
}

// ---- Sending ----

bool Node::send(NodeId node, const Outgoing& outgoing, std::string* why, bool* no_memory) {
  try {
    if (node == id_) {
      dispatch(Message::copy_of(outgoing, id_));
      return true;
    }
    const std::shared_ptr<Link> link = routes_->find(node);
    if (link != nullptr && send_on(*link, node, outgoing, false)) return true;
  } catch (const std::bad_alloc&) {
    if (why != nullptr) *why = "there is no memory to send it";
    if (no_memory != nullptr) *no_memory = true;
    return false;
  }
  if (why != nullptr) {
    const FailurePtr dead = routes_->why_unreachable(node);
    *why = dead ? dead->text() : "the process cannot be reached";
  }
  return false;
}

bool Node::send_on(Link& link, NodeId node, const Outgoing& outgoing, bool control) {
  if (link.peer() == node) return control ? link.send_control(outgoing) : put(link, outgoing, nullptr);
  Outgoing routed = outgoing;
  routed.header.flags |= kFlagRouted;
  routed.route = {id_, node, 0, 0};
  return control ? link.send_control(routed) : put(link, routed, nullptr);
}

std::string Node::why_too_large(const Outgoing& outgoing) const {
  const uint64_t bytes_max = message_bytes_max_.load(std::memory_order_relaxed);
  uint64_t bytes = outgoing.body.size();
  for (const ByteSpan& part : outgoing.parts) bytes += part.size();
  if (bytes > bytes_max) {
    return "rejected an oversized frame: the message has " + std::to_string(bytes) + " bytes, at most " +
           std::to_string(bytes_max) + " are allowed (codec_max_frame_length)";
  }
  if (outgoing.parts.size() > kPartsMax) {
    return "rejected an oversized frame: the message has " + std::to_string(outgoing.parts.size()) +
           " large buffers, at most " + std::to_string(kPartsMax) + " are allowed";
  }
  return {};
}

void Node::cast(const Members& named, Outgoing& outgoing, const std::shared_ptr<PendingCall>& call) {
  if (named.ids.empty()) return;
  const std::shared_ptr<const Members> latest = successions_->latest(named);
  const Members& members = latest ? *latest : named;
  if (latest && call) call->set_owing(latest);
  outgoing.header.epoch = successions_->epoch_of(named.ids[0].index);
  outgoing.reducer = call ? call->on_the_way() : Reducer::kNone;
  const uint64_t token = call ? calls_->open(call, outgoing.deadline_ns) : 0;
  outgoing.header.token = token;
  if (outgoing.header.kind != FrameKind::kStopActor) {
    if (const std::string why = why_too_large(outgoing); !why.empty()) return refuse_cast(members, outgoing, why);
  }
  outgoing.header.time_left_ns = time_left_ns(outgoing.deadline_ns);
  bool is_short = false;
  send_to_all(members, outgoing, [&](uint32_t rank, const std::string& why, bool no_memory) {
    const ActorId& id = members.ids[rank];
    if (no_memory) {
      is_short = true;
      if (call) calls_->answer(token, rank, make_failure(token, rank, {Failure::Kind::kNotSent, why}));
    } else if (!call) {
      if ((outgoing.header.flags & kFlagQuiet) == 0) unsent(outgoing.header.sender, id);
    } else if (routes_->find(id.node) == nullptr) {
      // Only now: it may have been declared since.
      const FailurePtr dead = routes_->why_unreachable(id.node);
      calls_->answer(token, rank, dead ? make_failure(token, rank, *dead) : make_failure(token, rank, why));
    }  // else a link that just broke, whose reason is not known yet: node_down() will fill the slot with it
  });
  // Sent first, then written down: who makes one of them anew from now on makes it behind the stop.
  if (outgoing.header.kind == FrameKind::kStopActor) supervisor_->note_stopped(named);
  if (call) driver_.poll_after_send();
  if (is_short) throw std::bad_alloc();
}

// Each is sent its own, but those of another host one for all of them, which their gateway spreads.
// `failed(rank, why, no_memory)`.
template <typename Failed>
void Node::send_to_all(const Members& members, Outgoing& outgoing, const Failed& failed) {
  CastParts parts;
  if (members.ids.size() > 1 && !outgoing.parts.empty()) outgoing.cast = &parts;
  RanksByHost elsewhere;
  std::string why;
  const auto send_one = [&](uint32_t rank) {
    outgoing.header.dest = members.ids[rank].index;
    outgoing.header.rank = rank;
    bool no_memory = false;
    if (!send(members.ids[rank].node, outgoing, &why, &no_memory)) failed(rank, why, no_memory);
  };
  if (const auto to = send_as_before(members, outgoing, elsewhere)) {
    for (const uint32_t rank : to->here) send_one(rank);
  } else {
    const HostNumber here = host_number(id_);
    for (uint32_t rank = 0; rank < members.ids.size(); ++rank) {
      const HostNumber host = host_number(members.ids[rank].node);
      if (host == here || !hooks_.gateway_there) {
        send_one(rank);
      } else {
        if (elsewhere.empty()) elsewhere.reserve(members.ids.size() - rank);
        elsewhere.emplace_back(host, rank);
      }
    }
    const auto by_host = [](const auto& a, const auto& b) { return a.first < b.first; };
    if (!std::is_sorted(elsewhere.begin(), elsewhere.end(), by_host)) {
      std::stable_sort(elsewhere.begin(), elsewhere.end(), by_host);
    }
    if (elsewhere.size() > 1) send_by_tree(members, elsewhere, outgoing);
  }
  std::vector<uint32_t> ranks;
  for (size_t i = 0; i < elsewhere.size(); ++i) {
    ranks.push_back(elsewhere[i].second);
    if (i + 1 < elsewhere.size() && elsewhere[i + 1].first == elsewhere[i].first) continue;
    bool no_memory = false;
    const bool sent = ranks.size() > 1 && send_cast(members, ranks, outgoing, &no_memory);
    for (const uint32_t rank : ranks) {
      if (no_memory) failed(rank, "there is no memory to send it", true);
      if (!sent && !no_memory) send_one(rank);  // who cannot be reached is found out one by one
    }
    ranks.clear();
  }
  outgoing.cast = nullptr;
}

// False: they are to be sent to one by one. They are all of one other host.
bool Node::send_cast(const Members& members, std::span<const uint32_t> ranks, const Outgoing& outgoing,
                     bool* no_memory) {
  const NodeId gateway = hooks_.gateway_there(members.ids[ranks.front()].node);
  if (gateway == 0) return false;
  try {
    std::vector<CastTarget> targets;
    for (const uint32_t rank : ranks) {
      const ActorId& id = members.ids[rank];
      if (routes_->find(id.node) == nullptr) return false;
      targets.push_back({id.node, id.index, rank, 0});
    }
    FrameHeader header = outgoing.header;
    header.rank = static_cast<uint32_t>(outgoing.reducer);
    const std::string body = encode_cast(header, targets, outgoing.body);
    Outgoing frame = outgoing;
    frame.header.kind = FrameKind::kCast;
    frame.header.dest = 0;
    frame.header.rank = kEveryRank;
    frame.cast = nullptr;  // to one: what its gateway gets passes through it without a copy
    frame.body = as_byte_span(body.data(), body.size());
    return send(gateway, frame, nullptr, no_memory);
  } catch (const std::bad_alloc&) {
    *no_memory = true;
    return false;
  }
}

// 0: for ever. A deadline that has passed is one that is about to.
uint64_t Node::time_left_ns(int64_t deadline_ns) {
  if (deadline_ns == 0) return 0;
  return static_cast<uint64_t>(std::max<int64_t>(1, deadline_ns - timers_.now_ns()));
}

void Node::refuse_cast(const Members& members, const Outgoing& outgoing, const std::string& why) {
  const uint64_t token = outgoing.header.token;
  for (uint32_t rank = 0; rank < members.ids.size(); ++rank) {
    if (token != 0) {
      calls_->answer(token, rank, make_failure(token, rank, {Failure::Kind::kNotSent, why}));
    } else if ((outgoing.header.flags & kFlagQuiet) == 0) {
      undeliverable(outgoing.header.sender, id_, members.ids[rank], {Failure::Kind::kNotSent, why});
    }
  }
}

void Node::spawn(const Members& members, Outgoing& outgoing) {
  {
    std::lock_guard lock(spawned_mutex_);
    for (const ActorId& id : members.ids) spawned_at_.insert(id.node);
  }
  outgoing.header.kind = FrameKind::kSpawn;
  bool is_short = false;
  // A process that is gone: the calls will say so.
  send_to_all(members, outgoing, [&](uint32_t, const std::string&, bool no_memory) { is_short |= no_memory; });
  if (successions_->any()) {  // of what was sent to one that has been replaced just now nothing comes
    for (const ActorId& id : members.ids) {
      const NodeId next = successions_->latest(id.node);
      if (next == id.node) continue;
      {
        std::lock_guard lock(spawned_mutex_);
        spawned_at_.insert(id.node);  // it may have been buried meanwhile
      }
      bury_at(id.node, next);
    }
  }
  if (is_short) throw std::bad_alloc();
}

void Node::post(const ActorId& to, Outgoing& outgoing) {
  outgoing.header.kind = FrameKind::kOneway;
  outgoing.header.dest = to.index;
  outgoing.header.token = 0;
  const bool quiet = (outgoing.header.flags & kFlagQuiet) != 0;
  if (std::string why = why_too_large(outgoing); !why.empty()) {
    if (!quiet) undeliverable(outgoing.header.sender, id_, to, {Failure::Kind::kNotSent, std::move(why)});
    return;
  }
  std::string why;
  bool no_memory = false;
  if (send(to.node, outgoing, &why, &no_memory) || quiet) return;
  if (no_memory) return undeliverable(outgoing.header.sender, id_, to, {Failure::Kind::kNotSent, std::move(why)});
  unsent(outgoing.header.sender, to);
}

void Node::unsent(ActorIndex sender, const ActorId& dest) {
  Failure why;
  if (routes_->keep_unsent({sender, dest}, &why)) return;
  undeliverable(sender, id_, dest, why);
}

// ---- Stacks ----

uint64_t Node::ask_stacks(const std::shared_ptr<PendingCall>& call) {
  const Members& members = call->members();
  call->set_owing(successions_->latest(members));
  const uint64_t token = calls_->open(call, 0);
  Outgoing question{FrameHeader{}, {}, {}};
  question.header.kind = FrameKind::kAskStacks;
  question.header.token = token;
  for (uint32_t rank = 0; rank < members.ids.size(); ++rank) {
    const NodeId node = call->owing().ids[rank].node;
    question.header.rank = rank;
    if (node == id_ && hooks_.on_stacks_wanted) {
      hooks_.on_stacks_wanted(id_, token, rank);
      continue;
    }
    const std::shared_ptr<Link> link = node == id_ ? nullptr : routes_->find(node);
    if (link != nullptr && send_on(*link, node, question, true)) continue;
    if (const FailurePtr dead = routes_->why_unreachable(node)) {
      calls_->answer(token, rank, make_failure(token, rank, *dead));
    } else if (link == nullptr) {
      calls_->answer(token, rank, make_failure(token, rank, "the process cannot be reached"));
    }  // else as in cast()
  }
  return token;
}

void Node::tell_stacks(NodeId asker, uint64_t token, uint32_t rank, ByteSpan value) {
  if (asker == id_) return answer_stacks(token, rank, value);
  Outgoing answer{FrameHeader{}, value, {}};
  answer.header.kind = FrameKind::kStacks;
  answer.header.dest = token;
  answer.header.rank = rank;
  if (value.size() + sizeof(FrameRoute) + kRecordPrologue > kControlSizeMax) {  // the asker would close the link
    return log_line("what this process does is too much for one answer: its stacks are not told");
  }
  const std::shared_ptr<Link> link = routes_->find(asker);
  if (link != nullptr) static_cast<void>(send_on(*link, asker, answer, true));  // else nobody waits
}

void Node::answer_stacks(uint64_t token, uint32_t rank, ByteSpan value) {
  FrameHeader header;
  header.kind = FrameKind::kReply;
  const std::string_view bytes(reinterpret_cast<const char*>(value.data()), value.size());
  calls_->answer(token, rank, Message::make(header, bytes));
}

// ---- Calls that wait ----

void Node::inquire(NodeId node, const Outgoing& inquiry) {
  if (node == id_) {
    if (hooks_.on_inquiry) hooks_.on_inquiry(Message::copy_of(inquiry, id_));
    return;
  }
  if (const std::shared_ptr<Link> link = routes_->find(node)) static_cast<void>(send_on(*link, node, inquiry, true));
}

void Node::end_call(uint64_t token, ErrorKind kind, std::string_view text) {
  calls_->end(token, [&](uint32_t rank) { return make_error(token, rank, kind, text); });
}

void Node::end_call(uint64_t token, const Failure& why) {
  calls_->end(token, [&](uint32_t rank) { return make_failure(token, rank, why); });
}

void Node::begin_looks() { calls_->begin_looks(); }

// ---- Back-pressure ----

bool Node::is_flood(bool is_call, uint64_t bytes) const {
  return !is_call || bytes > kFloodBytes || calls_->size_hint() >= kFloodCalls;
}

bool Node::has_room_for_call() const { return calls_->size_hint() < calls_max_; }

bool Node::has_room(const Members& members, uint64_t backlog_max) {
  const std::shared_ptr<const Members> latest = successions_->latest(members);
  for (const ActorId& id : latest ? latest->ids : members.ids) {
    if (id.node != id_) {
      const std::shared_ptr<Link> link = routes_->find(id.node);
      if (link == nullptr || link->closed()) continue;
      if (backlog_to(*link) > backlog_max) return false;
    }
    if (flow_->any() && is_held(id)) return false;
  }
  return true;
}

// By the actor, or by who passes on what goes to its node, alone or with others of its host (kCast).
bool Node::is_held(const ActorId& id) const {
  if (flow_->is_held(id) || flow_->is_held({id.node, kWholeNode})) return true;
  if (!hooks_.gateway_there || host_number(id.node) == host_number(id_)) return false;
  const NodeId gateway = hooks_.gateway_there(id.node);
  return gateway != 0 && flow_->is_held({gateway, kWholeNode});
}

bool Node::tell_sender(NodeId node, FrameKind kind, ActorIndex actor) {
  if (node == id_) {
    flow_->set_held({id_, actor}, kind == FrameKind::kHold);
    return true;
  }
  Outgoing notice{FrameHeader{}, {}, {}};
  notice.header.kind = kind;
  notice.header.dest = actor;
  const std::shared_ptr<Link> link = routes_->find(node);
  return link != nullptr && send_on(*link, node, notice, true);
}

// ---- Answering ----

void Node::reply(const FrameHeader& request, NodeId from, FrameKind kind, Outgoing& outgoing) {
  if (request.token == 0) return;
  outgoing.header.kind = kind;
  outgoing.header.dest = request.token;
  outgoing.header.rank = request.rank;
  if (kind != FrameKind::kReplyFailed) {
    const std::string why = why_too_large(outgoing);
    if (!why.empty()) return reply_failed(request, from, {Failure::Kind::kNotSent, why});
  }
  std::string why;
  bool no_memory = false;
  if (send(from, outgoing, &why, &no_memory)) return;  // else the caller is gone: nobody waits
  if (no_memory && kind != FrameKind::kReplyFailed) {
    reply_failed(request, from, {Failure::Kind::kNotSent, "the answer was not sent: " + why});
  }
}

void Node::reply_failed(const FrameHeader& request, NodeId from, const Failure& why) {
  const bool is_told = request.token != 0 && (request.flags & kFlagQuiet) == 0;
  if (why.kind == Failure::Kind::kActor && why.node == id_ && is_told) unobserved_->observed(why.actor);
  const std::string record = why.encoded();
  Outgoing failure{FrameHeader{}, as_byte_span(record.data(), record.size()), {}};
  reply(request, from, FrameKind::kReplyFailed, failure);
}

void Node::refuse(const Message& message, const Failure& why) {
  const FrameHeader& header = message.header;
  if (header.kind == FrameKind::kStopActor) {
    Outgoing done{FrameHeader{}, {}, {}};
    reply(header, message.from, FrameKind::kReply, done);
  } else if (header.token != 0) {
    reply_failed(header, message.from, why);
  } else if (is_oneway(header)) {
    undeliverable(header.sender, message.from, {id_, header.dest}, why);
  }
}

void Node::undeliverable(ActorIndex sender, NodeId from, const ActorId& dest, const Failure& why) {
  if (routes_->closing()) return;  // nothing fails, and nothing is said, because this process ends
  const ByteSpan part = as_byte_span(&dest, sizeof dest);
  const std::string record = why.encoded();
  Outgoing bounce{FrameHeader{}, as_byte_span(record.data(), record.size()), {&part, 1}};
  bounce.header.kind = FrameKind::kUndeliverable;
  bounce.header.dest = sender;
  std::string ignored;
  send(from, bounce, &ignored);
}

// ---- Actors ----

void Node::set_factory(CellKind kind, CellFactory& factory) { factories_[static_cast<uint32_t>(kind)] = &factory; }

ActorIndex Node::new_actor_index(uint32_t count) {
  return actor_index(id_, next_number_.fetch_add(count, std::memory_order_relaxed));
}

void Node::add_cell(ActorIndex index, std::shared_ptr<Cell> cell) { directory_->add(index, std::move(cell)); }
void Node::add_lazy_actor(ActorIndex index, MessagePtr spawn) { directory_->add_lazy(index, std::move(spawn)); }
std::shared_ptr<Cell> Node::find_cell(ActorIndex index) const { return directory_->find(index); }
void Node::remove_cell(ActorIndex index, Failure epitaph) {
  directory_->remove(index, std::move(epitaph));
  MessagePtr spawn = directory_->take_restart(index);
  if (!spawn) return;
  if (const FailurePtr dead = spawn->from == id_ ? nullptr : why_down(spawn->from)) {
    return directory_->refuse_actor(index, creator_ended(dead->text()));  // and nobody would own it
  }
  on_spawn(std::move(spawn));
}
std::optional<ActorId> Node::owner_of(ActorIndex index) const { return directory_->owner_of(index); }

Failure Node::end_of_actor(ActorIndex index, int64_t rank, Failure::Kind kind, std::string why) const {
  Failure end(kind, std::move(why));
  end.node = id_;
  end.actor = index;
  end.rank = rank;
  end.host = host_name();
  end.pid = getpid();
  return end;
}

// ---- Supervision ----

void Node::observed(const Members& members) const {
  const int64_t now_ns = timers_.now_ns();
  for (const ActorId& id : members.ids) {
    unobserved_->observed(id.index);
    std::lock_guard lock(told_mutex_);
    told_.put(id, now_ns);
    told_.put({id.node, 0}, now_ns);
  }
  if (hooks_.on_observed) hooks_.on_observed(members);
}

// Written down first, then this look: a death that comes later finds it.
Supervisor::MeshId Node::own(OwnedMesh mesh) {
  const std::shared_ptr<const Members> members = mesh.members;
  const Supervisor::MeshId id = supervisor_->add(std::move(mesh));
  if (!routes_->any_down()) return id;
  for (const ActorId& member : members->ids) {
    if (const FailurePtr why = why_down(member.node)) supervise(supervisor_->node_down(member.node, why));
  }
  return id;
}

bool Node::was_told(const Failure& why, int64_t since_ns) const {
  std::lock_guard lock(told_mutex_);
  const int64_t* told_ns = told_.find({why.node, why.actor});
  return told_ns != nullptr && *told_ns >= since_ns;
}

bool Node::is_awaited(const Failure& why) const {
  return calls_->is_owed([&why](const ActorId& id) {
    return id.node == why.node && (why.actor == 0 || id.index == why.actor);
  });
}

void Node::actor_ended(const Failure& why) {
  const auto owner = owner_of(why.actor);
  const uint32_t epoch = directory_->epoch_of(why.actor);
  if (owner && owner->node == id_) return owned_ended(why, epoch);
  if (owner) {
    const std::string record = why.encoded();
    Outgoing notice{FrameHeader{}, as_byte_span(record.data(), record.size()), {}};
    notice.header.kind = FrameKind::kActorEnded;
    notice.header.dest = owner->index;
    notice.header.epoch = epoch;
    std::string ignored;
    if (send(owner->node, notice, &ignored)) return;
  }
  if (why.kind == Failure::Kind::kActor) unobserved_->add(why.actor, why.headline());
}

// Of this node's own actors or its client.
void Node::owned_ended(const Failure& why, uint32_t epoch) {
  std::vector<MeshFailure> failures = supervisor_->actor_ended(std::make_shared<const Failure>(why), epoch);
  if (failures.empty() && why.kind == Failure::Kind::kActor) return unobserved_->add(why.actor, why.headline());
  supervise(std::move(failures));
}

void Node::supervise(std::vector<MeshFailure> failures) {
  if (is_ending() || routes_->closing()) return;
  const auto restarts = [](const MeshFailure& failure) { return failure.mesh->restarts; };
  if (hooks_.on_restart_wanted && std::any_of(failures.begin(), failures.end(), restarts)) {
    return hooks_.on_restart_wanted(std::move(failures));
  }
  for (MeshFailure& failure : failures) decide(std::move(failure));
}

// Late, maybe: of what its owner has ended by now nobody is told, nor who has the owner's place.
void Node::decide(MeshFailure failure) {
  if (!supervisor_->members(failure.mesh_id)) return;
  const ActorIndex owner = failure.mesh->owner;
  if (owner == 0 && hooks_.on_mesh_failure) {
    hooks_.on_mesh_failure(std::move(failure));
  } else if (owner == 0) {
    if (failure.why->kind == Failure::Kind::kActor) unobserved_->add(failure.why->actor, failure.why->headline());
  } else if (const std::shared_ptr<Cell> cell = directory_->find(owner)) {
    cell->supervise(std::move(failure));
  }
}

// What somebody owns who has died ends: actors here, while processes see to themselves.
void Node::stop_owned_by(NodeId node, const Failure& why) {
  const std::string reason = "its owner has ended: " + why.headline();
  for (const auto& [index, cell] : directory_->owned_by(node)) stop_cell(*cell, index, reason);
}

void Node::stop_cell(Cell& cell, ActorIndex index, const std::string& reason) {
  FrameHeader stop;
  stop.kind = FrameKind::kStopActor;
  stop.dest = index;
  cell.deliver(Message::make(stop, reason));
}

Node::Held Node::held() const {
  Held held;
  directory_->count(&held.cells, &held.parked, &held.early);
  held.calls = calls_->size();
  held.unsent = routes_->unsent();
  held.meshes = supervisor_->size();
  held.answers = reductions_->calls() + reductions_->kept();
  return held;
}

void Node::report_failures() { unobserved_->report_rest(); }
void Node::remove_port(ActorIndex index) { directory_->remove_port(index); }
std::optional<Failure> Node::epitaph(ActorIndex index) const { return directory_->epitaph(index); }
void Node::deliver_early(ActorIndex index, const std::shared_ptr<Cell>& cell) { directory_->deliver_early(index, cell); }

void Node::on_spawn(MessagePtr message) {
  const ActorIndex index = message->header.dest;
  if (message->header.epoch != 0) {
    const auto owner = owner_of(index);
    if (owner && owner->node != message->from) {
      return log_line("refused to make an actor anew for somebody who does not own it");
    }
    std::shared_ptr<Cell> ending;
    message = directory_->begin_restart(std::move(message), &ending);
    // It may not know: somebody else has made it anew since it was stopped for this.
    if (ending) stop_cell(*ending, index, "it is made anew");
    if (!message) return;  // remove_cell() goes on
  }
  if (directory_->is_known(index)) {  // base/ids.h says how improbable that is
    log_line("refused to make an actor whose index another one has; calls to it are answered by that one");
    return;
  }
  const uint32_t kind = message->header.method & ((1u << kSwarmShift) - 1);
  if (kind >= kCellKinds || factories_[kind] == nullptr) {
    constexpr char kWhy[] = "this process cannot run that kind of actor";
    directory_->refuse_actor(index, kWhy);
    return refuse(*message, kWhy);
  }
  // Before it is made: it may fail, or be gone, before this returns.
  const uint32_t count = std::max<uint32_t>(1, message->header.method >> kSwarmShift);
  directory_->expect(index, count, {message->from, message->header.sender}, message->header.epoch);
  std::shared_ptr<Cell> cell = factories_[kind]->make(*this, index, std::move(message));
  if (cell) directory_->deliver_early(index, cell);
}

// ---- What arrives ----

void Node::on_frame(Link& link, MessagePtr message) {
  // Dead is dead: what a second link to the node still holds comes after its messages and spawns have been given up.
  if (routes_->any_down() && is_down(link.peer())) return;
  is_elsewhere(link) ? from_elsewhere(link, std::move(message)) : take(link, std::move(message));
}

void Node::take(Link& link, MessagePtr message) {
  const bool routed = (message->header.flags & kFlagRouted) != 0;
  if (routed && !arrived_by_route(link, message, false)) return;
  const FrameHeader& header = message->header;
  if (routed && header.kind == FrameKind::kTreeCast && is_elsewhere(link)) return log_malformed("a cast by another way");
  if (message->lost_bytes != 0) return refuse_lost(*message);
  if (header.kind == FrameKind::kStopNode) return on_control(link, std::move(message));
  if (header.kind == FrameKind::kCast) return spread(link, std::move(message));
  if (header.kind == FrameKind::kTreeCast) return on_tree_cast(link, std::move(message));
  if (header.time_left_ns != 0) {
    const uint64_t left_ns = std::min<uint64_t>(header.time_left_ns, kNoDeadline / 2);
    message->deadline_ns = timers_.now_ns() + static_cast<int64_t>(left_ns);
  }
  dispatch(std::move(message));
}

void Node::dispatch(MessagePtr message) {
  switch (message->header.kind) {
    case FrameKind::kReply:
    case FrameKind::kReplyError:
    case FrameKind::kReplyFailed: {
      const uint64_t token = message->header.dest;
      const uint32_t rank = message->header.rank;
      if (rank == kEveryRank) return answered_together(std::move(message));
      return calls_->answer(token, rank, std::move(message));
    }
    case FrameKind::kSpawn:
      return on_spawn(std::move(message));
    case FrameKind::kRequest:
    case FrameKind::kOneway:
    case FrameKind::kStopActor:
    case FrameKind::kUndeliverable:
      return deliver(std::move(message));
    case FrameKind::kActorEnded: {
      auto why = Failure::decode(message->body);
      if (why && why->node == message->from) return owned_ended(*why, message->header.epoch);
      return log_line("ignored what a process says of an actor that is not its own");
    }
    case FrameKind::kRestarted: {
      auto notice = Successions::Notice::decode(message->body);
      if (notice && hooks_.on_restarted) hooks_.on_restarted(message->from, *notice);
      return;
    }
    case FrameKind::kBuried:
      return directory_->bury(message->from, message->header.dest);
    case FrameKind::kTreeReply:
      if (!is_gateway_elsewhere(message->from)) return log_line("ignored answers of another host by a process");
      return reductions_->take_branch(std::move(message));
    case FrameKind::kTreeSeen: {
      auto seen = decode_seen(message->body);
      if (!seen) return log_line("ignored " + seen.error().message);
      return reductions_->seen(message->from, *seen);
    }
    default:
      log_line("ignored a control frame on the data lane");
  }
}

void Node::deliver(MessagePtr message) {
  for (;;) {
    const ActorIndex index = message->header.dest;
    if (std::shared_ptr<Cell> cell = directory_->find(index)) return cell->deliver(std::move(message));
    if (message->header.kind == FrameKind::kUndeliverable) {
      // Of an actor that has ended because all are ending, or of the client.
      if (hooks_.on_undeliverable && !is_ending()) {
        hooks_.on_undeliverable(undeliverable_dest(*message), failure_of(*message));
      }
      return;
    }
    if (MessagePtr spawn = directory_->take_lazy(index)) {
      on_spawn(std::move(spawn));
      continue;
    }
    if (!keep_early(message)) return;
  }
}

// A handle may be used by somebody whose messages overtake those of the actor's creator.
bool Node::keep_early(MessagePtr& message) {
  const ActorIndex index = message->header.dest;
  const uint64_t made = next_number_.load(std::memory_order_relaxed);
  Failure why;
  switch (directory_->keep_early(message, ((index - id_) & kIdMask) < made, &why)) {
    case Directory::Early::kFound:
      return true;
    case Directory::Early::kRefused:
      refuse(*message, why);
      return false;
    case Directory::Early::kKept:
      break;
  }
  // Kept first, then this look: a creator that is found dead later refuses what it finds kept (node_down()).
  std::string reason;
  if (routes_->creator_is_down(index, &reason)) directory_->refuse_early(index, creator_ended(reason));
  return false;
}

}  // namespace monarch
