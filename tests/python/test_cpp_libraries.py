"""Libraries of C++ actors where a process does not find them: they are known by their content, and sent."""

import os
import shutil
from pathlib import Path

import pytest
from script_run import WAYS, Run

LIBRARY = Path(__file__).parents[2] / "build" / "release" / "examples" / "libcounters.so"
BEGIN = """
import os
from monarch import cpp
from monarch.actor import Actor, SupervisionError, attach_to_workers, endpoint, this_host
library = os.environ["LIBRARY"]

class Worker(Actor):
    @endpoint
    def maps(self):
        with open("/proc/self/maps") as maps:
            return sorted({line.split()[-1] for line in maps if "libcounters" in line})

    @endpoint
    def spawn(self, procs, cls):
        return procs.spawn("counters", cls, 3)

    @endpoint
    def load(self, path):
        return cpp.load(path).Counter

def error_of(mesh):
    try:
        mesh.add.call(1).get(timeout=20)
    except SupervisionError as error:
        return str(error)
    raise AssertionError("it has been made")
"""
HOSTS = (
    BEGIN
    + """
import sys
hosts = attach_to_workers(workers=sys.argv[1:])
"""
)
LOAD_AND_REMOVE = """
counters = cpp.load(library)
os.unlink(library)
"""


@pytest.fixture
def library(tmp_path):
    return shutil.copy(LIBRARY, tmp_path / "libcounters.so")


def run_on(daemons, library, text):
    daemons[0].run(text, *daemons[1:], begin=HOSTS, env={"LIBRARY": str(library)}).ok()


def test_one_that_no_host_has_is_sent(daemons, library):
    run_on(daemons, library, LOAD_AND_REMOVE + """
procs = hosts.spawn_procs({"gpus": 2})
meshes = [procs.spawn("counters", counters.Counter, start) for start in range(5)]
for start, mesh in enumerate(meshes):
    assert mesh.add.call(1).get(timeout=20).values() == [start + 1] * 4
for names in procs.spawn("worker", Worker).maps.call().get().values():
    assert names == ["(deleted)"], names  # memory, and no file
hosts.stop().get()
""")  # fmt: skip
    assert os.listdir(library.parent) == []


def test_who_is_given_a_class_spawns_it_anywhere(daemons, library):
    run_on(daemons, library, LOAD_AND_REMOVE + """
worker = hosts.slice(hosts=0).spawn_procs().spawn("worker", Worker)
mesh = worker.spawn.call_one(hosts.spawn_procs(), counters.Counter).get(timeout=20)
assert mesh.add.call(1).get(timeout=20).values() == [4, 4]
""")  # fmt: skip


def test_a_file_with_the_same_content_is_taken(daemons, library):
    run_on(daemons, library, """
counters = cpp.load(library)
procs = hosts.spawn_procs()
assert procs.spawn("counters", counters.Counter, 1).add.call(1).get().values() == [2, 2]
for names in procs.spawn("worker", Worker).maps.call().get().values():
    assert names == [library], names
""")  # fmt: skip


def test_a_file_with_another_content_is_not_taken(daemons, library):
    run_on(daemons, library, """
counters = cpp.load(library)
with open(library + ".new", "w") as file:
    file.write("no library")
os.replace(library + ".new", library)
mesh = hosts.spawn_procs().spawn("counters", counters.Counter, 1)
assert mesh.add.call(1).get(timeout=20).values() == [2, 2]
""")  # fmt: skip


def test_a_process_that_runs_another_build_says_so(library):
    Run(BEGIN + """
procs = this_host().spawn_procs()
old = cpp.load(library).Counter
assert procs.spawn("counters", old, 1).add.call_one(1).get() == 2
with open(library, "rb") as file:
    content = file.read()
with open(library + ".new", "wb") as file:
    file.write(content + b"another build")
os.replace(library + ".new", library)
new = this_host().spawn_procs().spawn("worker", Worker).load.call_one(library).get()
others = this_host().spawn_procs()
assert others.spawn("counters", new, 1).add.call_one(1).get() == 2
for mesh in procs.spawn("counters2", new, 1), others.spawn("counters2", old, 1):
    assert "this process runs another build of the C++ actor class 'Counter' than " in error_of(mesh), error_of(mesh)
""", env={"LIBRARY": str(library)}).ok()  # fmt: skip


def test_one_that_was_written_into_since_is_refused(library):
    run = Run(BEGIN + """
counters = cpp.load(library)
with open(library, "ab") as file:
    file.write(b"more")
error = error_of(this_host().spawn_procs().spawn("counters", counters.Counter, 1))
assert f"the library {library} has changed since it was loaded" in error, error
""", env={"LIBRARY": str(library)})  # fmt: skip
    run.ok()


def test_who_has_loaded_it_may_have_ended(library):
    run = Run(BEGIN + """
loader = this_host().spawn_procs(name="loader")
Counter = loader.spawn("worker", Worker).load.call_one(library).get()
os.unlink(library)
assert loader.spawn("counters", Counter, 1).add.call_one(1).get() == 2
assert this_host().spawn_procs().spawn("counters", Counter, 1).add.call_one(1).get() == 2
loader.stop("it is not needed").get()
error = error_of(this_host().spawn_procs().spawn("counters", Counter, 1))
assert f"the library {library} is not on this host" in error and "stopped: it is not needed" in error, error
""", env={"LIBRARY": str(library)})  # fmt: skip
    run.ok()


@pytest.mark.parametrize("way", WAYS)
def test_on_this_machine_too(library, way):
    run = Run(BEGIN + LOAD_AND_REMOVE + """
procs = this_host().spawn_procs({"gpus": 2})
mesh = procs.spawn("counters", counters.Counter, 1)
assert mesh.add.call(1).get().values() == [2, 2]
procs.slice(gpus=0).spawn("again", counters.Counter, 1).mean.call_one([1.0, 2.0]).get()
""", way=way, env={"LIBRARY": str(library)})  # fmt: skip
    run.ok()
