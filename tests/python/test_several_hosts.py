"""Meshes over several hosts: the two stand-ins on this machine that hosts_from_config makes."""

import asyncio
import ctypes
import os
import pickle
import select
import signal
import subprocess
import sys
import time

import pytest
from script_run import WAYS, Run, program

import monarch.actor
import monarch.job
from monarch.actor import (
    Actor,
    SupervisionError,
    context,
    current_rank,
    deadline,
    default_bootstrap_cmd,
    dump_stacks,
    endpoint,
    hosts_from_config,
    this_host,
    this_proc,
)

LIMIT = 30
ways = pytest.mark.parametrize("way", WAYS)


class Where(Actor):
    def __init__(self):
        self.born = current_rank()

    @endpoint
    def pids(self):
        return os.getpid(), os.getppid()

    @endpoint
    def rank(self):
        return current_rank().rank, dict(current_rank())

    @endpoint
    def birth(self):
        instance = context().actor_instance
        return self.born.rank, dict(self.born), str(instance), instance.proc_mesh

    @endpoint
    def host(self):
        return this_host()

    @endpoint
    def is_on(self, host):
        assert this_proc().host_mesh == this_host()
        assert (hash(this_host()) == hash(host)) == (this_host() == host)
        return this_host() == host

    @endpoint
    def nested(self, host, per_host=None):
        procs = (host or this_host()).spawn_procs(per_host)
        return procs, procs.spawn("nested", Where)

    @endpoint
    async def nested_async(self, host):
        procs = host.spawn_procs(name="async")
        return await procs.spawn("nested", Where).host.call()

    @endpoint
    def env(self, name):
        return os.environ.get(name)

    @endpoint
    def executable(self):
        return sys.executable, this_host().spawn_procs().spawn("nested", Where).flag.call_one().get(timeout=LIMIT)

    @endpoint
    def flag(self):
        return os.environ.get("WRAPPED")

    @endpoint
    def cpus(self):
        return os.sched_getaffinity(0)

    @endpoint
    def die(self):
        os._exit(3)

    @endpoint
    def shut_down(self, hosts):
        return str(hosts.shutdown().exception(timeout=LIMIT))


@pytest.fixture(scope="module")
def hosts():
    found = hosts_from_config("stand_in")
    yield found
    found.shutdown().get(timeout=LIMIT)


def values(call):
    return call.get(timeout=LIMIT).values()


class Watch:
    """Processes whose end is waited for. (A pid alone may be that of a dead child nobody has looked at.)"""

    def __init__(self, pids):
        self.pidfds = [os.pidfd_open(pid) for pid in pids]

    def all_end(self, limit=LIMIT):
        ended = [bool(select.select([pidfd], [], [], limit)[0]) for pidfd in self.pidfds]
        for pidfd in self.pidfds:
            os.close(pidfd)
        return all(ended)


# ---- Shape and ranks ----


@pytest.mark.feature(47)
def test_the_name_is_in_both_modules():
    assert monarch.actor.hosts_from_config is monarch.job.hosts_from_config is hosts_from_config


@pytest.mark.feature(47, "several hosts and processes", "row by row")
def test_dimensions_of_hosts_come_first_and_ranks_are_row_major(hosts):
    assert hosts.sizes == {"hosts": 2} and repr(hosts) == "HostMesh({hosts=2})"
    assert hosts.initialized.get(timeout=LIMIT) is True
    procs = hosts.spawn_procs(per_host={"workers": 2, "gpus": 2})
    assert procs.sizes == {"hosts": 2, "workers": 2, "gpus": 2} and procs.size("hosts") == 2
    actors = procs.spawn("where", Where)
    points = [{"hosts": h, "workers": w, "gpus": g} for h in range(2) for w in range(2) for g in range(2)]
    assert values(actors.rank.call()) == list(enumerate(points))
    births = values(actors.birth.call())
    assert [birth[:2] for birth in births] == list(enumerate(points))
    assert all(birth[3] == procs for birth in births)
    assert births[5][2].endswith("Where where{'hosts': 1/2, 'workers': 0/2, 'gpus': 1/2}>")
    pids = [pid for pid, _ in values(actors.pids.call())]
    parents = [parent for _, parent in values(actors.pids.call())]
    assert len(set(pids)) == 8 and len(set(parents[:4])) == len(set(parents[4:])) == 1 and parents[0] != parents[4]
    assert values(actors.slice(hosts=1, workers=slice(0, 1)).rank.call()) == [
        (i, {"workers": 0, "gpus": i}) for i in range(2)
    ]
    watch = Watch(pids)
    procs.stop().get(timeout=LIMIT)
    assert watch.all_end(0)
    with pytest.raises(SupervisionError, match="stopped by client"):
        actors.rank.call().get(timeout=LIMIT)


