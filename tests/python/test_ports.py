"""Channels and ports: who has a port sends, from anywhere; in order per sender."""

import asyncio
import contextvars
import dataclasses
import pickle
import threading

import numpy
import pytest
from script_run import Run, program

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Port,
    PortReceiver,
    concurrent_endpoint,
    context,
    deadline,
    endpoint,
)

LIMIT = 30


@dataclasses.dataclass
class Job:
    name: str
    answers: list  # of ports


class Sender(Actor):
    def __init__(self, port=None):
        if port is not None:
            port.send("from the constructor")

    @endpoint
    def send(self, port, *values):
        for value in values:
            port.send(value)

    @endpoint
    def count(self, port, who, number):
        for i in range(number):
            port.send((who, i))

    @endpoint
    async def send_async(self, port, *values):
        for value in values:
            await asyncio.sleep(0)
            port.send(value)

    @concurrent_endpoint
    async def send_concurrent(self, port, *values):
        for value in values:
            await asyncio.sleep(0)
            port.send(value)

    @endpoint
    def send_nested(self, nested, value):
        nested["ports"][0][0].send(value)

    @endpoint
    def work(self, job):
        for port in job.answers:
            port.send(job.name)

    @endpoint
    def call(self, function):
        return function()

    @endpoint
    def fail(self, port, error):
        port.exception(error)

    @endpoint
    def send_from_a_thread(self, port, value):
        thread = threading.Thread(target=port.send, args=(value,))
        thread.start()
        thread.join()

    @endpoint
    def send_from_a_thread_with_context(self, port):
        def work():
            port.send((str(context().actor_instance), context().message_rank["gpus"]))

        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
        thread.start()
        thread.join()

    @endpoint
    def hand_on(self, other, port, value):
        other.send.call_one(port, value).get(timeout=LIMIT)


class Owner(Actor):
    """Has a port of its own, which it gives away."""

    def __init__(self):
        self.port, self.receiver = Channel[object].open()

    @endpoint
    def give(self):
        return {"port": self.port}

    @endpoint
    def take(self, count):
        return [self.receiver.recv().get(timeout=LIMIT) for _ in range(count)]

    @endpoint
    async def take_async(self, count):
        return [await self.receiver.recv() for _ in range(count)]

    @endpoint
    def echo(self, count):
        """What came, sent on to the port that came first."""
        back = self.receiver.recv().get(timeout=LIMIT)
        for _ in range(count):
            back.send(self.receiver.recv().get(timeout=LIMIT))


@pytest.fixture(scope="module")
def senders(procs):
    mesh = procs.spawn("senders", Sender)
    yield mesh
    mesh.stop().get(timeout=LIMIT)


@pytest.fixture(scope="module")
def sender(senders):
    return senders.slice(gpus=0)


def take(receiver, count):
    return [receiver.recv().get(timeout=LIMIT) for _ in range(count)]


@pytest.mark.feature(28, "in arguments")
def test_a_port_in_arguments_carries_values_in_order(sender):
    port, receiver = Channel.open()
    assert isinstance(port, Port) and isinstance(receiver, PortReceiver)
    values = [1, "two", None, b"3", [4, {"five": 6}], (7.5, True)]
    sender.send.call_one(port, *values).get(timeout=LIMIT)
    assert take(receiver, len(values)) == values
    port.send("from here")
    assert take(receiver, 1) == ["from here"]


@pytest.mark.feature(28)
def test_a_channel_can_be_subscripted():
    port, receiver = Channel[int].open()
    port.send(1)
    assert take(receiver, 1) == [1]


@pytest.mark.feature(28)
def test_each_future_takes_one_message_in_the_order_in_which_they_are_looked_at(sender):
    port, receiver = Channel.open()
    futures = [receiver.recv() for _ in range(4)]
    sender.send.call_one(port, *range(4)).get(timeout=LIMIT)
    assert [future.get(timeout=LIMIT) for future in reversed(futures)] == [0, 1, 2, 3]
    assert [future.get() for future in futures] == [3, 2, 1, 0]


