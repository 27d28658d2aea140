// Memory that can be frozen (monarch/net/freezable.h) as an object with the buffer protocol: what arrays lie in.
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <utility>

#include "gil.h"
#include "monarch/net/freezable.h"
#include "state.h"

namespace nb = nanobind;

namespace monarch {

namespace {

using Memory = std::shared_ptr<Freezable>;  // shared: with messages that are under way, and other objects

// What its process may write to, which nobody else sees.
struct PrivateMemory {
  Mapping mapping;
  uint64_t skipped;  // before the bytes that were asked for: a mapping begins with a page
};

PyTypeObject* memory_type = nullptr;
PyTypeObject* private_memory_type = nullptr;

int memory_get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const Freezable& memory = *unbox<Memory>(self);
  return PyBuffer_FillInfo(view, self, memory.data(), static_cast<Py_ssize_t>(memory.size()), memory.frozen(), flags);
}

int private_memory_get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const PrivateMemory& memory = unbox<PrivateMemory>(self);
  auto* const data = static_cast<std::byte*>(memory.mapping.get()) + memory.skipped;
  return PyBuffer_FillInfo(view, self, data, static_cast<Py_ssize_t>(memory.mapping.size() - memory.skipped), 0, flags);
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

// These bytes, which are copied page by page as they are written. None: they are not frozen, or cannot be mapped.
nb::object thawed(uint64_t address, uint64_t size) {
  const Memory memory = Freezable::find_frozen(span_of(address, size));
  if (!memory) return nb::none();
  static const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t offset = address - reinterpret_cast<uint64_t>(memory->data()), skipped = offset % page;
  auto mapping = memory->map_privately(offset - skipped, size + skipped);
  if (!mapping) return nb::none();
  PyObject* object = box<PrivateMemory>(private_memory_type, PrivateMemory{std::move(*mapping), skipped});
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

// Of a read-only buffer too, from which ctypes takes none.
uint64_t buffer_address(nb::handle object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const auto address = reinterpret_cast<uint64_t>(view.buf);
  PyBuffer_Release(&view);
  return address;
}

// An object with the buffer protocol, which nobody can make by hand.
template <typename T>
PyTypeObject* add_buffer_type(nb::module_& m, const char* name, getbufferproc get_buffer) {
  PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<T>)},
      {Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)},
      {0, nullptr},
  };
  PyType_Spec spec = {name, sizeof(Boxed<T>), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  PyTypeObject* const type = add_type(m.ptr(), spec);
  if (type == nullptr) throw nb::python_error();
  return type;
}

}  // namespace

void bind_frozen(nb::module_& m) {
  memory_type = add_buffer_type<Memory>(m, "monarch._core.Memory", memory_get_buffer);
  private_memory_type = add_buffer_type<PrivateMemory>(m, "monarch._core.PrivateMemory", private_memory_get_buffer);
  m.attr("FREEZABLE_BYTES_MAX") = kFreezableBytesMax;
  m.def("make_memory", &make_memory);
  m.def("memory_at", &memory_at);
  m.def("freeze_memory", &freeze_memory);
  m.def("thawed", &thawed);
  m.def("is_frozen", [](uint64_t address, uint64_t size) {
    return Freezable::find_frozen(span_of(address, size)) != nullptr;
  });
  m.def("buffer_address", &buffer_address);
}

}  // namespace monarch
