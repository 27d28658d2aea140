"""Idle processes burn nothing, and the reactor never takes the GIL."""

import re

import pytest
from script_run import WAYS, Run, program

# CPU time as the scheduler counts it, in ns, of every thread of a process: /proc/<pid>/stat counts ticks of 10 ms.
IDLE = program("idle/idle.py")


@pytest.mark.parametrize("way", WAYS)
def test_idle_processes_burn_no_cpu(way):
    Run(IDLE + "check()", way=way).ok()


@pytest.mark.parametrize("way", ["fork", "unix"])
def test_waiting_for_ever_burns_no_cpu(way):
    Run(IDLE + """
waiter = threading.Thread(target=lambda: actors.rest.call().get(), daemon=True)
waiter.start()
others.nap.call()
check()
""", way=way).ok(lost="b.nap")  # fmt: skip


def test_what_is_supervised_and_replaceable_burns_no_cpu():
    """32 processes with an owner and a restart policy, of which one has been replaced."""
    run = Run(IDLE + """
import signal
from monarch.actor import Restart, SupervisionError
class Owner(A):
    @endpoint
    def spawn(self):
        self.procs = this_host().spawn_procs(per_host={"gpus": 32})
        return self.procs.options(restart=Restart(times=3)).spawn("owned", A)
    def __supervise__(self, failure):
        return True
owned = this_host().spawn_procs().spawn("owner", Owner).spawn.call_one().get()
victim, _ = owned.slice(gpus=1).pids.call_one().get()
os.kill(victim, signal.SIGKILL)
found = None
while found is None or (victim in {pid for pid, _ in found}):
    try:
        found = owned.pids.call().get().values()
    except SupervisionError:
        quiet(0.01)
pids |= {pid for pair in found for pid in pair} - {os.getpid()}
print(len({pid for pid, _ in found}), flush=True)
check()
""").done()  # fmt: skip
    assert (run.status, run.out) == (0, "32\n"), run.err
    assert re.fullmatch(r".*rank 1 of 'owned' has failed .* and is made anew: 1 of 3 times .*\n", run.err), run.err


def test_a_script_that_waits_in_its_main_thread_burns_next_to_nothing():
    Run(IDLE + """
def watch():
    quiet(1)
    before = cpu_ns(os.getpid())
    quiet(1)
    print((cpu_ns(os.getpid()) - before) / 1e6 < 5, flush=True)
    os._exit(0)
threading.Thread(target=watch).start()
actors.rest.call().get()
""").ok()  # fmt: skip


@pytest.mark.feature(18, "a held GIL does not stop the runtime", 35, "not on threads of the runtime")
def test_the_reactor_never_takes_the_gil():
    """Calls, deaths, stops, time-outs and an event loop's completions: all of the control path."""
    Run(program("idle/the_reactor_never_takes_the_gil.py")).ok()


@pytest.mark.feature(18, "a held GIL does not stop the runtime")
def test_the_reactor_answers_while_python_is_busy():
    """A worker that keeps the GIL in C dies when it is told to, and its peers' deaths reach it."""
    run = Run(program("idle/the_reactor_answers_while_python_is_busy.py"))
    run.line("holding")
    run.tell("\n")
    run.ok(limit=3, lost="a.hold_the_gil")
