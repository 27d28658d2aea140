// What has ended is made anew in its place (node.h: Restart).
#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "monarch/actor/node.h"
#include "monarch/actor/routes.h"

namespace monarch {

namespace {
constexpr size_t kEpochsMin = 64;  // that are kept without a look at who is still there
}  // namespace

Status Node::restart(const Restart& order) {
  std::lock_guard lock(restart_mutex_);
  bool all_ended = order.procs == 0 || has_ended(order.procs, order.proc_ranks, true);
  for (const Restart::Actors& each : order.actors) all_ended = all_ended && has_ended(each.mesh, each.ranks, false);
  for (const auto& [ended, next] : order.processes) all_ended = all_ended && successions_->latest(ended) == ended;
  if (!all_ended) return Error{ErrorCode::kBug, "some of that has not ended, or has been made anew by somebody else"};
  Successions::Notice notice;
  notice.processes = order.processes;
  for (const auto& [ended, next] : order.processes) {
    const FailurePtr why = why_down(ended);
    notice.why.push_back(why ? *why : Failure(Failure::Kind::kLost, "it has ended"));
  }
  // First, before anything counts as living: who is just telling of the dead (nodes_down()) would find what is made anew.
  std::vector<NodeId> named;
  for (const auto& [ended, next] : order.processes) replace_owned(ended, next, &named);
  std::vector<std::pair<const Restart::Actors*, Supervisor::Restarted>> meshes;
  for (const Restart::Actors& each : order.actors) {
    auto mesh = supervisor_->restart(each.mesh, ranks_to_restart(order, each), each.stopped, timers_.now_ns());
    if (!mesh) continue;  // its owner stops it just now
    notice.meshes.push_back({mesh->first, mesh->count, mesh->epoch});
    meshes.emplace_back(&each, std::move(*mesh));
  }
  if (order.procs != 0) {
    static_cast<void>(supervisor_->restart(order.procs, order.proc_ranks, {}, timers_.now_ns()));
  }
  successions_->apply(notice);
  for (const auto& [ended, next] : order.processes) look_at_next(next);
  for (const auto& [actors, mesh] : meshes) {
    spawn_again(order, *actors, mesh);
    look_again(mesh);
  }
  for (const auto& [ended, next] : order.processes) bury_at(ended, next);
  for (const auto& [actors, mesh] : meshes) named.insert(named.end(), mesh.named.begin(), mesh.named.end());
  say_again(named, notice);
  forget_epochs();
  if (hooks_.on_restarted) hooks_.on_restarted(id_, notice);
  return Ok{};
}

// Who is between the first and the last of a lineage may have been forgotten elsewhere; handles of what lives name it.
void Node::say_again(std::vector<NodeId>& named, Successions::Notice& notice) {
  std::sort(named.begin(), named.end());
  named.erase(std::unique(named.begin(), named.end()), named.end());
  Successions::Notice again = successions_->named(named);
  if (again.processes.empty()) return;
  successions_->apply(again);
  again.why.assign(again.processes.size(), Failure(Failure::Kind::kLost, "it has ended, and was replaced"));
  notice.steps.assign(notice.processes.size(), 1);
  for (size_t i = 0; i < again.processes.size(); ++i) notice.add_process(again, i);
}

// Of meshes of this node's that have ended. Restarted.epoch is told by nobody else.
void Node::forget_epochs() {
  std::vector<ActorIndex> known = successions_->meshes();
  if (known.size() < epochs_looked_at_) return;
  const size_t count = known.size();
  std::erase_if(known, [&](ActorIndex first) { return !may_have_created(id_, first) || supervisor_->owns(first); });
  successions_->forget_meshes({known.begin(), known.end()});
  epochs_looked_at_ = std::max(kEpochsMin, 2 * (count - known.size()));
}

// They are written down as living: a death that was noted before that is theirs, too.
void Node::look_again(const Supervisor::Restarted& mesh) {
  for (const uint32_t rank : mesh.ranks) {
    const NodeId node = successions_->latest(mesh.members->ids[rank].node);
    if (const FailurePtr dead = why_down(node)) supervise(supervisor_->node_down(node, dead));
  }
}

// Those of a process that has ended, and is not replaced in the same breath, come back with that.
std::vector<uint32_t> Node::ranks_to_restart(const Restart& order, const Restart::Actors& actors) {
  if (!order.processes.empty()) return actors.ranks;
  const auto members = supervisor_->members(actors.mesh);
  std::vector<uint32_t> ranks;
  for (const uint32_t rank : actors.ranks) {
    if (members && is_down(successions_->latest(members->ids.at(rank).node))) {
      supervisor_->note_fallen(actors.mesh, rank);
    } else {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

// Senders find a process dead a moment before its owner's account says so (nodes_down()). Under the lock, as what is just
// made anew counts as living while its process is still the old one.
std::optional<std::vector<uint32_t>> Node::ended_ranks(Supervisor::MeshId mesh) {
  if (!routes_->any_down()) return supervisor_->ended(mesh);
  std::lock_guard lock(restart_mutex_);
  const auto ended = supervisor_->ended(mesh);
  const auto members = supervisor_->members(mesh);
  if (!ended || !members) return std::nullopt;
  for (uint32_t rank = 0; rank < members->ids.size(); ++rank) {
    const NodeId node = members->ids[rank].node;
    const FailurePtr dead = std::binary_search(ended->begin(), ended->end(), rank) ? nullptr : why_down(node);
    if (!dead) continue;
    successions_->ended(node, dead->kind == Failure::Kind::kStopped);
    supervise(supervisor_->node_down(node, dead));
  }
  return supervisor_->ended(mesh);
}

bool Node::has_ended(Supervisor::MeshId mesh, const std::vector<uint32_t>& ranks, bool must_be_known) const {
  const auto ended = supervisor_->ended(mesh);
  if (!ended) return !must_be_known;
  return std::all_of(ranks.begin(), ranks.end(), [&](uint32_t rank) {
    return std::binary_search(ended->begin(), ended->end(), rank);
  });
}

// Who is named by what this node owns there.
void Node::replace_owned(NodeId ended, NodeId next, std::vector<NodeId>* named) {
  const std::vector<NodeId> there = supervisor_->replace(ended, next);
  named->insert(named->end(), there.begin(), there.end());
}

// It is written down by now: a death that comes later finds it.
void Node::look_at_next(NodeId next) {
  const FailurePtr dead = why_down(next);
  if (!dead) return;
  successions_->ended(next, dead->kind == Failure::Kind::kStopped);
  supervise(supervisor_->node_down(next, dead));
}

void Node::spawn_again(const Restart& order, const Restart::Actors& actors, const Supervisor::Restarted& mesh) {
  const Message& spawn = *actors.spawn;
  std::vector<ByteSpan> parts;
  for (const Part& part : spawn.parts) parts.emplace_back(part.data, part.size);
  Outgoing outgoing{spawn.header, spawn.body, parts};
  outgoing.header.kind = FrameKind::kSpawn;
  outgoing.header.epoch = mesh.epoch;
  const auto is_new = [&order](NodeId node) {
    return std::any_of(order.processes.begin(), order.processes.end(), [node](const auto& each) {
      return each.second == node;
    });
  };
  for (size_t i = 0; i < mesh.ranks.size(); ++i) {
    const uint32_t rank = mesh.ranks[i];
    const ActorId& id = mesh.members->ids[rank];
    const NodeId node = successions_->latest(id.node);
    outgoing.header.dest = id.index;
    outgoing.header.rank = rank;
    // Of a swarm, all that are in a new process are made at once; elsewhere one that is left may be there still.
    const uint32_t count = actors.per_process;
    const bool whole = count != 0 && is_new(node) && rank % count == 0 && i + count <= mesh.ranks.size() &&
                       mesh.ranks[i + count - 1] == rank + count - 1;
    outgoing.header.method = (spawn.header.method & ((1u << kSwarmShift) - 1)) | (whole ? count << kSwarmShift : 0);
    if (whole) {
      outgoing.header.rank = rank / count;
      i += count - 1;
    }
    std::string why;
    bool no_memory = false;
    send(node, outgoing, &why, &no_memory);  // a process that is gone again: that is told as such
    if (!no_memory) continue;
    Failure end(Failure::Kind::kActor, "it could not be made anew: " + why);
    end.node = node;
    end.actor = id.index;
    end.rank = rank;
    owned_ended(end, mesh.epoch);
  }
}

// Whoever still has handles of what this node had made there would wait for its spawn.
void Node::bury_at(NodeId ended, NodeId next) {
  {
    std::lock_guard lock(spawned_mutex_);
    if (spawned_at_.erase(ended) == 0) return;
    spawned_at_.insert(next);
  }
  Outgoing notice{FrameHeader{}, {}, {}};
  notice.header.kind = FrameKind::kBuried;
  notice.header.dest = next_number_.load(std::memory_order_relaxed);
  std::string ignored;
  send(next, notice, &ignored);
}

bool Node::take_up(const Successions::Notice& told) {
  Successions::Notice notice = told;
  std::erase_if(notice.meshes, [this](const auto& mesh) { return may_have_created(id_, mesh.first); });
  const Successions::Notice news = successions_->apply(notice);
  std::vector<NodeId> named;
  for (size_t i = 0; i < news.processes.size(); ++i) {
    const auto& [ended, next] = news.processes[i];
    FailurePtr why = why_down(ended);
    if (!why && !news.why.empty()) why = std::make_shared<const Failure>(news.why[i]);
    if (!why) why = std::make_shared<const Failure>(Failure::Kind::kLost, "it has ended, and was replaced");
    supervise(supervisor_->node_down(ended, why));  // if the word of the death is slower than this
    replace_owned(ended, next, &named);
    look_at_next(next);
    bury_at(ended, next);
    // A process that has never heard of it would take what it has made, and owned, for what is still to come.
    if (next != id_) continue;
    node_down(ended, why);
    // If it lives, it is to know that nothing it sends is taken here; we may be inside a callback of one of its links.
    timers_.post([this, gone = ended] {
      for (const auto& link : links()) {
        if (link->peer() == gone) link->close();
      }
    });
  }
  successions_->apply(successions_->named(named));
  return !news.empty();
}

}  // namespace monarch