@pytest.mark.feature(43, 47)
@pytest.mark.parametrize("empty", [None, {}])
def test_one_process_for_each_host(hosts, empty):
    with hosts.spawn_procs(empty, name="singles") as procs:
        assert procs.sizes == {"hosts": 2}
        assert values(procs.spawn("where", Where).rank.call()) == [(0, {"hosts": 0}), (1, {"hosts": 1})]


@pytest.mark.feature(43, 47)
def test_slices_of_hosts(hosts):
    with hosts.slice(hosts=1).spawn_procs(per_host={"gpus": 2}) as procs:  # an int drops the dimension
        assert procs.sizes == {"gpus": 2}
        second = procs.spawn("where", Where)
        assert values(second.rank.call()) == [(0, {"gpus": 0}), (1, {"gpus": 1})]
        assert values(second.is_on.call(hosts.slice(hosts=1))) == [True, True]
    with hosts.slice(hosts=slice(1, 2)).spawn_procs(per_host={"gpus": 1}) as procs:  # a slice keeps it
        assert procs.sizes == {"hosts": 1, "gpus": 1}
        assert values(procs.spawn("where", Where).is_on.call(hosts.slice(hosts=1))) == [True]
    assert hosts.slice(hosts=slice(0, 2)) == hosts != hosts.slice(hosts=slice(0, 1))
    assert hosts.slice(hosts=0) != hosts.slice(hosts=1) != this_host()
    with hosts.rename(hosts="racks").spawn_procs() as procs:
        assert procs.sizes == {"racks": 2}
    for host in (hosts, hosts.slice(hosts=slice(0, 1))):
        with pytest.raises(ValueError, match=r"per_host labels \['hosts'\] overlap with host labels \('hosts',\)"):
            host.spawn_procs({"hosts": 2})
    with pytest.raises(ValueError, match=r"per_host\['gpus'\] is 0"):
        hosts.spawn_procs({"gpus": 0})
    with pytest.raises(ValueError, match="asks for 1000000 processes on each host: at most 65536"):
        hosts.spawn_procs({"racks": 1000, "gpus": 1000})
    with pytest.raises(IndexError):
        hosts.slice(hosts=2)


# ---- Who is where ----


@pytest.mark.feature(46, "whose they are")
def test_this_host_in_an_actor_is_the_slice(hosts):
    procs = hosts.spawn_procs(per_host={"gpus": 2})
    actors = procs.spawn("where", Where)
    for i in range(2):
        host = hosts.slice(hosts=i)
        assert values(actors.is_on.call(host)) == [i == 0] * 2 + [i == 1] * 2
        assert values(actors.slice(hosts=i).host.call()) == [host, host]
        one = procs.slice(hosts=i, gpus=1)
        assert one.host_mesh == pickle.loads(pickle.dumps(one)).host_mesh == host
    assert values(actors.is_on.call(this_host())) == [False] * 4
    with pytest.raises(NotImplementedError, match="not yet supported for non-singleton"):
        procs.slice(hosts=0).host_mesh  # noqa: B018
    assert len({hosts, hosts.slice(hosts=0), actors.slice(hosts=0, gpus=0).host.call_one().get(timeout=LIMIT)}) == 2
    procs.stop().get(timeout=LIMIT)


