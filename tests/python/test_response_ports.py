"""Endpoints that answer through a port: later, from elsewhere, or never; and send(), which says through which port."""

import asyncio
import contextlib
import os
import threading

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    DeadlineExceeded,
    Port,
    SupervisionError,
    as_endpoint,
    concurrent_endpoint,
    context,
    endpoint,
    send,
    this_host,
)

LIMIT = 30


class Answerer(Actor):
    def __init__(self):
        self.kept = []
        self.myself = self  # a cycle: what it keeps is not freed by its end alone

    @endpoint(explicit_response_port=True)
    def now(self, port: Port, x, by=1):
        port.send(x * by)
        return "ignored"

    @endpoint(explicit_response_port=True)
    def keep(self, port: Port, x):
        self.kept.append((port, x))

    @endpoint
    def release(self):
        """Answers what was kept, the last first, from a thread of its own."""

        def answer():
            while self.kept:
                port, x = self.kept.pop()
                port.send(x)

        thread = threading.Thread(target=answer)
        thread.start()
        thread.join()

    @endpoint
    def drop(self):
        self.kept.clear()

    @endpoint(explicit_response_port=True)
    def twice(self, port):
        port.send("first")
        port.send("second")
        port.exception(ValueError("third"))

    @endpoint(explicit_response_port=True)
    def refuse(self, port, error):
        port.exception(error)

    @endpoint(explicit_response_port=True)
    def answer_and_die(self, port):
        port.send("answered")
        raise ValueError("escaped")

    @endpoint(explicit_response_port=True)
    def die(self, port):
        raise ValueError("escaped")

    @endpoint(explicit_response_port=True)
    def hand_on(self, port, other, x):
        other.answer.broadcast(port, x)

    @endpoint(explicit_response_port=True)
    def hand_on_in_vain(self, port, other):
        with contextlib.suppress(TypeError):
            other.answer.broadcast(port, threading.Lock())

    @endpoint
    def answer(self, port, x):
        port.send((x, str(context().actor_instance)))

    @endpoint
    def waiting(self):
        return len(self.kept)

    @endpoint
    def ping(self):
        return "alive"

    @endpoint
    def end(self):
        context().actor_instance.stop("enough")

    def plain(self, port, x):
        port.send(("plain", x))


class AsyncAnswerer(Actor):
    def __init__(self):
        self.go = asyncio.Event()

    @endpoint(explicit_response_port=True)
    async def now(self, port, x):
        await asyncio.sleep(0)
        port.send(x)

    @endpoint(explicit_response_port=True)
    async def from_a_task(self, port, x):
        async def answer():
            await self.go.wait()
            port.send(x)

        self.task = asyncio.ensure_future(answer())

    @concurrent_endpoint(explicit_response_port=True)
    async def concurrent(self, port, x):
        await self.go.wait()
        port.send(x)

    @endpoint
    async def release(self):
        self.go.set()

    @endpoint(explicit_response_port=True)
    async def forget(self, port):
        pass

    @endpoint(explicit_response_port=True)
    async def die(self, port):
        await asyncio.sleep(0)
        raise ValueError("escaped")

    @concurrent_endpoint(explicit_response_port=True)
    async def die_concurrently(self, port):
        await asyncio.sleep(0)
        raise ValueError("escaped")

    @endpoint
    async def ping(self):
        return "alive"


@pytest.fixture()
def answerer(procs):
    return procs.slice(gpus=0).spawn("answerer", Answerer)


@pytest.fixture()
def async_answerer(procs):
    return procs.slice(gpus=1).spawn("async", AsyncAnswerer)


@pytest.mark.feature(6)
def test_the_port_is_hidden_from_callers(answerer):
    assert answerer.now.call_one(2).get(timeout=LIMIT) == 2
    assert answerer.now.call_one(2, by=3).get(timeout=LIMIT) == 6
    for args, kwargs, text in [
        ((1, 2, 3), {}, "too many positional arguments"),
        ((), {}, "missing a required argument: 'x'"),
        ((1,), {"port": 1}, "multiple values for argument 'port'"),
        ((1,), {"y": 1}, "unexpected keyword argument 'y'"),
    ]:
        with pytest.raises(TypeError, match=text):
            answerer.now.call_one(*args, **kwargs)


