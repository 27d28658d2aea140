"""What has ended is made anew, by respawn() or a restart policy: handles stay valid, the other ranks as they are."""

import contextlib
import os
import pickle
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from script_run import Run, program

import monarch.actor
from monarch.actor import (
    Actor,
    ActorMesh,
    Restart,
    SupervisionError,
    context,
    current_rank,
    endpoint,
    hosts_from_config,
    this_host,
)
from monarch.testing import local_procs

LIMIT = 20


class Keeper(Actor):
    def __init__(self, start=0, trouble=None):
        self.value = start
        self.made_in = context().epoch
        self.rank = current_rank()
        if trouble is not None and trouble(self.made_in, current_rank().rank):
            raise ValueError(f"no, not in epoch {self.made_in}")

    @endpoint
    def add(self, x):
        self.value += x
        return self.value

    @endpoint
    def state(self):
        return os.getpid(), self.value, self.made_in, self.rank.rank, current_rank().rank

    @endpoint
    def epoch(self):  # an endpoint may have that name
        return context().epoch

    @endpoint
    def die(self, how):
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), how)
        signal.pause()

    @endpoint
    def fail(self):
        raise ValueError("failed on purpose")

    @endpoint
    def ask(self, mesh):
        return mesh.state.call().get().values()

    @endpoint
    def keep(self, mesh):
        self.kept = mesh

    @endpoint
    def ask_kept(self):
        return list(self.kept.state.call().get().values())


WORKER = """
class Worker(Actor):
    @endpoint
    def pid(self): return os.getpid()
"""  # of scripts of their own


class AsyncKeeper(Keeper):
    @endpoint
    async def state(self):
        return os.getpid(), self.value, self.made_in, self.rank.rank, current_rank().rank


def kill(actors, how=signal.SIGKILL):
    with pytest.raises(SupervisionError):
        actors.die.call_one(how).get(timeout=LIMIT)


def fails(actors):
    """By a broadcast that raises; until its callers are told so."""
    actors.fail.broadcast()
    with pytest.raises(SupervisionError):
        actors.state.call().get(timeout=LIMIT)


def states(actors):
    return list(actors.state.call().get(timeout=LIMIT).values())


def until(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.002)


def answers(ask):
    """Until it does, and what."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            return ask()
        except SupervisionError:
            assert time.monotonic() < deadline


# ---- respawn() of processes ----


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, "exit"])
@pytest.mark.parametrize("kind", [Keeper, AsyncKeeper])
def test_a_process_comes_back_with_its_actors_and_the_others_stay(how, kind):
    with this_host().spawn_procs({"gpus": 4}) as procs:
        keepers, others = procs.spawn("keepers", kind, 5), procs.spawn("others", kind)
        early = keepers.slice(gpus=2)
        keepers.add.call(1).get()
        before = states(keepers)
        kill(keepers.slice(gpus=2), how)
        assert procs.epoch == 0
        procs.respawn([2]).get(timeout=LIMIT)
        after = states(keepers)
        for rank in (0, 1, 3):
            assert after[rank] == before[rank]
        assert after[2][0] != before[2][0] and after[2][1:4] == (5, 1, 2)
        assert states(early) == [(*after[2][:4], 0)]
        assert states(keepers.slice(gpus=slice(1, 3)))[1][:4] == after[2][:4]
        assert states(others)[2][1:3] == (0, 1) and procs.epoch == 1
        assert list(keepers.epoch.call().get().values()) == [1] * 4


def test_handles_that_others_hold_find_who_is_there_now():
    with this_host().spawn_procs({"gpus": 3}) as procs, this_host().spawn_procs() as away:
        keepers = procs.spawn("keepers", Keeper)
        holder = away.spawn("holder", Keeper)
        holder.keep.call_one(keepers).get()
        before = holder.ask_kept.call_one().get()
        pickled = pickle.dumps(keepers)
        kill(keepers.slice(gpus=1))
        procs.respawn().get(timeout=LIMIT)
        after = holder.ask_kept.call_one().get(timeout=LIMIT)
        assert after[1][0] != before[1][0] and (after[0], after[2]) == (before[0], before[2])
        assert keepers.slice(gpus=0).ask.call_one(keepers.slice(gpus=slice(1, 3))).get(timeout=LIMIT)
        assert states(pickle.loads(pickled)) == after
        # A process that is started later has never heard of the one that died.
        with this_host().spawn_procs() as late:
            newcomer = late.spawn("newcomer", Keeper)
            newcomer.keep.call_one(keepers).get()
            assert newcomer.ask_kept.call_one().get(timeout=LIMIT) == after
            kill(newcomer)


def test_a_rank_may_end_and_come_back_again_and_again():
    with this_host().spawn_procs({"gpus": 2}) as procs:
        keepers = procs.spawn("keepers", Keeper)
        pids = {states(keepers)[1][0]}
        for epoch in range(1, 6):
            kill(keepers.slice(gpus=1))
            procs.respawn([1])
            pid, _, made_in, *_ = states(keepers)[1]
            pids.add(pid)
            assert made_in == epoch
        assert len(pids) == 6


def test_several_ranks_come_back_at_once():
    with this_host().spawn_procs({"hosts": 2, "gpus": 4}) as procs:
        keepers = procs.spawn("keepers", Keeper)
        before = states(keepers)
        for pid, *_ in before[2:5]:
            os.kill(pid, signal.SIGKILL)
        for rank in (2, 3, 4):
            with pytest.raises(SupervisionError):
                keepers.slice(hosts=rank // 4, gpus=rank % 4).state.call().get(timeout=LIMIT)
        procs.respawn().get(timeout=LIMIT)
        after = states(keepers)
        changed = [rank for rank in range(8) if after[rank][0] != before[rank][0]]
        assert changed == [2, 3, 4] and [each[3] for each in after] == list(range(8))
        procs.respawn().get()  # nothing to do


def test_a_hook_respawns_what_has_failed_and_is_asked_no_more_about_it():
    run = Run(WORKER + """
