// Python values to message bodies and back. Fast path: None, bool, int, float, str, bytes and tuples of them by the
// native codec (wire/value.h), and plain NumPy arrays beside them; anything else by pickle 5 with out-of-band buffers.
#pragma once

#include <vector>

#include "monarch/net/message.h"
#include "monarch/wire/value.h"
#include "support.h"

namespace monarch {

// What is encoded, for the words about what cannot be (python/monarch/_calls/pickling.py).
enum class Contents : int {
  kMessage = 0,
  kCall = 1,   // (args, kwargs or None)
  kSpawn = 2,  // (class, args, kwargs, ...)
  kResult = 3,
};

// An encoded value; everything that outgoing() points to lives in here. Needs the GIL for its whole life.
class Encoded {
 public:
  Encoded() = default;
  ~Encoded();
  Encoded(const Encoded&) = delete;
  Encoded& operator=(const Encoded&) = delete;

  // Each false: a Python exception is set.
  bool encode_call(PyObject* const* args, Py_ssize_t count);     // a tuple of positional arguments
  bool encode_native_call(PyObject* const* args, Py_ssize_t count);  // the same for C++: lists and dicts too, no pickle
  bool encode_value(PyObject* value, Contents contents = Contents::kMessage);
  // A result, with lists, dicts and NumPy's numbers by the native codec too.
  bool encode_for_reducer(PyObject* value);
  bool encode_scalars(PyObject* value);  // by the native codec; false without an exception: that cannot be
  bool encode_pickled(PyObject* value, Contents contents = Contents::kMessage);  // always by pickle

  uint8_t flags() const { return flags_; }
  ByteSpan body() const { return (flags_ & kFlagPickle) != 0 ? body_ : writer_.written(); }
  std::span<const ByteSpan> parts() const { return parts_; }
  uint64_t total_bytes() const;

  struct Traveller {
    Ref object;
    void (*travelled)(PyObject*);
  };

 private:
  bool encode_with_arrays(PyObject* const* values, Py_ssize_t count, uint64_t arrays, bool reduced = false);

  ValueWriter writer_;
  uint8_t flags_ = 0;
  ByteSpan body_;
  std::vector<ByteSpan> parts_;
  std::vector<Py_buffer> buffers_;
  std::vector<Traveller> travellers_;
};

// `object` is being pickled: `travelled` is told of it when what it is pickled into goes with no exception set, so has been
// sent; at once where it is pickled by itself.
void note_pickled(PyObject* object, void (*travelled)(PyObject*));

// The value of a message; a new reference, or null with an exception. Parts become buffers that share the message's memory,
// writable but for what is frozen. Arrays that their sender could not write to arrive so, as after any unpickling. For
// requests (native tuple or pickled (args, kwargs)) use decode_call.
PyObject* decode_value(const Message& message);

struct CallArguments {
  Ref args;    // tuple
  Ref kwargs;  // dict or null
};
bool decode_call(const Message& message, CallArguments* out);

// Adds the buffer type to the module.
bool add_codec_types(PyObject* module);

// A number of NumPy's as one of Python's; null: it is something else.
Ref number_of_numpy(PyObject* value);

}  // namespace monarch
