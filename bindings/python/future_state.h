// What a future consists of; future.cc makes the Python type of it.
#pragma once

#include <memory>
#include <utility>

#include "future.h"
#include "monarch/actor/pending_call.h"
#include "monarch/actor/port.h"
#include "monarch/mesh/gather.h"
#include "support.h"
#include "unseen.h"

namespace monarch {

// What a thread waits for, apart from the future: another thread may look at the outcome and drop the call meanwhile.
struct Awaited {
  std::shared_ptr<PendingCall> call;
  Gather gather;  // of it

  static bool ready(const void* self) { return static_cast<const Awaited*>(self)->gather.is_there(); }
};

inline Gather::Wants wants_of(FutureMode mode) {
  switch (mode) {
    case FutureMode::kPartial:
    case FutureMode::kEach:
    case FutureMode::kStacks:
      return Gather::Wants::kAnswers;
    case FutureMode::kArrival:
      return Gather::Wants::kArrival;
    case FutureMode::kEnded:
      return Gather::Wants::kEnd;
    default:
      return Gather::Wants::kValues;
  }
}

struct FutureState : Unseen {
  std::shared_ptr<PendingCall> call;  // null once the outcome is there; of a port also while nobody waits

  FutureMode mode;
  uint32_t arrival;
  Ref endpoint;
  Ref outcome;  // once somebody has looked
  bool failed = false;
  uint64_t one_way_before = 0;  // so many one-way messages were sent before the call; 0: none, or it is not the client's
  // Of a port. Who looks joins the line for its messages, and who gives up leaves it: his place would take messages that
  // others wait for, out of order.
  std::shared_ptr<PortReceiver> port;
  int waiting = 0;
  bool promised = false;  // somebody has been told that it is there: it stays, who else may give up

  FutureState(std::shared_ptr<PendingCall> of, FutureMode how, uint32_t which, Ref by)
      : call(std::move(of)), mode(how), arrival(which), endpoint(std::move(by)) {}

  FutureState(FutureState&&) = default;
  ~FutureState();

  bool is_of_port() const { return mode == FutureMode::kPort || mode == FutureMode::kPortRanked; }
  void begin_waiting() {
    ++waiting;
    if (!call && port) call = port->receive();
  }
  void give_up() {
    if (--waiting == 0 && port && !promised) call.reset();
  }
  // Whether who waits for it waits for that call, and for each of its answers; without a limit of the call's own.
  bool is_edge() const {
    return is_of_call() && call->deadline_ns() == 0 && (mode != FutureMode::kArrival || call->size() == 1);
  }
  // Of a call of an endpoint, to which somebody may want to be answered.
  bool is_of_call() const { return call && call->label(); }
  Gather gather() const { return Gather(*call, wants_of(mode), arrival); }  // while there is a call
  Awaited awaited() const { return {call, gather()}; }
  bool is_ready() const { return outcome || (call && gather().is_there()); }
  // The same for who will look at the outcome because of it.
  bool promise() {
    const bool joins = !outcome && !call && port;
    if (joins) begin_waiting();
    promised = is_ready();
    if (joins) give_up();
    return promised;
  }
};

}  // namespace monarch
