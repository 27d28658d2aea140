// What Python sees of an actor: its context, the port that an explicit_response_port method answers through, and the
// cell and its tickets, which python/monarch/_running/event_loop.py drives.
#include <utility>

#include "actor_cell.h"
#include "codec.h"
#include "forks.h"
#include "state.h"
#include "supervision.h"
#include "swarm.h"

namespace monarch {

namespace {

PyTypeObject* context_type = nullptr;
PyTypeObject* cell_type = nullptr;
PyTypeObject* methods_type = nullptr;
PyTypeObject* ticket_type = nullptr;
PyTypeObject* swarm_type = nullptr;

// ---- Context: what context() returns inside an endpoint ----

struct ContextState {
  Ref identity;
  Ref extent;
  uint32_t rank;
  Ref point;
  ActorIndex actor = 0;
  uint32_t epoch = 0;
};

PyObject* context_actor(PyObject* self, void*) { return Py_NewRef(unbox<ContextState>(self).identity.get()); }

PyObject* context_rank(PyObject* self, void*) {
  ContextState& context = unbox<ContextState>(self);
  if (!context.point) {
    Ref rank = Ref::steal(PyLong_FromUnsignedLong(context.rank));
    PyObject* args[] = {rank.get(), context.extent.get()};
    context.point = Ref::steal(rank ? PyObject_Vectorcall(state().make_point.get(), args, 2, nullptr) : nullptr);
    if (!context.point) return nullptr;
  }
  return Py_NewRef(context.point.get());
}

PyObject* context_epoch(PyObject* self, void*) { return PyLong_FromUnsignedLong(unbox<ContextState>(self).epoch); }

// Context(actor_instance, extent, rank)
PyObject* context_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *identity, *extent;
  unsigned int rank;
  if (!PyArg_ParseTuple(args, "OOI", &identity, &extent, &rank)) return nullptr;
  return box<ContextState>(type, ContextState{Ref::borrow(identity), Ref::borrow(extent), rank, Ref(), 0});
}

// ---- Cell and Ticket ----

PyCell& cell_of(PyObject* self) { return *unbox<std::shared_ptr<PyCell>>(self); }

// Methods([(function, kind), ...]): what the actors of a class run, by number
PyObject* methods_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* list;
  if (!PyArg_ParseTuple(args, "O!", &PyList_Type, &list)) return nullptr;
  auto methods = std::make_shared<std::vector<PyCell::Method>>();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* function;
    int kind;
    if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "Oi", &function, &kind)) return nullptr;
    Ref name = Ref::steal(PyObject_GetAttrString(function, "__name__"));
    const char* text = name ? PyUnicode_AsUTF8(name.get()) : nullptr;
    if (text == nullptr) PyErr_Clear();
    methods->push_back({Ref::borrow(function), static_cast<MethodKind>(kind & 3), (kind & kExplicitPort) != 0,
                        text == nullptr ? "" : text});
  }
  return box<PyCell::Methods>(type, std::move(methods));
}

// Functions lead to their modules, and by those to the tables of classes: such circles go with the interpreter. While
// actors share the methods they are held from outside.
int methods_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const PyCell::Methods& methods = unbox<PyCell::Methods>(self);
  if (methods == nullptr || methods.use_count() > 1) return 0;
  for (const PyCell::Method& method : *methods) Py_VISIT(method.function.get());
  return 0;
}

int methods_clear(PyObject* self) {
  unbox<PyCell::Methods>(self) = std::make_shared<const std::vector<PyCell::Method>>();
  return 0;
}

// set_up(instance, identity, extent, methods, supervises)
PyObject* cell_set_up(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 5 || Py_TYPE(args[3]) != methods_type) {
    PyErr_SetString(PyExc_TypeError, "set_up(instance, identity, extent, methods, supervises)");
    return nullptr;
  }
  cell_of(self).set_up(args[0], args[1], args[2], unbox<PyCell::Methods>(args[3]), args[4] == Py_True);
  Py_RETURN_NONE;
}

// step() -> None (idle) | True (handled) | False (the actor ends) | (coroutine, ticket)
PyObject* cell_step(PyObject* self, PyObject*) {
  Ref coroutine;
  PyCell::Ticket ticket;
  switch (cell_of(self).step(&coroutine, &ticket)) {
    case PyCell::Step::kIdle:
      Py_RETURN_NONE;
    case PyCell::Step::kDone:
      Py_RETURN_TRUE;
    case PyCell::Step::kEnd:
      Py_RETURN_FALSE;
    case PyCell::Step::kCoroutine: {
      Ref boxed = Ref::steal(box<PyCell::Ticket>(ticket_type, ticket));
      return boxed ? PyTuple_Pack(2, coroutine.get(), boxed.get()) : nullptr;
    }
    default:
      return nullptr;
  }
}

