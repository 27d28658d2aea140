"""C++ actors in worker processes, driven from Python (examples/cpp/lib/counters.cc)."""

import pathlib

import pytest
from script_run import Run

from monarch import cpp
from monarch.actor import Actor, ActorError, SupervisionError, endpoint

LIMIT = 30
LIBRARY = pathlib.Path(__file__).parents[2] / "build" / "release" / "examples" / "libcounters.so"


@pytest.fixture(scope="module")
def counters():
    return cpp.load(str(LIBRARY))


def test_a_mesh_of_cpp_actors_is_called_like_any_other(procs, counters):
    mesh = procs.spawn("counters", counters.Counter, 5)
    assert mesh.add.call(1).get(timeout=LIMIT).values() == [6, 6]
    mesh.slice(gpus=1).add.broadcast(10)
    assert mesh.add.call(0).get(timeout=LIMIT).values() == [6, 16]
    assert mesh.slice(gpus=1).who.call_one().get(timeout=LIMIT)[1] == "counters"
    assert mesh.mean.choose([1, 2.0, 6]).get(timeout=LIMIT) == 3.0
    assert mesh.slice(gpus=0).count_words.call_one(["a", "b", "a"]).get(timeout=LIMIT) == {"a": 2, "b": 1}


def test_errors_of_cpp_actors_are_readable(procs, counters):
    mesh = procs.slice(gpus=0).spawn("counter", counters.Counter, 0)
    with pytest.raises(ActorError, match="the mean of nothing"):
        mesh.mean.call_one([]).get(timeout=LIMIT)
    with pytest.raises(ActorError, match="expected an int, got a str"):
        mesh.add.call_one("x").get(timeout=LIMIT)
    with pytest.raises(TypeError, match="C\\+\\+ actors take"):
        mesh.add.call_one({1, 2})
    with pytest.raises(TypeError, match="positional"):
        mesh.add.call_one(by=1)
    with pytest.raises(AttributeError, match="registers no C\\+\\+ actor class 'Nothing'"):
        counters.Nothing
    with pytest.raises(RuntimeError, match="cannot load the library"):
        cpp.load("no/such/library.so")
    assert mesh.add.call_one(2).get(timeout=LIMIT) == 2


def test_results_of_cpp_actors_do_not_stay_where_they_are(procs, counters):
    mesh = procs.spawn("counters", counters.Counter, 0)
    with pytest.raises(NotImplementedError, match="those of C\\+\\+ send what they return"):
        mesh.add.options(results="remote")
    assert mesh.add.options(results="local").call(1).get(timeout=LIMIT).values() == [1, 1]


def test_results_of_cpp_actors_are_reduced(procs, counters):
    mesh = procs.spawn("counters", counters.Counter, 3)
    assert mesh.add.options(reduce="sum").call(1).get(timeout=LIMIT) == 8
    assert mesh.add.options(reduce="all_equal").call(1).get(timeout=LIMIT) == 5
    assert mesh.add.options(reduce="count").call(1).get(timeout=LIMIT) == 2


def test_a_cpp_constructor_that_throws_fails_its_rank(procs, counters):
    mesh = procs.slice(gpus=0).spawn("counter", counters.Counter, -1)
    with pytest.raises(SupervisionError, match="a counter starts at 0 or more"):
        mesh.add.call_one(1).get(timeout=LIMIT)


def test_a_cpp_actor_that_fails_unseen_ends_the_program():
    run = Run(f"""
from monarch import cpp
procs = this_host().spawn_procs(per_host={{"gpus": 1}})
counters = cpp.load({str(LIBRARY)!r})
seen, unseen = procs.spawn("seen", counters.Counter, 0), procs.spawn("unseen", counters.Counter, 0)
for mesh in seen, unseen:
    mesh.add.call_one(1).get()
seen.mean.broadcast([])
try:
    seen.add.call_one(1).get()
    raise AssertionError("it lives")
except SupervisionError as error:
    assert "the mean of nothing" in str(error)
    assert (error.mesh, error.rank, error.coordinates) == ("seen", 0, (0,)), error.coordinates
unseen.mean.broadcast([])
sys.stdin.readline()
""").done()
    assert run.status == 1
    assert "The actor <root>.<Counter unseen{'gpus': 0/1}> and all its descendants have failed" in run.err
    assert run.err.count("failed in mean(), which nobody waits for") == 1 and "'seen'" not in run.err


def test_a_stopped_cpp_actor_says_so(procs, counters):
    mesh = procs.slice(gpus=0).spawn("counter", counters.Counter, 0)
    mesh.add.call_one(1)
    mesh.stop("enough").get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match="stopped: enough"):
        mesh.add.call_one(1).get(timeout=LIMIT)


def test_handles_of_cpp_actors_travel_to_python_actors(procs, counters):
    class Driver(Actor):
        @endpoint
        def drive(self, mesh):
            return sum(mesh.add.call(3).get(timeout=LIMIT).values())

    mesh = procs.spawn("counters", counters.Counter, 1)
    assert procs.slice(gpus=1).spawn("driver", Driver).drive.call_one(mesh).get(timeout=LIMIT) == 8