@pytest.mark.feature(46, 55)
def test_what_an_actor_spawns_there_is_on_its_host(hosts):
    with hosts.spawn_procs() as procs:
        actor = procs.spawn("where", Where).slice(hosts=1)
        pid = actor.pids.call_one().get(timeout=LIMIT)[0]
        for host in (None, hosts.slice(hosts=1)):
            _, nested = actor.nested.call_one(host, {"gpus": 2}).get(timeout=LIMIT)
            assert values(nested.is_on.call(hosts.slice(hosts=1))) == [True, True]
            assert pid not in [found for found, _ in values(nested.pids.call())]
        # The machine itself, from a process that is on one of the hosts.
        _, plain = actor.nested.call_one(this_host()).get(timeout=LIMIT)
        assert plain.is_on.call_one(this_host()).get(timeout=LIMIT) is True


@pytest.mark.feature(46, 61, "hosts")
def test_hosts_travel_in_messages_and_can_be_spawned_on(hosts):
    assert pickle.loads(pickle.dumps(hosts)) == hosts
    procs = this_host().spawn_procs()
    actor = procs.spawn("where", Where)
    mesh, nested = actor.nested.call_one(hosts, {"gpus": 2}).get(timeout=LIMIT)
    assert mesh.sizes == {"hosts": 2, "gpus": 2}
    expected = [hosts.slice(hosts=h) for h in range(2) for _ in range(2)]
    assert values(nested.host.call()) == expected
    assert actor.nested_async.call_one(hosts.slice(hosts=slice(0, 1))).get(timeout=LIMIT).values() == expected[:1]
    # From one of the hosts on both.
    with hosts.spawn_procs() as there:
        _, both = there.spawn("where", Where).slice(hosts=0).nested.call_one(hosts).get(timeout=LIMIT)
        assert values(both.host.call()) == [hosts.slice(hosts=0), hosts.slice(hosts=1)]
    assert "cannot shut down `HostMesh` that is a reference" in actor.shut_down.call_one(hosts).get(timeout=LIMIT)
    # What it has spawned there is its own, and ends with it.
    watch = Watch(pid for pid, _ in values(nested.pids.call()))
    procs.stop().get(timeout=LIMIT)
    assert watch.all_end()
    with pytest.raises(SupervisionError, match="stopped: its owner .* where> has ended"):
        nested.host.call().get(timeout=LIMIT)


@pytest.mark.feature(61)
def test_a_process_of_another_job_spawns_on_the_hosts(hosts):
    text = f"""
import pickle, test_several_hosts
hosts = pickle.loads({pickle.dumps(hosts)!r})
procs = hosts.spawn_procs({{"gpus": 2}})
actors = procs.spawn("where", test_several_hosts.Where)
assert actors.rank.call().get(timeout=30).values()[3] == (3, {{"hosts": 1, "gpus": 1}})
assert actors.host.call().get(timeout=30).values()[3] == hosts.slice(hosts=1)
print(*(pid for pid, _ in actors.pids.call().get(timeout=30).values()), flush=True)
"""  # fmt: skip
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=os.path.dirname(__file__))
    assert (done.returncode, done.stderr) == (0, "")
    pidfds = []
    for pid in done.stdout.split():
        try:
            pidfds.append(os.pidfd_open(int(pid)))
        except ProcessLookupError:
            pass
    assert len(done.stdout.split()) == 4
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], LIMIT)[0]
        os.close(pidfd)


# ---- Arguments of spawn_procs ----


@pytest.mark.feature(47, 48)
def test_a_bootstrap_function_runs_in_every_process(hosts):
    def set_up():
        os.environ["SET_UP"] = str(os.getpid())

    with hosts.spawn_procs({"gpus": 2}, bootstrap=set_up) as procs:
        assert procs.initialized.get(timeout=LIMIT) is True
        actors = procs.spawn("where", Where)
        assert values(actors.env.call("SET_UP")) == [str(pid) for pid, _ in values(actors.pids.call())]

    def fail():
        raise OSError("no such device")

    with hosts.spawn_procs(bootstrap=fail) as procs:
        with pytest.raises(monarch.actor.ActorError, match="no such device"):
            procs.initialized.get(timeout=LIMIT)


