"""Reducers, which combine in the senders' processes what they send to a port that folds."""

import asyncio
import contextlib
import gc
import operator
import os
import random
import threading
import time

import numpy
import pytest
from folds import Fold, collected, nothing_there, open_port
from script_run import Run, program

from monarch.actor import Actor, ActorError, Channel, Port, context, deadline, endpoint, this_host
from monarch.config import configured
from monarch.testing import local_procs

LIMIT = 30
NEVER = {"size": 1_000_000, "age": "1h"}  # nothing leaves because it is many or old


@contextlib.contextmanager
def processes(count=1, *, size=5, age="50ms"):
    with configured(split_max_buffer_size=size, split_max_buffer_age=age):
        procs = this_host().spawn_procs(per_host={"procs": count})
    try:
        yield procs
    finally:
        procs.stop().get(timeout=LIMIT)


def swarm(procs, count=2, cls=None):
    return procs.options(per_proc={"actors": count}).spawn("senders", cls or Sender)


def until(receiver, done):
    """The first state of which ``done`` is true."""
    end = time.monotonic() + LIMIT
    while True:
        state = receiver.recv().get(timeout=max(0.0, end - time.monotonic()))
        if done(state):
            return state


class Sender(Actor):
    def __init__(self):
        self.undeliverable = []
        self.kept = None

    @endpoint
    def send(self, port, *updates):
        for update in updates:
            port.send(update)

    @endpoint
    async def send_async(self, port, *updates):
        for update in updates:
            await asyncio.sleep(0)
            port.send(update)

    @endpoint
    def send_on_threads(self, port, *lists):
        threads = [threading.Thread(target=lambda updates=u: [port.send(x) for x in updates]) for u in lists]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @endpoint
    def send_changing(self, port, values):
        port.send(values)
        values[0] = "changed"
        port.send(values)

    @endpoint
    def fail(self, port, before, error, after):
        port.send(before)
        port.exception(error)
        port.send(after)

    @endpoint
    def keep(self, port):
        self.kept = port

    @endpoint
    def send_kept(self, update):
        self.kept.send(update)

    @endpoint
    def hand_on(self, other, port, update):
        other.send.call_one(port, update).get(timeout=LIMIT)

    @endpoint
    def leave(self, port, update, how):
        port.send(update)
        if how == "fail":
            raise ValueError("on purpose")
        context().actor_instance.stop() if how == "stop" else context().actor_instance.abort()

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def found_nobody(self) -> list:
        return self.undeliverable

    def _handle_undeliverable_message(self, message) -> bool:
        self.undeliverable.append(message.error_msg())
        return True


class SyncSender(Actor):
    """Without a loop, so with a thread of its own way to its end."""

    send = Sender.send
    leave = Sender.leave


# ---- The same result as a flat fold ----


def merge(a: dict, b: dict) -> dict:
    """Of {sender: its updates in order}; remembers where it has run."""
    senders = {who: a.get(who, []) + b.get(who, []) for who in {**a, **b} if who != "pids"}
    return {**senders, "pids": a.get("pids", set()) | b.get("pids", set()) | {os.getpid()}}


def without_pids(merged: dict) -> dict:
    return {who: updates for who, updates in merged.items() if who != "pids"}


def flat(batches: list) -> dict:
    return {who: [update for batch in batches if batch[0] == who for update in batch[1]] for who, _ in batches}


