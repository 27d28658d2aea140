#include "mesh_ref.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "actor_cell.h"
#include "codec.h"
#include "deadline.h"
#include "future.h"
#include "gil.h"
#include "port.h"
#include "restarts.h"
#include "simulation.h"
#include "state.h"

namespace monarch {

namespace {

// As in python/monarch/_calls/endpoint.py, which type checkers and the documentation read; a test compares.
constexpr char kCallDoc[] = R"(call($self, /, *args, **kwargs)
--

Asks every rank; the future gives a ``ValueMesh`` of the answers, of the shape of this mesh.

If ranks raise, the future raises the first error that arrives.)";
constexpr char kCallOneDoc[] = R"(call_one($self, /, *args, **kwargs)
--

Asks the only member of a mesh of one, else ``ValueError``; the future gives its answer.)";
constexpr char kBroadcastDoc[] = R"(broadcast($self, /, *args, **kwargs)
--

Sends to every rank and wants no answer. An exception there ends that actor.)";

PyTypeObject* mesh_ref_type = nullptr;

struct EndpointState {
  Ref mesh;  // MeshRef
  uint32_t method = 0;
  Py_ssize_t args_min = 0;  // positional arguments that are surely right; anything else is checked in Python
  Py_ssize_t args_max = 0;
  bool native = false;  // a C++ actor: positional arguments by the native codec only
  uint16_t flags = 0;   // of every frame: kFlagPort, kFlagKeep, kFlagQuiet
  double deadline_s = 0;  // 0: none but that of the code that calls
  bool partial = false;   // call() gives failures beside values
  Reducer reducer = Reducer::kNone;  // call() gives one value
  Label label;  // mesh.method
  uint32_t granted = 0;  // messages that need not wait for room, since somebody has waited for it (_grant())
  std::shared_ptr<struct ToldOneWay> told;  // once it has sent one-way messages; shared: with the list of all such
};

// One-way messages that were sent through an endpoint.
struct ToldOneWay {
  View mesh;
  Label label;
  uint32_t messages = 0;
  bool is_listed = false;
  bool by_actors = false;  // some of them: their order and the client's are two
  uint64_t last = 0;       // the number of the last of them
};

constexpr uint32_t kGrantedMax = 4096;
constexpr size_t kToldMax = 256;
// Of a script: the last endpoints that one-way messages were sent through. Nothing of Python's is in it.
std::vector<std::shared_ptr<ToldOneWay>> told_one_way;

// One-way messages that were sent until now. What is sent after it was looked at comes after all that it counts.
uint64_t one_way_sent = 0;

EndpointState& endpoint_of(PyObject* self) { return unbox<EndpointState>(self); }
View& view_of(PyObject* self) { return unbox<View>(self); }

void note_one_way(EndpointState& endpoint) {
  if (state().worker || state().simulated != nullptr) return;
  if (!endpoint.told) {
    endpoint.told = std::make_shared<ToldOneWay>(ToldOneWay{view_of(endpoint.mesh.get()), endpoint.label});
  }
  ++endpoint.told->messages;
  endpoint.told->last = ++one_way_sent;
  endpoint.told->by_actors |= current_actor.id.node != 0;
  if (std::exchange(endpoint.told->is_listed, true)) return;
  if (told_one_way.size() == kToldMax) {
    const auto middle = told_one_way.begin() + kToldMax / 2;
    for (auto old = told_one_way.begin(); old != middle; ++old) (*old)->is_listed = false;
    told_one_way.erase(told_one_way.begin(), middle);
  }
  told_one_way.push_back(endpoint.told);
}

bool is_answered_by_all(const PendingCall& call) {
  for (uint32_t rank = 0; rank < call.size(); ++rank) {
    const Message* reply = call.reply(rank);
    if (reply == nullptr || reply->header.kind != FrameKind::kReply) return false;
  }
  return true;
}

uint64_t one_way_before_call() { return current_actor.id.node == 0 ? one_way_sent : 0; }

// ---- MeshRef ----

