"""Swarms: many actors of one spawn in each process, which share a thread there."""

import asyncio
import os
import threading
import time

import numpy as np
import pytest
import script_run

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    Port,
    SupervisionError,
    concurrent_endpoint,
    context,
    current_rank,
    deadline,
    endpoint,
    this_proc,
)
from monarch.testing import local_procs

PER_PROC = {"replicas": 2, "actors": 3}
MANY = 6  # of each process


def swarm(procs, cls, *args, per_proc=None):
    return procs.options(per_proc=per_proc or PER_PROC).spawn(cls.__name__.lower(), cls, *args)


def who() -> tuple:
    """Who runs, as everything that could tell says it."""
    me = context().actor_instance
    return me.rank.rank, me.actor_id, dict(current_rank())


class Turning(Actor):
    """Tells how many of its messages have begun in one turn of the loop, at most."""

    def __init__(self):
        self.begun = self.seen = self.most = 0

    @concurrent_endpoint
    async def hold_up(self, port):
        gate, receiver = Channel.open()
        port.send(gate)
        thread = threading.Thread(target=lambda: receiver.recv().get(timeout=20))
        thread.start()
        thread.join()
        self.look()

    def look(self):
        self.most = max(self.most, self.begun - self.seen)
        self.seen = self.begun
        asyncio.get_running_loop().call_soon(self.look)

    @concurrent_endpoint
    async def note(self):
        self.begun += 1

    @endpoint
    async def most_in_a_turn(self):
        return self.begun, max(self.most, self.begun - self.seen)


class Plain(Actor):
    """All endpoints are sync."""

    def __init__(self, *notes) -> None:
        self.notes = list(notes)
        self.constructed_as = who()

    @endpoint
    def who(self) -> tuple:
        return who(), self.constructed_as, os.getpid(), threading.get_ident()

    @endpoint
    def note(self, value) -> list:
        self.notes.append(value)
        return self.notes

    @endpoint
    def raises(self, kind) -> None:
        raise kind("from a swarm")

    @endpoint
    def leave(self) -> None:
        context().actor_instance.stop("had enough")

    @endpoint
    def ask(self, mesh) -> object:
        return mesh.note.call_one("asked").get(timeout=20)

    @endpoint
    def spawn(self) -> tuple:
        me = context().actor_instance
        child = this_proc().spawn("child", Plain)
        (_, _, pid, _) = child.who.call_one().get(timeout=20)
        return str(me), child.maker.call_one().get(timeout=20), pid

    @endpoint
    def maker(self) -> str:
        return str(context().actor_instance.creator)

    @endpoint
    def opens(self) -> Port:
        port, self.receiver = Channel.open()
        return port

    @endpoint
    def received(self) -> object:
        return self.receiver.recv().get(timeout=20)

    @endpoint(explicit_response_port=True)
    def answer(self, port, value) -> None:
        port.send((current_rank().rank, value))

    @endpoint
    def calls_after(self, seconds: float) -> object:
        time.sleep(seconds)  # longer than its caller waits
        return this_proc().spawn("other", Plain)

    @endpoint
    def asks_neighbour(self) -> object:
        return this_proc().spawn("other", Plain).maker.call_one().get(timeout=20)


class Mixed(Plain):
    """Endpoints of all kinds."""

    @endpoint
    async def who_later(self, turns: int) -> list:
        seen = []
        for _ in range(turns):
            seen.append(who())
            await asyncio.sleep(0)
        task = asyncio.create_task(self.in_task())
        return [*seen, await task, who()]

    async def in_task(self) -> tuple:
        await asyncio.sleep(0)
        return who()

    @endpoint
    async def note_later(self, value) -> list:
        await asyncio.sleep(0)
        self.notes.append(value)
        return self.notes

    @concurrent_endpoint
    async def enter(self, value) -> list:
        self.gate = getattr(self, "gate", None) or asyncio.Event()
        self.notes.append(value)
        if value == "last":
            self.gate.set()
        await self.gate.wait()
        return self.notes

    @concurrent_endpoint
    async def raises_later(self, kind) -> None:
        await asyncio.sleep(0)
        raise kind("from a swarm")

    @concurrent_endpoint
    async def leave_later(self) -> None:
        await asyncio.sleep(0)
        context().actor_instance.stop("had enough")

    @endpoint
    async def ask_later(self, mesh) -> object:
        return await mesh.note.call_one("asked")

    @endpoint
    async def has_loop(self) -> bool:
        return asyncio.get_running_loop() is not None

    @endpoint
    def hides_loop(self) -> bool:
        return asyncio._get_running_loop() is None

    @endpoint
    async def exits(self) -> None:
        await asyncio.sleep(0)
        raise SystemExit("from a swarm")

    @endpoint
    async def kill_the_loop(self) -> None:
        async def exit() -> None:
            raise SystemExit("a task ends the loop")

        self.task = asyncio.get_running_loop().create_task(exit())
        await asyncio.sleep(3600)


