"""The low-level send(): who answers, through which port, with which rank."""

import asyncio
import os

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    DeadlineExceeded,
    SupervisionError,
    as_endpoint,
    endpoint,
    send,
    this_host,
)

LIMIT = 30


class Worker(Actor):
    def __init__(self):
        self.seen = []

    @endpoint
    def double(self, x, by=2):
        self.seen.append(x)
        return x * by

    @endpoint
    def fail(self):
        raise ValueError("failed")

    @endpoint(explicit_response_port=True)
    def count(self, port, number):
        for i in range(number):
            port.send(i)

    @endpoint(explicit_response_port=True)
    def refuse(self, port):
        port.exception(KeyError("plain"))

    @endpoint(explicit_response_port=True)
    def delegate(self, port, other, x):
        send(other.double, (x,), {}, port=port)

    @endpoint(explicit_response_port=True)
    def delegate_failing(self, port, other, how):
        send(getattr(other, how), (), {}, port=port)

    @endpoint
    def exit(self):
        os._exit(3)

    @endpoint
    def numbers(self):
        return self.seen

    def plain(self, x):
        return ("plain", x)


class Blocked(Actor):
    @endpoint
    async def block(self):
        await asyncio.Event().wait()


@pytest.fixture(scope="module")
def workers(procs):
    mesh = procs.spawn("workers", Worker)
    yield mesh
    mesh.stop().get(timeout=LIMIT)


def take(receiver, count):
    return [receiver.recv().get(timeout=LIMIT) for _ in range(count)]


@pytest.mark.feature(15)
def test_all_answer_to_the_port_with_their_ranks(workers):
    port, receiver = Channel.open_ranked()
    assert send(workers.double, (3,), {"by": 5}, port=port) is None
    assert sorted(take(receiver, 2)) == [(0, 15), (1, 15)]
    send(workers.slice(gpus=1).double, (1,), {}, port)
    assert take(receiver, 1) == [(0, 2)]  # the rank in the mesh that was asked
    plain_port, plain_receiver = Channel.open()
    send(as_endpoint(workers.plain), (1,), {}, plain_port)
    assert take(plain_receiver, 2) == [("plain", 1)] * 2


@pytest.mark.feature(15)
def test_a_ranked_view_of_a_plain_port(workers):
    port, receiver = Channel.open()
    send(workers.double, (1,), {}, port)
    assert sorted(take(receiver.ranked(), 2)) == [(0, 2), (1, 2)]


@pytest.mark.feature(15)
def test_one_is_chosen_and_tells_its_rank(workers):
    port, receiver = Channel.open_ranked()
    for x in range(40):
        send(workers.double, (x,), {}, port=port, selection="choose")
    ranks = [rank for rank, _ in sorted(take(receiver, 40), key=lambda pair: pair[1])]
    assert set(ranks) == {0, 1}
    seen = workers.numbers.call().get(timeout=LIMIT).values()
    for x, rank in enumerate(ranks):
        assert x in seen[rank], (x, rank)
    send(workers.double, (0,), {}, selection="choose")


@pytest.mark.feature(15)
def test_without_a_port_nobody_answers(workers):
    send(workers.double, ("silent",), {})
    assert all("silent" in seen for seen in workers.numbers.call().get(timeout=LIMIT).values())


@pytest.mark.feature(15)
@pytest.mark.parametrize("selection", ["x", "", None])
def test_another_selection_is_refused(workers, selection):
    with pytest.raises(ValueError, match=f"Invalid selection: {selection}"):
        send(workers.double, (1,), {}, selection=selection)


@pytest.mark.feature(15)
def test_wrong_arguments_raise_here_and_nothing_is_sent(workers):
    port, receiver = Channel.open()
    for ep, args, kwargs in [
        (workers.double, (), {}),
        (workers.double, (1, 2, 3), {}),
        (workers.count, (1, 2), {}),
        (workers.count, (), {"y": 1}),
    ]:
        for to in (port, None):
            with pytest.raises(TypeError):
                send(ep, args, kwargs, port=to)
    for ep in (workers.double, workers.count):
        with pytest.raises(TypeError, match="expected a Port, not 'no port'"):
            send(ep, (1,), {}, port="no port")
    send(workers.double, ("only",), {}, port)
    assert take(receiver, 2) == ["onlyonly"] * 2


