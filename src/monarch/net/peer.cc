#include "monarch/net/peer.h"

#include <algorithm>
#include <utility>

namespace monarch {

PeerStep Peer::on(PeerEvent event, int64_t now_ns) {
  if (state_ == PeerState::kDead) return {};
  if (event == PeerEvent::kDeclared) {
    state_ = PeerState::kDead;
    return {PeerAction::kDrop};
  }
  switch (state_) {
    case PeerState::kNone:
      if (event == PeerEvent::kWanted && lease_ns_ != 0) return begin_resuming(now_ns, opening_ns_);
      if (event != PeerEvent::kWanted && event != PeerEvent::kLink) return {};
      state_ = PeerState::kLinked;
      return {event == PeerEvent::kWanted ? PeerAction::kDial : PeerAction::kUse};
    case PeerState::kLinked:
      if (event == PeerEvent::kLink) return {PeerAction::kListen};
      if (event == PeerEvent::kShortage && lease_ns_ == 0) {
        state_ = PeerState::kNone;
        return {PeerAction::kGiveUp};
      }
      return event == PeerEvent::kClosed || event == PeerEvent::kShortage ? begin_resuming(now_ns, lease_ns_)
                                                                                   : PeerStep{};
    case PeerState::kResuming:
      if (event == PeerEvent::kLink) {
        state_ = PeerState::kLinked;
        return {PeerAction::kResume};
      }
      if (event == PeerEvent::kShortage || event == PeerEvent::kClosed) return redial_soon(now_ns);
      if (event == PeerEvent::kTimer && now_ns < lease_end_ns_) return dial(now_ns);
      if (event != PeerEvent::kTimer && event != PeerEvent::kRefused) return {};
      state_ = PeerState::kEnded;
      return {PeerAction::kReport};
    case PeerState::kEnded:
      return event == PeerEvent::kLink ? PeerStep{PeerAction::kListen} : PeerStep{};
    case PeerState::kDead:
      break;
  }
  return {};
}

PeerStep Peer::begin_resuming(int64_t now_ns, int64_t limit_ns) {
  if (lease_ns_ == 0) {
    state_ = PeerState::kEnded;
    return {PeerAction::kReport};
  }
  state_ = PeerState::kResuming;
  lease_end_ns_ = now_ns + limit_ns;
  dial_ns_ = std::max(kDialNs, limit_ns / 2);
  redial_ns_ = kRedialNs;
  return dial(now_ns);
}

PeerStep Peer::dial(int64_t now_ns) const {
  if (!dials_) return {PeerAction::kNothing, lease_end_ns_};
  return {PeerAction::kDial, std::min(now_ns + dial_ns_, lease_end_ns_)};
}

PeerStep Peer::redial_soon(int64_t now_ns) {
  if (!dials_) return {PeerAction::kNothing, lease_end_ns_};
  const int64_t at_ns = std::min(now_ns + redial_ns_, lease_end_ns_);
  redial_ns_ = std::min(2 * redial_ns_, kRedialMaxNs);
  return {PeerAction::kNothing, at_ns};
}

// ---- Resume ----

namespace {
// With what a frame takes beside its contents, so that many empty ones count too.
uint64_t bytes_of(const Message& message) {
  return kRecordPrologue + message.parts.size() * sizeof(PartRef) + message.total_bytes();
}
}  // namespace

void ResumeWindow::sent(std::shared_ptr<const Message> copy) {
  bytes_ += bytes_of(*copy);
  unacknowledged_.push_back(std::move(copy));
}

bool ResumeWindow::acknowledged(uint64_t count) {
  if (count < first_ || count - first_ > unacknowledged_.size()) return false;
  for (; first_ < count; ++first_) {
    bytes_ -= bytes_of(*unacknowledged_.front());
    unacknowledged_.pop_front();
  }
  return true;
}

std::optional<std::vector<std::shared_ptr<const Message>>> ResumeWindow::resume(uint64_t count) {
  if (!acknowledged(count)) return std::nullopt;
  return std::vector(unacknowledged_.begin(), unacknowledged_.end());
}

std::vector<std::shared_ptr<const Message>> ResumeWindow::take() {
  std::vector<std::shared_ptr<const Message>> taken(unacknowledged_.begin(), unacknowledged_.end());
  first_ += taken.size();
  unacknowledged_.clear();
  bytes_ = 0;
  return taken;
}

}  // namespace monarch