@pytest.mark.feature(34, "the result of a flat fold")
@pytest.mark.parametrize("seed", range(12))
def test_the_state_is_that_of_a_flat_fold_in_the_order_of_each_sender(seed):
    chance = random.Random(seed)
    size = chance.choice([0, 1, 2, 3, 5, 16, 1000])
    batches = [(chance.randrange(8), [chance.random() for _ in range(chance.randrange(1, 30))]) for _ in range(40)]
    expected = flat(batches)
    count = sum(map(len, expected.values()))
    with processes(2, size=size, age=chance.choice(["0s", "1ms", "50ms"])) as procs:
        senders = swarm(procs, 4).flatten("all")
        workers = set(senders.pid.call().get(timeout=LIMIT).values())
        port, receiver = open_port(Fold((0, {}), lambda s, u: (s[0] + 1, merge(s[1], u)), merge))
        for who, updates in batches:
            one = senders.slice(all=who)
            chance.choice([one.send, one.send_async]).broadcast(port, *({who: [update]} for update in updates))

        messages, state = until(receiver, lambda state: sum(map(len, without_pids(state[1]).values())) >= count)
        assert nothing_there(receiver)
    assert without_pids(state) == {who: updates for who, updates in expected.items() if updates}
    assert state["pids"] - {os.getpid()} <= workers
    assert messages == count if size <= 1 else messages <= count


@pytest.mark.feature(34, "combined on the way")
def test_a_reducer_runs_where_the_senders_are_and_fewer_messages_arrive():
    def add(a, b):
        return a[0] + b[0], a[1] | b[1] | {os.getpid()}

    with processes(2, size=5, age="1h") as procs:
        senders = swarm(procs, 4)
        pids = set(senders.pid.call().get(timeout=LIMIT).values())
        port, receiver = open_port(Fold((0, set(), 0), lambda s, u: (s[0] + u[0], s[1] | u[1], s[2] + 1), add))
        senders.send.call(port, *[(1, frozenset())] * 10).get(timeout=LIMIT)
        total, seen, messages = until(receiver, lambda state: state[0] == 80)
        assert (seen, messages) == (pids, 16)
        assert nothing_there(receiver)


@pytest.mark.feature(34)
def test_without_a_reducer_each_update_is_a_message():
    with processes(**NEVER) as procs:
        port, receiver = open_port(collected())
        assert type(port) is Port
        swarm(procs, 3).send.call(port, 1, 2).get(timeout=LIMIT)
        assert sorted(receiver.recv().get(timeout=0)) == [1, 1, 1, 2, 2, 2]


@pytest.mark.feature(34)
def test_arrays_are_reduced_in_place_and_the_sender_keeps_its_own():
    with processes(size=3, age="1h") as procs:
        port, receiver = open_port(Fold(0, operator.add, operator.iadd))
        swarm(procs, 3).send.call(port, numpy.arange(100_000)).get(timeout=LIMIT)
        assert (receiver.recv().get(timeout=0) == 3 * numpy.arange(100_000)).all()


@pytest.mark.feature(34)
def test_an_update_is_what_it_was_when_it_was_sent():
    with processes(size=2, age="1h") as procs:
        port, receiver = open_port(collected(lambda a, b: (a, b)))
        swarm(procs, 1).send_changing.call(port, ["first"]).get(timeout=LIMIT)
        assert receiver.recv().get(timeout=0) == [(["first"], ["changed"])]


@pytest.mark.feature(34)
def test_updates_of_many_threads_are_all_there():
    with processes(size=7) as procs:
        port, receiver = open_port(Fold(0, operator.add, operator.add))
        swarm(procs, 1).send_on_threads.call(port, *[[1] * 500] * 8).get(timeout=LIMIT)
        assert until(receiver, lambda state: state >= 4000) == 4000


# ---- What makes a batch leave ----


@pytest.mark.feature(34)
def test_a_batch_leaves_when_it_is_full():
    with processes(size=4, age="1h") as procs:
        a, b = swarm(procs).flatten("all").slice(all=0), swarm(procs).flatten("all").slice(all=1)
        port, receiver = open_port(collected(operator.add))
        a.send.call_one(port, 1, 2).get(timeout=LIMIT)
        b.send.call_one(port, 3).get(timeout=LIMIT)
        assert nothing_there(receiver)
        a.send.call_one(port, 4, 5).get(timeout=LIMIT)
        assert receiver.recv().get(timeout=0) == [10]
        assert nothing_there(receiver)


