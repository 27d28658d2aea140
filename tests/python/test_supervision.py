"""Who is told when something fails: its owner, by ``__supervise__``, then the owner of that, in the end the program."""

import os
import re
import signal
import time

import pytest
from script_run import Run, program

import monarch.actor
from monarch.actor import Actor, MeshFailure, SupervisionError, context, current_rank, endpoint, this_host

LIMIT = 20
SCRIPT = program("supervision/owners.py")
ways = pytest.mark.parametrize("way", ["fork", "exec", "unix"])
OWNERS = ["SyncOwner", "AsyncOwner", "MixedOwner", "SwarmOwner"]


# ---- __supervise__ ----


@pytest.mark.feature(
    65, "once for each failed rank", "the owner goes on", 63, "a fault at the owner", 70, "a fault at the owner"
)
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("how", ["signal", "exit", "broadcast", "abort", "constructor"])
def test_a_hook_is_asked_once_for_each_failed_rank_and_the_owner_goes_on(owner, how):
    run = Run(SCRIPT + f"""
owner = make_owner({owner}, True)
owner.fail.call_one({how!r}, [1]).get()
seen = told(owner, 2 if {how!r} in ("signal", "exit") else 1)
kid = seen[0]
assert kid[:3] == ("kid", [1], (1,)) and "{{'gpus': 1/2}}" in kid[3], kid
if len(seen) == 2:
    assert seen[1][:3] == ("kids", [1], (1,)), seen[1]
assert owner.healthy.call_one().get() == [0]
owner.fail.call_one("broadcast", [0]).get()
again = told(owner, len(seen) + 1)[len(seen):]
assert [failure[:2] for failure in again] == [("kid", [0])], again
""").ok()  # fmt: skip
    assert run.err == ""


@pytest.mark.parametrize(("how", "what"), [
    ("signal", "killed by signal 9"), ("exit", "exited with code 3"), ("broadcast", "ValueError: bang"),
])  # fmt: skip
@pytest.mark.parametrize("answer", ["False", "'raise'"])
def test_the_kind_of_what_has_climbed_is_that_of_who_has_failed_of_it(how, what, answer):
    Run(SCRIPT + f"""
import monarch.actor
faults = []
monarch.actor.unhandled_fault_hook = faults.append
owner = make_owner(SyncOwner, {answer})
owner.fail.call_one({how!r}, [1]).get()
until(lambda: faults)
of = {{False: "what it owns has failed: {what}", "raise": "RuntimeError: no way"}}[{answer}]
assert faults[0].mesh_name == "owner" and faults[0].kind == of, faults[0].kind
""").ok()  # fmt: skip


@pytest.mark.feature(66, "climbs one level", "errors are chained")
@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("answer", ["False", "None", "0", "'raise'"])
def test_what_an_owner_does_not_deal_with_climbs_one_level(owner, answer):
    run = Run(SCRIPT + f"""
import monarch.actor
faults = []
monarch.actor.unhandled_fault_hook = faults.append
owner = make_owner({owner}, {answer})
owner.fail.call_one("signal", [1]).get()
until(lambda: faults)
failure = faults[0]
assert failure.mesh_name == "owner" and failure.crashed_ranks == [0], failure
report = failure.report()
assert report.startswith("The actor <root>.<__main__.{owner} owner"), report
assert "kid{{'gpus': 1/2}}> and all its descendants have failed:" in report and "Killed(sig=9)" in report, report
assert "Killed(sig=9)" in failure.origin and "\\n" not in failure.origin
if {answer} == "raise":
    assert "RuntimeError: no way" in report and "This error occurred while handling another failure:" in report
try:
    owner.healthy.call_one().get()
    raise AssertionError("it lives")
except SupervisionError as error:
    assert "Killed(sig=9)" in str(error)
""").done()  # fmt: skip
    assert (run.status, run.err) == (0, "")


