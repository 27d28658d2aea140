"""monarch.testing.simulate: whole programs in simulated processes."""

import asyncio
import gc
import importlib.util
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from script_run import Run

import monarch.actor
from monarch._meshes import active
from monarch.actor import (
    Accumulator,
    Actor,
    ActorError,
    Channel,
    DeadlineExceeded,
    Restart,
    SupervisionError,
    attach_to_workers,
    context,
    current_rank,
    default_bootstrap_cmd,
    dump_stacks,
    endpoint,
    get_or_spawn_controller,
    hosts_from_config,
    shutdown_context,  # noqa: F401
    start_worker_loop_forever,
    this_host,
    this_proc,
)
from monarch.testing import local_procs, simulate

PROGRAMS = Path(__file__).parent / "programs" / "simulate"


class Counter(Actor):
    def __init__(self, start=0):
        self.value = start
        self.epoch_made = context().epoch
        self.rank = current_rank().rank

    @endpoint
    def add(self, x):
        self.value += x
        return self.value

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def made(self):
        return self.epoch_made

    @endpoint
    def sleep(self, seconds):
        time.sleep(seconds)
        return time.monotonic()

    @endpoint
    def end(self, code):
        os._exit(code)

    @endpoint
    def fail(self):
        raise ValueError("on purpose")

    @endpoint
    def block(self, fd):
        os.read(fd, 1)

    @endpoint
    def send(self, port, x):
        port.send((self.rank, x))

    @endpoint
    def throw_away(self, x):
        self.value += x


class Async(Actor):
    @endpoint
    async def nap(self, seconds):
        await asyncio.sleep(seconds)
        return context().actor_instance.rank.rank

    @endpoint
    async def at_most(self, seconds, limit):
        try:
            await asyncio.wait_for(asyncio.sleep(seconds), limit)
            return "done"
        except asyncio.TimeoutError:
            return "too late"

    @endpoint
    async def on_a_thread(self):
        return await asyncio.to_thread(lambda: (time.sleep(0.5), threading.current_thread().name)[0])

    @endpoint
    async def ask(self, other, x):
        return await other.add.call_one(x)

    @endpoint
    async def connect(self):
        await asyncio.open_connection("127.0.0.1", 1)


class Parent(Actor):
    """Spawns processes of its own, and hears of their failures."""

    def __init__(self, handles=True):
        self.handles = handles
        self.heard = []
        self.procs = this_host().spawn_procs({"gpus": 2}, name="inner")
        self.children = self.procs.spawn("children", Counter)

    @endpoint
    def ask(self, x):
        return list(self.children.add.call(x).get().values())

    @endpoint
    def told(self):
        return self.heard

    @endpoint
    def pids(self):
        return list(self.children.pid.call().get().values())

    def __supervise__(self, failure):
        self.heard.append((failure.mesh_name, failure.crashed_ranks, failure.kind))
        return self.handles


class Bare(Actor):
    """Owns processes, and has no hook that is asked about their failures."""

    def __init__(self):
        self.procs = this_host().spawn_procs({"gpus": 2}, name="inner")
        self.children = self.procs.spawn("children", Counter)

    @endpoint
    def pids(self):
        return list(self.children.pid.call().get().values())


@pytest.fixture(autouse=True)
def hook(monkeypatch):
    told = []
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", told.append)
    return told


def spawn(Class=Counter, count=3, **options):
    procs = this_host().spawn_procs({"gpus": count})
    return procs, procs.options(**options).spawn("actors", Class)


real_time = time.monotonic  # also in a simulation


def values(future):
    return list(future.get().values())


