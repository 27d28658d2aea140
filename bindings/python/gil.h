// The only place that takes or drops the GIL (tools/check_layers.py enforces it), and counts it.
#pragma once

#include <Python.h>

#include <cstdint>

namespace monarch {

// CPython up to 3.13 ends a thread that asks for the GIL of an interpreter that goes down by pthread_exit(), which
// unwinds through our frames: they would touch Python objects without the GIL, or terminate the process. One of these
// around a call that may ask for the GIL holds such a thread still instead, until the process has ended.
class HoldIfUnwound {
 public:
  HoldIfUnwound() = default;
  ~HoldIfUnwound() {
    if (!returned_) hold();
  }
  HoldIfUnwound(const HoldIfUnwound&) = delete;
  HoldIfUnwound& operator=(const HoldIfUnwound&) = delete;

  void returned() { returned_ = true; }
  [[noreturn]] static void hold();

 private:
  bool returned_ = false;
};

// The calling thread is one of many that have little to do: while there are more than a few of them, they take turns in
// asking for the GIL (loop/turnstile.h). Others do not wait for them.
void gil_take_turns();
// It is about to end.
void gil_leave_turns();

// From now on only the calling thread gets the GIL back from the classes below: the interpreter is about to go down.
void gil_keep_for_this_thread();

// Drops the GIL for a scope. The thread holds it.
class GilRelease {
 public:
  GilRelease();
  ~GilRelease() noexcept(false);
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

// Runs what copies so many bytes: without the GIL if that takes long.
template <typename Copy>
void without_gil_if_large(uint64_t bytes, Copy copy) {
  constexpr uint64_t kGilCopyMax = 256 * 1024;
  if (bytes <= kGilCopyMax) return copy();
  GilRelease release;
  copy();
}

// Gives a native thread a thread state that it keeps until it ends (a fresh one each time would cost 10 us), and takes
// the GIL for the scope.
class GilThread {
 public:
  GilThread();
  ~GilThread();
  GilThread(const GilThread&) = delete;
  GilThread& operator=(const GilThread&) = delete;

  // GIL held: every `threading.local` is on this thread as on a new one. May run destructors of users' values.
  void forget_thread_locals();

 private:
  PyGILState_STATE state_;
  bool made_ = false;  // its thread state, by hand
};

// How often a thread that belongs to the control path (the reactor) took the GIL. A test asserts that it is zero.
uint64_t gil_taken_by_reactor();
// Marks the calling thread as part of the control path.
void gil_mark_reactor_thread();

}  // namespace monarch
