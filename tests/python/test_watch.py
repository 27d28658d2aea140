"""Calls that stay pending: cycles of them are raised, processes that are stopped are told."""

import asyncio
import os
import re
import threading
import time

import pytest
from script_run import PROGRAMS, Run

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    DeadlineExceeded,
    DeadlockError,
    SupervisionError,
    concurrent_endpoint,
    current_rank,
    endpoint,
    this_host,
    this_proc,
)

LIMIT = 30
SOON = 2.0  # a cycle is raised within 1 s; the machine may be busy


class Sync(Actor):
    """Calls another one, which calls this one."""

    def __init__(self, other=None):
        self.other = other

    @endpoint
    def meet(self, other):
        self.other = other

    @endpoint
    def ping(self):
        return self.other.pong.call_one().get()

    @endpoint
    def pong(self):
        return self.other.last.call_one().get()

    @endpoint
    def last(self):
        return "last"

    @endpoint
    def around(self, others):
        """To the first of these, which goes on to the next; the last comes back here."""
        first, *rest = others
        return first.around.call_one(rest).get() if rest else first.last.call_one().get()

    @endpoint
    def pong_within(self, seconds):
        return self.other.ping_until.call_one(seconds).get()

    @endpoint
    def ping_until(self, seconds):
        return self.other.last.call_one().get(timeout=seconds)

    @endpoint
    def with_deadline(self, seconds):
        return self.other.pong.options(deadline=seconds).call_one().get()

    @endpoint
    def slow(self, seconds):
        time.sleep(seconds)
        return "slow"

    @endpoint
    def wait_for_slow(self, seconds):
        return self.other.slow.call_one(seconds).get()

    @endpoint
    def ask_all(self):
        return self.other.back_from_rank_2.call().get()

    @endpoint
    def back_from_rank_2(self):
        return self.other.last.call_one().get() if current_rank()["gpus"] == 2 else "last"

    @endpoint
    def make_one_that_calls_back(self, procs, me):
        return procs.spawn("callers", CallsBack, me).last.call_one().get()

    @endpoint
    def open_call_and_forget(self):
        self.kept = self.other.last.call_one()
        return "kept"


class CallsBack(Actor):
    def __init__(self, other):
        self.answer = other.last.call_one().get()

    @endpoint
    def last(self):
        return self.answer


class Async(Actor):
    """As Sync."""

    def __init__(self, other=None):
        self.other = other

    @endpoint
    async def meet(self, other):
        self.other = other

    @endpoint
    async def ping(self):
        return await self.other.pong.call_one()

    @endpoint
    async def pong(self):
        return await self.other.last.call_one()

    @endpoint
    async def pong_or_not(self, seconds):
        try:
            return await asyncio.wait_for(self.other.last.call_one(), seconds)
        except asyncio.TimeoutError:
            return "not"

    @endpoint
    async def first_of(self):
        gate = asyncio.ensure_future(asyncio.sleep(1.5))
        call = asyncio.ensure_future(self._last())
        done, _ = await asyncio.wait({gate, call}, return_when=asyncio.FIRST_COMPLETED)
        return "gate" if gate in done else "call"

    async def _last(self):
        return await self.other.last.call_one()

    @endpoint
    async def ping_through(self, name, *args):
        return await getattr(self.other, name).call_one(*args)

    @endpoint
    async def last(self):
        return "last"

    @endpoint
    async def itself(self, me):
        return await me.last.call_one()


class Concurrent(Actor):
    """Takes messages while its endpoints wait."""

    def __init__(self):
        self.other = None

    @concurrent_endpoint
    async def meet(self, other):
        self.other = other

    @concurrent_endpoint
    async def ping(self):
        return await self.other.pong.call_one()

    @concurrent_endpoint
    async def pong(self):
        await asyncio.sleep(1.0)
        return await self.other.last.call_one()

    @concurrent_endpoint
    async def last(self):
        return "last"


class GivesPortAway(Actor):
    """Its call is answered by a thread, whatever the actor does."""

    @endpoint
    def meet(self, other):
        self.other = other

    @endpoint(explicit_response_port=True)
    def pong(self, port):
        threading.Timer(1.5, port.send, ("from the thread",)).start()
        try:
            self.other.last.call_one().get(timeout=LIMIT / 2)
        except TimeoutError:
            pass

    @endpoint
    def last(self):
        return "last"


@pytest.fixture(scope="module")
def procs():
    procs = this_host().spawn_procs(per_host={"gpus": 4}, name="procs")
    yield procs
    procs.stop().get(timeout=LIMIT)


