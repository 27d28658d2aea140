"""Hooks of an actor: clean-up, and one-way messages that found nobody (contract clause 5)."""

import asyncio
import os

import pytest

from monarch.actor import Actor, Channel, SupervisionError, concurrent_endpoint, context, endpoint, this_host
from monarch.config import configured

LIMIT = 30


class Sink(Actor):
    @endpoint
    def address(self):
        return context().actor_instance.actor_id

    @endpoint
    def take(self, x):
        return x


class Sender(Actor):
    def __init__(self, forgiving, path=None):
        self.forgiving = forgiving
        self.path = path
        self.told = []

    @endpoint
    def send(self, sink):
        sink.take.broadcast(1)

    @endpoint
    def texts(self):
        return self.told

    def _handle_undeliverable_message(self, message):
        self.told.append((message.error_msg(), message.sender(), message.dest()))
        return self.forgiving

    def __cleanup__(self, exc):
        if self.path:
            with open(self.path, "w") as file:
                file.write(repr(exc))


def wait_until_told(sender):
    while not (texts := sender.texts.call_one().get(timeout=LIMIT)):
        pass
    return texts


@pytest.mark.feature(32, "the hook is asked")
def test_a_sender_that_deals_with_undeliverable_messages_lives(procs):
    sink = procs.slice(gpus=0).spawn("sink", Sink)
    address = sink.address.call_one().get(timeout=LIMIT)
    sink.stop().get(timeout=LIMIT)
    sender = procs.slice(gpus=1).spawn("sender", Sender, True)
    sender.send.call_one(sink).get(timeout=LIMIT)
    ((text, who, dest),) = wait_until_told(sender)
    assert "stopped: stopped by client" in text
    assert "Sender sender" in who
    assert address == "sink" + dest


@pytest.mark.feature(32, "without it the sender fails")
def test_a_sender_that_does_not_fails(procs):
    sink = procs.slice(gpus=0).spawn("sink", Sink)
    sink.stop().get(timeout=LIMIT)
    sender = procs.slice(gpus=1).spawn("sender", Sender, False)
    sender.send.call_one(sink).get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match="undeliverable message"):
        wait_until_told(sender)


@pytest.mark.feature(20, "on a stop", "on a failure, with the exception")
def test_clean_up_runs_on_a_stop_and_on_a_failure(procs, tmp_path):
    stopped = procs.slice(gpus=0).spawn("stopped", Sender, True, str(tmp_path / "stopped"))
    stopped.texts.call_one().get(timeout=LIMIT)
    stopped.stop().get(timeout=LIMIT)
    assert (tmp_path / "stopped").read_text() == "None"

    class Failing(Sender):
        @endpoint
        def fail(self):
            raise SystemExit("enough")

    failing = procs.slice(gpus=0).spawn("failing", Failing, True, str(tmp_path / "failed"))
    with pytest.raises(SupervisionError, match="enough"):
        failing.fail.call_one().get(timeout=LIMIT)
    failing.stop().get(timeout=LIMIT)
    assert "enough" in (tmp_path / "failed").read_text()


@pytest.mark.feature(20, "on a stop")
def test_async_clean_up_runs_on_the_actors_loop(procs, tmp_path):
    path = str(tmp_path / "async")

    class Async(Actor):
        @endpoint
        async def hello(self):
            return 1

        async def __cleanup__(self, exc):
            import asyncio

            await asyncio.sleep(0)
            with open(path, "w") as file:
                file.write(repr(exc))

    actor = procs.slice(gpus=0).spawn("async", Async)
    assert actor.hello.call_one().get(timeout=LIMIT) == 1
    actor.stop().get(timeout=LIMIT)
    with open(path) as file:
        assert file.read() == "None"


class SlowToEnd(Actor):
    def __init__(self, path):
        self.path = path

    @endpoint
    async def ready(self):
        pass

    async def __cleanup__(self, exc):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with open(self.path, "w") as file:
                file.write("cancelled")
            raise