@pytest.mark.feature(34)
@pytest.mark.parametrize(("size", "age"), [(0, "1h"), (1, "1h"), (100, "0s")])
def test_nothing_is_held_back(size, age):
    with processes(size=size, age=age) as procs:
        port, receiver = open_port(collected(operator.add))
        swarm(procs).send.call(port, 1).get(timeout=LIMIT)
        assert receiver.recv().get(timeout=0) == [1, 1]


@pytest.mark.feature(34)
def test_a_batch_leaves_when_it_is_old_and_nothing_else_happens():
    with processes(size=1000, age="20ms") as procs:
        sender = swarm(procs, 1)
        for _ in range(3):  # the thread that does it sleeps in between
            port, receiver = open_port(Fold(0, operator.add, operator.add))
            sender.send.call(port, 1, 2).get(timeout=LIMIT)
            assert until(receiver, lambda state: state == 3) == 3


@pytest.mark.feature(34)
def test_the_keys_are_read_for_each_batch():
    class Configurable(Sender):
        @endpoint
        def configure(self, size):
            from monarch.config import configure

            configure(split_max_buffer_size=size)

    with processes(**NEVER) as procs:
        sender = swarm(procs, 1, Configurable)
        port, receiver = open_port(collected(operator.add))
        sender.configure.call(2).get(timeout=LIMIT)
        sender.send.call(port, 1, 2).get(timeout=LIMIT)
        assert receiver.recv().get(timeout=0) == [3]
        sender.configure.call(3).get(timeout=LIMIT)
        sender.send.call(port, 1, 2, 3, 4).get(timeout=LIMIT)
        assert receiver.recv().get(timeout=0) == [3, 6]


@pytest.mark.feature(34)
@pytest.mark.parametrize("of", ["actors", "processes"])
def test_a_stop_sends_what_is_held_back(of):
    with processes(2, **NEVER) as procs:
        senders = swarm(procs, 3)
        port, receiver = open_port(collected(operator.add))
        senders.send.call(port, 1, 2).get(timeout=LIMIT)
        assert nothing_there(receiver)
        (senders if of == "actors" else procs).stop().get(timeout=LIMIT)
        assert sum(until(receiver, lambda state: sum(state) == 18)) == 18


@pytest.mark.feature(34)
@pytest.mark.parametrize("cls", [Sender, SyncSender])
@pytest.mark.parametrize("how", ["stop", "abort", "fail"])
def test_an_actor_that_ends_sends_what_is_held_back(how, cls):
    with processes(**NEVER) as procs:
        port, receiver = open_port(collected(operator.add))
        procs.spawn("leaver", cls).leave.broadcast(port, 7, how)
        assert receiver.recv().get(timeout=LIMIT) == [7]


@pytest.mark.feature(34)
def test_a_process_that_ends_sends_what_an_actor_without_end_has_sent():
    class Endless(Actor):
        @endpoint
        def hang(self, port, sent):
            port.send(1)
            sent.send(True)
            threading.Event().wait()

    with configured(cleanup_timeout="100ms"), processes(**NEVER) as procs:
        (port, receiver), (sent, told) = open_port(collected(operator.add)), Channel.open()
        procs.spawn("endless", Endless).hang.broadcast(port, sent)
        told.recv().get(timeout=LIMIT)
        procs.stop().get(timeout=LIMIT)
        assert receiver.recv().get(timeout=LIMIT) == [1]


@pytest.mark.feature(34)
def test_what_is_sent_while_an_actor_cleans_up_arrives():
    class Last(Actor):
        def __init__(self, port):
            self.port = port

        @endpoint
        def hello(self):
            pass

        def __cleanup__(self, exc):
            self.port.send(1)
            raise ValueError("after that")

    with processes(**NEVER) as procs:
        port, receiver = open_port(collected(operator.add))
        mesh = procs.spawn("last", Last, port)
        mesh.hello.call().get(timeout=LIMIT)
        mesh.stop().get(timeout=LIMIT)
        assert receiver.recv().get(timeout=LIMIT) == [1]


