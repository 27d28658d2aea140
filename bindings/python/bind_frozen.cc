// Memory that can be frozen (monarch/net/freezable.h) as an object with the buffer protocol: what arrays lie in.
#include <nanobind/nanobind.h>

#include <memory>
#include <optional>

#include "gil.h"
#include "monarch/net/freezable.h"
#include "state.h"

namespace nb = nanobind;

namespace monarch {

namespace {

using Memory = std::shared_ptr<Freezable>;  // shared: with messages that are under way, and other objects

PyTypeObject* memory_type = nullptr;

int memory_get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const Freezable& memory = *unbox<Memory>(self);
  return PyBuffer_FillInfo(view, self, memory.data(), static_cast<Py_ssize_t>(memory.size()), memory.frozen(), flags);
}

nb::object boxed(Memory memory) {
  PyObject* object = box<Memory>(memory_type, std::move(memory));
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

Memory& memory_of(nb::handle object) {
  if (Py_TYPE(object.ptr()) != memory_type) throw nb::type_error("memory was expected");
  return unbox<Memory>(object.ptr());
}

ByteSpan span_of(uint64_t address, uint64_t size) { return {reinterpret_cast<const std::byte*>(address), size}; }

[[noreturn]] void raise(PyObject* type, const Error& error) {
  PyErr_SetString(type, error.message.c_str());
  throw nb::python_error();
}

// Not frozen, zero. OSError: a shortage.
nb::object make_memory(uint64_t size) {
  std::optional<Result<Memory>> made;
  without_gil_if_large(size, [&] { made = Freezable::make(size); });
  if (!*made) raise(PyExc_OSError, made->error());
  return boxed(std::move(**made));
}

// What these bytes lie in; None: it is none of ours.
nb::object memory_at(uint64_t address, uint64_t size) {
  Memory memory = Freezable::find(span_of(address, size));
  return memory ? boxed(std::move(memory)) : nb::none();
}

void freeze_memory(nb::handle object) {
  const Memory memory = memory_of(object);
  std::optional<Status> done;
  without_gil_if_large(memory->size(), [&] { done = memory->freeze(); });
  if (!*done) raise(PyExc_OSError, done->error());
}

// Of a read-only buffer too, from which ctypes takes none.
uint64_t buffer_address(nb::handle object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const auto address = reinterpret_cast<uint64_t>(view.buf);
  PyBuffer_Release(&view);
  return address;
}

}  // namespace

void bind_frozen(nb::module_& m) {
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<Memory>)},
      {Py_bf_getbuffer, reinterpret_cast<void*>(memory_get_buffer)},
      {0, nullptr},
  };
  static PyType_Spec spec = {"monarch._core.Memory", sizeof(Boxed<Memory>), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  memory_type = add_type(m.ptr(), spec);
  if (memory_type == nullptr) throw nb::python_error();
  m.attr("FREEZABLE_BYTES_MAX") = kFreezableBytesMax;
  m.def("make_memory", &make_memory);
  m.def("memory_at", &memory_at);
  m.def("freeze_memory", &freeze_memory);
  m.def("is_frozen", [](uint64_t address, uint64_t size) {
    return Freezable::find_frozen(span_of(address, size)) != nullptr;
  });
  m.def("buffer_address", &buffer_address);
}

}  // namespace monarch