class Owner(Actor):
    def __init__(self):
        self.procs = this_host().spawn_procs({"gpus": 3})
        self.first, self.second = self.procs.spawn("first", Worker), self.procs.spawn("second", Worker)
        self.told = []
    @endpoint
    def pids(self): return list(self.first.pid.call().get().values())
    @endpoint
    def seen(self): return self.told
    def __supervise__(self, failure):
        self.told.append((failure.mesh_name, failure.crashed_ranks))
        self.procs.respawn(failure.crashed_ranks)
        return True

owner = this_host().spawn_procs().spawn("owner", Owner)
before = owner.pids.call_one().get()
os.kill(before[1], signal.SIGKILL)
until = time.monotonic() + 20
while not (seen := owner.seen.call_one().get()):
    assert time.monotonic() < until
after = owner.pids.call_one().get()
assert after[1] != before[1] and after[::2] == before[::2]
assert owner.seen.call_one().get() == [("first", [1])], seen
""").ok()  # fmt: skip
    assert run.err == ""


def test_swarms_come_back_whole():
    with this_host().spawn_procs({"gpus": 2}) as procs:
        swarm = procs.options(per_proc={"actors": 3}).spawn("swarm", AsyncKeeper, 1)
        before = states(swarm)
        kill(swarm.slice(gpus=1, actors=0))
        procs.respawn([1]).get(timeout=LIMIT)
        after = states(swarm)
        assert after[:3] == before[:3]
        assert [(each[2], each[3]) for each in after[3:]] == [(1, 3), (1, 4), (1, 5)]
        assert len({each[0] for each in after[3:]}) == 1


def test_what_others_have_spawned_there_does_not_come_back_by_itself():
    run = Run(WORKER + """
class Guest(Actor):
    def __init__(self, procs): self.workers = procs.spawn("workers", Worker)
    @endpoint
    def pids(self): return list(self.workers.pid.call().get().values())
    @endpoint
    def respawn(self, ranks): self.workers.respawn(ranks).get()
    def __supervise__(self, failure): return True

import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
procs = this_host().spawn_procs({"gpus": 2})
own = procs.spawn("own", Worker)
guest = this_host().spawn_procs().spawn("guest", Guest, procs)
before = guest.pids.call_one().get()
assert before == list(own.pid.call().get().values())
os.kill(before[1], signal.SIGKILL)
try:
    guest.pids.call_one().get()
except ActorError as error:
    assert "Killed" in str(error), error
procs.respawn([1]).get()
now = own.pid.call().get().item(gpus=1)
assert now != before[1]
try:
    guest.pids.call_one().get(timeout=10)
except ActorError as error:
    assert "has not been made anew" in str(error), error
else:
    raise AssertionError("who has made it anew?")
guest.respawn.call_one([1]).get(timeout=10)
assert guest.pids.call_one().get(timeout=10) == [before[0], now]
""").ok()  # fmt: skip
    assert run.err == ""


def test_several_hosts_start_them_where_they_were():
    with hosts_from_config("hosts") as hosts, hosts.spawn_procs({"gpus": 2}) as procs:
        keepers = procs.spawn("keepers", Keeper)
        before = states(keepers)
        parents = [_parent(pid) for pid, *_ in before]
        for rank in (1, 2):
            os.kill(before[rank][0], signal.SIGKILL)
            with pytest.raises(SupervisionError):
                states(keepers.slice(hosts=rank // 2, gpus=rank % 2))
        procs.respawn().get(timeout=LIMIT)
        after = states(keepers)
        assert [rank for rank in range(4) if after[rank][0] != before[rank][0]] == [1, 2]
        assert [_parent(pid) for pid, *_ in after] == parents
        assert keepers.slice(hosts=0, gpus=0).ask.call_one(keepers.slice(hosts=1)).get(timeout=LIMIT)


def _parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("way", ["fork", "exec", "unix"])
def test_every_way_of_starting_and_talking(way):
    run = Run("""
