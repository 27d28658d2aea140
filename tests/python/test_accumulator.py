"""Folds: Accumulator, over the answers of a mesh in order of arrival, and ports that fold what is sent to them."""

import asyncio
import contextlib
import operator
import os
import pickle
import signal
import threading
import time

import pytest
from folds import Fold, collected, nothing_there, open_port

from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    DeadlineExceeded,
    PortReceiver,
    SupervisionError,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
    this_host,
)

LIMIT = 30


class Gates(Actor):
    """Answers with its rank, at once or when its gate is opened."""

    def __init__(self):
        self.rank = current_rank()["gpus"]
        self.gate = asyncio.Event()
        self.calls = 0

    @endpoint
    async def value(self, x=0, *, by=1):
        self.calls += 1
        return (self.rank + x) * by

    @concurrent_endpoint
    async def gated(self, x=0):
        await self.gate.wait()
        return self.rank + x

    @endpoint
    async def open(self):
        self.gate.set()

    @endpoint
    async def fail(self):
        if self.rank == 1:
            raise ValueError("failed")
        return 1

    @endpoint
    async def exit(self):
        if self.rank == 1:
            os._exit(3)
        return 1

    @endpoint
    async def count(self):
        return self.calls


@pytest.fixture()
def gates(procs):
    return procs.spawn("gates", Gates)


def open_gate(gates, rank):
    gates.slice(gpus=rank).open.call_one().get(timeout=LIMIT)


@pytest.mark.feature(33, "a left fold", "arguments are passed on")
def test_a_left_fold_with_arguments(gates):
    total = Accumulator(gates.value, 100, operator.add).accumulate(10, by=2)
    assert total.get(timeout=LIMIT) == 100 + 20 + 22
    assert total.get() == total.result() == 142 and total.exception() is None
    pairs = Accumulator(gates.value, (), lambda state, value: (state, value)).accumulate()
    assert pairs.get(timeout=LIMIT) in ((((), 0), 1), (((), 1), 0))


@pytest.mark.feature(33)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_order_is_that_of_arrival(gates, order):
    seen = []
    future = Accumulator(gates.gated, None, lambda _, value: seen.append(value)).accumulate()
    for rank in order:
        open_gate(gates, rank)
        while rank not in seen:  # its answer is here before the next gate opens
            with contextlib.suppress(TimeoutError):
                future.get(timeout=0.01)
    assert seen == list(order)


@pytest.mark.feature(33)
def test_it_is_sent_at_once_and_folded_when_it_is_looked_at(gates):
    folded = []
    future = Accumulator(gates.value, None, lambda _, value: folded.append(value)).accumulate()
    assert gates.count.call().get(timeout=LIMIT).values() == [1, 1]
    assert folded == []
    future.get(timeout=LIMIT)
    assert sorted(folded) == [0, 1]
    future.get(timeout=LIMIT)
    assert len(folded) == 2
    dropped = Accumulator(gates.value, None, operator.add).accumulate()
    del dropped
    assert gates.count.call().get(timeout=LIMIT).values() == [2, 2]


@pytest.mark.feature(33)
def test_what_cannot_be_sent_raises_at_the_call(gates):
    accumulator = Accumulator(gates.value, 0, operator.add)
    with pytest.raises(TypeError, match="too many positional arguments"):
        accumulator.accumulate(1, 2)
    with pytest.raises(TypeError, match="cannot pickle"):
        accumulator.accumulate(threading.Lock())
    assert gates.count.call().get(timeout=LIMIT).values() == [0, 0]


@pytest.mark.feature(33, "the identity of nothing")
def test_the_identity_is_the_value_of_nobodys_answers(gates, monkeypatch):
    nobody = gates.value  # a mesh has always a member; an endpoint of a class of somebody else's need not
    monkeypatch.setattr(nobody, "stream", lambda *args, **kwargs: iter(()), raising=False)
    empty = Accumulator(nobody, 42, operator.add)
    assert empty.accumulate().get(timeout=0) == 42

    async def look():
        return await empty.accumulate()

    assert asyncio.run(look()) == 42


@pytest.mark.feature(33)
def test_the_identity_does_not_change_between_folds(gates):
    accumulator = Accumulator(gates.value, 0, operator.add)
    assert [accumulator.accumulate().get(timeout=LIMIT) for _ in range(2)] == [1, 1]


