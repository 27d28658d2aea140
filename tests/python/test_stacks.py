"""dump_stacks(): what all processes are doing, whatever they do."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from monarch._values import stack_report
from monarch._values.stack_report import Frame, Process, StackReport, Thread, code_places, read_process
from monarch.actor import Actor, DeadlineExceeded, deadline, dump_stacks, endpoint, this_host
from monarch.actor import StackReport as PublicReport

HERE = os.path.basename(__file__)


# ---- Reading and grouping, of made-up answers ----


def thread(name="monarch-actor", number=2, state="S", frames=(), code=(), taken=True):
    """As the core gives it. ``frames``: (file, line, function), outermost first."""
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in reversed(frames)]
    text = "Stack (most recent call first):\n" + ("\n".join(lines) or "  <no Python frame>") + "\n"
    return number, name, state, "futex_do_wait", taken, text, list(code)


def answer(*threads, actors=(), modules=("",), pid=1):
    return pid, list(threads), list(modules), list(actors)


def read(rank, found, names=None):
    return read_process("procs", rank, found, names or {})


def waiting(rank, line, doing="step"):
    stack = thread(frames=[("train.py", 10, "step"), ("train.py", line, "reduce")])
    return read(rank, answer(stack, actors=[(2, "trainer", rank, doing, [])]))


def test_processes_that_wait_at_the_same_lines_are_one_group_and_the_odd_one_is_named():
    report = StackReport([waiting(rank, 40) for rank in range(31)] + [waiting(31, 52)])
    assert [len(group) for group in report.groups] == [31, 1]
    assert report.groups[1] == ["rank 31 of procs"]
    assert str(report) == (
        "stacks of 32 processes, most recent call last\n"
        "ranks 0-30 of procs:\n"
        "  actor trainer, endpoint step:\n"
        '    File "train.py", line 10, in step\n'
        '    File "train.py", line 40, in reduce\n'
        "rank 31 of procs (pid 1):\n"
        "  actor trainer, endpoint step:\n"
        '    File "train.py", line 10, in step\n'
        '    File "train.py", line 52, in reduce'
    )


def test_processes_that_compute_in_one_function_are_alike_wherever_they_are_in_it():
    stacks = [
        [("train.py", 10, "step"), ("train.py", 20, "forward")],
        [("train.py", 12, "step"), ("train.py", 30, "backward"), ("train.py", 33, "inner")],
    ]
    report = StackReport(
        read(rank, answer(thread(state="R", frames=frames), actors=[(2, "trainer", rank, "step", [])]))
        for rank, frames in enumerate(stacks)
    )
    assert str(report).splitlines()[1:] == [
        "ranks 0-1 of procs:",
        "  actor trainer, endpoint step, running:",
        '    File "train.py", lines 10-12, in step',
        "    ... and from there each its own way",
    ]


def test_the_endpoint_tells_processes_apart():
    report = StackReport([waiting(0, 40, "step"), waiting(1, 40, "save")])
    assert len(report.groups) == 2


def test_frames_of_the_runtime_and_of_the_interpreter_around_the_users_are_left_out():
    package = os.path.dirname(sys.modules["monarch"].__file__)
    loop = [("<string>", 6, "<module>"), (f"{package}/_programs/worker.py", 45, "_run")]
    library = [("/usr/lib/python3.11/threading.py", 995, "_bootstrap")]
    assert read(0, answer(thread(frames=loop))).threads == ()
    assert read(0, answer(thread(frames=library))).threads == ()
    kept = read(0, answer(thread(frames=[*library, ("a.py", 1, "work"), ("/usr/lib/python3.11/queue.py", 2, "get")])))
    assert [frame.function for frame in kept.threads[0].frames] == ["work", "get"]
    packages = read(0, answer(thread(frames=[("/usr/lib/python3.11/site-packages/torch/x.py", 1, "work")])))
    assert packages.threads[0].frames[0].function == "work"
    script = read(0, answer(thread(frames=[("<string>", 6, "<module>")])))
    assert len(script.threads[0].frames) == 1


def test_native_functions_are_those_that_the_innermost_frame_of_python_has_called():
    functions = ["clock_nanosleep", "time_sleep", "cfunction_vectorcall_O", "_PyEval_EvalFrameDefault", "main"]
    code = [value for place in range(5) for value in (1, place)]
    found = answer(thread(frames=[("a.py", 1, "work")], code=code), modules=["", "libpython.so"])
    assert code_places([found, "dead", (1, "T", "")]) == {"libpython.so": {0, 1, 2, 3, 4}}
    names = {"libpython.so": dict(enumerate(functions))}
    assert read(0, found, names).threads[0].native == ("time_sleep", "clock_nanosleep")
    assert read(0, found).threads[0].native == ()


def test_a_thread_that_waits_for_the_gil_counts_as_running():
    found = answer(thread(frames=[("a.py", 1, "work")], code=[1, 0]), modules=["", "lib"])
    assert read(0, found, {"lib": {0: "take_gil"}}).threads[0].running
    assert not read(0, found).threads[0].running


def test_who_does_not_answer_is_named_with_what_is_known():
    report = StackReport(
        [
            read(0, "Killed(sig=9) (rank 0, pid 12)"),
            read(1, (4711, "T", "do_signal_stop")),
            read(2, (4712, "D", "nfs_wait")),
            read(3, (-1, "?", "")),
            read(4, (4713, "D", "nfs_wait")),
        ]
    )
    assert str(report).splitlines()[1:] == [
        "ranks 2, 4 of procs: held in the kernel, in nfs_wait",
        "rank 0 of procs: Killed(sig=9) (rank 0, pid 12)",
        "rank 1 of procs (pid 4711): stopped by a signal",
        "rank 3 of procs: does not answer",
    ]


def test_threads_of_a_process_that_do_the_same_are_merged_as_ranks_are():
    waiting = [
        thread(number=3 + at, name=f"w{at:02}", frames=[("a.py", 7, "wait"), ("a.py", 3, "run")]) for at in range(50)
    ]
    report = StackReport([read(rank, answer(thread(frames=[("a.py", 1, "main")]), *waiting)) for rank in range(2)])
    lines = str(report).splitlines()
    assert "  50 threads: thread w00; thread w01; thread w02 and 47 more:" in lines
    assert len(lines) == 7, lines


def test_threads_that_cannot_be_asked_say_so():
    actors = [(2, "trainer", 0, "step", [])]
    report = StackReport([read(0, answer(thread(taken=False), actors=actors))])
    assert "  actor trainer, endpoint step: cannot be asked, it waits in futex_do_wait" in str(report)


def test_endpoints_that_are_awaited_and_constructors_are_told():
    actors = [(2, "a", 0, "", ["fetch", "fetch"]), (3, "b", 0, "__init__", [])]
    report = StackReport([read(0, answer(thread(), thread(number=3, frames=[("b.py", 1, "__init__")]), actors=actors))])
    assert "  actor a, awaits in fetch" in str(report).splitlines()
    assert "  actor b, constructor:" in str(report).splitlines()


def test_members_of_several_meshes_and_the_script_make_one_group():
    idle = [Process("a", rank, 1, "") for rank in (0, 1, 3)] + [Process("b", None, 1, ""), Process("", None, 1, "")]
    assert str(StackReport(idle)).splitlines()[1] == "ranks 0-1, 3 of a and b and the script: idle"
    assert repr(StackReport(idle)) == "<StackReport of 5 processes in 1 groups>"
    assert PublicReport is StackReport
    assert Thread("", False, "", True, (Frame("", 0, ""),), ()).frames[0].line == 0


# ---- Real processes ----


class Busy(Actor):
    """Does something that hangs, in many ways."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def compute(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            pass

    @endpoint
    def wait_for_lock(self) -> None:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    @endpoint
    def hold_gil(self) -> None:
        re.match(r"(a+)+b", "a" * 64)

    @endpoint
    async def answer(self) -> int:
        return 17


