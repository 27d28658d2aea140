#include "python_api.h"

#include "support.h"

#ifdef Py_LIMITED_API

namespace {

// Held for good.
PyObject* coroutine_type = nullptr;  // types.CoroutineType
PyObject* context_type = nullptr;    // contextvars.Context
PyObject* name_get = nullptr;
PyObject* name_set = nullptr;
PyObject* name_run = nullptr;

PyObject* attribute_of(const char* module_name, const char* name) {
  monarch::Ref module = monarch::Ref::steal(PyImport_ImportModule(module_name));
  return module ? PyObject_GetAttrString(module.get(), name) : nullptr;
}

struct Work {
  void (*work)(void*);
  void* data;
};

// The capsule of a Work.
PyObject* run_work(PyObject* capsule, PyObject*) {
  const auto* what = static_cast<const Work*>(PyCapsule_GetPointer(capsule, nullptr));
  if (what == nullptr) return nullptr;
  what->work(what->data);
  Py_RETURN_NONE;
}
PyMethodDef run_work_method = {"run_work", run_work, METH_NOARGS, nullptr};

// False: an exception is set, and `work` has not been called.
bool run_with_context(Work work) {
  using monarch::Ref;
  Ref context = Ref::steal(PyObject_CallNoArgs(context_type));
  Ref capsule = Ref::steal(PyCapsule_New(&work, nullptr, nullptr));
  Ref function = Ref::steal(capsule ? PyCFunction_NewEx(&run_work_method, capsule.get(), nullptr) : nullptr);
  if (!context || !function) return false;
  PyObject* args[] = {context.get(), function.get()};
  return bool(Ref::steal(PyObject_VectorcallMethod(name_run, args, 2, nullptr)));
}

}  // namespace

bool PyCoro_CheckExact(PyObject* object) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == coroutine_type; }

int PyContextVar_Get(PyObject* variable, PyObject* without, PyObject** value) {
  PyObject* args[] = {variable, without};
  *value = PyObject_VectorcallMethod(name_get, args, 2, nullptr);
  return *value == nullptr ? -1 : 0;
}

PyObject* PyContextVar_Set(PyObject* variable, PyObject* value) {
  PyObject* args[] = {variable, value};
  return PyObject_VectorcallMethod(name_set, args, 2, nullptr);
}

namespace monarch {

bool init_python_api() {
  coroutine_type = attribute_of("types", "CoroutineType");
  context_type = coroutine_type == nullptr ? nullptr : attribute_of("contextvars", "Context");
  name_get = PyUnicode_InternFromString("get");
  name_set = PyUnicode_InternFromString("set");
  name_run = PyUnicode_InternFromString("run");
  return context_type != nullptr && name_get != nullptr && name_set != nullptr && name_run != nullptr;
}

void run_in_new_context(void (*work)(void*), void* data) {
  if (run_with_context({work, data})) return;
  PyErr_Clear();
  work(data);  // for want of memory without one
}

}  // namespace monarch

#else

namespace monarch {

bool init_python_api() { return true; }

void run_in_new_context(void (*work)(void*), void* data) {
  Ref context = Ref::steal(PyContext_New());
  if (!context || PyContext_Enter(context.get()) != 0) PyErr_Clear();
  work(data);
  if (context && PyContext_Exit(context.get()) != 0) PyErr_Clear();
}

}  // namespace monarch

#endif
