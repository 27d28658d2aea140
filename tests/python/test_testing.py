"""monarch.testing: actors in the test's own process, and stand-ins for actor classes."""

import asyncio
import os
import threading
import time

import numpy as np
import pytest
import script_run

from monarch._meshes import spawning
from monarch.actor import (
    Actor,
    ActorError,
    ActorMesh,
    Channel,
    Port,
    SupervisionError,
    concurrent_endpoint,
    context,
    current_rank,
    current_size,
    deadline,
    endpoint,
    get_or_spawn_controller,
    local_proc_mesh,
    this_host,
    this_proc,
)
from monarch.testing import local_procs, patch_actor


class Real(Actor):
    def __init__(self, start: int, step: int = 1) -> None:
        self.value = start

    @endpoint
    def who(self) -> str:
        return f"real {self.value}"

    @endpoint
    def only_real(self) -> str:
        return "real"


class Mock(Actor):
    def __init__(self, start: int, step: int = 1) -> None:
        self.value = start + step

    @endpoint
    def who(self) -> str:
        return f"mock {self.value}"

    @endpoint
    def only_mock(self) -> str:
        return "mock"


class OtherMock(Mock):
    @endpoint
    def who(self) -> str:
        return f"other {self.value}"


class Parent(Actor):
    """Spawns Real where it lives, and may hand its children the same question."""

    @endpoint
    def child(self, depth: int = 0) -> str:
        if depth:
            return this_proc().spawn("parent", Parent).child.call_one(depth - 1).get(timeout=20)
        return this_proc().spawn("child", Real, 7).who.call_one().get(timeout=20)

    @endpoint
    def controller(self, name: str) -> str:
        return get_or_spawn_controller(name, Real, 3).get(timeout=20).who.call_one().get(timeout=20)


class Wrapper(Actor):
    """A mock that wraps what it stands for."""

    def __init__(self, start: int) -> None:
        self.real = this_proc().spawn("real", Real, start)

    @endpoint
    def who(self) -> str:
        return "wrapped " + self.real.who.call_one().get(timeout=20)


def who(procs, *args) -> str:
    return procs.spawn("actor", Real, *args).slice(gpus=0).who.call_one().get(timeout=20)


@pytest.fixture(params=["local", "processes"])
def places(request, procs):
    if request.param == "processes":
        yield procs
        return
    with local_procs({"gpus": 2}) as local:
        yield local


# ---- patch_actor ----


@pytest.mark.feature(119, "patch_actor")
def test_a_patch_spawns_the_mock_with_the_same_arguments_while_it_lasts(places):
    before = places.spawn("before", Real, 1)
    with patch_actor(Real, Mock):
        mesh = places.spawn("patched", Real, 1, step=10)
        assert who(places, 1) == "mock 2"
        assert before.who.call().get(timeout=20).values() == ["real 1"] * 2  # what was there is not touched
    assert mesh.only_mock.call().get(timeout=20).values() == ["mock"] * 2
    assert not hasattr(mesh, "only_real")
    assert mesh.who.call().get(timeout=20).values() == ["mock 11"] * 2
    assert who(places, 1) == "real 1"


@pytest.mark.feature(119, "patch_actor")
def test_patches_nest_and_the_innermost_counts():
    with local_procs({"gpus": 1}) as procs:
        with patch_actor(Real, Mock):
            with patch_actor(Real, OtherMock), patch_actor(Mock, Real):
                assert who(procs, 1) == "other 2"  # a mock is not replaced in its turn
                with patch_actor(Real, Real):
                    assert who(procs, 1) == "real 1"
            assert who(procs, 1) == "mock 2"
        one, two = patch_actor(Real, Mock), patch_actor(Real, OtherMock)
        one.__enter__()
        two.__enter__()
        one.__exit__(None, None, None)  # in another order
        assert who(procs, 1) == "other 2"
        two.__exit__(None, None, None)
        assert who(procs, 1) == "real 1"


@pytest.mark.feature(119)
def test_a_patch_ends_with_an_exception():
    with local_procs({"gpus": 1}) as procs:
        with pytest.raises(KeyError), patch_actor(Real, Mock):
            raise KeyError
        assert who(procs, 1) == "real 1"

        @patch_actor(Real, Mock)
        def fails():
            assert who(procs, 1) == "mock 2"
            raise KeyError

        for _ in range(2):
            with pytest.raises(KeyError):
                fails()
        assert who(procs, 1) == "real 1"