def load(name):
    spec = importlib.util.spec_from_file_location(name, PROGRAMS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def seeds(full, brief):
    return range(1, 1 + (brief if os.environ.get("MONARCH_TEST_SHORT") else full))


# ---- What a program does ----


def test_calls_of_all_kinds():
    with simulate(seed=1) as world:
        procs, actors = spawn()
        assert values(actors.add.call(1)) == [1, 1, 1]
        assert actors.slice(gpus=2).add.call_one(5).get() == 6
        assert actors.add.choose(0).get() in (1, 6)
        actors.throw_away.broadcast(2)
        assert values(actors.add.call(0)) == [3, 3, 8]
        assert sorted(future.get() for future in actors.add.stream(0)) == [3, 3, 8]
        port, receiver = Channel.open()
        actors.send.broadcast(port, "x")
        assert sorted(receiver.recv().get() for _ in range(3)) == [(0, "x"), (1, "x"), (2, "x")]
        assert Accumulator(actors.add, 0, lambda a, b: a + b).accumulate(0).get() == 14
        with pytest.raises(ActorError, match="on purpose"):
            actors.fail.call().get()
        procs.stop().get()
    assert [event.what for event in world.log] == ["spawned"] * 3 + ["exit 0"] * 3


def test_time_is_virtual_and_an_hour_takes_moments():
    began = time.monotonic()
    with simulate(seed=1) as world:
        _, actors = spawn()
        wall = time.time()
        times = values(actors.sleep.call(3600.0))
        assert len(times) == 3 and world.now >= 3600
        assert time.time() - wall == pytest.approx(world.now)
        time.sleep(1000)
        assert world.now > 4600
        with pytest.raises(TimeoutError):
            actors.sleep.call(50).get(timeout=10)
    assert time.monotonic() - began < 30


def test_async_actors_wait_on_the_clock_of_the_simulation():
    with simulate(seed=3) as world:
        procs, actors = spawn(Async)
        counter = procs.spawn("counter", Counter, 40).slice(gpus=0)
        assert values(actors.nap.call(100.0)) == [0, 1, 2]
        assert 100 <= world.now < 101
        assert actors.slice(gpus=0).at_most.call_one(10, 1).get() == "too late"
        assert actors.slice(gpus=1).at_most.call_one(1, 10).get() == "done"
        assert actors.slice(gpus=2).ask.call_one(counter, 2).get() == 42
        actors.slice(gpus=0).on_a_thread.call_one().get()
        with pytest.raises(ActorError, match=r"connections of asyncio: not in monarch.testing.simulate"):
            actors.slice(gpus=0).connect.call_one().get()


def test_an_async_script():
    async def main(world):
        procs, actors = spawn(Async)
        async with procs:
            await asyncio.sleep(5)
            assert list((await actors.nap.call(1.0)).values()) == [0, 1, 2]
            both = await asyncio.gather(actors.nap.call(10.0), actors.nap.call(10.0))
            assert len(both) == 2
        return world.now

    with simulate(seed=3) as world:
        assert 6 < asyncio.run(main(world)) < 60


def test_threads_locks_and_queues_of_the_program():
    with simulate(seed=4) as world:
        lock, found, begun = threading.Lock(), [], threading.Event()
        jobs = queue.Queue()

        def work(number):
            with lock:
                begun.set()
                time.sleep(1)
                found.append(number)
            jobs.put(number)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for worker in workers:
            worker.start()
        assert begun.wait(timeout=5)
        assert sorted(jobs.get(timeout=60) for _ in workers) == [0, 1, 2, 3]
        for worker in workers:
            worker.join()
        assert sorted(found) == [0, 1, 2, 3] and 4 <= world.now < 5


def test_hosts_controllers_deadlines_and_swarms():
    with simulate(seed=5):
        hosts = hosts_from_config("cluster")
        procs = hosts.spawn_procs({"gpus": 2})
        actors = procs.spawn("actors", Counter)
        assert values(actors.add.call(1)) == [1] * 4
        hosts.shutdown().get()
        with pytest.raises(SupervisionError):
            actors.add.call(1).get()
        controller = get_or_spawn_controller("one", Counter, 7).get()
        assert controller.add.call_one(1).get() == 8
        _, others = spawn(per_proc={"actors": 5})
        assert values(others.add.call(1)) == [1] * 15
        with pytest.raises(DeadlineExceeded):
            others.slice(gpus=0, actors=0).sleep.options(deadline=1.0).call_one(100).get()
        assert values(this_proc().spawn("here", Counter).add.call(3)) == [3]


class OnHost(Actor):
    @endpoint
    def host(self):
        return this_host()

    @endpoint
    def count_on(self, host):
        self.procs = host.spawn_procs({"gpus": 2}, name="nested")
        return list(self.procs.spawn("counters", Counter).add.call(1).get().values())


def test_hosts_start_what_they_are_asked_for_and_take_it_along(hook):
    def run():
        with simulate(seed=11) as world:
            hosts = hosts_from_config("cluster")
            assert hosts.initialized.get() is True
            procs = hosts.spawn_procs({"gpus": 2})
            actors = procs.spawn("actors", OnHost)
            assert values(actors.host.call()) == [hosts.slice(hosts=number) for number in (0, 0, 1, 1)]
            first, last = actors.slice(hosts=0, gpus=0), actors.slice(hosts=1, gpus=1)
            assert first.count_on.call_one(hosts.slice(hosts=1)).get() == [1, 1]
            assert last.count_on.call_one(hosts.slice(hosts=0)).get() == [1, 1]
            world.kill(procs, 3)
            with pytest.raises(SupervisionError, match="Killed"):
                last.host.call_one().get()
            procs.respawn()
            assert values(actors.host.call())[3] == hosts.slice(hosts=1)
            world.kill(hosts._own_procs, 0)
            with pytest.raises(SupervisionError, match="the host of .*Killed"):
                first.host.call_one().get()
            with pytest.raises(SupervisionError, match=r"hosts.slice\(hosts=0\).spawn_procs: .*Killed"):
                hosts.spawn_procs()
            assert values(hosts.slice(hosts=slice(1, 2)).spawn_procs().spawn("again", Counter).add.call(1)) == [1]
            hosts.shutdown().get()
            return world.log

    log = run()
    assert log == run()
    spawned = [event.mesh for event in log if event.what == "spawned"]
    assert spawned == ["cluster"] * 2 + ["procs"] * 4 + ["nested"] * 4 + ["procs"] * 3
    assert sum(event.what == "killed" for event in log) > 4


# ---- Failures ----


def test_a_kill_by_hand_is_told_as_that_of_a_real_process(hook):
    with simulate(seed=6) as world:
        procs, actors = spawn()
        pid = values(actors.pid.call())[1]
        world.kill(procs, 1)
        with pytest.raises(SupervisionError) as caught:
            actors.add.call(1).get()
        assert f"Killed(sig=9) (rank {{'gpus': 1/3}} of 'procs', pid {pid})" in str(caught.value)
        partial = values(actors.add.options(partial=True).call(1))
        assert isinstance(partial[1], SupervisionError) and partial[0] == partial[2] == 2
        assert actors.slice(gpus=0).add.call_one(1).get() == 3
        time.sleep(5)
        assert {(failure.mesh_name, *failure.crashed_ranks, failure.signal) for failure in hook} == {
            ("procs", 1, 9),
            ("actors", 1, 9),
        }
        with pytest.raises(ValueError, match="does not live"):
            world.kill(procs, 1)
        with pytest.raises(ValueError, match="there is no rank 3"):
            world.kill(procs, 3)
    assert [(event.what, event.rank) for event in world.log if event.what != "spawned"][0] == ("killed", 1)
    assert [event.pid for event in world.kills][0] == pid


def test_a_process_that_is_stopped_goes_on_later():
    with simulate(seed=6) as world:
        procs, actors = spawn()
        assert values(actors.add.call(1)) == [1, 1, 1]
        world.stop(procs, 1, 20.0)
        assert actors.slice(gpus=0).add.call_one(1).get() == 2 and world.now < 1
        with pytest.raises(TimeoutError):
            actors.add.call(1).get(timeout=10)
        assert values(actors.add.call(1)) == [4, 3, 3]
        assert 20 <= world.now < 21
        with pytest.raises(ValueError, match="seconds is 0"):
            world.stop(procs, 1, 0)
    assert ("stopped", 1) in [(event.what, event.rank) for event in world.log]


def test_a_process_ends_itself():
    with simulate(seed=6) as world:
        _, actors = spawn()
        with pytest.raises(SupervisionError, match="exit code 3|exited with code 3|code 3"):
            actors.slice(gpus=0).end.call_one(3).get()
        os.kill(actors.slice(gpus=1).pid.call_one().get(), signal.SIGSEGV)
        with pytest.raises(SupervisionError):
            actors.slice(gpus=1).add.call_one(3).get()
    assert [event.what for event in world.log[3:5]] == ["exit 3", "signal 11"]


def test_owners_are_asked_and_what_they_own_dies_with_them():
    with simulate(seed=7) as world:
        procs, parents = spawn(Parent, count=2)
        assert values(parents.ask.call(1)) == [[1, 1]] * 2
        inner = values(parents.pids.call())
        os.kill(inner[0][1], signal.SIGKILL)
        time.sleep(5)
        told = values(parents.told.call())
        assert sorted(told[0]) == [("children", [1], "killed by signal 9"), ("inner", [1], "killed by signal 9")]
        assert told[1] == []
        world.kill(procs, 1)
        time.sleep(5)
        dead = {event.pid for event in world.log if event.what != "spawned"}
        assert set(inner[1]) <= dead and inner[0][0] not in dead


def test_what_has_died_is_respawned_and_handles_stay_valid():
    with simulate(seed=8) as world:
        procs, actors = spawn()
        assert values(actors.add.call(1)) == [1, 1, 1]
        world.kill(procs, 2)
        with pytest.raises(SupervisionError):
            actors.add.call(1).get()
        procs.respawn([2]).get()
        assert values(actors.add.call(1)) == [3, 3, 1]
        assert actors.epoch == 1 and procs.epoch == 1
        assert values(actors.made.call()) == [0, 0, 1]


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all", "rest_for_one"])
def test_a_policy_makes_each_death_good_once(strategy):
    for seed in range(20):
        with simulate(seed=seed) as world:
            procs, actors = spawn(restart=Restart(times=2, within=1000, strategy=strategy))
            assert values(actors.add.call(1)) == [1, 1, 1]
            world.kill(procs, 1)
            time.sleep(30)
            wanted = {"one_for_one": [2, 1, 2], "one_for_all": [1, 1, 1], "rest_for_one": [2, 1, 1]}[strategy]
            assert values(actors.add.call(1)) == wanted
            assert actors.epoch == 1
            assert [event.what for event in world.log if event.what != "spawned"] == ["killed"]
            assert len(world.log) == 5


def test_a_call_that_fails_at_once_takes_time_so_a_policy_gets_its_turn():
    """The idiom of docs/concepts/recovery.md: what is not there yet is asked again at once."""

    def run(seed):
        with simulate(seed=seed, kill_every=0.01) as world:
            _, actors = spawn(restart=Restart(times=1000, within=1))
            done = failed = 0
            while done < 10:
                try:
                    actors.add.call(1).get()
                    done += 1
                except SupervisionError:
                    failed += 1
                    assert failed < 20_000, f"time stands still at {world.now}"
            return failed, world.now, world.events

    runs = [run(seed) for seed in range(10)]
    assert sum(failed for failed, *_ in runs) > 10
    assert [run(seed) for seed in range(3)] == runs[:3]


def test_calls_gets_and_spawns_take_some_time_each():
    with simulate(seed=1) as world:
        procs, actors = spawn()
        world.kill(procs, 1)
        future = actors.add.call(1)
        with pytest.raises(SupervisionError):
            future.get()
        for use in (
            lambda: future.exception(),
            lambda: actors.throw_away.broadcast(1),
            lambda: procs.spawn("more", Counter),
            lambda: this_host().spawn_procs(),
        ):
            before = world.now
            use()
            assert before < world.now < before + 0.001


def test_reports_say_what_a_simulated_process_was_in():
    with simulate(seed=6) as world:
        procs, actors = spawn()
        other_procs, others = spawn(Async)
        pending = actors.slice(gpus=1).sleep.call_one(100.0)
        time.sleep(1)
        world.kill(procs, 1)
        with pytest.raises(SupervisionError, match=r"Killed\(sig=9\) .*, while in actors\.sleep") as caught:
            pending.get()
        assert caught.value.in_flight == ("actors.sleep",)
        with pytest.raises(SupervisionError) as caught:
            actors.slice(gpus=0).end.call_one(3).get()
        assert caught.value.in_flight == ("actors.end",)
        pending = others.slice(gpus=2).nap.call_one(100.0)
        time.sleep(1)
        world.kill(other_procs, 2)
        assert pending.exception().in_flight == ("actors.nap",)
        world.kill(procs, 2)
        with pytest.raises(SupervisionError) as caught:
            actors.slice(gpus=2).add.call_one(1).get()
        assert caught.value.in_flight == ()


def test_policies_make_good_whatever_is_killed():
    program = load("restarts")
    for seed in seeds(60, 6):
        program.run(seed)


def test_without_a_hook_an_unhandled_failure_ends_the_program(monkeypatch, capfd):
    monkeypatch.undo()
    with pytest.raises(SystemExit) as caught, simulate(seed=9) as world:
        procs, _ = spawn()
        time.sleep(1)
        world.kill(procs, 0)
        time.sleep(100)
    assert caught.value.code == 1 and world.now < 5
    text = capfd.readouterr().err
    assert "Unhandled monarch error on the root actor" in text and "Killed(sig=9)" in text


def last_kill(world):
    procs, actors = spawn()
    actors.add.call(1).get()
    world.kill(procs, 1)


def last_failure(world):
    spawn()[1].fail.broadcast()


def last_exit(world):
    spawn()[1].slice(gpus=0).end.broadcast(3)


def last_kill_below(world):
    _, owners = spawn(Bare)
    os.kill(owners.slice(gpus=1).pids.call_one().get()[0], signal.SIGKILL)


@pytest.mark.parametrize("last", [last_kill, last_failure, last_exit, last_kill_below])
def test_what_has_failed_last_is_decided_before_the_block_ends(last, monkeypatch, capfd):
    monkeypatch.undo()
    with pytest.raises(SystemExit) as caught, simulate(seed=9) as world:
        last(world)
        end = world.now
    assert caught.value.code == 1 and end < world.now < end + 3
    text = capfd.readouterr().err
    assert text.count("Unhandled monarch error on the root actor") == 1
    assert "replay: MONARCH_SIM_SEED=9 " in text


def test_what_has_been_told_does_not_end_a_block(monkeypatch, capfd):
    monkeypatch.undo()
    with simulate(seed=9) as world:
        procs, actors = spawn()
        world.kill(procs, 1)
        with pytest.raises(SupervisionError):
            actors.add.call(1).get()
        end = world.now
    assert world.now == end and capfd.readouterr().err == ""


def test_the_hook_of_a_program_is_called_before_the_block_ends(hook):
    with simulate(seed=9) as world:
        last_kill(world)
    assert {failure.mesh_name for failure in hook} == {"procs", "actors"}


def test_a_last_kill_by_chance_is_no_failure_of_the_program(monkeypatch, capfd):
    """It might have seen it, if the block had gone on."""
    monkeypatch.undo()
    late = 0
    for seed in range(40):
        with simulate(seed=seed, kill_every=0.01) as world:
            spawn()
            time.sleep(0.02)
        assert all(event.time <= 0.02 for event in world.kills)
        late += len(world.kills)
    assert late > 0 and capfd.readouterr().err == ""


# ---- The same seed, the same run ----


def test_two_hundred_runs_with_kills_keep_their_promises():
    """What the program itself asserts: right answers, or the failure of whoever owed them; each call ends."""
    program = load("farm")
    killed = 0
    for seed in seeds(200, 20):
        lines = program.run(seed, kill_every=0.5, seconds=1.0)
        killed += sum("what='killed'" in line for line in lines)
        if seed % 10 == 0:
            assert program.run(seed, kill_every=0.5, seconds=1.0) == lines
    assert killed > 20


def test_other_processes_and_other_hashes_change_nothing():
    def output(seed, hash_seed):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, PROGRAMS / "farm.py", seed], env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    assert output("11", "1") == output("11", "2")
    assert output("11", "1") != output("12", "1")