@pytest.mark.feature(66, "climbs one level")
@pytest.mark.parametrize("owner", ["PlainOwner", "AsyncPlainOwner"])
def test_an_owner_without_a_hook_fails_with_what_it_owns(owner):
    run = Run(SCRIPT + f"""
owner = make_owner({owner}, None)
owner.fail.call_one("signal", [1]).get()
sys.stdin.readline()
""").done()  # fmt: skip
    assert run.status == 1
    cause = r"the process this actor was running on failed: Killed\(sig=9\) \(rank {'gpus': 1/2} of 'kids', pid \d+\)"
    assert re.match(
        rf"monarch: {cause},\s+while\s+in\s+kid.fail\n"
        r"Unhandled monarch error on the root actor, hostname=.*, PID=\d+ at ",
        run.err,
    )
    assert run.err.count("and all its descendants have failed") == 2, run.err


@pytest.mark.feature(65, "the owner goes on")
@pytest.mark.parametrize("owner", ["PlainOwner", "AsyncPlainOwner"])
def test_an_owner_that_catches_what_its_call_raises_lives_on(owner):
    Run(SCRIPT + f"""
owner = make_owner({owner}, None)
assert "Killed(sig=9)" in owner.caught.call_one("signal", 1).get()
time.sleep(1.2)  # longer than anybody waits for a call to tell it
assert owner.healthy.call_one().get() == [0]
""").ok()  # fmt: skip


@pytest.mark.feature(65, "one at a time", "at awaits or between messages")
def test_a_sync_owner_is_asked_before_the_next_message_and_one_after_the_other():
    run = Run(SCRIPT + """
owner = make_owner(SlowOwner, True)
pids = owner.pids.call_one().get()
busy = owner.wait_for.call_one(go)
later = owner.note.call_one("later")
until(lambda: os.path.exists(go + ".begun"))
for pid in pids:
    os.kill(pid, signal.SIGKILL)
os.write(go_end, b"x")
busy.get(); later.get()
events = owner.events.call_one().get()
assert events[0] == "waited" and events[-1] == "later", events
asked = events[1:-1]
assert asked == [word for _ in range(len(asked) // 2) for word in ("begin", "end")] and len(asked) >= 2, events
""", prologue=PIPED).ok()  # fmt: skip
    assert run.err == ""


PIPED = """
import asyncio, os, signal, subprocess, sys, threading, time
from monarch.actor import *
go = os.path.join(os.environ["TMPDIR"], "go")
os.mkfifo(go)
go_end = os.open(go, os.O_RDWR)
import atexit
atexit.register(os.unlink, go)
atexit.register(lambda: os.path.exists(go + ".begun") and os.unlink(go + ".begun"))
"""


@pytest.mark.feature(65, "at awaits or between messages")
def test_an_async_owner_is_asked_while_its_endpoint_awaits():
    Run(SCRIPT + """
owner = make_owner(AsyncOwner, True)
pid = owner.pid_of_kid.call_one().get()
pending = owner.until_told.call_one()
os.kill(pid, signal.SIGKILL)
assert pending.get(timeout=10) == 1
""").ok()  # fmt: skip


@pytest.mark.feature(73)
def test_only_the_owner_is_told():
    Run(SCRIPT + """
owner, other = make_owner(SyncOwner, True), make_owner(SyncOwner, True)
other.keep.call_one(owner.kids.call_one().get()).get()
owner.fail.call_one("broadcast", [1]).get()
told(owner, 1)
assert other.seen.call_one().get() == []
""").ok()  # fmt: skip


@pytest.mark.feature(73)
def test_owners_of_processes_and_of_actors_on_them_are_both_told():
    Run(SCRIPT + """
import monarch.actor
faults = []
monarch.actor.unhandled_fault_hook = faults.append
procs = this_host().spawn_procs({"gpus": 2}, name="mine")
owner = make_owner(SyncOwner, True, procs)
owner.fail.call_one("signal", [1]).get()
assert [failure[0] for failure in told(owner, 1)] == ["kid"]
until(lambda: faults)
assert [(failure.mesh_name, failure.crashed_ranks) for failure in faults] == [("mine", [1])], faults
""").ok()  # fmt: skip


