#include "codec.h"

#include <bit>
#include <cstring>

#include "monarch/net/freezable.h"
#include "monarch/net/shm/shm_link.h"
#include "state.h"

namespace monarch {

namespace {

constexpr int kTupleDepthMax = 16;
// A larger bytes or str goes as a pickle buffer would: out of band.
constexpr Py_ssize_t kNativeBytesMax = 64 * 1024;

// A class of NumPy, once the program has imported it; borrowed, or null. `kept`: where it stays for ever.
PyTypeObject* numpy_type(const char* name, PyTypeObject*& kept) {
  if (kept != nullptr) return kept;
  PyObject* numpy = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");
  if (numpy == nullptr) return nullptr;
  PyObject* found = PyObject_GetAttrString(numpy, name);
  if (found == nullptr || !PyType_Check(found)) {
    PyErr_Clear();  // NumPy is half imported
    Py_XDECREF(found);
    return nullptr;
  }
  return kept = reinterpret_cast<PyTypeObject*>(found);
}

PyTypeObject* ndarray_type() {
  static PyTypeObject* type = nullptr;
  return numpy_type("ndarray", type);
}

}  // namespace

Ref number_of_numpy(PyObject* value) {
  static PyTypeObject *type = nullptr, *time = nullptr, *duration = nullptr;
  if (numpy_type("generic", type) == nullptr || !PyObject_TypeCheck(value, type)) return Ref();
  // Of these an int may be the item, without its unit.
  if (numpy_type("datetime64", time) == nullptr || PyObject_TypeCheck(value, time)) return Ref();
  if (numpy_type("timedelta64", duration) == nullptr || PyObject_TypeCheck(value, duration)) return Ref();
  Ref number = Ref::steal(PyObject_CallMethod(value, "item", nullptr));
  if (!number) PyErr_Clear();
  return number;
}

namespace {

// What the native codec is to take: scalars and tuples; lists and dicts too; and NumPy's numbers for those of Python.
enum class NativeTypes : uint8_t { kPlain, kContainers, kNumbers };

// False: not for the native codec (no exception set).
bool write_native(ValueWriter& writer, PyObject* value, int depth, NativeTypes types = NativeTypes::kPlain) {
  const bool containers = types != NativeTypes::kPlain;
  if (value == Py_None) {
    writer.none();
  } else if (PyLong_CheckExact(value)) {
    int overflow;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
    writer.integer(number);
  } else if (PyUnicode_CheckExact(value)) {
    Py_ssize_t size;
    const char* text = PyUnicode_AsUTF8AndSize(value, &size);
    if (text == nullptr) {
      PyErr_Clear();  // lone surrogates: pickle can
      return false;
    }
    if (size > kNativeBytesMax && !containers) return false;
    writer.str({text, static_cast<size_t>(size)});
  } else if (PyFloat_CheckExact(value)) {
    writer.number(PyFloat_AS_DOUBLE(value));
  } else if (PyBool_Check(value)) {
    writer.boolean(value == Py_True);
  } else if (PyBytes_CheckExact(value)) {
    if (PyBytes_GET_SIZE(value) > kNativeBytesMax && !containers) return false;
    writer.bytes(as_byte_span(PyBytes_AS_STRING(value), static_cast<size_t>(PyBytes_GET_SIZE(value))));
  } else if (PyTuple_CheckExact(value)) {
    if (depth >= kTupleDepthMax) return false;
    const Py_ssize_t count = PyTuple_GET_SIZE(value);
    writer.begin_tuple(static_cast<uint32_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!write_native(writer, PyTuple_GET_ITEM(value, i), depth + 1, types)) return false;
    }
  } else if (containers && PyList_CheckExact(value) && depth < kTupleDepthMax) {
    const Py_ssize_t count = PyList_GET_SIZE(value);
    writer.begin_list(static_cast<uint32_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!write_native(writer, PyList_GET_ITEM(value, i), depth + 1, types)) return false;
    }
  } else if (containers && PyDict_CheckExact(value) && depth < kTupleDepthMax) {
    writer.begin_dict(static_cast<uint32_t>(PyDict_GET_SIZE(value)));
    PyObject *key, *item;
    Py_ssize_t at = 0;
    while (PyDict_Next(value, &at, &key, &item)) {
      if (!write_native(writer, key, depth + 1, types) || !write_native(writer, item, depth + 1, types)) return false;
    }
  } else {
    const Ref number = types == NativeTypes::kNumbers ? number_of_numpy(value) : Ref();
    return number && write_native(writer, number.get(), depth, NativeTypes::kContainers);
  }
  return true;
}

