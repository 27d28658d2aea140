"""Deadlines: the caller gives up, and with it what was asked for on its behalf."""

import asyncio
import contextvars
import os
import signal
import threading
import time
import warnings

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    DeadlineExceeded,
    concurrent_endpoint,
    deadline,
    endpoint,
    get_or_spawn_controller,
)

LIMIT = 30
SHORT = 0.25  # seconds: enough for a call to begin through three processes of a loaded machine


class Member(Actor):
    """Calls on, waits, and tells what it has seen."""

    def __init__(self):
        self.seen = []
        self.handled = 0

    @endpoint
    def down(self, others):
        """Waits for the next of these, or for ever."""
        try:
            first, *rest = others
            return (first.down if rest else first.wait).call_one(*([rest] if rest else [])).get(timeout=LIMIT)
        except BaseException as error:
            self.seen.append(type(error).__name__)
            raise

    @endpoint
    def block(self, port):
        """Is busy until something comes through the port that it sends."""
        gate, receiver = Channel.open()
        port.send(gate)
        hold_up(receiver)
        self.handled += 1

    @endpoint
    def block_and_call(self, port, other):
        gate, receiver = Channel.open()
        port.send(gate)
        hold_up(receiver)
        try:
            other.ping.call_one()
        except BaseException as error:
            self.seen.append(type(error).__name__)
        return "dropped"

    @endpoint
    def handle(self, x=None):
        self.handled += 1
        return x

    @endpoint
    def ping(self):
        return "alive"

    @endpoint
    def log(self):
        return self.seen, self.handled

    @endpoint
    def own_deadline(self, other):
        with deadline(SHORT):
            return other.wait.call_one().get(timeout=LIMIT)

    @endpoint
    def longer_deadline(self, other):
        with deadline(LIMIT):
            return other.wait.call_one().get(timeout=LIMIT)

    @endpoint
    def wait_for_a_port(self):
        return Channel.open()[1].recv().get(timeout=LIMIT)

    @endpoint
    def in_a_thread(self, other):
        """With the context of the call: the deadline goes along."""

        def work():
            try:
                other.wait.call_one().get(timeout=LIMIT)
            except BaseException as error:
                self.seen.append(type(error).__name__)

        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
        thread.start()
        thread.join()


def hold_up(receiver):
    """Waits in a way that knows nothing of deadlines."""
    thread = threading.Thread(target=lambda: receiver.recv().get(timeout=LIMIT))
    thread.start()
    thread.join()


class Waiter(Actor):
    def __init__(self):
        self.ended = []

    @endpoint
    async def wait(self):
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append("wait")

    @concurrent_endpoint
    async def wait_beside(self, who):
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append(who)

    @concurrent_endpoint
    async def answer(self, x):
        return x

    @concurrent_endpoint
    async def block_the_loop(self, port):
        gate, receiver = Channel.open()
        port.send(gate)
        hold_up(receiver)

    @endpoint
    async def keep_warnings(self):
        show = warnings.showwarning
        warnings.showwarning = lambda message, *rest: (self.ended.append(str(message)), show(message, *rest))

    @endpoint
    async def log(self):
        return self.ended

    @endpoint(explicit_response_port=True)
    async def wait_with_port(self, port):
        try:
            await asyncio.Event().wait()
        finally:
            port.send("too late")
            self.ended.append("port")

    @endpoint
    async def wait_for_a_port(self):
        _, receiver = Channel.open()
        await receiver.recv()


def made(procs, gpu, name, cls):
    """It is there: a short deadline is not for its start."""
    actor = procs.slice(gpus=gpu).spawn(name, cls)
    log_of(actor)
    return actor


@pytest.fixture()
def member(procs):
    return made(procs, 0, "member", Member)


@pytest.fixture()
def other(procs):
    return made(procs, 1, "other", Member)


@pytest.fixture()
def waiter(procs):
    return made(procs, 1, "waiter", Waiter)


@pytest.fixture()
def blocked(member):
    """An actor that is busy, and how to end that."""
    port, receiver = Channel.open()
    blocking = member.block.call_one(port)
    gate = receiver.recv().get(timeout=LIMIT)

    def free():
        gate.send("go on")
        blocking.get(timeout=LIMIT)

    yield member, free
    gate.send("go on")


def log_of(actor):
    return actor.log.call_one().get(timeout=LIMIT)


def pass_time(seconds):
    with pytest.raises(TimeoutError):
        Channel.open()[1].recv().get(timeout=seconds)


# ---- One call ----