@pytest.mark.feature(6)
def test_all_adverbs_take_what_comes_through_the_port(procs):
    mesh = procs.spawn("answerers", Answerer)
    assert mesh.now.call(3).get(timeout=LIMIT).values() == [3, 3]
    assert mesh.now.choose(4).get(timeout=LIMIT) == 4
    assert [future.get(timeout=LIMIT) for future in mesh.now.stream(5)] == [5, 5]
    mesh.now.broadcast(6)
    mesh.slice(gpus=0).die.broadcast()
    with pytest.raises(SupervisionError, match="escaped"):
        mesh.ping.call().get(timeout=LIMIT)


@pytest.mark.feature(6, "answers later, out of order, from another thread")
def test_answers_come_later_out_of_order_from_another_thread(answerer):
    futures = [answerer.keep.call_one(i) for i in range(5)]
    assert answerer.ping.call_one().get(timeout=LIMIT) == "alive"
    with pytest.raises(TimeoutError):
        futures[0].get(timeout=0)
    answerer.release.call_one().get(timeout=LIMIT)
    assert [future.get(timeout=LIMIT) for future in futures] == list(range(5))


@pytest.mark.feature(6)
def test_answers_of_async_actors(async_answerer):
    assert async_answerer.now.call_one(1).get(timeout=LIMIT) == 1
    waiting = [async_answerer.from_a_task.call_one(2), *[async_answerer.concurrent.call_one(i) for i in range(3)]]
    async_answerer.release.call_one().get(timeout=LIMIT)
    assert [future.get(timeout=LIMIT) for future in waiting] == [2, 0, 1, 2]


@pytest.mark.feature(6)
def test_the_first_answer_counts(answerer):
    assert answerer.twice.call_one().get(timeout=LIMIT) == "first"
    assert answerer.ping.call_one().get(timeout=LIMIT) == "alive"


@pytest.mark.feature(6)
@pytest.mark.parametrize("error", [ValueError("plain"), KeyError("key")])
def test_an_exception_arrives_unwrapped(answerer, error):
    with pytest.raises(type(error)) as raised:
        answerer.refuse.call_one(error).get(timeout=LIMIT)
    assert raised.value.args == error.args and not isinstance(raised.value, ActorError)
    assert answerer.ping.call_one().get(timeout=LIMIT) == "alive"


@pytest.mark.feature(6, "an exception that escapes ends the actor", 63, "past a response port")
@pytest.mark.parametrize("kind, method", [("answerer", "die"), ("async_answerer", "die"),
                                          ("async_answerer", "die_concurrently")])  # fmt: skip
def test_an_exception_that_escapes_kills_the_actor(kind, method, request):
    actor = request.getfixturevalue(kind)
    with pytest.raises(SupervisionError, match="ValueError: escaped"):
        getattr(actor, method).call_one().get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match="ValueError: escaped"):
        actor.ping.call_one().get(timeout=LIMIT)


@pytest.mark.feature(6, 63)
def test_an_exception_after_the_answer_kills_too(answerer):
    assert answerer.answer_and_die.call_one().get(timeout=LIMIT) == "answered"
    with pytest.raises(SupervisionError, match="ValueError: escaped"):
        answerer.ping.call_one().get(timeout=LIMIT)


def _refuse_to_arrive():
    raise ValueError("not here")


class Unloadable:
    def __reduce__(self):
        return _refuse_to_arrive, ()


@pytest.mark.feature(6)
def test_arguments_that_do_not_unpickle_raise_at_the_caller_and_leave_the_actor_alive(answerer):
    with pytest.raises(ActorError, match="not here"):
        answerer.now.call_one(Unloadable()).get(timeout=LIMIT)
    assert answerer.ping.call_one().get(timeout=LIMIT) == "alive"