PyObject* read_native(ValueReader& reader) {
  switch (reader.peek()) {
    case ValueTag::kNone:
      reader.none();
      Py_RETURN_NONE;
    case ValueTag::kFalse:
    case ValueTag::kTrue: {
      bool value = false;
      reader.boolean(value);
      return PyBool_FromLong(value);
    }
    case ValueTag::kInt8:
    case ValueTag::kInt64: {
      int64_t value;
      if (reader.integer(value)) return PyLong_FromLongLong(value);
      break;
    }
    case ValueTag::kFloat64: {
      double value;
      if (reader.number(value)) return PyFloat_FromDouble(value);
      break;
    }
    case ValueTag::kStr: {
      std::string_view text;
      if (reader.str_unchecked(text)) {
        return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
      }
      break;
    }
    case ValueTag::kBytes: {
      std::span<const std::byte> raw;
      if (reader.bytes(raw)) {
        return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(raw.data()),
                                         static_cast<Py_ssize_t>(raw.size()));
      }
      break;
    }
    case ValueTag::kTuple:
    case ValueTag::kList: {
      uint32_t count;
      const bool is_tuple = reader.peek() == ValueTag::kTuple;
      if (!(is_tuple ? reader.begin_tuple(count) : reader.begin_list(count))) break;
      Ref sequence = Ref::steal(is_tuple ? PyTuple_New(count) : PyList_New(count));
      if (!sequence) return nullptr;
      for (uint32_t i = 0; i < count; ++i) {
        PyObject* item = read_native(reader);
        if (item == nullptr) return nullptr;
        if (is_tuple) {
          PyTuple_SET_ITEM(sequence.get(), i, item);
        } else {
          PyList_SET_ITEM(sequence.get(), i, item);
        }
      }
      reader.end();
      return sequence.release();
    }
    case ValueTag::kDict: {
      uint32_t pairs;
      if (!reader.begin_dict(pairs)) break;
      Ref dict = Ref::steal(PyDict_New());
      if (!dict) return nullptr;
      for (uint32_t i = 0; i < pairs; ++i) {
        Ref key = Ref::steal(read_native(reader));
        if (!key) return nullptr;
        Ref value = Ref::steal(read_native(reader));
        if (!value || PyDict_SetItem(dict.get(), key.get(), value.get()) != 0) return nullptr;
      }
      reader.end();
      return dict.release();
    }
    case ValueTag::kInvalid:
      break;
  }
  PyErr_SetString(PyExc_ValueError, ("malformed message: " + reader.error().message).c_str());
  return nullptr;
}

// ---- NumPy arrays, if NumPy is there at all ----

constexpr Py_ssize_t kArrayArgsMax = 64;

// Which of the values are arrays (bit i). Twice the same array would lose its aliasing: then none, and pickle keeps it.
uint64_t find_arrays(PyObject* const* values, Py_ssize_t count) {
  PyTypeObject* type = ndarray_type();
  uint64_t found = 0;
  if (type == nullptr || count > kArrayArgsMax) return 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (Py_TYPE(values[i]) != type) continue;
    for (Py_ssize_t j = 0; j < i; ++j) {
      if (values[j] == values[i]) return 0;
    }
    found |= uint64_t{1} << i;
  }
  return found;
}

// The dtype's text if it is one that text and bytes say all about (bool, int, uint, float, complex; this byte order).
Ref plain_dtype(PyObject* array) {
  Ref dtype = Ref::steal(PyObject_GetAttrString(array, "dtype"));
  Ref text = Ref::steal(dtype ? PyObject_GetAttrString(dtype.get(), "str") : nullptr);
  Py_ssize_t size = 0;
  const char* chars = text ? PyUnicode_AsUTF8AndSize(text.get(), &size) : nullptr;
  if (chars == nullptr) PyErr_Clear();
  const bool plain = size >= 3 && (chars[0] == '<' || chars[0] == '|') && std::strchr("biufc", chars[1]) != nullptr;
  return plain ? text : Ref();
}

// A copy of an array, in this byte order, its elements one after the other; null without an exception: there is none.
Ref plain_array(PyObject* array) {
  Ref dtype = Ref::steal(PyObject_GetAttrString(array, "dtype"));
  Ref native = Ref::steal(dtype ? PyObject_CallMethod(dtype.get(), "newbyteorder", "s", "=") : nullptr);
  Ref copy = Ref::steal(native ? PyObject_CallMethod(array, "astype", "Os", native.get(), "C") : nullptr);
  if (!copy) PyErr_Clear();
  return copy;
}

