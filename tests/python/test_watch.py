"""Calls that stay pending: cycles of them are raised, processes that are stopped are told."""

import asyncio
import os
import re
import signal
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
    send,
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
    def end(self):
        os._exit(3)

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
    def last_of(self, other):
        return other.last.call_one().get()

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def open_call_and_forget(self):
        self.kept = self.other.last.call_one()
        return "kept"


class Hooked(Actor):
    """Its hooks call another actor, which calls this one; they send through a port what became of it."""

    @endpoint
    def meet(self, other, me, port):
        self.other, self.me, self.port = other, me, port

    @endpoint
    def own(self):
        self.mine = this_host().spawn_procs(per_host={"gpus": 1}, name="inner").spawn("mine", Sync)
        return self.mine.pid.call_one().get()

    @endpoint
    def tell(self, dead):
        dead.last.broadcast()

    @endpoint
    def last(self):
        return "last"

    def __supervise__(self, failure):
        return self.ask()

    def _handle_undeliverable_message(self, message):
        return self.ask()

    def ask(self):
        try:
            self.other.last_of.call_one(self.me).get()
        except ActorError as error:
            self.port.send(str(error))
        return True


class AsyncHooked(Hooked):
    @endpoint
    async def last(self):
        return "last"


class AwaitsInHook(AsyncHooked):
    async def _handle_undeliverable_message(self, message):
        try:
            await self.other.last_of.call_one(self.me)
        except ActorError as error:
            self.port.send(str(error))
        return True


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
    async def await_then_close_a_cycle(self, workers, seconds, times, me):
        """How long after that it was raised."""
        for _ in range(times):
            await workers.slow.call_one(seconds)
        start = time.monotonic()
        try:
            await self.other.last_of.call_one(me)
        except ActorError:
            return time.monotonic() - start

    @endpoint
    async def close_a_cycle_beside_a_task(self, seconds, me):
        """How long after the end of the task it was raised."""
        task = asyncio.ensure_future(asyncio.sleep(seconds, seconds))
        start = time.monotonic()
        try:
            await self.other.last_of.call_one(me)
        except ActorError:
            return time.monotonic() - start - await task

    @endpoint
    async def last_of(self, other):
        return await other.last.call_one()

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


class HandsOver(Actor):
    """Its call is answered by another actor, which has got the port."""

    @endpoint
    def start(self, b, *others):
        return b.through.call_one(*others).get()

    @endpoint(explicit_response_port=True)
    def through(self, port, how, c, d, a):
        if how == "port":
            c.answer_later.broadcast(port)
        else:
            send(c.later, [], {}, port=port)
        d.ask.call_one(a).get()

    @endpoint
    def answer_later(self, port):
        port.send(self.wait())

    @endpoint
    def later(self):
        return self.wait()

    def wait(self):
        time.sleep(1.5)
        return "from another"

    @endpoint
    def ask(self, other):
        return other.last.call_one().get()

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


@pytest.mark.parametrize("seconds, times", [(0.05, 44), (1.6, 1)], ids=["many", "one"])
def test_it_does_not_matter_how_long_something_else_was_awaited_before(procs, seconds, times):
    a, b = pair(procs, Async, Async)
    workers = procs.slice(gpus=2).spawn("workers", Sync)
    assert a.await_then_close_a_cycle.call_one(workers, seconds, times, a).get(timeout=LIMIT) < SOON


def test_nor_how_long_there_was_something_else_beside(procs):
    a, b = pair(procs, Async, Async)
    assert 0 < a.close_a_cycle_beside_a_task.call_one(2.2, a).get(timeout=LIMIT) < SOON


def test_a_cycle_may_be_long(procs):
    actors = procs.spawn("members", Sync)
    ring = [actors.slice(gpus=rank) for rank in (1, 2, 3, 0)]
    text = cycle_of(actors.slice(gpus=0).around.call_one(ring))
    assert [int(n) for n in re.findall(r"  rank (\d)", text)] == [3, 0, 1, 2]
    assert text.splitlines()[1].endswith(
        "rank 3 of members (pid N), in around, waits for rank 0 of members (pid N): last"
    )


