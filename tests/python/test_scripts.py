"""Every way to run a script, forks of the script and of actors, and actors that start processes and actors."""

import pytest
from script_run import PROLOGUE, WAYS, Run, program

ways = pytest.mark.parametrize("way", WAYS)

WHOLE = (
    PROLOGUE
    + """
class A(Actor):
    @endpoint
    def f(self, x):
        return x + 1
actors = this_host().spawn_procs(per_host={"gpus": 2}).spawn("a", A)
assert list(actors.f.call(1).get().values()) == [2, 2]
print("fine", flush=True)
"""
)


@pytest.mark.feature(74)
@ways
def test_a_file_without_a_main_guard(way):
    assert Run(WHOLE, prologue="", way=way).ok().out == "fine\n"


@pytest.mark.feature(74)
@ways
def test_standard_input(way):
    assert Run(argv=["-"], stdin=WHOLE, way=way).ok().out == "fine\n"


@pytest.mark.feature(74)
@ways
def test_command_line(way):
    assert Run(argv=["-c", WHOLE], way=way).ok().out == "fine\n"


@ways
def test_module(way, tmp_path):
    (tmp_path / "my_program.py").write_text(WHOLE)
    assert Run(argv=["-m", "my_program"], cwd=str(tmp_path), way=way).ok().out == "fine\n"


@ways
def test_a_folder_full_of_names_of_the_standard_library(way, tmp_path):
    for name in ("pickle", "asyncio", "threading", "subprocess", "random", "monarch"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "script.py").write_text(WHOLE)
    assert Run(argv=["scripts/script.py"], cwd=str(tmp_path), way=way).ok().out == "fine\n"


@ways
def test_actors_of_a_module_beside_the_script(way, tmp_path):
    (tmp_path / "my_actors.py").write_text(
        PROLOGUE + "class A(Actor):\n    @endpoint\n    def f(self):\n        return 7\n"
    )
    (tmp_path / "script.py").write_text(
        PROLOGUE + "import my_actors\nprint(this_host().spawn_procs().spawn('a', my_actors.A).f.call_one().get())\n"
    )
    assert Run(argv=[str(tmp_path / "script.py")], way=way).ok().out == "7\n"


