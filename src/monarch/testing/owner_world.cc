#include "monarch/testing/owner_world.h"

#include <algorithm>

namespace monarch::testing {

OwnerWorld::OwnerWorld(uint64_t seed, SimWorld::Faults faults) : sim_(seed, faults) {
  SimWorld::Owners owners;
  owners.on_mesh_failure = [this](NodeId at, const MeshFailure& failure) {
    told(at, nullptr, failure);
    // The script's hook is asked a bit later.
    sim_.after_in(at, sim_.delay_ns(), [this, at, failure] {
      if (sim_.node(at).supervisor().is_current(failure)) client_decides(failure);
    });
  };
  owners.on_restart_wanted = [this](NodeId at, std::vector<MeshFailure> failures) { wanted(at, std::move(failures)); };
  sim_.set_owners(std::move(owners));
  script_ = sim_.add_node(0);
  sim_.node(script_).set_factory(CellKind::kNative, factory_);
  processes_[script_] = {};
}

OwnerWorld::~OwnerWorld() { sim_.end(); }

void OwnerWorld::violated(const char* what, const std::string& of) {
  violations_ += std::to_string(sim_.now_ns()) + " ns: " + what + (of.empty() ? "" : ": " + of) + "\n";
}

// ---- What there is ----

bool OwnerWorld::owner_lives(const Mesh& mesh) const {
  return sim_.alive(mesh.node) && !mesh.let_go && (mesh.by == nullptr || mesh.by->lives());
}

OwnerWorld::Mesh* OwnerWorld::any_mesh(bool procs) {
  std::vector<Mesh*> found;
  for (const auto& mesh : meshes_) {
    if (mesh->is_procs == procs) found.push_back(mesh.get());
  }
  return found.empty() ? nullptr : found[sim_.random(found.size())];
}

OwnerWorld::Actor* OwnerWorld::any_actor() {
  std::vector<Actor*> found;
  for (const auto& actor : actors_) {
    if (actor->lives() && runs(actor->node.id())) found.push_back(actor.get());
  }
  return found.empty() ? nullptr : found[sim_.random(found.size())];
}

std::vector<NodeId> OwnerWorld::processes() const {
  std::vector<NodeId> found;
  for (const auto& [id, process] : processes_) {
    if (sim_.alive(id)) found.push_back(id);
  }
  return found;
}

NodeId OwnerWorld::any_process() {
  std::vector<NodeId> found = processes();
  std::erase(found, script_);
  return found.empty() ? 0 : found[sim_.random(found.size())];
}

NodeId OwnerWorld::add_agent(int host) {
  const NodeId id = sim_.add_node(host);
  sim_.node(id).set_factory(CellKind::kNative, factory_);
  sim_.attach(script_, id);
  agents_.push_back(id);
  processes_[id] = {};
  return id;
}

NodeId OwnerWorld::start_process(NodeId parent, NodeId owner) {
  // Of a script, whoever starts processes for it on another host does so on its own behalf.
  const NodeId id = sim_.add_child(parent, owner == script_ ? 0 : owner);
  sim_.node(id).set_factory(CellKind::kNative, factory_);
  processes_[id] = {.parent = parent};
  return id;
}

// It would be asked over a link.
bool OwnerWorld::can_start_for(NodeId parent, NodeId owner) {
  const auto is_linked = [&](const auto& link) { return link->peer() == owner && !link->closed(); };
  const auto links = sim_.node(parent).links();
  return sim_.alive(parent) && (parent == owner || std::any_of(links.begin(), links.end(), is_linked));
}

NodeId OwnerWorld::node_of(const Mesh& mesh, uint32_t rank) {
  return sim_.node(mesh.node).successions().latest(mesh.members->ids[rank].node);
}

OwnerWorld::Actor* OwnerWorld::current(const Mesh& mesh, uint32_t rank) {
  const auto found = by_epoch_.find({&mesh, rank, mesh.ranks[rank].epochs.back()});
  return found == by_epoch_.end() ? nullptr : found->second;
}

// ---- What owners do ----

OwnerWorld::Mesh& OwnerWorld::add_mesh(Actor* by, std::shared_ptr<const Members> members, bool is_procs, Mesh* procs,
                                       Policy policy) {
  auto made = std::make_unique<Mesh>();
  Mesh& mesh = *made;
  mesh.number = static_cast<uint32_t>(meshes_.size());
  mesh.is_procs = is_procs;
  mesh.node = by == nullptr ? script_ : by->node.id();
  mesh.owner = by == nullptr ? 0 : by->index;
  mesh.by = by;
  mesh.members = std::move(members);
  mesh.procs = procs;
  mesh.policy = policy;
  mesh.constructor_fails = sim_.chance(15) ? 100 : sim_.chance(20) ? 40 : 0;
  for (const ActorId& id : mesh.members->ids) mesh.ranks.emplace_back().node = id.node;
  meshes_.push_back(std::move(made));
  if (procs != nullptr) procs->spawned.push_back(&mesh);
  if (by != nullptr) by->owned.push_back(&mesh);
  OwnedMesh owned;
  owned.owner = mesh.owner;
  owned.is_procs = is_procs;
  owned.name = std::to_string(mesh.number);
  owned.creator = "<root>";
  owned.labels = {"ranks"};
  owned.sizes = {static_cast<int64_t>(mesh.ranks.size())};
  owned.members = mesh.members;
  owned.restarts = policy.times > 0;
  mesh.id = sim_.node(mesh.node).own(std::move(owned));
  return mesh;
}

OwnerWorld::Mesh& OwnerWorld::spawn_actors(Actor* by, const std::vector<NodeId>& nodes, Mesh* procs, Policy policy) {
  Node& node = by == nullptr ? sim_.node(script_) : by->node;
  const bool distinct = std::set<NodeId>(nodes.begin(), nodes.end()).size() == nodes.size();
  const bool same_index = distinct && sim_.chance(70);
  const ActorIndex first = node.new_actor_index(same_index ? 1 : static_cast<uint32_t>(nodes.size()));
  auto members = std::make_shared<Members>();
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    members->ids.push_back({nodes[rank], same_index ? first : first + rank});
  }
  Mesh& mesh = add_mesh(by, std::move(members), false, procs, policy);
  Outgoing spawn{FrameHeader{}, as_byte_span(&mesh.number, sizeof mesh.number), {}};
  spawn.header.sender = mesh.owner;
  spawn.header.method = static_cast<uint32_t>(CellKind::kNative);
  mesh.spawn = Message::copy_of(spawn, 0);
  node.spawn(*mesh.members, spawn);
  return mesh;
}