// MeshRef(ids: list[(node, index)], view: bytes | None, scalar: bool)
PyObject* mesh_ref_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* ids;
  PyObject* view;
  int scalar;
  if (!PyArg_ParseTuple(args, "O!Op", &PyList_Type, &ids, &view, &scalar)) return nullptr;
  auto members = std::make_shared<Members>();
  members->ids.reserve(static_cast<size_t>(PyList_GET_SIZE(ids)));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ids); ++i) {
    unsigned long long node, index;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(ids, i), "KK", &node, &index)) return nullptr;
    members->ids.push_back({node, index});
  }
  View mesh;
  mesh.members = std::move(members);
  if (scalar) mesh.flags |= kFlagScalarView;
  if (view != Py_None) {
    if (!PyBytes_Check(view)) {
      PyErr_SetString(PyExc_TypeError, "view must be bytes or None");
      return nullptr;
    }
    mesh.flags |= kFlagView;
    const auto* bytes = reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(view));
    mesh.shape.assign(bytes, bytes + PyBytes_GET_SIZE(view));
  }
  return box<View>(type, std::move(mesh));
}

// Sends `encoded` to all members of the mesh. `call` may be null.
// Without the GIL if it is much. False: there is no memory for it here, and MemoryError is set.
template <typename Send>
bool send_large(const Encoded& encoded, Send send) {
  bool sent = true;
  without_gil_if_large(encoded.total_bytes(), [&] {
    try {
      send();
    } catch (const std::bad_alloc&) {
      sent = false;
    }
  });
  if (!sent) {
    PyErr_Format(PyExc_MemoryError, "there is no memory to send a message of %llu bytes",
                 static_cast<unsigned long long>(encoded.total_bytes()));
  }
  return sent;
}

bool send_to_all(AnyRuntime& runtime, const View& mesh, FrameHeader header, const Encoded& encoded,
                 const std::shared_ptr<PendingCall>& call) {
  header.flags |= encoded.flags();
  header.sender = current_sender();
  Outgoing outgoing{header, encoded.body(), encoded.parts()};
  if (call) outgoing.deadline_ns = call->deadline_ns();
  return send_large(encoded, [&] { mesh.cast(runtime.node(), outgoing, call); });
}

// spawn(kind, swarm, value, named, kept_max) -> SpawnRecord or None: makes the actors. Calls to them say if it has failed.
// With `swarm` not 0 each member is the first of so many in its process. `named`: the same without anything to pickle, or
// None; it is what is sent if it holds nothing but scalars. What has at most `kept_max` bytes can be sent again.
PyObject* mesh_ref_spawn(PyObject* self, PyObject* args) {
  unsigned int kind, swarm;
  PyObject *value, *named;
  unsigned long long kept_max = 0;
  if (!PyArg_ParseTuple(args, "IIOO|K", &kind, &swarm, &value, &named, &kept_max)) return nullptr;
  simulated_step();
  AnyRuntime* runtime = require_runtime();
  if (runtime == nullptr) return nullptr;
  if (!check_reach(*view_of(self).members)) return nullptr;
  Encoded encoded;
  if (kind == static_cast<uint32_t>(CellKind::kNative)) {
    if (require_machine("actors of C++") == nullptr) return nullptr;
    if (!PyTuple_Check(value)) return PyErr_Format(PyExc_TypeError, "expected a tuple");
    std::vector<PyObject*> items;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) items.push_back(PyTuple_GET_ITEM(value, i));
    if (!encoded.encode_native_call(items.data(), static_cast<Py_ssize_t>(items.size()))) return nullptr;
  } else if (!(named != Py_None && encoded.encode_scalars(named)) && !encoded.encode_pickled(value, Contents::kSpawn)) {
    return nullptr;
  }
  if (!check_size(*runtime, encoded)) return nullptr;
  FrameHeader header;
  header.method = kind | swarm << kSwarmShift;
  header.flags = encoded.flags();
  header.sender = actor_of_context();
  Outgoing outgoing{header, encoded.body(), encoded.parts()};
  if (!send_large(encoded, [&] { runtime->node().spawn(*view_of(self).members, outgoing); })) return nullptr;
  if (kept_max == 0 || encoded.total_bytes() > kept_max) Py_RETURN_NONE;
  return new_spawn_record(outgoing);
}

