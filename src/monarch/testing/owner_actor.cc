// The actors of an OwnerWorld, and calls of them.
#include <algorithm>
#include <cstring>

#include "monarch/testing/owner_world.h"

namespace monarch::testing {

namespace {
struct Order {
  uint32_t mesh, rank;  // of who is called
  uint32_t what;
};
}  // namespace

// ---- Calls ----

void OwnerWorld::call(NodeId caller, const Actor* by, Mesh& mesh, const Ranks& ranks, uint32_t what, bool oneway) {
  auto members = std::make_shared<Members>();
  std::vector<Order> orders;
  const uint32_t known = sim_.node(caller).successions().epoch_of(mesh.members->ids[0].index);
  Call made{caller, &mesh, ranks, {}, nullptr};
  for (const uint32_t rank : ranks) {
    members->ids.push_back(mesh.members->ids[rank]);
    orders.push_back({mesh.number, rank, what});
    uint32_t epoch = 0;
    for (const uint32_t each : mesh.ranks[rank].epochs) epoch = each <= known ? std::max(epoch, each) : epoch;
    made.epochs.push_back(epoch);
  }
  Outgoing outgoing{FrameHeader{}, as_byte_span(orders.data(), orders.size() * sizeof(Order)), {}};
  outgoing.header.sender = by == nullptr ? 0 : by->index;
  outgoing.header.kind = oneway ? FrameKind::kOneway : FrameKind::kRequest;
  if (!oneway) {
    made.call = std::make_shared<PendingCall>(members);
    calls_.push_back(made);
  }
  sim_.node(caller).cast(*members, outgoing, made.call);
}

// ---- Actors ----

std::shared_ptr<Cell> OwnerWorld::Factory::make(Node& node, ActorIndex index, MessagePtr spawn) {
  uint32_t number = 0;
  std::memcpy(&number, spawn->body.data(), sizeof number);
  Mesh& mesh = *world.meshes_.at(number);
  const uint32_t rank = spawn->header.rank, epoch = spawn->header.epoch;
  auto actor = std::make_shared<Actor>(world, node, index, mesh, rank, epoch);
  // RST-4: the old one has ended. RST-2: for one death one is made.
  for (const auto& other : world.actors_) {
    if (&other->node != &node || other->index != index) continue;
    world.expect(other->life == Actor::Life::kOver, "two of one actor", [&] { return other->who(); });
  }
  const bool is_first = world.by_epoch_.try_emplace({&mesh, rank, epoch}, actor.get()).second;
  world.expect(is_first, "made twice", [&] { return actor->who(); });
  world.actors_.push_back(actor);
  actor->ready();
  return actor;
}

std::string OwnerWorld::Actor::who() const {
  return "rank " + std::to_string(rank) + " of mesh " + std::to_string(mesh.number) + ", epoch " + std::to_string(epoch);
}

void OwnerWorld::Actor::deliver(MessagePtr message) {
  if (life >= Life::kEnds) return refuse(std::move(message));
  inbox.push_back(std::move(message));
  ready();
}

void OwnerWorld::Actor::supervise(MeshFailure failure) {
  world.told(node.id(), this, failure);
  if (life >= Life::kEnds) return;
  failures.push_back(std::move(failure));
  ready();
}

void OwnerWorld::Actor::ready() {
  if (busy || (inbox.empty() && failures.empty() && life != Life::kBegins)) return;
  busy = true;
  const int64_t takes_ns = world.sim_.chance(5) ? 10'000'000 : static_cast<int64_t>(world.sim_.random(300'000));
  world.sim_.after_in(node.id(), takes_ns, [self = shared_from_this()] {
    self->busy = false;
    self->turn();
  });
}

void OwnerWorld::Actor::turn() {
  if (life == Life::kBegins) {
    construct();
  } else if (life != Life::kLives) {
    return;
  } else if (!failures.empty()) {
    ask();
  } else {
    MessagePtr message = std::move(inbox.front());
    inbox.pop_front();
    handle(std::move(message));
  }
  if (life == Life::kLives) ready();
}

void OwnerWorld::Actor::construct() {
  life = Life::kLives;
  if (world.sim_.chance(mesh.constructor_fails)) fail("its constructor failed");
}

void OwnerWorld::Actor::handle(MessagePtr message) {
  const FrameHeader& header = message->header;
  if (header.kind == FrameKind::kUndeliverable) {
    if (world.sim_.chance(20)) fail("a message of its own came back");
    return;
  }
  if (header.kind == FrameKind::kStopActor) {
    const Mesh::Rank& known = mesh.ranks[rank];
    const bool by_owner = mesh.let_go || known.stopped.contains(epoch);
    const bool by_node = header.token == 0 && (node.is_down(mesh.node) || known.epochs.back() > epoch);
    world.expect(by_owner || by_node, "stopped, and another one was meant", [&] { return who(); });
    stops.push_back(std::move(message));
    return end(Failure::Kind::kActorStopped, "stopped", {}, false);
  }
  Order order;
  std::memcpy(&order, message->body.data() + header.rank * sizeof order, sizeof order);
  world.expect(order.mesh == mesh.number && order.rank == rank, "a handle reaches another one", [&] { return who(); });
  const uint32_t said[] = {mesh.number, rank, epoch};
  Outgoing answer{FrameHeader{}, as_byte_span(said, sizeof said), {}};
  const FrameKind kind = order.what == kRaise ? FrameKind::kReplyError : FrameKind::kReply;
  if (order.what == kFail && world.sim_.chance(50)) {  // before it has answered
    fail("its endpoint failed");
    return node.refuse(*message, *epitaph);
  }
  if (order.what == kSpawn) world.grow(this);
  if (order.what == kTell) {
    if (Mesh* other = world.any_mesh(false)) world.call(node.id(), this, *other, {0}, kEcho, true);
  }
  node.reply(header, message->from, kind, answer);
  if (order.what == kFail) fail("it failed");
  if (order.what == kStopSelf) end(Failure::Kind::kActorStopped, "it is done", {}, true);
}

void OwnerWorld::Actor::ask() {
  while (!failures.empty() && !node.supervisor().is_current(failures.front())) failures.pop_front();
  if (failures.empty()) return;
  const MeshFailure failure = std::move(failures.front());
  failures.pop_front();
  world.asked(this, failure);
  busy = true;  // hooks may be slow
  const int64_t takes_ns = world.sim_.chance(20) ? 20'000'000 : static_cast<int64_t>(world.sim_.random(1'000'000));
  world.sim_.after_in(node.id(), takes_ns, [self = shared_from_this(), failure] {
    self->busy = false;
    self->decide(failure);
    if (self->lives()) self->ready();
  });
}

void OwnerWorld::Actor::decide(const MeshFailure& failure) {
  Mesh& failed_mesh = mesh_of(failure, world);
  const uint64_t how = world.sim_.random(100);
  if (how < 25) return fail(failure.report(), failure.origin());
  if (how < 30) return fail("its hook failed of that:\n" + failure.report(), failure.origin());
  if (how > 60 || failed_mesh.let_go) return;
  if (failed_mesh.ranks[failure.rank].respawns++ >= 3) return;
  if (failed_mesh.is_procs) return world.respawn_procs(failed_mesh, {failure.rank}, world.sim_.chance(30));
  world.respawn_actors(failed_mesh, {failure.rank});
}

void OwnerWorld::Actor::fail(const std::string& why, const std::string& began) {
  end(Failure::Kind::kActor, who() + ": " + why, began, false);
}

void OwnerWorld::Actor::end(Failure::Kind kind, const std::string& why, const std::string& began, bool by_itself) {
  life = Life::kEnds;
  failed = kind == Failure::Kind::kActor;
  epitaph = node.end_of_actor(index, rank, kind, why);
  epitaph->origin = began;
  origin = began;
  if (origin.empty()) origin = epitaph->headline().substr(0, epitaph->headline().find('\n'));
  if (failed || by_itself) node.actor_ended(*epitaph);
  for (MessagePtr& message : std::exchange(inbox, {})) refuse(std::move(message));
  failures.clear();
  for (Mesh* each : owned) world.let_go(*each);
  const int64_t takes_ns = world.sim_.chance(20) ? 15'000'000 : static_cast<int64_t>(world.sim_.random(500'000));
  world.sim_.after_in(node.id(), takes_ns, [self = shared_from_this()] { self->over(); });
}

void OwnerWorld::Actor::refuse(MessagePtr message) {
  if (message->header.kind == FrameKind::kStopActor && life != Life::kOver) return stops.push_back(std::move(message));
  node.refuse(*message, *epitaph);
}

// It has cleaned up.
void OwnerWorld::Actor::over() {
  life = Life::kOver;
  node.remove_cell(index, *epitaph);
  for (const MessagePtr& message : std::exchange(stops, {})) node.refuse(*message, *epitaph);
}

}  // namespace monarch::testing
