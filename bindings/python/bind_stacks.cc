#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>

#include "future.h"
#include "gil.h"
#include "monarch/base/system.h"
#include "monarch/host/stacks/crash_handler.h"
#include "monarch/host/stacks/symbols.h"
#include "monarch/host/stacks/thread_stacks.h"
#include "monarch/host/start/life.h"
#include "stacks.h"
#include "state.h"

namespace nb = nanobind;

namespace monarch {

void write_stacks_of_python() {
  static bool done = false;
  const int signal = ThreadStacks::signal_number();
  if (signal == 0 || std::exchange(done, true)) return;
  UniqueFd text = sys::make_memfd("monarch-stacks", 0);
  if (!text) return;
  try {
    nb::object enroll = nb::module_::import_("faulthandler").attr("register");
    enroll(signal, text.get(), nb::arg("all_threads") = false);
    ThreadStacks::add_writer(std::move(text));
  } catch (const nb::python_error&) {  // an interpreter without it
  }
}

void note_crashes_of_python(LastWords& left, int record) {
  UniqueFd text = sys::duplicate(record);
  try {
    nb::module_ faulthandler = nb::module_::import_("faulthandler");
    if (nb::cast<bool>(faulthandler.attr("is_enabled")())) {
      text.reset();
    } else if (text) {
      faulthandler.attr("enable")(text.get(), nb::arg("all_threads") = false);
    }
  } catch (const nb::python_error&) {  // an interpreter without it
    text.reset();
  }
  note_crashes(left, text.release(), static_cast<long>(kLifeBytes + offsetof(LastWords, language)));
}

namespace {

// -> Future of make(list): for each node what it has answered (host/stacks/process_stacks.h), or why not as text.
nb::object take_stacks(const std::vector<NodeId>& nodes, double limit_seconds, nb::object make) {
  ProcessRuntime* here = require_machine("stacks");
  if (here == nullptr || !require_descriptors()) throw nb::python_error();
  auto call = [&] {
    GilRelease release;
    return here->ask_stacks(nodes, static_cast<int64_t>(std::min(limit_seconds, 1e9) * 1e9));
  }();
  PyObject* future = new_future(std::move(call), FutureMode::kStacks, 0, make.ptr());
  if (future == nullptr) throw nb::python_error();
  return nb::steal(future);
}

}  // namespace

void bind_stacks(nb::module_& m) {
  m.def("take_stacks", &take_stacks);
  m.def("function_names", [](const std::string& path, const std::vector<uint64_t>& offsets) {
    GilRelease release;
    return function_names(path, offsets);
  });
}

}  // namespace monarch