class HangsInConstructor(Actor):
    """Is never there."""

    def __init__(self) -> None:
        threading.Event().wait()

    @endpoint
    def answer(self) -> None: ...


def wait_for_report(mesh, wanted, seconds=20.0):
    """The first report that says ``wanted``: what was asked for has begun."""
    ends = time.monotonic() + seconds
    while True:
        text = str(dump_stacks(mesh).get())
        if re.search(wanted, text) or time.monotonic() > ends:
            assert re.search(wanted, text), text
            return text


@pytest.fixture(scope="module")
def procs():
    with this_host().spawn_procs({"gpus": 3}, name="procs") as mesh:
        yield mesh


def test_idle_processes_are_idle(procs):
    procs.spawn("busy", Busy).pid.call().get()
    report = dump_stacks(procs).get()
    assert str(report) == "stacks of 3 processes, most recent call last\nranks 0-2 of procs: idle"
    assert report.groups == [["rank 0 of procs", "rank 1 of procs", "rank 2 of procs"]]


@pytest.mark.parametrize(
    "method, wanted",
    [
        ("compute", rf'endpoint compute, running:\n    File ".*{HERE}", line \d+, in compute'),
        ("wait_for_lock", rf'endpoint wait_for_lock:\n    File ".*{HERE}", line \d+, in wait_for_lock'),
        ("hold_gil", rf'endpoint hold_gil, running:\n    File ".*{HERE}", line \d+, in hold_gil'),
    ],
)
def test_an_actor_that_hangs_is_reported_with_where(method, wanted):
    with this_host().spawn_procs({"gpus": 2}, name="procs") as mesh:
        busy = mesh.spawn("busy", Busy)
        busy.pid.call().get()
        getattr(busy.slice(gpus=1), method).call(*((60,) if method == "compute" else ()))
        text = wait_for_report(busy, wanted)
        assert "rank 0 of busy (pid" in text
        assert re.search(r"rank 1 of busy \(pid \d+\):\n  actor busy, ", text)
        mesh._kill().get()


