"""The mesh methods on processes and actors: which of them a view reaches."""

import os

import pytest

from monarch.actor import Actor, Extent, context, endpoint, this_host

LIMIT = 30


class Member(Actor):
    @endpoint
    def rank(self):
        """Its rank in the mesh that it was spawned in."""
        return context().actor_instance.rank.rank

    @endpoint
    def pid(self):
        return os.getpid()


@pytest.fixture(scope="module")
def grid():
    mesh = this_host().spawn_procs(per_host={"a": 2, "b": 3})
    yield mesh
    mesh.stop().get(timeout=LIMIT)


@pytest.fixture(scope="module")
def members(grid):
    return grid.spawn("members", Member)


@pytest.fixture(scope="module")
def pids(members):
    return members.pid.call().get(timeout=LIMIT).values()


# a view -> its sizes, and the ranks of its members in the whole mesh
VIEWS = {
    "whole": (lambda m: m.slice(), {"a": 2, "b": 3}, [0, 1, 2, 3, 4, 5]),
    "int": (lambda m: m.slice(a=1), {"b": 3}, [3, 4, 5]),
    "one": (lambda m: m.slice(a=1, b=2), {}, [5]),
    "range": (lambda m: m.slice(b=slice(1, 3)), {"a": 2, "b": 2}, [1, 2, 4, 5]),
    "step": (lambda m: m.slice(b=slice(None, None, 2)), {"a": 2, "b": 2}, [0, 2, 3, 5]),
    "from the end": (lambda m: m.slice(b=slice(-1, None)), {"a": 2, "b": 1}, [2, 5]),
    "of a view": (lambda m: m.slice(b=slice(1, 3)).slice(b=1).slice(a=slice(1, 2)), {"a": 1}, [5]),
    "split": (lambda m: m.split(b=("c", "d"), c=1).slice(d=1), {"a": 2, "c": 1}, [1, 4]),
    "flatten": (lambda m: m.flatten("rank").slice(rank=slice(1, None, 2)), {"rank": 3}, [1, 3, 5]),
    "flatten and split": (lambda m: m.flatten("r").split(r=("x", "y"), y=2).slice(y=1), {"x": 3}, [1, 3, 5]),
    "rename": (lambda m: m.rename(a="b", b="a").slice(b=0), {"a": 3}, [0, 1, 2]),
}
views = pytest.mark.parametrize(("view", "sizes", "ranks"), VIEWS.values(), ids=VIEWS)


@pytest.mark.feature(43, "an int drops the dimension", 44)
@views
def test_a_call_on_a_view_reaches_its_members(members, view, sizes, ranks):
    part = view(members)
    replies = part.rank.call().get(timeout=LIMIT)
    assert replies.values() == ranks
    assert replies.sizes == part.sizes == sizes and replies.extent == part.extent
    assert len(part) == part.size() == len(ranks)


@pytest.mark.feature(43, 44)
@views
def test_actors_are_spawned_on_the_processes_of_a_view(grid, pids, view, sizes, ranks):
    actors = view(grid).spawn("some", Member)
    assert actors.sizes == sizes
    assert actors.pid.call().get(timeout=LIMIT).values() == [pids[rank] for rank in ranks]
    assert actors.rank.call().get(timeout=LIMIT).values() == list(range(len(ranks)))
    actors.stop().get(timeout=LIMIT)


@pytest.mark.feature(43, 44)
def test_a_point_slices_its_member(members):
    for point, rank in members.rank.call().get(timeout=LIMIT):
        assert members.slice(**point).rank.call_one().get(timeout=LIMIT) == rank == point.rank


@pytest.mark.feature(43, "errors", 44, "errors")
@pytest.mark.parametrize("kind", ["grid", "members"])
@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda m: m.slice(zz=1), TypeError, "Shape does not have dimension labeled 'zz'"),
        (lambda m: m.slice(a=2), IndexError, "index out of range"),
        (lambda m: m.slice(a=-1), IndexError, "index out of range"),
        (lambda m: m.slice(a=slice(2, 2)), ValueError, "out of range 2:2:1 for dimension a of size 2"),
        (lambda m: m.split(b="cd"), ValueError, "expected a sequence of dimensions, but got 'cd'"),
        (
            lambda m: m.split(b=("c", "d"), d=2),
            ValueError,
            "Dimension 'b' of size 3 is not evenly divided by ('c', 'd') with sizes ('?', 2)",
        ),
        (lambda m: m.split(b=("a", "d"), d=3), ValueError, "Duplicate dimension name 'a'"),
        (lambda m: m.split(b=("c",), q=4), ValueError, "unused size constraints: ('q',)"),
        (lambda m: m.rename(a="b"), ValueError, "Duplicate dimension name 'b'"),
        (
            lambda m: m.slice(b=1).flatten("x"),
            ValueError,
            "cannot flatten sparse mesh: ndslice.strides=[3] != dense_strides=[1]",
        ),
    ],
)
def test_a_wrong_view_says_what_is_wrong(kind, ask, error, text, request):
    with pytest.raises(error) as info:
        ask(request.getfixturevalue(kind))
    said, _, mesh = str(info.value).partition(" (of a mesh with the dimensions ")
    assert type(info.value) is error and said == text and (not mesh or mesh.startswith("{'a': 2"))


@pytest.mark.feature(43, 44, "size")
@pytest.mark.parametrize("kind", ["grid", "members"])
def test_sizes_of_a_mesh(kind, request):
    mesh = request.getfixturevalue(kind)
    assert (mesh.size(), mesh.size("b"), mesh.size(["a", "b"]), len(mesh)) == (6, 3, 6, 6)
    assert mesh.sizes == {"a": 2, "b": 3} and mesh.extent == Extent(["a", "b"], [2, 3])
    with pytest.raises(KeyError) as info:
        mesh.size("zz")
    assert info.value.args == (f"{mesh!r} does not have dimension 'zz'",)


@pytest.mark.feature(43, 44)
def test_views_of_equal_members_are_equal(grid, members):
    for mesh in (grid, members):
        assert mesh.slice(a=1) == mesh.slice(a=slice(1, 2)).slice(a=0) != mesh.slice(a=0)
        assert hash(mesh.slice(a=1)) == hash(mesh.slice(a=slice(1, 2)).slice(a=0))