PyObject* cell_finish(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || Py_TYPE(args[0]) != ticket_type) {
    PyErr_SetString(PyExc_TypeError, "finish(ticket, result)");
    return nullptr;
  }
  const auto& ticket = unbox<PyCell::Ticket>(args[0]);
  cell_of(self).awaited(ticket);
  return PyBool_FromLong(cell_of(self).finish(ticket, args[1]));
}

PyObject* cell_finish_error(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || Py_TYPE(args[0]) != ticket_type || !PyExceptionInstance_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "finish_error(ticket, exception)");
    return nullptr;
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(args[1])), args[1]);
  const auto& ticket = unbox<PyCell::Ticket>(args[0]);
  cell_of(self).awaited(ticket);
  return PyBool_FromLong(cell_of(self).finish_error(ticket));
}

PyObject* cell_poll(PyObject* self, PyObject*) {
  end_if_forked();
  return PyBool_FromLong(cell_of(self).poll_briefly());
}
PyObject* cell_arm(PyObject* self, PyObject*) {
  end_if_forked();
  PyCell& cell = cell_of(self);
  return PyBool_FromLong(cell.loop_wake().arm([&cell] { return cell.has_work(); }));
}
PyObject* cell_disarm(PyObject* self, PyObject*) {
  end_if_forked();
  cell_of(self).loop_wake().disarm();
  Py_RETURN_NONE;
}
PyObject* fileno_of(LoopWake& wake) {
  const int fd = wake.fd();
  return fd >= 0 ? PyLong_FromLong(fd) : raise_shortage("wait for messages in an event loop");
}
PyObject* cell_fileno(PyObject* self, PyObject*) { return fileno_of(cell_of(self).loop_wake()); }

// end(reason, failure)
PyObject* cell_end(PyObject* self, PyObject* args) {
  PyObject *reason, *origin = nullptr;
  int failure;
  if (refuse_dead() || !PyArg_ParseTuple(args, "Up|U", &reason, &failure, &origin)) return nullptr;
  cell_of(self).end(utf8_of(reason), failure != 0, utf8_of(origin));
  Py_RETURN_NONE;
}

// begin_supervising() -> coroutine or None
PyObject* cell_begin_supervising(PyObject* self, PyObject*) {
  Ref coroutine = cell_of(self).begin_supervising();
  return coroutine ? coroutine.release() : Py_NewRef(Py_None);
}

// next_failure() -> what a MeshFailure is made of, or None
PyObject* cell_next_failure(PyObject* self, PyObject*) {
  MeshFailure failure;
  return cell_of(self).next_failure(&failure) ? describe_failure(failure) : Py_NewRef(Py_None);
}

// close()
PyObject* cell_close(PyObject* self, PyObject*) {
  end_if_forked();
  cell_of(self).close();
  Py_RETURN_NONE;
}

PyObject* cell_enter_hook(PyObject* self, PyObject*) {
  cell_of(self).enter_hook();
  Py_RETURN_NONE;
}

// in_hook(begins)
PyObject* cell_in_hook(PyObject* self, PyObject* begins) {
  cell_of(self).in_hook(begins == Py_True);
  Py_RETURN_NONE;
}

// report_hook(exception)
PyObject* cell_report_hook(PyObject* self, PyObject* exception) {
  cell_of(self).report_hook(exception);
  Py_RETURN_NONE;
}

PyObject* cell_index(PyObject* self, void*) { return PyLong_FromUnsignedLongLong(cell_of(self).index()); }
PyObject* cell_instance(PyObject* self, void*) { return Py_NewRef(cell_of(self).instance()); }
PyObject* cell_identity(PyObject* self, void*) { return Py_NewRef(cell_of(self).identity()); }
PyObject* cell_end_reason(PyObject* self, void*) { return py_string(cell_of(self).end_reason()); }
PyObject* cell_ending(PyObject* self, void*) { return PyBool_FromLong(cell_of(self).ending()); }
PyObject* cell_failed(PyObject* self, void*) { return PyBool_FromLong(cell_of(self).end_is_failure()); }