KINDS = pytest.mark.parametrize("cls", [Plain, Mixed])


def values(future) -> list:
    return future.get(timeout=20).values()


# ---- Shapes, ranks, who runs ----


@KINDS
def test_a_swarm_is_one_more_dimension_and_everyone_knows_who_it_is(procs, cls):
    mesh = swarm(procs, cls)
    assert mesh.sizes == {"gpus": 2, "replicas": 2, "actors": 3}
    told = mesh.who.call().get(timeout=20)
    assert told.sizes == mesh.sizes
    now, then, pids, threads = zip(*told.values())
    assert now == then and [rank for rank, _, _ in now] == list(range(12))
    assert len({actor_id for _, actor_id, _ in now}) == 12
    assert [point for _, _, point in now] == [dict(point) for point, _ in told.items()]
    assert len(set(pids[:MANY])) == len(set(pids[MANY:])) == 1 and len(set(pids)) == 2
    assert len(set(threads[:MANY])) == len(set(threads[MANY:])) == 1


@KINDS
def test_slices_of_a_swarm_reach_their_members_and_count_anew(procs, cls):
    mesh = swarm(procs, cls)
    part = mesh.slice(replicas=1, actors=slice(1, 3))
    told = part.who.call().get(timeout=20)
    assert told.sizes == {"gpus": 2, "actors": 2}
    assert [now[0] for now, *_ in told.values()] == [4, 5, 10, 11]
    assert [now[2] for now, *_ in told.values()] == [{"gpus": g, "actors": a} for g in range(2) for a in range(2)]
    one = mesh.slice(gpus=1, replicas=0, actors=2)
    now, *_ = one.who.call_one().get(timeout=20)
    assert now[0] == 8 and now[2] == {}
    assert mesh.flatten("all").slice(all=7).who.call_one().get(timeout=20)[0][0] == 7
    now, *_ = mesh.who.choose().get(timeout=20)
    assert 0 <= now[0] < 12


def test_a_swarm_of_one_process_and_of_a_slice(procs):
    assert values(swarm(procs.slice(gpus=1), Plain).who.call())[5][0][2] == {"replicas": 1, "actors": 2}
    assert swarm(procs.slice(gpus=slice(1, 2)), Plain).sizes == {"gpus": 1, **PER_PROC}
    with local_procs({"gpus": 2}) as local:
        mesh = swarm(local, Mixed)
        assert [now[0] for now, *_ in values(mesh.who.call())] == list(range(12))
        assert len({thread for *_, thread in values(mesh.who.call())}) == 2


def test_options_of_swarms_are_checked(procs):
    for wrong, error in (({"gpus": 2}, ValueError), ({"actors": 0}, ValueError), ({"actors": 1.5}, TypeError)):
        with pytest.raises(error):
            procs.options(per_proc=wrong)
    assert procs.spawn("plain", Plain).sizes == procs.sizes  # options belong to the view that options() gave


def test_context_is_right_across_interleaved_coroutines(procs):
    mesh = swarm(procs, Mixed)
    seen = values(mesh.who_later.call(5))
    once = [now for now, *_ in values(mesh.who.call())]
    assert seen == [[now] * 7 for now in once]
    part = mesh.slice(actors=slice(0, 2))
    whole, sliced = mesh.who_later.call(5), part.who_later.call(5)
    assert values(whole) == seen
    told = sliced.get(timeout=20)
    assert [turns[6][2] for turns in told.values()] == [dict(point) for point, _ in told.items()]
    assert all(turns == [turns[0]] * 7 for turns in told.values())