OwnerWorld::Mesh& OwnerWorld::spawn_procs(Actor* by, NodeId parent, size_t count, Policy policy) {
  auto members = std::make_shared<Members>();
  const NodeId owner = by == nullptr ? script_ : by->node.id();
  for (size_t i = 0; i < count; ++i) members->ids.push_back({start_process(parent, owner), 0});
  return add_mesh(by, std::move(members), true, nullptr, policy);
}

void OwnerWorld::let_go(Mesh& mesh) {
  if (std::exchange(mesh.let_go, true)) return;
  Node& node = sim_.node(mesh.node);
  node.supervisor().remove(mesh.id);
  if (!mesh.is_procs) {
    Outgoing stop{FrameHeader{}, {}, {}};
    stop.header.kind = FrameKind::kStopActor;
    stop.header.sender = mesh.owner;
    auto call = std::make_shared<PendingCall>(mesh.members);
    calls_.push_back({mesh.node, nullptr, {}, {}, call});
    return node.cast(*mesh.members, stop, call);
  }
  std::vector<NodeId> ending;
  for (uint32_t rank = 0; rank < mesh.ranks.size(); ++rank) {
    const NodeId id = node_of(mesh, rank);
    if (!node.is_down(id)) ending.push_back(id);
    ask_to_end(id);  // what is dead to this one may live
  }
  node.supervisor().note_stopping(ending);
}

// Whoever has started it does so.
void OwnerWorld::ask_to_end(NodeId id) {
  if (std::exchange(processes_.at(id).asked_to_end, true)) return;
  const NodeId parent = processes_.at(id).parent;
  sim_.after_in(parent, sim_.delay_ns(), [this, id, parent] {
    sim_.deaths(parent).stop_asked(id, "stopped");
    sim_.after(sim_.delay_ns(), [this, id] { sim_.kill(id); });
  });
}

OwnerWorld::Ranks OwnerWorld::ended_of(const Mesh& mesh, const Ranks& among) {
  const auto ended = sim_.node(mesh.node).supervisor().ended(mesh.id);
  Ranks found;
  for (const uint32_t rank : among) {
    if (ended && std::binary_search(ended->begin(), ended->end(), rank)) found.push_back(rank);
  }
  return found;
}

bool OwnerWorld::respawn_actors(Mesh& mesh, const Ranks& ranks, const Ranks& stopped) {
  const Ranks still = ended_of(mesh, ranks);
  if (still.empty() && stopped.empty()) return true;
  Node::Restart order;
  order.actors.push_back({mesh.id, mesh.spawn, 0, still, stopped});
  return restart(mesh.node, order);
}

