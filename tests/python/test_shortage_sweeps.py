"""One system call after the other fails for want of something, in the script or in a worker, in all that users do.

Each attempt ends well or with an exception that names what was short; it hangs on nothing, takes nobody for dead, and
leaves no process and no descriptor. Only some of the calls are tried, all of them with ``MONARCH_TEST_LONG=1``
(``make soak``).
"""

import os

import pytest
from script_run import Run

STEP = 1 if os.environ.get("MONARCH_TEST_LONG") else 8

TOOLS = f"""
import base64, cloudpickle, faulthandler, gc, pickle
import numpy as np
from monarch import _core
from monarch._runtime import runtime
faulthandler.dump_traceback_later(100, exit=True)  # where it hangs
STEP = {STEP}
LIMIT = 20
SIZE = 3 << 20
SHORT = ("out of file descriptors", "No space left on device", "Cannot allocate memory", "Too many references",
         "Resource temporarily unavailable")
LIES = ("exited with", "Killed", "has ended", "closed the connection", "does not answer", "not there")
def told(act):
    '''Whether it went well; an exception names the shortage.'''
    try:
        act()
    except Exception as error:
        assert any(each in str(error) for each in SHORT), repr(error)
        assert not any(each in str(error) for each in LIES), repr(error)
        return False
    return True
def descriptors():
    return len(os.listdir("/proc/self/fd"))
class Worker(Actor):
    @endpoint
    def add(self, a, b):
        return a + b
    @endpoint
    def total(self, array):
        return int(array.sum())
    @endpoint
    def ones(self, count):
        return np.ones(count, np.uint8)
    @endpoint
    def fail(self, nth):
        _core.fail_nth_system_call(nth)
    @endpoint
    def seen(self):
        return _core.system_calls_seen()
def spawn():
    procs = this_host().spawn_procs(per_host={{"gpus": 2}})
    return procs, procs.spawn("worker", Worker)
def call(workers):
    assert list(workers.add.call(1, 2).get(timeout=LIMIT).values()) == [3, 3]
def send_large(workers):
    assert list(workers.total.call(np.ones(SIZE, np.uint8)).get(timeout=LIMIT).values()) == [SIZE, SIZE]
    assert [len(each) for each in workers.ones.call(SIZE).get(timeout=LIMIT).values()] == [SIZE, SIZE]
def stop(procs):
    procs.stop().get(timeout=LIMIT)
def connected():
    procs, workers = spawn()
    call(workers)
    return procs, workers
def check(workers):
    call(workers)
    send_large(workers)
"""

SWEEP = """
def sweep(act, fresh=connected, where="script"):
    nth, before = 1, None
    while True:
        procs, workers = fresh()
        if where == "script":
            _core.fail_nth_system_call(nth)
            told(lambda: act(procs, workers))
            seen = _core.system_calls_seen()
            _core.fail_nth_system_call(0)
        else:
            workers.fail.call(nth).get(timeout=LIMIT)
            told(lambda: act(procs, workers))
            seen = max(workers.seen.call().get(timeout=LIMIT).values()) if act is not end else nth
            workers.fail.call(0).get(timeout=LIMIT) if act is not end else None
        if procs is not None and act is not end:
            check(workers)
        if procs is not None:
            stop(procs)
        another, others = connected()
        stop(another)
        del procs, workers, another, others
        gc.collect()
        before = before or descriptors()
        deadline = time.monotonic() + LIMIT
        while descriptors() > before:
            assert time.monotonic() < deadline, (nth, before, descriptors())
            os.sched_yield()
        if seen < nth or (act is end and nth > 8):
            return
        nth += STEP if nth > 8 else 1
def begin(procs, workers):
    new, workers = connected()
    stop(new)
def end(procs, workers):
    stop(procs)
nothing = lambda: (None, None)
"""