@pytest.mark.feature(119)
def test_a_patch_decorates_sync_and_async_functions():
    with local_procs({"gpus": 1}) as procs:

        @patch_actor(Real, Mock)
        def sync(start, depth=1):
            """Its text."""
            return [who(procs, start), *(sync(start, depth - 1) if depth else [])]

        @patch_actor(Real, Mock)
        async def later(start):
            await asyncio.sleep(0)
            return await procs.spawn("a", Real, start).slice(gpus=0).who.call_one()

        assert sync(1) == ["mock 2"] * 2 and sync.__name__ == "sync" and sync.__doc__ == "Its text."
        assert asyncio.run(later(5)) == "mock 6"
        assert who(procs, 1) == "real 1"


@pytest.mark.feature(119)
def test_an_actor_keeps_the_patches_that_were_in_force_when_it_was_spawned(places):
    with patch_actor(Real, Mock):
        patched = places.spawn("parent", Parent).slice(gpus=1)
        assert patched.child.call_one().get(timeout=20) == "mock 8"
    plain = places.spawn("parent", Parent).slice(gpus=1)
    assert plain.child.call_one().get(timeout=20) == "real 7"
    for depth in range(3):
        assert patched.child.call_one(depth).get(timeout=20) == "mock 8"
    with patch_actor(Real, Mock):
        assert plain.child.call_one().get(timeout=20) == "real 7"


@pytest.mark.feature(119)
def test_a_patch_holds_for_controllers(places):
    name = f"patched {type(places).__name__}"
    with patch_actor(Real, Mock):
        mesh = get_or_spawn_controller(f"{name} here", Real, 3).get(timeout=20)
        parent = places.spawn("parent", Parent).slice(gpus=0)
    assert mesh.who.call_one().get(timeout=20) == "mock 4"
    assert parent.controller.call_one(f"{name} there").get(timeout=20) == "mock 4"


@pytest.mark.feature(119)
def test_a_mock_may_wrap_the_real_thing(places):
    with patch_actor(Real, Wrapper):
        mesh = places.spawn("wrapped", Real, 4)
    assert mesh.who.call().get(timeout=20).values() == ["wrapped real 4"] * 2


@pytest.mark.feature(119)
def test_wrong_patches_say_what_is_wrong(places):
    for original, mock, text in ((Real, int, "mock is <class 'int'>"), ("Real", Mock, "original is 'Real'")):
        with pytest.raises(TypeError, match=f"two actor classes, but {text}"):
            patch_actor(original, mock)
    with patch_actor(Real, Parent), pytest.raises(TypeError):
        places.spawn("wrong arguments", Real, 1)

    def generator():
        yield

    with pytest.raises(TypeError, match="cannot decorate a generator"):
        patch_actor(Real, Mock)(generator)
    with pytest.raises(TypeError, match="decorates functions"):
        patch_actor(Real, Mock)(Parent)


# ---- local_procs ----


class Member(Actor):
    log: list = []  # of this process

    def __init__(self, note: object = None) -> None:
        self.note = note
        self.constructed_as = current_rank().rank

    @endpoint
    def describe(self) -> tuple:
        me = context().actor_instance
        return os.getpid(), threading.get_ident(), me.rank.rank, self.constructed_as, dict(current_rank())

    @endpoint
    def add(self, value: object) -> object:
        self.note.append(value)
        return self.note

    @endpoint
    async def rank_later(self) -> int:
        await asyncio.sleep(0)
        return current_rank().rank

    @endpoint
    def spawn_here(self, how: str) -> object:
        procs = this_proc() if how == "proc" else context().actor_instance.proc_mesh
        return procs.spawn("child", Member)

    @endpoint
    def fail(self) -> None:
        raise ValueError("no")

    @endpoint
    def measure(self) -> dict:
        return current_size()

    @endpoint
    def time_left(self) -> object:
        self.neighbour().measure.call_one().get(timeout=20)
        return "in time"

    def neighbour(self):
        return this_proc().spawn("neighbour", Member)

    async def __cleanup__(self, exc) -> None:
        Member.log.append(context().actor_instance.rank.rank)