# ---- Messages ----


@KINDS
def test_arguments_are_not_shared_between_actors(procs, cls):
    mine = np.arange(100_000)  # large: travels beside the message
    mesh = swarm(procs, cls, mine, [1])
    mine[:] = -1
    values(mesh.note.call(mine))
    changed = mesh.slice(gpus=0, replicas=0, actors=0)

    notes = changed.note.call_one("x").get(timeout=20)
    assert notes[0][-1] == 99_999 and notes[1] == [1] and notes[2][0] == -1 and notes[3] == "x"
    others = values(mesh.slice(actors=slice(1, 3)).note.call("y"))
    assert all(list(note[0][:3]) == [0, 1, 2] and note[1] == [1] and note[-1] == "y" for note in others)


class Writer(Actor):
    def __init__(self, array) -> None:
        self.array = array

    @endpoint
    def write(self, value) -> None:
        self.array[:] = value

    @endpoint
    def take(self, array) -> None:
        self.array = array

    @endpoint
    def read(self) -> set:
        return set(self.array.tolist())


def test_arrays_of_actors_of_one_process_do_not_alias(procs):
    mesh = swarm(procs, Writer, np.zeros(100_000))
    first, rest = mesh.slice(replicas=0, actors=0), mesh.slice(replicas=1)
    values(first.write.call(7.0))
    assert values(first.read.call()) == [{7.0}] * 2 and values(rest.read.call()) == [{0.0}] * 6
    values(mesh.take.call(np.ones(100_000)))
    values(first.write.call(7.0))
    assert values(first.read.call()) == [{7.0}] * 2 and values(rest.read.call()) == [{1.0}] * 6


class Sender(Actor):
    @endpoint
    def send_all(self, mesh, count: int) -> None:
        me = current_rank().rank
        for number in range(count):
            view = (mesh, mesh.slice(actors=0), mesh.slice(actors=slice(0, 2)))[number % 3]
            (view.note.broadcast if number % 2 else view.note.call)((me, number))
        mesh.note.call("end").get(timeout=20)


@pytest.mark.feature(16)
@KINDS
def test_messages_of_each_sender_arrive_in_order_over_any_slice(procs, cls):
    count = 300
    mesh = swarm(procs, cls)
    senders = procs.spawn("senders", Sender)
    mine = [senders.send_all.call(mesh, count)]
    for number in range(count):
        mesh.note.broadcast(("client", number))
    values(mine[0])
    for rank, notes in enumerate(values(mesh.note.call("end"))):
        actor = rank % 3
        for sender in ("client", 0, 1):
            got = [note[1] for note in notes if note[0] == sender]
            expected = [n for n in range(count) if sender == "client" or actor == 0 or n % 3 == 0 or
                        (actor == 1 and n % 3 == 2)]  # fmt: skip
            assert got == expected


def test_an_endpoint_that_is_awaited_keeps_the_order_and_only_its_own_actor(procs):
    mesh = swarm(procs, Mixed)
    for number in range(20):
        (mesh.note_later if number % 3 else mesh.note).broadcast(number)
    assert values(mesh.note.call("end")) == [[*range(20), "end"]] * 12
    assert values(mesh.has_loop.call()) == values(mesh.hides_loop.call()) == [True] * 12


@pytest.mark.feature(5)
def test_concurrent_endpoints_of_a_swarm_overlap_and_start_in_order(procs):
    mesh = swarm(procs, Mixed)
    first = [mesh.enter.call(number) for number in range(5)]
    last = mesh.enter.call("last")
    assert values(last) == [[0, 1, 2, 3, 4, "last"]] * 12
    assert [len(values(future)) for future in first] == [12] * 5


@pytest.mark.feature(6)
@KINDS
def test_ports_of_swarm_actors(procs, cls):
    mesh = swarm(procs, cls)
    assert values(mesh.answer.call("x")) == [(rank, "x") for rank in range(12)]
    for rank, port in enumerate(values(mesh.opens.call())):
        port.send(rank)
    assert values(mesh.received.call()) == list(range(12))


