"""Ports that fold what is sent to them: what their receiver gives. With reducers: test_reducers.py."""

import asyncio
import operator
import pickle
import threading

import pytest
from folds import Fold, collected, nothing_there, open_port

from monarch.actor import Channel, PortReceiver, context

LIMIT = 30


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