@pytest.mark.feature(47, 50, "another program for each rank")
def test_a_command_for_each_point(hosts):
    def command(point):
        return default_bootstrap_cmd().with_env({"POINT": f"{point.rank} {point!r}", "HOME": None})

    with hosts.spawn_procs({"gpus": 2}, bootstrap_command=command) as procs:
        actors = procs.spawn("where", Where)
        points = [f"{2 * h + g} {{'hosts': {h}/2, 'gpus': {g}/2}}" for h in range(2) for g in range(2)]
        assert values(actors.env.call("POINT")) == points and values(actors.env.call("HOME")) == [None] * 4
    missing = default_bootstrap_cmd()
    missing.program = "/nowhere/python"
    procs = hosts.spawn_procs(bootstrap_command=missing)
    with pytest.raises(SupervisionError, match=r"could not be started.*rank {'hosts': [01]/2} of 'procs'.*nowhere"):
        procs.initialized.get(timeout=LIMIT)


@pytest.mark.feature(47, 50, "nested hosts inherit")
def test_another_interpreter_is_that_of_nested_hosts_too(hosts, tmp_path):
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nWRAPPED=yes exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    other = hosts.with_python_executable(str(wrapper))
    assert other == hosts
    with other.spawn_procs() as procs:
        actors = procs.spawn("where", Where)
        assert values(actors.flag.call()) == ["yes", "yes"]
        assert [nested for _, nested in values(actors.executable.call())] == ["yes", "yes"]
        assert values(actors.is_on.call(hosts.slice(hosts=1))) == [False, True]


@pytest.mark.feature(47, 49, "the length is checked")
def test_bindings_are_for_the_processes_of_each_host(hosts):
    first, last = min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0))
    with hosts.spawn_procs({"gpus": 2}, proc_bind=[{"cpus": str(first)}, {"cpus": str(last)}]) as procs:
        assert values(procs.spawn("where", Where).cpus.call()) == [{first}, {last}] * 2
    with pytest.raises(ValueError, match=r"proc_bind length \(4\) must equal procs_per_host \(2\)"):
        hosts.spawn_procs({"gpus": 2}, proc_bind=[{}] * 4)


@pytest.mark.feature(47)
def test_processes_have_the_environment_of_their_host(monkeypatch):
    monkeypatch.setenv("OF_THE_HOST", "before")
    with hosts_from_config("with_env") as hosts:
        hosts.initialized.get(timeout=LIMIT)
        monkeypatch.setenv("OF_THE_HOST", "after")
        assert values(hosts.spawn_procs().spawn("where", Where).env.call("OF_THE_HOST")) == ["before"] * 2
        assert this_host().spawn_procs().spawn("a", Where).env.call_one("OF_THE_HOST").get(timeout=LIMIT) == "after"


@pytest.mark.feature(47)
def test_spawning_waits_a_moment_wherever_it_is_done(hosts, recwarn):
    async def spawn():
        return await hosts.spawn_procs().spawn("where", Where).rank.call()

    assert asyncio.run(spawn()).values() == [(0, {"hosts": 0}), (1, {"hosts": 1})]
    with deadline(1e-6):
        procs = hosts.spawn_procs()
    pids = [pid for pid, _ in values(procs.spawn("where", Where).pids.call())]
    watch = Watch(pids)
    with deadline(1e-6):
        procs.stop()
    assert watch.all_end()
    assert [str(warning.message) for warning in recwarn] == []


# ---- Ends ----