@KINDS
def test_swarm_actors_spawn_and_are_named_as_creators(procs, cls):
    for rank, (me, creator, pid) in enumerate(values(swarm(procs, cls).spawn.call())):
        assert me == creator and pid != os.getpid()
        assert f"'actors': {rank % 3}/3" in me


# ---- Waiting for each other ----


@KINDS
def test_waiting_for_ones_own_swarm_raises_in_the_same_process_only(procs, cls):
    mesh = swarm(procs, cls)
    asker = mesh.slice(gpus=0, replicas=0, actors=0)
    for neighbour in (mesh.slice(gpus=0, replicas=1, actors=2), asker):
        with pytest.raises(ActorError, match="waits for (one of its own swarm|a call to itself)"):
            asker.ask.call_one(neighbour).get(timeout=20)
    other_process = mesh.slice(gpus=1, replicas=0, actors=0)
    assert asker.ask.call_one(other_process).get(timeout=20) == ["asked"]
    other_swarm = swarm(procs, cls).slice(gpus=0, replicas=0, actors=0)
    assert asker.ask.call_one(other_swarm).get(timeout=20) == ["asked"]


class Flood(Actor):
    @endpoint
    def flood(self, target) -> str:
        for _ in range(100):
            target.sink.broadcast(bytes(1 << 20))  # more than a mailbox takes
        return "flooded"


class Asks(Actor):
    @endpoint
    def sink(self, data: bytes) -> None: ...

    @endpoint
    def ask(self, flooder, target) -> str:
        return flooder.flood.call_one(target).get(timeout=30)


def test_a_wait_of_one_holds_nobody_up_who_floods_another(procs):
    mesh = swarm(procs.slice(gpus=0), Asks, per_proc={"actors": 2})
    flooder = procs.slice(gpus=1).spawn("flooder", Flood)
    assert mesh.slice(actors=0).ask.call_one(flooder, mesh.slice(actors=1)).get(timeout=40) == "flooded"


def test_awaiting_ones_own_swarm_works(procs):
    mesh = swarm(procs, Mixed)
    for rank in (1, 4, 7):
        assert mesh.flatten("all").slice(all=0).ask_later.call_one(mesh.flatten("all").slice(all=rank)).get(
            timeout=20
        ) == ["asked"]


@KINDS
def test_deadlines_do_not_leak_from_one_actor_to_another(procs, cls):
    mesh = swarm(procs.slice(gpus=0), cls, per_proc={"actors": 2})
    late, other = mesh.slice(actors=0), mesh.slice(actors=1)
    with deadline(30):  # the other one's message has none
        in_time = late.asks_neighbour.call_one()
    with pytest.raises(TimeoutError):
        late.calls_after.options(deadline=0.05).call_one(0.1).get(timeout=20)
    assert in_time.get(timeout=20).startswith("<root>")
    assert other.asks_neighbour.call_one().get(timeout=20).startswith("<root>")
    assert late.asks_neighbour.call_one().get(timeout=20).startswith("<root>")


def test_an_exit_under_a_deadline_ends_one_actor(procs):
    mesh = swarm(procs.slice(gpus=0), Mixed).flatten("all")
    with pytest.raises(SupervisionError, match="SystemExit: from a swarm"):
        mesh.slice(all=1).exits.options(deadline=20).call_one().get(timeout=20)
    assert values(mesh.slice(all=slice(2, 6)).note.call(1)) == [[1]] * 4


# ---- Failures and ends ----


class Fragile(Mixed):
    def __init__(self, bad: int, kind: type) -> None:
        super().__init__()
        if context().actor_instance.rank.rank == bad:
            raise kind("cannot be made")


class FragileSync(Plain):
    def __init__(self, bad: int, kind: type) -> None:
        super().__init__()
        if context().actor_instance.rank.rank == bad:
            raise kind("cannot be made")


