"""returns_future: futures whose body runs when somebody first looks."""

import asyncio
import contextvars
import gc
import inspect
import os
import signal
import threading
import warnings
import weakref

import pytest
from script_run import Run

from monarch._errors.exceptions import WouldBlockRuntime
from monarch.actor import Actor, Future, context, endpoint, returns_future

LIMIT = 30
variable = contextvars.ContextVar("variable", default="unset")


class Log:
    def __init__(self):
        self.runs = []

    def body(self, result="value"):
        @returns_future
        async def work(*args, **kwargs):
            self.runs.append((args, kwargs, threading.current_thread()))
            await asyncio.sleep(0)
            return result

        return work


@pytest.fixture()
def log():
    return Log()


@returns_future
async def fail(error):
    raise error


@pytest.mark.feature(22)
def test_only_async_functions_are_taken():
    for function in (lambda: None, len, Log):
        with pytest.raises(TypeError, match="returns_future requires an async function"):
            returns_future(function)


@pytest.mark.feature(22)
def test_it_looks_like_the_function():
    @returns_future
    async def work(x: int, *, y: str = "") -> int:
        """Works."""
        return x

    assert (work.__name__, work.__doc__) == ("work", "Works.")
    assert list(inspect.signature(work).parameters) == ["x", "y"]
    future = work(1, y="2")
    assert isinstance(future, Future) and future.get(timeout=LIMIT) == 1


@pytest.mark.feature(22, "returns_future")
def test_calling_starts_nothing_and_dropping_runs_nothing(log):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        future = log.body()(1)
        del future
        gc.collect()
    assert log.runs == []


@pytest.mark.feature(22, "returns_future")
@pytest.mark.parametrize("first", ["get", "result", "exception"])
def test_get_runs_the_body_once_on_the_calling_thread(log, first):
    value = object()
    future = log.body(value)(1, b=2)
    getattr(future, first)(timeout=LIMIT)
    assert log.runs == [((1,), {"b": 2}, threading.current_thread())]
    assert future.get() is future.result() is value and future.exception() is None
    assert asyncio.run(_await(future)) is value
    assert len(log.runs) == 1


async def _await(future):
    return await future


@pytest.mark.feature(22)
def test_await_runs_the_body_once_as_a_task_of_that_loop(log):
    async def main():
        loops = []

        @returns_future
        async def work():
            loops.append(asyncio.get_running_loop())
            return "value"

        future = work()
        assert await asyncio.gather(_await(future), future.as_asyncio(), _await(future)) == ["value"] * 3
        assert loops == [asyncio.get_running_loop()]
        return future

    future = asyncio.run(asyncio.wait_for(main(), LIMIT))
    assert future.get() == asyncio.run(_await(future)) == "value"


@pytest.mark.feature(22)
def test_as_asyncio_alone_starts_the_body(log):
    async def main():
        future = log.body()()
        copies = [future.as_asyncio() for _ in range(2)]
        assert copies[0] is not copies[1]
        assert await asyncio.gather(*copies) == ["value"] * 2
        with pytest.raises(ValueError):
            await fail(ValueError()).as_asyncio()

    asyncio.run(asyncio.wait_for(main(), LIMIT))


@pytest.mark.feature(22)
def test_cancelling_an_observer_does_not_cancel_the_body():
    async def main():
        gate, ended = asyncio.Event(), []

        @returns_future
        async def work():
            await gate.wait()
            ended.append(True)
            return "value"

        future = work()
        first, copy = asyncio.ensure_future(_await(future)), None
        await asyncio.sleep(0)
        copy = future.as_asyncio()
        await asyncio.sleep(0)
        for observer in (first, copy):
            observer.cancel()
            with pytest.raises(asyncio.CancelledError):
                await observer
        assert ended == []
        gate.set()
        assert await future == "value"

    asyncio.run(asyncio.wait_for(main(), LIMIT))


