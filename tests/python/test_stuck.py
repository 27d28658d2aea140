"""``stop()`` of an actor that is stuck: after ``cleanup_timeout`` its callers are answered, and it is left behind."""

import asyncio
import threading
import time

import pytest
from script_run import Run, program

from monarch.actor import Actor, Channel, SupervisionError, concurrent_endpoint, endpoint, this_host
from monarch.config import configured

LIMIT = 30


class Stuck(Actor):
    def __init__(self, port=None):
        self.release = threading.Event()
        if port is not None:
            port.send("in the constructor")
            self.release.wait()

    @endpoint
    def hang(self, port):
        port.send("in the endpoint")
        self.release.wait()

    @endpoint
    def nap(self, seconds):
        time.sleep(seconds)
        return seconds


class AsyncStuck(Actor):
    @endpoint
    async def hang(self, port):
        port.send("in the endpoint")
        await asyncio.Event().wait()

    @concurrent_endpoint
    async def pause(self, port):
        port.send("paused")
        await asyncio.Event().wait()

    @endpoint
    async def block(self, port):
        port.send("blocks its loop")
        threading.Event().wait()

    @endpoint
    async def nap(self, seconds):
        return seconds


@pytest.fixture
def one(request):
    with configured(cleanup_timeout=getattr(request, "param", "300ms")):
        with this_host().spawn_procs() as own:  # takes the configuration along
            yield own


def begun(port_receiver):
    return port_receiver.recv().get(timeout=LIMIT)


def refused(future):
    with pytest.raises(SupervisionError, match="stopped: enough"):
        future.get(timeout=LIMIT)


@pytest.mark.feature(52)
@pytest.mark.parametrize("kind", [Stuck, AsyncStuck])
def test_an_actor_that_hangs_in_an_endpoint_is_left_behind(one, kind):
    port, receiver = Channel.open()
    actor = one.spawn("stuck", kind)
    calls = [actor.hang.call_one(port), actor.nap.call_one(0)]
    begun(receiver)
    assert actor.stop("enough").get(timeout=LIMIT) is None
    for call in calls:
        refused(call)
    refused(actor.nap.call_one(0))
    assert actor.stop("again").get(timeout=LIMIT) is None
    assert one.spawn("other", Stuck).nap.call_one(0).get(timeout=LIMIT) == 0


@pytest.mark.feature(52)
def test_so_is_one_that_hangs_in_its_constructor(one):
    port, receiver = Channel.open()
    actor = one.spawn("stuck", Stuck, port)
    call = actor.nap.call_one(0)
    begun(receiver)
    actor.stop("enough").get(timeout=LIMIT)
    refused(call)
    refused(actor.nap.call_one(0))


@pytest.mark.feature(52)
def test_all_that_an_actor_was_about_is_answered(one):
    port, receiver = Channel.open()
    actor = one.spawn("stuck", AsyncStuck)
    calls = [actor.pause.call_one(port) for _ in range(3)]
    assert [begun(receiver) for _ in calls] == ["paused"] * 3
    calls.append(actor.block.call_one(port))
    begun(receiver)
    actor.stop("enough").get(timeout=LIMIT)
    for call in calls:
        refused(call)


@pytest.mark.feature(52)
@pytest.mark.parametrize("one", ["1s"], indirect=True)
def test_an_actor_that_gets_on_has_the_time_that_it_takes(one):
    actor = one.spawn("busy", Stuck)
    calls = [actor.nap.call_one(0.25) for _ in range(8)]
    actor.stop("enough").get(timeout=LIMIT)
    assert [call.get(timeout=LIMIT) for call in calls] == [0.25] * 8


@pytest.mark.feature(52)
def test_a_swarm_that_hangs_is_left_behind(one):
    port, receiver = Channel.open()
    actors = one.options(per_proc={"actors": 3}).spawn("stuck", Stuck)
    calls = [actors.slice(actors=i).nap.call_one(0) for i in (1, 2)]
    [call.get(timeout=LIMIT) for call in calls]
    hanging = actors.slice(actors=0).hang.call_one(port)
    begun(receiver)
    waiting = actors.slice(actors=1).nap.call_one(0)
    actors.stop("enough").get(timeout=LIMIT)
    refused(hanging)
    refused(waiting)


def test_it_is_said_and_the_script_ends_well():
    run = Run(
        program("stuck/it_is_said_and_the_script_ends_well.py"),
        env={"HYPERACTOR_CLEANUP_TIMEOUT": "200ms"},
    ).done()
    assert (run.status, run.out) == (0, "True\n")
    assert "the actor 'mine' in process" in run.err and "for 200 ms" in run.err and "is left behind" in run.err
