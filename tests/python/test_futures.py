"""Futures: get, await, time-outs, observers on several tasks and loops."""

import asyncio
import gc
import math
import os
import signal
import threading
import warnings
import weakref

import numpy
import pytest

from monarch._calls import future as futures
from monarch._calls.python_futures import on_thread
from monarch.actor import Actor, ActorError, Channel, Future, SupervisionError, current_rank, endpoint, this_host

LIMIT = 30


class Gate(Actor):
    """Answers when told to."""

    def __init__(self):
        self.waiting = None

    @endpoint
    async def value(self, x):
        return x

    @endpoint
    async def fail(self):
        raise ValueError("failed")

    @endpoint
    async def stop_iteration(self):
        return 1


class Never(Actor):
    @endpoint
    def block(self):
        threading.Event().wait()


@pytest.fixture()
def gate(procs):
    return procs.slice(gpus=0).spawn("gate", Gate)


@pytest.fixture()
def pending(procs):
    never = procs.slice(gpus=1).spawn("never", Never)
    return never.block.call_one()


@pytest.mark.feature(22)
def test_a_future_cannot_be_constructed():
    with pytest.raises(TypeError, match="cannot be constructed directly"):
        Future(None)
    assert Future[int] is not None


@pytest.mark.feature(22, "looking again gives the same")
def test_looking_again_gives_the_same_object(gate):
    future = gate.value.call_one([1])
    assert future.get(timeout=LIMIT) is future.result(LIMIT)
    failed = gate.fail.call_one()
    errors = []
    for _ in range(2):
        with pytest.raises(ActorError) as raised:
            failed.get(timeout=LIMIT)
        errors.append(raised.value)
    assert errors[0] is errors[1] is failed.exception(LIMIT)
    assert future.exception() is None


@pytest.mark.feature(22, "time-outs consume nothing")
def test_a_time_out_consumes_nothing(pending):
    for _ in range(2):
        with pytest.raises(TimeoutError) as raised:
            pending.get(timeout=0.01)
        assert str(raised.value) == ""
    assert isinstance(pending.exception(timeout=0), TimeoutError)


@pytest.mark.feature(22, "wrong time-outs are refused")
@pytest.mark.parametrize("timeout", [-1, math.nan, math.inf, -0.5])
def test_invalid_time_outs_are_refused(gate, timeout):
    future = gate.value.call_one(1)
    with pytest.raises(ValueError, match=f"invalid timeout {timeout}: expected a non-negative, finite number"):
        future.get(timeout)
    with pytest.raises(TypeError, match="invalid timeout '1': expected a number of seconds, or None"):
        future.get(timeout="1")
    assert future.get(LIMIT) == 1


@pytest.mark.feature(23)
def test_await_needs_a_loop(gate):
    future = gate.value.call_one(1)
    with pytest.raises(ValueError, match="no active event loop"):
        next(future.__await__())
    with pytest.raises(RuntimeError, match="requires a running asyncio event loop"):
        future.as_asyncio()
    assert future.get(LIMIT) == 1


