#include "unseen.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <utility>

#include "future_state.h"
#include "monarch/actor/calls.h"
#include "monarch/base/forked.h"
#include "state.h"
#include "supervision.h"

namespace monarch {

namespace {

constexpr size_t kLookAt = 64;        // so many, and then twice as many as were kept: those that went well go
constexpr size_t kDroppedMax = 4096;  // the older half is forgotten then
constexpr uint64_t kKeptBytesMax = uint64_t{16} << 20;  // of their answers; here too

std::atomic<uint64_t> kept_bytes{0};

// What becomes of a call whose future is gone: an answer that is no exception is not kept.
class Fate {
 public:
  Fate() = default;
  ~Fate() { kept_bytes -= bytes(); }
  Fate(const Fate&) = delete;
  Fate& operator=(const Fate&) = delete;

  // Once. Whatever thread fills the call.
  void keep(std::shared_ptr<PendingCall> call) {
    uint64_t bytes = 0;
    for (uint32_t rank = 0; rank < call->size(); ++rank) {
      if (const Message* answer = call->reply(rank)) bytes += answer->total_bytes();
    }
    kept_bytes += bytes;
    std::lock_guard lock(mutex_);
    call_ = std::move(call);
    bytes_ = bytes;
  }
  // The call, if it has raised.
  std::shared_ptr<PendingCall> kept() const {
    std::lock_guard lock(mutex_);
    return call_;
  }
  uint64_t bytes() const {
    std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<PendingCall> call_;
  uint64_t bytes_ = 0;  // of its answers
};

struct Dropped {
  std::weak_ptr<PendingCall> call;  // while it has not been answered
  std::shared_ptr<Fate> fate;
  Gather::Wants wants;
  uint32_t arrival;
  Label label;

  // What may have to be told of it; without a call if it went well.
  UnseenCall unseen() const {
    std::shared_ptr<PendingCall> found = call.lock();
    if (!found) found = fate->kept();  // in this order: what raises meanwhile is kept before it goes
    if (!found) return {};
    Gather gather(*found, wants, arrival);
    return {std::move(found), gather, label};
  }
  bool is_over() const { return call.expired() && !fate->kept(); }
};

Unseen* first = nullptr;
std::vector<Dropped> dropped_calls;
size_t look_at = kLookAt;

int64_t rank_that_raised(const Gather& gather) {
  const int64_t rank = gather.is_there() ? gather.failed_rank() : -1;
  if (rank < 0) return -1;
  const Message& answer = gather.answer(static_cast<uint32_t>(rank));
  // The death of a process is told by itself; that of an actor is not, since its caller has been told.
  const bool of_actor = answer.header.kind == FrameKind::kReplyError || failure_of(answer).kind == Failure::Kind::kActor;
  return of_actor ? rank : -1;
}

void forget_some() {
  std::vector<Dropped> kept;
  for (Dropped& call : dropped_calls) {
    if (!call.is_over()) kept.push_back(std::move(call));
  }
  if (kept.size() > kDroppedMax) kept.erase(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(kept.size() / 2));
  if (const uint64_t bytes = kept_bytes; bytes > kKeptBytesMax) {
    uint64_t left = bytes;
    std::erase_if(kept, [&left](const Dropped& call) {  // the oldest first
      const uint64_t its = call.fate->bytes();
      if (left <= kKeptBytesMax / 2 || its == 0) return false;
      left -= std::min(left, its);
      return true;
    });
  }
  look_at = std::max(kLookAt, 2 * kept.size());
  dropped_calls.swap(kept);
}

void note_dropped(const FutureState& future) {
  const Gather gather = future.gather();
  const auto fate = std::make_shared<Fate>();
  if (gather.is_there()) {
    if (rank_that_raised(gather) < 0) return;
    fate->keep(future.call);
  } else {
    const std::weak_ptr<PendingCall> answered = future.call;
    future.call->observe(gather.arrivals_wanted(), [fate, answered, mode = future.mode, arrival = future.arrival] {
      std::shared_ptr<PendingCall> call = answered.lock();
      if (call && rank_that_raised(Gather(*call, wants_of(mode), arrival)) >= 0) fate->keep(std::move(call));
    });
  }
  dropped_calls.push_back({future.call, fate, wants_of(future.mode), future.arrival, future.call->label()});
  if (dropped_calls.size() >= look_at || kept_bytes > kKeptBytesMax) forget_some();
}

}  // namespace

void Unseen::link() {
  next_ = first;
  if (first != nullptr) first->previous_ = this;
  first = this;
  linked_ = true;
  count_.store(count_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // one writer: the GIL
}

bool Unseen::is_here() const { return process_ == simulated_state; }

void Unseen::unlink() {
  if (!std::exchange(linked_, false)) return;
  count_.store(count_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  (previous_ == nullptr ? first : previous_->next_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

FutureState::~FutureState() {
  if (!is_linked()) return;
  unlink();
  if (!is_of_call() || in_forked_child() || state().finalizing || !is_here()) return;
  note_unlooked();
  if (state().worker || !is_here() || simulated_state != nullptr) return;  // what is lost is said at the end of a script
  try {
    note_dropped(*this);
  } catch (const std::bad_alloc&) {
    // then nobody is told
  }
}

int64_t UnseenCall::raised_rank() const { return rank_that_raised(*gather); }

std::vector<UnseenCall> unseen_calls() {
  std::vector<UnseenCall> found;
  for (const Dropped& call : dropped_calls) {
    if (UnseenCall unseen = call.unseen(); unseen.call) found.push_back(std::move(unseen));
  }
  for (Unseen* unseen = first; unseen != nullptr; unseen = unseen->next_) {
    const auto& future = static_cast<const FutureState&>(*unseen);
    if (!unseen->is_here() || !future.call || future.waiting > 0) continue;
    found.push_back({future.call, future.gather(), future.call->label()});
  }
  return found;
}

bool any_unseen_call(const std::function<bool(const PendingCall&)>& wanted) {
  for (Unseen* unseen = first; unseen != nullptr; unseen = unseen->next_) {
    const auto& future = static_cast<const FutureState&>(*unseen);
    if (unseen->is_here() && future.call && wanted(*future.call)) return true;
  }
  return false;
}

void forget_dropped() {
  std::vector<Dropped> forgotten;
  forgotten.swap(dropped_calls);
}

}  // namespace monarch