@pytest.mark.feature(1, 36)
def test_local_actors_live_here_each_with_a_rank_and_a_thread():
    with local_procs({"hosts": 2, "gpus": 3}) as procs:
        mesh = procs.spawn("members", Member)
        told = mesh.describe.call().get(timeout=20)
        assert told.sizes == {"hosts": 2, "gpus": 3} and procs.sizes == told.sizes
        pids, threads, ranks, constructed, points = zip(*told.values())
        assert set(pids) == {os.getpid()} and len({*threads, threading.get_ident()}) == 7
        assert ranks == constructed == tuple(range(6))
        assert points == tuple({"hosts": i // 3, "gpus": i % 3} for i in range(6))
        part = mesh.slice(hosts=1, gpus=slice(1, 3))
        assert part.rank_later.call().get(timeout=20).values() == [0, 1]
        assert part.sizes.items() <= {"gpus": 2}.items()
        assert procs.slice(hosts=1).spawn("part", Member).describe.call().get(timeout=20).sizes == {"gpus": 3}
        assert procs.initialized.get(timeout=20) is not None
    assert local_procs() != local_procs() and procs == procs.slice(gpus=slice(0, 3))


@pytest.mark.feature(120, "old ways to make a mesh")
def test_the_old_local_proc_mesh_is_in_this_process():
    with pytest.warns(DeprecationWarning, match="local_procs"):
        procs = local_proc_mesh(gpus=2)
    with procs:
        told = procs.spawn("members", Member).describe.call().get(timeout=20)
    assert told.sizes == {"hosts": 1, "gpus": 2} and {pid for pid, *_ in told.values()} == {os.getpid()}


@pytest.mark.feature(61)
def test_local_actors_share_no_arguments_and_no_answers():
    with local_procs({"gpus": 3}) as procs:
        mine, array = ["mine"], np.arange(4)
        mesh = procs.spawn("members", Member, mine)
        answers = mesh.add.call(array).get(timeout=20).values()
        assert mine == ["mine"]
        array[:] = 0
        answers[0][1][:] = 9
        again = mesh.add.call(None).get(timeout=20).values()
        assert [list(note[1]) for note in again] == [[0, 1, 2, 3]] * 3
        again[0][1][0] = 7
        assert again[1][1][0] == 0


@pytest.mark.feature(62, 70, 72)
def test_local_failures_and_stops_are_those_of_processes():
    class Broken(Actor):
        def __init__(self) -> None:
            if current_rank().rank == 1:
                raise ValueError("rank 1 is broken")

        @endpoint
        def ok(self) -> int:
            return 1

    with local_procs({"gpus": 2}) as procs:
        mesh = procs.spawn("members", Member)
        with pytest.raises(ActorError, match="no"):
            mesh.fail.call().get(timeout=20)
        broken = procs.spawn("broken", Broken)
        with pytest.raises(SupervisionError, match="rank 1 is broken"):
            broken.ok.call().get(timeout=20)
        assert broken.slice(gpus=0).ok.call_one().get(timeout=20) == 1
        with pytest.raises(ValueError, match="not owned"):
            procs.slice(gpus=0).stop()
    with pytest.raises(SupervisionError, match="stopped by client"):
        mesh.rank_later.call().get(timeout=20)
    with pytest.raises(RuntimeError, match="already been stopped"):
        procs.spawn("late", Member)
    with pytest.raises(RuntimeError, match="already been stopped"):
        with procs:
            pass
    with pytest.raises(ValueError, match="at least one process"):
        local_procs({"gpus": 0})


@pytest.mark.feature(20, 52)
def test_what_local_actors_have_spawned_ends_with_their_mesh():
    Member.log.clear()
    with local_procs({"gpus": 2}) as procs:
        mesh = procs.spawn("members", Member)
        children = mesh.spawn_here.call("proc").get(timeout=20).values()
        cousins = mesh.slice(gpus=1).spawn_here.call_one("mesh").get(timeout=20)
        assert isinstance(cousins, ActorMesh) and cousins.sizes == {"gpus": 2}
        grandchild = children[0].spawn_here.call_one("proc").get(timeout=20)
        alive = [mesh, *children, cousins, grandchild]
        for each in alive:
            each.describe.call().get(timeout=20)
        with pytest.raises(ValueError):
            this_proc().stop()
    assert sorted(Member.log) == [0, 0, 0, 0, 0, 1, 1]
    for each in alive:
        with pytest.raises(SupervisionError, match="stopped by client"):
            each.describe.call().get(timeout=20)


@pytest.mark.feature(52, 55)
def test_processes_that_local_actors_have_started_end_with_their_mesh():
    class Starter(Actor):
        @endpoint
        def start(self) -> object:
            return this_host().spawn_procs(per_host={"workers": 1}).spawn("far", Member)

    with local_procs() as procs:
        far = procs.spawn("starter", Starter).start.call_one().get(timeout=20)
        (pid, *_) = far.slice(workers=0).describe.call_one().get(timeout=20)
        assert pid != os.getpid()
    assert script_run.ended(pid, time.monotonic() + 5)


@pytest.mark.feature(22, 52)
def test_local_procs_in_async_tests():
    async def test() -> list:
        async with local_procs({"gpus": 2}) as procs:
            mesh = procs.spawn("members", Member)
            values = (await mesh.rank_later.call()).values()
            await mesh.stop()
            await procs.stop()
        return values

    assert asyncio.run(test()) == [0, 1]


class Stuck(Actor):
    go_on = threading.Event()

    @endpoint
    def wait(self) -> None:
        self.go_on.wait(20)


def test_an_endpoint_that_does_not_return_is_named_when_local_procs_end(monkeypatch):
    monkeypatch.setenv("HYPERACTOR_PROCESS_EXIT_TIMEOUT", "50ms")
    try:
        with pytest.raises(TimeoutError, match="have not ended: stuck;"), local_procs({"gpus": 1}) as procs:
            procs.spawn("fine", Member)
            procs.spawn("stuck", Stuck).wait.broadcast()
    finally:
        Stuck.go_on.set()
        procs.stop().get(timeout=20)


@pytest.mark.feature(16)
def test_local_actors_start_without_the_deadline_of_those_before_them():
    with local_procs() as procs:
        first = procs.spawn("first", Member)
        with deadline(5):
            first.measure.call_one().get(timeout=20)
        with pytest.raises(TimeoutError):  # its thread has seen a deadline that has passed
            first.time_left.options(deadline=1e-9).call_one().get(timeout=20)
        first.stop().get(timeout=20)
        for _ in range(4):  # one of them has the thread of the first
            later = procs.spawn("later", Member)
            assert later.time_left.call_one().get(timeout=20) == "in time"


class Ends(Actor):
    """Tells a port how it ends, after a call of its own."""

    def __init__(self, port: Port, other: Member) -> None:
        self.port = port
        self.other = other

    @endpoint
    def nothing(self) -> None: ...

    @concurrent_endpoint
    async def leave(self) -> None:
        await asyncio.sleep(0)
        context().actor_instance.stop("left")

    @concurrent_endpoint
    async def leave_in_a_task(self) -> None:
        self.task = asyncio.create_task(self.leave_later())

    async def leave_later(self) -> None:
        await asyncio.sleep(0)
        context().actor_instance.stop("left")

    @concurrent_endpoint
    async def fail(self) -> None:
        await asyncio.sleep(0)
        raise ValueError("failed")

    async def __cleanup__(self, exc) -> None:
        await self.other.measure.call_one()
        self.port.send(None if exc is None else str(exc))


@pytest.mark.feature(20)
@pytest.mark.parametrize("how", ["leave", "leave_in_a_task", "fail"])
@pytest.mark.parametrize("per_proc", [None, {"actors": 2}])
def test_an_actor_ends_when_a_task_of_it_says_so_and_not_with_the_next_message(how, per_proc):
    port, receiver = Channel.open()
    with local_procs() as there, local_procs({"gpus": 1}) as procs:
        other = there.spawn("other", Member)
        mesh = procs.options(per_proc=per_proc).spawn("ends", Ends, port, other).slice(gpus=0)
        one = mesh.slice(actors=0) if per_proc else mesh
        getattr(one, how).broadcast()
        told = receiver.recv().get(timeout=20)
        assert "failed" in told if how == "fail" else told is None
        with pytest.raises(SupervisionError):
            one.nothing.call().get(timeout=20)


@pytest.mark.feature(20)
@pytest.mark.parametrize("per_proc", [None, {"actors": 2}])
def test_cleanup_does_not_run_under_the_deadline_of_the_last_message(per_proc):
    port, receiver = Channel.open()
    with local_procs() as there, local_procs({"gpus": 1}) as procs:
        other = there.spawn("other", Member)
        mesh = procs.options(per_proc=per_proc).spawn("ends", Ends, port, other)
        with pytest.raises(TimeoutError):
            mesh.nothing.options(deadline=1e-9).call().get(timeout=20)
    assert receiver.recv().get(timeout=20) is None


LEFT = script_run.program("testing/left.py")


@pytest.mark.feature(60)
def test_local_tests_leave_nothing_and_start_no_process():
    run = script_run.Run(LEFT).ok()
    assert run.out == "children []\n"


def test_patch_actor_as_an_async_context_manager():
    async def main():
        async with patch_actor(Real, Mock):
            async with local_procs() as procs:
                return await procs.spawn("real", Real, 1).who.call_one()

    assert asyncio.run(main()) == "mock 2"
    assert spawning.patches == []
