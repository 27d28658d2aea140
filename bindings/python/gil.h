// The only place that takes or drops the GIL (tools/check_layers.py enforces it), and counts it.
#pragma once

#include <Python.h>

#include <cstdint>

namespace monarch {

// Drops the GIL for a scope. The thread holds it.
class GilRelease {
 public:
  GilRelease();
  ~GilRelease();
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

// Gives a native thread a thread state that it keeps until it ends (a fresh one each time would cost 10 us), and takes
// the GIL for the scope.
class GilThread {
 public:
  GilThread();
  ~GilThread();
  GilThread(const GilThread&) = delete;
  GilThread& operator=(const GilThread&) = delete;

 private:
  PyGILState_STATE state_;
};

// How often a thread that belongs to the control path (the reactor) took the GIL. A test asserts that it is zero.
uint64_t gil_taken_by_reactor();
// Marks the calling thread as part of the control path.
void gil_mark_reactor_thread();

}  // namespace monarch
