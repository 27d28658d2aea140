#include "monarch/actor/node.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "monarch/base/clock.h"
#include "monarch/base/log.h"
#include "monarch/wire/value.h"

namespace monarch {

namespace {
// How long a message waits for an actor of which nothing is known: its spawn may still lie in the queue of a third
// node.
constexpr int64_t kEarlyLimitNs = 30'000'000'000;
constexpr char kNoSuchActor[] = "there is no such actor in this process";
constexpr char kEnding[] = "this process is ending";

// Part of an actor's index: who made it (Node::new_actor_index).
uint64_t creator_of(ActorIndex index) { return index >> 32; }
}  // namespace

ActorId undeliverable_dest(const Message& message) {
  ActorId dest;
  if (message.parts.size() == 1 && message.parts[0].size == sizeof dest) {
    std::memcpy(&dest, message.parts[0].data, sizeof dest);
  }
  return dest;
}

MessagePtr make_expired(uint64_t token, uint32_t rank, std::string_view text) {
  ValueWriter error;
  error.begin_tuple(2);
  error.str("__deadline__");
  error.str(text);
  FrameHeader header;
  header.kind = FrameKind::kReplyError;
  header.dest = token;
  header.rank = rank;
  const ByteSpan body = error.written();
  return Message::make(header, {reinterpret_cast<const char*>(body.data()), body.size()});
}

MessagePtr make_failure(uint64_t token, uint32_t rank, std::string_view why) {
  FrameHeader header;
  header.kind = FrameKind::kReplyFailed;
  header.dest = token;
  header.rank = rank;
  return Message::make(header, why);
}

// Actor indices are unique within the node that hosts the actor, and any node may create actors anywhere: the upper
// half is taken from the creator's own (random) id.
Node::Node(NodeId id, Driver& driver, Hooks hooks)
    : id_(id),
      driver_(driver),
      hooks_(std::move(hooks)),
      next_index_((id << 32) | 16),
      deadlines_(hooks_.after, [this](uint64_t token) { expire(token); }) {}

Node::~Node() { close_links(); }

// ---- Links ----

void Node::add_link(std::shared_ptr<Link> link) {
  std::vector<std::shared_ptr<Link>> dead;  // destroyed outside the lock
  std::lock_guard lock(links_mutex_);
  dead = take_dead_links();
  // The first link to a peer stays the one that is sent on, so that order per sender holds; two peers that dial each
  // other at the same moment have two, each used in one direction.
  routes_.try_emplace(link->peer(), link);
  all_links_.push_back(std::move(link));
}

std::shared_ptr<Link> Node::route(NodeId node) {
  std::vector<std::shared_ptr<Link>> dead;
  std::lock_guard lock(links_mutex_);
  // First: a dead node's link may not know it yet, and what is sent on it would wait for ever.
  if (closing_ || down_.contains(node)) return nullptr;
  auto found = routes_.find(node);
  if (found != routes_.end()) return found->second;
  if (!hooks_.dial) return nullptr;
  std::shared_ptr<Link> link = hooks_.dial(node);
  if (!link) return nullptr;
  dead = take_dead_links();
  routes_.emplace(node, link);
  all_links_.push_back(link);
  return link;
}

// Of nodes that come and go nothing must pile up but the word that they are down.
std::vector<std::shared_ptr<Link>> Node::take_dead_links() {
  std::vector<std::shared_ptr<Link>> dead;
  if (!any_down_.load(std::memory_order_relaxed)) return dead;
  std::erase_if(all_links_, [&](std::shared_ptr<Link>& link) {
    if (!link->over() || !down_.contains(link->peer())) return false;
    routes_.erase(link->peer());
    dead.push_back(std::move(link));
    return true;
  });
  return dead;
}

std::vector<std::shared_ptr<Link>> Node::links() const {
  std::lock_guard lock(links_mutex_);
  return all_links_;
}

void Node::close_links() {
  std::vector<std::shared_ptr<Link>> links;
  {
    std::lock_guard lock(links_mutex_);
    closing_ = true;
    links = all_links_;
  }
  for (auto& link : links) link->close();
  fail_owed([this](NodeId node) { return node != id_; }, kEnding);
  refuse_early([](ActorIndex) { return true; }, kEnding);
  std::vector<std::shared_ptr<Cell>> cells;
  {
    std::lock_guard lock(cells_mutex_);
    for (const auto& [index, cell] : cells_) cells.push_back(cell);
  }
  for (const auto& cell : cells) cell->on_node_closed(kEnding);
}

bool Node::is_down(NodeId node, std::string* reason) const {
  std::lock_guard lock(links_mutex_);
  auto found = down_.find(node);
  if (found == down_.end()) return false;
  if (reason != nullptr) *reason = found->second;
  return true;
}

void Node::node_down(NodeId node, const std::string& reason) {
  std::vector<Unsent> bounced;
  {
    std::lock_guard lock(links_mutex_);
    if (!down_.emplace(node, reason).second) return;
    any_down_.store(true, std::memory_order_relaxed);
    auto still = std::stable_partition(unsent_.begin(), unsent_.end(),
                                       [node](const Unsent& entry) { return entry.dest.node != node; });
    bounced.assign(still, unsent_.end());
    unsent_.erase(still, unsent_.end());
  }
  {
    std::lock_guard lock(held_mutex_);
    std::erase_if(held_, [node](const ActorId& id) { return id.node == node; });
    any_held_.store(!held_.empty(), std::memory_order_relaxed);
  }
  // Dead first, then the slots: a call that opens its slot later sees the death when it sends (cast()).
  fail_owed([node](NodeId owing) { return owing == node; }, reason);
  refuse_early([node](ActorIndex index) { return creator_of(index) == (node & 0xffffffff); },
               "the process that was to create this actor has ended: " + reason);
  for (const Unsent& entry : bounced) undeliverable(entry.sender, id_, entry.dest, reason);
  if (hooks_.on_down) hooks_.on_down(node, reason);
}

// Fills every open slot of a node that `owed_by` picks with that failure.
void Node::fail_owed(const std::function<bool(NodeId)>& owed_by, const std::string& why) {
  struct Owed {
    uint64_t token;
    std::shared_ptr<PendingCall> call;
  };
  std::vector<Owed> owed;
  {
    std::lock_guard lock(slots_mutex_);
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].call) owed.push_back({uint64_t{slots_[i].generation} << 32 | i, slots_[i].call});
    }
  }
  for (const Owed& entry : owed) {
    const auto& ids = entry.call->members().ids;
    for (uint32_t rank = 0; rank < ids.size(); ++rank) {
      if (owed_by(ids[rank].node)) answer(entry.token, rank, make_failure(entry.token, rank, why));
    }
  }
}

