// Python.h, and what our sources take from it that the stable ABI (PEP 384) has under another name or not at all. A wheel
// for Python 3.12 and later is compiled with Py_LIMITED_API and uses the stable ABI only; other builds use the real thing.
#pragma once

#include <Python.h>

namespace monarch {

// Does the interpreter that runs have this version (as PY_VERSION_HEX) or a later one? It may be later than its headers.
inline bool python_is_at_least(unsigned long version) {
#if PY_VERSION_HEX >= 0x030B0000
  return Py_Version >= version;
#else
  return PY_VERSION_HEX >= version;
#endif
}

// Has what the functions below need; once, when the module is made. False: an exception is set.
bool init_python_api();

// Calls `work` with `data` in a contextvars.Context of its own. GIL held; leaves no exception set.
void run_in_new_context(void (*work)(void*), void* data);

}  // namespace monarch

#ifdef Py_LIMITED_API

inline Py_ssize_t PyTuple_GET_SIZE(PyObject* tuple) { return PyTuple_Size(tuple); }
inline PyObject* PyTuple_GET_ITEM(PyObject* tuple, Py_ssize_t at) { return PyTuple_GetItem(tuple, at); }
inline void PyTuple_SET_ITEM(PyObject* tuple, Py_ssize_t at, PyObject* item) { PyTuple_SetItem(tuple, at, item); }
inline Py_ssize_t PyList_GET_SIZE(PyObject* list) { return PyList_Size(list); }
inline PyObject* PyList_GET_ITEM(PyObject* list, Py_ssize_t at) { return PyList_GetItem(list, at); }
inline void PyList_SET_ITEM(PyObject* list, Py_ssize_t at, PyObject* item) { PyList_SetItem(list, at, item); }
inline Py_ssize_t PyDict_GET_SIZE(PyObject* dict) { return PyDict_Size(dict); }
inline char* PyBytes_AS_STRING(PyObject* bytes) { return PyBytes_AsString(bytes); }
inline Py_ssize_t PyBytes_GET_SIZE(PyObject* bytes) { return PyBytes_Size(bytes); }
inline double PyFloat_AS_DOUBLE(PyObject* number) { return PyFloat_AsDouble(number); }
inline const char* PyUnicode_AsUTF8(PyObject* text) { return PyUnicode_AsUTF8AndSize(text, nullptr); }
inline PyObject* PyObject_CallOneArg(PyObject* callable, PyObject* arg) {
  return PyObject_Vectorcall(callable, &arg, 1, nullptr);
}

// In python_api.cc.
bool PyCoro_CheckExact(PyObject* object);
int PyContextVar_Get(PyObject* variable, PyObject* without, PyObject** value);
PyObject* PyContextVar_Set(PyObject* variable, PyObject* value);

#endif
