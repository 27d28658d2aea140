"""HostMesh and what is spawned through it, on this host."""

import asyncio
import gc
import os
import pickle
import sys
import threading

import pytest
from script_run import WAYS, Run, program

from monarch._src.actor.proc_mesh import (
    get_active_proc_meshes,
    register_proc_mesh_spawn_callback,
    unregister_proc_mesh_spawn_callback,
)
from monarch.actor import Actor, SupervisionError, context, current_rank, endpoint, this_host, this_proc

LIMIT = 30


class Pid(Actor):
    @endpoint
    def get_one(self):
        return 1

    @endpoint
    def pid(self):
        return os.getpid()


@pytest.mark.feature(51, 53)
def test_a_host_stops_what_was_spawned_through_it():
    with this_host() as host:
        procs = host.spawn_procs(per_host={"gpus": 2})
        assert host.initialized.get(timeout=LIMIT) is True
        assert procs.initialized.get(timeout=LIMIT) is True
        actors = procs.spawn("a", Pid)
        assert actors.get_one.call().get(timeout=LIMIT).values() == [1, 1]
    with pytest.raises(SupervisionError, match="stopped by client"):
        actors.get_one.call().get(timeout=LIMIT)
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        host.spawn_procs()
    with pytest.raises(RuntimeError, match="HostMesh has already been shut down"):
        with host:
            pass


@pytest.mark.feature(53)
def test_a_host_is_an_async_context_manager():
    async def run():
        async with this_host() as host:
            procs = host.spawn_procs()
            assert await procs.spawn("a", Pid).get_one.call_one() == 1

    asyncio.run(run())


@pytest.mark.feature(53)
def test_the_processes_of_a_stopped_host_are_stopped_and_it_is_spent():
    for end in ("stop", "shutdown"):
        host = this_host()
        same = host.with_python_executable(sys.executable)
        first, second = host.spawn_procs(), same.spawn_procs()
        pids = [procs.spawn("a", Pid).pid.call_one().get(timeout=LIMIT) for procs in (first, second)]
        assert getattr(host, end)().get(timeout=LIMIT) is None
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        for spent in (host, same, host.slice()):
            with pytest.raises(RuntimeError, match="^HostMesh has already been shut down$"):
                spent.spawn_procs()
        this_host().spawn_procs().stop().get(timeout=LIMIT)


def test_a_stop_by_who_is_not_the_owner_is_said_where_nobody_looks():
    run = Run("""
host = this_host()
host.slice().stop()
host.slice().shutdown()
looked = [host.slice().stop(), host.slice().stop(), host.slice().stop()]
looked[0].exception()
async def awaits():
    for future in (looked[1], looked[2].as_asyncio()):
        try:
            await future
        except RuntimeError:
            pass
asyncio.run(awaits())
kept = host.slice().stop()
""").done()  # fmt: skip
    assert run.status == 0
    why = "of hosts failed, and nobody has looked at the future: RuntimeError: cannot {} `HostMesh` that is a reference"
    stop, shutdown = (f"monarch: {name}() {why.format(text)}" for name, text in HOST_ENDS)
    assert run.err.splitlines() == [f"{line} instead of owned" for line in (stop, shutdown, stop)], run.err


HOST_ENDS = (("stop", "stop"), ("shutdown", "shut down"))


@pytest.mark.feature(53)
@pytest.mark.parametrize("reference", [lambda host: host.slice(), lambda host: pickle.loads(pickle.dumps(host))])
def test_only_the_owner_stops_a_host(reference):
    host = this_host()
    actor = host.spawn_procs().spawn("a", Pid)
    other = reference(host)
    for end, text in ((other.stop, "stop"), (other.shutdown, "shut down")):
        future = end()
        for _ in range(2):
            with pytest.raises(RuntimeError) as raised:
                future.get(timeout=LIMIT)
            assert str(raised.value) == f"cannot {text} `HostMesh` that is a reference instead of owned"
            assert type(raised.value) is RuntimeError

    async def awaited():
        await other.shutdown()

    with pytest.raises(RuntimeError, match="cannot shut down"):
        asyncio.run(awaited())
    assert actor.get_one.call_one().get(timeout=LIMIT) == 1
    procs = other.spawn_procs(per_host={"gpus": 2})  # it may spawn
    assert procs.spawn("a", Pid).get_one.call().get(timeout=LIMIT).values() == [1, 1]
    procs.stop().get(timeout=LIMIT)
    host.shutdown().get(timeout=LIMIT)