void Node::on_closed(Link& link, const Error& why) {
  if (hooks_.on_link_lost && hooks_.on_link_lost(link.peer(), why)) return;
  node_down(link.peer(), why.message);
}

void Node::on_control(Link& link, MessagePtr message) {
  const FrameHeader& header = message->header;
  if (header.kind == FrameKind::kHold || header.kind == FrameKind::kResume) {
    return on_room({link.peer(), header.dest}, header.kind == FrameKind::kResume);
  }
  if (hooks_.on_control) hooks_.on_control(link, std::move(message));
}

// ---- Sending ----

bool Node::send(NodeId node, const Outgoing& outgoing, std::string* why) {
  if (node == id_) {
    dispatch(Message::copy_of(outgoing, id_));
    return true;
  }
  const std::shared_ptr<Link> link = route(node);
  if (link != nullptr && link->send(outgoing)) return true;
  if (!is_down(node, why) && why != nullptr) *why = "the process cannot be reached";
  return false;
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

void Node::cast(const Members& members, Outgoing& outgoing, const std::shared_ptr<PendingCall>& call) {
  if (members.ids.empty()) return;
  const uint64_t token = call ? open_slot(call, static_cast<int64_t>(outgoing.header.deadline_ns)) : 0;
  outgoing.header.token = token;
  std::string why;
  if (outgoing.header.kind != FrameKind::kStopActor) why = why_too_large(outgoing);
  if (!why.empty()) {
    for (uint32_t rank = 0; rank < members.ids.size(); ++rank) {
      if (call) {
        answer(token, rank, make_failure(token, rank, why));
      } else {
        undeliverable(outgoing.header.sender, id_, members.ids[rank], why);
      }
    }
    return;
  }
  for (uint32_t rank = 0; rank < members.ids.size(); ++rank) {
    const ActorId& id = members.ids[rank];
    outgoing.header.dest = id.index;
    outgoing.header.rank = rank;
    if (send(id.node, outgoing, &why)) continue;
    if (call) {
      // A link that just broke, whose reason is not known yet: node_down() will fill the slot with it.
      if (is_down(id.node, nullptr) || route(id.node) == nullptr) answer(token, rank, make_failure(token, rank, why));
    } else {
      unsent(outgoing.header.sender, id);
    }
  }
  if (call) driver_.poll_after_send();
}

void Node::spawn(const Members& members, Outgoing& outgoing) {
  outgoing.header.kind = FrameKind::kSpawn;
  for (uint32_t rank = 0; rank < members.ids.size(); ++rank) {
    outgoing.header.dest = members.ids[rank].index;
    outgoing.header.rank = rank;
    std::string ignored;  // a process that is gone: the calls will say so
    send(members.ids[rank].node, outgoing, &ignored);
  }
}

void Node::post(const ActorId& to, Outgoing& outgoing) {
  outgoing.header.kind = FrameKind::kOneway;
  outgoing.header.dest = to.index;
  outgoing.header.token = 0;
  if (const std::string why = why_too_large(outgoing); !why.empty()) {
    if ((outgoing.header.flags & kFlagQuiet) == 0) undeliverable(outgoing.header.sender, id_, to, why);
    return;
  }
  std::string why;
  if (send(to.node, outgoing, &why) || (outgoing.header.flags & kFlagQuiet) != 0) return;
  unsent(outgoing.header.sender, to);
}

void Node::unsent(ActorIndex sender, const ActorId& dest) {
  const bool has_route = route(dest.node) != nullptr;
  std::string why = "the process cannot be reached";
  {
    std::lock_guard lock(links_mutex_);
    auto found = down_.find(dest.node);
    if (found != down_.end()) {
      why = found->second;
    } else if (has_route && !closing_) {
      unsent_.push_back({sender, dest});
      return;
    }
  }
  undeliverable(sender, id_, dest, why);
}

// ---- Back-pressure ----

bool Node::has_room(const Members& members, uint64_t backlog_max) {
  const bool any_held = any_held_.load(std::memory_order_relaxed);
  for (const ActorId& id : members.ids) {
    if (id.node != id_) {
      const std::shared_ptr<Link> link = route(id.node);
      if (link == nullptr || link->closed()) continue;
      if (link->backlog() > backlog_max) return false;
    }
    if (!any_held) continue;
    std::lock_guard lock(held_mutex_);
    if (held_.contains(id)) return false;
  }
  return true;
}

int64_t RoomWait::next_look_ns() {
  const int64_t now_ns = monotonic_ns();
  if (start_ns_ == 0) {
    start_ns_ = now_ns;
    backlog_max_ /= 2;
  } else {
    look_ns_ = std::min(2 * look_ns_, kLookMaxNs);
  }
  return now_ns + look_ns_;
}

bool RoomWait::is_slow() {
  if (told_ || monotonic_ns() - start_ns_ < kSlowNs) return false;
  return told_ = true;
}

void RoomWait::say_slow(const std::string& receiver) {
  log_line("a message to " + receiver + " has waited for 5 s: what was sent before it has not been taken yet");
}

void Node::tell_sender(NodeId node, FrameKind kind, ActorIndex actor) {
  if (node == id_) return on_room({id_, actor}, kind == FrameKind::kResume);
  Outgoing notice{FrameHeader{}, {}, {}};
  notice.header.kind = kind;
  notice.header.dest = actor;
  if (const auto link = route(node)) link->send_control(notice);
}

void Node::on_room(const ActorId& actor, bool has_room) {
  std::lock_guard lock(held_mutex_);
  if (has_room) {
    held_.erase(actor);
  } else {
    held_.insert(actor);
  }
  any_held_.store(!held_.empty(), std::memory_order_relaxed);
}

// ---- Calls ----

uint64_t Node::open_slot(std::shared_ptr<PendingCall> call, int64_t deadline_ns) {
  std::unique_lock lock(slots_mutex_);
  uint32_t index;
  if (free_slots_.empty()) {
    index = static_cast<uint32_t>(slots_.size());
    slots_.emplace_back();
  } else {
    index = free_slots_.back();
    free_slots_.pop_back();
  }
  slots_[index].call = std::move(call);
  slots_[index].deadline_ns = deadline_ns;
  const uint64_t token = uint64_t{slots_[index].generation} << 32 | index;
  lock.unlock();
  if (deadline_ns != 0) deadlines_.add(deadline_ns, token);
  return token;
}

Node::Slot Node::find_slot(uint64_t token) {
  const uint32_t index = static_cast<uint32_t>(token);
  std::lock_guard lock(slots_mutex_);
  return index < slots_.size() && slots_[index].generation == token >> 32 ? slots_[index] : Slot();
}

void Node::expire(uint64_t token) {
  const std::shared_ptr<PendingCall> call = find_slot(token).call;
  if (!call) return;
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < call->size(); ++rank) {
    if (call->reply(rank) == nullptr) missing.push_back(rank);
  }
  constexpr size_t kNamedMax = 16;
  std::string text = "the deadline of this call has passed";
  if (call->size() > 1) {
    text += "; of " + std::to_string(call->size()) + " ranks these had not answered: ";
    for (size_t i = 0; i < std::min(missing.size(), kNamedMax); ++i) {
      text += (i == 0 ? "" : ", ") + std::to_string(missing[i]);
    }
    if (missing.size() > kNamedMax) text += " and " + std::to_string(missing.size() - kNamedMax) + " more";
  }
  for (const uint32_t rank : missing) fill(token, *call, rank, make_expired(token, rank, text));
}