def test_a_stop_is_no_failure():
    Run(SCRIPT + """
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: os._exit(9)
owner = make_owner(SyncOwner, True)
owner.stop_kids.call_one().get()
owner.leave.call_one().get()
procs = this_host().spawn_procs({"gpus": 2})
a = procs.spawn("a", Kid)
a.pid.call().get()
a.stop().get()
procs.spawn("b", Kid).pid.call().get()
procs.stop().get()
time.sleep(0.2)
""").ok()  # fmt: skip


@pytest.mark.feature(69, "what it owned ends")
def test_what_an_owner_has_spawned_on_others_processes_ends_with_its_process():
    Run(SCRIPT + """
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
procs = this_host().spawn_procs({"gpus": 2}, name="mine")
theirs = this_host().spawn_procs()
owner = make_owner(SyncOwner, True, procs, theirs)
kids = owner.kids.call_one().get()
kids.pid.call().get()
os.kill(owner.own_pid.call_one().get(), signal.SIGKILL)
def ended():
    try:
        kids.pid.call().get()
    except SupervisionError as error:
        return "its owner has ended" in str(error)
until(ended)
assert len(procs.spawn("fine", Kid).pid.call().get()) == 2
""").ok()  # fmt: skip


# ---- The script: unhandled_fault_hook ----


@pytest.mark.feature(67, "ends the program", "atexit runs")
@pytest.mark.parametrize("main", [
    "time.sleep(60)", "threading.Event().wait()", "other.hang.call().get()", "spin()",
    "asyncio.run(asyncio.sleep(60))", "sys.stdin.readline()", "subprocess.run(['sleep', '60'])",
])  # fmt: skip
def test_a_failure_that_nobody_deals_with_stops_the_program_whatever_it_does(main):
    run = Run(SCRIPT + f"""
import atexit
atexit.register(lambda: print("atexit"))
procs = this_host().spawn_procs({{"gpus": 2}})
kids, other = procs.spawn("kid", Kid), this_host().spawn_procs().spawn("other", Kid)
other.pid.call().get()
kids.slice(gpus=1).fail.broadcast("broadcast")
try:
    {main}
finally:
    print("finally")
""").done(limit=10)  # fmt: skip
    assert run.status == 1, run.err
    assert run.out.index("finally") < run.out.index("atexit")
    first, *_, second, last = run.err.splitlines()
    assert first.startswith("monarch: rank {'gpus': 1/2} of 'kid' (__main__.Kid, pid ") and first.endswith(
        ": ValueError: bang"
    )
    assert second.startswith("Unhandled monarch error on the root actor, hostname=") and ", PID=" in second
    assert "Traceback" not in run.err and len(run.err.splitlines()) < 24, run.err


@pytest.mark.parametrize("ends", [True, False])
def test_threads_that_are_no_daemons_are_named_and_waited_for_as_long_as_processes_are(ends):
    run = Run(f"""
import atexit
from monarch.config import configure
configure(process_exit_timeout={"60s" if ends else "100ms"!r})
class Bad(Actor):
    @endpoint
    def fail(self):
        raise ValueError("bang")
never = threading.Event()
def write():
    while not {ends} or "waits" not in open("/proc/self/fd/2").read():
        never.wait(0.02)
threading.Thread(target=write, name="writer").start()
threading.Thread(target=never.wait, name="daemon", daemon=True).start()
atexit.register(print, "at exit")
bad = this_host().spawn_procs().spawn("bad", Bad)
bad.fail.broadcast()
never.wait()
""").done()
    assert run.status == 1 and run.out == "at exit\n", run.out
    [line] = [line for line in run.err.splitlines() if "waits" in line]
    limit = "60" if ends else "0.1"
    assert line == f"monarch: the program ends, and waits {limit} s at most for its thread 'writer', which is no daemon"
    assert "SystemExit" not in run.err and "Traceback" not in run.err, run.err


@pytest.mark.feature(67, "ends the program")
def test_code_that_never_comes_back_is_left_after_two_seconds():
    run = Run(SCRIPT + """
kids = this_host().spawn_procs({"gpus": 2}).spawn("kid", Kid)
kids.fail.broadcast("broadcast")
import ctypes
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))  # as code that handles no signals
time.sleep(60)
""").done(limit=10)  # fmt: skip
    assert run.status == 1 and "Unhandled monarch error" in run.err


