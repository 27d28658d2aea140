"""Who runs, and for which message: context() and its kin, in every kind of code; how an actor ends itself (2.9)."""

import asyncio
import contextvars
import threading

import pytest

from monarch.actor import (
    Actor,
    Channel,
    Point,
    SupervisionError,
    concurrent_endpoint,
    context,
    current_actor_name,
    current_rank,
    current_size,
    endpoint,
    this_host,
)

LIMIT = 30


def here():
    """What code can know about where it runs."""
    instance = context().actor_instance
    return dict(current_rank()), dict(current_size()), dict(instance.rank), instance.name, current_actor_name()


class Knowing(Actor):
    def __init__(self):
        self.at_start = here()
        self.gate = asyncio.Event()
        self.kept = None

    @endpoint
    def sync(self):
        return here()

    @endpoint
    async def wait(self):
        before = here()
        await asyncio.sleep(0)
        assert here() == before
        return before

    @concurrent_endpoint
    async def beside(self):
        before = here()
        await self.gate.wait()
        assert here() == before
        return before

    @endpoint
    async def open(self):
        self.gate.set()

    @endpoint
    async def start(self):
        return self.at_start

    @endpoint
    async def in_a_task(self):
        return await asyncio.ensure_future(_here_later())

    @endpoint
    async def in_a_thread(self):
        return await asyncio.to_thread(here)

    @endpoint
    async def keep_a_task(self):
        """Runs on, with the context of this message, while others are handled."""

        async def work():
            await self.gate.wait()
            return here()

        self.kept = asyncio.ensure_future(work())

    @endpoint
    async def take_the_task(self):
        return await self.kept


async def _here_later():
    await asyncio.sleep(0)
    return here()


class Asking(Actor):
    def __init__(self):
        self.threads = []
        self.results = []
        self.go = threading.Event()

    @endpoint
    def ask(self, mesh):
        """A nested call: what the other sees, and what is seen here before and after it."""
        before = here()
        inner = mesh.sync.call().get(timeout=LIMIT).values()
        assert here() == before
        return before, inner

    @endpoint
    def begin_a_thread(self):
        """Runs on, with the context of this message, while others are handled."""

        def work():
            self.go.wait(LIMIT)
            self.results.append(here())

        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
        self.threads.append(thread)
        thread.start()

    @endpoint
    def end_the_threads(self):
        self.go.set()
        for thread in self.threads:
            thread.join(LIMIT)
        return here(), self.results

    @endpoint
    def name(self):
        return current_actor_name(), str(context().actor_instance.actor_id)


@pytest.fixture(scope="module")
def grid():
    """Two by two processes, so that slices keep or drop a dimension."""
    mesh = this_host().spawn_procs(per_host={"x": 2, "y": 2})
    yield mesh
    mesh.stop().get(timeout=LIMIT)


@pytest.fixture()
def knowing(grid):
    return grid.spawn("knowing", Knowing)


METHODS = ["sync", "wait", "in_a_task", "in_a_thread", "beside"]


@pytest.mark.feature(36, "relative to the slice that was asked")
@pytest.mark.parametrize("method", METHODS)
def test_rank_and_size_are_those_of_the_mesh_that_was_asked(knowing, method):
    def ask(view):
        asked = getattr(view, method).call()
        view.open.call().get(timeout=LIMIT)
        return [(rank, size, own) for rank, size, own, _, _ in asked.get(timeout=LIMIT).values()]

    cell = [{"x": x, "y": y} for x in range(2) for y in range(2)]
    whole = {"x": 2, "y": 2}
    assert ask(knowing) == [(point, whole, point) for point in cell]
    assert ask(knowing.slice(x=1)) == [({"y": y}, {"y": 2}, {"x": 1, "y": y}) for y in range(2)]
    assert ask(knowing.slice(y=slice(1, 2))) == [
        ({"x": x, "y": 0}, {"x": 2, "y": 1}, {"x": x, "y": 1}) for x in range(2)
    ]
    assert ask(knowing.slice(x=1, y=0)) == [({}, {}, {"x": 1, "y": 0})]
    assert ask(knowing) == [(point, whole, point) for point in cell]