class Worker(Actor):
    @endpoint
    def pid(self): return os.getpid()
    @endpoint
    def ask(self, other): return other.pid.call_one().get()

procs = this_host().spawn_procs({"gpus": 3})
workers = procs.spawn("workers", Worker)
pids = workers.pid.call().get()
first, second = workers.slice(gpus=0), workers.slice(gpus=1)
assert first.ask.call_one(second).get() == pids.item(gpus=1)
for _ in range(2):
    os.kill(pids.item(gpus=1), signal.SIGKILL)
    try:
        workers.pid.call().get()
    except SupervisionError:
        pass
    procs.respawn([1]).get()
    now = workers.pid.call().get()
    assert now.item(gpus=1) != pids.item(gpus=1) and now.item(gpus=2) == pids.item(gpus=2)
    assert first.ask.call_one(second).get() == now.item(gpus=1)
    pids = now
""", way=way).ok()  # fmt: skip
    assert run.err == ""


# ---- respawn() of actors ----


@pytest.mark.parametrize("kind", [Keeper, AsyncKeeper])
def test_an_actor_comes_back_in_its_process(kind):
    with this_host().spawn_procs({"gpus": 3}) as procs:
        keepers = procs.spawn("keepers", kind, 5)
        neighbours = procs.spawn("neighbours", kind)
        keepers.add.call(1).get()
        neighbours.add.call(7).get()
        before = states(keepers)
        fails(keepers.slice(gpus=1))
        keepers.respawn([1]).get(timeout=LIMIT)
        after = states(keepers)
        assert after[1] == (before[1][0], 5, 1, 1, 1) and (after[0], after[2]) == (before[0], before[2])
        assert [each[1] for each in states(neighbours)] == [7, 7, 7]
        fails(keepers.slice(gpus=1))
        keepers.respawn().get(timeout=LIMIT)
        assert states(keepers)[1][2] == 2


def test_one_of_a_swarm_comes_back():
    with this_host().spawn_procs({"gpus": 2}) as procs:
        swarm = procs.options(per_proc={"actors": 3}).spawn("swarm", AsyncKeeper, 1)
        swarm.add.call(1).get()
        fails(swarm.slice(gpus=1, actors=1))
        swarm.respawn([4]).get(timeout=LIMIT)
        assert [each[1] for each in states(swarm)] == [2, 2, 2, 2, 1, 2]
        assert states(swarm)[4][2:4] == (1, 4)


def test_a_constructor_is_told_that_it_is_not_the_first():
    with this_host().spawn_procs({"gpus": 2}) as procs:
        keepers = procs.spawn("keepers", Keeper, 0, lambda epoch, rank: epoch == 0 and rank == 1)
        with pytest.raises(SupervisionError, match="no, not in epoch 0"):
            states(keepers)
        keepers.respawn([1]).get(timeout=LIMIT)
        assert [each[2] for each in states(keepers)] == [0, 1]


def test_an_actor_that_has_stopped_itself_comes_back_if_asked():
    class Leaver(Keeper):
        @endpoint
        def leave(self):
            context().actor_instance.stop()

    with this_host().spawn_procs({"gpus": 2}) as procs:
        keepers = procs.spawn("keepers", Leaver)
        keepers.slice(gpus=0).leave.call_one().get()
        with pytest.raises(SupervisionError, match="stopped"):
            states(keepers.slice(gpus=0))
        keepers.respawn([0]).get(timeout=LIMIT)
        assert states(keepers)[0][2] == 1


# ---- Restart policies ----


@pytest.fixture
def told(monkeypatch):
    failures = []
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", failures.append)
    return failures


@pytest.mark.parametrize("how", [signal.SIGKILL, "exit", "fail"])
def test_a_policy_makes_it_anew_and_nobody_is_asked(how, told):
    with this_host().spawn_procs({"gpus": 3}) as procs:
        keepers = procs.options(restart=Restart(times=2)).spawn("keepers", Keeper, 5)
        others = procs.spawn("others", Keeper)
        keepers.add.call(1).get()
        others.add.call(1).get()
        before = states(keepers)
        fails(keepers.slice(gpus=1)) if how == "fail" else kill(keepers.slice(gpus=1), how)
        after = answers(lambda: states(keepers))
        assert after[1][1:] == (5, 1, 1, 1) and (after[0], after[2]) == (before[0], before[2])
        assert (after[1][0] == before[1][0]) is (how == "fail")
        # What shares the process comes back with it.
        assert [each[1] for each in states(others)] == [1, 1 if how == "fail" else 0, 1]
        assert told == []


def test_a_budget_that_is_spent_is_told_with_its_history(told, capfd):
    with this_host().spawn_procs({"gpus": 2}) as procs:
        keepers = procs.options(restart=Restart(times=2, within=30)).spawn("keepers", Keeper)
        for epoch in (1, 2):
            fails(keepers.slice(gpus=1))
            assert answers(lambda: states(keepers))[1][2] == epoch
        fails(keepers.slice(gpus=1))
        until(lambda: told)
        report = told[0].report()
        assert told[0].mesh_name == "keepers" and told[0].crashed_ranks == [1]
        assert "It had been made anew 2 times within 30 s, which its policy allows: " in report
        assert report.count(" s ago: ValueError: failed on purpose") == 2, report
        # Whoever only calls it, and catches what that raises, learns it from a line.
        line = "monarch: rank 1 of 'keepers' has failed (ValueError: failed on purpose, pid "
        said = []
        until(lambda: said.append(capfd.readouterr().err) or "It had been made anew 2 times" in "".join(said))
        lines = [each for each in "".join(said).split("\n") if "It had been made anew 2 times" in each]
        assert len(lines) == 1 and lines[0].startswith(line), lines
        assert [each[1] for each in states(keepers.slice(gpus=0))] == [0]
        keepers.respawn([1]).get(timeout=LIMIT)  # its owner may still do it
        assert states(keepers)[1][2] == 3


def test_the_budget_is_that_of_each_rank(told):
    with this_host().spawn_procs({"gpus": 3}) as procs:
        keepers = procs.options(restart=Restart(times=1)).spawn("keepers", Keeper)
        for rank in range(3):
            fails(keepers.slice(gpus=rank))
            answers(lambda: states(keepers))
        assert told == []


def test_a_constructor_that_always_fails_spends_it(told):
    with this_host().spawn_procs({"gpus": 2}) as procs:
        keepers = procs.options(restart=Restart(times=3)).spawn("keepers", Keeper, 0, lambda epoch, rank: rank == 1)
        until(lambda: told)
        assert len(told) == 1 and "no, not in epoch 3" in told[0].report() and "epoch 0" in told[0].report()
        assert [each[2] for each in states(keepers.slice(gpus=slice(0, 1)))] == [0]


@pytest.mark.parametrize("how", ["fail", signal.SIGKILL])
@pytest.mark.parametrize("strategy, anew", [("one_for_all", [0, 1, 2, 3]), ("rest_for_one", [1, 2, 3])])
def test_a_strategy_says_who_else_is_made_anew(strategy, anew, how, told):
    with this_host().spawn_procs({"gpus": 4}) as procs:
        keepers = procs.options(restart=Restart(strategy=strategy)).spawn("keepers", Keeper)
        keepers.add.call(1).get()
        before = states(keepers)
        fails(keepers.slice(gpus=1)) if how == "fail" else kill(keepers.slice(gpus=1), how)

        def all_anew():
            with contextlib.suppress(SupervisionError):
                return [rank for rank, each in enumerate(states(keepers)) if each[1] == 0] == anew

        until(all_anew)
        after = states(keepers)
        changed = [rank for rank in range(4) if after[rank][0] != before[rank][0]]
        assert changed == ([] if how == "fail" else [1])
        assert told == []


def test_an_actor_and_then_its_process_fail_before_anything_is_decided(told, tmp_path):
    """Another decision of the policy is under way: until it is let go, rank 2 cleans up."""
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)

    class Slow(Keeper):
        def __cleanup__(self, exc):
            if self.rank.rank == 2 and self.made_in == 0:
                open(gate).close()  # waits for who opens it to write

    with this_host().spawn_procs({"gpus": 3}) as procs:
        keepers = procs.options(restart=Restart(strategy="rest_for_one")).spawn("keepers", Slow)
        beside = procs.spawn("beside", Keeper)
        pids = [pid for pid, *_ in states(keepers)]
        fails(keepers.slice(gpus=1))
        fails(keepers.slice(gpus=0))
        kill(beside.slice(gpus=0))
        open(gate, "w").close()
        after = answers(lambda: states(keepers))
        assert after[0][0] != pids[0] and [each[0] for each in after[1:]] == pids[1:]
        assert told == []


def test_deaths_at_the_same_time_are_each_made_good(told):
    with this_host().spawn_procs({"gpus": 6}) as procs:
        keepers = procs.options(restart=Restart()).spawn("keepers", Keeper)
        before = states(keepers)
        for pid, *_ in before[1:5]:
            os.kill(pid, signal.SIGKILL)

        def back():
            with contextlib.suppress(SupervisionError):
                pids = [each[0] for each in states(keepers)]
                return all((pids[rank] != before[rank][0]) is (1 <= rank < 5) for rank in range(6))

        until(back)
        assert told == []


@pytest.mark.parametrize("what", ["process", "actor"])
def test_a_policy_and_respawn_may_meet(what, told):
    """Whoever comes first makes it anew, and respawn() is done when it is there again: no error, and nobody is told."""
    with this_host().spawn_procs({"gpus": 2}) as procs:
        keepers = procs.options(restart=Restart(times=100)).spawn("keepers", Keeper)
        for epoch in range(1, 21):
            if what == "process":
                kill(keepers.slice(gpus=epoch % 2))
                procs.respawn().get(timeout=LIMIT)
            else:
                fails(keepers.slice(gpus=epoch % 2))
                keepers.respawn().get(timeout=LIMIT)
            assert states(keepers)[epoch % 2][2] == epoch
        assert told == []


def test_handles_stay_valid_over_more_respawns_than_are_kept():
    """Of those who have been in one place only some are kept, those among them that handles of living meshes name."""
    Run(WORKER + """