def test_inside_pytest(tmp_path):
    body = WHOLE.replace("\nclass", "\ndef test_it(capfd):\n  class").replace("\n    ", "\n      ")
    body = body.replace("\nactors", "\n  actors").replace("\nassert", "\n  assert").replace("\nprint", "\n  print")
    (tmp_path / "test_it.py").write_text(body)
    run = Run(
        argv=["-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "test_it.py")], cwd=str(tmp_path)
    ).ok()
    assert "1 passed" in run.out


@pytest.mark.feature(24, "on every thread", 35, "in any thread of the program")
@ways
def test_first_use_in_another_thread_and_ctrl_c_in_the_main_one(way):
    run = Run("""
class A(Actor):
    @endpoint
    def wait(self):
        print("waiting", flush=True)
        threading.Event().wait()
made = []
thread = threading.Thread(target=lambda: made.append(this_host().spawn_procs().spawn("a", A)))
thread.start()
thread.join()
made[0].wait.call_one().get()
""", way=way)  # fmt: skip
    run.line("waiting")
    run.interrupt()
    run.done(limit=3)
    assert run.err.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_inside_children_of_multiprocessing(method):
    run = Run(program("scripts/inside_children_of_multiprocessing.py"), args=(method,)).ok()
    assert "[2, 2] [2, 2]" in run.out
    assert run.out.count("cleaned up") == 4


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_in_an_actor(method):
    run = Run(f"""
import multiprocessing
class A(Actor):
    @endpoint
    def pool(self):
        with multiprocessing.get_context({method!r}).Pool(2) as pool:
            return pool.map(abs, [-1, -2, -3])
    @endpoint
    def again(self):
        return 1
if __name__ == "__main__":
    actors = this_host().spawn_procs(per_host={{"gpus": 2}}).spawn("a", A)
    for _ in range(2):
        assert list(actors.pool.call().get().values()) == [[1, 2, 3]] * 2
        assert len(actors.again.call().get()) == 2
""").ok()  # fmt: skip
    assert run.out == ""


FORKING = program("scripts/forking.py")


@ways
@pytest.mark.parametrize("use_monarch", [False, True])
def test_fork_in_the_script(way, use_monarch):
    Run(FORKING + f"""
for _ in range(3):
    pid = os.fork()
    if pid == 0:
        child({use_monarch}, [lambda: actors.f.call(), lambda: actors.f.call().get(), lambda: procs.spawn("a", A),
                              lambda: pending.get(), lambda: actors.f.broadcast(), lambda: procs.stop()])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert len(actors.f.call().get()) == 2
    assert len(procs.spawn("b", A).f.call().get()) == 2
assert len(this_host().spawn_procs().spawn("b", A).f.call().get()) == 1
""", way=way).ok(lost="waiting.wait")  # fmt: skip


@ways
@pytest.mark.parametrize("use_monarch", [False, True])
def test_fork_in_an_actor(way, use_monarch):
    Run(FORKING + f"""
for _ in range(3):
    assert list(actors.fork.call({use_monarch}).get().values()) == [7, 7]
    assert len(actors.f.call().get()) == 2
""", way=way).ok(lost="waiting.wait")  # fmt: skip


def test_a_forked_child_that_ends_normally_disturbs_nobody():
    run = Run(FORKING + """
if os.fork() == 0:
    print("child", flush=True)
    sys.exit(0)
os.wait()
assert len(actors.f.call().get()) == 2
print("parent", flush=True)
""").ok(lost="waiting.wait")  # fmt: skip
    assert run.out == "child\nparent\n"


@pytest.mark.feature(64)
@ways
def test_the_death_of_a_worker_whose_forked_child_lives_is_seen(way):
    Run(FORKING + """
class Parent(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def fork(self):
        there, is_there = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.alarm(20)
            os.write(is_there, b".")
            signal.pause()
        os.read(there, 1)  # before that it would end with the group of its parent
        return pid
parent = procs.slice(gpus=slice(0, 1)).spawn("parent", Parent)
pid, child = parent.pid.call_one().get(), parent.fork.call_one().get()
os.kill(pid, signal.SIGKILL)
start = time.monotonic()
try:
    parent.pid.call_one().get()
    raise AssertionError("no error")
except SupervisionError as error:
    assert "sig=9" in str(error) and time.monotonic() - start < 5
os.kill(child, signal.SIGKILL)
""", way=way).ok()  # fmt: skip


def test_subprocesses_of_the_script_are_its_own():
    Run(FORKING + """
for _ in range(20):
    assert subprocess.run(["true"]).returncode == 0
    assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3
assert len(actors.f.call().get()) == 2
""").ok(lost="waiting.wait")  # fmt: skip


def test_what_an_actor_starts_can_be_terminated():
    Run("""
class A(Actor):
    def __init__(self):
        self.sleep = subprocess.Popen(["sleep", "1000"])
    @endpoint
    def f(self):
        for child in (self.sleep, subprocess.Popen(["sleep", "1000"])):
            child.terminate()
            assert child.wait(timeout=5) == -signal.SIGTERM
this_host().spawn_procs().spawn("a", A).f.call_one().get()
""").ok()  # fmt: skip


def test_a_cell_that_is_run_again_changes_what_new_actors_run():
    Run(program("scripts/a_cell_that_is_run_again_changes_what_new_actors_run.py")).ok()


def test_a_module_that_spawns_when_it_is_imported_is_not_spawned_again_and_again(tmp_path):
    tmp_path.joinpath("spawning.py").write_text(
        "from monarch.actor import Actor, endpoint, this_host\n"
        "class W(Actor):\n"
        "    @endpoint\n"
        "    def f(self): pass\n"
        "error = this_host().spawn_procs().spawn('w', W).f.call_one().exception(timeout=20)\n"
    )
    Run(f"""
sys.path.append({str(tmp_path)!r})
from spawning import error
assert "at the top level of the module 'spawning'" in str(error) and "__main__" in str(error), error
""").ok()  # fmt: skip