@pytest.mark.feature(34)
@pytest.mark.parametrize("end", ["by itself", "shutdown_context"])
def test_the_end_of_a_script_sends_what_is_held_back(end):
    run = Run(program("reducers/end_of_a_script.py"), args=(end,)).ok()
    assert run.line("total ") == "45"


@pytest.mark.feature(34)
def test_a_reducer_that_does_not_return_holds_up_no_end():
    run = Run(program("reducers/a_reducer_that_does_not_return_holds_up_no_end.py"))
    run.line("stuck")
    run.tell("end\n")
    run.ok(limit=10)


# ---- One batch of a process for each port ----


@pytest.mark.feature(34)
def test_copies_of_a_port_share_a_batch_and_two_ports_do_not():
    with processes(size=2, age="1h") as procs:
        one, other = (swarm(procs).slice(actors=0), swarm(procs).slice(actors=1))
        (port, receiver), (port_2, receiver_2) = (open_port(collected(operator.add)) for _ in range(2))
        one.keep.call_one(port).get(timeout=LIMIT)
        one.send_kept.call_one(1).get(timeout=LIMIT)
        other.send.call_one(port_2, 100).get(timeout=LIMIT)
        assert nothing_there(receiver) and nothing_there(receiver_2)
        other.send.call_one(port, 2).get(timeout=LIMIT)
        assert receiver.recv().get(timeout=0) == [3]
        assert nothing_there(receiver_2)


@pytest.mark.feature(34)
def test_a_port_that_is_passed_on_takes_its_reducer_along():
    with processes(2, size=2, age="1h") as procs:
        senders = procs.spawn("senders", Sender)
        first, second = senders.slice(procs=0), senders.slice(procs=1)
        port, receiver = open_port(collected(lambda a, b: (a, b, os.getpid())))
        for update in (1, 2):
            first.hand_on.call_one(second, port, update).get(timeout=LIMIT)
        pid = second.pid.call_one().get(timeout=LIMIT)
        assert receiver.recv().get(timeout=LIMIT) == [(1, 2, pid)]  # on another way than the answers, so waited for


@pytest.mark.feature(34)
def test_an_actor_opens_one_for_others_and_itself():
    class Owner(Sender):
        @endpoint
        def open(self):
            port, self.receiver = open_port(collected(operator.add))
            return port

        @endpoint
        def state(self):
            return self.receiver.recv().get(timeout=LIMIT)

    with processes(2, size=2, age="1h") as procs:
        actors = procs.spawn("owners", Owner)
        owner, other = actors.slice(procs=0), actors.slice(procs=1)
        port = owner.open.call_one().get(timeout=LIMIT)
        owner.send.call_one(port, 1).get(timeout=LIMIT)  # it has come home: nothing is held back
        assert owner.state.call_one().get(timeout=LIMIT) == [1]
        other.send.call_one(port, 2, 3).get(timeout=LIMIT)
        assert owner.state.call_one().get(timeout=LIMIT) == [1, 5]


@pytest.mark.feature(34)
def test_in_the_process_that_opened_it_nothing_is_held_back():
    with configured(split_max_buffer_size=1000, split_max_buffer_age="1h"), local_procs() as procs:
        port, receiver = open_port(collected(operator.add))
        port.send(1)
        procs.spawn("local", Sender).send.call_one(port, 2, 3).get(timeout=LIMIT)
        assert receiver.recv().get(timeout=0) == [1, 2, 3]


@pytest.mark.feature(34)
def test_a_reducer_that_cannot_be_pickled_is_refused_where_the_port_is():
    lock = threading.Lock()
    port, receiver = open_port(collected(lambda a, b: lock and a + b))
    port.send(1)
    with processes() as procs:
        sender = swarm(procs, 1)
        with pytest.raises(TypeError, match="its reducer <function .*lambda.* cannot be pickled: .*lock"):
            sender.send.call(port, 1)
        assert receiver.recv().get(timeout=0) == [1]