// spawn_lazy(value): the only member, an actor of this process, is made when the first message for it comes.
PyObject* mesh_ref_spawn_lazy(PyObject* self, PyObject* value) {
  AnyRuntime* runtime = require_runtime();
  Encoded encoded;
  if (runtime == nullptr || !encoded.encode_pickled(value, Contents::kSpawn)) return nullptr;
  Outgoing spawn{FrameHeader{}, encoded.body(), encoded.parts()};
  spawn.header.kind = FrameKind::kSpawn;
  spawn.header.method = static_cast<uint32_t>(CellKind::kPython);
  spawn.header.flags = encoded.flags() | view_of(self).flags;
  spawn.header.dest = view_of(self).members->ids[0].index;
  runtime->node().add_lazy_actor(spawn.header.dest, Message::copy_of(spawn, runtime->node().id()));
  Py_RETURN_NONE;
}

// stop(reason) -> Future
PyObject* mesh_ref_stop(PyObject* self, PyObject* reason) {
  AnyRuntime* runtime = require_runtime();
  if (runtime == nullptr) return nullptr;
  Py_ssize_t size;
  const char* text = PyUnicode_AsUTF8AndSize(reason, &size);
  if (text == nullptr || !check_reach(*view_of(self).members)) return nullptr;
  Outgoing outgoing{FrameHeader{}, as_byte_span(text, static_cast<size_t>(size)), {}};
  outgoing.header.kind = FrameKind::kStopActor;
  auto call = view_of(self).new_call();
  runtime->node().cast(*view_of(self).members, outgoing, call);
  return new_future(std::move(call), FutureMode::kEnded, 0, Py_None);
}

// ---- EndpointBase ----

// EndpointBase(mesh_ref, method, args_min, args_max, native, flags); subclasses take what they want beside it.
PyObject* endpoint_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* mesh;
  unsigned int method;
  Py_ssize_t args_min, args_max;
  int native;
  unsigned short flags;
  Ref head = Ref::steal(PyTuple_GetSlice(args, 0, 6));
  if (!head || !PyArg_ParseTuple(head.get(), "O!InnpH", mesh_ref_type, &mesh, &method, &args_min, &args_max, &native,
                                 &flags)) {
    return nullptr;
  }
  return box<EndpointState>(type, EndpointState{Ref::borrow(mesh), method, args_min, args_max, native != 0, flags, 0,
                                                false, Reducer::kNone, Label(), 0, nullptr});
}

// Checks the arguments and encodes them. Nothing is sent if they are wrong.
bool encode_arguments(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names, Encoded& encoded) {
  const EndpointState& endpoint = endpoint_of(self);
  if (endpoint.native) {
    if (names == nullptr) return encoded.encode_native_call(args, count);
    PyErr_SetString(PyExc_TypeError, "C++ actors take positional arguments only");
    return false;
  }
  if (names == nullptr && count >= endpoint.args_min && count <= endpoint.args_max) {
    return encoded.encode_call(args, count);
  }
  Ref positional = Ref::steal(PyTuple_New(count));
  if (!positional) return false;
  for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(positional.get(), i, Py_NewRef(args[i]));
  Ref named = Ref::steal(PyDict_New());
  const Py_ssize_t name_count = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  for (Py_ssize_t i = 0; named && i < name_count; ++i) {
    if (PyDict_SetItem(named.get(), PyTuple_GET_ITEM(names, i), args[count + i]) != 0) return false;
  }
  if (!named) return false;
  PyObject* bind_args[] = {self, positional.get(), named.get()};
  Ref bound = Ref::steal(PyObject_Vectorcall(state().bind_arguments.get(), bind_args, 3, nullptr));
  if (!bound) return false;
  if (name_count == 0) return encoded.encode_call(args, count);
  Ref pair = Ref::steal(PyTuple_Pack(2, positional.get(), named.get()));
  return pair && encoded.encode_pickled(pair.get(), Contents::kCall);
}

