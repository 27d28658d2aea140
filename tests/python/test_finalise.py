"""A worker that is stopped ends as an interpreter does: threads, atexit, files, destructors of globals."""

import pytest
from script_run import Run, program

MODULE = program("finalise/module.py")
PROGRAM = """
import sys
from my_actors import A
procs = this_host().spawn_procs()
actor = procs.spawn("a", A, sys.argv[1])
actor.f.call_one().get()
if len(sys.argv) > 2:
    actor.start.call_one(sys.argv[2]).get()
procs.stop().get(timeout=20)
print("stopped", flush=True)
"""


@pytest.fixture
def run(tmp_path):
    def run(*kind, way="fork", env=None):
        (tmp_path / "my_actors.py").write_text(MODULE)
        (tmp_path / "script.py").write_text("from monarch.actor import *\n" + PROGRAM)
        argv = [str(tmp_path / "script.py"), str(tmp_path), *kind]
        return Run(argv=argv, way=way, env=env).ok()

    return run


@pytest.mark.parametrize("way", ["fork", "exec"])
def test_a_stopped_process_is_finalised(run, tmp_path, way):
    lines = run(way=way).out.splitlines()
    of_worker = [line.removeprefix("[procs] ") for line in lines if line.startswith("[procs] ")]
    assert of_worker == ["atexit", "gone private", "gone global"]
    assert (tmp_path / "global.txt").read_text() == "of a global"
    assert (tmp_path / "actor.txt").read_text() == "of an actor"


def test_pools_and_threads_that_are_no_daemons_are_joined(run):
    assert run("pool").out.splitlines()[:2] == ["[procs] in the pool", "[procs] atexit"]
    assert run("thread").out.splitlines()[:2] == ["[procs] joined", "[procs] atexit"]


def test_files_are_written_while_a_daemon_still_runs(run, tmp_path):
    out = run("daemon").out
    assert "atexit" in out and "gone global" not in out  # its thread may use it
    assert (tmp_path / "global.txt").read_text() == "of a global"


@pytest.mark.parametrize("kind", ["for ever", "stuck atexit"])
def test_who_takes_too_long_is_ended_all_the_same(run, kind):
    limits = {"HYPERACTOR_CLEANUP_TIMEOUT": "100ms", "HYPERACTOR_PROCESS_EXIT_TIMEOUT": "300ms"}
    assert "stopped" in run(kind, env=limits).out


def test_what_is_defined_in_the_script_is_finalised_too(tmp_path):
    run = Run(f"""
class Noisy:
    def __del__(self):
        print("gone", flush=True)
class A(Actor):
    @endpoint
    def f(self):
        global opened, noisy
        noisy = Noisy()
        opened = open({str(tmp_path / "file.txt")!r}, "w")
        opened.write("of the script")
procs = this_host().spawn_procs()
procs.spawn("a", A).f.call_one().get()
procs.stop().get(timeout=20)
""").ok()  # fmt: skip
    assert run.out == "[procs] gone\n" and (tmp_path / "file.txt").read_text() == "of the script"


def test_odd_entries_among_the_modules_do_no_harm():
    Run("""
class A(Actor):
    @endpoint
    def f(self):
        class Odd(type(sys)):
            def __getattr__(self, name):
                raise RuntimeError(name)
        sys.modules["odd"], sys.modules["none"] = Odd("odd"), None
procs = this_host().spawn_procs()
procs.spawn("a", A).f.call_one().get()
procs.stop().get(timeout=20)
""").ok()  # fmt: skip