def test_chance_is_seeded_and_afterwards_as_it_was():
    def drawn(seed):
        with simulate(seed=seed):
            return random.random(), uuid.uuid4(), os.urandom(8)

    random.seed(1)
    expected = random.random()
    random.seed(1)
    assert drawn(5) == drawn(5) != drawn(6)
    assert random.random() == expected


def test_nothing_stays_behind():
    before = threading.active_count(), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
    clock, make, policy = time.monotonic, threading.Lock, asyncio.get_event_loop_policy()
    for seed in range(10):
        with simulate(seed=seed, kill_every=0.1):
            _, actors = spawn(Async)
            for _ in range(5):
                actors.nap.options(partial=True).call(0.1).get()
    assert (time.monotonic, threading.Lock, asyncio.get_event_loop_policy()) == (clock, make, policy)
    gc.collect()
    deadline = time.monotonic() + 20
    while True:
        after = threading.active_count(), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
        if all(now <= then for now, then in zip(after, before)) or time.monotonic() > deadline:
            break
    assert all(now <= then for now, then in zip(after, before)), (before, after)


def test_a_failing_seed_is_one_line_to_replay(capsys, monkeypatch):
    with pytest.raises(ZeroDivisionError), simulate(seed=17):
        raise ZeroDivisionError
    line = capsys.readouterr().err
    assert line.startswith("replay: MONARCH_SIM_SEED=17 python -m pytest ") and "test_a_failing_seed" in line
    monkeypatch.setenv("MONARCH_SIM_SEED", "23")
    with simulate(seed=17) as world:
        assert world.seed == 23
    assert capsys.readouterr().err == ""