@pytest.mark.feature(46, "equal to slices")
def test_hosts_are_equal_and_hashable():
    host = this_host()
    assert host == this_host() == host.slice() == pickle.loads(pickle.dumps(host))
    assert len({host, this_host()}) == 1 and host != this_proc()
    assert host.flatten("hosts") != host and host.flatten("hosts").slice(hosts=0) == host


def test_what_a_host_says_of_itself():
    host = this_host()
    assert host.is_fake_in_process is False and isinstance(host.stream_logs, bool)
    assert host.region.labels == [] and len(host) == 1
    host.label = "mine"  # meshes take attributes
    assert host.label == "mine"


# ---- this_host() and this_proc() in actors ----


class Where(Actor):
    @endpoint
    def check(self, host, procs):
        assert this_host() == host and this_proc().host_mesh == this_host()
        assert this_proc() == procs.slice(**current_rank()) == context().actor_instance.proc
        assert this_proc() != procs.slice(gpus=1 - current_rank()["gpus"])
        assert context().actor_instance.proc_mesh == procs and hash(context().actor_instance.proc_mesh) == hash(procs)
        pid = os.getpid()
        assert this_proc().spawn("a", Pid).pid.call_one().get(timeout=LIMIT) == pid
        child = host.spawn_procs()
        assert child.spawn("a", Pid).pid.call_one().get(timeout=LIMIT) != pid
        with pytest.raises(RuntimeError, match="cannot shut down"):
            host.shutdown().get()
        child.stop().get(timeout=LIMIT)


@pytest.mark.feature(46, "whose they are", 55)
def test_where_an_actor_is(procs):
    assert this_proc().host_mesh == this_host()
    assert this_proc().spawn("a", Pid).pid.call_one().get(timeout=LIMIT) == os.getpid()
    assert procs.slice(gpus=slice(0, 2)) == procs != procs.slice(gpus=slice(0, 1))
    procs.spawn("where", Where).check.call(this_host(), procs).get(timeout=LIMIT)
    with pytest.raises(NotImplementedError, match="`ProcMesh.host_mesh` is not yet supported for non-singleton"):
        procs.host_mesh  # noqa: B018


# ---- The shape of what is spawned ----


class Rank(Actor):
    @endpoint
    def get(self):
        rank = current_rank()
        return rank.rank, dict(rank)


@pytest.mark.feature(47, "row by row")
def test_processes_are_numbered_row_by_row():
    host = this_host().flatten("hosts")
    procs = host.spawn_procs(per_host={"workers": 2, "gpus": 3})
    assert procs.sizes == {"hosts": 1, "workers": 2, "gpus": 3}
    expected = [(3 * w + g, {"hosts": 0, "workers": w, "gpus": g}) for w in range(2) for g in range(3)]
    assert procs.spawn("rank", Rank).get.call().get(timeout=LIMIT).values() == expected
    assert procs.region.labels == ["hosts", "workers", "gpus"]
    with pytest.raises(ValueError, match="overlap with host labels"):
        host.spawn_procs({"hosts": 2})
    procs.stop().get(timeout=LIMIT)


# ---- Everything may be used before it is there ----


