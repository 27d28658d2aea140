#include "monarch/mesh/actor_mesh.h"

#include "monarch/actor/pending_call.h"

namespace monarch::internal {

Region select(const Region& region, const std::vector<DimSelection>& selections) {
  Region selected = region;
  for (const DimSelection& selection : selections) {
    const auto* index = std::get_if<int64_t>(&selection.what);
    auto next = index != nullptr ? selected.at(selection.label, *index)
                                 : selected.select(selection.label, std::get<Range>(selection.what));
    if (!next) throw std::invalid_argument(next.error().message);
    selected = std::move(*next);
  }
  return selected;
}

void check_encoded(const ValueWriter& writer) {
  if (writer.failure() != nullptr) throw std::invalid_argument(std::string("cannot send ") + writer.failure());
}

void check_reducer(Reducer reducer) {
  if (reducer != Reducer::kNone && reducer != Reducer::kCount && reducer != Reducer::kConcat) return;
  throw std::invalid_argument("reduce() takes kSum, kMin, kMax or kAllEqual; for all values, or their number, say call()");
}

void encode_view(ValueWriter& writer, const MeshView& view) {
  if (!view.info) return writer.fail("an ActorMesh that no actors belong to");
  std::vector<int64_t> nodes, indices;  // ids are 64 random bits: as signed numbers they have the same ones
  for (const ActorId& id : view.to.members->ids) {
    nodes.push_back(static_cast<int64_t>(id.node));
    indices.push_back(static_cast<int64_t>(id.index));
  }
  encode(writer, std::tie(view.info->class_name, view.info->name, nodes, indices, view.region.labels(),
                          view.region.extent().sizes(), view.whole));
}

bool decode_view(ValueReader& reader, const std::string& class_name, MeshView& out) {
  Node* node = DecodingNode::current();
  if (node == nullptr) return reader.refuse("a mesh is read in an actor or out of the answer of a call, nowhere else");
  std::string found_class, name;
  std::vector<int64_t> nodes, indices, sizes;
  std::vector<std::string> labels;
  bool whole = false;
  if (!decode_into(reader, std::tie(found_class, name, nodes, indices, labels, sizes, whole))) return false;
  if (found_class != class_name) return reader.refuse("expected a mesh of another class of actors");
  auto extent = Extent::create(std::move(labels), std::move(sizes));
  if (!extent || nodes.size() != indices.size() || extent->element_count() != static_cast<int64_t>(nodes.size())) {
    return reader.refuse("expected a mesh with as many actors as its dimensions say");
  }
  auto members = std::make_shared<Members>();
  for (size_t i = 0; i < nodes.size(); ++i) {
    members->ids.push_back({static_cast<NodeId>(nodes[i]), static_cast<ActorIndex>(indices[i])});
  }
  auto info = std::make_shared<MeshInfo>();
  info->node = node;
  info->class_name = std::move(found_class);
  info->name = std::move(name);
  info->members = members;
  out = MeshView{std::move(info), std::move(members), Region::row_major(*extent), whole};
  return true;
}

}  // namespace monarch::internal