import monarch.actor

class Holder(Actor):
    def __init__(self, *meshes): self.meshes = meshes
    @endpoint
    def pids(self): return [mesh.pid.call_one().get() for mesh in self.meshes]

monarch.actor.unhandled_fault_hook = lambda failure: None
procs = this_host().spawn_procs()
first = procs.spawn("first", Worker)
for number in range(40):
    if number == 3:
        later = procs.spawn("later", Worker)
        holder = this_host().spawn_procs().spawn("holder", Holder, first, later)
    os.kill(first.pid.call_one().get(), signal.SIGKILL)
    try:
        while True: first.pid.call_one().get()
    except SupervisionError:
        procs.respawn().get()
pid = first.pid.call_one().get()
younger = this_host().spawn_procs().spawn("younger", Holder, first, later)
assert later.pid.call_one().get() == pid and procs.epoch == 40
assert holder.pids.call_one().get() == younger.pids.call_one().get() == [pid, pid]
""").ok()  # fmt: skip


def test_what_a_policy_does_is_a_line():
    run = Run(WORKER + """
workers = this_host().spawn_procs({"gpus": 2}).options(restart=Restart(times=3, within=60)).spawn("workers", Worker)
pids = workers.pid.call().get()
os.kill(pids.item(gpus=1), signal.SIGKILL)
until = time.monotonic() + 20
while True:
    try:
        if workers.pid.call().get().item(gpus=1) != pids.item(gpus=1): break
    except SupervisionError:
        pass
    assert time.monotonic() < until
