#include "port.h"

#include <cinttypes>
#include <cstdio>
#include <optional>
#include <utility>

#include "codec.h"
#include "deadline.h"
#include "future.h"
#include "gil.h"
#include "mesh_ref.h"
#include "monarch/actor/port.h"
#include "monarch/base/forked.h"
#include "monarch/wire/error_kind.h"
#include "simulation.h"
#include "state.h"

namespace monarch {

namespace {

// As in python/monarch/_ports/port.py, which type checkers and the documentation read; a test compares.
constexpr char kSendDoc[] = R"(send($self, /, obj)
--

Sends a value. ``RuntimeError`` on the second one through a port of ``open(once=True)``.)";
constexpr char kExceptionDoc[] = R"(exception($self, /, e)
--

Sends an exception: the ``recv`` that meets it raises it, as it is.)";

PyTypeObject* port_base_type = nullptr;

// Answers a call, from any thread. One that nobody kept and that never answered tells its caller so, and so does the end
// of its actor; after it has travelled, that is the business of its copies, of which there may be many, so nobody's.
class ReplyPort {
 public:
  ReplyPort(const PyCell::Ticket& ticket, PyCell& cell)
      : ticket_(ticket), sender_(cell.index()), cell_(cell.weak_from_this()), settled_(ticket.header.token == 0) {
    if (!settled_) cell.owe(ticket_);
  }
  // A copy that came here in a message.
  ReplyPort(const PyCell::Ticket& ticket, ActorIndex sender) : ticket_(ticket), sender_(sender), settled_(true) {}
  ReplyPort(ReplyPort&& other) noexcept
      : ticket_(other.ticket_), sender_(other.sender_), cell_(std::move(other.cell_)),
        settled_(std::exchange(other.settled_, true)) {}
  ReplyPort& operator=(ReplyPort&&) = delete;
  ~ReplyPort() {
    if (in_forked_child() || !settle() || state().runtime == nullptr || state().finalizing) return;
    ValueWriter gone;
    begin_error(gone, ErrorKind::kEndOfStream, 1);
    gone.str("the response port was dropped without an answer");
    Outgoing reply{FrameHeader{}, gone.written(), {}};
    state().runtime->node().reply(ticket_.header, ticket_.from, FrameKind::kReplyError, reply);
  }

  void answer(FrameKind kind, const Encoded& encoded) {
    settle();
    if (ticket_.header.token != 0) send_answer(ticket_, sender_, kind, encoded);
  }
  // (from, token, rank): what a copy elsewhere is made of.
  PyObject* parts() const { return Py_BuildValue("(KKI)", ticket_.from, ticket_.header.token, ticket_.header.rank); }
  void note_travelled() { settle(); }
  void relay(Node& node, const std::shared_ptr<PendingCall>& call) {
    settle();
    relay_answers(node, call, ticket_.header, ticket_.from);
  }

 private:
  // False: it was settled before.
  bool settle() {
    if (std::exchange(settled_, true)) return false;
    if (const auto cell = cell_.lock()) cell->settle(ticket_);
    return true;
  }

  const PyCell::Ticket ticket_;
  const ActorIndex sender_;
  std::weak_ptr<PyCell> cell_;
  bool settled_;
};

struct PortState {
  ActorId address;                 // of the port
  std::optional<ReplyPort> reply;  // instead: it answers a call
  bool once = false;
  bool used = false;
  bool quiet = false;
  int64_t rank = -1;  // -1: messages say nothing about who sent them
};

PortState& port_of(PyObject* self) { return unbox<PortState>(self); }

// PortBase(node, index, once, rank): rank -1 for none
PyObject* port_new(PyTypeObject* type, PyObject* args, PyObject*) {
  unsigned long long node, index;
  int once;
  long long rank;
  if (!PyArg_ParseTuple(args, "KKpL", &node, &index, &once, &rank)) return nullptr;
  PortState port;
  port.address = {node, index};
  port.once = once != 0;
  port.rank = rank;
  return box<PortState>(type, std::move(port));
}

// _answering(from, token, rank): the port of a call that came here in a message
PyObject* port_answering(PyObject* type, PyObject* args) {
  unsigned long long from, token;
  unsigned int rank;
  if (!PyArg_ParseTuple(args, "KKI", &from, &token, &rank)) return nullptr;
  PyCell::Ticket ticket;
  ticket.from = from;
  ticket.header.token = token;
  ticket.header.rank = rank;
  PortState port;
  port.reply.emplace(ticket, current_sender());
  return box<PortState>(reinterpret_cast<PyTypeObject*>(type), std::move(port));
}

