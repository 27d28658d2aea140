// ActorMesh<A>: a handle to many actors of one class, or to a part of them, with named dimensions. A value: copy it,
// send it as an argument, keep it. It does not keep the actors alive, and lives no longer than the runtime of its
// process.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "monarch/actor/registry.h"
#include "monarch/mesh/future.h"

namespace monarch {

// {"gpus", 2} takes one and drops the dimension; {"gpus", Range{0, 4}} keeps it.
struct DimSelection {
  DimSelection(std::string dim, int64_t index) : label(std::move(dim)), what(index) {}
  DimSelection(std::string dim, Range range) : label(std::move(dim)), what(range) {}
  std::string label;
  std::variant<int64_t, Range> what;
};

namespace internal {

// Throws std::invalid_argument for what the region does not have.
Region select(const Region& region, const std::vector<DimSelection>& selections);

template <typename P, typename Arg>
void encode_argument(ValueWriter& writer, const Arg& argument) {
  static_assert(std::is_convertible_v<const Arg&, P>, "an argument does not convert to the endpoint's parameter");
  if constexpr (std::is_same_v<P, Arg>) {
    encode(writer, argument);
  } else {
    encode(writer, static_cast<P>(argument));
  }
}

template <typename Params, typename... Args, size_t... kIndices>
void encode_arguments(ValueWriter& writer, std::index_sequence<kIndices...>, const Args&... args) {
  writer.begin_tuple(sizeof...(Args));
  (encode_argument<std::tuple_element_t<kIndices, Params>>(writer, args), ...);
}

void check_encoded(const ValueWriter& writer);  // throws std::invalid_argument
void check_reducer(Reducer reducer);            // as well

// Handles in messages: (class, mesh, nodes, indices, labels, sizes, whole?). A view travels with its own members only.
void encode_view(ValueWriter& writer, const MeshView& view);
bool decode_view(ValueReader& reader, const std::string& class_name, MeshView& out);

}  // namespace internal

template <typename A>
class ActorMesh {
 public:
  ActorMesh() = default;  // of nothing: only to be assigned to or decoded into
  explicit ActorMesh(internal::MeshView view) : view_(std::move(view)) {}

  const std::string& name() const { return view_.info->name; }
  const Extent& extent() const { return view_.region.extent(); }
  int64_t size() const { return view_.region.size(); }
  ActorId actor(int64_t rank) const { return view_.to.members->ids.at(static_cast<size_t>(rank)); }

  // A part: mesh.slice({{"hosts", 0}, {"gpus", Range{0, 4}}}). Throws std::invalid_argument.
  ActorMesh slice(const std::vector<DimSelection>& selections) const {
    return ActorMesh(view_.pick(internal::select(view_.region, selections)));
  }

  // To every actor; the values of all.
  template <auto kMethod, typename... Args>
  auto call(const Args&... args) const {
    using R = internal::EndpointResult<kMethod>;
    using Value = std::conditional_t<std::is_void_v<R>, Ok, R>;
    return Future<ValueMesh<Value>>(request<kMethod>(view_, Reducer::kNone, args...));
  }
  // To every actor; one value, combined of those of all: kSum, kMin, kMax or kAllEqual. Throws std::invalid_argument for
  // another reducer, since call() says the same.
  template <auto kMethod, typename... Args>
  auto reduce(Reducer reducer, const Args&... args) const {
    internal::check_reducer(reducer);
    return Future<internal::EndpointResult<kMethod>>(request<kMethod>(view_, reducer, args...));
  }
  // To the only actor of this mesh; throws std::invalid_argument if there are more.
  template <auto kMethod, typename... Args>
  auto call_one(const Args&... args) const {
    if (size() != 1) {
      throw std::invalid_argument("call_one() needs a mesh of one actor, and '" + name() + "' has " +
                                  std::to_string(size()) + "; slice it, or use call()");
    }
    return Future<internal::EndpointResult<kMethod>>(request<kMethod>(view_, Reducer::kNone, args...));
  }
  // To one of them, each in turn.
  template <auto kMethod, typename... Args>
  auto choose(const Args&... args) const {
    const int64_t rank = view_.info->next_choice.fetch_add(1, std::memory_order_relaxed) % size();
    return Future<internal::EndpointResult<kMethod>>(request<kMethod>(view_.pick_one(rank), Reducer::kNone, args...));
  }
  // To every actor, without an answer. Waits while one of them has more than Inflow::kBytesMax waiting.
  template <auto kMethod, typename... Args>
  void broadcast(const Args&... args) const {
    ValueWriter writer;
    encode_call<kMethod>(writer, args...);
    view_.send(writer.written(), internal::method_number<A, kMethod>());
  }

  // Makes actors anew that have failed, in their processes, with the same constructor arguments: whoever has a handle
  // reaches the new ones. `ranks`: of the whole mesh. Throws std::invalid_argument for one that has not ended,
  // std::logic_error for a handle that has come in a message.
  void respawn(const std::vector<uint32_t>& ranks) const { view_.respawn(ranks); }

  // Ends the actors after what was sent to them before; their later callers are told "stopped: <reason>".
  Future<void> stop(std::string_view reason = "stop() was called") const {
    view_.disown();
    return Future<void>(view_.request(FrameKind::kStopActor, as_byte_span(reason.data(), reason.size()),
                                      internal::MeshCall::kStop));
  }

 private:
  friend struct ValueCodec<ActorMesh<A>>;

  template <auto kMethod, typename... Args>
  static void encode_call(ValueWriter& writer, const Args&... args) {
    using Params = typename internal::MethodTraits<decltype(kMethod)>::Arguments;
    static_assert(std::tuple_size_v<Params> == sizeof...(Args), "wrong number of arguments for this endpoint");
    internal::encode_arguments<Params>(writer, std::index_sequence_for<Args...>{}, args...);
    if (writer.failure() != nullptr) internal::check_encoded(writer);
  }
  template <auto kMethod, typename... Args>
  static internal::MeshCall request(const internal::MeshView& view, Reducer reducer, const Args&... args) {
    ValueWriter writer;
    encode_call<kMethod>(writer, args...);
    return view.request(FrameKind::kRequest, writer.written(), internal::method_number<A, kMethod>(), reducer);
  }

  internal::MeshView view_;
};

template <typename A>
struct ValueCodec<ActorMesh<A>> {
  static void encode(ValueWriter& writer, const ActorMesh<A>& mesh) { internal::encode_view(writer, mesh.view_); }
  static bool decode(ValueReader& reader, ActorMesh<A>& out) {
    return internal::decode_view(reader, internal::class_name<A>(), out.view_);
  }
};

}  // namespace monarch
