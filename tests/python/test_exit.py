"""However a script ends, nothing of it is left: no process, no file, no traceback that is not the user's."""

import os
import random
import select
import signal
import time

import pytest
from script_run import PROLOGUE, WAYS, Run, ended, program

ways = pytest.mark.parametrize("way", WAYS)

WORKERS = program("exit/workers.py")

ENDINGS = {
    "end": ("", 0, ""),
    "sys.exit(3)": ("sys.exit(3)", 3, ""),
    "exit with text": ("sys.exit('so long')", 1, "so long\n"),
    "os._exit(4)": ("os._exit(4)", 4, ""),
    "stopped": ("procs.stop().get()", 0, ""),
}


@pytest.mark.feature(38, "nothing is left running", 60)
@ways
@pytest.mark.parametrize("ending", ENDINGS)
def test_ending(way, ending):
    code, status, err = ENDINGS[ending]
    run = Run(WORKERS + code, way=way).done()
    assert (run.status, run.err) == (status, err)


@ways
def test_an_exception_of_the_script_is_all_that_it_prints(way):
    run = Run(WORKERS + "raise KeyError('mine')", way=way).done()
    assert run.status == 1
    lines = run.err.splitlines()
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "KeyError: 'mine'")
    assert "monarch/" not in run.err and run.err.count("Traceback") == 1


@pytest.mark.feature(38, 60)
@ways
@pytest.mark.parametrize(
    "code",
    [
        "print('there', flush=True)\nthreading.Event().wait()",
        "f = workers.wait.call()\nprint('there', flush=True)\nf.get()",
        "async def main():\n    f = workers.wait.call()\n    print('there', flush=True)\n    await f\n"
        "asyncio.run(main())",
    ],
    ids=["outside", "in get()", "in await"],
)
def test_ctrl_c(way, code):
    run = Run(WORKERS + code, way=way)
    run.line("there")
    run.interrupt()
    run.done(limit=3)
    assert run.status == -signal.SIGINT
    assert run.err.rstrip().endswith("KeyboardInterrupt")
    assert run.err.count("Traceback (most") == (2 if "await" in code else 1)  # asyncio shows where it was cancelled


@pytest.mark.feature(24)
def test_ctrl_c_can_be_caught_and_the_mesh_used_on():
    run = Run(WORKERS + """
f = workers.wait.call()
try:
    print("there", flush=True)
    f.get()
except KeyboardInterrupt:
    others = this_host().spawn_procs(per_host={"gpus": 2}).spawn("others", Worker)
    print("answers", len(others.pid.call().get()))
""")  # fmt: skip
    run.line("there")
    run.line("waiting")
    run.interrupt()
    assert run.line("answers") == "2"
    run.ok(lost="worker.wait")


def test_ctrl_c_ends_a_script_also_while_the_runtime_starts():
    """What is imported at the end then, for the first time, does not make Python forget it."""
    run = Run("""
from monarch._meshes import controllers
def interrupted():
    raise KeyboardInterrupt
controllers.offer = interrupted
this_host().spawn_procs()
""").done()
    assert (run.status, run.err.splitlines()[-1]) == (-signal.SIGINT, "KeyboardInterrupt")


@pytest.mark.parametrize("way", ["fork", "exec"])
def test_ctrl_c_does_not_reach_who_is_being_started(way):
    """A process is of its parent's group, for a moment, before it has one of its own."""
    Run(program("exit/ctrl_c_does_not_reach_who_is_being_started.py"), way=way).ok()


def test_ctrl_c_twice_during_the_exit():
    run = Run(WORKERS + "import atexit\natexit.register(print, 'leaving')\nworkers.spin.call()\n")
    run.line("leaving")
    run.interrupt()
    run.interrupt()
    run.done(limit=3)
    assert "monarch/" not in run.err


@pytest.mark.feature(38)
def test_ctrl_c_ends_a_script_whose_reader_has_paused():
    run = Run(WORKERS + """
class Talker(Actor):
    @endpoint
    def talk(self):
        print("x" * 60000, flush=True)

import atexit
talker = this_host().spawn_procs().spawn("talker", Talker)
for _ in range(3):  # one in the reader's pipe, one under way, one in the worker's pipe
    talker.talk.call_one().get()
atexit.register(os.write, 2, b"leaving\\n")
""")  # fmt: skip
    run.err_line(30, "leaving")
    assert not ended(run.process.pid, time.monotonic() + 1)  # it waits for the reader
    run.interrupt()
    assert ended(run.process.pid, time.monotonic() + 10)
    run.done(limit=3)
    assert (run.status, run.err) == (-signal.SIGINT, "leaving\n")


@pytest.mark.feature(38, 60)
@ways
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_signal_ends_the_script_and_all_that_its_workers_started(way, number):
    run = Run(
        WORKERS + "workers.start_sleeps.call().get()\nprint('there', flush=True)\nworkers.spin.call().get()", way=way
    )
    run.line("there")
    run.kill(number)
    run.done(limit=2)
    assert (run.status, run.err) == (-number, "")