// The common part of all adverbs. Null call: one-way.
bool start_call(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names,
                const std::shared_ptr<PendingCall>& call) {
  simulated_step();
  AnyRuntime* runtime = require_runtime();
  if (runtime == nullptr) return false;
  EndpointState& endpoint = endpoint_of(self);
  const View& mesh = view_of(endpoint.mesh.get());
  int64_t deadline_ns;
  if (!check_reach(*mesh.members) || !find_deadline(endpoint.deadline_s, &deadline_ns)) return false;
  Encoded encoded;
  if (!encode_arguments(self, args, count, names, encoded) || (!call && !check_size(*runtime, encoded))) return false;
  const bool is_flood = runtime->node().is_flood(call != nullptr, encoded.total_bytes());
  const bool granted = endpoint.granted != 0;
  if (granted) --endpoint.granted;
  if (is_flood && !granted && !wait_for_room(*runtime, *mesh.members, call != nullptr, self, deadline_ns)) return false;
  FrameHeader header;
  if (call) {
    call->set_deadline(deadline_ns);
    call->set_label(endpoint.label);
  }
  header.kind = call ? FrameKind::kRequest : FrameKind::kOneway;
  header.method = endpoint.method;
  header.flags = endpoint.flags;
  if (endpoint.reducer != Reducer::kNone && endpoint.reducer != Reducer::kConcat) header.flags |= kFlagReduce;
  if (endpoint.reducer == Reducer::kCount) header.flags |= kFlagKeep;
  return send_to_all(*runtime, mesh, header, encoded, call);
}

std::shared_ptr<PendingCall> new_call(PyObject* self) {
  return view_of(endpoint_of(self).mesh.get()).new_call();
}

// _set_label(text): how it is named where nothing of Python's is left
PyObject* endpoint_set_label(PyObject* self, PyObject* text) {
  Py_ssize_t size;
  const char* label = PyUnicode_AsUTF8AndSize(text, &size);
  if (label == nullptr) return nullptr;
  endpoint_of(self).label = std::make_shared<const std::string>(label, static_cast<size_t>(size));
  Py_RETURN_NONE;
}

// _grant(): the next message need not wait for room
PyObject* endpoint_grant(PyObject* self, PyObject*) {
  if (endpoint_of(self).granted < kGrantedMax) ++endpoint_of(self).granted;
  Py_RETURN_NONE;
}

PyObject* endpoint_call_one(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  auto call = new_call(self);
  if (call->size() != 1) {
    return PyErr_Format(PyExc_ValueError, "call_one requires exactly 1 actor, but mesh has %u", call->size());
  }
  const uint64_t before = one_way_before_call();
  if (!start_call(self, args, count, names, call)) return nullptr;
  return new_future(std::move(call), FutureMode::kOne, 0, self, before);
}

PyObject* endpoint_call(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  auto call = new_call(self);
  const uint64_t before = one_way_before_call();
  const EndpointState& endpoint = endpoint_of(self);
  call->set_reducer(endpoint.reducer);
  call->set_gathered();
  if (!start_call(self, args, count, names, call)) return nullptr;
  const FutureMode mode = endpoint.reducer != Reducer::kNone ? FutureMode::kReduced
                          : endpoint.partial                 ? FutureMode::kPartial
                                                             : FutureMode::kAll;
  return new_future(std::move(call), mode, 0, self, before);
}

PyObject* endpoint_broadcast(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (!start_call(self, args, count, names, nullptr)) return nullptr;
  note_one_way(endpoint_of(self));
  Py_RETURN_NONE;
}

// _stream(...) -> list of Future, the i-th for the i-th answer to arrive
PyObject* endpoint_stream(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  auto call = new_call(self);
  if (!start_call(self, args, count, names, call)) return nullptr;
  Ref list = Ref::steal(PyList_New(call->size()));
  for (uint32_t i = 0; list && i < call->size(); ++i) {
    PyObject* future = new_future(call, FutureMode::kArrival, i, self);
    if (future == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), i, future);
  }
  return list.release();
}

