// The caller's side of a call: a slot for each rank that was asked. Every request ends (contract clause 3): each
// slot is filled by an answer, an error, or the failure of the process or actor that owed it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "monarch/actor/members.h"
#include "monarch/base/check.h"
#include "monarch/loop/driver.h"
#include "monarch/net/message.h"
#include "monarch/wire/reducer.h"

namespace monarch {

class PendingCall {
 public:
  // `members` says who owes the answers; one slot each.
  explicit PendingCall(std::shared_ptr<const Members> members);

  uint32_t size() const { return size_; }
  const Members& members() const { return *members_; }
  const std::shared_ptr<const Members>& shared_members() const { return members_; }

  // Who owes the answers in fact: others than `members`, where those have been replaced (Successions). Set before it is
  // sent.
  const Members& owing() const { return owing_ ? *owing_ : *members_; }
  const std::shared_ptr<const Members>& shared_owing() const { return owing_ ? owing_ : members_; }
  void set_owing(std::shared_ptr<const Members> owing) { owing_ = std::move(owing); }

  // How many ranks have answered, in whatever way.
  uint32_t received() const { return received_.load(std::memory_order_acquire); }
  bool complete() const { return received() == size_; }
  // Everything is here, or an error is: then there is no need to wait for the others.
  bool decided() const { return complete() || first_error_.load(std::memory_order_acquire) >= 0; }

  // The answer of `rank`, or null while it is missing. Stays until the call is destroyed. Of those that stand in others it
  // is one for all, with kFlagReduce.
  Message* reply(uint32_t rank) const;
  // Of a complete call, those that do not stand in others, by rank, until `visit(rank, answer)` is false.
  template <typename Visit>
  void visit_values(Visit visit) const {
    MONARCH_CHECK(complete());  // nothing changes any more
    if (size_ == 1) return static_cast<void>(visit(0u, static_cast<const Message&>(*single_)));
    for (uint32_t rank = 0; rank < size_; ++rank) {
      if (replies_[rank] && !visit(rank, static_cast<const Message&>(*replies_[rank]))) return;
    }
  }
  // The ranks that have not answered, in order.
  std::vector<uint32_t> missing() const;
  // The rank whose answer was the i-th to arrive (i < received()).
  uint32_t arrival(uint32_t i) const;
  // The lowest rank that has answered with an error or failure; -1: none.
  int64_t lowest_error() const;

  struct Answer {
    uint32_t rank = 0;
    MessagePtr reply;  // null: its value stands in that of a lower rank, or nobody wants it
  };
  // Fills their slots; a second answer is dropped. Returns true when the last one was among them. `*refused`, where asked
  // for: none of them is taken, since a value among them is of ranks that have answered by themselves, and of others.
  bool fill(std::span<Answer> answers, Driver& driver, bool* refused = nullptr);
  bool fill(uint32_t rank, MessagePtr reply, Driver& driver) {
    Answer answer{rank, std::move(reply)};
    return fill({&answer, 1}, driver);
  }

  // A thread that waits is told when `arrivals` answers are here, or, if that is 0, when the call is decided, and of each
  // answer that comes after.
  void add_waiter(Waiter& waiter, uint32_t arrivals);
  void remove_waiter(Waiter& waiter);

  // Runs `observer` once, when `arrivals` answers are here or (if `arrivals` is 0) the call is decided; at once if that
  // is so already. On whatever thread fills the slot: it must not block nor take the GIL. Returns what forget_observer()
  // takes; that drops an observer that has not begun to run.
  uint64_t observe(uint32_t arrivals, std::function<void()> observer);
  void forget_observer(uint64_t observer);

  // When its ranks will have been given up (Node::cast), on the monotonic clock; 0: never. Set before it is sent.
  int64_t deadline_ns() const { return deadline_ns_; }
  void set_deadline(int64_t deadline_ns) { deadline_ns_ = deadline_ns; }

  // Its number in the node that made it (Calls); 0: it has none, as the wait at a port. Set before it is sent.
  uint64_t token() const { return token_; }
  void set_token(uint64_t token) { token_ = token; }
  // What was called, for people: "trainers.step". Set before it is sent; may be null. shared: with the endpoint.
  const std::shared_ptr<const std::string>& label() const { return label_; }
  void set_label(std::shared_ptr<const std::string> label) { label_ = std::move(label); }

  // How its answers are combined. Set before it is sent.
  Reducer reducer() const { return reducer_; }
  void set_reducer(Reducer reducer) { reducer_ = reducer; }
  // Its answers are looked at when all are there, so they may come together. Set before it is sent.
  void set_gathered() { gathered_ = true; }
  // What gateways are told.
  Reducer on_the_way() const { return gathered_ && reducer_ == Reducer::kNone ? Reducer::kGather : reducer_; }

  // Any thread. What the processes that owe these ranks did shortly before the deadline (Node::ask_stacks).
  struct Stacks {
    std::vector<uint32_t> ranks;
    std::shared_ptr<const PendingCall> call;  // its ranks are those, in that order; shared: with who takes them
  };
  void set_stacks(Stacks stacks) {
    std::lock_guard lock(mutex_);
    stacks_ = std::move(stacks);
  }
  Stacks stacks() const {  // without a call: nobody has looked
    std::lock_guard lock(mutex_);
    return stacks_;
  }

 protected:
  // The answer itself, or null; nobody else may be looking at it.
  MessagePtr take(uint32_t rank);
  // What observes is run though nothing has come: the call is given up, and nobody else may be filling it.
  void abandon();

 private:
  struct Waiting {
    Waiter* waiter;
    uint32_t arrivals;
  };
  struct Observer {
    uint64_t number;
    uint32_t arrivals;
    std::function<void()> run;
  };
  bool place(Answer& answer);
  bool overlaps(std::span<const Answer> answers) const;
  bool is_in_other(uint32_t rank) const { return !in_others_.empty() && in_others_[rank]; }
  bool has(uint32_t rank) const { return (size_ == 1 ? single_ : replies_[rank]) != nullptr || is_in_other(rank); }
  bool reached(uint32_t arrivals) const { return arrivals == 0 ? decided() : received() >= arrivals; }

  const std::shared_ptr<const Members> members_;
  std::shared_ptr<const Members> owing_;  // null: members_
  const uint32_t size_;
  int64_t deadline_ns_ = 0;
  uint64_t token_ = 0;
  Reducer reducer_ = Reducer::kNone;
  bool gathered_ = false;
  std::shared_ptr<const std::string> label_;
  std::atomic<uint32_t> received_{0};
  std::atomic<int64_t> first_error_{-1};
  mutable std::mutex mutex_;
  MessagePtr single_;                  // the answer, when there is one slot
  std::vector<MessagePtr> replies_;    // else: by rank
  std::vector<bool> in_others_;        // by rank, whose values stand in others; empty: nobody's
  MessagePtr in_other_;                // the answer of those
  std::vector<uint32_t> order_;
  std::vector<Waiting> waiters_;
  std::vector<Observer> observers_;
  uint64_t observers_seen_ = 0;
  Stacks stacks_;
};

}  // namespace monarch
