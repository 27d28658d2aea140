#include "monarch/mesh/proc_mesh.h"

#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/turn.h"

namespace monarch {

ProcMesh::ProcMesh(Node& node, ProcOwner* owner, std::string name, std::vector<NodeId> nodes, const Extent& extent)
    : node_(&node),
      owner_(owner),
      name_(std::move(name)),
      all_nodes_(std::make_shared<const std::vector<NodeId>>(std::move(nodes))),
      region_(Region::row_major(extent)) {
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
  for (NodeId node : nodes()) members->ids.push_back({node, node_->new_actor_index()});
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
  return {std::move(info), std::move(members), Region::row_major(extent()), true};
}

void ProcMesh::stop(const std::string& reason) const {
  if (owner_ == nullptr) throw std::logic_error("the processes of '" + name_ + "' are not this program's to stop");
  owner_->stop(nodes(), reason);
}

}  // namespace monarch
