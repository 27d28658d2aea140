"""Idle processes burn nothing, and the reactor never takes the GIL."""

import pytest
from script_run import WAYS, Run

# CPU time as the scheduler counts it, in ns, of every thread of a process: /proc/<pid>/stat counts ticks of 10 ms.
IDLE = """
import gc, select
def cpu_ns(pid):
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total
class A(Actor):
    @endpoint
    def pids(self):
        return os.getpid(), os.getppid()
    @endpoint
    def rest(self):
        threading.Event().wait()
class B(A):
    @endpoint
    async def nap(self):
        await asyncio.Event().wait()
procs = this_host().spawn_procs(per_host={"gpus": 2})
actors, others = procs.spawn("a", A), procs.spawn("b", B)
pids = set()
for found in (actors.pids.call().get(), others.pids.call().get()):
    pids |= {pid for pair in found.values() for pid in pair} - {os.getpid()}
for _ in range(100):
    actors.pids.call().get(), others.pids.call().get()
def quiet(seconds):
    select.select([], [], [], seconds)
def check():
    quiet(1)
    before = {pid: cpu_ns(pid) for pid in pids}
    own = time.process_time_ns()  # within the looks at the others, which are not idle time
    quiet(1)
    own = time.process_time_ns() - own
    used = {pid: (cpu_ns(pid) - before[pid]) / 1e6 for pid in pids} | {os.getpid(): own / 1e6}
    assert all(ms < 1 for ms in used.values()), used
"""


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
    Run("""
from monarch import _core
class A(Actor):
    @endpoint
    def taken(self):
        return _core.gil_taken_by_reactor()
    @endpoint
    async def nested(self, other):
        return await other.taken.call_one()
    @endpoint
    def die(self):
        os._exit(1)
procs = this_host().spawn_procs(per_host={"gpus": 3})
actors = procs.spawn("a", A)
for _ in range(50):
    assert set(actors.taken.call().get().values()) == {0}
async def main():
    for _ in range(50):
        await actors.slice(gpus=0).nested.call_one(actors.slice(gpus=1))
asyncio.run(main())
actors.slice(gpus=2).die.broadcast()
try:
    while True:
        actors.taken.call().get()
except SupervisionError:
    pass
assert set(actors.slice(gpus=slice(0, 2)).taken.call().get().values()) == {0}
procs.stop().get()
assert _core.gil_taken_by_reactor() == 0
""").ok()  # fmt: skip


@pytest.mark.feature(18, "a held GIL does not stop the runtime")
def test_the_reactor_answers_while_python_is_busy():
    """A worker that keeps the GIL in C dies when it is told to, and its peers' deaths reach it."""
    run = Run("""
import ctypes
class A(Actor):
    @endpoint
    def hold_the_gil(self):
        print("holding", flush=True)
        ctypes.PyDLL(None).sleep(1000)
    @endpoint
    def f(self):
        return 1
procs = this_host().spawn_procs(per_host={"gpus": 2})
actors = procs.spawn("a", A)
actors.f.call().get()
pending = actors.slice(gpus=0).hold_the_gil.call_one()
sys.stdin.readline()
assert actors.slice(gpus=1).f.call_one().get(timeout=5) == 1
""")  # fmt: skip
    run.line("holding")
    run.tell("\n")
    run.ok(limit=3, lost="a.hold_the_gil")
