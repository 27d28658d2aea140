"""Hooks of an actor: clean-up, and one-way messages that found nobody (api.md 2.1, contract clause 5)."""

import pytest

from monarch.actor import Actor, SupervisionError, context, endpoint

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


@pytest.mark.feature(32)
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


@pytest.mark.feature(32)
def test_a_sender_that_does_not_fails(procs):
    sink = procs.slice(gpus=0).spawn("sink", Sink)
    sink.stop().get(timeout=LIMIT)
    sender = procs.slice(gpus=1).spawn("sender", Sender, False)
    sender.send.call_one(sink).get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match="undeliverable message"):
        wait_until_told(sender)


@pytest.mark.feature(20)
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


@pytest.mark.feature(20)
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