@pytest.mark.feature(20, "within cleanup_timeout")
def test_a_clean_up_that_takes_too_long_is_cancelled_and_counts_as_a_failure(tmp_path, capfd):
    with configured(cleanup_timeout="200ms"):
        procs = this_host().spawn_procs()
    actor = procs.spawn("slow", SlowToEnd, str(tmp_path / "log"))
    actor.ready.call_one().get(timeout=LIMIT)
    actor.stop().get(timeout=LIMIT)
    assert (tmp_path / "log").read_text() == "cancelled"
    with pytest.raises(SupervisionError, match="stopped|__cleanup__"):
        actor.ready.call_one().get(timeout=LIMIT)
    procs.stop().get(timeout=LIMIT)


class EndsWhenTold(Actor):
    def __init__(self, port):
        self.port = port
        self.told, self.receiver = Channel.open()

    @endpoint
    async def get_port(self):
        return self.told

    async def __cleanup__(self, exc):
        self.port.send("cleaning up")
        await self.receiver.recv()


alone_or_not = pytest.mark.parametrize("alone", (True, False), ids=("alone", "in a swarm"))


@pytest.mark.feature(20)
@alone_or_not
def test_a_call_does_not_wait_for_an_async_clean_up(alone):
    with configured(cleanup_timeout="1m"):
        procs = this_host().spawn_procs()
    port, receiver = Channel.open()
    actor = (procs if alone else procs.options(per_proc={"swarm": 1})).spawn("ends", EndsWhenTold, port)
    told = next(iter(actor.get_port.call().get(timeout=LIMIT).values()))
    stopping = actor.stop("enough")
    assert receiver.recv().get(timeout=LIMIT) == "cleaning up"
    with pytest.raises(SupervisionError, match="stopped: enough"):
        actor.get_port.call().get(timeout=LIMIT)
    with pytest.raises(TimeoutError):
        stopping.get(timeout=0)
    told.send(None)
    stopping.get(timeout=LIMIT)
    procs.stop().get(timeout=LIMIT)


async def go_on():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass


class Stubborn(Actor):
    def __init__(self, where):
        self.where = where

    @endpoint
    async def begin(self):
        if self.where == "a task of its own":
            self.task = asyncio.ensure_future(go_on())

    @concurrent_endpoint
    async def serve(self):
        if self.where == "an endpoint":
            await go_on()

    async def __cleanup__(self, exc):
        if self.where == "the hook":
            await go_on()


@pytest.mark.feature(5, 20)
@alone_or_not
@pytest.mark.parametrize("where", ["an endpoint", "a task of its own", "the hook"])
@pytest.mark.parametrize("deadline", [None, 60.0])
def test_code_that_goes_on_when_it_is_cancelled_does_not_hold_up_the_end_of_its_actor(capfd, alone, where, deadline):
    with configured(cleanup_timeout="50ms"):
        procs = this_host().spawn_procs()
    actor = (procs if alone else procs.options(per_proc={"swarm": 1})).spawn("stubborn", Stubborn, where)
    actor.begin.call().get(timeout=LIMIT)
    serving = actor.serve.options(deadline=deadline).call()
    actor.stop("enough").get(timeout=LIMIT)
    if where == "an endpoint":
        with pytest.raises(SupervisionError, match="stopped: enough"):
            serving.get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match="stopped: enough"):
        actor.begin.call().get(timeout=LIMIT)
    procs.stop().get(timeout=LIMIT)
    assert "Task" not in capfd.readouterr().err


class AsyncHook(Actor):
    def __init__(self, forgiving):
        self.forgiving = forgiving
        self.told = 0

    @endpoint
    async def send(self, sink):
        sink.take.broadcast(1)

    @endpoint
    async def count(self):
        return self.told

    async def _handle_undeliverable_message(self, message):
        await asyncio.sleep(0)
        self.told += 1
        return self.forgiving


class SyncWithAsyncHooks(Actor):
    def __init__(self, path):
        self.path = path
        self.told = 0

    @endpoint
    def send(self, sink):
        sink.take.broadcast(1)

    @endpoint
    def count(self):
        return self.told

    async def _handle_undeliverable_message(self, message):
        await asyncio.sleep(0)
        self.told += 1
        return True

    async def __cleanup__(self, exc):
        await asyncio.sleep(0)
        with open(self.path, "w") as file:
            file.write(repr(exc))


