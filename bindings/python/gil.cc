#include "gil.h"

#include <unistd.h>

#include <atomic>

#include "monarch/base/forked.h"
#include "monarch/loop/turnstile.h"

namespace monarch {

namespace {
thread_local bool is_reactor = false;
std::atomic<uint64_t> reactor_takes{0};
constexpr int kAtOnce = 16;  // so many ask for the GIL: enough that one is ready when it is free
constinit Turnstile turnstile(kAtOnce);
constinit std::atomic<int> taking_turns{0};  // how many threads do
thread_local bool takes_turns = false;

// Around asking for the GIL.
class Passage {
 public:
  Passage()
      : waits_(takes_turns && taking_turns.load(std::memory_order_relaxed) > kAtOnce && !in_forked_child()) {
    if (waits_) turnstile.enter();
  }
  ~Passage() {
    if (waits_) turnstile.leave();
  }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

 private:
  const bool waits_;
};

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

void gil_take_turns() {
  takes_turns = true;
  taking_turns.fetch_add(1, std::memory_order_relaxed);
}

void gil_leave_turns() {
  takes_turns = false;
  taking_turns.fetch_sub(1, std::memory_order_relaxed);
}

void gil_keep_for_this_thread() { keeper = PyThread_get_thread_ident(); }

GilRelease::GilRelease() : state_(PyEval_SaveThread()) {}
GilRelease::~GilRelease() noexcept(false) {
  count();
  Passage passage;
  if (is_too_late()) HoldIfUnwound::hold();
  HoldIfUnwound guard;
  PyEval_RestoreThread(state_);
  guard.returned();
}

GilThread::GilThread() {
  count();
  Passage passage;
  if (is_too_late()) HoldIfUnwound::hold();
  HoldIfUnwound guard;
  state_ = PyGILState_Ensure();
  guard.returned();
}
GilThread::~GilThread() { PyGILState_Release(state_); }

uint64_t gil_taken_by_reactor() { return reactor_takes.load(); }
void gil_mark_reactor_thread() { is_reactor = true; }

}  // namespace monarch