@pytest.mark.feature(36)
def test_one_that_is_chosen_sees_its_rank_in_the_whole(knowing):
    for _ in range(8):
        rank, size, own, _, _ = knowing.sync.choose().get(timeout=LIMIT)
        assert rank == own and size == {"x": 2, "y": 2}


@pytest.mark.feature(36)
def test_a_constructor_sees_its_own_place(knowing):
    for rank, size, own, name, _ in knowing.start.call().get(timeout=LIMIT).values():
        assert rank == own and size == {"x": 2, "y": 2} and name == "knowing"


@pytest.mark.feature(36)
def test_bodies_that_overlap_each_keep_theirs(knowing):
    asked = [knowing.beside.call(), knowing.slice(x=0).beside.call(), knowing.slice(x=0, y=1).beside.call_one()]
    assert knowing.wait.call().get(timeout=LIMIT).values()[1][0] == {"x": 0, "y": 1}
    knowing.open.call().get(timeout=LIMIT)
    whole, row, one = [future.get(timeout=LIMIT) for future in asked]
    assert [rank for rank, *_ in whole.values()] == [{"x": x, "y": y} for x in range(2) for y in range(2)]
    assert [rank for rank, *_ in row.values()] == [{"y": 0}, {"y": 1}]
    assert one[:3] == ({}, {}, {"x": 0, "y": 1})


@pytest.mark.feature(36)
def test_a_task_that_runs_on_keeps_that_of_its_message(knowing):
    knowing.slice(x=1).keep_a_task.call().get(timeout=LIMIT)
    knowing.open.call().get(timeout=LIMIT)
    values = knowing.slice(x=1, y=slice(1, 2)).take_the_task.call().get(timeout=LIMIT).values()
    assert [(rank, size) for rank, size, *_ in values] == [({"y": 1}, {"y": 2})]


@pytest.mark.feature(36)
def test_threads_that_run_on_keep_that_of_their_message(grid):
    asking = grid.spawn("asking", Asking)
    asking.begin_a_thread.call().get(timeout=LIMIT)
    asking.slice(x=1, y=0).begin_a_thread.call_one().get(timeout=LIMIT)
    now, then = asking.slice(x=1).end_the_threads.call().get(timeout=LIMIT).values()[0]
    assert now[:3] == ({"y": 0}, {"y": 2}, {"x": 1, "y": 0})
    seen = sorted(((rank, size) for rank, size, *_ in then), key=lambda pair: len(pair[0]))
    assert seen == [({}, {}), ({"x": 1, "y": 0}, {"x": 2, "y": 2})]
    asking.slice(x=0).end_the_threads.call().get(timeout=LIMIT)


@pytest.mark.feature(36)
def test_nested_calls_each_see_their_own(grid, knowing):
    asking = grid.slice(x=0, y=0).spawn("asking", Asking)
    before, inner = asking.ask.call_one(knowing.slice(y=1)).get(timeout=LIMIT)
    assert before[:4] == ({}, {}, {}, "asking")
    assert [(rank, own, name) for rank, _, own, name, _ in inner] == [
        ({"x": 0}, {"x": 0, "y": 1}, "knowing"),
        ({"x": 1}, {"x": 1, "y": 1}, "knowing"),
    ]


@pytest.mark.feature(36, "the name", 37)
def test_names_are_those_of_one_incarnation(grid):
    names = [grid.spawn("asking", Asking).name.call().get(timeout=LIMIT).values() for _ in range(2)]
    said = [name for mesh in names for name, _ in mesh]
    assert len(set(said)) == 8
    assert all(name == identity and name.startswith("asking") for mesh in names for name, identity in mesh)


@pytest.mark.feature(35, "the first use makes the root")
def test_the_client_is_at_the_root_in_every_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(here()))
    thread.start()
    thread.join()
    assert results[0][:4] == ({}, {}, {}, "root") == here()[:4]
    assert isinstance(current_rank(), Point) and context().actor_instance.creator is None
    assert asyncio.run(_here_later()) == here()


# ---- How an actor ends itself ----