@pytest.mark.feature(67, "ends the program")
def test_the_status_says_so_also_if_the_program_goes_on():
    run = Run(SCRIPT + """
this_host().spawn_procs().spawn("kid", Kid).fail.broadcast("broadcast")
try:
    time.sleep(60)
except BaseException as error:
    print("swallowed", type(error).__name__)
""").done(limit=10)  # fmt: skip
    assert run.status == 1 and "swallowed SystemExit" in run.out


@pytest.mark.feature(67, "replaceable")
def test_a_hook_of_the_program_is_called_once_for_each_failure(procs, monkeypatch):
    faults: list[MeshFailure] = []
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", faults.append)
    failing = procs.spawn("failing", Failing)
    failing.boom.broadcast()
    deadline = time.monotonic() + LIMIT
    while len(faults) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sorted(failure.crashed_ranks for failure in faults) == [[0], [1]]
    for failure in faults:
        rank = failure.crashed_ranks[0]
        assert isinstance(failure, MeshFailure) and not isinstance(failure, BaseException)
        assert failure.mesh_name == "failing" and failure.mesh == () and failure.coordinates == (rank,)
        who = f"<root>.<test_supervision.Failing failing{{'gpus': {rank}/2}}>"
        assert failure.report().startswith(f"The actor {who} and all its descendants have failed:\n  rank ")
        assert "ValueError: bang" in failure.report() and "in boom" in failure.report()
        event = f"event=Supervision event: actor {who} failed:\n  rank "
        assert str(failure).startswith(f"MeshFailure(mesh_name=failing, crashed_ranks=[{rank}], {event}")
        assert failure.kind == "ValueError: bang" and failure.pid and failure.signal is None
    with pytest.raises(SupervisionError, match="bang"):
        failing.boom.call().get(timeout=LIMIT)
    with pytest.raises(TypeError, match="cannot be pickled"):
        __import__("pickle").dumps(faults[0])


@pytest.mark.feature(67, "one that raises is called once")
@pytest.mark.parametrize(
    ("raised", "status"), [("ValueError('of the hook')", 1), ("SystemExit(7)", 7), ("SystemExit('x')", 1)]
)
def test_a_hook_that_raises_stops_the_program_and_is_called_once(raised, status):
    run = Run(SCRIPT + f"""
import monarch.actor
def hook(failure):
    print("hook")
    raise {raised}
monarch.actor.unhandled_fault_hook = hook
this_host().spawn_procs({{"gpus": 2}}).spawn("kid", Kid).fail.broadcast("broadcast")
time.sleep(60)
""").done(limit=10)  # fmt: skip
    assert run.status == status and "Unhandled monarch error" in run.err
    assert run.out.count("hook\n") == 1 or raised.startswith("SystemExit")
    assert ("ValueError: of the hook" in run.err) == raised.startswith("ValueError")


@pytest.mark.feature(64, "pending calls", "later calls", 67)
@ways
@pytest.mark.parametrize("when", ["waits", "has a future", "calls a little later", "in a task"])
def test_what_a_call_of_the_script_raises_is_dealt_with_by_who_catches_it(way, when):
    program = {
        "waits": "try_(lambda: one.hang.call().get())",
        "has a future": "future = one.hang.call(); die(); time.sleep(1.5); try_(lambda: future.get())",
        "calls a little later": "die(); time.sleep(0.2); try_(lambda: kids.pid.call().get())",
        "in a task": "asyncio.run(in_a_task())",
    }[when]
    run = Run(SCRIPT + f"""
procs = this_host().spawn_procs({{"gpus": 2}})
kids = procs.spawn("kid", Kid)
one = kids.slice(gpus=1)
pid = list(kids.pid.call().get().values())[1]
def die():
    os.kill(pid, signal.SIGKILL)
def try_(call):
    try:
        call()
    except SupervisionError as error:
        print("caught", error.signal)
async def in_a_task():
    async def wait():
        try:
            await one.hang.call()
        except SupervisionError as error:
            print("caught", error.signal)
    task = asyncio.create_task(wait())
    await asyncio.sleep(0.1)
    die()
    await task
if {when!r} == "waits":
    threading.Timer(0.1, die).start()
{program}
time.sleep(1.2)
print(kids.slice(gpus=0).pid.call_one().get() != pid)
""", way=way).done()  # fmt: skip
    assert run.status == 0 and run.out == "caught 9\nTrue\n", run.err
    assert "Unhandled" not in run.err


