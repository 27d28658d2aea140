#include "monarch/mesh/call.h"

#include <stdexcept>

#include "monarch/actor/calls.h"
#include "monarch/actor/node.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/registry.h"
#include "monarch/actor/turn.h"
#include "monarch/loop/driver.h"
#include "monarch/mesh/gather.h"
#include "monarch/mesh/reduced.h"
#include "monarch/wire/error_kind.h"
#include "monarch/wire/value_codec.h"

namespace monarch::internal {

// ---- Waiting ----

namespace {

struct WaitState {
  Gather gather;
  const Turn* turn;
};

bool wait_is_over(const void* context) {
  const WaitState& state = *static_cast<const WaitState*>(context);
  return state.gather.is_there() || (state.turn != nullptr && state.turn->stopping());
}

void wait_with(Driver& driver, PendingCall& call, Waiter& waiter, const WaitState& state, int64_t deadline_ns) {
  call.add_waiter(waiter, state.gather.arrivals_wanted());
  while (driver.wait(waiter, wait_is_over, &state, deadline_ns) == WaitResult::kInterrupted) {
  }
  call.remove_waiter(waiter);
}

}  // namespace

uint32_t MeshCall::size() const { return call_->size(); }
bool MeshCall::decided() const { return gather().is_there(); }
const Message& MeshCall::reply(uint32_t rank) const { return *call_->reply(rank); }
int64_t MeshCall::deadline_in(int64_t timeout_ns) const { return info_->node->clock().now_ns() + timeout_ns; }
Gather MeshCall::gather() const { return Gather(*call_, Gather::Wants::kValues); }

// An actor that waits for itself would wait for ever.
void MeshCall::check_not_own() const {
  Turn* turn = Turn::current();
  if (turn == nullptr) return;
  if (find_own(call_->owing(), {turn->self().id.node, turn->self().id.index}) == nullptr) return;
  throw std::logic_error(turn->self().describe() +
                         " waits for a call to itself, which it can only answer afterwards; call the method "
                         "directly, or broadcast without waiting");
}

std::optional<CallError> MeshCall::wait(int64_t deadline_ns) const {
  const WaitState state{gather(), Turn::current()};
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
  if (call_->label()) return *call_->label();
  const ActorClass* known = ActorRegistry::instance().find(info_->class_name);
  if (known == nullptr || method_ >= known->methods.size()) return "endpoint " + std::to_string(method_);
  return known->methods[method_].name + "()";
}

namespace {
// What a C++ actor has raised, or was put in the place of an answer. False: it is something else.
bool read_error(std::span<const std::byte> body, CallError& error) {
  ValueReader reader(body);
  uint32_t count;
  int64_t kind;
  std::string_view type, what;
  if (!reader.begin_tuple(count) || count < 2 || !reader.integer(kind)) return false;
  switch (static_cast<ErrorKind>(kind)) {
    case ErrorKind::kNative:
      if (!reader.str(type) || !reader.str(what)) return false;
      break;
    case ErrorKind::kEndOfStream:
      if (!reader.str(what)) return false;
      break;
    case ErrorKind::kDeadline:
      if (!reader.str(what)) return false;
      error.kind = CallError::Kind::kDeadline;
      break;
    case ErrorKind::kDeadlock:
      if (!reader.str(what)) return false;
      error.kind = CallError::Kind::kSupervision;
      break;
    default:
      return false;
  }
  error.type = type;
  error.message = what;
  return true;
}
}  // namespace

std::optional<CallError> MeshCall::failure() const {
  const int64_t rank = gather().failed_rank();
  if (rank < 0) return std::nullopt;
  const Message& message = gather().answer(static_cast<uint32_t>(rank));
  CallError error;
  error.rank = rank;
  if (message.header.kind == FrameKind::kReplyFailed) {
    info_->node->observed(call_->owing());
    error.kind = CallError::Kind::kSupervision;
    error.message = failure_of(message).text();
    error.text = endpoint() + where(rank) + " has no answer: " + error.message;
    return error;
  }
  error.kind = CallError::Kind::kActor;
  if ((message.header.flags & kFlagPickle) != 0 || !read_error(message.body, error)) {
    error.message = "a Python exception, which C++ cannot read";
  }
  error.text = endpoint() + where(rank) + " raised " + (error.type.empty() ? "" : error.type + ": ") + error.message;
  return error;
}

Reducer MeshCall::reducer() const { return call_->reducer(); }

MessagePtr MeshCall::reduced() const {
  Reduced reduced = reduce(*call_);
  if (reduced.value) return std::move(reduced.value);
  CallError error;
  error.rank = reduced.problem.rank;
  error.type = reduced.problem.kind == ReduceProblem::Kind::kType ? "TypeError" : "ValueError";
  error.message = reduced.problem.text(endpoint());
  error.text = endpoint() + where(-1) + ": " + error.message;
  error.raise();
}

CallError MeshCall::not_decodable(uint32_t rank, const Message& answer, const Error& why) const {
  CallError error;
  error.rank = rank;
  error.type = "TypeError";
  error.message = (answer.header.flags & kFlagPickle) != 0
                      ? "the answer is a Python object that C++ cannot read"
                      : "the answer is not what the endpoint is declared to return: " + why.message;
  error.text = endpoint() + where(rank) + ": " + error.message;
  return error;
}

// ---- Sending ----

MeshView MeshView::pick(Region part) const {
  auto picked = std::make_shared<Members>();
  picked->ids.reserve(static_cast<size_t>(part.size()));
  for (int64_t rank : part.slice()) picked->ids.push_back(info->members->ids[static_cast<size_t>(rank)]);
  return {info, std::move(picked), std::move(part), false};
}

MeshView MeshView::pick_one(int64_t rank) const {
  Region one = *Region::create({}, *Slice::create(region.slice().rank_at(rank), {}, {}));
  return pick(std::move(one));
}

void MeshView::cast(Outgoing& outgoing, const std::shared_ptr<PendingCall>& call) const {
  const Turn* turn = Turn::current();
  if (turn != nullptr && turn->self().node == info->node) outgoing.header.sender = turn->self().id.index;
  to.cast(*info->node, outgoing, call);
}

void MeshView::respawn(const std::vector<uint32_t>& ranks) const {
  if (!info->spawn) throw std::logic_error("'" + info->name + "' was not spawned here: it cannot be respawned");
  Node::Restart order;
  order.actors.push_back({info->supervised, info->spawn, 0, ranks, {}});
  if (const Status done = info->node->restart(order); !done) {
    throw std::invalid_argument("'" + info->name + "' cannot be respawned: " + done.error().message);
  }
}

void MeshView::disown() const {
  if (whole && info->supervised != 0) info->node->supervisor().remove(info->supervised);
}

MeshCall MeshView::request(FrameKind kind, ByteSpan body, uint32_t method, Reducer reducer) const {
  if (kind == FrameKind::kRequest && info->node->is_flood(true, body.size())) wait_until_room(true);
  auto call = to.new_call();
  call->set_reducer(reducer);
  call->set_gathered();
  Outgoing outgoing{FrameHeader{}, body, {}};
  outgoing.header.kind = kind;
  if (reducer != Reducer::kNone) outgoing.header.flags |= kFlagReduce;
  outgoing.header.method = method == MeshCall::kStop ? 0 : method;
  cast(outgoing, call);
  return MeshCall(info, std::move(call), region.extent(), method);
}

namespace {

// A pool thread has others take over; a process that ends waits for nobody.
class SleepInTurn final : public RoomSleep {
 public:
  SleepInTurn(Driver& driver, Turn* turn, const MeshInfo& info) : driver_(driver), turn_(turn), info_(info) {}
  ~SleepInTurn() override {
    if (blocking_ != nullptr) turn_->end_blocking();
  }
  WaitResult sleep(bool (*over)(const void*), const void* context, int64_t until_ns) override {
    if (turn_ != nullptr && blocking_ == nullptr) blocking_ = &turn_->begin_blocking();
    const WaitResult result = driver_.wait(blocking_ != nullptr ? *blocking_ : own_, over, context, until_ns);
    return result == WaitResult::kInterrupted ? WaitResult::kTimeout : result;  // signals are the program's business
  }
  bool has_no_time() const override { return turn_ != nullptr && turn_->stopping(); }
  std::string receiver() override { return info_.class_name + " '" + info_.name + "'"; }

 private:
  Driver& driver_;
  Turn* const turn_;
  const MeshInfo& info_;
  Waiter own_;
  Waiter* blocking_ = nullptr;
};

}  // namespace

void MeshView::wait_until_room(bool is_call) const {
  Turn* const turn = Turn::current();
  SleepInTurn sleep(info->node->driver(), turn, *info);
  wait_for_room(*info->node, *to.members, is_call && turn == nullptr, 0, sleep);
}

void MeshView::send(ByteSpan body, uint32_t method) const {
  wait_until_room(false);
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