@pytest.mark.feature(53, "shutdown ends hosts")
def test_shutdown_ends_processes_and_hosts():
    with hosts_from_config("ending") as hosts:
        procs = hosts.slice(hosts=slice(1, 2)).spawn_procs()
        actors = procs.spawn("where", Where)
        pid, parent = actors.pids.call_one().get(timeout=LIMIT)
        _, nested = actors.nested.call_one(None).get(timeout=LIMIT)
        watch = Watch([pid, nested.pids.call_one().get(timeout=LIMIT)[0]])
        watch_host = Watch([parent])
        copies = (hosts.slice(hosts=0), hosts.slice(), pickle.loads(pickle.dumps(hosts)))
        for copy in copies:
            for end, text in ((copy.stop, "stop"), (copy.shutdown, "shut down")):
                with pytest.raises(RuntimeError) as raised:
                    end().get(timeout=LIMIT)
                assert str(raised.value) == f"cannot {text} `HostMesh` that is a reference instead of owned"
    assert watch.all_end(0) and watch_host.all_end()
    with pytest.raises(SupervisionError, match="stopped by client"):
        actors.rank.call().get(timeout=LIMIT)
    for spent in (hosts, *copies[:2]):
        with pytest.raises(RuntimeError, match="^HostMesh has already been shut down$"):
            spent.spawn_procs()
    with pytest.raises(SupervisionError):  # it did not know: it is told by the hosts' end
        copies[2].spawn_procs()
    with pytest.raises(SupervisionError):
        copies[2].initialized.get(timeout=LIMIT)

    async def enter():
        async with hosts:
            pass

    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        asyncio.run(enter())
    procs.stop().get(timeout=LIMIT)


@pytest.mark.feature(53, "stop leaves hosts", "only one's own processes")
def test_stop_leaves_the_hosts():
    async def run():
        async with hosts_from_config("staying") as hosts:
            first, other = hosts.spawn_procs(), pickle.loads(pickle.dumps(hosts))
            kept = other.spawn_procs().spawn("kept", Where)  # not through this object
            watch = Watch(pid for pid, _ in (await first.spawn("where", Where).pids.call()).values())
            await hosts.stop()
            assert watch.all_end(0)
            with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
                hosts.spawn_procs()
            parents = [parent for _, parent in (await kept.pids.call()).values()]
            assert len(set(parents)) == 2
            watch = Watch(parents)
        assert watch.all_end()

    asyncio.run(run())


COUNTER = program("several_hosts/counter.py")


@pytest.mark.feature(52)
@pytest.mark.parametrize("way", ["fork", "unix"])
def test_what_was_sent_before_the_stop_is_handled(way):
    run = Run(COUNTER + """
times = []
for _ in range(5):
    procs = hosts.spawn_procs({"gpus": 2})
    counters = procs.spawn("counter", Counter)
    counters.pid.call().get()
    for _ in range(2000):
        counters.add.broadcast()
    start = time.monotonic()
    procs.stop().get()
    times.append(time.monotonic() - start)
assert sum(times) < 5, times  # none waits for a second to see whether more comes
hosts.shutdown().get()
""", way=way).ok()  # fmt: skip
    assert run.out.count("counted 2000\n") == 20, run.out


@pytest.mark.feature(47, 82)
@ways
def test_lines_say_the_rank_in_the_whole_mesh(way):
    run = Run(COUNTER + """
counters = hosts.spawn_procs({"gpus": 2}).spawn("counter", Counter)
for i in range(4):
    counters.flatten("all").slice(all=i).say.call_one(f"hello {i}").get()
nested = counters.slice(hosts=1, gpus=0).spawn.call_one(hosts).get()
nested.slice(hosts=0).say.call_one("nested").get()
hosts.shutdown().get()
""", way=way).ok()  # fmt: skip
    lines = run.out.splitlines()
    assert [f"[{i}] hello {i}" for i in range(4)] == lines[:4], run.out
    assert lines[4] == "[procs 2/procs 0] nested"


