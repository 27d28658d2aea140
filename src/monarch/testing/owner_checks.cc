// What happens in an OwnerWorld, by chance, and what must hold in the end.
#include <algorithm>
#include <cstring>

#include "monarch/actor/calls.h"
#include "monarch/actor/directory.h"
#include "monarch/testing/owner_world.h"

namespace monarch::testing {

namespace {
constexpr size_t kMeshesMax = 30, kProcessesMax = 16;

OwnerWorld::Ranks all_ranks(const OwnerWorld::Mesh& mesh) {
  OwnerWorld::Ranks ranks(mesh.ranks.size());
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = rank;
  return ranks;
}
}  // namespace

// ---- By chance ----

void OwnerWorld::grow(Actor* by) {
  if (meshes_.size() >= kMeshesMax) return;
  const NodeId here = by == nullptr ? script_ : by->node.id();
  const std::vector<NodeId> known = processes();
  Policy policy{sim_.chance(30) ? 1 + static_cast<int>(sim_.random(3)) : 0, sim_.chance(30)};
  if (sim_.chance(25) && known.size() < kProcessesMax) {
    NodeId parent = here;  // the script starts processes on each host, others beside themselves or below
    if (by == nullptr && !agents_.empty() && sim_.chance(60)) parent = agents_[sim_.random(agents_.size())];
    if (by != nullptr && processes_.at(here).parent != 0 && sim_.chance(50)) parent = processes_.at(here).parent;
    if (!can_start_for(parent, here)) return;
    spawn_procs(by, parent, 1 + sim_.random(3), policy);
    return;
  }
  Mesh* procs = nullptr;
  for (const auto& mesh : meshes_) {
    if (mesh->is_procs && mesh->by == by && owner_lives(*mesh) && sim_.chance(60)) procs = mesh.get();
  }
  std::vector<NodeId> nodes;
  if (procs != nullptr) {
    for (uint32_t rank = 0; rank < procs->ranks.size(); ++rank) {
      if (sim_.chance(70)) nodes.push_back(node_of(*procs, rank));
    }
  }
  if (procs == nullptr) {
    for (uint64_t i = 1 + sim_.random(3); i > 0; --i) nodes.push_back(known[sim_.random(known.size())]);
    policy.all = false;
  }
  if (!nodes.empty()) spawn_actors(by, nodes, procs, policy);
}

void OwnerWorld::act() {
  Actor* actor = sim_.chance(40) ? nullptr : any_actor();
  const NodeId here = actor == nullptr ? script_ : actor->node.id();
  if (!runs(here)) return;
  const uint64_t what = sim_.random(100);
  if (what < 20) return grow(actor);
  if (what < 26) {  // somebody ends what it owns
    Mesh* mesh = any_mesh(sim_.chance(20));
    if (mesh != nullptr && owner_lives(*mesh) && runs(mesh->node)) let_go(*mesh);
    return;
  }
  if (what < 40) {  // or makes it anew, or tries to
    Mesh* mesh = any_mesh(sim_.chance(40));
    if (mesh == nullptr || !owner_lives(*mesh) || !runs(mesh->node)) return;
    if (mesh->is_procs) return respawn_procs(*mesh, all_ranks(*mesh), sim_.chance(50));
    if (sim_.chance(20)) return respawn_living(*mesh, static_cast<uint32_t>(sim_.random(mesh->ranks.size())));
    respawn_actors(*mesh, all_ranks(*mesh));
    return;
  }
  Mesh* mesh = any_mesh(false);
  if (mesh == nullptr) return;
  Ranks ranks;
  for (const uint32_t rank : all_ranks(*mesh)) {
    if (sim_.chance(70)) ranks.push_back(rank);
  }
  if (ranks.empty()) return;
  const auto endpoint = static_cast<uint32_t>(sim_.random(kEndpoints));
  if (endpoint == kFail && sim_.chance(50)) ranks.resize(1);
  call(here, actor, *mesh, ranks, endpoint, sim_.chance(30));
}

// ---- In the end ----

void OwnerWorld::check() {
  // RST-3. Who calls what was spawned by a process that is dead, in another one that was replaced since, waits as for what
  // may still be under way.
  const int64_t limit_ns = 2 * Directory::kEarlyLimitNs + 10'000'000'000;  // once more for probe()
  expect(parted_ || short_ || sim_.now_ns() < limit_ns, "somebody waits for what never comes");
  check_calls();
  for (const auto& mesh : meshes_) {
    if (!owner_lives(*mesh)) continue;
    for (uint32_t rank = 0; rank < mesh->ranks.size(); ++rank) check_rank(*mesh, rank);
  }
  for (const auto& actor : actors_) check_actor(*actor);
  for (const auto& mesh : meshes_) {  // SUP-4
    if (!mesh->is_procs || owner_lives(*mesh)) continue;
    for (const Mesh::Rank& rank : mesh->ranks) expect(!sim_.alive(rank.node), "a process outlives its owner");
  }
  check_known_everywhere();
  check_nothing_left();
}

// MSG-3, and of RST-1: who calls with an epoch is not answered by who was there before it.
void OwnerWorld::check_calls() {
  for (const Call& each : calls_) {
    if (!sim_.alive(each.caller)) continue;
    // With a dial that fails for a shortage goes what was to be answered on it.
    expect(each.call->complete() || short_, "a call waits for ever");
    for (uint32_t i = 0; each.mesh != nullptr && each.call->complete() && i < each.ranks.size(); ++i) {
      const Message& reply = *each.call->reply(i);
      const uint32_t rank = each.ranks[i];
      if (reply.header.kind == FrameKind::kReplyFailed) {
        Actor* now = current(*each.mesh, rank);
        const bool reachable = now != nullptr && now->lives() && sim_.alive(now->node.id()) && !parted_ && !short_ &&
                               !sim_.node(each.caller).is_down(now->node.id());
        expect(!each.is_probe || !reachable || !owner_lives(*each.mesh), "what lives does not answer",
               [&] { return now->who() + ": " + reply_text(reply); });
        continue;
      }
      uint32_t said[3];
      if (reply.body.size() != sizeof said) return violated("an answer that nobody has given", {});
      std::memcpy(said, reply.body.data(), sizeof said);
      expect(said[0] == each.mesh->number && said[1] == rank, "another rank has answered");
      // Who is dead to others may live, and for who has not heard of its successor yet.
      // So may one that was stopped to be made anew, and takes its time, until the spawn comes.
      const bool stopped = each.mesh->ranks[rank].stopped.contains(said[2]);
      expect(said[2] >= each.epochs[i] || parted_ || stopped, "who was there before has answered", [&] {
        return name_of(*each.mesh, rank) + ", of epoch " + std::to_string(said[2]) + " where " +
               std::to_string(each.epochs[i]) + " was known" + (short_ ? ", in a shortage" : "");
      });
      const bool is_known = each.is_probe && owner_lives(*each.mesh) && !parted_;
      expect(!is_known || said[2] == each.mesh->ranks[rank].epochs.back(), "who was there before is there still");
    }
  }
}

// The process, or one that it was started by, as the owner knows it.
bool OwnerWorld::was_to_end(const Mesh& mesh, NodeId process) {
  const FailurePtr down = sim_.node(mesh.node).why_down(process);
  return processes_.at(process).asked_to_end || (down && down->kind == Failure::Kind::kStopped);
}

// SUP-1: what has ended is told, once; what lives is not.
void OwnerWorld::check_rank(Mesh& mesh, uint32_t number) {
  Mesh::Rank& rank = mesh.ranks[number];
  Node& owner = sim_.node(mesh.node);
  const FailurePtr down = owner.why_down(rank.node);
  const auto name = [&] { return name_of(mesh, number); };
  expect(down || sim_.alive(rank.node) || short_, "its owner does not know that its process has ended", name);
  const Actor* actor = mesh.is_procs ? nullptr : current(mesh, number);
  const bool failed = actor != nullptr && actor->failed;
  const bool wished = actor != nullptr && actor->life >= Actor::Life::kEnds && !failed;
  const bool asked = was_to_end(mesh, rank.node);
  const int noticed = rank.noticed[rank.made_ns], told = rank.told[rank.made_ns];
  const bool was_stopped = down && down->kind == Failure::Kind::kStopped;
  expect(!was_stopped || failed || noticed == 0, "somebody has asked for its end, and it was told as failed", name);
  if (down ? !wished && !asked : failed) {
    expect(noticed == 1, "it has ended, and nobody was told", [&] { return name() + (down ? ": " + down->text() : ""); });
    expect(told == 1 || rank.handled.contains(rank.made_ns), "nobody has decided", name);
  } else if (!down) {
    // Where another one has taken its place, it counts as ended, though it may live for some (check_actor()).
    expect(noticed == 0 || (parted_ && node_of(mesh, number) != rank.node), "it lives, and was told as failed", name);
    expect(mesh.is_procs || short_ || actor != nullptr, "it was never made", name);
  }
}

// SUP-4: it ends with its owner.
void OwnerWorld::check_actor(const Actor& actor) {
  if (!sim_.alive(actor.node.id())) return;
  const auto who = [&] { return actor.who(); };
  expect(actor.life == Actor::Life::kLives || actor.life == Actor::Life::kOver, "it hangs", who);
  if (!actor.lives()) return;
  // Who is dead to a script may live on for others, who are told that it has been replaced.
  const bool cut_off = actor.node.is_down(actor.mesh.node) || ((short_ || parted_) && actor.mesh.let_go);
  expect(owner_lives(actor.mesh) || cut_off, "it outlives its owner", who);
  expect(!actor.node.is_down(actor.mesh.node), "it outlives its owner's process", who);
  if (!cut_off && !sim_.node(actor.mesh.node).is_down(actor.node.id())) {
    expect(actor.epoch == actor.mesh.ranks[actor.rank].epochs.back(), "it has been replaced, and lives", who);
  }
}

// RST-6 and RST-1: everybody knows the same of what has been made anew.
void OwnerWorld::check_known_everywhere() {
  if (parted_ || short_) return;
  for (const NodeId id : processes()) {
    const Successions& known = sim_.node(id).successions();
    for (const auto& mesh : meshes_) {
      if (!owner_lives(*mesh)) continue;
      const Successions& owners = sim_.node(mesh->node).successions();
      for (const ActorId& member : mesh->members->ids) {
        expect(known.latest(member.node) == owners.latest(member.node), "another successor is known elsewhere");
        const bool agree = mesh->is_procs || known.epoch_of(member.index) == owners.epoch_of(member.index);
        expect(agree, "another epoch is known elsewhere");
      }
    }
  }
}

void OwnerWorld::check_nothing_left() {
  for (const NodeId id : processes()) {
    const auto here = [&](const auto& actor) { return actor->lives() && actor->node.id() == id; };
    const Node::Held held = sim_.node(id).held();
    const auto lives = static_cast<size_t>(std::count_if(actors_.begin(), actors_.end(), here));
    expect(held.cells == lives, "cells are left");
    expect(held.parked == 0, "spawns are left");
    expect(held.early == 0, "messages are left");
    expect(held.calls == 0 || short_, "slots of calls are left");
    expect(held.unsent == 0, "unsent messages are left");
    const auto owned = [&](const auto& mesh) { return owner_lives(*mesh) && mesh->node == id; };
    expect(held.meshes <= static_cast<size_t>(std::count_if(meshes_.begin(), meshes_.end(), owned)), "meshes are left");
  }
}

// For people: who owns what, who was made when, and who waits.
std::string OwnerWorld::state() {
  const auto short_id = [](uint64_t id) { return std::to_string(id % 10'000); };
  std::string text = std::to_string(sim_.now_ns()) + " ns\n";
  for (const auto& mesh : meshes_) {
    text += std::string(mesh->is_procs ? "processes " : "mesh ") + std::to_string(mesh->number) + " of " +
            (mesh->by == nullptr ? "the script" : mesh->by->who()) + (mesh->policy.times > 0 ? ", with a policy" : "") +
            (mesh->let_go ? ", let go" : owner_lives(*mesh) ? "" : ", whose owner is dead") + "\n";
    for (const Mesh::Rank& rank : mesh->ranks) {
      text += "  in process " + short_id(rank.node) + (sim_.alive(rank.node) ? "" : ", which has ended") + ", made at " +
              std::to_string(rank.made_ns) + " ns, epochs";
      for (const uint32_t epoch : rank.epochs) text += " " + std::to_string(epoch);
      text += "\n";
    }
  }
  for (const auto& actor : actors_) {
    static constexpr const char* kLives[] = {"begins", "lives", "ends", "is over"};
    text += actor->who() + ", " + short_id(actor->index) + " in process " + short_id(actor->node.id()) + ", " +
            kLives[static_cast<int>(actor->life)] + (actor->failed ? ": " + actor->epitaph->detail : "") + "\n";
  }
  for (const Call& each : calls_) {
    for (uint32_t i = 0; sim_.alive(each.caller) && i < each.call->size(); ++i) {
      if (each.call->reply(i) != nullptr) continue;
      const ActorId& owing = each.call->owing().ids[i];
      text += short_id(each.caller) + " waits for " + short_id(owing.index) + " in " + short_id(owing.node) + "\n";
    }
  }
  return text;
}

void OwnerWorld::probe() {
  const size_t before = calls_.size();
  const std::vector<NodeId> callers = processes();
  for (const auto& mesh : meshes_) {
    if (mesh->is_procs) continue;
    for (int i = 0; i < 2; ++i) {
      call(callers[sim_.random(callers.size())], nullptr, *mesh, all_ranks(*mesh), kEcho, false);
    }
  }
  for (size_t i = before; i < calls_.size(); ++i) calls_[i].is_probe = true;
}

}  // namespace monarch::testing
