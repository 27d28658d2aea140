#include "monarch/actor/supervisor.h"

#include <algorithm>
#include <utility>

#include "monarch/actor/successions.h"

namespace monarch {

namespace {

ActorIndex lowest_index(const OwnedMesh& mesh) {
  const auto& ids = mesh.members->ids;
  const auto lower = [](const ActorId& a, const ActorId& b) { return a.index < b.index; };
  return ids.empty() ? 0 : std::min_element(ids.begin(), ids.end(), lower)->index;
}

// Ends that somebody has asked for.
bool is_wanted(Failure::Kind kind) {
  return kind == Failure::Kind::kStopped || kind == Failure::Kind::kActorStopped ||
         kind == Failure::Kind::kOwnerEnded || kind == Failure::Kind::kEnding;
}

}  // namespace

std::string MeshFailure::who() const {
  std::string text = mesh->creator.empty() ? "<" : mesh->creator + ".<";
  if (!mesh->class_name.empty()) text += mesh->class_name + " ";
  text += mesh->name;
  const std::vector<int64_t> place = coordinates();
  for (size_t dim = 0; dim < place.size(); ++dim) {
    text += (dim == 0 ? "{'" : ", '") + mesh->labels[dim] + "': " + std::to_string(place[dim]) + "/" +
            std::to_string(mesh->sizes[dim]);
  }
  return text + (place.empty() ? ">" : "}>");
}

std::string MeshFailure::report() const {
  return "The " + std::string(mesh->is_procs ? "process " : "actor ") + who() +
         " and all its descendants have failed:\n  " + indented(why->text()) + (history.empty() ? "" : "\n  " + history);
}

std::string MeshFailure::origin() const {
  const std::string text = why->origin.empty() ? why->headline() : why->origin;
  return text.substr(0, text.find('\n'));
}

Supervisor::MeshId Supervisor::add(OwnedMesh mesh) {
  const ActorIndex lowest = mesh.is_procs ? 0 : lowest_index(mesh);
  auto shared = std::make_shared<const OwnedMesh>(std::move(mesh));
  std::lock_guard lock(mutex_);
  const MeshId id = ++last_id_;
  if (lowest != 0) by_index_.emplace(lowest, id);
  const auto& spawned = shared->members;
  meshes_.emplace(id, Entry{shared, spawned});
  return id;
}

void Supervisor::remove(MeshId id) {
  std::lock_guard lock(mutex_);
  if (const auto found = meshes_.find(id); found != meshes_.end()) erase(found);
}

void Supervisor::erase(std::map<MeshId, Entry>::iterator found) {
  const OwnedMesh& mesh = *found->second.mesh;
  if (!mesh.is_procs) by_index_.erase(lowest_index(mesh));
  meshes_.erase(found);
}

int64_t Supervisor::Entry::made_ns(uint32_t rank) const {
  const auto found = made.find(rank);
  return found == made.end() ? 0 : found->second.when_ns;
}

// True: all of the mesh has ended, as its owner wished.
bool Supervisor::note_end(MeshId id, Entry& entry, uint32_t rank, const FailurePtr& why, bool wanted,
                          std::vector<MeshFailure>& failures) {
  if (entry.ended.insert(rank).second && !wanted) {
    failures.push_back({entry.mesh, rank, why, id, entry.made_ns(rank)});
    entry.failed.insert(rank);
    if (why->is_death()) entry.fallen.insert(rank);
  }
  return entry.failed.empty() && entry.ended.size() == entry.mesh->members->ids.size();
}

// The mesh that has this member, as they are now or were `spawned`, and its rank; end(): there is none.
std::pair<std::map<Supervisor::MeshId, Supervisor::Entry>::iterator, uint32_t> Supervisor::find(const ActorId& id,
                                                                                             bool spawned) {
  // Mostly the one before; not if two threads numbered the members of their meshes in turns.
  for (auto after = by_index_.upper_bound(id.index); after != by_index_.begin();) {
    const auto found = meshes_.find((--after)->second);
    const Entry& entry = found->second;
    const auto& ids = spawned ? entry.spawned->ids : entry.mesh->members->ids;
    const auto member = std::find(ids.begin(), ids.end(), id);
    if (member != ids.end()) return {found, static_cast<uint32_t>(member - ids.begin())};
  }
  return {meshes_.end(), 0};
}

std::vector<MeshFailure> Supervisor::actor_ended(const FailurePtr& why, uint32_t epoch) {
  std::vector<MeshFailure> failures;
  std::lock_guard lock(mutex_);
  const auto [found, rank] = find({why->node, why->actor}, false);
  if (found == meshes_.end()) return failures;
  const auto made = found->second.made.find(rank);
  if (made != found->second.made.end() && epoch < made->second.epoch) return failures;
  if (note_end(found->first, found->second, rank, why, is_wanted(why->kind), failures)) erase(found);
  return failures;
}

void Supervisor::note_stopped(const Members& actors) {
  if (actors.ids.empty()) return;
  std::lock_guard lock(mutex_);
  const auto found = find(actors.ids[0], true).first;
  if (found == meshes_.end()) return;
  const auto& ids = found->second.spawned->ids;
  auto member = ids.begin();  // mostly they are in order
  for (const ActorId& actor : actors.ids) {
    member = std::find(member, ids.end(), actor);
    if (member == ids.end()) member = std::find(ids.begin(), ids.end(), actor);
    if (member != ids.end()) found->second.stopped.insert(static_cast<uint32_t>(member - ids.begin()));
  }
}

void Supervisor::note_stopping(const std::vector<NodeId>& nodes) {
  std::lock_guard lock(mutex_);
  for (const NodeId node : nodes) stopping_.insert(node);
}

std::vector<MeshFailure> Supervisor::node_down(NodeId node, const FailurePtr& why) {
  std::vector<MeshFailure> failures;
  std::lock_guard lock(mutex_);
  const bool wanted = stopping_.erase(node) != 0 || is_wanted(why->kind);
  for (auto entry = meshes_.begin(); entry != meshes_.end();) {
    const auto here = entry++;
    const auto& ids = here->second.mesh->members->ids;
    bool over = false;
    for (uint32_t rank = 0; rank < ids.size(); ++rank) {
      if (ids[rank].node == node) over = note_end(here->first, here->second, rank, why, wanted, failures);
    }
    if (over) erase(here);
  }
  const auto is_of_actors = [](const MeshFailure& failure) { return !failure.mesh->is_procs; };
  std::stable_partition(failures.begin(), failures.end(), is_of_actors);
  return failures;
}

// ---- What is made anew ----

void Supervisor::set_restarts(MeshId id) {
  std::lock_guard lock(mutex_);
  const auto found = meshes_.find(id);
  if (found == meshes_.end() || found->second.mesh->restarts) return;
  OwnedMesh changed = *found->second.mesh;
  changed.restarts = true;
  found->second.mesh = std::make_shared<const OwnedMesh>(std::move(changed));
}

std::optional<std::vector<uint32_t>> Supervisor::ended(MeshId id) const {
  std::lock_guard lock(mutex_);
  const auto found = meshes_.find(id);
  if (found == meshes_.end()) return std::nullopt;
  return std::vector<uint32_t>(found->second.ended.begin(), found->second.ended.end());
}

std::vector<uint32_t> Supervisor::fallen(MeshId id) const {
  std::lock_guard lock(mutex_);
  const auto found = meshes_.find(id);
  if (found == meshes_.end()) return {};
  return {found->second.fallen.begin(), found->second.fallen.end()};
}

std::shared_ptr<const Members> Supervisor::members(MeshId id) const {
  std::lock_guard lock(mutex_);
  const auto found = meshes_.find(id);
  return found == meshes_.end() ? nullptr : found->second.mesh->members;
}

void Supervisor::note_fallen(MeshId id, uint32_t rank) {
  std::lock_guard lock(mutex_);
  const auto found = meshes_.find(id);
  if (found != meshes_.end() && found->second.failed.contains(rank)) found->second.fallen.insert(rank);
}

bool Supervisor::is_current(const MeshFailure& failure) const {
  std::lock_guard lock(mutex_);
  const auto found = meshes_.find(failure.mesh_id);
  if (found == meshes_.end()) return true;
  return found->second.ended.contains(failure.rank) && found->second.made_ns(failure.rank) == failure.made_ns;
}

std::optional<Supervisor::Restarted> Supervisor::restart(MeshId id, const std::vector<uint32_t>& ranks,
                                                         const std::vector<uint32_t>& stopped, int64_t now_ns) {
  std::lock_guard lock(mutex_);
  const auto found = meshes_.find(id);
  if (found == meshes_.end()) return std::nullopt;
  Entry& entry = found->second;
  for (const uint32_t rank : ranks) {
    if (!entry.ended.contains(rank)) return std::nullopt;
  }
  std::vector<uint32_t> again = ranks;
  for (const uint32_t rank : stopped) {
    if (entry.stopped.contains(rank) && !entry.failed.contains(rank)) again.push_back(rank);
  }
  if (again.empty()) return std::nullopt;
  std::sort(again.begin(), again.end());
  entry.epoch = std::min(entry.epoch + 1, Successions::kEpochMax);
  for (const uint32_t rank : again) {
    entry.ended.erase(rank);
    entry.failed.erase(rank);
    entry.fallen.erase(rank);
    entry.stopped.erase(rank);
    entry.made[rank] = {now_ns, entry.epoch};
  }
  const auto& ids = entry.mesh->members->ids;
  Restarted restarted{entry.mesh->members, lowest_index(*entry.mesh), 1, entry.epoch, std::move(again), {}};
  for (const uint32_t rank : restarted.ranks) restarted.named.push_back(entry.spawned->ids[rank].node);
  for (const ActorId& actor : ids) restarted.count = std::max(restarted.count, actor.index - restarted.first + 1);
  return restarted;
}

bool Supervisor::owns(ActorIndex first) const {
  std::lock_guard lock(mutex_);
  return by_index_.contains(first);
}

std::vector<NodeId> Supervisor::replace(NodeId ended, NodeId next) {
  std::set<NodeId> named;
  std::lock_guard lock(mutex_);
  for (auto& [id, entry] : meshes_) {
    const auto& ids = entry.mesh->members->ids;
    std::shared_ptr<Members> now;
    for (uint32_t rank = 0; rank < ids.size(); ++rank) {
      if (ids[rank].node != ended) continue;
      if (!now) now = std::make_shared<Members>(*entry.mesh->members);
      now->ids[rank].node = next;
      named.insert(entry.spawned->ids[rank].node);
    }
    if (!now) continue;
    OwnedMesh changed = *entry.mesh;
    changed.members = std::move(now);
    entry.mesh = std::make_shared<const OwnedMesh>(std::move(changed));
  }
  return {named.begin(), named.end()};
}

size_t Supervisor::size() const {
  std::lock_guard lock(mutex_);
  return meshes_.size();
}

}  // namespace monarch