PyObject* make_array(PyObject* shape, PyObject* dtype, PyObject* buffer) {
  if (ndarray_type() == nullptr) {
    Ref numpy = Ref::steal(PyImport_ImportModule("numpy"));
    if (!numpy) return nullptr;
  }
  PyObject* args[] = {shape, dtype, buffer};
  return PyObject_Vectorcall(reinterpret_cast<PyObject*>(ndarray_type()), args, 3, nullptr);
}

// ---- PartBuffer: a received part, seen through the buffer protocol ----

PyTypeObject* part_buffer_type = nullptr;

int part_get_buffer(PyObject* self, Py_buffer* view, int flags) {
  Part& part = unbox<Part>(self);
  static std::byte empty;
  const bool frozen = Freezable::find_frozen({part.data, part.size}) != nullptr;
  return PyBuffer_FillInfo(view, self, part.size == 0 ? &empty : part.data, static_cast<Py_ssize_t>(part.size), frozen,
                           flags);
}

Py_ssize_t part_length(PyObject* self) { return static_cast<Py_ssize_t>(unbox<Part>(self).size); }

// The parts that belong to the value, as buffers, from `first` on.
PyObject* part_buffers(const Message& message, size_t first) {
  const size_t end = message.parts.size() - ((message.header.flags & kFlagView) != 0 ? 1 : 0);
  const size_t count = end > first ? end - first : 0;
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(count));
  for (size_t i = 0; list != nullptr && i < count; ++i) {
    PyObject* buffer = box<Part>(part_buffer_type, message.parts[first + i]);
    if (buffer == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), buffer);
  }
  return list;
}

// Of an error of unpickling: the versions of both sides may be why, and then it says so.
void explain_unpickling(PyObject* pickle) {
  Ref explain = Ref::borrow(state().unreadable.get());
  if (!explain) return;  // the script has ended meanwhile
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  Ref done = Ref::steal(PyObject_CallFunctionObjArgs(explain.get(), value, pickle, nullptr));
  if (!done) PyErr_Clear();
  PyErr_Restore(type, value, traceback);
}

PyObject* unpickle(const Message& message) {
  ByteSpan pickle = message.body;
  const bool in_part = (message.header.flags & kFlagBodyPart) != 0 && !message.parts.empty();
  if (in_part) pickle = {message.parts[0].data, message.parts[0].size};
  Ref body = Ref::steal(PyMemoryView_FromMemory(const_cast<char*>(reinterpret_cast<const char*>(pickle.data())),
                                                static_cast<Py_ssize_t>(pickle.size()), PyBUF_READ));
  Ref buffers = Ref::steal(body ? part_buffers(message, in_part ? 1 : 0) : nullptr);
  if (!buffers) return nullptr;
  static PyObject* names = PyTuple_Pack(1, PyUnicode_InternFromString("buffers"));
  PyObject* args[] = {body.get(), buffers.get()};
  PyObject* const keywords = PyList_GET_SIZE(buffers.get()) == 0 ? nullptr : names;
  PyObject* value = PyObject_Vectorcall(state().loads.get(), args, 1, keywords);
  if (value == nullptr) explain_unpickling(body.get());
  return value;
}

// The tuple of values of a message with arrays.
PyObject* put_arrays(const Message& message, PyObject* described) {
  PyObject *arrays, *values;
  if (!PyArg_ParseTuple(described, "O!O!", &PyTuple_Type, &arrays, &PyTuple_Type, &values)) return nullptr;
  Ref buffers = Ref::steal(part_buffers(message, 0));
  if (!buffers) return nullptr;
  const Py_ssize_t count = PyTuple_GET_SIZE(values);
  Ref result = Ref::steal(PyTuple_New(count));
  for (Py_ssize_t i = 0; result && i < count; ++i) {
    PyTuple_SET_ITEM(result.get(), i, Py_NewRef(PyTuple_GET_ITEM(values, i)));
  }
  for (Py_ssize_t i = 0; result && i < PyTuple_GET_SIZE(arrays); ++i) {
    Py_ssize_t index;
    PyObject *dtype, *shape;
    int read_only = 0;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(arrays, i), "nO!O!|p", &index, &PyUnicode_Type, &dtype, &PyTuple_Type,
                          &shape, &read_only)) {
      return nullptr;
    }
    if (index < 0 || index >= count || i >= PyList_GET_SIZE(buffers.get())) {
      PyErr_SetString(PyExc_ValueError, "malformed message: an array has no place");
      return nullptr;
    }
    Ref array = Ref::steal(make_array(shape, dtype, PyList_GET_ITEM(buffers.get(), i)));
    if (array && read_only != 0) {
      Ref done = Ref::steal(PyObject_CallMethod(array.get(), "setflags", "O", Py_False));
      if (!done) return nullptr;
    }
    if (!array || PyTuple_SetItem(result.get(), index, array.release()) != 0) return nullptr;
  }
  return result.release();
}