@pytest.mark.feature(28)
def test_a_message_is_a_snapshot_and_its_futures_value_is_kept(sender):
    port, receiver = Channel.open()
    value = [1]
    port.send(value)
    value.append(2)
    future = receiver.recv()
    assert future.get(timeout=LIMIT) == [1]
    assert future.get() is future.get() is not value


@pytest.mark.feature(28, "inside objects")
def test_a_port_travels_in_objects_closures_and_constructors(procs, sender):
    port, receiver = Channel.open()
    sender.send_nested.call_one({"ports": [(port, "x")]}, "nested").get(timeout=LIMIT)
    sender.work.call_one(Job("job", [port, port])).get(timeout=LIMIT)
    sender.call.call_one(lambda: port.send("closure")).get(timeout=LIMIT)
    procs.slice(gpus=1).spawn("another", Sender, port).send.call_one(port).get(timeout=LIMIT)
    assert take(receiver, 5) == ["nested", "job", "job", "closure", "from the constructor"]


@pytest.mark.feature(28, "in results")
def test_a_port_in_a_result_reaches_the_actor_that_opened_it(procs, sender):
    owner = procs.slice(gpus=1).spawn("owner", Owner)
    port = owner.give.call_one().get(timeout=LIMIT)["port"]
    port.send("from the script")
    sender.send.call_one(port, "from a third process").get(timeout=LIMIT)
    assert owner.take.call_one(2).get(timeout=LIMIT) == ["from the script", "from a third process"]
    taken = owner.take_async.call_one(3)
    for i in range(3):
        port.send(i)
    assert taken.get(timeout=LIMIT) == [0, 1, 2]
    with deadline(LIMIT):
        for i in range(3):
            port.send(i)  # to an actor that waits for nothing
    assert owner.take.call_one(3).get(timeout=LIMIT) == [0, 1, 2]


@pytest.mark.feature(28)
def test_a_port_is_handed_on_from_process_to_process(senders, sender):
    port, receiver = Channel.open()
    sender.hand_on.call_one(senders.slice(gpus=1), port, "far").get(timeout=LIMIT)
    assert take(receiver, 1) == ["far"]


@pytest.mark.feature(28)
def test_a_port_travels_through_a_port(procs):
    owner = procs.slice(gpus=0).spawn("owner", Owner)
    to_owner = owner.give.call_one().get(timeout=LIMIT)["port"]
    back, receiver = Channel.open()
    echoing = owner.echo.call_one(2)
    to_owner.send(back)
    to_owner.send("one")
    to_owner.send(to_owner)
    assert take(receiver, 1) == ["one"]
    take(receiver, 1)[0].send("two")
    echoing.get(timeout=LIMIT)
    assert owner.take.call_one(1).get(timeout=LIMIT) == ["two"]


@pytest.mark.feature(31, "sends as its holder")
@pytest.mark.parametrize("how", ["send_async", "send_concurrent", "send_from_a_thread"])
def test_any_code_of_an_actor_sends(sender, how):
    port, receiver = Channel.open()
    getattr(sender, how).call_one(port, 1).get(timeout=LIMIT)
    assert take(receiver, 1) == [1]


@pytest.mark.feature(31, "starts no client")
def test_a_thread_of_the_users_keeps_the_context_and_starts_no_client(senders):
    port, receiver = Channel.open()
    senders.send_from_a_thread_with_context.call(port).get(timeout=LIMIT)
    said = sorted(take(receiver, 2))
    assert [rank for _, rank in said] == [0, 1]
    for who, rank in said:
        assert who.startswith("<root>.<") and f"Sender senders{{'gpus': {rank}/2}}" in who


@pytest.mark.feature(28)
def test_receivers_on_an_event_loop(sender):
    async def main():
        port, receiver = Channel.open()
        futures = [receiver.recv() for _ in range(3)]
        sender.send.broadcast(port, 1, 2, 3, 4)
        assert await asyncio.gather(*futures) == [1, 2, 3]
        assert await receiver.recv().as_asyncio() == 4

    asyncio.run(asyncio.wait_for(main(), LIMIT))


