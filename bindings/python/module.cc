// monarch._core: a list of bind_x(m) calls, nothing else.
#include <nanobind/nanobind.h>

namespace monarch {
void bind_geometry(nanobind::module_& m);
}

NB_MODULE(_core, m) {
  m.doc() = "Native core of monarch.";
  monarch::bind_geometry(m);
}