void Node::answer(uint64_t token, uint32_t rank, MessagePtr reply) {
  const Slot slot = find_slot(token);
  if (!slot.call) return;  // a late answer
  // So is this, though the timer is later still. What a deadline has made fail elsewhere must not come before it does here.
  if (slot.deadline_ns != 0 && monotonic_ns() >= slot.deadline_ns) return expire(token);
  fill(token, *slot.call, rank, std::move(reply));
}

void Node::fill(uint64_t token, PendingCall& call, uint32_t rank, MessagePtr reply) {
  if (!call.fill(rank, std::move(reply), driver_)) return;
  const uint32_t index = static_cast<uint32_t>(token);
  std::lock_guard lock(slots_mutex_);
  Slot& slot = slots_[index];
  if (slot.generation != token >> 32) return;
  if (slot.deadline_ns != 0) deadlines_.remove(std::exchange(slot.deadline_ns, 0), token);
  slot.call.reset();
  if (++slot.generation == 0) slot.generation = 1;
  free_slots_.push_back(index);
}

void Node::on_reply(MessagePtr message) {
  const uint64_t token = message->header.dest;
  const uint32_t rank = message->header.rank;
  answer(token, rank, std::move(message));
}

void Node::reply(const FrameHeader& request, NodeId from, FrameKind kind, Outgoing& outgoing) {
  if (request.token == 0) return;
  outgoing.header.kind = kind;
  outgoing.header.dest = request.token;
  outgoing.header.rank = request.rank;
  if (kind != FrameKind::kReplyFailed) {
    const std::string why = why_too_large(outgoing);
    Outgoing failure{FrameHeader{}, as_byte_span(why.data(), why.size()), {}};
    if (!why.empty()) return reply(request, from, FrameKind::kReplyFailed, failure);
  }
  std::string ignored;  // the caller is gone: nobody waits
  send(from, outgoing, &ignored);
}