class AsyncWithSyncHooks(Actor):
    def __init__(self, path):
        self.path = path
        self.told = 0

    @endpoint
    async def send(self, sink):
        sink.take.broadcast(1)

    @endpoint
    async def count(self):
        return self.told

    def _handle_undeliverable_message(self, message):
        self.told += 1
        return True

    def __cleanup__(self, exc):
        with open(self.path, "w") as file:
            file.write(repr(exc))


@pytest.mark.feature(4, "hooks of either kind")
@pytest.mark.parametrize("cls", [SyncWithAsyncHooks, AsyncWithSyncHooks])
def test_hooks_may_be_of_the_other_kind_than_the_endpoints(procs, tmp_path, cls):
    sink = procs.slice(gpus=0).spawn("sink", Sink)
    sink.stop().get(timeout=LIMIT)
    actor = procs.slice(gpus=1).spawn("mixed", cls, str(tmp_path / "log"))
    actor.send.call_one(sink).get(timeout=LIMIT)
    while not actor.count.call_one().get(timeout=LIMIT):
        pass
    actor.stop().get(timeout=LIMIT)
    assert (tmp_path / "log").read_text() == "None"


@pytest.mark.feature(32)
def test_an_async_hook_is_awaited_and_decides(procs):
    sink = procs.slice(gpus=0).spawn("sink", Sink)
    sink.take.call_one(1).get(timeout=LIMIT)
    sink.stop().get(timeout=LIMIT)
    forgiving, strict = (procs.slice(gpus=1).spawn("hook", AsyncHook, says) for says in (True, False))
    for actor in (forgiving, strict):
        actor.send.call_one(sink).get(timeout=LIMIT)
    while not forgiving.count.call_one().get(timeout=LIMIT):
        pass
    with pytest.raises(SupervisionError, match="undeliverable message"):
        while True:
            strict.count.call_one().get(timeout=LIMIT)
    assert forgiving.count.call_one().get(timeout=LIMIT) == 1


class Mortal(Actor):
    @endpoint
    def die(self):
        os._exit(3)


@pytest.mark.feature(52)
def test_a_mesh_that_has_lost_a_process_can_be_stopped():
    procs = this_host().spawn_procs({"gpus": 2})
    actors = procs.spawn("mortal", Mortal)
    with pytest.raises(SupervisionError, match="code 3"):
        actors.slice(gpus=0).die.call_one().get(timeout=LIMIT)
    assert actors.stop().get(timeout=LIMIT) is None
    assert procs.stop().get(timeout=LIMIT) is None


class Ends(Actor):
    def __init__(self, path):
        self.path = path

    @endpoint
    def end(self, how):
        getattr(context().actor_instance, how)("enough")
        return "the message is handled to its end"

    @endpoint
    def ping(self):
        return True

    def __cleanup__(self, exc):
        with open(self.path, "w") as file:
            file.write(repr(exc))


@pytest.mark.feature(19, "abort and kill are failures")
@pytest.mark.parametrize(
    ("how", "text", "cause"),
    [
        ("stop", "stopped: enough", "None"),
        ("abort", "actor explicitly aborted due to: enough", "RuntimeError"),
        ("kill", "actor explicitly aborted due to: enough", "RuntimeError"),
    ],
)
def test_an_actor_ends_itself_after_the_message(procs, tmp_path, how, text, cause):
    actor = procs.slice(gpus=0).spawn("ends", Ends, str(tmp_path / "log"))
    assert actor.end.call_one(how).get(timeout=LIMIT) == "the message is handled to its end"
    with pytest.raises(SupervisionError, match=text):
        actor.ping.call_one().get(timeout=LIMIT)
    actor.stop().get(timeout=LIMIT)
    assert (tmp_path / "log").read_text().startswith(cause)


@pytest.mark.feature(52, "slices and references do not stop")
def test_slices_and_received_process_meshes_do_not_stop(procs):
    import pickle

    for reference in (procs.slice(gpus=0), pickle.loads(pickle.dumps(procs))):
        with pytest.raises(ValueError, match="ProcMesh is not owned; must be stopped by an owner"):
            reference.stop()