def test_a_call_past_its_deadline_raises_the_same_exception_each_time(waiter):
    started = time.monotonic()
    future = waiter.wait.options(deadline=SHORT).call_one()
    with pytest.raises(DeadlineExceeded) as raised:
        future.get(timeout=LIMIT)
    assert SHORT <= time.monotonic() - started < LIMIT
    assert str(raised.value) == "waiter.wait: the deadline of this call has passed"
    assert future.exception() is raised.value and isinstance(raised.value, TimeoutError)

    async def look():
        return await future

    with pytest.raises(DeadlineExceeded) as again:
        asyncio.run(look())
    assert again.value is raised.value


def test_a_call_in_time_is_as_any_other(member):
    assert member.handle.options(deadline=LIMIT).call_one(1).get(timeout=LIMIT) == 1
    assert member.handle.options(deadline=LIMIT).choose(2).get() == 2
    assert member.handle.options(deadline=LIMIT).call(3).get().values() == [3]
    assert [future.get() for future in member.handle.options(deadline=LIMIT).stream(4)] == [4]
    member.handle.options(deadline=LIMIT).broadcast(5)
    assert log_of(member)[1] == 5
    assert str(member.handle.options(deadline=LIMIT)) == str(member.handle) == "member.handle"


def test_options_belong_to_the_endpoint_that_they_gave(waiter):
    short = waiter.wait.options(deadline=SHORT)
    unlimited = waiter.wait_beside.call_one("unlimited")
    assert short is not waiter.wait
    with pytest.raises(DeadlineExceeded):
        short.call_one().get(timeout=LIMIT)
    with pytest.raises(DeadlineExceeded):
        short.options(partial=False).call_one().get(timeout=LIMIT)  # what is not said again stays
    with pytest.raises(TimeoutError) as raised:
        unlimited.get(timeout=2 * SHORT)
    assert type(raised.value) is TimeoutError


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_an_invalid_deadline_is_refused(member, seconds):
    with pytest.raises(ValueError, match="a deadline is a positive, finite number of seconds, not"):
        member.ping.options(deadline=seconds)
    with pytest.raises(ValueError, match="a deadline is a positive, finite number of seconds, not"):
        deadline(seconds)


@pytest.mark.feature(22)
def test_a_get_that_times_out_is_no_deadline_and_loses_nothing(blocked):
    member, free = blocked
    future = member.handle.options(deadline=LIMIT).call_one(1)
    with deadline(LIMIT):
        for _ in range(3):
            with pytest.raises(TimeoutError) as raised:
                future.get(timeout=0.01)
            assert type(raised.value) is TimeoutError and str(raised.value) == ""
    free()
    assert future.get(timeout=LIMIT) == 1


def test_all_adverbs_expire(procs, blocked):
    member, _ = blocked
    ep = member.handle.options(deadline=SHORT)
    for future in (ep.call(), ep.choose(), *ep.stream()):
        with pytest.raises(DeadlineExceeded):
            future.get(timeout=LIMIT)


# ---- What the deadline does where the call is handled ----


def test_an_async_endpoint_is_cancelled_and_its_finally_runs(waiter):
    with pytest.raises(DeadlineExceeded):
        waiter.wait.options(deadline=SHORT).call_one().get(timeout=LIMIT)
    assert log_of(waiter) == ["wait"]


def test_concurrent_endpoints_are_cancelled_each_for_itself(waiter):
    futures = {name: waiter.wait_beside.options(deadline=seconds).call_one(name)
               for name, seconds in [("long", LIMIT), ("second", 2 * SHORT), ("first", SHORT)]}  # fmt: skip
    unlimited = waiter.wait_beside.call_one("unlimited")
    for name in ("first", "second"):
        with pytest.raises(DeadlineExceeded):
            futures[name].get(timeout=LIMIT)
        while name not in log_of(waiter):
            pass
    assert waiter.answer.options(deadline=LIMIT).call_one(1).get(timeout=LIMIT) == 1
    assert log_of(waiter) == ["first", "second"]
    for future in (futures["long"], unlimited):
        with pytest.raises(TimeoutError) as raised:
            future.get(timeout=0)
        assert type(raised.value) is TimeoutError


def test_a_message_that_expires_in_the_mailbox_is_not_handled(blocked):
    member, free = blocked
    expired = [member.handle.options(deadline=SHORT).call_one() for _ in range(3)]
    in_time = member.handle.options(deadline=LIMIT).call_one("in time")
    for future in expired:
        with pytest.raises(DeadlineExceeded):
            future.get(timeout=LIMIT)
    pass_time(2 * SHORT)  # in their receiver, whose clock began when they came
    free()
    assert in_time.get(timeout=LIMIT) == "in time"
    assert log_of(member)[1] == 2  # block() and the one in time


