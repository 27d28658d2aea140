"""What a new actor is made of when it arrives: class, arguments, thread; and what it raises."""

import ctypes
import resource
import sys
import threading

import cloudpickle
import numpy
import pytest

from monarch._calls.pickling import importable_name
from monarch.actor import Actor, ActorError, SupervisionError, current_rank, endpoint, this_host

LIMIT = 30


@pytest.fixture(scope="module")
def procs():
    with this_host().spawn_procs(per_host={"gpus": 2}) as procs:
        yield procs


class Keeper(Actor):
    def __init__(self, *args, **kwargs):
        self.given = args, kwargs
        self.rank_then = current_rank().rank

    @endpoint
    def all(self):
        return self.given, self.rank_then

    @endpoint
    def thread_name(self):
        return threading.current_thread().name

    @endpoint
    def fail(self, kind, *args):
        raise kind(*args)

    class Inner(Actor):
        @endpoint
        def name(self):
            return type(self).__qualname__


class Looping(Actor):
    @endpoint
    async def thread_name(self):
        return threading.current_thread().name


class Picky(Actor):
    def __init__(self, value):
        raise LookupError(f"not {value}")

    @endpoint
    def never(self):
        pass


# ---- Class and arguments, with a pickle and without ----


@pytest.mark.feature(1, "constructor arguments arrive", 76)
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1, -1.5, "text", b"bytes", None, True, (2, ("nested",))), {}),
        ((2**63, 2**200, "\ud800"), {}),
        (([1, 2], {"a": [3]}, {4}), {}),
        ((1,), {"k": [5]}),
        ((), {"k": 1}),
    ],
)
def test_constructor_arguments_arrive_as_they_were(procs, args, kwargs):
    keepers = procs.spawn("keepers", Keeper, *args, **kwargs)
    answers = keepers.all.call().get(timeout=LIMIT).values()
    assert answers == [((args, kwargs), 0), ((args, kwargs), 1)]
    assert [type(a) for a in answers[0][0][0]] == [type(a) for a in args]


@pytest.mark.feature(76)
def test_arguments_that_share_a_list_share_it_there(procs):
    shared = [1]
    (((a, b), _), _) = procs.slice(gpus=0).spawn("keeper", Keeper, shared, (shared,)).all.call_one().get(timeout=LIMIT)
    assert a is b[0]


@pytest.mark.feature(76)
def test_arrays_are_arguments_of_constructors(procs):
    array = numpy.arange(1000)
    ((args, _), _) = procs.slice(gpus=1).spawn("keeper", Keeper, array, 3).all.call_one().get(timeout=LIMIT)
    assert (args[0] == array).all() and args[1] == 3


@pytest.mark.feature(1)
def test_a_class_inside_a_class_is_found(procs):
    assert procs.slice(gpus=0).spawn("inner", Keeper.Inner).name.call_one().get(timeout=LIMIT) == "Keeper.Inner"


@pytest.mark.feature(74)
def test_a_class_that_its_name_does_not_lead_to_travels_by_value(procs):
    def make(answer):
        class Local(Actor):
            @endpoint
            def answer(self):
                return answer

        return Local

    for answer in (1, 2):
        cls = make(answer)
        assert importable_name(cls) is None
        assert procs.slice(gpus=0).spawn("local", cls).answer.call_one().get(timeout=LIMIT) == answer


@pytest.mark.feature(74)
def test_only_what_a_receiver_can_import_goes_by_name(monkeypatch):
    monkeypatch.setattr(
        cloudpickle.cloudpickle, "_PICKLE_BY_VALUE_MODULES", set()
    )  # whatever other tests have left there
    assert importable_name(Keeper.Inner) == (__name__, "Keeper.Inner")
    monkeypatch.setattr(Keeper, "__module__", "__main__")
    assert importable_name(Keeper) is None
    monkeypatch.setattr(Keeper, "__module__", __name__)
    monkeypatch.setitem(globals(), "Keeper", object())  # another one has that name now
    assert importable_name(Looping) is not None
    assert importable_name(Picky) == (__name__, "Picky")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    assert importable_name(Picky) is None


@pytest.mark.feature(70)
def test_what_a_constructor_raises_is_told_to_each_call(procs):
    picky = procs.spawn("picky", Picky, 7)
    for _ in range(2):
        with pytest.raises(SupervisionError, match="LookupError: not 7"):
            picky.never.call().get(timeout=LIMIT)


@pytest.mark.feature(1)
def test_the_first_actors_of_a_process_may_come_together():
    with this_host().spawn_procs(per_host={"gpus": 2}) as procs:
        meshes = [procs.spawn(f"keepers_{i}", Keeper, i) for i in range(40)]
        for i, mesh in enumerate(meshes):
            assert mesh.all.call().get(timeout=LIMIT).values() == [(((i,), {}), 0), (((i,), {}), 1)]


