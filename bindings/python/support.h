// Small things for writing against the C API: an owned reference, heap types, error checks.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "monarch/base/system.h"
#include "python_api.h"

namespace monarch {

// Owns a reference. The GIL is held whenever one is copied or destroyed.
class Ref {
 public:
  Ref() = default;
  static Ref steal(PyObject* object) { return Ref(object); }
  static Ref borrow(PyObject* object) {
    Py_XINCREF(object);
    return Ref(object);
  }
  Ref(const Ref& other) : object_(other.object_) { Py_XINCREF(object_); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  explicit Ref(PyObject* object) : object_(object) {}
  PyObject* object_ = nullptr;
};

// The C++ part of an instance of one of our heap types; constructed in memory of Python's, destroyed in tp_dealloc.
template <typename T>
struct Boxed {
  PyObject_HEAD
  T value;
};

template <typename T>
T& unbox(PyObject* object) {
  return reinterpret_cast<Boxed<T>*>(object)->value;
}

// A new instance of `type` (ours or a Python subclass) around `value`. tp_init is not run.
template <typename T>
PyObject* box(PyTypeObject* type, T value) {
  PyObject* object = PyType_GenericAlloc(type, 0);
  if (object != nullptr) new (&unbox<T>(object)) T(std::move(value));
  return object;
}

template <typename T>
void dealloc_boxed(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  const bool collected = (PyType_GetFlags(type) & Py_TPFLAGS_HAVE_GC) != 0;
  if (collected) PyObject_GC_UnTrack(object);
  unbox<T>(object).~T();
  collected ? PyObject_GC_Del(object) : PyObject_Free(object);
  Py_DECREF(type);
}

// OSError for a system call that has failed with errno, with what to do about it.
inline PyObject* raise_shortage(const char* what) {
  const std::string text = sys::shortage_error(what).message;
  Ref error = Ref::steal(PyObject_CallFunction(PyExc_OSError, "is", errno, text.c_str()));
  if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  return nullptr;
}

inline PyObject* py_string(std::string_view text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

// Whatever is in it: zero bytes stay, surrogates, which UTF-8 has not, are escaped. Null, or no text: empty.
inline std::string utf8_of(PyObject* text) {
  if (text == nullptr || !PyUnicode_Check(text)) return {};
  Ref bytes = Ref::steal(PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace"));
  if (!bytes) PyErr_Clear();
  return bytes ? std::string(PyBytes_AsString(bytes.get()), static_cast<size_t>(PyBytes_Size(bytes.get()))) : "";
}

// A function of one of the fast calling conventions, as method tables want it.
template <typename Function>
PyCFunction fast(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

// "module.Name" of the class, for registering in the module under Name. Null with an exception set on failure.
inline PyTypeObject* add_type(PyObject* module, PyType_Spec& spec) {
  PyObject* type = PyType_FromSpec(&spec);
  if (type == nullptr) return nullptr;
  const char* dot = nullptr;
  for (const char* at = spec.name; *at != 0; ++at) {
    if (*at == '.') dot = at;
  }
  if (PyModule_AddObjectRef(module, dot + 1, type) != 0) return nullptr;
  return reinterpret_cast<PyTypeObject*>(type);
}

}  // namespace monarch
