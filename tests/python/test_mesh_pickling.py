"""Host, process and actor meshes as values: in messages, in answers, pickled by hand; there already or not yet."""

import os
import pickle

import cloudpickle
import pytest

from monarch.actor import Actor, endpoint, this_host

LIMIT = 30


class Worker(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def spawn_on_host(self, host):
        procs = host.spawn_procs()
        return procs, procs.spawn("nested", Worker)

    @endpoint
    def spawn_on_procs(self, procs):
        return procs.spawn("late", Worker)

    @endpoint
    def pids_of(self, actors):
        return actors.pid.call().get(timeout=LIMIT).values()

    @endpoint
    def echo(self, value):
        return value


@pytest.fixture(params=["there", "not yet"])
def fresh(request):
    """Two processes with an actor in each: up, or just asked for."""
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    actors = procs.spawn("workers", Worker)
    if request.param == "there":
        actors.pid.call().get(timeout=LIMIT)
    yield procs, actors
    procs.stop().get(timeout=LIMIT)


def by_hand(value):
    return pickle.loads(pickle.dumps(value))


def by_cloudpickle(value):
    return cloudpickle.loads(cloudpickle.dumps(value))


@pytest.mark.feature(61, "hosts", "processes", "actors", "bare pickles")
@pytest.mark.parametrize("copy", [by_hand, by_cloudpickle])
def test_copies_reach_the_same(fresh, copy):
    procs, actors = fresh
    pids = copy(actors).pid.call().get(timeout=LIMIT).values()
    assert actors.pid.call().get(timeout=LIMIT).values() == pids
    assert copy(actors.slice(gpus=1)).pid.call_one().get(timeout=LIMIT) == pids[1]
    assert copy(actors).slice(gpus=1) == actors.slice(gpus=1) == copy(actors.slice(gpus=1))
    assert copy(procs) == procs and copy(procs.slice(gpus=0)) == procs.slice(gpus=0) != procs
    assert copy(procs).spawn("again", Worker).pid.call().get(timeout=LIMIT).values() == pids
    assert copy(this_host()) == this_host() and copy(this_host()).sizes == {}
    with pytest.raises(ValueError, match="ProcMesh is not owned"):
        copy(procs).stop()
    with pytest.raises(NotImplementedError, match="requires an owned ActorMesh"):
        copy(actors).stop()


@pytest.mark.feature(61, "processes", "actors", "inside a ValueMesh")
def test_meshes_in_messages_and_answers(procs, fresh):
    mesh, actors = fresh
    asked = procs.spawn("asked", Worker)
    pids = asked.slice(gpus=0).pids_of.call_one(actors).get(timeout=LIMIT)
    assert asked.slice(gpus=1).pids_of.call_one(actors.slice(gpus=slice(1, 2))).get(timeout=LIMIT) == pids[1:]
    for late in asked.spawn_on_procs.call(mesh).get(timeout=LIMIT).values():  # a ValueMesh of meshes
        assert late.pid.call().get(timeout=LIMIT).values() == pids
        assert late.sizes == {"gpus": 2} and late != actors
    answers = asked.spawn_on_host.call({"host": this_host()}["host"]).get(timeout=LIMIT)
    nested = [actor.pid.call_one().get(timeout=LIMIT) for _, actor in answers.values()]
    assert len({*nested, *pids, os.getpid()}) == 5
    assert [by_hand(p).spawn("more", Worker).pid.call_one().get(timeout=LIMIT) for p, _ in answers.values()] == nested


@pytest.mark.feature(61)
def test_a_mesh_deep_in_a_message_is_the_same_mesh_when_it_comes_back(procs, fresh):
    mesh, actors = fresh
    asked = procs.slice(gpus=0).spawn("asked", Worker)
    sent = {"meshes": [(this_host(), mesh, actors.slice(gpus=1))], "again": actors}
    got = asked.echo.call_one(sent).get(timeout=LIMIT)
    assert got == sent
    assert {mesh: 1, actors: 2, this_host(): 3}[got["meshes"][0][1]] == 1


@pytest.mark.feature(61)
def test_meshes_are_keys_and_take_attributes(procs):
    actors = procs.spawn("workers", Worker)
    known = {procs: "procs", actors: "actors", procs.slice(gpus=0): "one"}
    assert (known[by_hand(procs)], known[by_hand(actors)]) == ("procs", "actors")
    assert known[procs.slice(gpus=slice(0, 1)).slice(gpus=0)] == "one"
    procs._logging, actors.nickname = "mine", "yours"
    assert (procs._logging, actors.nickname) == ("mine", "yours")
    del procs._logging