@pytest.mark.feature(70)
@pytest.mark.parametrize("bad", [0, 5])
@pytest.mark.parametrize("kind", [ValueError, SystemExit])
@pytest.mark.parametrize("cls", [Fragile, FragileSync])
def test_a_constructor_that_fails_concerns_one_actor(procs, cls, bad, kind):
    whole = swarm(procs.slice(gpus=0), cls, bad, kind)
    mesh = whole.flatten("all")
    rest = mesh.slice(all=slice(1, 6) if bad == 0 else slice(0, 5))
    with pytest.raises(SupervisionError, match="cannot be made"):
        mesh.slice(all=bad).note.call_one(1).get(timeout=20)
    assert values(rest.note.call(1)) == [[1]] * 5
    if cls is Fragile:
        assert values(rest.note_later.call(2)) == [[1, 2]] * 5
    with pytest.raises(SupervisionError, match="cannot be made"):
        mesh.note.call(1).get(timeout=20)
    whole.stop().get(timeout=20)


@pytest.mark.feature(63)
@KINDS
@pytest.mark.parametrize("how", ["call", "broadcast"])
def test_an_actor_that_fails_leaves_the_others_alone(procs, cls, how):
    mesh = swarm(procs.slice(gpus=0), cls).flatten("all")
    with pytest.raises(ActorError, match="from a swarm"):
        mesh.raises.call(ValueError).get(timeout=20)
    failing = [mesh.slice(all=2).raises]
    if cls is Mixed:
        failing.append(mesh.slice(all=3).raises_later)
    for ep in failing:
        if how == "broadcast":
            ep.broadcast(ValueError)
        else:
            with pytest.raises(SupervisionError, match="SystemExit: from a swarm"):
                ep.call_one(SystemExit).get(timeout=20)
    for rank in range(6):
        one = mesh.slice(all=rank)
        if rank < 2 + len(failing) and rank >= 2:
            with pytest.raises(SupervisionError, match="from a swarm"):
                while True:  # a concurrent endpoint ends when it likes
                    one.note.call_one(1).get(timeout=20)
        else:
            assert one.note.call_one(1).get(timeout=20) == [1]


@KINDS
def test_an_actor_may_leave_its_swarm(procs, cls):
    mesh = swarm(procs.slice(gpus=0), cls).flatten("all")
    mesh.slice(all=1).leave.call_one().get(timeout=20)
    with pytest.raises(SupervisionError, match="stopped: had enough"):
        mesh.slice(all=1).note.call_one(1).get(timeout=20)
    assert values(mesh.slice(all=slice(2, 6)).note.call(1)) == [[1]] * 4


@pytest.mark.feature(52)
@KINDS
def test_a_swarm_is_stopped_as_a_whole(procs, cls):
    mesh = swarm(procs, cls)
    with pytest.raises(NotImplementedError, match="requires an owned ActorMesh"):
        mesh.slice(actors=0).stop()
    mesh.note.broadcast("before")
    last = mesh.note.call("last")
    stopping = mesh.stop("enough")
    assert values(last) == [["before", "last"]] * 12
    stopping.get(timeout=20)
    mesh.stop().get(timeout=20)
    with pytest.raises(SupervisionError, match="stopped: enough"):
        mesh.note.call(1).get(timeout=20)
    assert values(swarm(procs, cls).note.call(1)) == [[1]] * 12  # the processes are as good as before


def test_callers_are_told_when_the_event_loop_of_a_swarm_dies(procs):
    mesh = swarm(procs, Mixed)
    with pytest.raises(SupervisionError, match="a task ends the loop"):
        mesh.slice(gpus=0, replicas=0, actors=0).kill_the_loop.call_one().get(timeout=20)
    with pytest.raises(SupervisionError, match="(?s)event loop of its swarm ended.*a task ends the loop"):
        mesh.slice(gpus=0, replicas=1, actors=2).note.call_one(1).get(timeout=20)
    assert values(mesh.slice(gpus=1).note.call(1)) == [[1]] * 6
    mesh.stop().get(timeout=20)


class Cleans(Plain):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.port = port

    def __cleanup__(self, exc) -> None:
        self.port.send((who()[:2], None if exc is None else str(exc), this_proc().spawn("x", Plain) is not None))


class CleansLater(Mixed):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.port = port

    async def __cleanup__(self, exc) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        self.port.send((who()[:2], None if exc is None else str(exc), this_proc().spawn("x", Plain) is not None))
        if who()[0] == 3:
            raise SystemExit("__cleanup__ of one does not end the loop of the others")


