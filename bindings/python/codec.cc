#include "codec.h"

#include "state.h"

namespace monarch {

namespace {

constexpr int kTupleDepthMax = 16;
// A larger bytes or str goes as a pickle buffer would: out of band.
constexpr Py_ssize_t kNativeBytesMax = 64 * 1024;

// False: not for the native codec (no exception set).
bool write_native(ValueWriter& writer, PyObject* value, int depth) {
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
    if (size > kNativeBytesMax) return false;
    writer.str({text, static_cast<size_t>(size)});
  } else if (PyFloat_CheckExact(value)) {
    writer.number(PyFloat_AS_DOUBLE(value));
  } else if (PyBool_Check(value)) {
    writer.boolean(value == Py_True);
  } else if (PyBytes_CheckExact(value)) {
    if (PyBytes_GET_SIZE(value) > kNativeBytesMax) return false;
    writer.bytes(as_byte_span(PyBytes_AS_STRING(value), static_cast<size_t>(PyBytes_GET_SIZE(value))));
  } else if (PyTuple_CheckExact(value)) {
    if (depth >= kTupleDepthMax) return false;
    const Py_ssize_t count = PyTuple_GET_SIZE(value);
    writer.begin_tuple(static_cast<uint32_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (!write_native(writer, PyTuple_GET_ITEM(value, i), depth + 1)) return false;
    }
  } else {
    return false;
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

// ---- PartBuffer: a received part, seen through the buffer protocol ----

PyTypeObject* part_buffer_type = nullptr;

int part_get_buffer(PyObject* self, Py_buffer* view, int flags) {
  Part& part = unbox<Part>(self);
  static std::byte empty;
  return PyBuffer_FillInfo(view, self, part.size == 0 ? &empty : part.data, static_cast<Py_ssize_t>(part.size),
                           /*readonly=*/0, flags);
}

Py_ssize_t part_length(PyObject* self) { return static_cast<Py_ssize_t>(unbox<Part>(self).size); }

PyObject* part_buffers(const Message& message, size_t count) {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(count));
  for (size_t i = 0; list != nullptr && i < count; ++i) {
    PyObject* buffer = box<Part>(part_buffer_type, message.parts[i]);
    if (buffer == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), buffer);
  }
  return list;
}

PyObject* unpickle(const Message& message) {
  const size_t count = message.parts.size() - ((message.header.flags & kFlagView) != 0 ? 1 : 0);
  Ref body = Ref::steal(PyMemoryView_FromMemory(
      const_cast<char*>(reinterpret_cast<const char*>(message.body.data())),
      static_cast<Py_ssize_t>(message.body.size()), PyBUF_READ));
  if (!body) return nullptr;
  if (count == 0) return PyObject_CallOneArg(state().loads.get(), body.get());
  Ref buffers = Ref::steal(part_buffers(message, count));
  if (!buffers) return nullptr;
  static PyObject* names = PyTuple_Pack(1, PyUnicode_InternFromString("buffers"));
  PyObject* args[] = {body.get(), buffers.get()};
  return PyObject_Vectorcall(state().loads.get(), args, 1, names);
}

}  // namespace

Encoded::~Encoded() {
  for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
}

bool Encoded::encode_call(PyObject* const* args, Py_ssize_t count) {
  writer_.begin_tuple(static_cast<uint32_t>(count));
  bool native = true;
  for (Py_ssize_t i = 0; i < count && native; ++i) native = write_native(writer_, args[i], 1);
  if (native && writer_.failure() == nullptr) return true;
  Ref tuple = Ref::steal(PyTuple_New(count));
  if (!tuple) return false;
  for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple.get(), i, Py_NewRef(args[i]));
  Ref pair = Ref::steal(PyTuple_Pack(2, tuple.get(), Py_None));
  return pair && encode_pickled(pair.get());
}

bool Encoded::encode_value(PyObject* value) {
  if (write_native(writer_, value, 0) && writer_.failure() == nullptr) return true;
  return encode_pickled(value);
}

bool Encoded::encode_pickled(PyObject* value) {
  pickled_ = true;
  Ref result = Ref::steal(PyObject_CallOneArg(state().dumps.get(), value));
  if (!result) return false;
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
  if (body_.size() > UINT32_MAX || PyList_GET_SIZE(list) >= kPartsMax) {
    PyErr_SetString(PyExc_ValueError, "the message is too large: send large data as arrays or buffers");
    return false;
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
  ValueReader reader(message.body);
  PyObject* value = read_native(reader);
  if (value != nullptr && !reader.done()) {
    Py_DECREF(value);
    PyErr_SetString(PyExc_ValueError, "malformed message: something follows the value");
    return nullptr;
  }
  return value;
}

bool decode_call(const Message& message, CallArguments* out) {
  Ref value = Ref::steal(decode_value(message));
  if (!value) return false;
  if ((message.header.flags & kFlagPickle) == 0) {
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