def test_a_sync_endpoint_goes_on_but_its_calls_raise_and_its_answer_is_dropped(member, other):
    port, receiver = Channel.open()
    future = member.block_and_call.options(deadline=SHORT).call_one(port, other)
    gate = receiver.recv().get(timeout=LIMIT)
    with pytest.raises(DeadlineExceeded):
        future.get(timeout=LIMIT)
    pass_time(SHORT)  # in their receiver, whose clock began when the call came, which was before the gate
    gate.send("go on")
    assert log_of(member)[0] == ["DeadlineExceeded"]
    with pytest.raises(DeadlineExceeded):
        future.get(timeout=LIMIT)


def test_one_that_had_no_time_to_begin_is_no_oversight_of_its_author(waiter):
    waiter.keep_warnings.call_one().get(timeout=LIMIT)
    first, second = Channel.open(), Channel.open()
    blocking = [waiter.block_the_loop.call_one(first[0])]
    gate = first[1].recv().get(timeout=LIMIT)
    blocking.append(waiter.block_the_loop.call_one(second[0]))
    expired = waiter.wait_beside.options(deadline=SHORT).call_one("never")  # begun by now, but for the loop
    gate.send("go on")
    gate = second[1].recv().get(timeout=LIMIT)
    with pytest.raises(DeadlineExceeded):
        expired.get(timeout=LIMIT)
    pass_time(SHORT)
    gate.send("go on")
    for future in blocking:
        future.get(timeout=LIMIT)
    assert log_of(waiter) == []


def test_an_endpoint_that_answers_through_a_port_is_cancelled_and_lives(waiter):
    with pytest.raises(DeadlineExceeded):
        waiter.wait_with_port.options(deadline=SHORT).call_one().get(timeout=LIMIT)
    assert log_of(waiter) == ["port"]


def test_it_goes_along_through_three_processes(procs, member, other, waiter):
    started = time.monotonic()
    third = procs.slice(gpus=0).spawn("third", Member)
    with pytest.raises(DeadlineExceeded):
        member.down.options(deadline=SHORT).call_one([other, third, waiter]).get(timeout=LIMIT)
    for actor in (member, other, third):
        assert log_of(actor)[0] == ["DeadlineExceeded"]
    assert log_of(waiter) == ["wait"]
    assert time.monotonic() - started < LIMIT / 2


def test_the_earliest_of_nested_deadlines_holds(member, waiter):
    with pytest.raises(DeadlineExceeded):
        member.longer_deadline.options(deadline=SHORT).call_one(waiter).get(timeout=LIMIT)
    with pytest.raises(ActorError) as raised:  # the actor's own, of which its caller knows nothing
        member.own_deadline.options(deadline=LIMIT).call_one(waiter).get(timeout=LIMIT)
    assert type(raised.value.exception) is DeadlineExceeded
    with deadline(LIMIT), deadline(SHORT), deadline(LIMIT), pytest.raises(DeadlineExceeded):
        waiter.wait.options(deadline=LIMIT).call_one().get(timeout=LIMIT)
    with deadline(LIMIT), pytest.raises(DeadlineExceeded):
        waiter.wait.options(deadline=SHORT).call_one().get(timeout=LIMIT)


def test_it_goes_along_into_threads_with_a_copy_of_the_context(member, waiter):
    with pytest.raises(DeadlineExceeded):
        member.in_a_thread.options(deadline=SHORT).call_one(waiter).get(timeout=LIMIT)
    assert log_of(member)[0] == ["DeadlineExceeded"]


@pytest.mark.parametrize("kind", ["member", "waiter"])
def test_an_actor_that_waits_for_a_port_is_freed(kind, request):
    actor = request.getfixturevalue(kind)
    with pytest.raises(DeadlineExceeded):
        actor.wait_for_a_port.options(deadline=SHORT).call_one().get(timeout=LIMIT)
    log_of(actor)


def test_the_caller_always_sees_the_deadline_never_what_it_broke_elsewhere(member, other, waiter):
    """The callee's timer and the answer with what it raised there race with the caller's own."""
    for i in range(60):
        seconds = 0.003 + 0.0001 * i
        futures = [
            member.down.options(deadline=seconds).call_one([other, waiter]),
            waiter.wait_beside.options(deadline=seconds).call_one(i),
            other.wait_for_a_port.options(deadline=seconds).call_one(),
        ]
        for future in futures:
            assert type(future.exception(timeout=LIMIT)) is DeadlineExceeded


