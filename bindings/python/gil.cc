#include "gil.h"

#include <atomic>

namespace monarch {

namespace {
thread_local bool is_reactor = false;
std::atomic<uint64_t> reactor_takes{0};

void count() {
  if (is_reactor) reactor_takes.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

GilRelease::GilRelease() : state_(PyEval_SaveThread()) {}
GilRelease::~GilRelease() {
  count();
  PyEval_RestoreThread(state_);
}

GilThread::GilThread() {
  count();
  state_ = PyGILState_Ensure();
}
GilThread::~GilThread() { PyGILState_Release(state_); }

uint64_t gil_taken_by_reactor() { return reactor_takes.load(); }
void gil_mark_reactor_thread() { is_reactor = true; }

}  // namespace monarch