""").done()  # fmt: skip
    said = r"monarch: rank 1 of 'workers' has failed \(killed by signal 9, pid \d+\) and is made anew: 1 of 3 times .*"
    assert run.status == 0 and re.fullmatch(said, run.err.rstrip()), run.err


def test_what_policies_do_about_one_process_is_one_line():
    run = Run(WORKER + """
procs = this_host().spawn_procs({"gpus": 2}).options(restart=Restart(times=3, within=60))
meshes = [procs.spawn(f"workers{number}", Worker) for number in range(5)]
pids = meshes[0].pid.call().get()
os.kill(pids.item(gpus=1), signal.SIGKILL)
until = time.monotonic() + 20
for workers in meshes:
    while True:
        try:
            if workers.pid.call().get().item(gpus=1) != pids.item(gpus=1): break
        except SupervisionError:
            pass
        assert time.monotonic() < until
""").done()  # fmt: skip
    said = (
        r"monarch: rank 1 of 'workers\d' has failed \(killed by signal 9, pid \d+\) with 4 other meshes on its process "
        r"\('workers\d', 'workers\d', 'workers\d', \.\.\.\) and is made anew: 1 of 3 times within 60 s"
    )
    assert run.status == 0 and re.fullmatch(said, run.err.rstrip()), run.err


def test_a_mesh_that_is_stopped_stays_so(told):
    with this_host().spawn_procs({"gpus": 2}) as procs:
        keepers = procs.options(restart=Restart()).spawn("keepers", Keeper)
        pid = states(keepers)[1][0]
        keepers.stop().get()
        os.kill(pid, signal.SIGKILL)
        until(lambda: told)
        assert {failure.mesh_name for failure in told} == {"procs"}


def test_a_policy_of_an_actor_counts_there():
    run = Run(WORKER + """
class Owner(Actor):
    def __init__(self):
        procs = this_host().spawn_procs({"gpus": 2})
        self.workers = procs.options(restart=Restart()).spawn("workers", Worker)
    @endpoint
    def pids(self): return list(self.workers.pid.call().get().values())
    def __supervise__(self, failure): raise AssertionError(failure)

owner = this_host().spawn_procs().spawn("owner", Owner)
before = owner.pids.call_one().get()
os.kill(before[0], signal.SIGKILL)
until = time.monotonic() + 20
while True:
    try:
        after = owner.pids.call_one().get()
        if after[0] != before[0]: break
    except ActorError:
        pass
    assert time.monotonic() < until
assert after[1] == before[1]
""").done()  # fmt: skip
    assert run.status == 0 and "[procs] monarch: rank 0 of 'workers' has failed" in run.err, run.err


def test_all_ends_with_the_script_whatever_was_made_anew():
    run = Run(WORKER + """
procs = this_host().spawn_procs({"gpus": 2})
workers = procs.options(restart=Restart(times=100)).spawn("workers", Worker)
for _ in range(3):
    os.kill(workers.pid.call().get().item(gpus=1), signal.SIGKILL)
    until = time.monotonic() + 20
    while True:
        try:
            workers.pid.call().get()
            break
        except SupervisionError:
            assert time.monotonic() < until