@pytest.mark.feature(51, "meshes that are not there yet", "calls wait their turn", "initialized", 1, "usable at once")
@pytest.mark.feature(61, "not there yet")
@pytest.mark.parametrize("way", WAYS)
def test_nothing_waits_for_processes_to_start(way, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    Run(program("hosts/nothing_waits.py"), way=way, args=(str(gate),)).ok()


def test_a_host_forgets_processes_that_have_ended():
    host = this_host()
    host.spawn_procs(per_host={"gpus": 33}).stop().get(timeout=LIMIT)
    procs = host.spawn_procs(per_host={"gpus": 33})
    assert len(host._spawned.nodes) == 33
    procs.stop().get(timeout=LIMIT)


@pytest.mark.feature(54)
def test_meshes_outlive_the_last_reference():
    def spawn():
        procs = this_host().spawn_procs(per_host={"gpus": 2})
        actors = procs.spawn("a", Pid)
        return actors.pid.call().get(timeout=LIMIT).values(), actors.slice(gpus=1)

    pids, actor = spawn()
    gc.collect()
    for pid in pids:
        os.kill(pid, 0)
    assert actor.pid.call_one().get(timeout=LIMIT) == pids[1]
    sent = pickle.dumps(actor)
    del actor
    gc.collect()
    assert pickle.loads(sent).pid.call_one().get(timeout=LIMIT) == pids[1]


# ---- Who wants to know of new meshes ----


@pytest.mark.feature(56, "for each mesh", "several")
def test_spawn_callbacks_hear_of_each_mesh():
    seen, thread = [], []

    def note(mesh):
        seen.append(("first", mesh))
        thread.append(threading.current_thread())

    def note_too(mesh):
        seen.append(("second", mesh))

    before = this_host().spawn_procs()
    register_proc_mesh_spawn_callback(note)
    register_proc_mesh_spawn_callback(note_too)
    try:
        first = this_host().spawn_procs()
        assert seen == [("first", first), ("second", first)] and thread == [threading.current_thread()]
        assert seen[0][1] is first
        unregister_proc_mesh_spawn_callback(note)
        unregister_proc_mesh_spawn_callback(note)
        second = this_host().slice().spawn_procs({"gpus": 2})
        assert seen[2:] == [("second", second)]
    finally:
        unregister_proc_mesh_spawn_callback(note_too)
    third = this_host().spawn_procs()
    assert len(seen) == 3
    active = get_active_proc_meshes()
    assert [mesh for mesh in active if mesh in (before, first, second, third)] == [before, first, second, third]
    assert this_proc() not in active and second.slice(gpus=0) not in active
    second.stop().get(timeout=LIMIT)
    assert second not in get_active_proc_meshes()
    count = len(get_active_proc_meshes())
    del third, active
    gc.collect()
    assert len(get_active_proc_meshes()) == count - 1
    for mesh in (before, first):
        mesh.stop().get(timeout=LIMIT)


@pytest.mark.feature(56)
def test_what_a_spawn_callback_raises_is_raised_by_the_spawn():
    def refuse(mesh):
        raise KeyError("no more")

    register_proc_mesh_spawn_callback(refuse)
    try:
        with pytest.raises(KeyError, match="no more"):
            this_host().spawn_procs()
    finally:
        unregister_proc_mesh_spawn_callback(refuse)
    this_host().spawn_procs().stop().get(timeout=LIMIT)


# ---- ProcMesh: what is not for it ----


def test_what_a_process_mesh_refuses(procs):
    for use in (procs.activate, lambda: procs.rank_tensor("gpus"), procs.rank_tensors, procs.to_table):
        with pytest.raises(RuntimeError, match="^DeviceMesh is not available because tensor_engine was not compiled"):
            use()

    async def sync():
        await procs.sync_workspace("workspace", conda=True)

    with pytest.raises(NotImplementedError, match="Use HostMesh.sync_workspace instead"):
        asyncio.run(sync())
    with pytest.raises(NotImplementedError, match="not for users"):
        type(procs).from_host_mesh(this_host(), "procs")


# ---- The bootstrap function ----


@pytest.mark.feature(48)
def test_the_bootstrap_function_has_run_before_an_actor_class_is_looked_for(tmp_path, monkeypatch):
    (tmp_path / "late_module.py").write_text(
        "from monarch.actor import Actor, endpoint\n"
        "class Late(Actor):\n"
        "    @endpoint\n"
        "    def f(self):\n"
        "        return 'late'\n"
    )
    folder = str(tmp_path)

    def setup():
        sys.path.insert(0, folder)

    procs = this_host().spawn_procs(bootstrap=setup)
    monkeypatch.syspath_prepend(folder)
    import late_module

    assert procs.spawn("a", late_module.Late).f.call_one().get(timeout=LIMIT) == "late"
    procs.stop().get(timeout=LIMIT)
