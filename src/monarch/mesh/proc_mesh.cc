#include "monarch/mesh/proc_mesh.h"

#include <algorithm>
#include <stdexcept>

#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/turn.h"

namespace monarch {

ProcMesh::ProcMesh(Node& node, ProcOwner* owner, std::string name, std::vector<NodeId> nodes, const Extent& extent,
                   std::shared_ptr<internal::ProcOrigin> origin)
    : node_(&node),
      owner_(owner),
      name_(std::move(name)),
      all_nodes_(std::make_shared<const std::vector<NodeId>>(std::move(nodes))),
      region_(Region::row_major(extent)),
      origin_(std::move(origin)) {
  MONARCH_CHECK(static_cast<int64_t>(all_nodes_->size()) == extent.element_count());
}

std::vector<NodeId> ProcMesh::nodes() const {
  std::vector<NodeId> nodes;
  for (int64_t rank : region_.slice()) nodes.push_back((*all_nodes_)[static_cast<size_t>(rank)]);
  return nodes;
}

ProcMesh ProcMesh::slice(const std::vector<DimSelection>& selections) const {
  ProcMesh part = *this;
  part.region_ = internal::select(region_, selections);
  return part;
}

internal::MeshView ProcMesh::spawn_encoded(std::string class_name, std::string name,
                                           const ValueWriter& arguments) const {
  internal::check_encoded(arguments);
  ValueWriter head;
  head.begin_tuple(5);
  internal::encode_text(head, class_name);
  internal::encode_text(head, name);
  head.begin_tuple(static_cast<uint32_t>(extent().dim_count()));
  for (const std::string& label : extent().labels()) head.str(label);
  head.begin_tuple(static_cast<uint32_t>(extent().dim_count()));
  for (int64_t size : extent().sizes()) head.integer(size);
  internal::check_encoded(head);
  std::vector<std::byte> body(head.written().begin(), head.written().end());
  body.insert(body.end(), arguments.written().begin(), arguments.written().end());

  auto members = std::make_shared<Members>();
  Outgoing outgoing{FrameHeader{}, body, {}};
  outgoing.header.method = static_cast<uint32_t>(CellKind::kNative);
  const internal::Turn* turn = internal::Turn::current();
  if (turn != nullptr && turn->self().node == node_) outgoing.header.sender = turn->self().id.index;
  if (const std::string why = node_->why_too_large(outgoing); !why.empty()) throw std::invalid_argument(why);
  const std::vector<NodeId> here = nodes();
  const ActorIndex first = node_->new_actor_index(static_cast<uint32_t>(here.size()));
  for (size_t i = 0; i < here.size(); ++i) {
    members->ids.push_back({node_->successions().latest(here[i]), first + i});
  }
  OwnedMesh owned;
  owned.owner = outgoing.header.sender;
  owned.name = name;
  owned.class_name = class_name;
  owned.labels = extent().labels();
  owned.sizes = extent().sizes();
  owned.members = members;
  const Supervisor::MeshId supervised = node_->own(std::move(owned));
  node_->spawn(*members, outgoing);
  auto info = std::make_shared<internal::MeshInfo>();
  info->node = node_;
  info->supervised = supervised;
  info->class_name = std::move(class_name);
  info->name = std::move(name);
  info->members = members;
  info->spawn = Message::copy_of(outgoing, node_->id());
  if (origin_) {
    std::lock_guard lock(origin_->mutex);
    // Those that have ended for good are never made anew.
    std::erase_if(origin_->spawned, [this](const auto& each) { return !node_->supervisor().ended(each->supervised); });
    origin_->spawned.push_back(info);
  }
  return {std::move(info), std::move(members), Region::row_major(extent()), true};
}

void ProcMesh::respawn(const std::vector<uint32_t>& ranks) const {
  if (!origin_) throw std::logic_error("the processes of '" + name_ + "' are not this program's to start");
  std::lock_guard lock(origin_->mutex);
  const Supervisor& supervisor = node_->supervisor();
  const auto ended = supervisor.ended(origin_->supervised);
  for (const uint32_t rank : ranks) {
    if (ended && std::binary_search(ended->begin(), ended->end(), rank)) continue;
    throw std::invalid_argument("rank " + std::to_string(rank) + " of '" + name_ + "' has not ended");
  }
  Node::Restart order;
  order.procs = origin_->supervised;
  order.proc_ranks = ranks;
  for (const uint32_t rank : ranks) order.processes.emplace_back(node_->successions().latest((*all_nodes_)[rank]), 0);
  for (const auto& info : origin_->spawned) {
    std::vector<uint32_t> again;
    for (const uint32_t rank : supervisor.fallen(info->supervised)) {
      const NodeId now = node_->successions().latest(info->members->ids[rank].node);
      const auto is_there = [now](const auto& each) { return each.first == now; };
      if (std::any_of(order.processes.begin(), order.processes.end(), is_there)) again.push_back(rank);
    }
    if (!again.empty()) order.actors.push_back({info->supervised, info->spawn, 0, std::move(again), {}});
  }
  const std::vector<NodeId> started = origin_->start(ranks);
  for (size_t i = 0; i < started.size(); ++i) order.processes[i].second = started[i];
  if (const Status done = node_->restart(order); !done) {
    throw std::invalid_argument("'" + name_ + "' cannot be respawned: " + done.error().message);
  }
}

void ProcMesh::stop(const std::string& reason) const {
  if (owner_ == nullptr) throw std::logic_error("the processes of '" + name_ + "' are not this program's to stop");
  owner_->stop(nodes(), reason);
}

}  // namespace monarch