""").done()  # fmt: skip
    assert run.status == 0 and run.err.count("anew: ") == run.err.count("\n") == 3, run.err


def test_all_ranks_of_a_call_see_the_same_epoch(told):
    with this_host().spawn_procs({"gpus": 4}) as procs:
        keepers = procs.options(restart=Restart(times=100)).spawn("keepers", Keeper)
        seen = []
        for round in range(10):
            os.kill(states(keepers.slice(gpus=round % 4))[0][0], signal.SIGKILL)
            while not seen or seen[-1] != round + 1:
                with contextlib.suppress(SupervisionError):
                    epochs = set(keepers.epoch.call().get(timeout=LIMIT).values())
                    assert len(epochs) == 1
                    seen += epochs
        assert seen == sorted(seen) and set(seen) >= set(range(1, 11))


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all", "rest_for_one"])
def test_a_storm_of_failures(strategy):
    seed = int(os.environ.get("MONARCH_TEST_SEED", time.time_ns() % 10_000))
    seconds = 60 if os.environ.get("MONARCH_TEST_LONG") else 3
    text = program("restarts/storm.py").replace("main(int(", f"main({seed}, {seconds}, {strategy!r})\n    # (int(")
    run = Run(text).done(limit=seconds + 60)
    assert run.status == 0 and "blows" in run.out, f"seed {seed}: {run.out}\n{run.err}"


# ---- What the first reads found ----


def test_an_owner_elsewhere_is_told_however_fast_the_respawn_is():
    run = Run(WORKER + """
class Guest(Actor):
    def __init__(self, procs):
        self.workers, self.told = procs.spawn("workers", Worker), []
    @endpoint
    def pids(self): return list(self.workers.pid.call().get().values())
    @endpoint
    def seen(self): return self.told
    def __supervise__(self, failure):
        self.told.append((failure.mesh_name, failure.crashed_ranks, failure.signal))
        return True

import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
for _ in range(8):
    procs = this_host().spawn_procs({"gpus": 2})
    own = procs.spawn("own", Worker)
    guests = this_host().spawn_procs()
    guest = guests.spawn("guest", Guest, procs)
    before = guest.pids.call_one().get()
    os.kill(before[1], signal.SIGKILL)
    try: own.pid.call().get()
    except SupervisionError: procs.respawn([1])
    try: guest.pids.options(deadline=10).call_one().get()
    except DeadlineExceeded: raise
    except ActorError: pass
    else: raise AssertionError("who has made it anew?")
    assert guest.seen.call_one().get() == [("workers", [1], 9)], guest.seen.call_one().get()
    guests.stop().get(); procs.stop().get()
""").ok()  # fmt: skip
    assert run.err == ""


def test_a_script_that_respawns_before_a_call_has_told_goes_on():
    run = Run(WORKER + """
procs = this_host().spawn_procs({"gpus": 2})
workers = procs.spawn("workers", Worker)
pids = workers.pid.call().get()
os.kill(pids.item(gpus=1), signal.SIGKILL)
until = time.monotonic() + 20
while procs.epoch == 0:
    assert time.monotonic() < until
    procs.respawn().get()
time.sleep(1.2)  # longer than a failure waits for a call that tells it
assert workers.pid.call().get().item(gpus=1) != pids.item(gpus=1)
""").ok()  # fmt: skip
    assert run.err == ""


def test_what_is_spawned_after_a_respawn_lives():
    with this_host().spawn_procs({"gpus": 2}) as procs:
        keepers = procs.spawn("keepers", Keeper)
        kill(keepers.slice(gpus=1))
        procs.respawn().get(timeout=LIMIT)
        later = procs.options(restart=Restart()).spawn("later", Keeper)
        assert [each[0] for each in states(later)] == [each[0] for each in states(keepers)]
        with pytest.raises(ValueError, match="rank 1 of 'later' lives"):
            later.respawn([1])
        kill(later.slice(gpus=1))
        assert answers(lambda: states(later))[1][2] == 1


def test_a_swarm_comes_back_whole_in_a_process_that_lives(told):
    with this_host().spawn_procs({"gpus": 2}) as procs:
        swarm = procs.options(per_proc={"actors": 3}).spawn("swarm", AsyncKeeper, 1)
        swarm.slice(gpus=1).fail.broadcast()
        until(lambda: len(told) == 3)
        swarm.respawn().get(timeout=LIMIT)
        assert [each[2] for each in states(swarm)] == [0, 0, 0, 1, 1, 1]
        anew = procs.options(per_proc={"actors": 3}, restart=Restart(strategy="one_for_all")).spawn("anew", Keeper)
        states(anew)
        kill(anew.slice(gpus=1, actors=2))

        def all_anew():
            with contextlib.suppress(SupervisionError):
                return [each[2] for each in states(anew)] == [1] * 6

        until(all_anew)  # at once: one death is one decision


def test_handles_of_what_was_stopped_do_not_wait(told):
    with this_host().spawn_procs({"gpus": 2}) as procs:
        stopped, keepers = procs.spawn("stopped", Keeper), procs.spawn("keepers", Keeper)
        states(stopped)
        stopped.stop().get()
        kill(keepers.slice(gpus=1))
        procs.respawn().get(timeout=LIMIT)
        with pytest.raises(SupervisionError, match="has not been made anew in the one that is now"):
            states(stopped.slice(gpus=1))


def test_what_had_failed_before_its_process_does_not_come_back_with_it(told):
    with this_host().spawn_procs({"gpus": 2}) as procs:
        failed, keepers = procs.spawn("failed", Keeper), procs.spawn("keepers", Keeper)
        states(failed)
        fails(failed.slice(gpus=1))
        kill(keepers.slice(gpus=1))
        procs.respawn().get(timeout=LIMIT)
        assert states(keepers)[1][2] == 1
        with pytest.raises(SupervisionError, match="has not been made anew"):
            states(failed.slice(gpus=1))
        failed.respawn().get(timeout=LIMIT)
        assert states(failed)[1][2] == 1


def test_a_second_failure_is_not_taken_for_the_first():
    run = Run("""