void Node::refuse(const Message& message, std::string_view why) {
  const FrameHeader& header = message.header;
  if (header.kind == FrameKind::kStopActor) {
    Outgoing done{FrameHeader{}, {}, {}};
    reply(header, message.from, FrameKind::kReply, done);
  } else if (header.token != 0) {
    Outgoing failure{FrameHeader{}, as_byte_span(why.data(), why.size()), {}};
    reply(header, message.from, FrameKind::kReplyFailed, failure);
  } else if (header.kind == FrameKind::kOneway && (header.flags & kFlagQuiet) == 0) {
    undeliverable(header.sender, message.from, {id_, header.dest}, why);
  }
}

void Node::undeliverable(ActorIndex sender, NodeId from, const ActorId& dest, std::string_view why) {
  {
    std::lock_guard lock(links_mutex_);
    if (closing_) return;  // nothing fails, and nothing is said, because this process ends
  }
  const ByteSpan part = as_byte_span(&dest, sizeof dest);
  Outgoing bounce{FrameHeader{}, as_byte_span(why.data(), why.size()), {&part, 1}};
  bounce.header.kind = FrameKind::kUndeliverable;
  bounce.header.dest = sender;
  std::string ignored;
  send(from, bounce, &ignored);
}

// ---- Actors ----