def pair(procs, left, right, same=False):
    a = procs.slice(gpus=0).spawn("left", left)
    b = procs.slice(gpus=0 if same else 1).spawn("right", right)
    a.meet.call_one(b).get(timeout=LIMIT)
    b.meet.call_one(a).get(timeout=LIMIT)
    return a, b


def cycle_of(call):
    """The text of the DeadlockError that a call has ended with, through others, and how long that took."""
    start = time.monotonic()
    with pytest.raises((ActorError, DeadlockError)) as raised:
        call.get(timeout=LIMIT)
    assert time.monotonic() - start < SOON
    error = raised.value
    while isinstance(error, ActorError):
        error = error.exception
    assert isinstance(error, DeadlockError) and isinstance(error, SupervisionError)
    return re.sub(r"pid \d+", "pid N", str(error))


CYCLE = """a cycle of calls, each of which waits for the next:
  rank 0 of right (pid N), in pong, waits for rank 0 of left (pid N): last
  rank 0 of left (pid N), in ping, waits for rank 0 of right (pid N): pong"""


@pytest.mark.parametrize("same", [False, True], ids=["processes", "one-process"])
@pytest.mark.parametrize("left, right", [(Sync, Sync), (Async, Async), (Sync, Async), (Async, Sync)])
def test_two_that_wait_for_each_other_are_told_so_and_go_on(procs, left, right, same):
    a, b = pair(procs, left, right, same)
    assert cycle_of(a.ping.call_one()) == CYCLE
    assert a.last.call_one().get(timeout=LIMIT) == b.last.call_one().get(timeout=LIMIT) == "last"


def test_a_cycle_may_be_long(procs):
    actors = procs.spawn("members", Sync)
    ring = [actors.slice(gpus=rank) for rank in (1, 2, 3, 0)]
    text = cycle_of(actors.slice(gpus=0).around.call_one(ring))
    assert [int(n) for n in re.findall(r"  rank (\d)", text)] == [3, 0, 1, 2]
    assert text.splitlines()[1].endswith(
        "rank 3 of members (pid N), in around, waits for rank 0 of members (pid N): last"
    )


def test_one_that_awaits_itself_is_told_so(procs):
    actor = procs.slice(gpus=0).spawn("narcissus", Async)
    assert cycle_of(actor.itself.call_one(actor)) == (
        "an actor waits for a call to itself, which it can only answer afterwards:\n"
        "  rank 0 of narcissus (pid N), in itself, waits for rank 0 of narcissus (pid N): last"
    )


def test_one_rank_of_a_mesh_is_enough(procs):
    a = procs.slice(gpus=0).spawn("left", Sync)
    b = procs.spawn("members", Sync, a)
    a.meet.call_one(b).get(timeout=LIMIT)
    text = cycle_of(a.ask_all.call_one())
    assert "rank 2 of members (pid N), in back_from_rank_2, waits for rank 0 of left (pid N): last" in text


def test_a_constructor_may_close_the_cycle(procs):
    a = procs.slice(gpus=0).spawn("left", Sync)
    with pytest.raises(ActorError) as raised:
        a.make_one_that_calls_back.call_one(procs.slice(gpus=1), a).get(timeout=LIMIT)
    assert "rank 0 of callers" in str(raised.value) and "in __init__, waits for rank 0 of left" in str(raised.value)


def test_actors_of_the_script_take_part():
    a, b = this_proc().spawn("left", Sync), this_proc().spawn("right", Sync)
    a.meet.call_one(b).get(timeout=LIMIT)
    b.meet.call_one(a).get(timeout=LIMIT)
    assert cycle_of(a.ping.call_one()) == CYCLE


# ---- What is no cycle, or not for ever ----


def test_a_timeout_anywhere_ends_it_by_itself(procs):
    a, b = pair(procs, Sync, Sync)
    with pytest.raises(ActorError) as raised:
        a.pong_within.call_one(2.0).get(timeout=LIMIT)
    assert "TimeoutError" in str(raised.value) and "Deadlock" not in str(raised.value)


def test_a_deadline_anywhere_ends_it_by_itself(procs):
    a, b = pair(procs, Sync, Sync)
    with pytest.raises((ActorError, DeadlineExceeded)) as raised:
        a.with_deadline.call_one(2.0).get(timeout=LIMIT)
    assert "deadline" in str(raised.value) and "Deadlock" not in str(raised.value)


def test_endpoints_that_leave_the_mailbox_free_are_no_edge(procs):
    a, b = pair(procs, Concurrent, Concurrent)
    assert a.ping.call_one().get(timeout=LIMIT) == "last"
    a, b = pair(procs, Async, Concurrent)
    b.meet.call_one(procs.slice(gpus=2).spawn("third", Sync)).get(timeout=LIMIT)
    assert a.ping.call_one().get(timeout=LIMIT) == "last"


