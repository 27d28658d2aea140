#include "unseen.h"

#include <algorithm>
#include <utility>

#include "future_state.h"
#include "monarch/base/forked.h"
#include "state.h"

namespace monarch {

namespace {

constexpr size_t kLookAt = 64;        // so many, and then twice as many as were kept: those that went well go
constexpr size_t kDroppedMax = 4096;  // the older half is forgotten then

Unseen* first = nullptr;
std::vector<UnseenCall> dropped_calls;
size_t look_at = kLookAt;

bool went_well(const UnseenCall& of) { return of.gather.is_there() && of.raised() < 0; }

UnseenCall about(const FutureState& future) { return {future.call, future.gather(), Ref::borrow(future.endpoint.get())}; }

}  // namespace

void Unseen::link() {
  next_ = first;
  if (first != nullptr) first->previous_ = this;
  first = this;
  linked_ = true;
}

void Unseen::unlink() {
  if (!std::exchange(linked_, false)) return;
  (previous_ == nullptr ? first : previous_->next_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
}

FutureState::~FutureState() {
  if (!is_linked()) return;
  unlink();
  if (call && is_of_call() && !in_forked_child() && !state().finalizing) note_dropped(about(*this));
}

int64_t UnseenCall::raised() const {
  const int64_t rank = gather.is_there() ? gather.failed_rank() : -1;
  return rank >= 0 && gather.answer(static_cast<uint32_t>(rank)).header.kind == FrameKind::kReplyError ? rank : -1;
}

void note_dropped(UnseenCall dropped) {
  if (went_well(dropped)) return;
  dropped_calls.push_back(std::move(dropped));
  if (dropped_calls.size() < look_at) return;
  std::vector<UnseenCall> kept;
  for (UnseenCall& call : dropped_calls) {
    if (!went_well(call)) kept.push_back(std::move(call));
  }
  if (kept.size() > kDroppedMax) kept.erase(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(kept.size() / 2));
  look_at = std::max(kLookAt, 2 * kept.size());
  dropped_calls.swap(kept);  // what goes may run Python code, with the list in order
}

std::vector<UnseenCall> unseen_calls() {
  std::vector<UnseenCall> found;
  for (const UnseenCall& call : dropped_calls) found.push_back({call.call, call.gather, Ref::borrow(call.endpoint.get())});
  for (Unseen* unseen = first; unseen != nullptr; unseen = unseen->next_) {
    const auto& future = static_cast<const FutureState&>(*unseen);
    if (future.call && future.is_of_call() && future.waiting == 0) found.push_back(about(future));
  }
  return found;
}

void forget_dropped() {
  std::vector<UnseenCall> forgotten;
  forgotten.swap(dropped_calls);
}

}  // namespace monarch
