// Buffers that other processes read and write (monarch/bulk/bulk.h), as monarch._bulk uses them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bulk.h"
#include "deadline.h"
#include "future.h"
#include "gil.h"
#include "monarch/actor/calls.h"
#include "monarch/base/forked.h"
#include "monarch/bulk/bulk.h"
#include "monarch/bulk/streams.h"
#include "monarch/wire/value_codec.h"
#include "state.h"

namespace nb = nanobind;

namespace monarch {

namespace {

// ---- What keeps Python's memory in its place ----

// Either a view of a buffer or a reference.
struct Kept {
  Py_buffer view{};
  PyObject* object = nullptr;
};

void release(Kept& kept) {
  if (kept.view.obj != nullptr) PyBuffer_Release(&kept.view);
  Py_XDECREF(kept.object);
}

// This thread drops something with the GIL held; until then, since that may run Python code.
thread_local bool has_gil = false;

// What nobody needs any more, until somebody who has the GIL comes by. Never destroyed.
struct Released {
  std::mutex mutex;  // a leaf
  std::vector<Kept> kept;
};
Released& released() {
  static Released& made = *new Released;
  return made;
}

int release_soon(void*) {
  release_kept_buffers();
  return 0;
}

// Dropped on any thread.
std::shared_ptr<void> keeper_of(Kept kept) {
  return std::shared_ptr<void>(new Kept(kept), [](Kept* dropped) {
    const std::unique_ptr<Kept> owned(dropped);
    if (in_forked_child() || state().finalizing) return;
    if (std::exchange(has_gil, false)) return release(*dropped);
    bool first;
    {
      std::lock_guard lock(released().mutex);
      first = released().kept.empty();
      released().kept.push_back(*dropped);
    }
    if (!first) return;
    Py_AddPendingCall(release_soon, nullptr);  // a full queue: whoever comes by
    if (state().worker) wake_main_thread();    // which waits in C, and looks
  });
}

// Memory of Python's, and who keeps it. GIL held where one is made or ends.
struct LocalMemory {
  Memory memory;
  bool writable = false;
  std::shared_ptr<void> keeper;