@pytest.mark.parametrize("name, args, answer", [("pong_or_not", (1.5,), "not"), ("first_of", (), "gate")])
def test_who_awaits_something_else_too_is_no_edge(procs, name, args, answer):
    a, b = pair(procs, Async, Async)
    assert a.ping_through.call_one(name, *args).get(timeout=LIMIT) == answer


def test_a_port_that_others_may_have_is_no_edge(procs):
    a, b = pair(procs, Sync, GivesPortAway)
    assert a.ping.call_one().get(timeout=LIMIT) == "from the thread"


def test_one_that_is_only_slow_is_waited_for(procs):
    a, b = pair(procs, Sync, Sync)
    third = procs.slice(gpus=2).spawn("third", Sync, a)
    slow = [a.wait_for_slow.call_one(2.0), third.wait_for_slow.call_one(0.1)]  # a line behind one that is slow
    assert [call.get(timeout=LIMIT) for call in slow] == ["slow", "slow"]
    assert b.open_call_and_forget.call_one().get(timeout=LIMIT) == "kept"


def test_many_slow_calls_without_a_cycle_are_all_answered(procs):
    """Each rank waits for the next ones only, some at the same time, for longer than the looks take."""
    actors = procs.spawn("members", Sync)
    members = [actors.slice(gpus=rank) for rank in range(4)]
    for member, following in zip(members, members[1:]):
        member.meet.call_one(following).get(timeout=LIMIT)
    calls = [members[i % 3].wait_for_slow.call_one(0.4) for i in range(12)]
    assert {call.get(timeout=LIMIT) for call in calls} == {"slow"}


# ---- Processes that are stopped ----

STOPPED = r"monarch: rank 2 of procs \(pid \d+\) is stopped \(SIGSTOP\); 1 call waits for it: trainer.step\n"
GOES_ON = r"monarch: rank 2 of procs \(pid \d+\) goes on, after \d\.\d s\n"


def test_a_stopped_process_is_told_once_and_its_call_waits_on():
    run = Run(PROGRAMS / "watch/stopped.py", args=("script",))
    told = float(run.line("told after "))
    run.line("answered")
    assert told < SOON
    err = run.done().err
    assert re.fullmatch(STOPPED + GOES_ON, err), err


def test_a_worker_that_waits_has_it_told_by_who_has_started_it():
    run = Run(PROGRAMS / "watch/stopped.py", args=("worker",))
    told = float(run.line("told after "))
    run.line("answered")
    assert told < SOON
    err = run.done().err
    assert re.fullmatch(STOPPED + GOES_ON, err), err


def test_nobody_looks_where_nobody_waits():
    assert Run(PROGRAMS / "watch/stopped.py", args=("nobody",)).done().err == ""


@pytest.mark.parametrize("how", ["python", "gil", "sleep"])
def test_who_is_busy_is_never_taken_for_stopped(how):
    assert Run(PROGRAMS / "watch/busy.py", args=(how,)).ok().err == ""


@pytest.mark.skipif(
    not os.access("/sys/fs/cgroup/freezer", os.W_OK), reason="needs a cgroup freezer that may be written to"
)
def test_a_frozen_process_is_told():
    run = Run(PROGRAMS / "watch/frozen.py")
    told = float(run.line("told after "))
    run.line("answered")
    assert told < SOON
    err = run.done().err
    assert re.fullmatch(STOPPED.replace(r"stopped \(SIGSTOP\)", r"frozen \(its cgroup\)") + GOES_ON, err), err


def test_with_a_lease_a_stopped_process_has_failed_after_it():
    run = Run(PROGRAMS / "watch/lease.py", env={"MONARCH_STOPPED_RANK_LEASE": "1s"}).done()
    assert run.status == 0, run.err
    asked, raised = re.search("asked (.*)", run.out)[1], re.search("raised (.*)", run.out)[1]
    assert asked == "[1]"
    assert "was stopped (SIGSTOP) for longer than 1 s while calls waited for it (stopped_rank_lease)" in raised


@pytest.mark.feature(69, "an error for a controller that cannot be reached")
def test_calls_of_a_mesh_whose_owner_is_stopped_end_with_the_watchdog():
    run = Run(PROGRAMS / "watch/owner.py").done()
    assert run.status == 0, run.err
    assert re.search(
        r"Endpoint call bb.step\(\) failed, The actor .*<__main__.Member bb> and all its descendants have failed:"
        r"\|  timed out reaching controller actor_mesh_controller_bb for mesh bb. Assuming controller's proc is dead",
        run.out,
    ), run.out


def test_channels_that_nobody_sends_to_are_no_calls():
    gate, receiver = Channel.open()
    with pytest.raises(TimeoutError):
        receiver.recv().get(timeout=0.6)
