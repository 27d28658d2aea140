#include "monarch/mesh/call.h"

#include <stdexcept>

#include "monarch/actor/registry.h"
#include "monarch/actor/turn.h"
#include "monarch/wire/value_codec.h"

namespace monarch::internal {

// ---- Waiting ----

namespace {

struct WaitState {
  const PendingCall* call;
  const Turn* turn;
};

bool wait_is_over(const void* context) {
  const WaitState& state = *static_cast<const WaitState*>(context);
  return state.call->decided() || (state.turn != nullptr && state.turn->stopping());
}

void wait_with(Driver& driver, PendingCall& call, Waiter& waiter, const WaitState& state, int64_t deadline_ns) {
  call.add_waiter(waiter);
  while (driver.wait(waiter, wait_is_over, &state, deadline_ns) == WaitResult::kInterrupted) {
  }
  call.remove_waiter(waiter);
}

}  // namespace

// An actor that waits for itself would wait for ever.
void MeshCall::check_not_own() const {
  Turn* turn = Turn::current();
  if (turn == nullptr) return;
  for (const ActorId& id : call_->members().ids) {
    if (id == turn->self().id) {
      throw std::logic_error(turn->self().describe() +
                             " waits for a call to itself, which it can only answer afterwards; call the method "
                             "directly, or broadcast without waiting");
    }
  }
}

std::optional<CallError> MeshCall::wait(int64_t deadline_ns) const {
  const WaitState state{call_.get(), Turn::current()};
  int64_t waited_ns = 0;
  if (!wait_is_over(&state)) {
    Driver& driver = info_->node->driver();
    if (Turn* turn = Turn::current()) {
      check_not_own();
      wait_with(driver, *call_, turn->begin_blocking(), state, deadline_ns);
      turn->end_blocking();
    } else {
      Waiter waiter;
      wait_with(driver, *call_, waiter, state, deadline_ns);
      waited_ns = waiter.waited_ns();
    }
  }
  if (decided()) {
    if (state.turn == nullptr) info_->node->answered(waited_ns);
    return failure();
  }
  CallError error;
  const std::string progress = std::to_string(call_->received()) + " of " + std::to_string(size()) + " ranks answered";
  if (state.turn != nullptr && state.turn->stopping()) {
    error.kind = CallError::Kind::kSupervision;
    error.message = "this process is ending";
  } else {
    error.kind = CallError::Kind::kDeadline;
    error.message = "no answer within the time allowed; " + progress;
  }
  error.text = endpoint() + where(-1) + ": " + error.message;
  return error;
}

bool MeshCall::suspend(std::coroutine_handle<> frame) const {
  Turn* turn = Turn::current();
  if (turn == nullptr) {
    (void)wait(kNoDeadline);
    return false;
  }
  check_not_own();
  turn->resume_after(*call_, frame);
  return true;
}

// ---- What went wrong ----

std::string MeshCall::where(int64_t rank) const {
  std::string text = " of " + info_->class_name + " '" + info_->name + "'";
  if (rank >= 0 && extent_.dim_count() > 0) {
    text += " at rank " + std::to_string(rank) + " " + Point(rank, extent_).to_string();
  }
  return text;
}

std::string MeshCall::endpoint() const {
  if (method_ == kStop) return "stop()";
  const ActorClass* known = ActorRegistry::instance().find(info_->class_name);
  if (known == nullptr || method_ >= known->methods.size()) return "endpoint " + std::to_string(method_);
  return known->methods[method_].name + "()";
}

std::optional<CallError> MeshCall::failure() const {
  const int64_t rank = call_->lowest_error();
  if (rank < 0) return std::nullopt;
  const Message& message = *call_->reply(static_cast<uint32_t>(rank));
  CallError error;
  error.rank = rank;
  if (message.header.kind == FrameKind::kReplyFailed) {
    error.kind = CallError::Kind::kSupervision;
    error.message = message.text();
    error.text = endpoint() + where(rank) + " has no answer: " + error.message;
    return error;
  }
  error.kind = CallError::Kind::kActor;
  std::string type, what;
  ValueReader reader(message.body);
  if ((message.header.flags & kFlagPickle) == 0 && decode_into(reader, std::tie(type, what))) {
    error.type = type;
    error.message = what;
  } else {
    error.message = "a Python exception, which C++ cannot read";
  }
  error.text = endpoint() + where(rank) + " raised " + (error.type.empty() ? "" : error.type + ": ") + error.message;
  return error;
}

CallError MeshCall::not_decodable(uint32_t rank, const Error& why) const {
  CallError error;
  error.rank = rank;
  error.type = "TypeError";
  error.message = (reply(rank).header.flags & kFlagPickle) != 0
                      ? "the answer is a Python object that C++ cannot read"
                      : "the answer is not what the endpoint is declared to return: " + why.message;
  error.text = endpoint() + where(rank) + ": " + error.message;
  return error;
}

// ---- Sending ----

MeshView MeshView::pick(Region to) const {
  auto picked = std::make_shared<Members>();
  picked->ids.reserve(static_cast<size_t>(to.size()));
  for (int64_t rank : to.slice()) picked->ids.push_back(info->members->ids[static_cast<size_t>(rank)]);
  return {info, std::move(picked), std::move(to), false};
}

MeshView MeshView::pick_one(int64_t rank) const {
  Region one = *Region::create({}, *Slice::create(region.slice().rank_at(rank), {}, {}));
  return pick(std::move(one));
}

void MeshView::cast(Outgoing& outgoing, const std::shared_ptr<PendingCall>& call) const {
  const Turn* turn = Turn::current();
  if (turn != nullptr && turn->self().node == info->node) outgoing.header.sender = turn->self().id.index;
  ValueWriter extent;
  ByteSpan part;
  if (region.labels().empty()) {
    outgoing.header.flags |= kFlagScalarView;
  } else if (!whole) {
    outgoing.header.flags |= kFlagView;
    extent.begin_tuple(2);
    extent.begin_tuple(static_cast<uint32_t>(region.labels().size()));
    for (const std::string& label : region.labels()) extent.str(label);
    extent.begin_tuple(static_cast<uint32_t>(region.labels().size()));
    for (int64_t size : region.extent().sizes()) extent.integer(size);
    part = extent.written();
    outgoing.parts = {&part, 1};
  }
  info->node->cast(*members, outgoing, call);
}

MeshCall MeshView::request(FrameKind kind, ByteSpan body, uint32_t method) const {
  auto call = std::make_shared<PendingCall>(members);
  Outgoing outgoing{FrameHeader{}, body, {}};
  outgoing.header.kind = kind;
  outgoing.header.method = method == MeshCall::kStop ? 0 : method;
  cast(outgoing, call);
  return MeshCall(info, std::move(call), region.extent(), method);
}

// Waits until the members have room for a one-way message, or the process ends.
void MeshView::wait_for_room() const {
  struct Wait {
    RoomWait room;
    const Turn* turn;
    static bool over(const void* self) {
      const Wait& wait = *static_cast<const Wait*>(self);
      return wait.room.over() || (wait.turn != nullptr && wait.turn->stopping());
    }
  };
  Turn* turn = Turn::current();
  Wait wait{RoomWait(*info->node, *members), turn};
  if (Wait::over(&wait)) return;
  Waiter own;
  Waiter& waiter = turn != nullptr ? turn->begin_blocking() : own;
  while (info->node->driver().wait(waiter, &Wait::over, &wait, wait.room.next_look_ns()) != WaitResult::kReady) {
    if (wait.room.is_slow()) RoomWait::say_slow(info->class_name + " '" + info->name + "'");
  }
  if (turn != nullptr) turn->end_blocking();
}

void MeshView::send(ByteSpan body, uint32_t method) const {
  wait_for_room();
  Outgoing outgoing{FrameHeader{}, body, {}};
  outgoing.header.kind = FrameKind::kOneway;
  outgoing.header.method = method;
  cast(outgoing, nullptr);
}

// ---- Handles in values ----

namespace {
Node*& decoding_node() {
  static thread_local Node* node = nullptr;
  return node;
}
}  // namespace

DecodingNode::DecodingNode(Node& node) : before_(std::exchange(decoding_node(), &node)) {}
DecodingNode::~DecodingNode() { decoding_node() = before_; }

Node* DecodingNode::current() {
  if (decoding_node() != nullptr) return decoding_node();
  Turn* turn = Turn::current();
  return turn == nullptr ? nullptr : turn->self().node;
}

}  // namespace monarch::internal