class Worker(Actor):
    @endpoint
    def fail(self): raise ValueError("again")
    @endpoint
    def pid(self): return os.getpid()

workers = this_host().spawn_procs({"gpus": 2}).spawn("workers", Worker)
workers.pid.call().get()
hit = workers.slice(gpus=1)
hit.fail.broadcast()
try: hit.pid.call_one().get()
except SupervisionError: workers.respawn([1]).get()
hit.fail.broadcast()
time.sleep(20)
""").done()  # fmt: skip
    assert run.status == 1 and "Unhandled monarch error" in run.err


def test_processes_that_are_stopped_may_be_killed(told):
    with this_host().spawn_procs({"gpus": 2}) as procs:
        keepers = procs.spawn("keepers", Keeper)
        pids = [pid for pid, *_ in states(keepers)]
        ending = procs.stop()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ending.get(timeout=LIMIT)
        assert told == []


def test_output_of_what_is_made_anew_is_named_as_before():
    run = Run("""
class Worker(Actor):
    @endpoint
    def pid(self): return os.getpid()
    @endpoint
    def say(self, text): print(text, flush=True)

procs = this_host().spawn_procs({"gpus": 2})
workers = procs.spawn("workers", Worker)
workers.slice(gpus=1).say.call_one("before").get()
os.kill(workers.pid.call().get().item(gpus=1), signal.SIGKILL)
try: workers.pid.call().get()
except SupervisionError: procs.respawn().get()
workers.slice(gpus=1).say.call_one("after").get()
""").ok()  # fmt: skip
    assert run.out == "[1] before\n[1] after\n"


# ---- Wrong uses ----


def test_what_lives_is_not_respawned():
    with this_host().spawn_procs({"gpus": 3}) as procs:
        keepers = procs.spawn("keepers", Keeper)
        states(keepers)
        with pytest.raises(ValueError, match="rank 1 of 'procs' lives: only what has ended can be respawned"):
            procs.respawn([1])
        with pytest.raises(ValueError, match="ranks 0, 2 of 'keepers' live"):
            keepers.respawn([0, 2])
        with pytest.raises(ValueError, match="there is no rank 3 in 'procs', which has 3"):
            procs.respawn(3)
        for wrong in ("0", 1.5, ["0"]):
            with pytest.raises(TypeError, match="respawn takes ranks"):
                procs.respawn(wrong)
        kill(keepers.slice(gpus=1))
        with pytest.raises(RuntimeError, match=r"the process of rank 1 of 'keepers' has ended: procs.respawn\(\)"):
            keepers.respawn([1])
        with pytest.raises(RuntimeError, match="only what spawn_procs"):
            procs.slice(gpus=1).respawn([0])
        with pytest.raises(RuntimeError, match="only what spawn"):
            keepers.slice(gpus=1).respawn([0])
        procs.respawn([1]).get(timeout=LIMIT)
        with pytest.raises(ValueError, match="rank 1 of 'procs' lives"):
            procs.respawn([1])
        keepers.stop().get()
        with pytest.raises(RuntimeError, match="has been stopped"):
            keepers.respawn()
    with pytest.raises(RuntimeError, match="already been stopped"):
        procs.respawn()


def test_large_arguments_are_kept_with_a_policy_only(told):
    large = bytes(2 << 20)
    with this_host().spawn_procs({"gpus": 2}) as procs:
        plain = procs.spawn("plain", Keeper, large)
        kept = procs.options(restart=Restart()).spawn("kept", Keeper, large)
        fails(plain.slice(gpus=0))
        with pytest.raises(RuntimeError, match="more than 1 MiB"):
            plain.respawn([0])
        fails(kept.slice(gpus=0))
        assert answers(lambda: states(kept))[0][1] == large


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"times": 0}, ValueError, "times is 0"),
        ({"times": 1.5}, TypeError, "times must be an int"),
        ({"times": True}, TypeError, "times must be an int"),
        ({"within": 0}, ValueError, "within is 0"),
        ({"within": float("nan")}, ValueError, "within is nan"),
        ({"within": "60"}, TypeError, "within must be a number of seconds"),
        ({"strategy": "all"}, ValueError, "strategy must be one of 'one_for_one', 'one_for_all', 'rest_for_one'"),
    ],
)
def test_a_policy_that_is_none_is_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        Restart(**arguments)


def test_a_policy_is_a_value(procs):
    policy = Restart(times=2, within=5)
    assert policy == Restart(2, 5.0) != Restart(2, 5, "one_for_all") and hash(policy) == hash(Restart(2, 5))
    assert repr(policy) == "Restart(times=2, within=5, strategy='one_for_one')"
    assert pickle.loads(pickle.dumps(policy)) == policy
    with pytest.raises(AttributeError):
        policy.times = 5
    with pytest.raises(TypeError, match="restart must be a monarch.actor.Restart"):
        procs.options(restart=3)


def test_a_policy_holds_where_no_thread_is_to_be_had(monkeypatch, told):
    with this_host().spawn_procs({"gpus": 2}) as procs:
        keepers = procs.options(restart=Restart(strategy="one_for_all")).spawn("keepers", Keeper)
        states(keepers)

        def refuse(_):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        fails(keepers.slice(gpus=1))
        assert [each[2] for each in answers(lambda: states(keepers))] == [1, 1] and told == []


INTERRUPTED = """
from monarch import _core
class Kid(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
def interrupt_in(name):
    \"\"\"Ctrl-C comes when that has done its work.\"\"\"
    real, results = getattr(_core, name), []
    def interrupted(*args):
        setattr(_core, name, real)
        results.append(real(*args))
        signal.raise_signal(signal.SIGINT)
        return results[0]
    setattr(_core, name, interrupted)
    return results
def until(there):
    end = time.monotonic() + 20
    while not there():
        assert time.monotonic() < end, "too late"
        time.sleep(0.005)
"""


def test_ctrl_c_that_a_program_catches_leaves_no_processes_without_a_handle():
    Run(INTERRUPTED + """
nodes = interrupt_in("spawn_procs")
try:
    this_host().spawn_procs({"gpus": 2})
except KeyboardInterrupt:
    until(lambda: all(_core.down_reason(node) is not None for node in nodes[0]))
    print("none")
""").ok()  # fmt: skip


@pytest.mark.parametrize("where", ["spawn_procs", "restart"])
def test_ctrl_c_that_a_program_catches_leaves_nothing_half_made_anew(where):
    run = Run(INTERRUPTED + f"""
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
procs = this_host().spawn_procs({{"gpus": 2}})
kids = procs.spawn("kid", Kid)
victim = kids.slice(gpus=1).pid.call_one().get()
os.kill(victim, signal.SIGKILL)
try:
    while True:
        kids.pid.call().get()
except SupervisionError:
    pass
interrupt_in({where!r})
try:
    procs.respawn()
except KeyboardInterrupt:
    pids = list(kids.pid.call().get(timeout=20).values())
    assert victim not in pids and len(pids) == 2
    print("both")
""").ok()  # fmt: skip
    assert run.out == "both\n"


# ---- Policies on what belongs to others ----


def test_a_policy_on_processes_of_somebody_else_says_for_what_it_counts():
    run = Run("""
class A(Actor):
    @endpoint
    def f(self):
        return 1

class Boss(Actor):
    def __init__(self, given):
        policy = Restart(times=2, within=60)
        self.actors = [
            procs.options(restart=policy).spawn(name, A)
            for procs, name in ((given, "theirs"), (this_proc(), "here"), (this_host().spawn_procs(), "mine"))
        ]

    @endpoint
    def look(self):
        return [actors.f.call().get() and 1 for actors in self.actors]

given = this_host().spawn_procs(per_host={"gpus": 2}, name="given")
boss = this_host().spawn_procs(name="boss").spawn("boss", Boss, given)
print(boss.look.call_one().get())
""").done()
    assert (run.status, run.out) == (0, "[1, 1, 1]\n")
    [line] = run.err.splitlines()
    assert "the restart policy of 'theirs' counts for its actors, not for their processes: " in line


def test_what_a_mesh_has_for_its_actors_is_shown_as_its_own_unless_endpoints_hide_it():
    class Plain(Actor):
        @endpoint
        def work(self) -> None: ...

    class Hiding(Actor):
        @endpoint
        def epoch(self) -> str:
            return "its epoch"

        @endpoint
        def respawn(self) -> str:
            return "its respawn"

    with local_procs() as procs:
        plain, hiding = procs.spawn("plain", Plain), procs.spawn("hiding", Hiding)
        assert {"epoch", "respawn"} <= {*dir(plain)} and plain.epoch == 0
        assert "ActorMesh.respawn of" in repr(plain.respawn) and plain.respawn.__doc__ and ActorMesh.epoch.__doc__
        assert hiding.epoch.call_one().get(timeout=LIMIT) == "its epoch"
        assert hiding.respawn.call_one().get(timeout=LIMIT) == "its respawn"
        assert "restart=Restart(times=2" in repr(procs.options(restart=Restart(times=2)))