@pytest.mark.feature(20)
@pytest.mark.parametrize("cls", [Cleans, CleansLater])
def test_cleanup_runs_as_its_actor(procs, cls):
    port, receiver = Channel.open()
    mesh = swarm(procs.slice(gpus=0), cls, port).flatten("all")
    ids = [now[:2] for now, *_ in values(mesh.who.call())]
    mesh.slice(all=4).raises.broadcast(ValueError)
    who_failed, why, _ = receiver.recv().get(timeout=20)
    assert who_failed == ids[4] and "from a swarm" in why
    with deadline(30):
        values(mesh.slice(all=slice(0, 4)).note.call(1))
    for rank in (0, 1, 2, 3, 5):
        mesh.slice(all=rank).leave.call_one().get(timeout=20)
    ended = [receiver.recv().get(timeout=20) for _ in range(5)]
    assert sorted(ended) == [(ids[rank], None, True) for rank in (0, 1, 2, 3, 5)]


class Waits(Mixed):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self.port = port

    @concurrent_endpoint
    async def wait(self) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.port.send(who()[0])
            raise


def test_tasks_of_concurrent_endpoints_are_cancelled_with_their_actor_only(procs):
    port, receiver = Channel.open()
    mesh = swarm(procs.slice(gpus=0), Waits, port).flatten("all")
    mesh.wait.broadcast()
    values(mesh.note.call(1))
    mesh.slice(all=2).leave_later.call_one().get(timeout=20)
    assert receiver.recv().get(timeout=20) == 2
    values(mesh.slice(all=slice(3, 6)).note.call(1))
    mesh.slice(all=4).leave.call_one().get(timeout=20)
    assert receiver.recv().get(timeout=20) == 4


class Told(Plain):
    def __init__(self, deals: bool) -> None:
        super().__init__()
        self.deals = deals

    @endpoint
    def send_to(self, mesh) -> None:
        mesh.note.broadcast(1)

    def _handle_undeliverable_message(self, message) -> bool:
        self.notes.append((who()[:2], message.sender() == str(context().actor_instance)))
        return self.deals


class ToldLater(Told):
    @endpoint
    async def nothing(self) -> None: ...


@pytest.mark.feature(32)
@pytest.mark.parametrize("cls", [Told, ToldLater])
def test_undeliverable_messages_come_back_to_the_actor_that_sent_them(procs, cls):
    gone = procs.slice(gpus=1).spawn("gone", Plain)
    gone.stop().get(timeout=20)
    mesh = swarm(procs.slice(gpus=0), cls, True).flatten("all")
    ids = [now[:2] for now, *_ in values(mesh.who.call())]
    mesh.slice(all=3).send_to.call_one(gone).get(timeout=20)
    end = time.monotonic() + 20
    while not (notes := mesh.slice(all=3).note.call_one(0).get(timeout=20)) or notes == [0] * len(notes):
        assert time.monotonic() < end
    assert [note for note in notes if note != 0] == [(ids[3], True)]
    assert values(mesh.slice(all=slice(4, 6)).note.call(1)) == [[1]] * 2


# ---- Whole scripts ----


@pytest.mark.parametrize("end", ["stop", "leave"])
def test_ten_thousand_actors_in_two_processes_end_cleanly(end):
    run = script_run.Run(script_run.program("swarms/ten_thousand.py"), args=(end,))
    assert run.ok(limit=60).out == "done\n"


IDLE = script_run.program("swarms/idle.py")


def test_a_swarm_that_has_nothing_to_do_costs_nothing():
    run = script_run.Run(IDLE).ok()
    assert float(run.out) < 0.1


def test_a_flood_leaves_the_loop_its_turns(procs):
    actors = swarm(procs.slice(gpus=0), Turning, per_proc={"actors": 1})
    actor = actors.slice(actors=0)
    port, receiver = Channel.open()
    held = actor.hold_up.call_one(port)
    gate = receiver.recv().get(timeout=20)
    for _ in range(2000):
        actor.note.broadcast()
    gate.send("go on")
    held.get(timeout=20)
    begun = most = 0
    while begun < 2000:
        begun, most = actor.most_in_a_turn.call_one().get(timeout=20)
    actors.stop().get(timeout=20)
    assert most < 1000
