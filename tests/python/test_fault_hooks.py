"""What unhandled_fault_hook and __supervise__ may do wrong, and what the end of a script does about hooks that run."""

import signal
import time

import pytest
from script_run import Run, program

import monarch.actor
from monarch._running import unhandled

SCRIPT = program("supervision/bad_input.py")
FAILS = """
kids = this_host().spawn_procs({"gpus": 2}).spawn("kid", Kid)
kids.slice(gpus=1).fail.broadcast()
"""


def hook(body, kind="def"):
    return (
        SCRIPT + f"import monarch.actor\n{kind} hook(failure):\n    {body}\nmonarch.actor.unhandled_fault_hook = hook\n"
    )


@pytest.mark.feature(67, "one that raises is called once")
@pytest.mark.parametrize(
    ("kind", "body"), [("async def", "pass"), ("def", "yield"), ("async def", "yield")], ids=["async", "gen", "agen"]
)
def test_a_hook_that_would_not_run_is_no_hook_that_deals_with_it(kind, body):
    made = hook(body, kind).replace("hook = hook\n", "hook = lambda failure: hook(failure)\n")
    run = Run(made + FAILS + "time.sleep(60)").done(limit=10)
    assert run.status == 1 and "unhandled_fault_hook must be a plain function" in run.err, run.err
    assert "ValueError: bang" in run.err and "RuntimeWarning" not in run.err


async def a_coroutine(failure): ...


def a_generator(failure):
    yield


@pytest.mark.parametrize("wrong", [5, None, a_coroutine, a_generator])
def test_what_can_be_no_hook_is_refused_where_it_is_assigned(monkeypatch, wrong):
    with pytest.raises(TypeError, match="unhandled_fault_hook must be a (plain )?function"):
        monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", wrong)
    assert monarch.actor.unhandled_fault_hook is monarch.actor.__dict__["unhandled_fault_hook"] is not wrong


@pytest.mark.parametrize(("code", "status"), [("0", 1), ("256", 1), ("7", 7), ("'no more data'", 1)])
def test_no_exit_of_a_hook_is_a_success(code, status):
    run = Run(hook(f"sys.exit({code})") + FAILS + "time.sleep(60)").done(limit=10)
    assert run.status == status, run.err
    assert code != "'no more data'" or "no more data" in run.err


def test_a_report_that_cannot_be_made_stops_the_program_all_the_same():
    run = Run(SCRIPT + """
import monarch.actor
class Bad(Exception):
    def __getattr__(self, name):
        raise OSError("no " + name)
def hook(failure):
    raise Bad()
monarch.actor.unhandled_fault_hook = hook
""" + FAILS + "time.sleep(60)").done(limit=10)  # fmt: skip
    assert run.status == 1 and "bang" in run.err and "Unhandled monarch error" in run.err, run.err


@pytest.mark.feature(67, "replaceable")
def test_the_end_of_a_script_waits_for_a_hook_that_runs_and_calls_it_once():
    body = "print('hook', threading.current_thread().name); begun.set(); sys.stdin.readline(); print('done')"
    run = Run("begun = threading.Event()\n" + hook(body) + FAILS + "begun.wait()")
    run.line("hook monarch-failures")
    run.tell("\n")
    run.ok(limit=10)
    assert run.out.count("hook") == 1 and run.out.endswith("done\n"), run.out


def test_the_end_of_a_script_says_that_it_waits_for_a_hook_and_ctrl_c_ends_that():
    body = "print('hook'); begun.set(); time.sleep(60)"
    run = Run("begun = threading.Event()\n" + hook(body) + FAILS + "begun.wait()")
    run.line("hook")
    text = "monarch: waiting for the unhandled_fault_hook of this program"
    assert text in run.err_line(10, text)
    run.process.send_signal(signal.SIGINT)
    run.done(limit=10)
    assert run.out.count("hook") == 1 and run.status != 0, (run.out, run.err)


def test_a_program_that_has_caught_its_end_is_told_that_nobody_is_asked_any_more():
    run = Run(SCRIPT + FAILS + """
try:
    time.sleep(60)
except SystemExit:
    print("caught")
time.sleep(2.2)
kids.slice(gpus=0).fail.broadcast()
sys.stdin.readline()
""")  # fmt: skip
    run.line("caught")
    text = "monarch: rank 0 of 'kid' has failed: ValueError: bang; nobody is asked"
    assert text in run.err_line(10, text)
    run.tell("\n")
    run.done(limit=10)
    assert run.status == 1