PyObject* read_whole(const Message& message) {
  ValueReader reader(message.body);
  Ref value = Ref::steal(read_native(reader));
  if (value && !reader.done()) {
    PyErr_SetString(PyExc_ValueError, "malformed message: something follows the value");
    return nullptr;
  }
  if (!value || (message.header.flags & kFlagArrays) == 0) return value.release();
  if (!PyTuple_CheckExact(value.get())) {
    PyErr_SetString(PyExc_ValueError, "malformed message: arrays without a description");
    return nullptr;
  }
  return put_arrays(message, value.get());
}

}  // namespace

Encoded::~Encoded() {
  for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
  if (PyErr_Occurred() != nullptr) return;  // it was not sent
  for (const auto& [object, travelled] : travellers_) travelled(object.get());
}

namespace {
thread_local std::vector<Encoded::Traveller>* pickled_now = nullptr;  // of the innermost pickling by Encoded
}  // namespace

void note_pickled(PyObject* object, void (*travelled)(PyObject*)) {
  if (pickled_now == nullptr) return travelled(object);
  pickled_now->push_back({Ref::borrow(object), travelled});
}

// False: not possible after all; no exception is set, and nothing is left in the writer.
bool Encoded::encode_with_arrays(PyObject* const* values, Py_ssize_t count, uint64_t arrays, bool reduced) {
  auto give_up = [this] {
    writer_.clear();
    parts_.clear();
    for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
    buffers_.clear();
    return false;
  };
  writer_.begin_tuple(2);
  writer_.begin_tuple(static_cast<uint32_t>(std::popcount(arrays)));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if ((arrays >> i & 1) == 0) continue;
    Ref dtype = plain_dtype(values[i]);
    Py_buffer buffer;
    if (!dtype) return give_up();
    if (PyObject_GetBuffer(values[i], &buffer, PyBUF_C_CONTIGUOUS) != 0) {
      PyErr_Clear();  // another order of axes: pickle keeps it
      return give_up();
    }
    buffers_.push_back(buffer);
    parts_.push_back(as_byte_span(buffer.buf, static_cast<size_t>(buffer.len)));
    const bool read_only = buffer.readonly != 0 && !reduced;
    writer_.begin_tuple(read_only ? 4 : 3);
    writer_.integer(i);
    if (!write_native(writer_, dtype.get(), 1)) return give_up();
    writer_.begin_tuple(static_cast<uint32_t>(buffer.ndim));
    for (int axis = 0; axis < buffer.ndim; ++axis) writer_.integer(buffer.shape[axis]);
    if (read_only) writer_.boolean(true);
  }
  writer_.begin_tuple(static_cast<uint32_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* value = (arrays >> i & 1) != 0 ? Py_None : values[i];
    if (!write_native(writer_, value, 1)) return give_up();
  }
  if (writer_.failure() != nullptr) return give_up();
  flags_ = kFlagArrays;
  return true;
}

bool Encoded::encode_call(PyObject* const* args, Py_ssize_t count) {
  if (const uint64_t arrays = find_arrays(args, count); arrays != 0 && encode_with_arrays(args, count, arrays)) {
    return true;
  }
  writer_.begin_tuple(static_cast<uint32_t>(count));
  bool native = true;
  for (Py_ssize_t i = 0; i < count && native; ++i) native = write_native(writer_, args[i], 1);
  if (native && writer_.failure() == nullptr) return true;
  Ref tuple = Ref::steal(PyTuple_New(count));
  if (!tuple) return false;
  for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(args[i]));
  Ref pair = Ref::steal(PyTuple_Pack(2, tuple.get(), Py_None));
  return pair && encode_pickled(pair.get(), Contents::kCall);
}

bool Encoded::encode_native_call(PyObject* const* args, Py_ssize_t count) {
  writer_.begin_tuple(static_cast<uint32_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (write_native(writer_, args[i], 1, NativeTypes::kContainers)) continue;
    Ref type = Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(args[i])), "__name__"));
    if (!type) return false;
    PyErr_Format(PyExc_TypeError,
                 "argument %zd is a %S: C++ actors take None, bool, int (64 bits), float, str, bytes, and tuples, "
                 "lists and dicts of them",
                 i, type.get());
    return false;
  }
  if (writer_.failure() == nullptr) return true;
  PyErr_SetString(PyExc_ValueError, writer_.failure());
  return false;
}