def test_a_cycle_is_found_through_what_was_made_anew():
    with this_host().spawn_procs({"gpus": 2}) as own:
        a, b = own.slice(gpus=0).spawn("left", Sync), own.slice(gpus=1).spawn("right", Sync)
        with pytest.raises(SupervisionError):
            b.end.call_one().get(timeout=LIMIT)
        own.respawn([1]).get(timeout=LIMIT)
        a.meet.call_one(b).get(timeout=LIMIT)
        b.meet.call_one(a).get(timeout=LIMIT)
        assert cycle_of(a.ping.call_one()) == CYCLE


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


def hooked(procs, cls):
    gate, receiver = Channel.open()
    a, b = procs.slice(gpus=0).spawn("left", cls), procs.slice(gpus=1).spawn("right", Sync)
    a.meet.call_one(b, a, gate).get(timeout=LIMIT)
    return a, receiver


@pytest.mark.parametrize("cls", [Hooked, AsyncHooked])
def test_a_hook_for_failures_may_close_the_cycle(procs, cls):
    a, receiver = hooked(procs, cls)
    os.kill(a.own.call_one().get(timeout=LIMIT), signal.SIGKILL)
    assert "in __supervise__, waits for rank 0 of right" in receiver.recv().get(timeout=LIMIT)
    assert a.last.call_one().get(timeout=LIMIT) == "last"


@pytest.mark.parametrize("cls", [Hooked, AsyncHooked, AwaitsInHook])
def test_a_hook_for_undeliverable_messages_may_close_the_cycle(procs, cls):
    a, receiver = hooked(procs, cls)
    dead = procs.slice(gpus=2).spawn("dead", Sync)
    dead.last.call_one().get(timeout=LIMIT)
    dead.stop().get(timeout=LIMIT)
    a.tell.call_one(dead).get(timeout=LIMIT)
    assert "in _handle_undeliverable_message, waits for rank 0 of right" in receiver.recv().get(timeout=LIMIT)
    assert a.last.call_one().get(timeout=LIMIT) == "last"


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


@pytest.mark.parametrize("how", ["port", "relay"])
def test_a_port_that_has_been_handed_on_is_no_edge(procs, how):
    a, b, c, d = (procs.slice(gpus=rank).spawn("members", HandsOver) for rank in range(4))
    assert a.start.call_one(b, how, c, d, a).get(timeout=LIMIT) == "from another"
    assert b.last.call_one().get(timeout=LIMIT) == "last"


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


@pytest.mark.parametrize("who", ["script", "anew"])
def test_a_stopped_process_is_told_once_and_its_call_waits_on(who):
    run = Run(PROGRAMS / "watch/stopped.py", args=(who,))
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


def test_a_guest_that_waits_has_it_told_by_the_script_of_that_job():
    run = Run(PROGRAMS / "watch/stopped.py", args=("guest",))
    told = float(run.line("told after "))
    run.line("answered")
    assert told < SOON + 2  # a guest has to start first
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


def test_the_lease_of_a_process_runs_while_calls_wait_for_it_only():
    run = Run(PROGRAMS / "watch/lease_of_no_call.py", env={"MONARCH_STOPPED_RANK_LEASE": "1s"}).done()
    assert run.out.splitlines() == ["its deadline has passed", "it lives", "answered True"], run.out + run.err


# ---- What has been made anew ----


def test_a_cycle_through_a_process_that_was_made_anew_is_found():
    run = Run(PROGRAMS / "watch/respawned.py", args=("cycle",)).done()
    assert "raised" in run.out and "in merge, waits for rank 0 of member" in run.out, run.out + run.err


def test_a_process_that_was_made_anew_is_told_when_it_is_stopped():
    run = Run(PROGRAMS / "watch/respawned.py", args=("stopped",)).done()
    assert run.out == "stopped [1]\n", run.out + run.err
    assert re.search(r"rank 1 of procs \(pid \d+\) is stopped \(SIGSTOP\); 1 call waits for it: member.pid\n", run.err)


def test_a_process_that_was_made_anew_has_a_lease():
    run = Run(PROGRAMS / "watch/respawned.py", args=("lease",), env={"MONARCH_STOPPED_RANK_LEASE": "1s"}).done()
    assert "raised" in run.out and "was stopped (SIGSTOP) for longer than 1 s" in run.out, run.out + run.err


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