def test_a_later_failure_waits_as_long_for_a_call_as_the_first():
    run = Run(SCRIPT + """
procs = this_host().spawn_procs({"gpus": 2})
kids = procs.spawn("kid", Kid)
for _ in range(3):
    os.kill(kids.pid.call().get().item(gpus=1), signal.SIGKILL)
    time.sleep(0.2)  # nobody calls yet
    try:
        kids.pid.call().get()
    except SupervisionError as error:
        print("caught", error.signal)
    procs.respawn().get()
    time.sleep(1)  # longer than a failure waits
""").ok()  # fmt: skip
    assert run.out == "caught 9\n" * 3 and run.err == ""


@pytest.mark.feature(67, "ends the program")
def test_a_failure_whose_future_is_dropped_stops_the_program():
    run = Run(SCRIPT + """
kids = this_host().spawn_procs({"gpus": 2}).spawn("kid", Kid)
pid = list(kids.pid.call().get().values())[1]
future = kids.hang.call()
os.kill(pid, signal.SIGKILL)
time.sleep(1.5)
print("it waits for somebody to look")
del future
time.sleep(60)
""").done(limit=10)  # fmt: skip
    assert run.status == 1 and run.out == "it waits for somebody to look\n"


def test_a_hook_of_the_program_hears_of_what_fails_right_before_the_end():
    run = Run(SCRIPT + """
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: print("hook", failure.kind)
this_host().spawn_procs().spawn("kid", Kid).fail.broadcast("broadcast")
""").ok()  # fmt: skip
    assert run.out == "hook ValueError: bang\n"


def test_a_handler_of_the_program_stays_its_own():
    run = Run(
        "taken = signal.SIGRTMAX - 4\nsignal.signal(taken, lambda *_: print('mine'))\n"
        + SCRIPT
        + """
kids = this_host().spawn_procs().spawn("kid", Kid)
kids.pid.call_one().get()
os.kill(os.getpid(), taken)
kids.fail.broadcast("broadcast")
time.sleep(60)
"""
    ).done(limit=10)
    assert run.status == 1 and run.out == "mine\n" and "Unhandled monarch error" in run.err


def test_many_failures_at_once_are_one_report_with_their_ranks():
    run = Run(SCRIPT + """
kids = this_host().spawn_procs({"gpus": 8}).spawn("kid", Kid)
pids = kids.pid.call().get().values()
for pid in pids:
    os.kill(pid, signal.SIGKILL)
time.sleep(60)
""").done(limit=10)  # fmt: skip
    assert run.status == 1
    assert run.err.count("Unhandled monarch error") == 1 and len(run.err.splitlines()) <= 6, run.err
    assert run.err.startswith("monarch: ranks 0-7 of 'kid' have failed: killed by signal 9\n"), run.err


def test_meshes_that_are_made_and_stopped_leave_nothing(procs):
    for _ in range(3):
        meshes = [procs.spawn("short", Failing) for _ in range(20)]
        for mesh in meshes:
            mesh.stop().get(timeout=LIMIT)
        assert all(mesh._supervised == 0 for mesh in meshes)


class Failing(Actor):
    @endpoint
    def boom(self):
        raise ValueError("bang")

    @endpoint
    def pid(self):
        return os.getpid(), current_rank().rank, context().actor_instance.name