bool Encoded::encode_scalars(PyObject* value) {
  return write_native(writer_, value, 0) && writer_.failure() == nullptr;
}

bool Encoded::encode_value(PyObject* value, Contents contents) {
  if (find_arrays(&value, 1) != 0 && encode_with_arrays(&value, 1, 1)) return true;
  return encode_scalars(value) || encode_pickled(value, contents);
}

bool Encoded::encode_for_reducer(PyObject* value) {
  if (find_arrays(&value, 1) != 0) {
    if (encode_with_arrays(&value, 1, 1, /*reduced=*/true)) return true;
    if (Ref plain = plain_array(value)) {
      PyObject* copy = plain.get();  // held by its buffer
      if (encode_with_arrays(&copy, 1, 1, /*reduced=*/true)) return true;
    }
  }
  if (write_native(writer_, value, 0, NativeTypes::kNumbers) && writer_.failure() == nullptr) return true;
  return encode_pickled(value, Contents::kResult);
}

bool Encoded::encode_pickled(PyObject* value, Contents contents) {
  flags_ = kFlagPickle;
  Ref what = Ref::steal(PyLong_FromLong(static_cast<long>(contents)));
  PyObject* args[] = {value, what.get()};
  std::vector<Traveller> travellers;
  auto* const outer = std::exchange(pickled_now, &travellers);
  Ref result = Ref::steal(PyObject_Vectorcall(state().dumps.get(), args, 2, nullptr));
  pickled_now = outer;
  if (!result) return false;
  travellers_ = std::move(travellers);
  PyObject* body;
  PyObject* list;
  if (!PyArg_ParseTuple(result.get(), "OO!", &body, &PyList_Type, &list)) return false;
  auto take = [this](PyObject* object, ByteSpan* out) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE) != 0) return false;
    buffers_.push_back(buffer);  // holds the object too
    *out = as_byte_span(buffer.buf, static_cast<size_t>(buffer.len));
    return true;
  };
  if (!take(body, &body_)) return false;
  if (PyList_GET_SIZE(list) >= kPartsMax - 2) {
    PyErr_Format(PyExc_ValueError, "the message has %zd buffers: send at most %d at a time", PyList_GET_SIZE(list),
                 kPartsMax - 2);
    return false;
  }
  if (body_.size() >= kArenaPartMin) {
    flags_ |= kFlagBodyPart;
    parts_.push_back(std::exchange(body_, {}));
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    ByteSpan part;
    if (!take(PyList_GET_ITEM(list, i), &part)) return false;
    parts_.push_back(part);
  }
  return true;
}

uint64_t Encoded::total_bytes() const {
  uint64_t total = body().size();
  for (const ByteSpan& part : parts_) total += part.size();
  return total;
}

PyObject* decode_value(const Message& message) {
  if ((message.header.flags & kFlagPickle) != 0) return unpickle(message);
  Ref value = Ref::steal(read_whole(message));
  if (!value || (message.header.flags & kFlagArrays) == 0) return value.release();
  if (PyTuple_GET_SIZE(value.get()) != 1) {
    PyErr_SetString(PyExc_ValueError, "malformed message: one value was expected");
    return nullptr;
  }
  return Py_NewRef(PyTuple_GET_ITEM(value.get(), 0));
}

bool decode_call(const Message& message, CallArguments* out) {
  const bool pickled = (message.header.flags & kFlagPickle) != 0;
  Ref value = Ref::steal(pickled ? unpickle(message) : read_whole(message));
  if (!value) return false;
  if (!pickled) {
    if (!PyTuple_CheckExact(value.get())) {
      PyErr_SetString(PyExc_ValueError, "malformed message: the arguments are not a tuple");
      return false;
    }
    out->args = std::move(value);
    return true;
  }
  PyObject* args;
  PyObject* kwargs;
  if (!PyArg_ParseTuple(value.get(), "O!O", &PyTuple_Type, &args, &kwargs)) return false;
  out->args = Ref::borrow(args);
  if (kwargs != Py_None) out->kwargs = Ref::borrow(kwargs);
  return true;
}

bool add_codec_types(PyObject* module) {
  static PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<Part>)},
      {Py_bf_getbuffer, reinterpret_cast<void*>(part_get_buffer)},
      {Py_sq_length, reinterpret_cast<void*>(part_length)},
      {0, nullptr},
  };
  static PyType_Spec spec = {"monarch._core.PartBuffer", sizeof(Boxed<Part>), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  part_buffer_type = add_type(module, spec);
  return part_buffer_type != nullptr;
}

}  // namespace monarch