@pytest.mark.feature(34)
def test_an_update_that_cannot_be_pickled_raises_at_its_send():
    class Locks(Sender):
        @endpoint
        def send_lock(self, port):
            port.send(threading.Lock())

    with processes(size=2, age="1h") as procs:
        sender = swarm(procs, 1, Locks)
        port, receiver = open_port(collected(operator.add))
        sender.send.call(port, 1).get(timeout=LIMIT)
        with pytest.raises(ActorError, match="cannot pickle"):
            sender.send_lock.call_one(port).get(timeout=LIMIT)
        sender.send.call(port, 2).get(timeout=LIMIT)
        assert receiver.recv().get(timeout=0) == [3]


# ---- Failures ----


@pytest.mark.feature(34)
@pytest.mark.parametrize("kind", [ValueError, SystemExit])
@pytest.mark.parametrize("full", [True, False])
def test_what_a_reducer_raises_is_raised_by_recv_and_hurts_nobody(kind, full):
    def reduce(a, b):
        if "bad" in (a, b):
            raise kind("from the reducer")
        return a + b

    with processes(size=3 if full else 1000, age="1h" if full else "300ms") as procs:
        senders = swarm(procs, 3)
        port, receiver = open_port(collected(reduce))
        updates = ["a", "bad", "c"]
        for actor, some in enumerate([[update] for update in updates] if full else [updates]):
            senders.slice(actors=actor).send.call_one(port, *some).get(timeout=LIMIT)
        with pytest.raises(ActorError, match="from the reducer") as caught:
            until(receiver, lambda state: False)
        assert type(caught.value.exception) is kind
        assert "in reduce" in str(caught.value)
        assert "/monarch/_ports/reducing_port.py" not in str(caught.value)  # nobody else's frames
        assert f"process {senders.slice(actors=0).pid.call_one().get(timeout=LIMIT)}; " in str(caught.value)
        assert "3 updates are lost" in str(caught.value)
        if full:
            senders.send.call(port, "d").get(timeout=LIMIT)
            assert receiver.recv().get(timeout=0) == ["ddd"]


@pytest.mark.feature(34)
def test_what_a_reducer_raises_needs_no_pickle_and_others_go_on_being_sent_when_they_are_old():
    def reduce(a, b):
        if "bad" in (a, b):
            raise ValueError(threading.Lock())
        return a + b

    with processes(size=1000, age="20ms") as procs:
        sender = swarm(procs, 1)
        port, receiver = open_port(collected(reduce))
        sender.send.call(port, "a", "bad").get(timeout=LIMIT)
        with pytest.raises(ActorError) as raised:
            until(receiver, lambda state: False)
        assert "the exception itself cannot be pickled" in str(raised.value.exception)
        sender.send.call(port, "b").get(timeout=LIMIT)
        assert receiver.recv().get(timeout=LIMIT) == ["b"]


@pytest.mark.feature(34)
def test_updates_whose_failure_cannot_be_sent_are_a_line_on_stderr_and_others_are_sent(capfd):
    class PicklesOnce(Exception):
        times = 0

        def __reduce__(self):
            type(self).times += 1
            if self.times > 1:
                raise TypeError("once only")
            return RuntimeError, ()

    def reduce(a, b):
        if "bad" in (a, b):
            raise PicklesOnce
        return a + b

    with processes(size=1000, age="20ms") as procs:
        sender = swarm(procs, 1)
        failing, _ = open_port(collected(reduce))
        port, receiver = open_port(collected(reduce))
        sender.send.call(failing, "a", "bad").get(timeout=LIMIT)
        while "could not be sent" not in (err := capfd.readouterr().err):
            sender.pid.call().get(timeout=LIMIT)  # what it has printed comes with its answers
        assert "once only" in err
        sender.send.call(port, "b", "c").get(timeout=LIMIT)
        assert until(receiver, lambda state: True) == ["bc"]


