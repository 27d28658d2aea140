// What a caller wants of the answers to a call, whatever its language makes of them: when there is an outcome, whose
// failure it is if it is one, and else whose values. Decodes nothing.
#pragma once

#include <cstdint>

#include "monarch/actor/pending_call.h"

namespace monarch {

class Gather {
 public:
  enum class Wants : uint8_t {
    kValues,   // of all ranks; the failure of one decides
    kAnswers,  // of all ranks, failures among them (a partial gather)
    kArrival,  // one: the i-th to arrive (a stream)
    kEnd,      // that all ranks have answered, in whatever way
  };

  // `arrival`: i, for kArrival. The call outlives this.
  Gather(const PendingCall& call, Wants wants, uint32_t arrival = 0)
      : call_(&call), wants_(wants), arrival_(arrival) {}

  // After how many answers there is an outcome; 0: when the call is decided.
  uint32_t arrivals_wanted() const {
    if (wants_ == Wants::kValues) return 0;
    return wants_ == Wants::kArrival ? arrival_ + 1 : call_->size();
  }
  bool is_there() const {
    const uint32_t wanted = arrivals_wanted();
    return wanted == 0 ? call_->decided() : call_->received() >= wanted;
  }

  // ---- Of an outcome that is there ----

  // The rank whose failure is the outcome: of several the lowest. -1: the outcome is values.
  int64_t failed_rank() const {
    if (wants_ == Wants::kValues) return call_->lowest_error();
    return wants_ == Wants::kArrival && is_failure(arrived()) ? int64_t{arrived()} : -1;
  }
  // kArrival: whose it is.
  uint32_t arrived() const { return call_->arrival(arrival_); }
  const Message& answer(uint32_t rank) const { return *call_->reply(rank); }
  bool is_failure(uint32_t rank) const { return answer(rank).header.kind != FrameKind::kReply; }

 private:
  const PendingCall* call_;
  Wants wants_;
  uint32_t arrival_;
};

}  // namespace monarch