@pytest.mark.feature(38, 60)
@ways
@pytest.mark.parametrize("ending", ["", "procs.stop().get()\nprint('stopped', flush=True)", "os._exit(0)"])
def test_what_workers_started_ends_with_them(way, ending):
    run = Run(WORKERS + "workers.start_sleeps.call().get()\n" + ending, way=way).ok()
    assert run.out == ("stopped\n" if "stop()" in ending else "")


@pytest.mark.feature(60)
def test_a_worker_that_dies_takes_with_it_what_it_started():
    run = Run(WORKERS + program("exit/a_worker_that_dies_takes_with_it_what_it_started.py")).ok()
    assert run.out == "ended True\n"


@pytest.mark.feature(38, "a script ends though its workers are busy")
@ways
@pytest.mark.parametrize(("busy", "line"), [("spin", "spinning"), ("block", "blocking"), ("wait", "waiting"),
                                            ("await_forever", "awaiting")])  # fmt: skip
def test_a_busy_worker_does_not_hold_up_the_end(way, busy, line):
    run = Run(WORKERS + f"f = workers.{busy}.call()\nsys.stdin.readline()\n", way=way)
    run.line(line)
    run.tell("\n")
    run.ok(limit=3, lost=f"worker.{busy}")


PHASES = PROLOGUE.replace("\n", "\nprint('a', flush=True)\n", 1) + program("exit/phases.py")


@pytest.mark.feature(38, 60)
@ways
@pytest.mark.parametrize("phase", "abcdefghij")
def test_killed_as_soon_as_it_gets_to(way, phase):
    run = Run(PHASES, prologue="", way=way)
    run.line(phase)
    run.kill()
    run.done(limit=5)
    assert "Traceback" not in run.err


@pytest.mark.feature(38, 60)
@ways
def test_killed_at_a_random_moment(way):
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    longest = Run(PHASES, prologue="", way=way).ok().seconds
    for _ in range(10):
        moment = rng.uniform(0, longest)
        run = Run(PHASES, prologue="", way=way)
        pidfd = os.pidfd_open(run.process.pid)
        select.select([pidfd], [], [], moment)
        os.close(pidfd)
        run.kill()
        run.done(limit=5)
        assert "Traceback" not in run.err, f"killed after {moment:.3f} s, seed {seed}"


@pytest.mark.feature(38, 60)
@ways
def test_an_end_right_after_a_spawn(way):
    run = Run("procs = this_host().spawn_procs(per_host={'gpus': 4})\n", way=way).ok(limit=10)
    assert run.out == ""


def test_a_thread_of_the_script_that_spawns_does_not_disturb_its_end():
    """The end frees what starts processes while the thread, which nobody asks, is at it."""
    for _ in range(4):
        run = Run(program("exit/a_thread_of_the_script_that_spawns_does_not_disturb_its_end.py")).done()
        assert (run.status, run.err) == (5, "")


def test_threads_of_the_script_that_wait_do_not_disturb_its_end():
    run = Run(WORKERS + """
for _ in range(4):
    threading.Thread(target=lambda: workers.wait.call().get(), daemon=True).start()
local = this_proc().spawn("local", Worker)
local.pid.call_one().get()
""").ok(limit=5)  # fmt: skip
    assert run.out.count("waiting") <= 8


@pytest.mark.parametrize(("busy", "line"), [("spin", "spinning"), ("wait", "waiting"), ("await_forever", "awaiting")])
def test_a_busy_actor_in_the_script_itself_does_not_disturb_its_end(busy, line):
    for _ in range(3):
        run = Run(WORKERS + f"""
this_proc().spawn("local", Worker).{busy}.broadcast()
this_proc().spawn("other", Worker).pid.call_one().get()
sys.stdin.readline()
sys.exit(5)
""")  # fmt: skip
        run.line(line)
        run.tell("\n")
        run.done(limit=5)
        lost = f"monarch: the script has ended before a broadcast to local.{busy} was handled\n"
        assert (run.status, run.err) == (5, lost)


def test_monarch_after_its_end_says_so():
    run = Run(program("exit/monarch_after_its_end_says_so.py")).ok(lost="a.forever")
    assert run.out == "True\n" * 4


@pytest.mark.feature(82)
def test_output_of_workers_is_whole_and_in_order():
    run = Run(program("exit/output_of_workers_is_whole_and_in_order.py")).ok()
    assert run.out == "".join(f"[procs] line {i}\n" for i in range(1000)) + "[procs] half\n"


def test_output_is_not_doubled_by_a_fork_in_an_actor():
    run = Run("""
class Forker(Actor):
    @endpoint
    def fork(self):
        print("once", end="")
        pid = os.fork()
        if pid == 0:
            sys.stdout.flush()
            os._exit(0)
        return os.waitpid(pid, 0)[1]
assert this_host().spawn_procs().spawn("p", Forker).fork.call_one().get() == 0
""").ok()  # fmt: skip
    assert run.out == "[procs] once\n"


def test_messages_to_processes_that_ended_a_little_earlier_are_no_failures():
    Run(program("exit/messages_to_processes_that_ended_a_little_earlier_are_no_failures.py")).ok()