# ---- C code that holds the GIL ----


def held(seconds, fails=FAILS):
    return f"import ctypes\n{fails}ctypes.PyDLL(None).sleep({seconds})\n"


@pytest.mark.feature(67, "ends the program")
def test_c_code_that_keeps_the_gil_holds_up_neither_the_report_nor_the_end():
    run = Run(SCRIPT + held(60)).done(limit=10)
    assert run.status == 1, run.err
    assert run.err.startswith("monarch: ") and "ValueError: bang" in run.err.splitlines()[0], run.err
    assert run.err.count("bang") == 1 and "the program ends with status 1" in run.err, run.err


def test_where_somebody_may_deal_with_it_the_end_waits_for_c_code_and_the_cause_is_said():
    run = Run(hook("print('hook', failure.mesh_name)") + held(4) + "print('went on')").done(limit=20)
    assert run.status == 0 and sorted(run.out.splitlines()) == ["hook kid", "went on"], run.out
    assert "ValueError: bang" in run.err and "the program is told" in run.err, run.err


def test_a_future_that_may_be_looked_at_keeps_the_program_from_its_end():
    fails = FAILS.replace("kids.slice", "future = kids.slice").replace("broadcast", "call_one")
    run = Run(SCRIPT + held(4, fails) + """
try:
    future.get()
except Exception:
    print("caught")
""")  # fmt: skip
    run.ok(limit=20)
    assert run.out.endswith("caught\n"), (run.out, run.err)


# ---- __supervise__ ----

OWNER = (
    SCRIPT
    + """
import monarch.actor
faults = []
monarch.actor.unhandled_fault_hook = faults.append
class Owner(Actor):
    def __init__(self):
        self.kids = this_host().spawn_procs({"gpus": 2}).spawn("kid", Kid)
    @endpoint
    async def mesh(self):
        return self.kids
    async def __supervise__(self, failure):
        %s
owner = this_host().spawn_procs().spawn("owner", Owner)
owner.mesh.call_one().get().slice(gpus=1).fail.broadcast()
until(lambda: faults)
print(faults[0].mesh_name, "|", faults[0].report())
"""
)


@pytest.mark.feature(66)
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("task = asyncio.ensure_future(asyncio.sleep(60)); task.cancel(); await task", "CancelledError"),
        ("raise asyncio.CancelledError('by hand')", "by hand"),
        ("return type('Bad', (), {'__bool__': lambda self: 1 / 0})()", "division by zero"),
    ],
    ids=["awaits what was cancelled", "raises it", "an answer without a truth"],
)
def test_a_supervise_that_fails_in_whatever_way_climbs(body, words):
    run = Run(OWNER % body).ok()
    assert run.out.startswith("owner |") and words in run.out and "bang" in run.out, run.out


@pytest.mark.parametrize("seen", [True, False])
def test_the_main_thread_ends_in_order_though_the_first_signal_for_it_went_by(seen):
    """As one that comes between Python's look for signals and the sleep that follows it."""
    spawn, fail = FAILS.strip().splitlines()
    lost = "" if seen else "signal.sigwait({number}); signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})"
    run = Run(SCRIPT + f"""
{spawn}
number = next(n for n in range(signal.SIGRTMAX, signal.SIGRTMIN, -1) if signal.getsignal(n) != signal.SIG_DFL)
if not {seen}: signal.pthread_sigmask(signal.SIG_BLOCK, {{number}})
{fail}
{lost}
try: time.sleep(60)
finally:
    time.sleep(0.2)
    print("in order")
""").done(limit=10)  # fmt: skip
    assert run.status == 1 and "ValueError: bang" in run.err and "in order" in run.out, (run.out, run.err)


def test_a_wait_for_the_end_of_patience_is_none_for_ever_though_it_has_ended_by_now():
    looked = time.monotonic() - 1
    held = [unhandled._Held(None, None, looked + 0.001)]
    assert unhandled._seconds_left(held, looked) == 0
    assert unhandled._seconds_left(held, looked + 0.002) is None