  LocalMemory(Memory of, bool is_writable, std::shared_ptr<void> kept)
      : memory(std::move(of)), writable(is_writable), keeper(std::move(kept)) {}
  LocalMemory(LocalMemory&&) = default;
  ~LocalMemory() {
    has_gil = true;
    keeper.reset();
    has_gil = false;
  }
};

// By its format, in which names of fields stand between colons.
bool has_objects(const Py_buffer& view) {
  bool is_name = false;
  for (const char* at = view.format; at != nullptr && *at != 0; ++at) {
    if (*at == ':') is_name = !is_name;
    if (*at == 'O' && !is_name) return true;
  }
  return false;
}

// What it is written to, if it may be. With its format, which not all have.
bool get_buffer(PyObject* object, Py_buffer* view, bool* writable) {
  for (const int format : {PyBUF_FORMAT, 0}) {
    for (const int access : {PyBUF_WRITABLE, 0}) {
      PyErr_Clear();
      *writable = access != 0;
      if (PyObject_GetBuffer(object, view, PyBUF_STRIDES | format | access) == 0) return true;
    }
  }
  return false;
}

LocalMemory memory_of_buffer(nb::handle object) {
  Kept kept;
  Py_buffer& view = kept.view;
  bool writable;
  if (!get_buffer(object.ptr(), &view, &writable)) throw nb::python_error();
  if (has_objects(view)) {
    PyBuffer_Release(&view);
    throw nb::type_error("its items are objects of this process");
  }
  // Those of ctypes have no strides though they were asked for: their items lie one behind the other.
  if (view.strides == nullptr || view.shape == nullptr) {
    return {Memory(static_cast<std::byte*>(view.buf), static_cast<uint64_t>(view.len)), writable, keeper_of(kept)};
  }
  std::vector<Memory::Dim> dims;
  for (int dim = 0; dim < view.ndim; ++dim) {
    dims.push_back({static_cast<uint64_t>(view.shape[dim]), static_cast<int64_t>(view.strides[dim])});
  }
  const auto item = static_cast<uint64_t>(view.itemsize);
  return {Memory(static_cast<std::byte*>(view.buf), item, std::move(dims)), writable, keeper_of(kept)};
}

// Without the GIL: the driver may have to be loaded first.
Result<int> device_of(const std::byte* data) {
  GilRelease release;
  std::string why_not;
  const Cuda* const cuda = Cuda::find(&why_not);
  return cuda != nullptr ? cuda->device_of(data) : Result<int>(Error{ErrorCode::kUnsupported, why_not});
}

// `strides` in bytes; `keeper` is referred to for as long as the memory is wanted. ValueError: `on_device`, there is no
// driver for that, or it does not know the address.
LocalMemory memory_at(nb::handle keeper, uint64_t address, uint64_t item_size, const std::vector<uint64_t>& shape,
                      const std::vector<int64_t>& strides, bool writable, bool on_device) {
  if (shape.size() != strides.size()) throw std::invalid_argument("a stride for each dimension was expected");
  std::vector<Memory::Dim> dims;
  for (size_t dim = 0; dim < shape.size(); ++dim) dims.push_back({shape[dim], strides[dim]});
  Memory memory(reinterpret_cast<std::byte*>(address), item_size, std::move(dims));
  if (on_device && memory.size() > 0) {
    const auto device = device_of(memory.data());
    if (!device) throw nb::value_error(device.error().message.c_str());
    memory = memory.on(device.value());
  }
  Kept kept;
  kept.object = Py_NewRef(keeper.ptr());
  return {std::move(memory), writable, keeper_of(kept)};
}

// ---- Operations ----

std::shared_ptr<Bulk> bulk() {
  if (require_machine("RDMABuffer") == nullptr) throw nb::python_error();
  release_kept_buffers();
  return state().bulk;
}

// What an outcome is to Python: None, an int, or (code, refusal, text); a failure is no value.
MessagePtr message_of(const BulkOutcome& outcome, BulkOperation::Kind kind) {
  ValueWriter value;
  const bool has_value = kind == BulkOperation::Kind::kFetchAdd || kind == BulkOperation::Kind::kCompareSwap;
  if (outcome.code != BulkOutcome::Code::kDone) {
    const auto code = static_cast<int64_t>(outcome.code), refusal = static_cast<int64_t>(outcome.refusal);
    encode(value, std::make_tuple(code, refusal, outcome.text));
  } else if (has_value) {
    encode(value, outcome.value);
  } else {
    encode(value, std::monostate());
  }
  const ByteSpan bytes = value.written();
  FrameHeader header;
  header.kind = FrameKind::kReply;
  return Message::make(header, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

MessagePtr answer_of(const BulkOutcome& outcome, uint32_t rank, BulkOperation::Kind kind) {
  return outcome.failure ? make_failure(0, rank, *outcome.failure) : message_of(outcome, kind);
}

nb::object future_of(std::shared_ptr<PendingCall> call, nb::handle finish) {
  PyObject* future = new_future(std::move(call), FutureMode::kEach, 0, finish.ptr());
  if (future == nullptr) throw nb::python_error();
  return nb::steal(future);
}

// At the latest then; of what the code that runs may take, too.
int64_t deadline_after(double seconds) {
  int64_t deadline_ns;
  if (!find_deadline(0, &deadline_ns)) throw nb::python_error();
  constexpr double kNeverSeconds = 1e9;
  const int64_t own_ns = seconds >= kNeverSeconds ? kNoDeadline : clock_ns() + static_cast<int64_t>(seconds * 1e9);
  return deadline_ns == 0 ? own_ns : std::min(deadline_ns, own_ns);
}

nb::object done_now(const BulkOutcome& outcome, BulkOperation::Kind kind, nb::handle finish) {
  auto members = std::make_shared<Members>();
  members->ids.push_back({state().runtime->node().id(), 0});
  auto call = std::make_shared<PendingCall>(std::move(members));
  call->fill(0, message_of(outcome, kind), state().runtime->driver());
  return future_of(std::move(call), finish);
}

// Several reads of little are made here and now, one after the other, as a lone one is: to give them to other threads takes
// longer. How many of them are: then one has to be asked for, or something else comes.
size_t make_reads_now(Bulk& bulk, const std::vector<BulkOperation>& operations, int64_t deadline_ns, PendingCall& call) {
  constexpr size_t kCountMax = 64;
  constexpr uint64_t kBytesMax = 256 * 1024;
  uint64_t bytes = 0;
  for (const BulkOperation& each : operations) {
    if (each.kind != BulkOperation::Kind::kRead || (bytes += each.at.size) > kBytesMax) return 0;
  }
  if (operations.size() < 2 || operations.size() > kCountMax) return 0;
  GilRelease release;
  uint32_t made = 0;
  for (; made < operations.size(); ++made) {
    const auto outcome = bulk.try_now(operations[made], deadline_ns);
    if (!outcome) break;
    call.fill(made, answer_of(*outcome, made, BulkOperation::Kind::kRead), state().runtime->driver());
  }
  return made;
}

using Order = std::tuple<int, BufferHandle*, LocalMemory*, int64_t, int64_t>;

// `orders`: (kind, handle, memory, operand, expected) for each; `finish` gets a list with what has become of each of them
// that is no fence, and returns or raises what the future does: `result`, if all is well and it is not an atomic operation.
nb::object submit(const std::vector<Order>& orders, double seconds, nb::object finish, nb::object result) {
  const auto here = bulk();
  const int64_t deadline_ns = deadline_after(seconds);
  std::vector<BulkOperation> operations;
  auto members = std::make_shared<Members>();
  std::vector<BulkOperation::Kind> kinds;
  for (const auto& [kind, handle, memory, operand, expected] : orders) {
    BulkOperation operation;
    operation.kind = static_cast<BulkOperation::Kind>(kind);
    if (handle != nullptr) operation.at = *handle;
    if (memory != nullptr) {
      operation.local = memory->memory;
      operation.keeper = memory->keeper;
    }
    operation.operand = operand;
    operation.expected = expected;
    if (operation.kind != BulkOperation::Kind::kFence) {
      kinds.push_back(operation.kind);
      members->ids.push_back(Bulk::id_of(operation.at.owner));
    }
    operations.push_back(std::move(operation));
  }
  if (operations.size() == 1) {
    const BulkOperation& only = operations[0];
    std::optional<BulkOutcome> outcome;
    without_gil_if_large(only.at.size, [&] { outcome = here->try_now(only, deadline_ns); });
    if (outcome) {
      if (outcome->code == BulkOutcome::Code::kDone) {
        PyObject* future = new_completed_future(result.ptr(), false);
        if (future == nullptr) throw nb::python_error();
        return nb::steal(future);
      }
      return done_now(*outcome, only.kind, finish);
    }
  }
  auto call = std::make_shared<PendingCall>(std::move(members));
  Driver& driver = state().runtime->driver();
  const auto made = static_cast<uint32_t>(make_reads_now(*here, operations, deadline_ns, *call));
  operations.erase(operations.begin(), operations.begin() + made);
  if (!operations.empty() || made == 0) {
    GilRelease release;
    here->submit(std::move(operations), deadline_ns,
                 [call, &driver, made, kinds = std::move(kinds)](std::vector<BulkOutcome> outcomes) {
                   for (uint32_t i = 0; i < outcomes.size(); ++i) {
                     call->fill(made + i, answer_of(outcomes[i], made + i, kinds[made + i]), driver);
                   }
                 });
  }
  return future_of(std::move(call), finish);
}

// The usual read into memory that lies in one piece, without anything in between. None: it cannot be made so, or has
// failed; submit() says why.
nb::object read_now(const BufferHandle& handle, nb::handle target) {
  const State& s = state();
  if (!s.bulk || s.finalizing || in_forked_child()) return nb::none();
  int64_t deadline_ns;
  if (deadlines_in_use() && !find_deadline(0, &deadline_ns)) throw nb::python_error();
  Py_buffer view;
  if (PyObject_GetBuffer(target.ptr(), &view, PyBUF_CONTIG | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return nb::none();
  }
  if (has_objects(view)) {
    PyBuffer_Release(&view);
    return nb::none();
  }
  BulkOperation operation;
  operation.kind = BulkOperation::Kind::kRead;
  operation.at = handle;
  operation.local = Memory(static_cast<std::byte*>(view.buf), static_cast<uint64_t>(view.len));
  std::optional<BulkOutcome> outcome;
  if (operation.local.size() >= handle.size) {
    without_gil_if_large(handle.size, [&] { outcome = s.bulk->try_now(operation, kNoDeadline); });
  }
  PyBuffer_Release(&view);
  if (!outcome || outcome->code != BulkOutcome::Code::kDone) return nb::none();
  PyObject* future = new_completed_future(Py_None, false);
  if (future == nullptr) throw nb::python_error();
  return nb::steal(future);
}

// -> a future of what finish([(path, why no other)]) returns
nb::object explain(const BufferHandle& handle, double seconds, nb::object finish) {
  const auto here = bulk();
  auto call = new_own_call(*state().runtime);
  Driver& driver = state().runtime->driver();
  const int64_t deadline_ns = deadline_after(seconds);
  auto told = [call, &driver](Path path, const std::string& why) {
    ValueWriter value;
    encode(value, std::make_tuple(static_cast<int64_t>(path), why));
    const ByteSpan bytes = value.written();
    FrameHeader header;
    header.kind = FrameKind::kReply;
    call->fill(0, Message::make(header, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}), driver);
  };
  {
    GilRelease release;
    here->explain(handle, deadline_ns, std::move(told));
  }
  return future_of(std::move(call), finish);
}

BufferHandle register_memory(const LocalMemory& memory, bool writable) {
  auto made = bulk()->add(memory.memory, writable && memory.writable, memory.keeper);
  if (!made) {
    PyErr_SetString(PyExc_OSError, made.error().message.c_str());
    throw nb::python_error();
  }
  return *made;
}

// Of a buffer of this process, if there still is a runtime.
void drop_here(const BufferHandle& handle) {
  const State& s = state();
  if (!s.bulk || s.finalizing || in_forked_child()) return;
  s.bulk->drop(handle);
  release_kept_buffers();
}

BufferHandle slice_of(const BufferHandle& handle, uint64_t offset, uint64_t size) {
  BufferHandle part = handle;
  part.offset += offset;
  part.size = size;
  if (size != handle.size) part.confine();
  return part;
}

using Dims = std::vector<std::pair<uint64_t, int64_t>>;  // (count, stride in bytes), the outermost first
using Fields = std::tuple<uint64_t, uint32_t, uint64_t, uint64_t, uint64_t, bool, uint64_t, uint64_t, uint64_t, Dims,
                          std::vector<std::pair<uint64_t, uint64_t>>>;

Fields fields_of(const BufferHandle& h) {
  Dims dims;
  for (const Memory::Dim& dim : h.dims) dims.emplace_back(dim.count, dim.stride);
  std::vector<std::pair<uint64_t, uint64_t>> within;
  for (const BufferPart& part : h.within) within.emplace_back(part.offset, part.size);
  return {h.owner, h.index, h.generation, h.key.low, h.key.high, h.writable, h.offset, h.size, h.run, dims, within};
}

using ContactFields = std::tuple<std::string, uint64_t, int64_t, uint64_t, uint64_t, uint64_t, int64_t, uint64_t>;

ContactFields contact_here() {
  const Contact c = bulk()->contact_here();
  return {c.machine, c.pid_namespace, c.pid, c.proof_address, c.proof[0], c.proof[1], c.table_fd, c.table_inode};
}

// That process has made a handle, and said who it is.
void introduce_owner(NodeId owner, const ContactFields& fields) {
  if (!state().bulk || in_forked_child()) return;
  Contact c;
  std::tie(c.machine, c.pid_namespace, c.pid, c.proof_address, c.proof[0], c.proof[1], c.table_fd, c.table_inode) = fields;
  state().bulk->introduce(owner, c);
}

// A block of it, as Memory has its pieces.
BufferHandle block_of(const BufferHandle& handle, uint64_t offset, uint64_t run, const Dims& dims) {
  BufferHandle block = handle;
  block.offset += offset;
  block.run = block.size = run;
  for (const auto& [count, stride] : dims) {
    block.dims.push_back({count, stride});
    block.size *= count;
  }
  if (block.size != handle.size) block.confine();
  return block;
}

BufferHandle handle_of(const Fields& fields) {
  BufferHandle made;
  Dims dims;
  std::vector<std::pair<uint64_t, uint64_t>> within;
  std::tie(made.owner, made.index, made.generation, made.key.low, made.key.high, made.writable, made.offset, made.size,
           made.run, dims, within) = fields;
  for (const auto& [count, stride] : dims) made.dims.push_back({count, stride});
  for (const auto& [offset, size] : within) made.within.push_back({offset, size});
  return made;
}

// The names in MONARCH_RDMA_PATHS. None: it is not set, or names what there is not, of which the script is warned.
std::optional<std::vector<std::string_view>> wanted_paths() {
  const char* const text = std::getenv("MONARCH_RDMA_PATHS");
  if (text == nullptr) return std::nullopt;
  std::vector<std::string_view> found;
  for (std::string_view rest(text); !rest.empty();) {
    const size_t end = std::min(rest.find_first_of(", \t\n"), rest.size());
    const std::string_view name = rest.substr(0, end);
    constexpr std::string_view kNames[] = {"shm", "cma", "cuda-ipc", "tcp", "ucx"};
    if (!name.empty() && std::ranges::find(kNames, name) == std::end(kNames)) return std::nullopt;
    found.push_back(name);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return found;
}

}  // namespace

std::shared_ptr<Bulk> install_bulk(ProcessRuntime& runtime) {
  Paths paths;
  bool tcp = true, ucx = has_rdma_device();
  if (const auto wanted = wanted_paths()) {
    const auto has = [&](std::string_view name) { return std::ranges::find(*wanted, name) != wanted->end(); };
    paths = {has("shm"), has("cma"), has("cuda-ipc")};
    ucx = has("ucx");
    tcp = ucx || has("tcp");
  }
  auto made = std::make_shared<Bulk>(runtime.node(), runtime.timers(), paths);
  if (tcp) {
    StreamOptions options;
    options.identity = runtime.identity();
    options.dialled_at = runtime.place().dialled_at;
    options.listens_at = runtime.place().listens_at;
    options.tries_ucx = ucx;
    options.dials = [&runtime] { return runtime.dials_hosts(); };
    made->use_streams(runtime.reactor(), std::move(options));
  }
  runtime.node().add_cell(Bulk::id_of(runtime.node().id()).index, made);
  return made;
}

void release_kept_buffers() {
  std::vector<Kept> dropped;
  {
    std::lock_guard lock(released().mutex);
    dropped.swap(released().kept);
  }
  for (Kept& each : dropped) release(each);
}

void bind_bulk(nb::module_& m) {
  nb::class_<BufferHandle>(m, "BufferHandle")
      .def_ro("owner", &BufferHandle::owner)
      .def_ro("size", &BufferHandle::size)
      .def_ro("writable", &BufferHandle::writable)
      .def_prop_ro("is_block", &BufferHandle::is_block)
      .def("part", &slice_of)
      .def("block", &block_of)
      .def("fields", [](const BufferHandle& handle) { return fields_of(handle); });
  nb::class_<LocalMemory>(m, "LocalMemory")
      .def_prop_ro("size", [](const LocalMemory& local) { return local.memory.size(); })
      .def_prop_ro("overlaps", [](const LocalMemory& local) { return local.memory.overlaps(); })
      .def_prop_ro("on_device", [](const LocalMemory& local) { return local.memory.is_on_device(); })
      .def_ro("writable", &LocalMemory::writable);
  m.def("buffer_handle", &handle_of);
  m.def("contact_of_buffers", &contact_here);
  m.def("introduce_owner", &introduce_owner);
  m.def("memory_of_buffer", &memory_of_buffer);
  m.def("memory_at_address", &memory_at);
  m.def("register_memory", &register_memory);
  m.def("read_only_handle", [](const BufferHandle& handle) { return bulk()->read_only(handle); });
  m.def("drop_buffer_here", &drop_here);
  m.def("buffers_here", [] { return bulk()->buffers(); });
  m.def("bulk_submit", &submit, nb::arg("orders"), nb::arg("seconds"), nb::arg("finish").none(), nb::arg("result").none());
  m.def("read_now", &read_now, nb::arg("handle"), nb::arg("target").none());
  m.def("bulk_explain", &explain);
  // Whether what goes between hosts is enciphered, over how many connections at a time what is large, whether by UCX, and
  // by which NIC.
  m.def("use_streams", [](bool enciphers, uint64_t lanes, bool may_use_ucx, std::string nic) {
    choose_nic(std::move(nic));
    Streams* streams = state().bulk ? state().bulk->streams() : nullptr;
    const auto most = static_cast<uint32_t>(std::min<uint64_t>(lanes, Streams::kLanesMax));
    if (streams != nullptr) streams->use(enciphers, most, may_use_ucx);
  });
  // How many operations, or parts of them, of this process have gone by connections of their own.
  m.def("streamed", [] { return bulk()->streams() == nullptr ? 0 : bulk()->streams()->done(); });
  m.def("has_rdma_device", &has_rdma_device);
  m.def("why_no_ucx", [] {
    const GilRelease without_gil;
    const Status can = UcxEnd::can_be_made();
    return can ? "" : can.error().message;
  });
  m.def("goes_by_link", [](const BufferHandle& handle) { return bulk()->goes_by_link(handle); });
  m.def("writes_itself", [](const BufferHandle& handle) { return bulk()->writes_itself(handle); });
}

}  // namespace monarch