PyObject* ticket_concurrent(PyObject* self, void*) {
  return PyBool_FromLong(unbox<PyCell::Ticket>(self).concurrent);
}

// None, or how long its caller still waits
PyObject* ticket_seconds_left(PyObject* self, void*) {
  const int64_t deadline_ns = unbox<PyCell::Ticket>(self).deadline_ns;
  if (deadline_ns == 0) Py_RETURN_NONE;
  return PyFloat_FromDouble(static_cast<double>(deadline_ns - state().runtime->node().clock().now_ns()) / 1e9);
}

// ---- Swarm ----

Swarm& swarm_of(PyObject* self) { return *unbox<std::shared_ptr<Swarm>>(self); }

// step() -> None (nothing is ready) | True (others may run) | False (all have ended) | (cell, coroutine, ticket), with
// None for the last two of an actor that ends
PyObject* swarm_step(PyObject* self, PyObject*) {
  std::shared_ptr<PyCell> cell;
  Ref coroutine;
  PyCell::Ticket ticket;
  end_if_forked();
  switch (swarm_of(self).step(&cell, &coroutine, &ticket)) {
    case PyCell::Step::kIdle:
      Py_RETURN_NONE;
    case PyCell::Step::kDone:
      Py_RETURN_TRUE;
    case PyCell::Step::kEnd:
      Py_RETURN_FALSE;
    default: {
      Ref boxed_cell = Ref::steal(new_cell_object(std::move(cell)));
      if (!coroutine) return boxed_cell ? PyTuple_Pack(3, boxed_cell.get(), Py_None, Py_None) : nullptr;
      Ref boxed = Ref::steal(box<PyCell::Ticket>(ticket_type, ticket));
      return boxed && boxed_cell ? PyTuple_Pack(3, boxed_cell.get(), coroutine.get(), boxed.get()) : nullptr;
    }
  }
}

// resume(cell) -> bool: does it end now?
PyObject* swarm_resume(PyObject* self, PyObject* cell) {
  end_if_forked();
  return PyBool_FromLong(swarm_of(self).resume(unbox<std::shared_ptr<PyCell>>(cell)));
}
// end(cell)
PyObject* swarm_end(PyObject* self, PyObject* cell) {
  end_if_forked();
  swarm_of(self).end(unbox<std::shared_ptr<PyCell>>(cell));
  Py_RETURN_NONE;
}
PyObject* swarm_poll(PyObject* self, PyObject*) {
  end_if_forked();
  return PyBool_FromLong(swarm_of(self).poll_briefly());
}
PyObject* swarm_arm(PyObject* self, PyObject*) {
  end_if_forked();
  Swarm& swarm = swarm_of(self);
  return PyBool_FromLong(swarm.loop_wake().arm([&swarm] { return swarm.has_message(); }));
}
PyObject* swarm_disarm(PyObject* self, PyObject*) {
  end_if_forked();
  swarm_of(self).loop_wake().disarm();
  Py_RETURN_NONE;
}
PyObject* swarm_fileno(PyObject* self, PyObject*) { return fileno_of(swarm_of(self).loop_wake()); }

}  // namespace

PyObject* new_swarm_object(std::shared_ptr<Swarm> swarm) {
  return box<std::shared_ptr<Swarm>>(swarm_type, std::move(swarm));
}

PyObject* new_context(const Ref& identity, const Ref& extent, uint32_t rank, ActorIndex actor, uint32_t epoch) {
  return box<ContextState>(context_type, ContextState{identity, extent, rank, Ref(), actor, epoch});
}

ActorIndex actor_of_context() {
  PyObject* found;
  if (PyContextVar_Get(state().context_var.get(), Py_None, &found) != 0) {
    PyErr_Clear();
    return 0;
  }
  const Ref held = Ref::steal(found);
  return Py_TYPE(found) == context_type ? unbox<ContextState>(found).actor : 0;
}

PyObject* new_cell_object(std::shared_ptr<PyCell> cell) {
  return box<std::shared_ptr<PyCell>>(cell_type, std::move(cell));
}

