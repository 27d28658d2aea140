// monarch._core: a list of bind_x(m) calls, nothing else.
#include <nanobind/nanobind.h>

namespace monarch {
void bind_geometry(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);
}  // namespace monarch

NB_MODULE(_core, m) {
  m.doc() = "Native core of monarch.";
  monarch::bind_geometry(m);
  monarch::bind_runtime(m);
}