@pytest.mark.feature(23, "several tasks and loops")
def test_await_again_by_several_tasks_and_loops(gate):
    future = gate.value.call_one("x")

    async def several():
        async def look():
            return await future

        return await asyncio.gather(*[look() for _ in range(5)], future.as_asyncio())

    assert asyncio.run(several()) == ["x"] * 6
    assert asyncio.run(several()) == ["x"] * 6
    results = []
    threads = [threading.Thread(target=lambda: results.append(asyncio.run(several()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert results == [["x"] * 6] * 3
    assert future.get() == "x"


@pytest.mark.feature(23, "cancelling one leaves the others")
def test_cancelling_one_observer_leaves_the_others_alone(gate, pending):
    async def run():
        async def look(future):
            return await future

        stuck = asyncio.ensure_future(look(pending))
        also = asyncio.ensure_future(look(pending))
        assert await gate.value.call_one(1) == 1
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck
        assert not also.done()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(also), 0.01)
        also.cancel()

    asyncio.run(run())


def loops_that_are_kept(use, count=5):
    """How many event loops are still there after ``use`` has run in ``count``."""
    loops = []

    async def run():
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await use()

    for _ in range(count):
        asyncio.run(run())
    gc.collect()
    return sum(loop() is not None for loop in loops)


@pytest.mark.feature(23)
def test_an_await_that_is_given_up_leaves_nothing(pending):
    async def look():
        return await pending

    async def give_up():
        for patience in (0, 0.001, 0.01):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(look(), patience)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(pending.as_asyncio(), patience)
        assert not any(observer.waiting for observer in map(futures._observer_of, futures._observed))

    assert loops_that_are_kept(give_up) == 0


@pytest.mark.feature(23)
@pytest.mark.filterwarnings("ignore:unclosed event loop:ResourceWarning")
@pytest.mark.parametrize("how", ["await", "as_asyncio"])
def test_a_loop_that_is_dropped_unclosed_while_something_is_awaited_is_freed(pending, how):
    def use():
        async def look():
            await (pending if how == "await" else pending.as_asyncio())

        loop = asyncio.new_event_loop()
        loop.create_task(look())._log_destroy_pending = False
        loop.run_until_complete(asyncio.sleep(0))
        return weakref.ref(loop)

    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    loops = [use() for _ in range(50)]
    assert descriptors() < before + 25  # others come and go
    assert [loop() for loop in loops] == [None] * 50


@pytest.mark.feature(23)
def test_a_copy_that_nobody_cancels_keeps_its_loop_until_the_next_one_at_most(pending):
    async def forget():
        pending.as_asyncio()

    assert loops_that_are_kept(forget) <= 1


@pytest.mark.feature(23)
def test_an_await_that_is_given_up_leaves_nothing_at_work_on_a_thread_either():
    go = threading.Event()
    future = on_thread(go.wait, "waits")

    async def give_up():
        for look in (lambda: future, future.as_asyncio):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(look(), 0.001)

    assert loops_that_are_kept(give_up) == 0
    go.set()
    assert future.get(timeout=LIMIT)


@pytest.mark.feature(23)
def test_gather_of_many_and_errors_through_await(gate):
    async def run():
        values = await asyncio.gather(*[gate.value.call_one(i) for i in range(300)])
        assert values == list(range(300))
        with pytest.raises(ActorError, match="failed"):
            await gate.fail.call_one()
        futures = [future async for future in _as_async(gate.value.stream(3))]
        assert futures == [3]

    async def _as_async(stream):
        for future in stream:
            yield await future

    asyncio.run(run())


@pytest.mark.feature(24, "a warning in asyncio code")
def test_get_inside_a_running_loop_warns_once_and_works(gate):
    async def run():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert gate.value.call_one(7).get(timeout=LIMIT) == 7
        assert len(caught) <= 1
        for warning in caught:
            assert str(warning.message).startswith("Future.get() was called from within an active event loop.")

    asyncio.run(run())


@pytest.mark.feature(2, "a silent get()", 4, 24, "on every thread")
def test_get_in_an_endpoint_is_silent_in_sync_and_works_in_async_actors(procs, gate):
    class Sync(Actor):
        @endpoint
        def ask(self, other):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return other.value.call_one(1).get(timeout=LIMIT)

    class Mixed(Actor):
        @endpoint
        async def ask(self, other):
            return await other.value.call_one(2)

        @endpoint
        async def ask_blocking(self, other):
            return other.value.call_one(3).get(timeout=LIMIT)

    assert procs.slice(gpus=1).spawn("sync", Sync).ask.call_one(gate).get(timeout=LIMIT) == 1
    mixed = procs.slice(gpus=1).spawn("mixed", Mixed)
    assert mixed.ask.call_one(gate).get(timeout=LIMIT) == 2
    assert mixed.ask_blocking.call_one(gate).get(timeout=LIMIT) == 3


@pytest.mark.feature(24, "Ctrl-C interrupts")
def test_ctrl_c_interrupts_a_blocked_get(pending):
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        pending.get(timeout=LIMIT)
    timer.join()


@pytest.mark.feature(22)
def test_attributes_can_be_set_on_a_future(gate):
    future = gate.value.call_one(1)
    future.note = "mine"
    assert future.note == "mine" and future.get(LIMIT) == 1


@pytest.mark.feature(23)
def test_several_threads_wait_for_one_future(gate):
    future = gate.value.call_one(5)
    results = []
    threads = [threading.Thread(target=lambda: results.append(future.get(LIMIT))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert results == [5] * 4


class Interrupting:
    """Who unpickles it first presses Ctrl-C meanwhile."""

    presses = 0

    def __getstate__(self):
        return 1

    def __setstate__(self, state):
        Interrupting.presses += 1
        if Interrupting.presses == 1:
            raise KeyboardInterrupt


@pytest.mark.feature(24, "Ctrl-C interrupts")
@pytest.mark.parametrize("way", ["call", "port"])
def test_ctrl_c_while_a_value_is_unpickled_loses_nothing(procs, way):
    class Maker(Actor):
        @endpoint
        def make(self):
            return Interrupting()

    port, receiver = Channel.open()
    port.send(Interrupting())
    future = procs.slice(gpus=0).spawn("maker", Maker).make.call_one()
    Interrupting.presses = 0
    with pytest.raises(KeyboardInterrupt):
        (future if way == "call" else receiver.recv()).get(timeout=LIMIT)
    assert isinstance((future if way == "call" else receiver.recv()).get(timeout=LIMIT), Interrupting)


class Held:
    """What the first thread that unpickles this does there, others wait for: events of the test."""

    begun, others_have_looked = threading.Event(), threading.Event()

    def __init__(self):
        self.data = bytes(100_000)

    def __setstate__(self, state):
        if not Held.begun.is_set():
            Held.begun.set()
            assert Held.others_have_looked.wait(LIMIT)


@pytest.mark.feature(22)
def test_a_second_thread_looks_at_a_partial_gather_while_the_first_one_unpickles():
    class Half(Actor):
        @endpoint
        def run(self):
            if current_rank().rank == 1:
                os._exit(3)
            return numpy.ones(1), Held()

    procs = this_host().spawn_procs(per_host={"gpus": 2})
    future = procs.spawn("half", Half).run.options(partial=True).call()
    results = []
    threads = [threading.Thread(target=lambda: results.append(future.get(LIMIT))) for _ in range(2)]
    threads[0].start()
    assert Held.begun.wait(LIMIT)
    threads[1].start()
    threads[1].join(LIMIT)
    Held.others_have_looked.set()
    threads[0].join(LIMIT)
    assert len(results) == 2 and results[0] is results[1]
    assert isinstance(results[0].item(gpus=1), SupervisionError)
    procs.stop().get(timeout=LIMIT)


def test_many_threads_call_at_once(gate):
    results = []

    def work(base):
        results.append([gate.value.call_one(base + i).get(LIMIT) for i in range(100)] == list(range(base, base + 100)))

    threads = [threading.Thread(target=work, args=(1000 * i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert results == [True] * 6