@pytest.mark.feature(33)
def test_errors_of_actors_and_of_combine(gates):
    failed = Accumulator(gates.fail, 0, operator.add).accumulate()
    with pytest.raises(ActorError, match="failed") as raised:
        failed.get(timeout=LIMIT)
    with pytest.raises(ActorError) as again:
        failed.get(timeout=LIMIT)
    assert again.value is raised.value is failed.exception()
    calls = []

    def refuse(state, value):
        calls.append(value)
        raise ZeroDivisionError

    refused = Accumulator(gates.value, 0, refuse).accumulate()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            refused.get(timeout=LIMIT)
    assert len(calls) == 1


@pytest.mark.feature(33)
def test_a_death_is_told():
    mesh = this_host().spawn_procs(per_host={"gpus": 2}).spawn("short", Gates)
    with pytest.raises(SupervisionError, match="exited with non-zero code 3"):
        Accumulator(mesh.exit, 0, operator.add).accumulate().get(timeout=LIMIT)


@pytest.mark.feature(33)
def test_a_time_out_loses_nothing(gates):
    future = Accumulator(gates.gated, 0, operator.add).accumulate(5)
    start = time.monotonic()
    for _ in range(3):
        with pytest.raises(TimeoutError) as raised:
            future.get(timeout=0.02)
        assert str(raised.value) == ""
    assert 0.06 <= time.monotonic() - start < LIMIT
    open_gate(gates, 1)
    with pytest.raises(TimeoutError):
        future.get(timeout=0.02)
    open_gate(gates, 0)
    assert future.get(timeout=LIMIT) == 11
    with pytest.raises(ValueError, match="invalid timeout -1"):
        future.get(timeout=-1)


@pytest.mark.feature(33)
def test_two_tasks_two_loops_and_a_get_see_one_fold(gates):
    combined = []

    def combine(state, value):
        combined.append(value)
        return state + value

    future = Accumulator(gates.gated, 0, combine).accumulate()

    async def look():
        return await future

    async def main():
        cancelled, left, right = (asyncio.ensure_future(look()) for _ in range(3))
        copy = future.as_asyncio()
        await gates.slice(gpus=0).open.call_one()
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await gates.slice(gpus=1).open.call_one()
        return await asyncio.gather(left, right, copy)

    assert asyncio.run(asyncio.wait_for(main(), LIMIT)) == [1, 1, 1]
    assert sorted(combined) == [0, 1]
    assert asyncio.run(look()) == future.get() == 1
    with pytest.raises(ValueError, match="no active event loop"):
        next(future.__await__())
    with pytest.raises(RuntimeError, match="requires a running asyncio event loop"):
        future.as_asyncio()


@pytest.mark.feature(33)
def test_several_threads_fold_each_answer_once(gates):
    combined, results = [], []

    def combine(state, value):
        combined.append(value)
        return state + value

    future = Accumulator(gates.gated, 0, combine).accumulate()
    threads = [threading.Thread(target=lambda: results.append(future.get(timeout=LIMIT))) for _ in range(4)]
    for thread in threads:
        thread.start()
    open_gate(gates, 1)
    open_gate(gates, 0)
    for thread in threads:
        thread.join(LIMIT)
    assert results == [1] * 4 and sorted(combined) == [0, 1]


@pytest.mark.feature(33)
def test_a_stop_iteration_of_combine_hangs_nobody(gates):
    def stop(state, value):
        raise StopIteration

    async def main():
        with pytest.raises(RuntimeError, match="StopIteration"):
            await Accumulator(gates.value, 0, stop).accumulate()
        with pytest.raises(RuntimeError, match="StopIteration"):
            await Accumulator(gates.value, 0, stop).accumulate().as_asyncio()

    asyncio.run(asyncio.wait_for(main(), LIMIT))


@pytest.mark.feature(33)
def test_in_an_actor_and_of_a_single_one(procs, gates):
    class Folder(Actor):
        @endpoint
        def fold(self, mesh):
            return Accumulator(mesh.value, 0, operator.add).accumulate(1).get(timeout=LIMIT)

        @endpoint
        def answer(self):
            return 7

    class AsyncFolder(Actor):
        @endpoint
        async def fold(self, mesh):
            return await Accumulator(mesh.value, 0, operator.add).accumulate(1)

    folder = procs.slice(gpus=0).spawn("folder", Folder)
    assert folder.fold.call_one(gates).get(timeout=LIMIT) == 3
    assert procs.slice(gpus=0).spawn("async", AsyncFolder).fold.call_one(gates).get(timeout=LIMIT) == 3
    assert Accumulator(folder.answer, 1, operator.mul).accumulate().get(timeout=LIMIT) == 7


