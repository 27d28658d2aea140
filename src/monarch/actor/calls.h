// The calls that a node waits for: each has a slot, whose token travels with the request and comes back with the answer,
// and perhaps a deadline. Any thread; every answer, failure and deadline of a call ends in here.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "monarch/actor/deadlines.h"
#include "monarch/actor/pending_call.h"
#include "monarch/base/ids.h"
#include "monarch/base/mutex.h"
#include "monarch/net/message.h"
#include "monarch/wire/error_kind.h"
#include "monarch/wire/failure.h"

namespace monarch {

class Driver;

class Calls {
 public:
  // A call whose deadline is so long that it may hang is overdue shortly before that: then there still is something to see.
  static constexpr int64_t kLongNs = 1'000'000'000;
  static constexpr int64_t kOverdueNs = 100'000'000;

  // How often somebody looks at calls that have not been answered, while there are any; with so many that a look itself
  // takes long, after that many times as long.
  static constexpr int64_t kLookNs = 300'000'000;
  static constexpr int64_t kLookRest = 10;

  struct Hooks {
    // Both, where there is one, run where timers do, without a lock held.
    std::function<void(const std::shared_ptr<PendingCall>&)> on_overdue;
    // The calls that have been pending for a while: since the last look at least. True: look again though there are none.
    std::function<bool(const std::vector<std::shared_ptr<PendingCall>>&)> on_look;
  };

  Calls(Driver& driver, Timers& timers, Hooks hooks = {});
  ~Calls();

  // The token for `call`. From `deadline_ns` on (0: never) its ranks that have not answered are filled with
  // make_expired().
  uint64_t open(std::shared_ptr<PendingCall> call, int64_t deadline_ns);
  // Fills the slot of `rank`; an answer to a call that has ended, by its deadline too, is dropped.
  void answer(uint64_t token, uint32_t rank, MessagePtr reply) {
    PendingCall::Answer one{rank, std::move(reply)};
    answer(token, {&one, 1});
  }
  // False: they are refused (PendingCall::fill).
  bool answer(uint64_t token, std::span<PendingCall::Answer> answers);
  // The ranks that have not answered; none: it has ended.
  std::optional<std::vector<uint32_t>> missing(uint64_t token);
  // Its ranks that have not answered are filled with what `make` gives for each.
  void end(uint64_t token, const std::function<MessagePtr(uint32_t rank)>& make);
  // From now on somebody looks, as if a call had been opened.
  void begin_looks();
  // Whether an answer is waited for of an actor that `owing` is true of.
  bool is_owed(const std::function<bool(const ActorId&)>& owing);
  size_t size() const;  // those that have not been answered
  // The same by one relaxed load, perhaps a moment late.
  size_t size_hint() const { return count_.load(std::memory_order_relaxed); }
  // Fills every slot that is owed by one of these nodes with that failure.
  void fail_owed(const std::function<bool(NodeId)>& owed_by, const Failure& why);

 private:
  struct Slot {
    uint32_t generation = 1;
    bool is_old = false;      // the call was there at the last look
    int64_t deadline_ns = 0;  // 0: none
    int64_t timer_ns = 0;     // the same, or before it when it will be overdue
    std::shared_ptr<PendingCall> call;
  };
  Slot find(uint64_t token);  // without a call: it has ended
  void on_timer(uint64_t token);
  void expire(uint64_t token);
  template <typename Visit>
  void visit_open(Visit visit);
  void arm_look(int64_t after_ns);
  void look();
  void fill(uint64_t token, PendingCall& call, std::span<PendingCall::Answer> answers, bool* refused = nullptr);
  void fill(uint64_t token, PendingCall& call, uint32_t rank, MessagePtr reply) {
    PendingCall::Answer answer{rank, std::move(reply)};
    fill(token, call, {&answer, 1});
  }

  Driver& driver_;
  Clock& clock_;
  mutable Mutex mutex_{LockRank::kNodeCalls};
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<uint64_t> open_;  // a bit for each slot: it has a call
  std::atomic<size_t> count_{0};
  const Hooks hooks_;
  bool looks_ = false;  // a look is to come, and open() need not see to that
  Timers& timers_;
  Timers::TimerId look_timer_ = 0;
  Deadlines deadlines_;
};

// What a rank is answered with that will not answer: of kinds of which a text is all there is, as kDeadline.
MessagePtr make_error(uint64_t token, uint32_t rank, ErrorKind kind, std::string_view text);

// The failure that a rank gets whose process is gone, or that cannot be asked.
MessagePtr make_failure(uint64_t token, uint32_t rank, const Failure& why);

// Of a kReplyFailed or kUndeliverable, or what a port passes on as one: what has failed.
Failure failure_of(const Message& message);

// The words of an answer: of a kReplyFailed those of its failure, else its body.
std::string reply_text(const Message& reply);

}  // namespace monarch