# ---- Wrong uses ----


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"seed": "1"}, TypeError, "seed must be an int"),
        ({"seed": True}, TypeError, "seed must be an int"),
        ({"seed": 1.5}, TypeError, "seed must be an int"),
        ({"seed": 1, "kill_every": 0}, ValueError, "kill_every is 0"),
        ({"seed": 1, "kill_every": -1.0}, ValueError, "kill_every is -1"),
        ({"seed": 1, "kill_every": float("nan")}, ValueError, "kill_every is nan"),
        ({"seed": 1, "kill_every": "often"}, TypeError, "kill_every must be a number"),
        ({"seed": 1, "delay": 0}, ValueError, "delay is 0"),
        ({"seed": 1, "patience": None}, TypeError, "patience must be a number"),
    ],
)
def test_wrong_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        simulate(**arguments)


def test_wrong_arguments_of_kill_and_stop():
    mesh_text = "takes a mesh of processes, what spawn_procs\\(\\) returns, and a rank of it, but was given"
    with local_procs({"gpus": 2}) as real, simulate(seed=1) as world:
        procs, actors = spawn()
        for other in (actors, "procs", this_host(), None):
            with pytest.raises(TypeError, match=f"kill {mesh_text}"):
                world.kill(other, 1)
            with pytest.raises(TypeError, match=f"stop {mesh_text}"):
                world.stop(other, 1, 1.0)
        for rank in ("1", [1], 1.0, None, True):
            with pytest.raises(TypeError, match="kill: rank must be an int, but is"):
                world.kill(procs, rank)
            with pytest.raises(TypeError, match="stop: rank must be an int, but is"):
                world.stop(procs, rank, 1.0)
        for seconds in ("20", None, True):
            with pytest.raises(TypeError, match="stop: seconds must be a number, but is"):
                world.stop(procs, 1, seconds)
        for use in (world.kill, lambda mesh, rank: world.stop(mesh, rank, 1.0)):
            with pytest.raises(ValueError, match="there is no rank -1 in 'procs', which has 3"):
                use(procs, -1)
            with pytest.raises(ValueError, match="is the process of the script"):
                use(this_proc(), 0)
            with pytest.raises(RuntimeError, match="is not a mesh of this simulation"):
                use(real, 0)
        assert [event.what for event in world.log] == ["spawned"] * 3
        world.kill(procs.slice(gpus=slice(1, 3)), 0)
        assert [event.rank for event in world.kills] == [1]


