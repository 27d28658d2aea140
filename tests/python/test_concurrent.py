"""Concurrent endpoints: their bodies overlap; when they start and end."""

import asyncio
import os

import pytest

from monarch.actor import Actor, ActorError, Channel, SupervisionError, as_endpoint, concurrent_endpoint, endpoint

LIMIT = 30


class Server(Actor):
    def __init__(self, port=None):
        self.begun = []
        self.gates = {}
        self.port = port

    @concurrent_endpoint
    async def serve(self, name):
        self.begun.append(name)
        gate = self.gates[name] = asyncio.Event()
        try:
            await gate.wait()
            return name
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            if self.port is not None:
                self.port.send(f"{name} cancelled")
            raise

    @concurrent_endpoint
    async def note(self, number):
        self.begun.append(number)
        await asyncio.sleep(0)

    @concurrent_endpoint
    async def fail(self):
        await asyncio.sleep(0)
        raise ValueError("failed")

    @endpoint
    async def open(self, name):
        self.gates[name].set()

    @endpoint
    async def names(self):
        await asyncio.sleep(0)
        return self.begun

    @endpoint
    def sync(self):
        return len(self.begun)

    @endpoint
    async def hold(self, port, gate):
        port.send(None)
        with open(gate) as fifo:  # the whole event loop waits for somebody to open it for writing
            fifo.read()

    async def __cleanup__(self, exc):
        if self.port is not None:
            self.port.send("clean-up")


def names_of(server, count):
    while len(names := server.names.call_one().get(timeout=LIMIT)) < count:
        pass
    return names


@pytest.mark.feature(5, "bodies overlap")
def test_bodies_overlap_and_end_in_any_order(procs):
    server = procs.slice(gpus=0).spawn("server", Server)
    futures = {name: server.serve.call_one(name) for name in "abc"}
    assert names_of(server, 3) == ["a", "b", "c"]
    for name in "cab":
        server.open.call_one(name).get(timeout=LIMIT)
        assert futures[name].get(timeout=LIMIT) == name


@pytest.mark.feature(5, "they start in order")
def test_bodies_start_in_the_order_of_their_sender(procs):
    server = procs.slice(gpus=0).spawn("server", Server)
    for i in range(500):
        server.note.broadcast(i)
    assert names_of(server, 500) == list(range(500))


@pytest.mark.feature(5)
def test_others_are_handled_meanwhile(procs):
    server = procs.slice(gpus=1).spawn("server", Server)
    waiting = server.serve.call_one("a")
    names_of(server, 1)
    assert server.sync.call_one().get(timeout=LIMIT) == 1
    with pytest.raises(TimeoutError):
        waiting.get(timeout=0)


@pytest.mark.feature(5, 62)
def test_an_exception_goes_to_the_caller_and_the_actor_lives(procs):
    server = procs.slice(gpus=1).spawn("server", Server)
    waiting = server.serve.call_one("a")
    with pytest.raises(ActorError, match="failed"):
        server.fail.call_one().get(timeout=LIMIT)
    names_of(server, 1)
    server.open.call_one("a").get(timeout=LIMIT)
    assert waiting.get(timeout=LIMIT) == "a"
    server.fail.broadcast()
    with pytest.raises(SupervisionError, match="failed"):
        while True:
            server.names.call_one().get(timeout=LIMIT)


@pytest.mark.feature(5, "cancelled before the clean-up", 20)
def test_what_is_outstanding_is_cancelled_and_awaited_before_the_clean_up(procs):
    port, receiver = Channel.open()
    server = procs.slice(gpus=0).spawn("server", Server, port)
    waiting = [server.serve.call_one(name) for name in "ab"]
    names_of(server, 2)
    server.stop().get(timeout=LIMIT)
    said = [receiver.recv().get(timeout=LIMIT) for _ in range(3)]
    assert (sorted(said[:2]), said[2]) == (["a cancelled", "b cancelled"], "clean-up")
    for future in waiting:
        with pytest.raises(SupervisionError, match="stopped by client"):
            future.get(timeout=LIMIT)


@pytest.mark.parametrize("alone", (True, False), ids=("alone", "in a swarm"))
def test_a_call_right_before_a_stop_is_answered(procs, alone, tmp_path):
    """Both are in the mailbox at once: the body has had no turn of the event loop when the actor ends."""
    mesh = procs.slice(gpus=0)
    server = (mesh if alone else mesh.options(per_proc={"swarm": 1})).spawn("right_before", Server)
    os.mkfifo(tmp_path / "gate")
    port, receiver = Channel.open()
    server.hold.broadcast(port, str(tmp_path / "gate"))
    receiver.recv().get(timeout=LIMIT)
    call, stopped = server.serve.call("late"), server.stop()
    (tmp_path / "gate").write_text("")
    stopped.get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match="stopped"):
        call.get(timeout=LIMIT)


@pytest.mark.feature(3, "a backlog does not starve the loop")
def test_a_backlog_does_not_starve_what_has_started(procs):
    """An ordinary endpoint that never waits, a thousand times in the mailbox: a body that has begun gets its turns."""

    class Busy(Actor):
        def __init__(self):
            self.handled = 0

        @concurrent_endpoint
        async def start(self, port):
            gate, receiver = Channel.open()
            port.send(gate)
            await receiver.recv()
            at_start = self.handled
            await asyncio.sleep(0)
            return at_start, self.handled

        @endpoint
        async def handle(self):
            self.handled += 1

    port, receiver = Channel.open()
    busy = procs.slice(gpus=0).spawn("busy", Busy)
    started = busy.start.call_one(port)
    gate = receiver.recv().get(timeout=LIMIT)
    gate.send("go on")
    for _ in range(5000):
        busy.handle.broadcast()
    at_start, after = started.get(timeout=LIMIT)
    assert after - at_start <= 64


def test_an_async_method_has_no_loop_in_a_sync_actor(procs):
    class Sync(Actor):
        @endpoint
        def ping(self):
            return "alive"

        async def wait(self):
            return 1

        def plain(self, x):
            return x

    sync = procs.slice(gpus=0).spawn("sync", Sync)
    with pytest.raises(ActorError, match="so it has no event loop to run on") as raised:
        as_endpoint(sync.wait).call_one().get(timeout=LIMIT)
    assert type(raised.value.exception) is TypeError
    assert as_endpoint(sync.plain).call_one(1).get(timeout=LIMIT) == 1
    assert sync.ping.call_one().get(timeout=LIMIT) == "alive"