@pytest.mark.feature(29, "ranks are told", 28, "in order, of many senders")
def test_many_messages_from_all_ranks_at_once_keep_each_senders_order(senders):
    port, receiver = Channel.open()
    counting = [senders.slice(gpus=rank).count.call_one(port, rank, 5000) for rank in range(2)]
    here = threading.Thread(target=lambda: [port.send((2, i)) for i in range(5000)])
    here.start()
    seen = {0: [], 1: [], 2: []}
    for _ in range(15_000):
        who, i = receiver.recv().get(timeout=LIMIT)
        seen[who].append(i)
    assert seen == dict.fromkeys(range(3), list(range(5000)))
    here.join()
    [future.get(timeout=LIMIT) for future in counting]


MANY_SENDERS = program("ports/many_senders.py")


@pytest.mark.feature(29)
@pytest.mark.parametrize("way", ["fork", "unix"])
def test_sixteen_senders_in_four_processes_at_once(way):
    run = Run(MANY_SENDERS, way=way)
    assert run.line("done", limit=60) == ""
    run.ok()


# ---- Large values ----


@pytest.mark.feature(28)
@pytest.mark.parametrize("shape", [(3, 5), (1000, 1000), (4000, 2000)])
def test_arrays_go_both_ways_and_arrive_writable(procs, sender, shape):
    array = numpy.arange(numpy.prod(shape), dtype="f8").reshape(shape)
    port, receiver = Channel.open()
    sender.send.call_one(port, array, {"array": array[::2]}).get(timeout=LIMIT)
    plain, nested = take(receiver, 2)
    assert (plain == array).all() and (nested["array"] == array[::2]).all()
    plain += 1
    assert plain[0, 0] == 1 and array[0, 0] == 0
    owner = procs.slice(gpus=1).spawn("owner", Owner)
    to_owner = owner.give.call_one().get(timeout=LIMIT)["port"]
    to_owner.send(array)
    array[0, 0] = -1  # too late to show
    (back,) = owner.take.call_one(1).get(timeout=LIMIT)
    assert back.shape == shape and back[0, 0] == 0 and back[-1, -1] == array[-1, -1]
    owner.stop().get(timeout=LIMIT)


@pytest.mark.feature(28)
def test_large_bytes_and_text(sender):
    port, receiver = Channel.open()
    data, text = bytes(range(256)) * 50_000, "ü" * 3_000_000
    sender.send.call_one(port, data, [data, text]).get(timeout=LIMIT)
    assert take(receiver, 2) == [data, [data, text]]


# ---- Once, ranked, exceptions ----


@pytest.mark.feature(29, "once means once")
def test_a_once_port_takes_one_message(sender):
    port, receiver = Channel.open(once=True)
    future = receiver.recv()
    with pytest.raises(ValueError, match="OncePort is already used"):
        receiver.recv()
    port.send(1)
    with pytest.raises(RuntimeError, match="OncePortRef already used"):
        port.send(2)
    with pytest.raises(RuntimeError, match="OncePortRef already used"):
        port.exception(ValueError())
    assert future.get(timeout=LIMIT) == 1


@pytest.mark.feature(29)
def test_a_once_port_that_travels_is_used_where_it_is(sender):
    port, receiver = Channel.open(once=True)
    with pytest.raises(ActorError, match="OncePortRef already used"):
        sender.send.call_one(port, "first", "second").get(timeout=LIMIT)
    assert receiver.recv().get(timeout=LIMIT) == "first"


@pytest.mark.feature(29)
def test_a_once_port_is_not_used_up_by_what_was_never_sent(sender):
    port, receiver = Channel.open(once=True)
    with pytest.raises(TypeError, match="cannot pickle"):
        port.send(threading.Lock())
    port.send("after all")
    assert receiver.recv().get(timeout=LIMIT) == "after all"


