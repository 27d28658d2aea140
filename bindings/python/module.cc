// monarch._core: a list of bind_x(m) calls, nothing else.
#include <nanobind/nanobind.h>

NB_MODULE(_core, m) { m.doc() = "Native core of monarch."; }