def test_a_constructor_that_hangs_is_reported(procs):
    with this_host().spawn_procs(name="alone") as mesh:
        mesh.spawn("never", HangsInConstructor)
        wait_for_report(mesh, rf'alone \(pid \d+\):\n  actor never, constructor:\n    File ".*{HERE}", .*, in __init__')
        mesh._kill().get()


def test_native_functions_are_named():
    with this_host().spawn_procs() as mesh:
        mesh.spawn("busy", Busy).wait_for_lock.call()
        assert "in C: lock_PyThread_acquire_lock" in wait_for_report(mesh, "endpoint wait_for_lock")
        mesh._kill().get()


class Deep(Actor):
    """Makes frames all the time: CPython has half of one ready when it is interrupted, sooner or later."""

    @endpoint
    def run(self) -> None:
        def down(depth: int) -> int:
            return down(depth - 1) + 1 if depth else sum(each for each in range(3))

        while True:
            down(30)


def test_nobody_dies_of_being_asked():
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        mesh.spawn("deep", Deep).run.broadcast()
        wait_for_report(mesh, "in down")
        for _ in range(1500):  # the first died after some 700
            text = str(dump_stacks(mesh).get())
            assert "Segmentation" not in text, text
        mesh._kill().get()


def test_stopped_and_dead_processes_are_named_and_hold_nobody_up():
    with this_host().spawn_procs({"gpus": 3}, name="procs") as mesh:
        busy = mesh.spawn("busy", Busy)
        pids = list(busy.pid.call().get().values())
        os.kill(pids[1], signal.SIGSTOP)
        os.kill(pids[2], signal.SIGKILL)
        with pytest.raises(Exception, match="Killed"):
            busy.slice(gpus=2).pid.call().get()
        begun = time.monotonic()
        text = str(dump_stacks(mesh, timeout=10).get())
        assert time.monotonic() - begun < 5
        assert f"rank 0 of procs (pid {pids[0]}): idle" in text
        assert f"rank 1 of procs (pid {pids[1]}): stopped by a signal" in text
        assert re.search(r"rank 2 of procs: .*Killed\(sig=9\)", text)
        os.kill(pids[1], signal.SIGCONT)
        assert "ranks 0-1 of procs: idle" in str(dump_stacks(mesh).get())


def test_without_meshes_the_script_and_all_that_it_has_spawned(procs):
    text = str(dump_stacks().get())
    assert "of procs" in text and "the script (pid" in text
    assert f'{HERE}"' in text


def test_meshes_of_hosts_stand_for_what_was_spawned_there(procs):
    host = this_host()
    with host.spawn_procs({"gpus": 2}, name="there") as there:
        there.initialized.get()
        text = str(dump_stacks(host).get())
        # One may be ending what has set it up.
        assert text.startswith("stacks of 2 processes") and " of there" in text and "of procs" not in text


def test_what_is_no_mesh_is_refused():
    with pytest.raises(TypeError, match="takes meshes of actors, processes or hosts, not 3"):
        dump_stacks(3)
    with pytest.raises(ValueError, match="positive"):
        dump_stacks(timeout=0)


def test_an_actor_may_ask_for_stacks_of_others_and_await_them(procs):
    assert procs.slice(gpus=0).spawn("asker", Asker).ask.call_one(procs).get() == ["ranks 1-2 of procs: idle"]