@pytest.mark.feature(34)
def test_a_combined_update_that_cannot_be_pickled_is_an_error_of_the_receiver():
    with processes(size=2, age="1h") as procs:
        port, receiver = open_port(collected(lambda a, b: threading.Lock()))
        swarm(procs).send.call(port, 1).get(timeout=LIMIT)
        with pytest.raises(ActorError, match="cannot pickle"):
            receiver.recv().get(timeout=LIMIT)


@pytest.mark.feature(34)
def test_an_exception_that_is_sent_keeps_its_place():
    with processes(**NEVER) as procs:
        sender = swarm(procs, 1)
        port, receiver = open_port(collected(operator.add))
        sender.fail.call(port, 1, KeyError("sent"), 2).get(timeout=LIMIT)
        assert receiver.recv().get(timeout=0) == [1]
        with pytest.raises(KeyError, match="sent"):
            receiver.recv().get(timeout=0)
        sender.stop().get(timeout=LIMIT)
        assert receiver.recv().get(timeout=LIMIT) == [1, 2]


@pytest.mark.feature(34)
@pytest.mark.parametrize("told", [True, False])
def test_the_sender_of_the_last_update_hears_that_the_receiver_is_gone(told):
    with processes(size=2, age="1h") as procs:
        senders = swarm(procs)
        one, other = senders.slice(actors=0), senders.slice(actors=1)
        port, receiver = open_port(collected(operator.add))
        port.return_undeliverable = told
        one.send.call_one(port, 1).get(timeout=LIMIT)
        del receiver
        gc.collect()
        other.send.call_one(port, 2).get(timeout=LIMIT)
        # The way to the script and back: its refusal comes before what it sends afterwards.
        found = senders.found_nobody.call().get(timeout=LIMIT)
        assert [len(texts) for texts in found.values()] == [0, 1 if told else 0]
        if told:
            assert "the port is closed" in list(found.values())[1][0]


@pytest.mark.feature(34)
def test_who_fills_a_batch_waits_for_a_slow_receiver_and_others_do_not():
    class Owner(Actor):
        @endpoint
        def open(self):
            port, self.receiver = open_port(collected(operator.add))
            return port

        @endpoint
        def hello(self):
            pass

        @endpoint
        def take(self, done):
            return sum(map(len, until(self.receiver, lambda state: sum(map(len, state)) >= done)))

    class Flooder(Sender):
        @endpoint
        def flood(self, port, owner):
            """Until its owner asks to hold back; then holds back one byte."""
            for _ in range(66):
                port._post(bytes(1 << 20), False, 0)  # waits for nothing
            owner.hello.call_one().get(timeout=LIMIT)  # it has arrived
            while port._has_room():
                owner.hello.call_one().get(timeout=LIMIT)
            port.send(b"x")

        @endpoint
        def send_one_more(self, port):
            with deadline(0.1):
                port.send(b"not sent")

    with processes(2, size=2, age="20ms") as procs:
        owner = procs.slice(procs=0).spawn("owner", Owner)
        flooder = procs.slice(procs=1).spawn("flooder", Flooder)
        slow = owner.open.call_one().get(timeout=LIMIT)
        flooder.flood.call_one(slow, owner).get(timeout=LIMIT)
        with pytest.raises(ActorError, match="nothing was sent"):
            flooder.send_one_more.call_one(slow).get(timeout=LIMIT)
        for _ in range(3):
            port, receiver = open_port(collected(operator.add))
            flooder.send.call_one(port, b"y").get(timeout=LIMIT)
            assert receiver.recv().get(timeout=LIMIT) == [b"y"]
        assert owner.take.call_one((66 << 20) + 1).get(timeout=LIMIT) == (66 << 20) + 1