def test_a_simulation_prints_as_what_it_is():
    world = simulate(seed=17)
    assert repr(world) == "simulate(seed=17)"
    with world:
        time.sleep(1.5)
        assert repr(world) == "<simulation with seed 17, now 1.500000 s>"
    assert repr(world) == "<simulation with seed 17, ended at 1.500000 s>"


def test_the_first_run_of_a_program_is_as_those_after_it():
    assert Run(PROGRAMS / "by_value.py").ok().out == "equal\n"


def test_any_int_is_a_seed():
    for seed in (0, -1, 2**70):
        with simulate(seed=seed):
            assert values(spawn()[1].add.call(1)) == [1, 1, 1]


def test_simulations_do_not_nest_and_are_for_scripts():
    with simulate(seed=1):
        with pytest.raises(RuntimeError, match="do not nest"), simulate(seed=2):
            pass

    async def inside():
        with pytest.raises(RuntimeError, match="running event loop"), simulate(seed=2):
            pass

    asyncio.run(inside())
    with pytest.raises(RuntimeError, match="main thread"):
        raise _raised_on_a_thread(lambda: simulate(seed=1).__enter__())


def _raised_on_a_thread(work):
    raised = []

    def run():
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised[0]


def test_real_meshes_are_refused_inside_and_simulated_ones_outside():
    with local_procs({"gpus": 2}) as real:
        there = real.spawn("real", Counter)
        assert values(there.add.call(1)) == [1, 1]
        real_hosts = hosts_from_config("real")
        with simulate(seed=1) as world:
            with pytest.raises(RuntimeError, match="real ones"):
                there.add.call(1).get()
            with pytest.raises(RuntimeError, match="real ones"):
                real_hosts.spawn_procs()
            hosts = hosts_from_config("simulated")
            procs, actors = spawn()
            port, receiver = Channel.open()
            waiting, pending = receiver.recv(), actors.sleep.call(100)
        for use in (
            lambda: actors.add.call(1).get(),
            lambda: actors.throw_away.broadcast(1),
            lambda: procs.spawn("more", Counter),
            lambda: hosts.spawn_procs(),
            lambda: port.send(1),
            pending.get,
            waiting.get,
        ):
            with pytest.raises(RuntimeError, match="simulation that has ended"):
                use()
        with pytest.raises(RuntimeError, match="does not run"):
            world.kill(procs, 0)
        assert values(there.add.call(1)) == [2, 2]
        assert values(real_hosts.spawn_procs().spawn("on hosts", Counter).add.call(1)) == [1, 1]
        real_hosts.shutdown().get()


