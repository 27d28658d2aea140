// Calls whose outcome nobody has looked at: at its end a script says what is lost with them. All with the GIL. Nothing here
// holds Python objects: it may be left when the interpreter has ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "monarch/actor/pending_call.h"
#include "monarch/mesh/gather.h"

namespace monarch {

struct State;
extern thread_local constinit State* simulated_state;
using Label = std::shared_ptr<const std::string>;  // of an endpoint, mesh.method

// Base of what is in the list of futures that nobody has looked at.
class Unseen {
 public:
  Unseen() = default;
  Unseen(Unseen&&) noexcept {}  // what is moved is not in the list yet
  Unseen& operator=(Unseen&&) = delete;
  ~Unseen() { unlink(); }

  void link();
  // Made in the process of the calling thread, which may be simulated.
  bool is_here() const;
  void unlink();
  bool is_linked() const { return linked_; }
  // Whether there is one at all. Any thread, without the GIL.
  static bool any() { return count_.load(std::memory_order_relaxed) != 0; }

 private:
  friend std::vector<struct UnseenCall> unseen_calls();
  friend bool any_unseen_call(const std::function<bool(const PendingCall&)>& wanted);
  Unseen* previous_ = nullptr;
  Unseen* next_ = nullptr;
  bool linked_ = false;
  static inline std::atomic<size_t> count_{0};
  State* process_ = simulated_state;  // null: the process of the machine
};

// What such a future is about, also once it is gone.
struct UnseenCall {
  std::shared_ptr<PendingCall> call;
  std::optional<Gather> gather;  // of it
  Label label;

  // The rank whose actor has raised; -1: none has.
  int64_t raised_rank() const;
};

// All of them: those that are still there and that nobody waits for, and of those that have gone what may have to be told;
// of these only the last some thousands.
std::vector<UnseenCall> unseen_calls();

// Whether `wanted` is true of the call of a future that is there, which somebody may look at yet, or waits for.
bool any_unseen_call(const std::function<bool(const PendingCall&)>& wanted);

// Forgets them: the runtime has ended.
void forget_dropped();

}  // namespace monarch
