"""The script is lost at a random point of its life: 2 s later nothing of it is left.

54 runs here, 1,080 with ``MONARCH_TEST_LONG=1`` (``make soak``). A failure says its seed, which ``MONARCH_TEST_SEED``
repeats.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from script_run import PROGRAMS, WAYS, Run, marked

LIFE = PROGRAMS / "owner_lost/life.py"
RUNS_EACH = 60 if os.environ.get("MONARCH_TEST_LONG") else 3
LIMIT = 2.0  # from the loss on, for all that there is
HELD_LIMIT = 4.0  # the same, where some waits come one after the other
SPAWNS = ("spawns", "hires", "published")  # lines after which processes are being started

ways = pytest.mark.parametrize("way", WAYS)


@dataclass
class Ending:
    """How a script is lost: what is done to it, and its exit status then."""

    strike: Callable[[Run], None]
    status: int
    terminal: bool = False
    by_itself: bool = False  # after a time that it has been told
    may_say: str = ""  # a regular expression for all that is on stderr then, beside calls that were not answered


def interrupt_twice(run: Run) -> None:
    run.interrupt()
    pause(run, 0.005)
    with contextlib.suppress(ProcessLookupError):
        run.interrupt()


INTERRUPTED = r"Traceback \(most recent call last\):\n(  .*\n|\n)+KeyboardInterrupt\n"
# The second one may come while Python prints the first, or ends, and what it says then it says in words of its own.
INTERRUPTED_TWICE = r"(.*\n)*(KeyboardInterrupt(: )?|lost sys.stderr|  .*|\^C)\n"
BAD = re.compile(r"^(?:[\w.]*(?:Error|Exit|Fatal|Aborted|terminate).*|Exception ignored in: .*monarch.*)", re.MULTILINE)

ENDINGS = {
    "SIGKILL": Ending(Run.kill, -signal.SIGKILL),
    "SIGSEGV": Ending(lambda run: run.kill(signal.SIGSEGV), -signal.SIGSEGV),
    "os._exit": Ending(lambda run: None, 7, by_itself=True),
    "Ctrl-C": Ending(Run.interrupt, -signal.SIGINT, may_say=INTERRUPTED),
    "Ctrl-C twice": Ending(interrupt_twice, -signal.SIGINT, may_say=INTERRUPTED_TWICE),
    "terminal closed": Ending(Run.hang_up, -signal.SIGHUP, terminal=True),
}


def pause(run: Run, seconds: float) -> None:
    """So long, or until the script has ended."""
    pidfd = os.pidfd_open(run.process.pid)
    select.select([pidfd], [], [], seconds)
    os.close(pidfd)


def sockets_of(pids: list[int]) -> set[str]:
    """The inodes of all that these processes hold."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found |= set(re.findall(r"^socket:\[(\d+)\]$", os.readlink(f"/proc/{pid}/fd/{fd}")))
    return found


def open_sockets() -> set[str]:
    found = set()
    for table, column in (("unix", 6), ("tcp", 9), ("tcp6", 9), ("udp", 9), ("udp6", 9)):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{table}") as lines:
            found |= {line.split()[column] for line in lines.readlines()[1:]}
    return found


def lose(way: str, ending: Ending, rng: random.Random, life_s: float) -> None:
    """One run."""
    after = rng.choice(["begins" if ending.may_say else None, *SPAWNS])  # Python's own start does not like Ctrl-C
    moment = rng.uniform(0, 0.03 if after in SPAWNS and not ending.by_itself else life_s)
    run = Run(LIFE, args=(f"{moment}",) if ending.by_itself else (), way=way, terminal=ending.terminal)
    if ending.by_itself:
        moment, after = moment + life_s * 2, None
    elif after is not None:
        run.line(after)
    pause(run, moment)
    sockets = sockets_of(marked(run.mark))
    ending.strike(run)
    struck = time.monotonic()
    run.done(limit=LIMIT)
    while left := sockets & open_sockets():  # the kernel closes them after it has taken their process's memory
        assert time.monotonic() < struck + LIMIT, f"still open: sockets {left}"
        os.sched_yield()
    check_end(run, ending)


def check_end(run: Run, ending: Ending) -> None:
    was_leaving = "leaves" in run.out  # it may have been faster
    assert run.status == ending.status or (was_leaving and run.status == 0), (run.status, run.out, run.err)
    said = re.sub(r"^monarch: the script has ended before .*\n", "", run.err, flags=re.MULTILINE)
    assert not said or re.fullmatch(ending.may_say, said), run.err
    raised = BAD.findall(said)
    assert raised == [], run.err


@ways
@pytest.mark.parametrize("how", ENDINGS)
def test_nothing_is_left_of_a_script_that_is_lost_at_a_random_point(way, how):
    seed = int(os.environ.get("MONARCH_TEST_SEED") or random.SystemRandom().randrange(2**32))
    rng = random.Random(seed)
    life_s = Run(LIFE, way=way).done().seconds
    for number in range(RUNS_EACH):
        try:
            lose(way, ENDINGS[how], rng, life_s)
        except BaseException as error:
            raise AssertionError(f"run {number}, seed {seed}: {error}") from error


HELD = """
class Worker(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

procs = this_host().spawn_procs({"gpus": 2})
workers = procs.spawn("workers", Worker)
one = workers.slice(gpus=0)
pid = one.pid.call_one().get()
print("pid", pid)
"""
# In short sleeps: a signal between Python's look for one and its sleep is seen when the sleep has ended, and if the
# worker answers before it is stopped the signal comes just then.
WAIT = """
one.pid.call_one().get()
while True:
    time.sleep(0.05)
"""
KILL = """
sys.stdin.readline()
os.kill(pid, signal.SIGKILL)
try:
    one.pid.call_one().get(timeout=10)
except SupervisionError as error:
    print("signal", error.signal)
procs.stop().get(timeout=2)
print("stopped")
"""


def hold_with_gdb(pid: int) -> subprocess.Popen[str]:
    """A debugger at its prompt, with the process stopped."""
    gdb = subprocess.Popen(
        ["gdb", "-nx", "-q", "-p", str(pid), "-ex", "echo held\\n"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    while (line := gdb.stdout.readline()) and "held" not in line:
        pass
    assert line, "gdb has ended"
    return gdb


@ways
@pytest.mark.parametrize("lost", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("debugger", [True, False], ids=["gdb", "SIGSTOP"])
def test_a_worker_that_a_debugger_holds_ends_too(way, lost, debugger):
    if debugger and not shutil.which("gdb"):
        pytest.skip("gdb is not here")
    run = Run(HELD + WAIT, way=way)
    pid = int(run.line("pid"))
    gdb = None
    if debugger:
        gdb = hold_with_gdb(pid)
    else:
        os.kill(pid, signal.SIGSTOP)
    try:
        run.kill(lost)
        run.done(limit=HELD_LIMIT)
        assert run.status == -lost and "monarch:" not in run.err, run.err
    finally:
        if gdb is not None:
            gdb.kill()
            gdb.communicate()


@ways
@pytest.mark.skipif(not shutil.which("gdb"), reason="gdb is not here")
def test_a_stop_does_not_wait_for_the_debugger_of_what_is_dead(way):
    run = Run(HELD + KILL, way=way)
    gdb = hold_with_gdb(int(run.line("pid")))
    try:
        run.tell("\n")
        assert run.line("signal") == "9"
        run.line("stopped", limit=5)
        run.ok(limit=5)
    finally:
        gdb.kill()
        gdb.communicate()