@pytest.mark.feature(46, 64)
@pytest.mark.parametrize("way", ["fork", "unix"])
def test_the_death_of_a_host_fails_its_processes(way):
    Run(COUNTER + """
import select
procs = hosts.spawn_procs({"gpus": 2})
counters = procs.spawn("counter", Counter)
other = this_host().spawn_procs().spawn("other", Counter)
counters.pid.call().get()
lost, healthy = counters.slice(hosts=0), counters.slice(hosts=1)
unseen = hosts.slice(hosts=0).spawn_procs().spawn("unseen", Counter)
theirs = other.spawn.call_one(hosts).get()
theirs.pid.call().get()
pidfds = [os.pidfd_open(pid) for pid in lost.pid.call().get().values()]
agent = agent_of(lost.slice(gpus=0))
pending = lost.hang.call()
os.kill(agent, signal.SIGKILL)
start = time.monotonic()
why = "the host of the process this actor was running on failed: Killed(sig=9) "
why += f"(rank {{'hosts': 0/2}} of 'stand_in', pid {agent})"
assert why in str(pending.exception(timeout=10))
up = procs.initialized.exception(timeout=10)
assert why.replace(" this actor was running on", "") in str(up), up
calls = [lost.pid.call(), unseen.pid.call_one(), counters.pid.call(), theirs.pid.call()]
for call in calls:
    error = call.exception(timeout=10)
    assert isinstance(error, SupervisionError) and why in str(error), error
assert why in other.ask.call_one(lost).get() and why in other.ask.call_one(theirs).get()
assert time.monotonic() - start < 5  # not found out by a time-out
for pidfd in pidfds:
    assert select.select([pidfd], [], [], 5)[0]
assert len(healthy.pid.call().get().values()) == 2
assert healthy.slice(gpus=0).spawn.call_one(hosts.slice(hosts=1)).get().pid.call_one().get()
try:
    hosts.spawn_procs()
    raise AssertionError("spawned on a dead host")
except SupervisionError as error:
    assert "Killed(sig=9)" in str(error)
assert "Killed(sig=9)" in str(hosts.initialized.exception())
assert len(hosts.slice(hosts=slice(1, 2)).spawn_procs().spawn("again", Counter).pid.call().get().values()) == 1
procs.stop().get()
hosts.shutdown().get()
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(52, 60)
def test_a_process_there_that_is_stopped_is_known_with_its_pid(hosts):
    procs = hosts.spawn_procs({"gpus": 2}, name="there")
    pids = [pid for pid, _ in values(procs.spawn("where", Where).pids.call())]
    os.kill(pids[3], signal.SIGSTOP)
    try:
        until(lambda: procs.stopped_ranks() == [3])
        assert procs.slice(hosts=1).stopped_ranks() == [1] and procs.slice(hosts=0).stopped_ranks() == []
        text = str(dump_stacks(procs).get(timeout=LIMIT))
        assert f"rank 3 of there (pid {pids[3]}): stopped by a signal" in text, text
    finally:
        os.kill(pids[3], signal.SIGCONT)
    until(lambda: procs.stopped_ranks() == [])
    procs.stop().get(timeout=LIMIT)


def test_stacks_of_some_hosts_are_those_of_their_processes(hosts):
    procs = hosts.spawn_procs({"gpus": 2}, name="there")
    procs.initialized.get(timeout=LIMIT)
    of_second = [name for group in dump_stacks(hosts.slice(hosts=1)).get(timeout=LIMIT).groups for name in group]
    assert sorted(name for name in of_second if "there" in name) == ["rank 2 of there", "rank 3 of there"], of_second
    of_all = [name for group in dump_stacks(hosts).get(timeout=LIMIT).groups for name in group]
    assert len([name for name in of_all if "there" in name]) == 4, of_all
    procs.stop().get(timeout=LIMIT)


def until(is_so):
    deadline = time.monotonic() + LIMIT
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_host_outlives_who_asked_it_to_stop_something():
    Run(COUNTER + """
class Asker(Actor):
    @endpoint
    def stop_and_die(self, hosts):
        procs = hosts.spawn_procs({"gpus": 2})
        procs.spawn("counter", Counter).pid.call().get()
        procs.stop()
        os._exit(3)
for _ in range(5):
    asker = this_host().spawn_procs().spawn("asker", Asker)
    assert "non-zero code 3" in str(asker.stop_and_die.call_one(hosts).exception(timeout=10))
    assert len(hosts.spawn_procs().spawn("counter", Counter).pid.call().get()) == 2
""").ok()  # fmt: skip


class Stuck(Actor):
    @endpoint
    def hold(self, fifo):
        """Holds the GIL, and with it all Python of this process, until somebody writes into the file."""
        with open(fifo, "rb", buffering=0) as file:
            ctypes.PyDLL(None).read(file.fileno(), ctypes.create_string_buffer(1), 1)


@pytest.mark.feature(47, 52)
def test_hosts_start_and_stop_processes_whatever_their_python_does(tmp_path):
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    with hosts_from_config("stuck") as hosts:
        hosts.initialized.get(timeout=LIMIT)
        stuck = hosts._own_procs.slice(hosts=0).spawn("stuck", Stuck)
        held = stuck.hold.call_one(fifo)
        with open(fifo, "wb", buffering=0) as file:  # open: it is about to read
            with hosts.spawn_procs({"gpus": 2}) as procs:
                actors = procs.spawn("where", Where)
                watch = Watch(pid for pid, _ in values(actors.pids.call()))
            assert watch.all_end(0)
            assert hosts.initialized.get(timeout=LIMIT) is True
            file.write(b"x")
        held.get(timeout=LIMIT)


@pytest.mark.feature(47)
def test_each_host_is_told_of_its_own_processes_only(hosts, monkeypatch):
    from monarch import _core

    orders = []
    start = _core.start_on_host
    monkeypatch.setattr(_core, "start_on_host", lambda *args: (orders.append(args[:2]), start(*args))[1])
    with hosts.spawn_procs({"gpus": 3}, name="named") as procs:
        values(procs.spawn("where", Where).rank.call())
    assert [host for host, _ in orders] == hosts._agents.nodes
    for number, (_, order) in enumerate(orders):
        labels = [f"{{'hosts': {h}/2, 'gpus': {g}/3}}".encode() in order for h in range(2) for g in range(3)]
        assert labels == [number == 0] * 3 + [number == 1] * 3
    orders.clear()
    with hosts.slice(hosts=1).spawn_procs() as procs:
        procs.initialized.get(timeout=LIMIT)
    assert [host for host, _ in orders] == hosts._agents.nodes[1:]


@pytest.mark.feature(47)
def test_what_a_host_cannot_start_is_told_with_the_host():
    Run(COUNTER + """
import resource
class Limiter(Actor):
    @endpoint
    def limit(self):
        resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
hosts.initialized.get()
hosts._own_procs.slice(hosts=1).spawn("limiter", Limiter).limit.call_one().get()
import monarch.actor
faults = []
monarch.actor.unhandled_fault_hook = faults.append
procs = hosts.spawn_procs({"gpus": 100})
counters = procs.spawn("counter", Counter)
error = counters.slice(hosts=1, gpus=7).pid.call_one().exception(timeout=20)
assert "could not be started (rank {'hosts': 1/2, 'gpus': 7/100} of 'procs')" in str(error), error
assert "cannot start 100 processes: out of file descriptors" in str(error), error
assert len(counters.slice(hosts=0).pid.call().get().values()) == 100
deadline = time.monotonic() + 20
while sum(len(fault.crashed_ranks) for fault in faults if fault.mesh_name == "procs") < 100:
    assert time.monotonic() < deadline, faults
    time.sleep(0.01)
assert {rank for fault in faults for rank in fault.crashed_ranks} == set(range(100, 200))
procs.stop().get()
assert len(hosts.slice(hosts=0).spawn_procs().spawn("again", Counter).pid.call().get().values()) == 1
""").ok(60)  # fmt: skip


def test_a_spawn_returns_before_its_hosts_have_answered():
    Run(COUNTER + """
class Sender(Actor):
    @endpoint
    def use(self, procs):
        return procs.spawn("theirs", Counter).pid.call().get()
sender = this_host().spawn_procs().spawn("sender", Sender)
seen = hosts.slice(hosts=1).spawn_procs().spawn("counter", Counter)
agent = agent_of(seen)
stop(agent)
procs, others, unwanted = (hosts.spawn_procs({"gpus": 2}) for _ in range(3))
assert procs.sizes == {"hosts": 2, "gpus": 2} and not procs.epoch
ending = unwanted.stop()
made = []
threads = [
    threading.Thread(target=lambda: made.append(procs.spawn("counter", Counter).pid.call().get())),
    threading.Thread(target=lambda: made.append(sender.use.call_one(others).get())),
]
for thread in threads:
    thread.start()
    thread.join(0.1)
assert made == [], made
os.kill(agent, signal.SIGCONT)
for thread in threads:
    thread.join()
assert [len(set(pids.values())) for pids in made] == [4, 4]
assert ending.get(timeout=20) is None
""").ok()  # fmt: skip


def test_a_forked_child_does_not_wait_for_what_its_parent_has_ordered():
    Run(COUNTER + """
seen = hosts.slice(hosts=1).spawn_procs().spawn("counter", Counter)
agent = agent_of(seen)
stop(agent)
procs = hosts.spawn_procs()
child = os.fork()
if child == 0:
    try:
        procs.spawn("counter", Counter)
    except RuntimeError:
        os._exit(7)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
os.kill(agent, signal.SIGCONT)
assert len(procs.spawn("counter", Counter).pid.call().get().values()) == 2
""").ok()  # fmt: skip


def test_ctrl_c_ends_the_wait_for_hosts_that_have_not_answered():
    Run(COUNTER + """
import traceback
seen = hosts.slice(hosts=1).spawn_procs().spawn("counter", Counter)
agent = agent_of(seen)
stop(agent)
procs = hosts.spawn_procs()

def interrupt():
    main = threading.main_thread().ident
    while "await_started" not in {at.name for at in traceback.extract_stack(sys._current_frames()[main])}:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    procs.spawn("counter", Counter)
    raise AssertionError("the host is stopped")
except KeyboardInterrupt:
    os.kill(agent, signal.SIGCONT)
assert len(procs.spawn("counter", Counter).pid.call().get().values()) == 2
""").ok()  # fmt: skip


@pytest.mark.feature(64)
def test_the_death_of_one_process_is_told_with_its_rank():
    Run(COUNTER + """
counters = hosts.spawn_procs({"gpus": 2}).spawn("counter", Counter)
pids = counters.pid.call().get().values()
os.kill(pids[3], signal.SIGKILL)
why = f"failed: Killed(sig=9) (rank {{'hosts': 1/2, 'gpus': 1/2}} of 'procs', pid {pids[3]})"
error = counters.slice(hosts=1, gpus=1).pid.call_one().exception(timeout=10)
assert why in str(error), error
assert counters.slice(hosts=1, gpus=0).pid.call_one().get() == pids[2]
""").ok()  # fmt: skip


@pytest.mark.feature(60)
@ways
@pytest.mark.parametrize("ending", ["", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(4)"])
def test_nothing_is_left_behind(way, ending):
    run = Run(COUNTER + f"""
counters = hosts.spawn_procs({{"gpus": 2}}).spawn("counter", Counter)
nested = counters.spawn.call(hosts.slice(hosts=0)).get().values()
for leaf in nested:
    leaf.pid.call_one().get()
{ending}
""", way=way).done()  # fmt: skip
    assert (run.status, run.err) == ({"": 0, "os._exit(0)": 0, "sys.exit(4)": 4}.get(ending, -9), "")


@pytest.mark.feature(56)
def test_hosts_are_no_mesh_of_the_programs():
    Run("""
from monarch._src.actor.proc_mesh import get_active_proc_meshes, register_proc_mesh_spawn_callback
seen = []
register_proc_mesh_spawn_callback(seen.append)
hosts = hosts_from_config("stand_in")
assert seen == get_active_proc_meshes() == []
procs = hosts.spawn_procs()
assert seen == get_active_proc_meshes() == [procs]
""").ok()  # fmt: skip