def test_what_is_not_simulated_says_so():
    refused = r"not in monarch.testing.simulate\(\)"
    with simulate(seed=1):
        procs, _ = spawn()
        with pytest.raises(NotImplementedError, match=refused):
            dump_stacks(procs)
        with pytest.raises(NotImplementedError, match=refused):
            os.fork()
        with pytest.raises(NotImplementedError, match=refused):
            this_host().with_python_executable("/usr/bin/python3").spawn_procs()
        with pytest.raises(NotImplementedError, match=refused):
            hosts_from_config("cluster").spawn_procs(bootstrap_command=default_bootstrap_cmd())
        with pytest.raises(NotImplementedError, match=refused):
            attach_to_workers(ca="trust_all_connections", workers=["ipc:///tmp/nowhere"])
        with pytest.raises(NotImplementedError, match=refused):
            start_worker_loop_forever(ca="trust_all_connections", address="ipc:///tmp/nowhere")
        with pytest.raises(NotImplementedError, match=refused):
            procs.__reduce__()


def test_a_wait_for_what_never_comes_is_told():
    with simulate(seed=1):
        _, receiver = Channel.open()
        with pytest.raises(RuntimeError, match="waits for what never comes"):
            receiver.recv().get()


@pytest.mark.parametrize("what", ["spins", "waits"])
def test_ctrl_c_ends_the_block(what):
    main = threading.main_thread().ident
    interrupt = threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT))
    reads, writes = os.pipe()
    interrupt.start()
    with pytest.raises(KeyboardInterrupt), simulate(seed=1):
        procs, actors = spawn()
        if what == "waits":
            actors.block.call(reads).get()
        while True:
            actors.sleep.call(1).get()
    interrupt.join()
    os.write(writes, b"123")
    os.close(writes)