def test_hooks_have_no_deadline_of_the_last_message(procs, member):
    """They may call and wait, though the caller of the last message has given up."""

    class Hooked(Actor):
        @endpoint
        async def wait(self):
            await asyncio.Event().wait()

        @endpoint
        async def send(self, port):
            port.send(1)
            await asyncio.Event().wait()

        async def __cleanup__(self, exc):
            note("clean-up")

        def _handle_undeliverable_message(self, message):
            note("undeliverable")
            return True

    def note(text):
        member.handle.call_one(text).get(timeout=LIMIT)

    hooked = procs.slice(gpus=1).spawn("hooked", Hooked)
    port, receiver = Channel.open()
    del receiver
    with pytest.raises(DeadlineExceeded):
        hooked.send.options(deadline=SHORT).call_one(port).get(timeout=LIMIT)
    while log_of(member)[1] < 1:
        pass
    with pytest.raises(DeadlineExceeded):
        hooked.wait.options(deadline=SHORT).call_one().get(timeout=LIMIT)
    hooked.stop().get(timeout=LIMIT)
    assert log_of(member)[1] == 2


# ---- with deadline(...) ----


def test_everything_in_the_block_ends_together_and_after_it_nothing_does(blocked, other):
    member, free = blocked
    before = member.handle.call_one("before")
    with deadline(SHORT):
        assert other.ping.call_one().get() == "alive"
        pending = [member.handle.call_one(i) for i in range(3)]
        for future in pending:
            with pytest.raises(DeadlineExceeded):
                future.get(timeout=LIMIT)
        for use in (other.handle.call_one, other.handle.call, other.handle.stream, other.handle.broadcast,
                    other.handle.choose, other.handle.options(deadline=LIMIT).call_one):  # fmt: skip
            with pytest.raises(DeadlineExceeded, match="the deadline has passed: nothing was sent"):
                use()
        with pytest.raises(DeadlineExceeded, match="the deadline has passed while this was waited for"):
            before.get(timeout=LIMIT)
        assert pending[0].exception() is pending[0].exception()
    assert other.ping.call_one().get(timeout=LIMIT) == "alive"
    free()
    assert before.get(timeout=LIMIT) == "before"
    assert (log_of(member)[1], log_of(other)[1]) == (2, 0)


def test_what_is_there_can_be_looked_at_after_the_deadline(member):
    future = member.handle.call_one(1)
    future.get(timeout=LIMIT)
    with deadline(1e-9):
        assert future.get() == 1


def test_a_block_can_be_entered_again(member):
    limit = deadline(LIMIT)
    for _ in range(2):
        with limit, limit:
            assert member.ping.call_one().get() == "alive"


def test_one_way_messages_have_none(member, other):
    port, receiver = Channel.open()
    with deadline(SHORT):
        member.block_and_call.broadcast(port, other)
        gate = receiver.recv().get()
        with pytest.raises(DeadlineExceeded):
            receiver.recv().get()
    gate.send("go on")
    assert log_of(member)[0] == []  # its call went through


def test_on_an_event_loop_it_belongs_to_the_task(waiter):
    async def call(seconds):
        with deadline(seconds):
            await waiter.wait_beside.call_one(seconds)

    async def receive(seconds):
        _, receiver = Channel.open()
        with deadline(seconds):
            await receiver.recv()

    async def main():
        tasks = [asyncio.ensure_future(call(LIMIT)), asyncio.ensure_future(call(SHORT)),
                 asyncio.ensure_future(receive(SHORT))]  # fmt: skip
        for task in tasks[1:]:
            with pytest.raises(DeadlineExceeded):
                await task
        assert await waiter.answer.call_one(1) == 1
        assert not tasks[0].done()
        tasks[0].cancel()

    asyncio.run(asyncio.wait_for(main(), LIMIT))


def test_a_receiver_goes_on_after_a_deadline(member):
    port, receiver = Channel.open()
    future = receiver.recv()
    with deadline(SHORT), pytest.raises(DeadlineExceeded):
        future.get(timeout=LIMIT)
    port.send(1)
    port.send(2)
    assert (receiver.recv().get(timeout=LIMIT), future.get(timeout=LIMIT)) == (1, 2)


def test_controllers_are_asked_for_within_it():
    with deadline(LIMIT):
        controller = get_or_spawn_controller("of a deadline", Member).get()
        assert controller.ping.call_one().get() == "alive"


def test_ctrl_c_in_a_get_inside_of_it(blocked, other):
    member, free = blocked
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt), deadline(LIMIT):
        future = member.handle.call_one("answered")
        future.get(timeout=LIMIT)
    timer.join()
    free()
    assert future.get(timeout=LIMIT) == "answered"
    with pytest.raises(TimeoutError) as raised, deadline(SHORT):  # no deadline of the block before is left over
        Channel.open()[1].recv().get(timeout=SHORT / 10)
    assert type(raised.value) is TimeoutError
