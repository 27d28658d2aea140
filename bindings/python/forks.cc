#include "forks.h"

#include <unistd.h>

#include "state.h"

namespace monarch {

void end_forked_child() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(value, traceback);
  PyObject_CallOneArg(state().end_child.get(), value == nullptr ? Py_None : value);
  _exit(1);  // it does not return
}

}  // namespace monarch