void OwnerWorld::respawn_living(Mesh& mesh, uint32_t rank) {
  Node& node = sim_.node(mesh.node);
  const auto ended = node.supervisor().ended(mesh.id);
  if (!ended || std::binary_search(ended->begin(), ended->end(), rank)) return;
  Node::Restart order;
  order.actors.push_back({mesh.id, mesh.spawn, 0, {rank}, {}});
  const uint32_t epoch = node.successions().epoch_of(mesh.members->ids[rank].index);
  expect(!node.restart(order), "what lives was made anew");
  expect(node.successions().epoch_of(mesh.members->ids[rank].index) == epoch, "what lives has another epoch");
}

// The ranks that have ended with these processes.
OwnerWorld::Ranks OwnerWorld::fallen_on(const Mesh& mesh, const std::set<NodeId>& nodes) {
  Ranks found;
  for (const uint32_t rank : sim_.node(mesh.node).supervisor().fallen(mesh.id)) {
    if (nodes.contains(node_of(mesh, rank))) found.push_back(rank);
  }
  return found;
}

void OwnerWorld::respawn_procs(Mesh& procs, const Ranks& ranks, bool racing, std::map<Mesh*, Ranks> stopped,
                               std::function<void(bool)> done) {
  const NodeId at = procs.node;
  if (!racing && procs.restarting) {  // one after the other
    return sim_.after_in(at, 300'000, [=, this, &procs] { respawn_procs(procs, ranks, racing, stopped, done); });
  }
  const Ranks still = ended_of(procs, ranks);
  if (still.empty()) return done(true);
  if (!racing) procs.restarting = true;
  const auto finish = [&procs, racing, done](bool made) {
    if (!racing) procs.restarting = false;
    done(made);
  };
  std::vector<NodeId> ended;
  for (const uint32_t rank : still) ended.push_back(node_of(procs, rank));
  sim_.after_in(at, sim_.delay_ns(), [=, this, &procs] {
    std::vector<NodeId> started;
    const auto give_back = [this, &started] {
      for (const NodeId id : started) ask_to_end(id);
    };
    for (const NodeId id : ended) {
      const NodeId parent = processes_.at(id).parent;
      if (!can_start_for(parent, at) || procs.let_go) return give_back(), finish(false);
      started.push_back(start_process(parent, at));
    }
    sim_.after_in(at, sim_.delay_ns(), [=, this, &procs] {
      Node::Restart order;
      order.procs = procs.id;
      order.proc_ranks = still;
      for (size_t i = 0; i < ended.size(); ++i) order.processes.emplace_back(ended[i], started[i]);
      for (Mesh* mesh : procs.spawned) {
        const Ranks again = fallen_on(*mesh, {ended.begin(), ended.end()});
        const auto others = stopped.find(mesh);
        const bool any_others = others != stopped.end() && !others->second.empty();
        if (mesh->let_go || (again.empty() && !any_others)) continue;
        order.actors.push_back({mesh->id, mesh->spawn, 0, again, any_others ? others->second : Ranks{}});
      }
      const bool made = !procs.let_go && restart(at, order);
      if (!made) {
        for (const NodeId id : started) ask_to_end(id);
      }
      finish(made);
    });
  });
}

// By the core. What it has made anew is written down here.
bool OwnerWorld::restart(NodeId at, const Node::Restart& order) {
  Node& node = sim_.node(at);
  const int64_t now_ns = sim_.now_ns();
  if (!node.restart(order)) return false;
  ++respawns_;
  for (const auto& mesh : meshes_) {
    if (mesh->node != at || mesh->let_go) continue;
    if (order.procs == mesh->id) note_made(*mesh, order.proc_ranks, now_ns);
    for (const Node::Restart::Actors& each : order.actors) {
      if (each.mesh != mesh->id || !node.supervisor().members(mesh->id)) continue;  // all has ended as it wished
      Ranks candidates = each.ranks;
      for (const uint32_t number : each.stopped) {
        Mesh::Rank& rank = mesh->ranks[number];
        if (!rank.stopped.contains(rank.epochs.back())) continue;  // somebody else has made it anew since
        rank.was_stopped = true;
        candidates.push_back(number);
      }
      std::sort(candidates.begin(), candidates.end());
      candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
      note_made(*mesh, candidates, now_ns);
    }
  }
  return true;
}

void OwnerWorld::note_made(Mesh& mesh, const Ranks& candidates, int64_t now_ns) {
  const Ranks ended = ended_of(mesh, candidates);
  for (const uint32_t number : candidates) {
    Mesh::Rank& rank = mesh.ranks[number];
    const bool was_stopped = std::exchange(rank.was_stopped, false);
    const bool again_ended = rank.noticed.contains(now_ns);  // in the same moment
    if (std::binary_search(ended.begin(), ended.end(), number) && !again_ended) continue;
    const Actor* before = mesh.is_procs ? nullptr : current(mesh, number);
    const bool nobodys = mesh.by != nullptr && mesh.by->is_replaced();  // who would be told ends
    const bool ended_by_itself = before != nullptr && before->life >= Actor::Life::kEnds && !before->failed;
    const bool was_wished = nobodys || was_stopped || was_to_end(mesh, rank.node) || ended_by_itself;
    const bool was_told = rank.noticed[rank.made_ns] == 1;
    expect(was_wished || was_told, "made anew, and its end was never told", [&] { return name_of(mesh, number); });
    rank.made_ns = now_ns;
    rank.node = node_of(mesh, number);
    if (!mesh.is_procs) {
      rank.epochs.push_back(sim_.node(mesh.node).successions().epoch_of(mesh.members->ids[number].index));
    }
  }
}

// ---- What is told ----

std::string OwnerWorld::name_of(const Mesh& mesh, uint32_t rank) {
  return "rank " + std::to_string(rank) + (mesh.is_procs ? " of processes " : " of mesh ") + std::to_string(mesh.number);
}

OwnerWorld::Mesh& OwnerWorld::mesh_of(const MeshFailure& failure, OwnerWorld& world) {
  return *world.meshes_.at(std::stoul(failure.mesh->name));
}

// SUP-1: once, where its owner is, while it has one, and of what has ended indeed.
OwnerWorld::Mesh& OwnerWorld::noticed(NodeId at, const MeshFailure& failure) {
  Mesh& mesh = mesh_of(failure, *this);
  expect(mesh.node == at, "told elsewhere");
  expect(!mesh.let_go, "told of what its owner has ended");
  expect(++mesh.ranks[failure.rank].noticed[failure.made_ns] == 1, "noticed twice", [&] { return failure.report(); });
  if (failure.why->is_death()) {
    expect(sim_.node(at).is_down(failure.why->node) || sim_.node(at).successions().any(), "told as dead, and lives");
    return mesh;
  }
  const auto found = by_epoch_.find({&mesh, failure.rank, mesh.ranks[failure.rank].epochs.back()});
  const Actor* actor = found == by_epoch_.end() ? nullptr : found->second;
  const bool failed = actor != nullptr && actor->failed;
  expect(failed, "told as failed, and has not", [&] { return failure.report(); });
  expect(!failed || failure.origin() == actor->origin, "told with another cause");  // SUP-2
  return mesh;
}

void OwnerWorld::told(NodeId at, const Actor* by, const MeshFailure& failure) {
  Mesh& mesh = mesh_of(failure, *this);
  if (!mesh.ranks[failure.rank].noticed.contains(failure.made_ns)) noticed(at, failure);
  expect(mesh.by == by, "told to somebody who does not own it");
  expect(++mesh.ranks[failure.rank].told[failure.made_ns] == 1, "told twice", [&] { return failure.report(); });
}

// RST-2: nobody is asked about what is there again.
void OwnerWorld::asked(const Actor* by, const MeshFailure& failure) {
  const Mesh& mesh = mesh_of(failure, *this);
  expect(mesh.by == by, "somebody else is asked");
  const bool is_known = !mesh.let_go && sim_.node(mesh.node).supervisor().ended(mesh.id).has_value();
  expect(!is_known || failure.made_ns == mesh.ranks[failure.rank].made_ns, "asked about what was made anew since");
}

void OwnerWorld::client_decides(const MeshFailure& failure) {
  Mesh& mesh = mesh_of(failure, *this);
  asked(nullptr, failure);
  if (mesh.let_go || passive_ || !sim_.chance(40)) return;
  if (mesh.is_procs) return respawn_procs(mesh, {failure.rank}, sim_.chance(30));
  if (mesh.ranks[failure.rank].respawns++ < 3) respawn_actors(mesh, {failure.rank});
}

// ---- Restart policies ----

void OwnerWorld::wanted(NodeId at, std::vector<MeshFailure> failures) {
  for (const MeshFailure& failure : failures) noticed(at, failure);
  auto together = std::make_shared<std::vector<MeshFailure>>(std::move(failures));  // shared: with the tasks to come
  sim_.after_in(at, sim_.delay_ns(), [this, at, together] { decide_together(at, together); });
}

void OwnerWorld::give_up(NodeId at, const std::vector<MeshFailure>& together) {
  for (const MeshFailure& failure : together) {
    MeshFailure undecided = failure;
    undecided.history = "It had been made anew before";
    sim_.node(at).decide(std::move(undecided));
  }
}

void OwnerWorld::handled(const std::vector<MeshFailure>& together) {
  for (const MeshFailure& failure : together) {
    mesh_of(failure, *this).ranks[failure.rank].handled.insert(failure.made_ns);
  }
}

void OwnerWorld::decide_together(NodeId at, std::shared_ptr<std::vector<MeshFailure>> together) {
  std::vector<MeshFailure> failed;
  bool any_policy = false;
  Mesh* lock = nullptr;
  for (const MeshFailure& failure : *together) {
    Mesh& mesh = mesh_of(failure, *this);
    if (mesh.policy.times == 0 || mesh.let_go) continue;
    any_policy = true;
    if (lock == nullptr) lock = mesh.procs != nullptr ? mesh.procs : &mesh;
    if (sim_.node(at).supervisor().is_current(failure)) failed.push_back(failure);
  }
  if (!any_policy) return give_up(at, *together);
  if (lock->deciding) return sim_.after_in(at, 300'000, [this, at, together] { decide_together(at, together); });
  if (failed.empty()) return handled(*together);
  for (const MeshFailure& failure : failed) {
    const Mesh& mesh = mesh_of(failure, *this);
    if (mesh.ranks[failure.rank].budget >= mesh.policy.times) return give_up(at, *together);
  }
  Mesh& first = mesh_of(failed[0], *this);
  Mesh* procs = first.is_procs ? &first : first.procs;
  const bool of_process = failed[0].why->is_death();
  if (of_process && (procs == nullptr || procs->let_go)) return give_up(at, *together);
  lock->deciding = true;
  std::map<Mesh*, Ranks> stopped;
  for (const MeshFailure& failure : failed) {
    Mesh& mesh = mesh_of(failure, *this);
    ++mesh.ranks[failure.rank].budget;
    if (mesh.policy.all && !mesh.is_procs && !stopped.contains(&mesh)) stopped[&mesh] = stop_others(mesh, failure.rank);
  }
  const auto is_any = [](const auto& each) { return !each.second.empty(); };
  const bool any_stopped = std::any_of(stopped.begin(), stopped.end(), is_any);
  const auto done = [this, at, together, lock](bool made) {
    lock->deciding = false;
    made ? handled(*together) : give_up(at, *together);
  };
  // As long as those that are stopped may take; some take longer.
  sim_.after_in(at, any_stopped ? 8'000'000 : 1, [this, procs, of_process, stopped, done, failed, &first] {
    if (!of_process) {
      const auto others = stopped.find(&first);
      return done(respawn_actors(first, {failed[0].rank}, others == stopped.end() ? Ranks{} : others->second));
    }
    Ranks ranks;
    for (uint32_t rank = 0; rank < procs->ranks.size(); ++rank) {
      const auto& latest = sim_.node(procs->node).successions();
      if (node_of(*procs, rank) == latest.latest(failed[0].why->node)) ranks.push_back(rank);
    }
    respawn_procs(*procs, ranks, false, stopped, done);
  });
}

// All others of its mesh, to be made anew with it.
OwnerWorld::Ranks OwnerWorld::stop_others(Mesh& mesh, uint32_t failed) {
  Node& node = sim_.node(mesh.node);
  const auto ended = node.supervisor().ended(mesh.id);
  auto members = std::make_shared<Members>();
  Ranks others;
  for (uint32_t rank = 0; rank < mesh.ranks.size(); ++rank) {
    if (rank == failed || !ended || std::binary_search(ended->begin(), ended->end(), rank)) continue;
    if (node.is_down(node_of(mesh, rank))) continue;
    others.push_back(rank);
    mesh.ranks[rank].stopped.insert(mesh.ranks[rank].epochs.back());
    members->ids.push_back(mesh.members->ids[rank]);
  }
  if (others.empty()) return others;
  Outgoing stop{FrameHeader{}, {}, {}};
  stop.header.kind = FrameKind::kStopActor;
  stop.header.sender = mesh.owner;
  auto call = std::make_shared<PendingCall>(members);
  calls_.push_back({mesh.node, nullptr, {}, {}, call});
  node.cast(*members, stop, call);
  return others;
}

}  // namespace monarch::testing