@contextlib.contextmanager
def signal_handler(look):
    """Gives an update function that is interrupted by a signal, whose handler calls ``look``; and what that raised."""
    raised = []

    def handle(*_):
        try:
            look()
        except Exception as error:
            raised.append(type(error))

    def add(state, update):
        signal.raise_signal(signal.SIGUSR1)
        return [*state, update]

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield add, raised
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.feature(33)
@pytest.mark.parametrize(("timeout", "error"), [(0, TimeoutError), (LIMIT, TimeoutError), (None, RuntimeError)])
def test_a_signal_handler_that_looks_in_the_middle_of_a_fold_takes_nothing_in(gates, timeout, error):
    with signal_handler(lambda: future.get(timeout=timeout)) as (add, raised):
        future = Accumulator(gates.value, [], add).accumulate()
        assert sorted(future.get(timeout=LIMIT)) == [0, 1]
    assert len(raised) == 2 and all(issubclass(kind, error) for kind in raised)


@pytest.mark.feature(33)
def test_the_deadline_of_the_endpoint_holds(gates):
    future = Accumulator(gates.gated.options(deadline=0.05), 0, operator.add).accumulate()
    with pytest.raises(DeadlineExceeded):
        future.get(timeout=LIMIT)


# ---- Ports that fold: what their receiver gives. With reducers: test_reducers.py ----


@pytest.mark.feature(34)
def test_recv_gives_the_newest_state_once():
    port, receiver = open_port(Fold(100, operator.add))
    port.send(1)
    assert receiver.recv().get(timeout=LIMIT) == 101
    for _ in range(3):
        port.send(1)
    assert receiver.recv().get(timeout=LIMIT) == 104
    assert nothing_there(receiver)


@pytest.mark.feature(34)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_futures_have_their_states_whatever_is_looked_at_first(order):
    folded = []
    port, receiver = open_port(Fold(0, lambda state, update: folded.append(update) or state + update))
    futures = [receiver.recv() for _ in range(3)]
    for update in (1, 2, 4, 8):
        port.send(update)
    states = {i: futures[i].get(timeout=LIMIT) for i in order}
    assert states == {0: 1, 1: 3, 2: 15}  # nobody waits behind the last one
    assert folded == [1, 2, 4, 8]
    assert [future.get(timeout=0) for future in futures] == [1, 3, 15]


@pytest.mark.feature(34)
def test_a_future_that_is_dropped_loses_nothing():
    port, receiver = open_port(collected())
    dropped = receiver.recv()
    with pytest.raises(TimeoutError):
        dropped.get(timeout=0)
    later = receiver.recv()
    del dropped
    port.send(1)
    assert later.get(timeout=LIMIT) == [1]
    receiver.recv()  # and not kept
    port.send(2)
    assert receiver.recv().get(timeout=LIMIT) == [1, 2]


@pytest.mark.feature(34)
def test_a_future_that_is_kept_after_its_time_was_over_takes_nothing():
    port, receiver = open_port(collected())
    kept = receiver.recv()
    with pytest.raises(TimeoutError):
        kept.get(timeout=0)

    async def give_up():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(receiver.recv(), 0.01)

    asyncio.run(give_up())
    port.send(1)
    assert receiver.recv().get(timeout=LIMIT) == [1]
    port.send(2)
    assert kept.get(timeout=LIMIT) == [1, 2]  # it waits again


class Behind:
    """A port that folds, and a thread that waits behind the future ``first``."""

    def __init__(self):
        self._folded = threading.Event()
        self.port, self.receiver = open_port(Fold([], self._fold))
        assert nothing_there(self.receiver)
        self.first, behind = self.receiver.recv(), self.receiver.recv()
        self._states = []
        self._thread = threading.Thread(target=lambda: self._states.append(behind.get(timeout=LIMIT)))
        self._thread.start()

    def _fold(self, state, update):
        self._folded.set()
        return [*state, update]

    def send(self, update):
        """The thread folds it, for ``first``."""
        self.port.send(update)
        assert self._folded.wait(LIMIT)
        with self.receiver._lock:  # it has given it
            pass

    def states(self):
        self._thread.join(LIMIT)
        return self._states


@pytest.mark.feature(34)
def test_a_state_that_a_future_has_not_shown_is_for_the_next_one():
    port, receiver = open_port(collected())
    unseen, later = receiver.recv(), receiver.recv()
    port.send(1)
    assert isinstance(later.exception(timeout=0), TimeoutError)  # the state is there, for who came first
    del unseen
    assert receiver.recv().get(timeout=LIMIT) == [1]
    unseen, later = receiver.recv(), receiver.recv()
    port.exception(ValueError("on purpose"))
    assert isinstance(later.exception(timeout=0), TimeoutError)
    del unseen
    with pytest.raises(ValueError, match="on purpose"):
        later.get(timeout=LIMIT)
    assert nothing_there(receiver)