@pytest.mark.feature(6)
def test_a_port_that_is_dropped_raises_eof(answerer, async_answerer):
    with pytest.raises(EOFError, match="the response port was dropped without an answer"):
        async_answerer.forget.call_one().get(timeout=LIMIT)
    kept = answerer.keep.call_one(1)
    answerer.drop.call_one().get(timeout=LIMIT)
    with pytest.raises(EOFError, match="the response port was dropped without an answer"):
        kept.get(timeout=LIMIT)


@pytest.mark.feature(6)
def test_a_port_in_a_message_that_could_not_be_pickled_has_gone_to_nobody(procs, answerer):
    future = answerer.hand_on_in_vain.call_one(procs.slice(gpus=1).spawn("other", Answerer))
    with pytest.raises(EOFError, match="the response port was dropped without an answer"):
        future.get(timeout=LIMIT)


@pytest.mark.feature(6)
@pytest.mark.parametrize("end", ["stop", "stop itself", "fail"])
def test_the_end_of_the_actor_answers_what_its_ports_owe(answerer, end):
    futures = [answerer.keep.call_one(i) for i in range(2)]
    if end == "stop":
        answerer.stop().get(timeout=LIMIT)
    else:
        (answerer.end if end == "stop itself" else answerer.die).broadcast()
    expected = {"stop": "stopped: stopped by client", "stop itself": "stopped: enough", "fail": "escaped"}[end]
    for future in futures:
        with pytest.raises(SupervisionError, match=expected):
            future.get(timeout=LIMIT)


@pytest.mark.feature(6)
def test_a_port_may_be_answered_by_another_actor(procs, answerer):
    other = procs.slice(gpus=1).spawn("other", Answerer)
    x, who = answerer.hand_on.call_one(other, "handed on").get(timeout=LIMIT)
    assert x == "handed on" and "Answerer other" in who
    answerer.stop().get(timeout=LIMIT)  # whose end owes nothing for a port that has gone on
    assert other.ping.call_one().get(timeout=LIMIT) == "alive"


@pytest.mark.feature(6)
def test_a_port_that_has_gone_on_outlives_who_was_asked_first(procs, answerer):
    class Keeper(Answerer):
        @endpoint
        def answer(self, port, x):
            self.kept.append((port, x))

    keeper = procs.slice(gpus=1).spawn("keeper", Keeper)
    future = answerer.hand_on.call_one(keeper, "kept")
    while not keeper.waiting.call_one().get(timeout=LIMIT):
        pass
    answerer.stop().get(timeout=LIMIT)
    keeper.release.call_one().get(timeout=LIMIT)
    assert future.get(timeout=LIMIT) == "kept"


@pytest.mark.feature(7)
def test_as_endpoint_with_a_port(answerer, procs):
    ep = as_endpoint(answerer.plain, explicit_response_port=True)
    assert ep.call_one(1).get(timeout=LIMIT) == ("plain", 1)
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        ep.call_one()
    mesh = procs.spawn("answerers", Answerer)
    assert as_endpoint(mesh.plain, explicit_response_port=True).choose(2).get(timeout=LIMIT) == ("plain", 2)
    assert (
        as_endpoint(mesh.plain, explicit_response_port=True).call(3).get(timeout=LIMIT).values() == [("plain", 3)] * 2
    )


# ---- send(): who answers, through which port, with which rank ----


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


@pytest.mark.feature(15, "answers come to the port")
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


@pytest.mark.feature(15, "answers come to the port")
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


@pytest.mark.feature(15, "a wrong selection is refused")
@pytest.mark.parametrize("selection", ["x", "", None])
def test_another_selection_is_refused(workers, selection):
    with pytest.raises(ValueError, match=f"Invalid selection: {selection}"):
        send(workers.double, (1,), {}, selection=selection)


@pytest.mark.feature(15, 8, "nothing is sent")
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
        with pytest.raises(TypeError, match="a Port.* 'no port'"):
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