class Asker(Actor):
    """Asks."""

    @endpoint
    async def ask(self, procs) -> list[str]:
        return str(await dump_stacks(procs.slice(gpus=slice(1, 3)))).splitlines()[1:]


def test_faulthandler_of_the_users_goes_on_working():
    program = (
        "import faulthandler, os, signal, sys\n"
        "from monarch.actor import dump_stacks\n"
        "faulthandler.register(signal.SIGUSR1, file=sys.stdout, all_threads=False)\n"
        "faulthandler.enable()\n"
        "print(dump_stacks().get())\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "faulthandler.dump_traceback(sys.stdout)\n"
        "faulthandler.unregister(signal.SIGUSR1)\n"
        "print(dump_stacks().get())\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and ran.stderr == ""
    assert ran.stdout.count('File "<string>", line') == 4


# ---- Deadlines ----


class Waits(Actor):
    """Is asked for what does not come."""

    @endpoint
    async def forever(self, odd: bool) -> None:
        if odd:
            threading.Event().wait(60)

    @endpoint
    async def own(self, other) -> str:
        try:
            with deadline(1.2):
                await other.forever.call_one(True)
        except DeadlineExceeded as error:
            return str(error.stacks)
        return ""


def test_a_call_past_its_deadline_says_what_those_did_who_had_not_answered():
    with this_host().spawn_procs({"gpus": 3}, name="procs") as mesh:
        waits = mesh.spawn("waits", Waits)
        waits.forever.call(False).get()
        waits.slice(gpus=1).forever.broadcast(True)
        with pytest.raises(DeadlineExceeded) as raised:
            waits.forever.options(deadline=1.2).call(False).get()
        report = str(raised.value.stacks)
        assert raised.value.stacks.groups == [["rank 1 of waits"]]
        assert re.search(rf'File ".*{HERE}", line \d+, in forever', report), report
        assert report in raised.value.__notes__
        mesh._kill().get()


def test_an_actor_that_waits_for_another_is_told_too():
    with this_host().spawn_procs({"gpus": 2}, name="procs") as mesh:
        waits = mesh.spawn("waits", Waits)
        waits.forever.call(False).get()
        assert "in forever" in waits.slice(gpus=0).own.call_one(waits.slice(gpus=1)).get()
        mesh._kill().get()


def test_short_deadlines_and_calls_that_are_answered_take_no_stacks(procs):
    busy = procs.spawn("busy", Busy)
    busy.pid.options(deadline=5).call().get()
    with pytest.raises(DeadlineExceeded) as raised:
        busy.slice(gpus=0).compute.options(deadline=0.2).call_one(0.5).get()
    assert raised.value.stacks is None


# ---- SIGQUIT ----

HANGS = """
import os, signal, sys, threading
{before}
from monarch.actor import Actor, Channel, endpoint, this_host

class Hangs(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def wait(self, begun):
        begun.send(None)
        threading.Event().wait()

if __name__ == "__main__":
    hangs = this_host().spawn_procs({{"gpus": 3}}).spawn("hangs", Hangs)
    hangs.pid.call().get()
    begun, has_begun = Channel.open()
    hangs.slice(gpus=1).wait.broadcast(begun)
    has_begun.recv().get()
    print("ready", flush=True)
    {then}
    print("went on", flush=True)
"""


class Script:
    """One that hangs, of which SIGQUIT is to say where."""

    def __init__(self, tmp_path, then, before="") -> None:
        path = tmp_path / "hangs.py"
        path.write_text(HANGS.format(then=then, before=before))
        self.process = subprocess.Popen(
            [sys.executable, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "ready\n"

    def quit(self) -> None:
        """Until something is printed: while a report is made, another one is not asked for."""
        ready: list = []
        while not ready:
            self.process.send_signal(signal.SIGQUIT)
            ready, _, _ = select.select([self.process.stderr, self.process.stdout], [], [], 5)

    def read_report(self) -> str:
        """To the line of the script itself and its frame."""
        lines = []
        while not (lines and 'File "' in lines[-1] and any("the script" in line for line in lines)):
            lines.append(self.process.stderr.readline())
            assert lines[-1], lines
        return "".join(lines)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate("go\n", timeout=60)
        return self.process.returncode, out, err


def test_sigquit_prints_what_all_do_and_the_script_goes_on(tmp_path):
    script = Script(tmp_path, "sys.stdin.readline()")
    for _ in range(3):
        script.quit()
        report = script.read_report()
        assert "ranks 0, 2 of procs: idle" in report and "rank 1 of procs (pid" in report
        # What waits runs, for a moment, where a signal has just interrupted it.
        assert re.search("actor hangs, endpoint wait(, running)?:", report) and "in wait" in report, report
        assert re.search(
            r'the script \(pid \d+\):\n  main thread(, running)?:\n    File ".*hangs.py", line \d+, in <module>', report
        )
    status, out, _ = script.end()
    assert (status, out) == (0, "went on\n")


def test_sigquit_while_the_script_waits_for_an_answer_or_computes(tmp_path):
    script = Script(tmp_path, "hangs.slice(gpus=1).pid.call().get()")
    script.quit()
    assert "in C: a wait for an answer" in script.read_report() + script.process.stderr.readline()
    script.process.kill()
    script.end()
    script = Script(tmp_path, "x = 1\n    while x: x += 1")
    script.quit()
    assert "main thread, running:" in script.read_report()
    script.process.kill()
    script.end()


def test_sigquit_while_c_code_of_the_script_holds_the_gil_shows_its_own_threads(tmp_path):
    script = Script(tmp_path, "import re; re.match(r'(a+)+b', 'a' * 64)")
    script.quit()
    text = script.process.stderr.readline()
    assert "somebody holds the GIL in C" in text
    while "hangs.py" not in text:
        text = script.process.stderr.readline()
        assert text
    script.process.kill()
    script.end()


def test_c_code_that_has_taken_the_gil_from_a_report_that_waits_is_shown_too(tmp_path):
    before = """
import re
import monarch.actor
from monarch._meshes import stacks
waits = threading.Event()
stacks.report = lambda: (waits.set(), threading.Event().wait())
"""
    script = Script(tmp_path, "waits.wait(); re.match(r'(a+)+b', 'a' * 64)", before)
    script.process.send_signal(signal.SIGQUIT)
    assert "somebody holds the GIL in C" in script.process.stderr.readline()
    script.process.kill()
    script.end()


def test_a_handler_of_the_scripts_own_stays(tmp_path):
    handler = "signal.signal(signal.SIGQUIT, lambda *_: print('mine', flush=True))"
    script = Script(tmp_path, "sys.stdin.readline()", handler)
    script.quit()
    assert script.process.stdout.readline() == "mine\n"
    assert script.end()[:2] == (0, "went on\n")
    script = Script(tmp_path, f"{handler}; print('set', flush=True); sys.stdin.readline()")  # one that comes later
    assert script.process.stdout.readline() == "set\n"
    script.quit()
    assert script.process.stdout.readline() == "mine\n"
    assert script.end()[:2] == (0, "went on\n")


def test_a_child_that_the_script_forks_dies_of_sigquit_as_ever(tmp_path):
    # When its "ready" has been read: what comes with that would be lost to communicate().
    then = "sys.stdin.readline()\n    pid = os.fork()\n    "
    then += "if pid == 0: os.kill(os.getpid(), signal.SIGQUIT); os._exit(3)\n    "
    script = Script(tmp_path, then + "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))")
    status, out, err = script.end()
    assert (status, out) == (0, f"{-signal.SIGQUIT}\nwent on\n")
    assert "stacks of" not in err


@pytest.mark.parametrize("known", [True, False])
def test_a_wait_is_one_also_where_local_symbols_are_not_known(known):
    outer = ["monarch::(anonymous namespace)::wait_in_line", "monarch::(anonymous namespace)::future_get"]
    functions = ["syscall", "monarch::Driver::sleep_as_leader", "monarch::Driver::wait", "monarch::wait_for"]
    functions += [*(outer if known else ["", ""]), "PyObject_Vectorcall", "_PyEval_EvalFrameDefault"]
    assert stack_report._native(functions) == ("a wait for an answer",)
    functions[-3] = "monarch::(anonymous namespace)::endpoint_broadcast"
    assert stack_report._native(functions) == ("Monarch's own code",)


def test_who_asks_is_shown_without_the_inside_of_this_package():
    code = (
        "from monarch.actor import dump_stacks, this_host\n"
        "this_host().spawn_procs().initialized.get()\n"
        "print(dump_stacks().get())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout
    assert re.search("in C: (a wait for an answer|Monarch's own code)\n", told) and "nanobind" not in told, told