// _send(port, first_rank, ...): the answers go to a port
PyObject* endpoint_send(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (!check_port(args[0])) return nullptr;
  const auto first_rank = static_cast<uint32_t>(PyLong_AsUnsignedLong(args[1]));
  auto call = new_call(self);
  if (!start_call(self, args + 2, count - 2, names, call)) return nullptr;
  relay_to_port(args[0], call, first_rank);
  Py_RETURN_NONE;
}

// _send_with_port((port, *args), kwargs), to a method that answers through a port: through this one
PyObject* endpoint_send_with_port(PyObject* self, PyObject* pair) {
  simulated_step();
  AnyRuntime* runtime = require_runtime();
  if (runtime == nullptr) return nullptr;
  const EndpointState& endpoint = endpoint_of(self);
  const View& mesh = view_of(endpoint.mesh.get());
  int64_t deadline_ns;
  if (!check_reach(*mesh.members) || !find_deadline(endpoint.deadline_s, &deadline_ns)) return nullptr;
  Encoded encoded;
  if (!check_port(PyTuple_GET_ITEM(PyTuple_GET_ITEM(pair, 0), 0))) return nullptr;
  if (!encoded.encode_pickled(pair, Contents::kCall) || !check_size(*runtime, encoded)) return nullptr;
  if (!wait_for_room(*runtime, *mesh.members, false, self, deadline_ns)) return nullptr;
  FrameHeader header;
  header.kind = FrameKind::kOneway;
  header.method = endpoint.method;
  header.flags = kFlagGivenPort;
  if (!send_to_all(*runtime, mesh, header, encoded, nullptr)) return nullptr;
  Py_RETURN_NONE;
}

// _set_options(deadline_seconds or 0, partial, reducer or 0)
PyObject* endpoint_set_options(PyObject* self, PyObject* args) {
  double deadline_s;
  int partial;
  unsigned char reducer;
  if (!PyArg_ParseTuple(args, "dpb", &deadline_s, &partial, &reducer)) return nullptr;
  if (reducer > kReducerMax) return PyErr_Format(PyExc_ValueError, "there is no reducer %d", reducer);
  endpoint_of(self).deadline_s = deadline_s;
  endpoint_of(self).partial = partial != 0;
  endpoint_of(self).reducer = static_cast<Reducer>(reducer);
  Py_RETURN_NONE;
}

int endpoint_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(endpoint_of(self).mesh.get());
  return 0;
}

int endpoint_clear(PyObject*) { return 0; }  // a MeshRef refers to nothing

}  // namespace

bool check_size(AnyRuntime& runtime, const Encoded& encoded) {
  const std::string why = runtime.node().why_too_large({FrameHeader{}, encoded.body(), encoded.parts()});
  if (why.empty()) return true;
  Ref error = Ref::steal(PyObject_CallFunction(state().supervision_error.get(), "OisO", Py_None, 0, why.c_str(), Py_None));
  if (error) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  return false;
}

namespace {
// Without the GIL, and looking at signals.
class PythonSleep final : public RoomSleep {
 public:
  explicit PythonSleep(PyObject* receiver) : receiver_(receiver) {}
  WaitResult sleep(bool (*over)(const void*), const void* context, int64_t until_ns) override {
    switch (wait_for(over, context, until_ns, nullptr, 0)) {
      case 1:
        return WaitResult::kReady;
      case 0:
        return WaitResult::kTimeout;
      default:
        return WaitResult::kInterrupted;
    }
  }
  std::string receiver() override {
    Ref text = Ref::steal(PyObject_Str(receiver_));
    const char* name = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    if (name == nullptr) PyErr_Clear();
    return name == nullptr ? "an actor" : name;
  }

 private:
  PyObject* const receiver_;
};
}  // namespace

std::shared_ptr<const Members> members_of(PyObject* mesh_ref) {
  if (PyObject_TypeCheck(mesh_ref, mesh_ref_type)) return view_of(mesh_ref).members;
  PyErr_SetString(PyExc_TypeError, "expected a MeshRef");
  return nullptr;
}