@pytest.mark.feature(22)
def test_errors_are_kept():
    error = ValueError("mine")
    future = fail(error)
    for _ in range(2):
        with pytest.raises(ValueError) as raised:
            future.get(timeout=LIMIT)
        assert raised.value is error
    assert future.exception() is error
    with pytest.raises(ValueError) as raised:
        asyncio.run(_await(future))
    assert raised.value is error
    own_timeout = fail(TimeoutError("the body's"))
    for _ in range(2):
        with pytest.raises(TimeoutError, match="the body's"):
            own_timeout.get(timeout=LIMIT)


@pytest.mark.feature(22, "returns_future")
def test_a_get_that_times_out_cancels_the_body_for_good():
    events = []

    @returns_future
    async def work():
        events.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            events.append("ended")

    future = work()
    with pytest.raises(TimeoutError, match="returns_future operation did not finish in time") as raised:
        future.get(timeout=0.02)
    assert events == ["begun", "ended"]
    for look in (future.get, future.result, lambda: asyncio.run(_await(future))):
        with pytest.raises(TimeoutError) as again:
            look()
        assert again.value is raised.value
    assert future.exception() is raised.value
    assert events == ["begun", "ended"]


@pytest.mark.feature(22)
@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_an_invalid_time_out_starts_nothing(log, timeout):
    future = log.body()()
    with pytest.raises(ValueError, match=f"invalid timeout {timeout}"):
        future.get(timeout)
    assert log.runs == []
    assert future.get(timeout=LIMIT) == "value"


@pytest.mark.feature(22)
def test_ctrl_c_cancels_the_body_for_good():
    ended = []

    @returns_future
    async def work():
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    future = work()
    with pytest.raises(KeyboardInterrupt):
        future.get(timeout=LIMIT)
    assert ended == [True]
    with pytest.raises(asyncio.CancelledError):
        future.get(timeout=LIMIT)


@pytest.mark.feature(22)
def test_a_second_thread_waits_for_the_first():
    begun, go, results = threading.Event(), threading.Event(), []

    @returns_future
    async def work():
        begun.set()
        while not go.is_set():
            await asyncio.sleep(0)
        return "value"

    future = work()
    threads = [threading.Thread(target=lambda: results.append(future.get(timeout=LIMIT))) for _ in range(3)]
    threads[0].start()
    assert begun.wait(LIMIT)
    with pytest.raises(TimeoutError) as raised:  # who only waits cancels nothing
        future.get(timeout=0.01)
    assert str(raised.value) == ""
    for thread in threads[1:]:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(LIMIT)
    assert results == ["value"] * 3


@pytest.mark.feature(22)
def test_get_in_running_asyncio_code_runs_the_body_on_a_thread_and_warns(log):
    async def main():
        with pytest.warns(UserWarning, match="^Future.get.. was called from within an active event loop."):
            assert log.body()().get(timeout=LIMIT) == "value"
        ((_, _, thread),) = log.runs
        assert thread is not threading.current_thread()

    asyncio.run(asyncio.wait_for(main(), LIMIT))


@pytest.mark.feature(22)
def test_get_in_a_body_that_a_get_runs_is_refused(log):
    inner = log.body()()

    @returns_future
    async def outer():
        with pytest.raises(WouldBlockRuntime):
            inner.get(timeout=LIMIT)
        assert log.runs == []
        return await inner  # nothing was consumed

    assert outer().get(timeout=LIMIT) == "value"
    assert isinstance(WouldBlockRuntime(), RuntimeError)
    assert log.body()().get(timeout=LIMIT) == "value"  # not refused for ever


@pytest.mark.feature(22)
def test_the_body_runs_in_a_copy_of_the_callers_context():
    @returns_future
    async def work():
        seen = variable.get()
        variable.set("changed")
        return seen

    token = variable.set("at the call")
    futures = [work(), work()]
    variable.reset(token)
    assert futures[0].get(timeout=LIMIT) == "at the call"
    assert asyncio.run(_await(futures[1])) == "at the call"
    assert variable.get() == "unset"