void Node::set_factory(CellKind kind, CellFactory& factory) { factories_[static_cast<uint32_t>(kind)] = &factory; }

ActorIndex Node::new_actor_index(uint32_t count) { return next_index_.fetch_add(count, std::memory_order_relaxed); }

void Node::add_cell(ActorIndex index, std::shared_ptr<Cell> cell) {
  std::lock_guard lock(cells_mutex_);
  cells_.emplace(index, std::move(cell));
}

void Node::add_lazy_actor(ActorIndex index, MessagePtr spawn) {
  std::lock_guard lock(cells_mutex_);
  lazy_.emplace(index, std::move(spawn));
}

// True: it has been made; look for it again.
bool Node::spawn_lazy(ActorIndex index) {
  MessagePtr spawn;
  {
    std::lock_guard lock(cells_mutex_);
    auto found = lazy_.find(index);
    if (found == lazy_.end() || !found->second) return false;
    spawn = std::move(found->second);
  }
  on_spawn(std::move(spawn));
  return true;
}

void Node::remove_cell(ActorIndex index, std::string epitaph) {
  std::shared_ptr<Cell> cell;  // destroyed outside the lock
  std::lock_guard lock(cells_mutex_);
  // Even if it has no cell yet: an actor may end before its spawn has been handled to the end (deliver_early()).
  write_epitaph(index, epitaph.empty() ? kNoSuchActor : std::move(epitaph));
  auto found = cells_.find(index);
  if (found == cells_.end()) return;
  cell = std::move(found->second);
  cells_.erase(found);
}

void Node::write_epitaph(ActorIndex index, std::string text) {
  if (!epitaphs_.insert_or_assign(index, std::move(text)).second) return;
  epitaph_order_.push_back(index);
  if (epitaph_order_.size() <= kEpitaphsMax) return;
  epitaphs_.erase(epitaph_order_.front());
  epitaph_order_.pop_front();
}

std::shared_ptr<Cell> Node::find_cell(ActorIndex index) const {
  std::lock_guard lock(cells_mutex_);
  auto found = cells_.find(index);
  return found != cells_.end() ? found->second : nullptr;
}

// A handle may be used by somebody whose messages overtake those of the actor's creator. False with an empty epitaph:
// look again.
bool Node::keep_early(MessagePtr& message, std::string* epitaph) {
  const ActorIndex index = message->header.dest;
  bool first;
  {
    std::scoped_lock lock(links_mutex_, cells_mutex_);
    if (auto written = epitaphs_.find(index); written != epitaphs_.end()) {
      *epitaph = written->second;
      return false;
    }
    *epitaph = kNoSuchActor;
    const bool being_made = lazy_.contains(index);
    if (closing_ || !hooks_.after || (creator_of(index) == (id_ & 0xffffffff) && !being_made)) return false;
    for (const auto& [node, reason] : down_) {
      if (creator_of(index) == (node & 0xffffffff)) return false;
    }
    if (cells_.contains(index)) {  // spawned while we looked
      epitaph->clear();
      return false;
    }
    auto& waiting = early_[index];
    first = waiting.empty();
    waiting.push_back(std::move(message));
  }
  if (first) {
    hooks_.after(kEarlyLimitNs, [this, index] {
      refuse_early([index](ActorIndex other) { return other == index; }, kNoSuchActor);
    });
  }
  return true;
}

