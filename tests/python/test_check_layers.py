"""tools/check_layers.py finds each kind of violation, and only those."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LAYERS = "set(MONARCH_LAYERS base loop wire net actor mesh host)\n"


def check(root: Path, files: dict[str, str]) -> tuple[int, str]:
    for path, text in {"src/monarch/CMakeLists.txt": LAYERS, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    checker = [sys.executable, str(ROOT / "tools/check_layers.py"), str(root)]
    done = subprocess.run(checker, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("path", "line", "expected"),
    [
        ("src/monarch/wire/frame.h", '#include "monarch/net/link.h"', "layer wire may not use net"),
        ("src/monarch/wire/frame.h", "#include <monarch/net/link.h>", "layer wire may not use net"),
        ("src/monarch/wire/frame_test.cc", '#include "monarch/net/link.h"', "layer wire may not use net"),
        ("src/monarch/wire/frame.cc", '#include "../net/link.h"', "from the root of the tree"),
        ("src/monarch/wire/frame.cc", '#include "frame.h"', '"monarch/wire/frame.h"'),
        ("src/monarch/mesh/cast.cc", '#include "monarch/net/internal/ring.h"', "private to their layer"),
        ("bindings/python/mesh.cc", '#include "monarch/net/internal/ring.h"', "private to their layer"),
        ("src/monarch/actor/mailbox.cc", '#include "monarch/testing/sim.h"', "nothing that ships uses testing"),
        ("src/monarch/actor/mailbox.h", "#include <gtest/gtest.h>", "only *_test.cc"),
        ("src/monarch/actor/mailbox.cc", "#include <Python.h>", "knows nothing of Python"),
        ("src/monarch/testing/sim.cc", "#include <nanobind/nanobind.h>", "knows nothing of Python"),
        ("src/monarch/extra/thing.h", '#include "monarch/base/ids.h"', "layer extra is unknown"),
        ("bindings/python/mesh.cc", "nb::gil_scoped_release release;", "bindings/python/gil.*"),
        ("bindings/python/mesh.cc", "auto s = PyGILState_Ensure();", "bindings/python/gil.*"),
        ("src/monarch/loop/timer.cc", "auto t = std::chrono::steady_clock::now();", "base/clock.*"),
        ("src/monarch/loop/timer.cc", "clock_gettime(CLOCK_MONOTONIC, &t);  // why", "base/clock.*"),
        ("src/monarch/actor/mailbox.cc", "const int64_t now_ns = monotonic_ns();", "take a Clock& or Timers&"),
        ("src/monarch/net/shm/shm_ring.cc", "if (cpu_ticks() < x) return;", "take a Clock& or Timers&"),
        ("src/monarch/net/new.cc", "UniqueFd fd(eventfd(0, EFD_CLOEXEC));", "goes through sys::"),
        ("src/monarch/net/new.cc", "void* page = mmap(nullptr, 1, 2, 3, 4, 0);", "goes through sys::"),
        ("src/monarch/net/new.cc", "int fd = ::open(path, O_RDONLY);", "goes through sys::"),
        ("bindings/python/wake.cc", "int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);", "goes through sys::"),
        ("src/monarch/net/new.cc", "#include <immintrin.h>", "arch::pause()"),
        ("src/monarch/net/new_test.cc", "__builtin_ia32_pause();", "arch::pause()"),
        ("src/monarch/net/new.cc", "#if defined(__x86_64__)", "arch::pause()"),
        ("bindings/python/wake.cc", 'asm volatile("yield");', "arch::pause()"),
        (
            "src/monarch/host/output/pump.cc",
            '#include "monarch/actor/node.h"',
            "room host/output may use base, loop, wire",
        ),
        ("src/monarch/host/output/pump.cc", '#include "monarch/host/start/process.h"', "not host/start"),
        ("src/monarch/host/output/pump_test.cc", '#include "monarch/host/host.h"', "not host"),
        ("src/monarch/net/inproc/inproc_link.h", '#include "monarch/net/shm/ring.h"', "not net/shm"),
        ("src/monarch/host/attic/thing.h", '#include "monarch/base/ids.h"', "room host/attic is unknown"),
    ],
)
def test_a_violation_is_named_with_its_place(tmp_path, path, line, expected):
    status, output = check(tmp_path, {path: f'// url "http://x" /* here\n/* two\nlines */\n{line}\n'})
    assert status == 1
    assert f"{path}:4: " in output
    assert expected in output


def test_what_the_rules_allow_passes(tmp_path):
    status, output = check(
        tmp_path,
        {
            "src/monarch/net/link.cc": (
                '#include "monarch/net/link.h"\n#include "monarch/net/internal/ring.h"\n'
                '#include "monarch/base/ids.h"\n#include <time.h>\n#include <openssl/evp.h>\n'
            ),
            "src/monarch/net/link_test.cc": (
                '#include <gtest/gtest.h>\n#include "monarch/testing/sim.h"\nstd::chrono::steady_clock::now();\n'
            ),
            "src/monarch/testing/sim.h": '#include "monarch/host/host.h"\n#include <gtest/gtest.h>\n',
            "src/monarch/host/start/spawn.cc": (
                '#include "monarch/host/start/spawn.h"\n#include "monarch/host/output/output_route.h"\n'
                '#include "monarch/net/shm/shm_transport.h"\n'
            ),
            "src/monarch/host/output/pump_test.cc": '#include "monarch/testing/home.h"\n',
            "src/monarch/host/whole.cc": '#include "monarch/host/start/process.h"\n#include "monarch/actor/node.h"\n',
            "src/monarch/net/shm/ring.cc": '#include "monarch/net/link.h"\n#include "monarch/net/internal/x.h"\n',
            "src/monarch/actor/mailbox.cc": '#include "monarch/actor/internal/x.h"\nauto fd = sys::accept(one);\n',
            "src/monarch/actor/mailbox_test.cc": "monotonic_ns(); eventfd(0, 0);\n",
            "src/monarch/loop/reactor.cc": "monotonic_ns(); sys::make_eventfd(); eventfd_write(fd, 1); port->open();\n",
            "src/monarch/base/system.cc": "return ::socket(1, 2, 3);\n",
            "src/monarch/base/arch_x86_64.h": "#include <emmintrin.h>\n_mm_sfence();\n",
            "src/monarch/base/clock.cc": "clock_gettime(CLOCK_MONOTONIC, &t);\n",
            "src/monarch/base/ids.h": '// never steady_clock::now(), nor #include "monarch/net/link.h"\n',
            "bindings/python/gil.cc": "PyGILState_Ensure();\n",
            "bench/.venvs/peer/lib/not_ours.cc": '#include "monarch/net/internal/x.h"\n',
            "bindings/python/module.cc": '#include "gil.h"\n#include <Python.h>\n#include "monarch/host/host.h"\n',
        },
    )
    assert (status, output) == (0, "check_layers: clean\n")


def test_this_tree_is_clean():
    done = subprocess.run([sys.executable, str(ROOT / "tools/check_layers.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
