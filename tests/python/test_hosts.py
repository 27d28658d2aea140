"""HostMesh and the bootstrap function, on this host (api.md 4.1)."""

import asyncio
import sys

import pytest

from monarch.actor import Actor, SupervisionError, endpoint, this_host

LIMIT = 30


class Pid(Actor):
    @endpoint
    def get_one(self):
        return 1


@pytest.mark.feature(51, 53)
def test_a_host_stops_what_was_spawned_through_it():
    with this_host() as host:
        procs = host.spawn_procs(per_host={"gpus": 2})
        assert procs.initialized.get(timeout=LIMIT).values() == [True, True]
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


@pytest.mark.feature(46)
def test_hosts_are_equal_and_hashable():
    assert this_host() == this_host() and len({this_host(), this_host()}) == 1


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