@pytest.mark.feature(22)
def test_in_actors(procs):
    class Asker(Actor):
        @endpoint
        def sync(self):
            return _whoami().get(timeout=LIMIT)

        @endpoint
        async def wait(self):
            return await _whoami()

    @returns_future
    async def _whoami():
        await asyncio.sleep(0)
        return str(context().actor_instance), context().message_rank["gpus"]

    mesh = procs.spawn("askers", Asker)
    for method in (mesh.sync, mesh.wait):
        for rank, (who, seen) in enumerate(method.call().get(timeout=LIMIT).values()):
            assert "Asker askers" in who and seen == rank


@pytest.mark.feature(22)
def test_calls_inside_a_body(procs):
    class Adder(Actor):
        @endpoint
        def add(self, x):
            return x + 1

    adders = procs.spawn("adders", Adder)

    @returns_future
    async def total(x):
        return sum((await adders.add.call(x)).values())

    assert total(1).get(timeout=LIMIT) == 4
    assert asyncio.run(_await(total(2))) == 6


@pytest.mark.feature(22)
def test_calling_starts_the_client():
    run = Run("""
from monarch import _core
@returns_future
async def work():
    return 1
print(_core.has_runtime())
future = work()
print(_core.has_runtime(), future.get())
""").ok()
    assert run.out == "False\nTrue 1\n"


def test_a_body_that_runs_is_held_though_nobody_looks_any_more():
    async def main():
        waiters = []  # weak: only the body itself knows what it waits for
        done = asyncio.Event()

        @returns_future
        async def work():
            waiter = asyncio.get_running_loop().create_future()
            waiters.append(weakref.ref(waiter))
            await waiter
            done.set()

        async def observe():
            await work()

        observer = asyncio.ensure_future(observe())
        while not waiters:
            await asyncio.sleep(0)
        observer.cancel()
        await asyncio.wait({observer})
        del observer
        gc.collect()
        assert waiters[0]() is not None
        waiters[0]().set_result(None)
        await asyncio.wait_for(done.wait(), LIMIT)

    asyncio.run(main())


def begun_on_a_loop(events):
    """A future whose body waits for ever on a loop, and that loop, which does not run any more."""

    @returns_future
    async def work():
        events.append("begun")
        await asyncio.Event().wait()

    future, loop = work(), asyncio.new_event_loop()
    with pytest.raises(asyncio.TimeoutError):
        loop.run_until_complete(asyncio.wait_for(future, 0.01))
    return future, loop


@pytest.mark.feature(22)
def test_a_body_whose_loop_is_closed_is_cancelled():
    events = []
    future, loop = begun_on_a_loop(events)
    with pytest.raises(TimeoutError):
        future.get(timeout=0)  # that loop may go on
    loop.close()
    for look in (lambda: future.get(timeout=LIMIT), lambda: asyncio.run(asyncio.wait_for(future, LIMIT))):
        with pytest.raises(asyncio.CancelledError):
            look()
    assert repr(future) == "<Future: failed>" and events == ["begun"]


@pytest.mark.feature(22)
@pytest.mark.parametrize("how", ["get", "await", "as_asyncio"])
def test_who_waits_for_a_body_sees_that_its_loop_is_closed(how):
    future, loop = begun_on_a_loop([])
    waits, ended = threading.Event(), []

    def wait():
        async def look():
            waits.set()
            await asyncio.wait_for(future if how == "await" else future.as_asyncio(), LIMIT)

        try:
            if how == "get":
                waits.set()
                future.get(timeout=LIMIT)
            else:
                asyncio.run(look())
        except BaseException as error:
            ended.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(LIMIT)
    loop.close()
    thread.join(LIMIT)
    assert ended == [asyncio.CancelledError]