class Ending(Actor):
    def __init__(self, port):
        self.port = port

    @endpoint
    def end(self, how, reason=None):
        getattr(context().actor_instance, how)(reason)
        return "answered"

    @endpoint
    def end_from_a_thread(self, how, reason):
        thread = threading.Thread(target=contextvars.copy_context().run, args=(self._end_later, how, reason))
        thread.start()

    def _end_later(self, how, reason):
        gate, receiver = Channel.open()
        self.port.send(gate)
        receiver.recv().get(timeout=LIMIT)
        getattr(context().actor_instance, how)(reason)

    @endpoint
    def ping(self):
        return "alive"

    def __cleanup__(self, exc):
        self.port.send(("clean-up", repr(exc)))


class AsyncEnding(Actor):
    def __init__(self, port):
        self.port = port

    @endpoint
    async def end_from_a_task(self, how, reason):
        async def work():
            gate, receiver = Channel.open()
            self.port.send(gate)
            await receiver.recv()
            getattr(context().actor_instance, how)(reason)

        self.task = asyncio.ensure_future(work())

    @concurrent_endpoint
    async def end_beside(self, how, reason):
        await asyncio.sleep(0)
        getattr(context().actor_instance, how)(reason)
        return "answered"

    @endpoint
    async def ping(self):
        return "alive"

    async def __cleanup__(self, exc):
        self.port.send(("clean-up", repr(exc)))


HOW = [
    ("stop", "stopped: enough", "None"),
    ("abort", "actor explicitly aborted due to: enough", "aborted due to: enough"),
    ("kill", "actor explicitly aborted due to: enough", "aborted due to: enough"),
]
hows = pytest.mark.parametrize("how, text, cleanup", HOW, ids=[how for how, *_ in HOW])


def expect_end(actor, receiver, text, cleanup):
    what, exc = receiver.recv().get(timeout=LIMIT)  # without a message that would wake the actor
    assert what == "clean-up" and cleanup in exc
    with pytest.raises(SupervisionError, match=text):
        actor.ping.call_one().get(timeout=LIMIT)


@pytest.mark.feature(19, "a stop is clean", "abort and kill are failures")
@hows
def test_an_endpoint_ends_its_actor_after_its_answer(procs, how, text, cleanup):
    port, receiver = Channel.open()
    ending = procs.slice(gpus=0).spawn("ending", Ending, port)
    assert ending.end.call_one(how, "enough").get(timeout=LIMIT) == "answered"
    expect_end(ending, receiver, text, cleanup)


@pytest.mark.feature(19)
@hows
@pytest.mark.parametrize("cls, method", [(Ending, "end_from_a_thread"), (AsyncEnding, "end_from_a_task")])
def test_other_code_of_an_actor_ends_it_though_it_is_idle(procs, cls, method, how, text, cleanup):
    port, receiver = Channel.open()
    ending = procs.slice(gpus=1).spawn("ending", cls, port)
    getattr(ending, method).call_one(how, "enough").get(timeout=LIMIT)
    gate = receiver.recv().get(timeout=LIMIT)
    assert ending.ping.call_one().get(timeout=LIMIT) == "alive"
    gate.send("now")
    expect_end(ending, receiver, text, cleanup)


@pytest.mark.feature(19)
@hows
def test_a_concurrent_endpoint_ends_its_actor(procs, how, text, cleanup):
    port, receiver = Channel.open()
    ending = procs.slice(gpus=1).spawn("ending", AsyncEnding, port)
    assert ending.end_beside.call_one(how, "enough").get(timeout=LIMIT) == "answered"
    expect_end(ending, receiver, text, cleanup)


@pytest.mark.feature(19, "a stop is clean")
def test_without_a_reason_and_the_client_itself(procs):
    port, receiver = Channel.open()
    ending = procs.slice(gpus=0).spawn("ending", Ending, port)
    ending.end.call_one("stop").get(timeout=LIMIT)
    expect_end(ending, receiver, "stopped: stopped by itself", "None")
    for how in ("stop", "abort", "kill"):
        with pytest.raises(RuntimeError, match="only an actor can be stopped like this"):
            getattr(context().actor_instance, how)()