std::vector<AskedOneWay> ask_about_one_way() {
  std::vector<AskedOneWay> asked;
  for (const auto& told : told_one_way) {
    auto call = told->mesh.new_call();
    Outgoing outgoing{FrameHeader{}, {}, {}};
    outgoing.header.kind = FrameKind::kRequest;
    outgoing.header.method = std::numeric_limits<uint32_t>::max();
    outgoing.header.flags |= kFlagQuiet;  // the answers are not shown to anybody
    outgoing.header.sender = current_sender();
    told->mesh.cast(state().runtime->node(), outgoing, call);
    asked.push_back({std::move(call), told->label, told->messages});
  }
  return asked;
}

void note_answered(const PendingCall& call, uint64_t one_way_before) {
  if (told_one_way.empty() || &call.owing() != &call.members()) return;
  const auto has_handled = [&](const std::shared_ptr<ToldOneWay>& told) {
    const Members& members = *told->mesh.members;
    if (told->by_actors || told->last > one_way_before) return false;
    return &members == &call.members() || members.ids == call.members().ids;
  };
  if (std::ranges::none_of(told_one_way, has_handled) || !is_answered_by_all(call)) return;
  std::erase_if(told_one_way, [&](const std::shared_ptr<ToldOneWay>& told) {
    if (!has_handled(told)) return false;
    told->is_listed = false;
    told->messages = 0;
    return true;
  });
}

void forget_one_way() { told_one_way.clear(); }

bool wait_for_room(AnyRuntime& runtime, const Members& members, bool is_call, PyObject* receiver, int64_t deadline_ns) {
  PythonSleep sleep(receiver);
  const bool counts = is_call && calls_are_limited();
  const RoomOutcome outcome = wait_for_room(runtime.node(), members, counts, deadline_ns, sleep);
  if (outcome == RoomOutcome::kTooLate) {
    raise_deadline_exceeded("the deadline has passed while the receiver had no room: nothing was sent");
  }
  return outcome == RoomOutcome::kRoom;
}

bool add_mesh_types(PyObject* module) {
  static PyMethodDef mesh_methods[] = {
      {"spawn", mesh_ref_spawn, METH_VARARGS, nullptr},
      {"spawn_lazy", mesh_ref_spawn_lazy, METH_O, nullptr},
      {"stop", mesh_ref_stop, METH_O, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyType_Slot mesh_slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(mesh_ref_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<View>)},
      {Py_tp_methods, mesh_methods},
      {0, nullptr},
  };
  static PyType_Spec mesh_spec = {"monarch._core.MeshRef", sizeof(Boxed<View>), 0, Py_TPFLAGS_DEFAULT,
                                  mesh_slots};
  constexpr int kFast = METH_FASTCALL | METH_KEYWORDS;
  static PyMethodDef endpoint_methods[] = {
      {"call", fast(endpoint_call), kFast, kCallDoc},
      {"call_one", fast(endpoint_call_one), kFast, kCallOneDoc},
      {"broadcast", fast(endpoint_broadcast), kFast, kBroadcastDoc},
      {"_stream", fast(endpoint_stream), kFast, nullptr},
      {"_grant", endpoint_grant, METH_NOARGS, nullptr},
      {"_set_label", endpoint_set_label, METH_O, nullptr},
      {"_set_options", endpoint_set_options, METH_VARARGS, nullptr},
      {"_send", fast(endpoint_send), kFast, nullptr},
      {"_send_with_port", endpoint_send_with_port, METH_VARARGS, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyType_Slot endpoint_slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(endpoint_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<EndpointState>)},
      {Py_tp_traverse, reinterpret_cast<void*>(endpoint_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(endpoint_clear)},
      {Py_tp_methods, endpoint_methods},
      {0, nullptr},
  };
  static PyType_Spec endpoint_spec = {"monarch._core.EndpointBase", sizeof(Boxed<EndpointState>), 0,
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, endpoint_slots};
  mesh_ref_type = add_type(module, mesh_spec);
  return mesh_ref_type != nullptr && add_type(module, endpoint_spec) != nullptr;
}

}  // namespace monarch
