"""A worker that is stopped ends as an interpreter does: threads, atexit, files, destructors of globals."""

import pytest
from script_run import Run

MODULE = """
import atexit, os, sys, threading, time
from monarch.actor import Actor, endpoint

class Noisy:
    def __init__(self, name): self.name = name
    def __del__(self): print("gone", self.name, flush=True)

of_module = Noisy("global")
_private = Noisy("private")
atexit.register(print, "atexit", flush=True)

class A(Actor):
    def __init__(self, folder):
        global opened
        opened = open(os.path.join(folder, "global.txt"), "w")
        opened.write("of a global")
        self.file = open(os.path.join(folder, "actor.txt"), "w")
        self.file.write("of an actor")
    @endpoint
    def f(self):
        return os.getpid()
    @endpoint
    def start(self, kind):
        global pool
        if kind == "pool":
            from concurrent.futures import ThreadPoolExecutor
            pool = ThreadPoolExecutor(1)
            pool.submit(print, "in the pool", flush=True).result()
        elif kind == "thread":
            def work():
                while not ended.is_set():
                    ended.wait()
                print("joined", flush=True)
            threading.Thread(target=work, daemon=False).start()
            atexit_of_threads(ended.set)
        elif kind == "daemon":
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        elif kind == "for ever":
            threading.Thread(target=threading.Event().wait, daemon=False).start()
        elif kind == "stuck atexit":
            atexit.register(threading.Event().wait)

ended = threading.Event()
def atexit_of_threads(function):
    threading.Timer(0.05, function).start()
"""
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
