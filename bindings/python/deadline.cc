#include "deadline.h"

#include <algorithm>

#include "monarch/base/clock.h"
#include "state.h"

namespace monarch {

namespace {
std::atomic<bool> in_use{false};
}

void use_deadlines() { in_use.store(true, std::memory_order_relaxed); }
bool deadlines_in_use() { return in_use.load(std::memory_order_relaxed); }

void raise_deadline_exceeded(const char* text) {
  PyErr_SetString(state().deadline_exceeded.get(), text);
}

bool code_deadline(int64_t* deadline_ns) {
  *deadline_ns = 0;
  if (!deadlines_in_use()) return true;
  PyObject* found;
  if (PyContextVar_Get(state().deadline_var.get(), Py_None, &found) != 0) return false;
  const Ref held = Ref::steal(found);
  if (found == Py_None) return true;
  *deadline_ns = PyLong_AsLongLong(found);
  return *deadline_ns != -1 || !PyErr_Occurred();
}

bool find_deadline(double option_seconds, int64_t* deadline_ns) {
  *deadline_ns = 0;
  if (option_seconds > 0) *deadline_ns = clock_ns() + static_cast<int64_t>(option_seconds * 1e9);
  int64_t inherited_ns;
  if (!code_deadline(&inherited_ns)) return false;
  if (inherited_ns == 0) return true;
  if (inherited_ns <= clock_ns()) {
    raise_deadline_exceeded("the deadline has passed: nothing was sent");
    return false;
  }
  *deadline_ns = *deadline_ns == 0 ? inherited_ns : std::min(*deadline_ns, inherited_ns);
  return true;
}

void set_message_deadline(uint64_t deadline_ns) {
  use_deadlines();
  Ref value = Ref::steal(deadline_ns == 0 ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(deadline_ns));
  Ref token = Ref::steal(value ? PyContextVar_Set(state().deadline_var.get(), value.get()) : nullptr);
  if (!token) PyErr_Clear();
}

}  // namespace monarch