@pytest.mark.feature(15)
def test_an_endpoint_that_answers_through_a_port_is_given_this_one(workers):
    port, receiver = Channel.open_ranked()
    send(workers.count, (3,), {}, port=port)
    by_rank = {0: [], 1: []}
    for rank, value in take(receiver, 6):
        by_rank[rank].append(value)
    assert by_rank == {0: [0, 1, 2], 1: [0, 1, 2]}
    send(workers.count, (1,), {}, port=port, selection="choose")
    assert take(receiver, 1)[0][0] in (0, 1)
    send(workers.slice(gpus=0).refuse, (), {}, port=port)
    with pytest.raises(KeyError, match="plain"):
        receiver.recv().get(timeout=LIMIT)


@pytest.mark.feature(15, 30)
def test_errors_come_as_exceptions(workers):
    port, receiver = Channel.open()
    send(workers.fail, (), {}, port=port)
    for _ in range(2):
        with pytest.raises(ActorError, match="failed") as raised:
            receiver.recv().get(timeout=LIMIT)
        assert isinstance(raised.value.exception, ValueError)
    send(workers.double, (1,), {}, port=port)
    assert take(receiver, 2) == [2, 2]


@pytest.mark.feature(15)
def test_a_deadline_of_the_endpoint_holds(workers, procs):
    port, receiver = Channel.open()
    blocked = procs.slice(gpus=0).spawn("blocked", Blocked)
    send(blocked.block.options(deadline=0.05), (), {}, port=port)
    with pytest.raises(DeadlineExceeded):
        receiver.recv().get(timeout=LIMIT)


@pytest.mark.feature(15, 30)
def test_the_dead_answer_with_their_cause(procs):
    port, receiver = Channel.open()
    stopped = procs.slice(gpus=0).spawn("stopped", Worker)
    stopped.stop().get(timeout=LIMIT)
    send(stopped.double, (1,), {}, port=port)
    with pytest.raises(SupervisionError, match="stopped: stopped by client"):
        receiver.recv().get(timeout=LIMIT)
    short = this_host().spawn_procs(name="short")
    blocked, exiting = short.spawn("blocked", Blocked), short.spawn("exiting", Worker)
    send(blocked.block, (), {}, port=port)
    exiting.exit.broadcast()
    for _ in range(2):
        with pytest.raises(SupervisionError, match="exited with non-zero code 3"):
            receiver.recv().get(timeout=LIMIT)
        send(blocked.block, (), {}, port=port)  # it is dead already


@pytest.mark.feature(15)
def test_answers_to_a_port_that_is_gone_hurt_nobody(procs, workers):
    """Neither who asked nor who answers, nor who has the number here that the answering one has there."""

    class Asker(Actor):
        @endpoint
        def ask(self, mesh):
            port, receiver = Channel.open()
            del receiver
            send(mesh.double, (1,), {}, port=port)

        @endpoint
        def ping(self):
            return "alive"

    asker = procs.slice(gpus=0).spawn("asker", Asker)
    asker.ask.call_one(workers.slice(gpus=1)).get(timeout=LIMIT)
    asker.ask.call_one(workers).get(timeout=LIMIT)
    for _ in range(20):
        assert workers.double.call(1).get(timeout=LIMIT).values() == [2, 2]
        assert asker.ping.call_one().get(timeout=LIMIT) == "alive"


@pytest.mark.feature(15)
def test_the_answer_of_another_may_be_the_answer_of_this_call(procs, workers):
    """A response port as the port of send()."""
    other = procs.slice(gpus=0).spawn("other", Worker)
    asked = workers.slice(gpus=1)
    assert asked.delegate.call_one(other, 4).get(timeout=LIMIT) == 8
    with pytest.raises(ActorError, match="failed"):
        asked.delegate_failing.call_one(other, "fail").get(timeout=LIMIT)
    with pytest.raises(KeyError, match="plain"):
        asked.delegate_failing.call_one(other, "refuse").get(timeout=LIMIT)
    other.stop().get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match="stopped: stopped by client"):
        asked.delegate.call_one(other, 5).get(timeout=LIMIT)
    assert asked.delegate.call_one(workers, 5).get(timeout=LIMIT) == 10
