// Turn: an actor having the thread. While C++ actor code runs, Turn::current() of that thread says whose it is: the
// sender of what it sends, the place to resume it after a co_await, the pool to tell before it blocks. Thread-local by
// nature, like a call stack; set and taken back by the actor's cell, by nobody else.
#pragma once

#include <coroutine>
#include <cstdint>

#include "monarch/actor/actor.h"
#include "monarch/actor/pending_call.h"

namespace monarch {

class Node;

namespace internal {

class Turn {
 public:
  // The turn on this thread; null outside of actors.
  static Turn* current();

  ActorSelf& self() { return self_; }
  const ActorSelf& self() const { return self_; }

  // The running coroutine has suspended until `call` is decided: resume `frame` then. At most one at a time, as the
  // last thing before the coroutine gives the thread back.
  virtual void resume_after(PendingCall& call, std::coroutine_handle<> frame) = 0;

  // Around a wait that blocks this thread: others of the pool take over what it had. `stopping()` turns true when the
  // pool ends, and then the wait, which uses this waiter, has to end too.
  virtual Waiter& begin_blocking() = 0;
  virtual void end_blocking() = 0;
  virtual bool stopping() const = 0;

 protected:
  Turn() = default;
  ~Turn() = default;
  // Sets the current turn of the thread; returns what it was.
  static Turn* exchange_current(Turn* turn);

  ActorSelf self_;
};

}  // namespace internal
}  // namespace monarch
