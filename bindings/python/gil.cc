#include "gil.h"

#include <unistd.h>

#include <atomic>

namespace monarch {

namespace {
thread_local bool is_reactor = false;
std::atomic<uint64_t> reactor_takes{0};
std::atomic<unsigned long> keeper{0};  // the one thread that may still take the GIL; 0: all may

bool is_too_late() {
  const unsigned long kept_for = keeper.load(std::memory_order_relaxed);
  return kept_for != 0 && kept_for != PyThread_get_thread_ident();
}

void count() {
  if (is_reactor) reactor_takes.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

void HoldIfUnwound::hold() {
  for (;;) pause();
}

void gil_keep_for_this_thread() { keeper = PyThread_get_thread_ident(); }

GilRelease::GilRelease() : state_(PyEval_SaveThread()) {}
GilRelease::~GilRelease() noexcept(false) {
  count();
  if (is_too_late()) HoldIfUnwound::hold();
  HoldIfUnwound guard;
  PyEval_RestoreThread(state_);
  guard.returned();
}

GilThread::GilThread() {
  count();
  if (is_too_late()) HoldIfUnwound::hold();
  HoldIfUnwound guard;
  state_ = PyGILState_Ensure();
  guard.returned();
}
GilThread::~GilThread() { PyGILState_Release(state_); }

uint64_t gil_taken_by_reactor() { return reactor_takes.load(); }
void gil_mark_reactor_thread() { is_reactor = true; }

}  // namespace monarch