def test_a_failed_actor_does_not_poison_its_process():
    with this_host().spawn_procs() as procs:
        failing = procs.spawn("failing", Failing)
        failing.boom.broadcast()
        with pytest.raises(SupervisionError, match="bang"):
            failing.pid.call_one().get(timeout=LIMIT)
        pid, *_ = procs.spawn("fine", Failing).pid.call_one().get(timeout=LIMIT)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SupervisionError, match="sig=9"):
            procs.spawn("late", Failing).pid.call_one().get(timeout=LIMIT)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_hook_that_returns_a_future_is_told_to_wait_for_it(kind):
    run = Run(f"""
class Kid(Actor):
    @endpoint
    def die(self):
        os._exit(3)
class Owner(Actor):
    def __init__(self):
        self.procs = this_host().spawn_procs()
        self.procs.spawn("kid", Kid).die.broadcast()
    def __supervise__(self, failure):
        return self.procs.respawn()
    @endpoint
    {kind} work(self): ...
this_host().spawn_procs().spawn("owner", Owner)
time.sleep(60)
""").done(limit=20)  # fmt: skip
    assert run.status == 1
    assert "Owner.__supervise__ has returned a Future: wait for it with .get(), and return True" in run.err


@pytest.mark.parametrize("kind", ["local", "real", "async"])
def test_the_end_of_a_block_raises_what_nobody_was_told_of_and_the_next_block_its_own(kind):
    run = Run(f"""
from monarch.testing import local_procs
class Kid(Actor):
    @endpoint
    def fail(self, text):
        raise ValueError(text)
def block(text):
    with {"local_procs" if kind == "local" else "this_host().spawn_procs"}({{"gpus": 2}}) as procs:
        procs.spawn("kid", Kid).fail.broadcast(text)
async def async_block(text):
    async with this_host().spawn_procs({{"gpus": 2}}) as procs:
        procs.spawn("kid", Kid).fail.broadcast(text)
for text in ("first", "second"):
    try:
        {"asyncio.run(async_block(text))" if kind == "async" else "block(text)"}
    except SystemExit as error:
        print(text, error.code)
print("goes on")
""").done()  # fmt: skip
    assert run.out.splitlines() == ["first 1", "second 1", "goes on"] and run.status == 0, run.err
    assert run.err.count("Unhandled monarch error") == 2 and "ValueError: second" in run.err


def test_the_end_of_a_block_raises_nothing_that_somebody_is_told_of_or_may_be():
    run = Run("""
from monarch.testing import local_procs
class Kid(Actor):
    @endpoint
    def exit(self):
        sys.exit(4)
with local_procs() as procs:
    assert procs.spawn("kid", Kid).exit.call_one().exception() is not None
with local_procs() as procs:
    kept = procs.spawn("kid", Kid).exit.call_one()
assert "SystemExit: 4" in str(kept.exception())
try:
    with local_procs() as procs:
        kid = procs.spawn("kid", Kid)
        kid.exit.broadcast()
        kid.exit.call_one().get()
except SupervisionError as error:
    assert "SystemExit: 4" in str(error)
""").done()  # fmt: skip
    assert (run.status, run.err) == (0, "")


def test_the_first_failure_that_an_actor_is_told_of_waits_for_no_imports():
    """It would wait some 30 ms for asyncio, and with it whoever is to be told by the same process."""
    Run("""
import sys
class Victim(Actor):
    @endpoint
    def die(self):
        os._exit(3)

class Owner(Actor):
    @endpoint
    def own(self):
        self.victim = this_host().spawn_procs().spawn("victim", Victim)
        self.victim.initialized.get()
        self.before = set(sys.modules)
        return self.victim

    def __supervise__(self, failure):
        self.later = sorted(set(sys.modules) - self.before)
        return True

    @endpoint
    def imported(self):
        return self.later

owner = this_host().spawn_procs().spawn("owner", Owner)
try:
    owner.own.call_one().get().die.call_one().get()
except Exception as error:
    assert "code 3" in str(error), error
while True:
    try:
        found = owner.imported.call_one().get()
        break
    except ActorError as error:  # it has not been told yet
        assert "later" in str(error), error
assert found == [], found
""").ok()  # fmt: skip