def test_an_actor_that_waits_for_something_real_is_told():
    reads, writes = os.pipe()
    with pytest.raises(RuntimeError, match=r"a thread of the simulation \(an actor\) does not come back"):
        with simulate(seed=1, patience=0.2):
            spawn()[1].block.call(reads).get()
    os.write(writes, b"123")


def test_a_script_that_waits_for_something_real_is_told():
    one, other = socket.socketpair()
    lock = threading.Lock()
    lock.acquire()

    def spin():
        while True:
            pass

    before = [signal.getsignal(number) for number in range(signal.SIGRTMIN, signal.SIGRTMAX)]
    for wait in (lambda: one.recv(1), lock.acquire, spin):
        with pytest.raises(RuntimeError, match=r"simulation \(the script\) does not come back"):
            with simulate(seed=1, patience=0.2):
                assert values(spawn()[1].add.call(1)) == [1, 1, 1]
                wait()
    assert [signal.getsignal(number) for number in range(signal.SIGRTMIN, signal.SIGRTMAX)] == before
    one.close(), other.close()


def test_a_script_that_catches_that_is_told_again():
    one, other = socket.socketpair()
    with pytest.raises(RuntimeError, match="does not come back"), simulate(seed=1, patience=0.2):
        actors = spawn()[1]
        with pytest.raises(RuntimeError, match="does not come back"):
            one.recv(1)
        with pytest.raises(RuntimeError, match="does not come back"):
            actors.add.call(1).get()
        one.recv(1)
    one.close(), other.close()


def test_patience_is_for_what_does_not_wait():
    """Others may take as long together: each wait begins it anew."""
    with simulate(seed=1, patience=0.5) as world:
        actors = spawn()[1]
        began = real_time()
        while real_time() < began + 1.0:
            actors.sleep.call(10).get()
        assert world.now > 10


@pytest.mark.parametrize(("gil", "text"), [("free", "the script waits in File .*deaf.py"), ("held", "holds the GIL")])
def test_a_script_that_no_signal_reaches_is_a_line_on_stderr(gil, text):
    script = Run(PROGRAMS / "deaf.py", args=(gil,))
    line = script.err_line(30, "\n")
    script.kill()
    assert re.match(f"monarch: the simulation stands still for longer than its `patience` lasts: .*{text}", line), line


def test_its_meshes_are_none_of_this_programs():
    """Who looks for all processes of a program, as a mount does, would find some that are nowhere."""
    before = active.spawned()
    with simulate(seed=1):
        actors = spawn()[1]
        assert actors.add.call(1).get() and len(active.spawned()) == 1
    assert active.spawned() == before