// _parts() -> (node, index, once, rank), or (from, token, rank) of a port that answers a call
PyObject* port_parts(PyObject* self, PyObject*) {
  PortState& port = port_of(self);
  if (port.reply) {
    note_pickled(self, [](PyObject* sent) { port_of(sent).reply->note_travelled(); });
    return port.reply->parts();
  }
  return Py_BuildValue("(KKOL)", port.address.node, port.address.index, port.once ? Py_True : Py_False,
                       static_cast<long long>(port.rank));
}

PyObject* port_repr(PyObject* self) {
  const PortState& port = port_of(self);
  if (port.reply) return py_string("<Port that answers a call>");
  char text[64];
  std::snprintf(text, sizeof text, "<Port %" PRIx64 "@%016" PRIx64 ">", port.address.index, port.address.node);
  return py_string(text);
}

void post(PyObject* self, uint32_t method, Encoded& encoded, ActorIndex sender) {
  const PortState& port = port_of(self);
  Outgoing outgoing{FrameHeader{}, encoded.body(), encoded.parts()};
  outgoing.header.flags = encoded.flags();
  if (port.quiet) outgoing.header.flags |= kFlagQuiet;
  outgoing.header.sender = sender;
  outgoing.header.method = method;
  if (port.rank >= 0) {
    outgoing.header.method |= kPortRanked;
    outgoing.header.rank = static_cast<uint32_t>(port.rank);
  }
  without_gil_if_large(encoded.total_bytes(), [&] { state().runtime->node().post(port.address, outgoing); });
}

// False with an exception: the deadline of the code that sends has passed, or a signal's handler raised.
bool wait_until_room(PyObject* self) {
  int64_t deadline_ns;
  if (!find_deadline(0, &deadline_ns)) return false;
  return wait_for_room(*state().runtime, Members{{port_of(self).address}}, false, self, deadline_ns);
}

PyObject* send(PyObject* self, FrameKind kind, PyObject* value) {
  if (require_runtime() == nullptr) return nullptr;
  Encoded encoded;
  if (!encoded.encode_value(value)) return nullptr;
  PortState& port = port_of(self);
  if (port.reply) {
    port.reply->answer(kind, encoded);
    Py_RETURN_NONE;
  }
  if (!check_size(*state().runtime, encoded)) return nullptr;
  if (!check_reach(Members{{port.address}})) return nullptr;
  if (port.once && std::exchange(port.used, true)) {
    PyErr_SetString(PyExc_RuntimeError, "OncePortRef already used");
    return nullptr;
  }
  if (!wait_until_room(self)) {
    port.used = false;
    return nullptr;
  }
  post(self, kind == FrameKind::kReply ? kPortValue : kPortError, encoded, current_sender());
  Py_RETURN_NONE;
}

// The only argument, given by its place or its name. Null with TypeError otherwise.
PyObject* only_argument(PyObject* const* args, Py_ssize_t count, PyObject* names, const char* method, const char* name) {
  const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
  if (count + named != 1 || (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), name) != 0)) {
    return PyErr_Format(PyExc_TypeError, "Port.%s() takes one argument, %s", method, name);
  }
  return args[0];
}

PyObject* port_send(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  PyObject* value = only_argument(args, count, names, "send", "obj");
  return value == nullptr ? nullptr : send(self, FrameKind::kReply, value);
}

PyObject* port_exception(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  PyObject* exception = only_argument(args, count, names, "exception", "e");
  if (exception == nullptr) return nullptr;
  if (!PyExceptionInstance_Check(exception)) {
    return PyErr_Format(PyExc_TypeError, "exception() takes an exception, not %R", exception);
  }
  Ref plain = Ref::steal(Py_BuildValue("(iO)", static_cast<int>(ErrorKind::kPlain), exception));
  return plain ? send(self, FrameKind::kReplyError, plain.get()) : nullptr;
}

// ---- For messages that are put together from several (_ports/reducing_port.py); never of a port that answers a call ----

// _sender() -> index of the actor that runs
PyObject* port_sender(PyObject*, PyObject*) {
  return require_runtime() == nullptr ? nullptr : PyLong_FromUnsignedLongLong(current_sender());
}

// _wait_for_room()
PyObject* port_wait_for_room(PyObject* self, PyObject*) {
  if (require_runtime() == nullptr || !wait_until_room(self)) return nullptr;
  Py_RETURN_NONE;
}

// _has_room() -> bool
PyObject* port_has_room(PyObject* self, PyObject*) {
  AnyRuntime* runtime = require_runtime();
  if (runtime == nullptr) return nullptr;
  return PyBool_FromLong(runtime->node().has_room(Members{{port_of(self).address}}, Node::kBacklogMax));
}

