"""Idle processes burn nothing, and the reactor never takes the GIL."""

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