SWEEPS = {
    "spawn": 'sweep(begin, fresh=nothing)',
    "call": 'sweep(lambda procs, workers: call(workers), fresh=spawn)',
    "actor in a worker": 'sweep(lambda procs, workers: call(procs.spawn("other", Worker)), where="worker")',
    "large": 'sweep(lambda procs, workers: send_large(workers))',
    "large in a worker": 'sweep(lambda procs, workers: send_large(workers), where="worker")',
    "stop": 'sweep(end)',
    "stop in a worker": 'sweep(end, where="worker")',
}  # fmt: skip


@pytest.mark.parametrize("what", SWEEPS)
def test_any_one_call_that_fails_is_waited_out_or_told(what):
    run = Run(TOOLS + SWEEP + "stop(connected()[0])\n" + SWEEPS[what] + "\n").done(limit=110)
    assert run.status == 0, run.err
    assert "is lost" not in run.err


def test_a_runtime_that_cannot_start_says_what_it_is_short_of_and_may_start_later():
    """Also the first spawn, with all that comes with it: as many scripts as it takes, since each starts one runtime."""
    first = 1
    while first:
        run = Run(TOOLS + f"""
nth = {first}
while True:
    _core.fail_nth_system_call(nth)
    well = told(lambda: call(spawn()[1]))
    seen = _core.system_calls_seen()
    _core.fail_nth_system_call(0)
    if _core.has_runtime():
        break
    nth += 1
call(spawn()[1])
print("next", nth + (STEP if nth > 27 else 1) if seen >= nth else 0)
""").done()  # fmt: skip
        assert run.status == 0, run.err
        assert "is lost" not in run.err
        first = int(run.line("next"))


JOB = (
    TOOLS
    + """
procs, workers = connected()
print("handle", base64.b64encode(cloudpickle.dumps(workers)).decode(), flush=True)
for command in sys.stdin:
    if command.strip() == "stop":
        break
    where, nth = command.split()
    nth = int(nth)
    if where == "script":
        _core.fail_nth_system_call(nth)
    else:
        workers.fail.call(nth).get(timeout=LIMIT)
    print(f"armed {where} {nth}", flush=True)
    sys.stdin.readline()
    seen = [_core.system_calls_seen()]
    if where == "worker":
        seen = list(workers.seen.call().get(timeout=LIMIT).values())
        workers.fail.call(0).get(timeout=LIMIT)
    _core.fail_nth_system_call(0)
    check(workers)
    print(f"seen {where} {nth}: {max(seen)}", flush=True)
"""
)

GUEST = (
    TOOLS
    + """
def visit():
    check(pickle.loads(base64.b64decode(os.environ["HANDLE"])))
runtime.ensure(processes=False)
nth = int(os.environ["NTH"])
_core.fail_nth_system_call(nth)
well = told(visit)
print("seen", _core.system_calls_seen())
_core.fail_nth_system_call(0)
assert well or nth
visit()
"""
)


def visit(handle: str, nth: int) -> int:
    run = Run(GUEST, env={"HANDLE": handle, "NTH": str(nth)}).done(limit=60)
    assert run.status == 0, run.err
    return int(run.line("seen"))


def test_any_one_call_that_fails_in_a_guest_is_waited_out_or_told():
    job = Run(JOB)
    handle = job.line("handle ")
    nth, seen = 1, 1
    while seen >= nth:
        seen = visit(handle, nth)
        nth += min(STEP, 2)
    job.tell("stop\n")
    assert job.ok().status == 0


@pytest.mark.parametrize("where", ["script", "worker"])
def test_any_one_call_that_fails_in_who_is_visited_hinders_no_guest(where):
    job = Run(JOB)
    handle = job.line("handle ")
    nth, seen = 1, 1
    while seen >= nth:
        job.tell(f"{where} {nth}\n")
        job.line(f"armed {where} {nth}")
        visit(handle, 0)
        job.tell("\n")
        seen = int(job.line(f"seen {where} {nth}: "))
        nth += min(STEP, 2)
    job.tell("stop\n")
    assert job.done().status == 0, job.err