# ---- Threads that actors follow one another on ----


@pytest.mark.feature(17)
def test_a_threads_name_says_what_it_runs_now(procs):
    proc = procs.slice(gpus=1)
    names = []
    for cls in (Keeper, Looping, Keeper, Looping, Keeper):
        actor = proc.spawn("actor", cls)
        names.append(actor.thread_name.call_one().get(timeout=LIMIT))
        actor.stop().get(timeout=LIMIT)
    loop, sync = "monarch-actor-event-loop", "monarch-actor-driver"
    assert names == [sync, loop, sync, loop, sync]


class Overflowing(Actor):
    @endpoint
    def write_below_the_stack(self):
        libc = ctypes.CDLL(None)
        attributes, lowest, size = ctypes.create_string_buffer(256), ctypes.c_void_p(), ctypes.c_size_t()
        libc.pthread_self.restype = ctypes.c_ulong
        libc.pthread_getattr_np(ctypes.c_ulong(libc.pthread_self()), attributes)
        libc.pthread_attr_getstack(attributes, ctypes.byref(lowest), ctypes.byref(size))
        ctypes.memset(lowest.value, 0, 1)


@pytest.mark.feature(17)
def test_who_overflows_the_stack_of_one_of_many_actors_dies_and_writes_into_no_other():
    with this_host().spawn_procs(per_host={"gpus": 1}) as procs:
        actors = [procs.spawn(f"actor_{i}", Overflowing) for i in range(12)]
        with pytest.raises(SupervisionError, match="Segmentation fault"):
            actors[-1].write_below_the_stack.call_one().get(timeout=LIMIT)


class Recursing(Actor):
    def _sum(self, depth):
        return depth and depth + self._sum(depth - 1)

    @endpoint
    def sum(self, depth):
        sys.setrecursionlimit(2 * depth)
        return self._sum(depth)

    @endpoint
    def resident_bytes(self):
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 recurses on the C stack, which has no room for it")
@pytest.mark.feature(17)
def test_frames_of_deep_recursion_give_their_memory_back(procs):
    actors = [procs.slice(gpus=0).spawn(f"actor_{i}", Recursing) for i in range(4)]
    depth = 200_000  # 20 MB of frames
    before = actors[0].resident_bytes.call_one().get(timeout=LIMIT)
    sums = [actor.sum.call_one(depth) for actor in actors]
    assert [s.get(timeout=LIMIT) for s in sums] == [depth * (depth + 1) // 2] * 4
    assert actors[0].resident_bytes.call_one().get(timeout=LIMIT) - before < 10_000_000


# ---- Exceptions of builtin types, which need no pickle ----


@pytest.mark.feature(62)
@pytest.mark.parametrize(
    ("kind", "args"),
    [
        (ValueError, ()),
        (ValueError, ("one", 2)),
        (KeyError, (("a", "tuple"),)),
        (ValueError, (["a list"],)),
        (StopIteration, (5,)),
        (OSError, (2, "No such file", "/its/name")),
        (UnicodeDecodeError, ("utf8", b"\xff", 0, 1, "why")),
        (ArithmeticError, (2**100,)),
    ],
)
def test_builtin_exceptions_arrive_with_their_arguments(procs, kind, args):
    keeper = procs.slice(gpus=0).spawn("keeper", Keeper)
    with pytest.raises(ActorError, match=type(kind(*args)).__name__) as caught:
        keeper.fail.call_one(kind, *args).get(timeout=LIMIT)
    expected = kind(*args)
    error = caught.value.exception
    assert type(error) is type(expected) and error.args == expected.args and str(error) == str(expected)
    assert getattr(error, "filename", None) == getattr(expected, "filename", None)
    assert "raise kind(*args)" in caught.value.exception_formatted
    keeper.stop().get(timeout=LIMIT)


class Noting(Actor):
    @endpoint
    def fail(self):
        error = ValueError("text")
        error.attribute = [1]
        error.add_note("a note") if hasattr(error, "add_note") else setattr(error, "__notes__", ["a note"])
        raise error


@pytest.mark.feature(62)
def test_notes_and_attributes_of_a_builtin_exception_arrive_too(procs):
    with pytest.raises(ActorError) as caught:
        procs.slice(gpus=0).spawn("noting", Noting).fail.call_one().get(timeout=LIMIT)
    assert caught.value.exception.attribute == [1] and caught.value.exception.__notes__ == ["a note"]
    if sys.version_info >= (3, 11):
        assert "a note" in str(caught.value)