// Until the last early message is delivered, later ones join them, so that each sender's order holds.
void Node::deliver_early(ActorIndex index, const std::shared_ptr<Cell>& cell) {
  for (;;) {
    std::vector<MessagePtr> waiting;
    {
      std::lock_guard lock(cells_mutex_);
      auto found = early_.find(index);
      if (found == early_.end() || found->second.empty()) {
        if (found != early_.end()) early_.erase(found);
        lazy_.erase(index);
        if (!epitaphs_.contains(index)) cells_.emplace(index, cell);
        return;
      }
      waiting.swap(found->second);
    }
    for (MessagePtr& message : waiting) cell->deliver(std::move(message));
  }
}

void Node::refuse_early(const std::function<bool(ActorIndex)>& of, const std::string& why) {
  std::vector<MessagePtr> refused;
  {
    std::lock_guard lock(cells_mutex_);
    for (auto it = early_.begin(); it != early_.end();) {
      if (!of(it->first)) {
        ++it;
        continue;
      }
      for (MessagePtr& message : it->second) refused.push_back(std::move(message));
      it = early_.erase(it);
    }
  }
  for (const MessagePtr& message : refused) refuse(*message, why);
}

void Node::on_spawn(MessagePtr message) {
  const ActorIndex index = message->header.dest;
  const uint32_t kind = message->header.method & ((1u << kSwarmShift) - 1);
  if (kind >= kCellKinds || factories_[kind] == nullptr) {
    constexpr char kWhy[] = "this process cannot run that kind of actor";
    {
      std::lock_guard lock(cells_mutex_);
      write_epitaph(index, kWhy);
    }
    refuse(*message, kWhy);
    refuse_early([index](ActorIndex other) { return other == index; }, kWhy);
    return;
  }
  std::shared_ptr<Cell> cell = factories_[kind]->make(*this, index, std::move(message));
  if (cell) deliver_early(index, cell);
}

void Node::on_frame(Link& link, MessagePtr message) {
  // Dead is dead: what a second link to the node still holds comes after its messages and spawns have been given up.
  if (any_down_.load(std::memory_order_relaxed) && is_down(link.peer(), nullptr)) return;
  if (message->header.kind == FrameKind::kStopNode) return on_control(link, std::move(message));
  dispatch(std::move(message));
}

void Node::deliver(MessagePtr message) {
  for (;;) {
    if (std::shared_ptr<Cell> cell = find_cell(message->header.dest)) return cell->deliver(std::move(message));
    if (message->header.kind == FrameKind::kUndeliverable) {
      if (hooks_.on_undeliverable) hooks_.on_undeliverable(std::string(message->text()));
      return;
    }
    if (spawn_lazy(message->header.dest)) continue;
    std::string epitaph;
    if (keep_early(message, &epitaph)) return;
    if (!epitaph.empty()) return refuse(*message, epitaph);
  }
}

void Node::dispatch(MessagePtr message) {
  switch (message->header.kind) {
    case FrameKind::kReply:
    case FrameKind::kReplyError:
    case FrameKind::kReplyFailed:
      on_reply(std::move(message));
      return;
    case FrameKind::kSpawn:
      on_spawn(std::move(message));
      return;
    case FrameKind::kRequest:
    case FrameKind::kOneway:
    case FrameKind::kStopActor:
    case FrameKind::kUndeliverable: {
      deliver(std::move(message));
      return;
    }
    default:
      log_line("ignored a control frame on the data lane");
  }
}

}  // namespace monarch