@pytest.mark.feature(34)
def test_who_waits_gets_a_state_that_is_given_back():
    dropped = Behind()
    dropped.send(1)
    del dropped.first
    assert dropped.states() == [[1]]

    cancelled = Behind()

    async def cancel():
        waiting = asyncio.ensure_future(cancelled.first.as_asyncio())
        await asyncio.sleep(0)
        cancelled.send(1)
        waiting.cancel()  # this loop has not seen that it is there
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert cancelled.states() == [[1]]

    asyncio.run(cancel())


@pytest.mark.feature(34)
def test_a_state_that_comes_as_the_time_is_over_is_given():
    late = Behind()

    wait = late.receiver._message._wait

    def over(timeout):
        if threading.current_thread() is not threading.main_thread():
            return wait(timeout)
        late.send(1)
        raise TimeoutError

    late.receiver._message._wait = over
    assert late.first.get(timeout=0) == [1]
    late.port.send(2)
    assert late.states() == [[1, 2]]


@pytest.mark.feature(34)
@pytest.mark.parametrize("whose", ["another", "the same"])
def test_a_signal_handler_that_receives_in_the_middle_of_a_fold_takes_nothing_in(whose):
    with signal_handler(lambda: (future if whose == "the same" else receiver.recv()).get(timeout=0)) as (add, raised):
        port, receiver = open_port(Fold([], add))
        for update in range(5):
            port.send(update)
        future = receiver.recv()
        assert future.get(timeout=LIMIT) == list(range(5))
        port.send(5)  # and what the handler has asked for has gone
        assert receiver.recv().get(timeout=LIMIT) == list(range(6))
    assert set(raised) == {TimeoutError}


@pytest.mark.feature(34)
def test_an_accumulator_that_raises_leaves_the_state_as_it_was():
    def add(state, update):
        if update == "bad":
            raise ValueError("on purpose")
        return [*state, update]

    port, receiver = open_port(Fold([], add))
    for update in (1, "bad", 2, "bad", "bad", 3):
        port.send(update)
    seen = []
    for _ in range(6):
        future = receiver.recv()
        try:
            seen.append(future.get(timeout=LIMIT))
        except ValueError as error:
            seen.append("raised")
            assert future.exception(timeout=0) is error
    assert seen == [[1], "raised", [1, 2], "raised", "raised", [1, 2, 3]]


@pytest.mark.feature(34)
def test_states_in_asyncio_code_and_on_several_threads():
    port, receiver = open_port(Fold(0, operator.add))

    async def look():
        waiting = [asyncio.ensure_future(receiver.recv().as_asyncio()) for _ in range(2)]
        await asyncio.sleep(0)
        port.send(1)
        port.send(2)
        first, second = await asyncio.gather(*waiting)
        assert sorted([first, second]) == [1, 3]
        future = receiver.recv()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future.as_asyncio(), 0.01)
        port.send(4)
        assert await future == 7

    asyncio.run(asyncio.wait_for(look(), LIMIT))
    states = []
    futures = [receiver.recv() for _ in range(20)]
    threads = [threading.Thread(target=lambda f=f: states.append(f.get(timeout=LIMIT))) for f in futures]
    for thread in threads:
        thread.start()
    for _ in futures:
        port.send(1)
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(states) == [7 + i for i in range(1, 21)]


@pytest.mark.feature(34)
def test_what_is_no_accumulator_is_refused():
    mailbox = context().actor_instance.mailbox
    for bad in (None, operator.add, Fold(0, operator.add, reducer="sum")):
        with pytest.raises(TypeError, match="accumulator"):
            mailbox.open_accum_port(bad)
    receiver = mailbox.open_accum_port(Fold(0, operator.add))[1]
    assert isinstance(receiver, PortReceiver)
    with pytest.raises(ValueError, match="no ranks"):
        receiver.ranked().recv()
    with pytest.raises(TypeError, match="stays where it was opened"):
        pickle.dumps(receiver)


@pytest.mark.feature(34)
def test_the_other_ports_of_a_mailbox():
    mailbox = context().actor_instance._mailbox  # as programs spell it
    port, receiver = mailbox.open_port()
    port.send(1)
    port.send(2)
    assert [receiver.recv().get(timeout=LIMIT) for _ in range(2)] == [1, 2]
    port, receiver = mailbox.open_once_port()
    port.send(1)
    assert receiver.recv().get(timeout=LIMIT) == 1
    with pytest.raises(RuntimeError, match="OncePortRef already used"):
        port.send(2)
    assert type(port) is type(Channel.open()[0])