@pytest.mark.feature(29)
@pytest.mark.parametrize("open_ranked", [Channel.open_ranked, lambda: (lambda p, r: (p, r.ranked()))(*Channel.open())])
def test_a_ranked_receiver_refuses_what_has_no_rank_and_goes_on(sender, open_ranked):
    port, receiver = open_ranked()
    port.send("plain")
    with pytest.raises(ValueError, match="RankedPort receiver got a message without a rank"):
        receiver.recv().get(timeout=LIMIT)


@pytest.mark.feature(29, "ranks are told")
def test_a_ranked_once_port():
    port, receiver = Channel.open_ranked(once=True)
    receiver.recv()
    with pytest.raises(ValueError, match="OncePort is already used"):
        receiver.recv()


@pytest.mark.feature(30)
def test_an_exception_arrives_as_it_is_in_its_place(sender):
    class Own(Exception):
        pass

    port, receiver = Channel.open()
    sender.send.call_one(port, 1).get(timeout=LIMIT)
    sender.fail.call_one(port, KeyError("plain")).get(timeout=LIMIT)
    sender.fail.call_one(port, Own("mine")).get(timeout=LIMIT)
    sender.send.call_one(port, 2).get(timeout=LIMIT)
    assert receiver.recv().get(timeout=LIMIT) == 1
    future = receiver.recv()
    with pytest.raises(KeyError, match="plain") as raised:
        future.get(timeout=LIMIT)
    assert future.exception() is raised.value
    assert type(receiver.recv().exception(timeout=LIMIT)) is Own
    assert receiver.recv().get(timeout=LIMIT) == 2
    with pytest.raises(TypeError, match="takes an exception, not 'text'"):
        port.exception("text")


@pytest.mark.feature(30)
def test_a_stop_iteration_does_not_hang_an_event_loop(sender):
    async def main():
        port, receiver = Channel.open()
        for _ in range(2):
            port.exception(StopIteration("end"))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await receiver.recv()
        with pytest.raises(RuntimeError, match="StopIteration"):
            await receiver.recv().as_asyncio()

    asyncio.run(asyncio.wait_for(main(), LIMIT))


@pytest.mark.feature(30)
def test_an_exception_that_ends_programs_is_raised_too(sender):
    port, receiver = Channel.open()
    port.exception(SystemExit(3))
    with pytest.raises(SystemExit):
        receiver.recv().get(timeout=LIMIT)


# ---- What cannot be ----


@pytest.mark.feature(28)
def test_a_receiver_does_not_travel(sender):
    _, receiver = Channel.open()
    for end in (receiver, receiver.ranked()):
        with pytest.raises(TypeError, match="stays where it was opened"):
            pickle.dumps(end)
        with pytest.raises(TypeError, match="stays where it was opened"):
            sender.send.call_one(end)


@pytest.mark.feature(28)
def test_what_cannot_be_pickled_raises_and_sends_nothing(sender):
    port, receiver = Channel.open()
    with pytest.raises(TypeError, match="cannot pickle"):
        port.send(threading.Lock())
    port.send("next")
    assert take(receiver, 1) == ["next"]


@pytest.mark.feature(28)
def test_what_cannot_be_unpickled_raises_at_its_recv_only(sender):
    class Bad:
        def __reduce__(self):
            return _raise, ("not here",)

    port, receiver = Channel.open()
    port.send(Bad())
    port.send("next")
    future = receiver.recv()
    with pytest.raises(ValueError, match="not here"):
        future.get(timeout=LIMIT)
    assert take(receiver, 1) == ["next"]


def _raise(text):
    raise ValueError(text)


def test_who_looks_without_waiting_takes_what_is_there():
    port, receiver = Channel.open()
    first, second = receiver.recv(), receiver.recv()
    assert not second._ready()
    port.send("only")
    assert second._ready() and not first._ready()
    assert second.get(timeout=LIMIT) == "only"
