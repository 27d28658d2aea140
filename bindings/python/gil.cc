#include "gil.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "monarch/base/check.h"
#include "monarch/base/forked.h"
#include "monarch/loop/turnstile.h"
#include "python_api.h"

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

// A child of os.fork() waits for ever, in CPython up to 3.11, for the lock of the list of thread states if a thread had it
// that has no GIL: who is making its own (PyOS_AfterFork_Child drops the others' before it makes that lock anew). So
// nobody forks while one is made here.
std::mutex making_thread_state;  // a leaf; held over a fork()

// False: there is no memory for it.
bool make_thread_state() {
  static const bool watched = pthread_atfork(
      [] { if (!in_fork_to_exec()) making_thread_state.lock(); },
      [] { if (!in_fork_to_exec()) making_thread_state.unlock(); },
      [] { if (!in_fork_to_exec()) making_thread_state.unlock(); }) == 0;
  MONARCH_CHECK(watched);
  std::lock_guard lock(making_thread_state);
  return PyThreadState_New(PyInterpreterState_Main()) != nullptr;
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
  made_ = !python_is_at_least(0x030C0000) && PyGILState_GetThisThreadState() == nullptr && make_thread_state();
  state_ = PyGILState_Ensure();
  guard.returned();
}
GilThread::~GilThread() {
  if (made_) PyGILState_Release(PyGILState_LOCKED);  // what was made by hand counts as one more use of it
  PyGILState_Release(state_);
}

void GilThread::forget_thread_locals() {
  if (python_is_at_least(0x030D0000)) {
    // They hang on something of the thread state that has no name: a new one it is.
    PyGILState_Release(state_);
    state_ = PyGILState_Ensure();
    return;
  }
  // Their values stand in the dictionary of the thread state, as "thread.local.<address>" (Modules/_threadmodule.c). The
  // rest stays: asyncio keeps a pointer to an entry of its own without holding it.
  PyObject* all = PyThreadState_GetDict();
  if (all == nullptr || PyDict_GET_SIZE(all) == 0) return;
  PyObject* keys = PyDict_Keys(all);
  for (Py_ssize_t i = 0; keys != nullptr && i < PyList_GET_SIZE(keys); ++i) {
    PyObject* key = PyList_GET_ITEM(keys, i);
    const char* name = PyUnicode_Check(key) ? PyUnicode_AsUTF8(key) : "";
    if (name != nullptr && std::strncmp(name, "thread.local.", 13) == 0) PyDict_DelItem(all, key);
    PyErr_Clear();
  }
  Py_XDECREF(keys);
  PyErr_Clear();
}

uint64_t gil_taken_by_reactor() { return reactor_takes.load(); }
void gil_mark_reactor_thread() { is_reactor = true; }

}  // namespace monarch
