// monarch._core: a list of bind_x(m) calls, nothing else.
#include <nanobind/nanobind.h>

#include <cstdlib>

#include "python_api.h"

namespace monarch {
void bind_bulk(nanobind::module_& m);
void bind_frozen(nanobind::module_& m);
void bind_geometry(nanobind::module_& m);
void bind_hosts(nanobind::module_& m);
void bind_room(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);
void bind_stacks(nanobind::module_& m);
}  // namespace monarch

NB_MODULE(_core, m) {
  // Leaks of bound objects are looked for by a test (tests/python/test_leaks.py), not at every exit of every script.
  nanobind::set_leak_warnings(std::getenv("MONARCH_LEAK_CHECK") != nullptr);
  if (!monarch::init_python_api()) throw nanobind::python_error();
  m.doc() = "Native core of monarch.";
  monarch::bind_geometry(m);
  monarch::bind_frozen(m);
  monarch::bind_bulk(m);
  monarch::bind_runtime(m);
  monarch::bind_hosts(m);
  monarch::bind_room(m);
  monarch::bind_stacks(m);
}
