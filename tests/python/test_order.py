"""Order: first in, first out for each pair of sender and receiver, whatever the adverb, the slice and the transport
(contract clause 1), and answers in the order in which they come."""

import asyncio
import threading

import pytest
from script_run import WAYS, Run, program

from monarch.actor import Actor, concurrent_endpoint, current_rank, endpoint

LIMIT = 30

SENDERS = program("order/senders.py")


@pytest.mark.feature(16, "casts, calls and slices in order", "over every transport")
@pytest.mark.parametrize("way", WAYS)
def test_each_of_many_senders_keeps_its_order_over_casts_slices_and_calls(way):
    assert Run(SENDERS, way=way).ok(limit=120).out == "in order\n"


class Gate(Actor):
    """Answers when it is told to."""

    def __init__(self):
        self.open = None

    @concurrent_endpoint
    async def wait(self):
        self.open = asyncio.Event()
        await self.open.wait()
        return current_rank().rank

    @concurrent_endpoint
    async def release(self):
        while self.open is None:
            await asyncio.sleep(0)
        self.open.set()


@pytest.mark.feature(13, "in order of arrival")
def test_stream_gives_answers_in_the_order_in_which_they_arrive():
    from monarch.actor import this_host

    with this_host().spawn_procs({"gpus": 3}) as procs:
        gates = procs.spawn("gates", Gate)
        answers = gates.wait.stream()
        order = []
        for rank in (2, 0, 1):
            gates.slice(gpus=rank).release.call_one().get(timeout=LIMIT)
            order.append(next(answers).get(timeout=LIMIT))
        # an answer of a slice is ranked in the mesh that was asked
        assert order == [2, 0, 1]
        assert next(answers, None) is None


class Backlog(Actor):
    def __init__(self):
        self.handled = 0
        self.ticks = 0
        self.at_tick = []

    @concurrent_endpoint
    async def tick(self, times):
        """A task of its own, which needs turns of the loop."""
        for _ in range(times):
            self.at_tick.append(self.handled)
            await asyncio.sleep(0)

    @endpoint
    async def handle(self):
        self.handled += 1

    @endpoint
    async def report(self):
        return self.at_tick


@pytest.mark.feature(3, "a backlog does not starve the loop")
def test_a_backlog_does_not_starve_tasks_of_the_loop(procs):
    actor = procs.slice(gpus=0).spawn("backlog", Backlog)
    actor.report.call_one().get(timeout=LIMIT)
    actor.tick.call_one(20)
    for _ in range(5000):
        actor.handle.broadcast()
    at_tick = actor.report.call_one().get(timeout=LIMIT)
    assert len(at_tick) == 20 and at_tick[-1] < 5000, "the task had its turns while messages waited"


class Overlapping(Actor):
    def __init__(self, path):
        self.path = path
        self.log = []

    @concurrent_endpoint
    async def run(self, number):
        self.log.append(number)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.log.append(("cancelled", number))
            raise

    @endpoint
    async def started(self):
        return list(self.log)

    async def __cleanup__(self, exc):
        with open(self.path, "w") as file:
            file.write(repr(self.log))


@pytest.mark.feature(5)
def test_concurrent_calls_start_in_order_and_are_cancelled_before_the_clean_up(procs, tmp_path):
    path = tmp_path / "log"
    actor = procs.slice(gpus=0).spawn("overlapping", Overlapping, str(path))
    for i in range(50):
        actor.run.call_one(i)
    while len(actor.started.call_one().get(timeout=LIMIT)) < 50:
        pass
    assert actor.started.call_one().get(timeout=LIMIT) == list(range(50))
    actor.stop().get(timeout=LIMIT)
    log = eval(path.read_text())
    assert log[:50] == list(range(50)) and sorted(log[50:]) == [("cancelled", i) for i in range(50)]


class Threads(Actor):
    def __init__(self, path):
        self.path = path
        self.local = threading.local()
        self.local.value = "set in the constructor"

    @endpoint
    def here(self):
        return threading.get_ident(), self.local.value

    @endpoint
    def send_to(self, sink):
        self.ident = threading.get_ident()
        sink.here.broadcast()

    @endpoint
    def told(self):
        return getattr(self, "hook_ident", None) == self.ident

    def _handle_undeliverable_message(self, message):
        self.hook_ident = threading.get_ident()
        return True

    def __cleanup__(self, exc):
        with open(self.path, "w") as file:
            file.write(f"{threading.get_ident()} {self.local.value}")


@pytest.mark.feature(17, "constructor, hooks and endpoints")
def test_hooks_run_on_the_actors_thread_too(procs, tmp_path):
    gone = procs.slice(gpus=1).spawn("gone", Threads, str(tmp_path / "gone"))
    gone.here.call_one().get(timeout=LIMIT)
    gone.stop().get(timeout=LIMIT)
    actor = procs.slice(gpus=0).spawn("threads", Threads, str(tmp_path / "log"))
    ident, value = actor.here.call_one().get(timeout=LIMIT)
    assert value == "set in the constructor"
    actor.send_to.call_one(gone).get(timeout=LIMIT)
    while not actor.told.call_one().get(timeout=LIMIT):
        pass
    actor.stop().get(timeout=LIMIT)
    assert (tmp_path / "log").read_text() == f"{ident} set in the constructor"
