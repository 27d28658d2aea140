// One call on a mesh view from the caller's side, and the view that it goes to, without the types: what Future<T> and
// ActorMesh<A> share.
#pragma once

#include <atomic>
#include <coroutine>
#include <memory>
#include <optional>
#include <string>

#include "monarch/actor/errors.h"
#include "monarch/mesh/region.h"
#include "monarch/mesh/view.h"
#include "monarch/wire/reducer.h"

namespace monarch {
class Gather;
}

namespace monarch::internal {

// A mesh that was spawned. Immutable; all handles of the mesh and its views own it together, and calls under way.
struct MeshInfo {
  Node* node;  // of this process: where calls start
  uint64_t supervised = 0;  // Supervisor::MeshId; 0: of a handle that has arrived in a message
  std::string class_name;
  std::string name;
  std::shared_ptr<const Members> members;  // shared with the calls under way
  std::shared_ptr<const Message> spawn{};  // to make them anew; shared: with a restart under way. Null as `supervised`
  mutable std::atomic<uint32_t> next_choice{0};
};

class MeshCall {
 public:
  static constexpr uint32_t kStop = UINT32_MAX;  // instead of the number of an endpoint

  MeshCall(std::shared_ptr<const MeshInfo> info, std::shared_ptr<PendingCall> call, Extent extent, uint32_t method)
      : info_(std::move(info)), call_(std::move(call)), extent_(std::move(extent)), method_(method) {}

  Node& node() const { return *info_->node; }
  const Extent& extent() const { return extent_; }
  uint32_t size() const;
  bool decided() const;
  const Message& reply(uint32_t rank) const;
  int64_t deadline_in(int64_t timeout_ns) const;  // on the node's clock
  Reducer reducer() const;
  MessagePtr reduced() const;  // of a decided call in which every rank has a value; throws ActorError if there is none

  // Waits, driving meanwhile; on a pool thread others take over. nullopt: decided, and every rank has a value. Any
  // thread but the reactor.
  std::optional<CallError> wait(int64_t deadline_ns) const;
  // The first rank's error of a decided call.
  std::optional<CallError> failure() const;
  CallError not_decodable(uint32_t rank, const Message& answer, const Error& why) const;

  // Resumes `frame` when decided, in the turn that is running; outside of actors it waits here and returns false (go
  // on).
  bool suspend(std::coroutine_handle<> frame) const;

 private:
  Gather gather() const;
  void check_not_own() const;
  std::string where(int64_t rank) const;
  std::string endpoint() const;

  std::shared_ptr<const MeshInfo> info_;
  std::shared_ptr<PendingCall> call_;  // owned together with the node's slot
  Extent extent_;
  uint32_t method_;
};

// A mesh, or a part of it, with dimensions.
struct MeshView {
  MeshView() = default;
  MeshView(std::shared_ptr<const MeshInfo> of, const std::shared_ptr<const Members>& members, Region over, bool all)
      : info(std::move(of)), region(std::move(over)), whole(all), to(View::of(members, region, all)) {}

  std::shared_ptr<const MeshInfo> info;
  Region region;  // over the ranks of info->members
  bool whole = true;
  View to;

  MeshView pick(Region part) const;
  MeshView pick_one(int64_t rank) const;  // without dimensions

  MeshCall request(FrameKind kind, ByteSpan body, uint32_t method, Reducer reducer = Reducer::kNone) const;
  void respawn(const std::vector<uint32_t>& ranks) const;  // of the whole mesh
  void disown() const;  // its owner ends the whole mesh: what becomes of it is no failure
  void send(ByteSpan body, uint32_t method) const;  // one way; waits first while the members have no room

 private:
  void cast(Outgoing& outgoing, const std::shared_ptr<PendingCall>& call) const;
  void wait_until_room(bool is_call) const;
};

// While a value that may contain handles is decoded outside of actors: the node that they belong to.
class DecodingNode {
 public:
  explicit DecodingNode(Node& node);
  ~DecodingNode();
  static Node* current();  // null: unknown

 private:
  Node* before_;
};

}  // namespace monarch::internal