bool add_actor_types(PyObject* module) {
  static PyGetSetDef context_fields[] = {
      {"actor_instance", context_actor, nullptr, "Who is running: name, rank, proc, creator.", nullptr},
      {"message_rank", context_rank, nullptr, "Point: the rank in the mesh that the current message was sent to.",
       nullptr},
      {"epoch", context_epoch, nullptr, "How often some of that mesh had been made anew when the message was sent.",
       nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot context_slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(context_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<ContextState>)},
      {Py_tp_getset, context_fields},
      {0, nullptr},
  };
  static PyType_Spec context_spec = {"monarch._core.Context", sizeof(Boxed<ContextState>), 0, Py_TPFLAGS_DEFAULT,
                                     context_slots};
  static PyMethodDef cell_methods[] = {
      {"set_up", fast(cell_set_up), METH_FASTCALL, nullptr},
      {"step", cell_step, METH_NOARGS, nullptr},
      {"finish", fast(cell_finish), METH_FASTCALL, nullptr},
      {"finish_error", fast(cell_finish_error), METH_FASTCALL, nullptr},
      {"poll", cell_poll, METH_NOARGS, nullptr},
      {"arm", cell_arm, METH_NOARGS, nullptr},
      {"disarm", cell_disarm, METH_NOARGS, nullptr},
      {"fileno", cell_fileno, METH_NOARGS, nullptr},
      {"end", cell_end, METH_VARARGS, nullptr},
      {"close", cell_close, METH_NOARGS, nullptr},
      {"begin_supervising", cell_begin_supervising, METH_NOARGS, nullptr},
      {"next_failure", cell_next_failure, METH_NOARGS, nullptr},
      {"enter_hook", cell_enter_hook, METH_NOARGS, nullptr},
      {"in_hook", cell_in_hook, METH_O, nullptr},
      {"report_hook", cell_report_hook, METH_O, nullptr},
      {nullptr, nullptr, 0, nullptr},
  };
  static PyGetSetDef cell_fields[] = {
      {"index", cell_index, nullptr, nullptr, nullptr},
      {"instance", cell_instance, nullptr, nullptr, nullptr},
      {"identity", cell_identity, nullptr, nullptr, nullptr},
      {"end_reason", cell_end_reason, nullptr, nullptr, nullptr},
      {"failed", cell_failed, nullptr, nullptr, nullptr},
      {"ending", cell_ending, nullptr, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot cell_slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<std::shared_ptr<PyCell>>)},
      {Py_tp_methods, cell_methods},
      {Py_tp_getset, cell_fields},
      {0, nullptr},
  };
  static PyType_Spec cell_spec = {"monarch._core.Cell", sizeof(Boxed<std::shared_ptr<PyCell>>), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, cell_slots};
  static PyType_Slot methods_slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(methods_new)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<PyCell::Methods>)},
      {Py_tp_traverse, reinterpret_cast<void*>(methods_traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(methods_clear)},
      {0, nullptr},
  };
  static PyType_Spec methods_spec = {"monarch._core.Methods", sizeof(Boxed<PyCell::Methods>), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, methods_slots};
  static PyGetSetDef ticket_fields[] = {
      {"concurrent", ticket_concurrent, nullptr, nullptr, nullptr},
      {"seconds_left", ticket_seconds_left, nullptr, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
  };
  static PyType_Slot ticket_slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<PyCell::Ticket>)},
      {Py_tp_getset, ticket_fields},
      {0, nullptr},
  };
  static PyType_Spec ticket_spec = {"monarch._core.Ticket", sizeof(Boxed<PyCell::Ticket>), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, ticket_slots};
  static PyMethodDef swarm_methods[] = {
      {"step", swarm_step, METH_NOARGS, nullptr},     {"resume", swarm_resume, METH_O, nullptr},
      {"end", swarm_end, METH_O, nullptr},            {"poll", swarm_poll, METH_NOARGS, nullptr},
      {"arm", swarm_arm, METH_NOARGS, nullptr},       {"disarm", swarm_disarm, METH_NOARGS, nullptr},
      {"fileno", swarm_fileno, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr},
  };
  static PyType_Slot swarm_slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc_boxed<std::shared_ptr<Swarm>>)},
      {Py_tp_methods, swarm_methods},
      {0, nullptr},
  };
  static PyType_Spec swarm_spec = {"monarch._core.Swarm", sizeof(Boxed<std::shared_ptr<Swarm>>), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, swarm_slots};
  context_type = add_type(module, context_spec);
  swarm_type = add_type(module, swarm_spec);
  cell_type = add_type(module, cell_spec);
  ticket_type = add_type(module, ticket_spec);
  methods_type = add_type(module, methods_spec);
  return context_type != nullptr && swarm_type != nullptr && cell_type != nullptr && ticket_type != nullptr &&
         methods_type != nullptr;
}

}  // namespace monarch