// _post(value, failed, sender): at once, whatever waits at the receiver. failed: the value is what packing.py packs.
PyObject* port_post(PyObject* self, PyObject* args) {
  PyObject* value;
  int failed;
  unsigned long long sender;
  if (require_runtime() == nullptr || !PyArg_ParseTuple(args, "OpK", &value, &failed, &sender)) return nullptr;
  Encoded encoded;
  if (!encoded.encode_value(value) || !check_size(*state().runtime, encoded)) return nullptr;
  post(self, failed != 0 ? kPortError : kPortValue, encoded, sender);
  Py_RETURN_NONE;
}

PyObject* port_returns(PyObject* self, void*) { return PyBool_FromLong(!port_of(self).quiet); }
int port_set_returns(PyObject* self, PyObject* value, void*) {
  const int wanted = value == nullptr ? -1 : PyObject_IsTrue(value);
  if (wanted < 0) {
    if (value == nullptr) PyErr_SetString(PyExc_AttributeError, "return_undeliverable cannot be deleted");
    return -1;
  }
  port_of(self).quiet = wanted == 0;
  return 0;
}

// ---- PortReceiverBase ----

using ReceiverRef = std::shared_ptr<PortReceiver>;

// PortReceiverBase(): opens a port of the current actor
PyObject* receiver_new(PyTypeObject* type, PyObject*, PyObject*) {
  AnyRuntime* runtime = require_runtime();
  if (runtime == nullptr) return nullptr;
  return box<ReceiverRef>(type, PortReceiver::open(runtime->node(), current_inflow()));
}

// _address() -> (node, index)
PyObject* receiver_address(PyObject* self, PyObject*) {
  const ActorId address = unbox<ReceiverRef>(self)->address();
  return Py_BuildValue("(KK)", address.node, address.index);
}

// _receive(ranked) -> Future
PyObject* receiver_receive(PyObject* self, PyObject* ranked) {
  if (require_runtime() == nullptr) return nullptr;
  return new_port_future(unbox<ReceiverRef>(self), ranked == Py_True);
}

}  // namespace

PyObject* new_reply_port(const PyCell::Ticket& ticket, PyCell& cell) {
  PortState port;
  port.reply.emplace(ticket, cell);
  return box<PortState>(reinterpret_cast<PyTypeObject*>(state().port_type.get()), std::move(port));
}

void set_port_rank(PyObject* object, uint32_t rank) {
  if (!PyObject_TypeCheck(object, port_base_type)) return;
  PortState& port = port_of(object);
  if (port.rank < 0) port.rank = rank;
}

bool check_port(PyObject* object) {
  if (PyObject_TypeCheck(object, port_base_type)) return true;
  PyErr_Format(PyExc_TypeError, "expected a Port, not %R", object);
  return false;
}

void relay_to_port(PyObject* object, const std::shared_ptr<PendingCall>& call, uint32_t first_rank) {
  PortState& port = port_of(object);
  Node& node = state().runtime->node();
  if (port.reply) return port.reply->relay(node, call);
  relay_answers(node, call, port.address, first_rank);
}

bool add_port_types(PyObject* module) {
  static PyMethodDef port_methods[] = {
      {"send", fast(port_send), METH_FASTCALL | METH_KEYWORDS, kSendDoc},
      {"exception", fast(port_exception), METH_FASTCALL | METH_KEYWORDS, kExceptionDoc},
      {"_parts", port_parts, METH_NOARGS, nullptr},
      {"_sender", port_sender, METH_NOARGS, nullptr},
      {"_wait_for_room", port_wait_for_room, METH_NOARGS, nullptr},
      {"_has_room", port_has_room, METH_NOARGS, nullptr},
      {"_post", port_post, METH_VARARGS, nullptr},
      {"_answering", port_answering, METH_VARARGS | METH_CLASS, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef port_fields[] = {
      {"return_undeliverable", port_returns, port_set_returns, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot port_slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(port_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<PortState>)},
      {Py_tp_repr, reinterpret_cast<void*>(port_repr)},
      {Py_tp_methods, port_methods},
      {Py_tp_getset, port_fields},
      {0, nullptr},
  };
  static PyType_Spec port_spec = {"monarch._core.PortBase", sizeof(Boxed<PortState>), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, port_slots};
  static PyMethodDef receiver_methods[] = {
      {"_address", receiver_address, METH_NOARGS, nullptr},
      {"_receive", receiver_receive, METH_O, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyType_Slot receiver_slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(receiver_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<ReceiverRef>)},
      {Py_tp_methods, receiver_methods},
      {0, nullptr},
  };
  static PyType_Spec receiver_spec = {"monarch._core.PortReceiverBase", sizeof(Boxed<ReceiverRef>), 0,
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, receiver_slots};
  port_base_type = add_type(module, port_spec);
  return port_base_type != nullptr && add_type(module, receiver_spec) != nullptr;
}

}  // namespace monarch
