"""`monarch.empty`, `freeze` and `thaw`: what is sent without a copy, and that nobody can write to it."""

import gc
import os
import re

import numpy as np
import pytest
from script_run import PROGRAMS, Run

import monarch
from monarch import _core
from monarch._values import frozen
from monarch.actor import Actor, ActorError, SupervisionError, endpoint

LIMIT = 30
SIZE = 1 << 20


def lies_in_shared_memory(array):
    """Whether this process has the array's bytes mapped from a memfd that is frozen."""
    first, size = frozen._bounds(array)
    for line in open("/proc/self/maps"):
        low, high = (int(part, 16) for part in line.split()[0].split("-"))
        if low <= first and first + size <= high:
            return "monarch-frozen" in line and line.split()[1].startswith("r-")
    return False


def maps():
    return sum("monarch-frozen" in line for line in open("/proc/self/maps"))


def descriptors():
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += "monarch-frozen" in os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            pass
    return found


class Holder(Actor):
    @endpoint
    def look(self, array):
        writable = array.flags.writeable
        return lies_in_shared_memory(array), writable, array.dtype, array.shape, float(array.reshape(-1)[-1])

    @endpoint
    def write(self, array):
        array[0] = 1

    @endpoint
    def echo(self, value):
        return value

    @endpoint
    def keep(self, value):
        self.kept = value

    @endpoint
    def make(self, size):
        made = monarch.empty(size, "u1")
        made[:] = 7
        return monarch.freeze(made)

    @endpoint
    def pass_on(self, other, array):
        return other.look.call_one(array).get(timeout=LIMIT)

    @endpoint
    def has(self):
        gc.collect()
        return maps(), descriptors()


@pytest.fixture(scope="module")
def holders(procs):
    return procs.spawn("holders", Holder)


@pytest.fixture
def holder(holders):
    return holders.slice(gpus=0)


def filled(size=SIZE, dtype="f8", value=3):
    array = monarch.empty(size // np.dtype(dtype).itemsize, dtype)
    array[:] = value
    return array


def test_a_frozen_argument_is_not_copied(holder):
    array = monarch.freeze(filled())
    seen, writable, dtype, shape, last = holder.look.call_one(array).get(timeout=LIMIT)
    assert seen and not writable and dtype == "f8" and shape == array.shape and last == 3


def test_what_is_not_frozen_is_a_snapshot(holder):
    array = filled()
    future = holder.echo.call_one(array)
    array[:] = 4
    back = future.get(timeout=LIMIT)
    assert back.flags.writeable and (back == 3).all()


def test_any_array_is_copied_once_and_frozen(holder):
    array = np.arange(SIZE, dtype="u1").reshape(1024, -1)
    one = monarch.freeze(array)
    assert array.flags.writeable and (one == array).all()
    assert holder.look.call_one(one).get(timeout=LIMIT)[0]
    assert monarch.freeze(one).ctypes.data == one.ctypes.data  # it is already


def test_a_result_is_not_copied_either(holder):
    back = holder.make.call_one(SIZE).get(timeout=LIMIT)
    assert lies_in_shared_memory(back) and not back.flags.writeable and (back == 7).all()


def test_what_comes_back_is_the_same_memory(holder):
    array = monarch.freeze(filled())
    assert holder.echo.call_one(array).get(timeout=LIMIT).ctypes.data == array.ctypes.data


def test_it_is_found_deep_in_other_values(holder):
    array = monarch.freeze(filled())
    value = {"a": [array, ("b", array[10:20])], "c": memoryview(array), "d": array[1000:]}
    back = holder.echo.call_one(value).get(timeout=LIMIT)
    assert back["a"][0].ctypes.data == array.ctypes.data
    assert back["d"].ctypes.data == array.ctypes.data + 8000
    assert back["c"].readonly
    assert not back["a"][1][1].flags.writeable and (back["a"][1][1] == 3).all()


def thawed_pages(array):
    """How many bytes of the process's own are behind it."""
    first, size = frozen._bounds(array)
    found = 0
    with open("/proc/self/smaps") as lines:
        for line in lines:
            if line[0] in "0123456789abcdef":
                low, high = (int(part, 16) for part in line.split()[0].split("-"))
                is_of_it = low < first + size and first < high
            elif is_of_it and line.startswith("Private_Dirty:"):
                found += int(line.split()[1]) * 1024
    return found


class Writer(Actor):
    @endpoint
    def change(self, array, at):
        mine = monarch.thaw(array)
        mine[at] = 9
        return thawed_pages(mine), lies_in_shared_memory(array), mine.sum() - array.sum(), float(array[at])


def test_a_receiver_writes_to_a_page_of_what_it_thaws(procs):
    array = monarch.freeze(filled(16 * SIZE, "u1"))
    answers = procs.spawn("writers", Writer).change.call(array, 5 * SIZE).get(timeout=LIMIT).values()
    assert answers == [(os.sysconf("SC_PAGESIZE"), True, 6, 3)] * 2  # each its own, and both the same memory
    assert (array == 3).all()


@pytest.mark.parametrize("array", [np.arange(8.0), np.zeros((0, 3)), filled(), np.asfortranarray(np.ones((30, 400)))])
def test_of_what_is_not_frozen_a_copy_is_thawed(array):
    mine = monarch.thaw(array)
    assert (mine == array).all() and mine.strides == array.strides and mine.flags.writeable
    assert mine.size == 0 or not np.shares_memory(mine, array)


OVERLAPPING = {
    "broadcast": lambda a: np.broadcast_to(a, (3, a.size)),
    "windows": lambda a: np.lib.stride_tricks.sliding_window_view(a, 4),
    "steps into each other": lambda a: np.lib.stride_tricks.as_strided(a, (1000, 64), (16, 8)),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_items_that_share_their_bytes_are_each_their_own_when_they_are_thawed(name):
    view = OVERLAPPING[name](monarch.freeze(filled()))
    mine = monarch.thaw(view)
    mine[0] += 1
    assert (mine[0] == 4).all() and (mine[1:] == 3).all() and (view == 3).all()


def test_small_views_are_copied_and_take_no_mapping():
    array = monarch.freeze(filled())
    before = maps()
    kept = [monarch.thaw(array[i : i + 10]) for i in range(100)]
    assert maps() == before and all((each == 3).all() for each in kept)


def test_what_cannot_be_mapped_again_is_copied(monkeypatch):
    array = monarch.freeze(filled())
    monkeypatch.setattr(_core, "thawed", lambda first, size: None)
    mine = monarch.thaw(array)
    mine[0] = 1
    assert array[0] == 3 and (mine[1:] == 3).all()


@pytest.mark.parametrize("value", [[1.0], b"abc", np.ma.masked_array([1]), np.array([object()])])
def test_what_is_no_plain_array_cannot_be_thawed(value):
    with pytest.raises(TypeError, match="takes a NumPy array|takes plain arrays|are objects of this process"):
        monarch.thaw(value)


def test_what_is_thawed_is_sent_as_it_is_then(holder):
    array = monarch.freeze(filled())
    mine = monarch.thaw(array)
    mine[0] = 5
    del array
    back = holder.echo.call_one(mine).get(timeout=LIMIT)
    assert back[0] == 5 and (back[1:] == 3).all() and back.flags.writeable
    assert not frozen.is_frozen(mine)


VIEWS = {
    "rows": lambda a: a[100:900],
    "transposed": lambda a: a.T,
    "strided": lambda a: a[:, ::2],
    "backwards": lambda a: a[::-1],
    "inner": lambda a: a[1:-1, 1:-1],
    "dates": lambda a: a.view("M8[s]"),
    "records": lambda a: a.view([("x", "i4"), ("y", "f4")]),
}


@pytest.mark.parametrize("view", [lambda a: a[:, 3], lambda a: a[::3, :5], lambda a: a.view("M8[s]")])
def test_views_that_are_copied_are_read_only_too(holder, view):
    array = filled().reshape(256, -1)
    plain = array.copy()
    plain.flags.writeable = False
    for each in (view(monarch.freeze(array)), view(plain)):
        back = holder.echo.call_one({"deep": each}).get(timeout=LIMIT)["deep"]
        assert not back.flags.writeable and (back == each).all()
        assert not holder.look.call_one(each).get(timeout=LIMIT)[1] if each.dtype == "f8" else True


@pytest.mark.parametrize("shape", ["x", (2, "a"), 2.5, None])
def test_a_shape_that_is_none(shape):
    with pytest.raises(TypeError, match=r"^a shape is an int or a tuple of ints, such as \(1024, 256\), and not "):
        monarch.empty(shape)


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_it_are_not_copied(holder, name):
    whole = filled(dtype="i8").reshape(1024, -1)
    whole[:] = np.arange(whole.size).reshape(whole.shape)
    view = VIEWS[name](monarch.freeze(whole))
    back = holder.echo.call_one(view).get(timeout=LIMIT)
    mine = monarch.thaw(view)
    assert mine.strides == view.strides and (mine == view).all() and thawed_pages(mine) == 0
    mine[(0,) * mine.ndim] = -1
    assert (mine != view).sum() == 1
    assert back.ctypes.data == view.ctypes.data
    assert back.dtype == view.dtype and back.shape == view.shape and back.strides == view.strides
    assert (back == view).all() and not back.flags.writeable


def test_of_a_view_that_takes_little_only_that_is_sent(holder):
    column = monarch.freeze(filled().reshape(1024, -1))[:, 3]
    back = holder.echo.call_one([column]).get(timeout=LIMIT)[0]
    assert (back == column).all() and back.ctypes.data != column.ctypes.data


def test_a_cast_shows_it_to_all(holders):
    array = monarch.freeze(filled())
    for seen, writable, *_, last in holders.look.call(array).get(timeout=LIMIT).values():
        assert seen and not writable and last == 3


def test_receivers_send_it_on(holders):
    first, second = holders.slice(gpus=0), holders.slice(gpus=1)
    assert first.pass_on.call_one(second, np.zeros(3)).get(timeout=LIMIT)  # from here on they are connected
    assert first.pass_on.call_one(second, monarch.freeze(filled())).get(timeout=LIMIT)[0]


def test_a_small_one_is_read_only_there_too(holder):
    for array in (monarch.freeze(np.arange(10)), monarch.freeze(np.zeros((0, 3))), monarch.freeze(np.array(5.0))):
        back = holder.echo.call_one(array).get(timeout=LIMIT)
        assert not back.flags.writeable and back.shape == array.shape and (back == array).all()


# ---- Nobody writes to it ----


def test_a_receiver_that_writes_is_told_so(holder):
    with pytest.raises(ActorError, match="read-only"):
        holder.write.call_one(monarch.freeze(filled())).get(timeout=LIMIT)


def test_the_sender_cannot_write_either():
    array = filled()
    view = monarch.freeze(array)
    for each in (array, view):
        with pytest.raises(ValueError, match="read-only"):
            each[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            each.flags.writeable = True


@pytest.mark.parametrize("size", [10, SIZE])
def test_a_copy_that_is_frozen_cannot_be_made_writable(size):
    with pytest.raises(ValueError, match="WRITEABLE"):
        monarch.freeze(np.arange(size)).flags.writeable = True


OLDER_VIEW = """
import faulthandler, monarch
faulthandler.enable()
array = monarch.empty(1 << 20, "u1")
older = array[10:20]
monarch.freeze(array)
print("frozen", flush=True)
older[0] = 1
print("written")
"""


def test_a_write_through_an_older_view_ends_the_process():
    script = Run(OLDER_VIEW, prologue="").done()
    assert script.status == -11 and script.out.splitlines() == ["frozen"]
    assert "Segmentation fault" in script.err


# ---- What cannot be frozen ----


def test_objects_cannot_be_frozen():
    for make in (lambda: monarch.empty(10, object), lambda: monarch.freeze(np.array([[], {}], object))):
        with pytest.raises(TypeError, match="objects of this process"):
            make()


@pytest.mark.parametrize("value", [[1, 2], b"abc", 3, None, np.float64(1)])
def test_other_things_cannot_be_frozen(value):
    with pytest.raises(TypeError, match="takes a NumPy array or a torch tensor"):
        monarch.freeze(value)


def test_subclasses_of_arrays_cannot_be_frozen():
    with pytest.raises(TypeError, match="plain arrays, and not 'MaskedArray'"):
        monarch.freeze(np.ma.masked_array([1, 2]))


def test_shapes_are_those_of_numpy():
    assert monarch.empty(3).dtype == "f8" and monarch.empty((2, 0), "i4").shape == (2, 0)
    assert monarch.empty((), "i4").shape == () and monarch.empty(np.int64(100_000)).shape == (100_000,)
    assert monarch.empty([300, 400], [("x", "i4"), ("y", "f8")]).shape == (300, 400)
    with pytest.raises(ValueError, match="negative"):
        monarch.empty((100_000, -1))
    with pytest.raises(TypeError):
        monarch.empty(2.5)


def test_what_does_not_fit_is_told_as_a_shortage():
    with pytest.raises(
        MemoryError, match=r"cannot make 1000.0 GiB of shared memory: [\d.]+ GiB of memory are available"
    ):
        monarch.empty(1000 << 30, "u1")
    with pytest.raises(MemoryError, match="at most 1024.0 GiB at a time"):
        monarch.empty((1 << 20, 1 << 30), "f8")


def test_a_part_of_such_memory_is_frozen_by_itself():
    array = filled()
    part = monarch.freeze(array[: array.size // 2])
    array[:] = 5
    assert (part == 3).all()


# ---- Its life ----


def test_it_goes_when_nobody_has_it(holder):
    before, there = (maps(), descriptors()), holder.has.call_one().get(timeout=LIMIT)
    for _ in range(5):
        array = monarch.freeze(filled())
        assert holder.look.call_one(array).get(timeout=LIMIT)[0]
        del array
    gc.collect()
    assert (maps(), descriptors()) == before
    assert holder.has.call_one().get(timeout=LIMIT) == there


def test_a_receiver_keeps_it_when_the_sender_has_dropped_it(holder):
    array = monarch.freeze(filled(value=8))
    holder.keep.call_one(array).get(timeout=LIMIT)
    del array
    gc.collect()
    assert holder.has.call_one().get(timeout=LIMIT)[0] >= 1
    holder.keep.call_one(None).get(timeout=LIMIT)


def test_more_at_a_time_than_a_link_has_numbers_for_and_numbers_are_used_again():
    # In a script: so many have more descriptors than select() takes.
    Run(PROGRAMS / "frozen/many.py").ok(60)


def test_a_process_that_is_killed_leaves_nothing():
    from monarch.actor import this_host

    procs = this_host().spawn_procs()
    holder = procs.spawn("holder", Holder)
    array = holder.make.call_one(SIZE).get(timeout=LIMIT)
    pid = holder.has.call_one().get(timeout=LIMIT) and procs.spawn("pid", Pid).get.call_one().get(timeout=LIMIT)
    os.kill(pid, 9)
    with pytest.raises(SupervisionError):
        holder.has.call_one().get(timeout=LIMIT)
    assert (array == 7).all()
    del array
    gc.collect()
    procs.stop().get(timeout=LIMIT)


class Pid(Actor):
    @endpoint
    def get(self):
        return os.getpid()


def test_a_forked_child_writes_to_its_own():
    array = filled()
    constant = monarch.freeze(filled())
    pid = os.fork()
    if pid == 0:
        array[:] = 9
        ok = (array == 9).all() and (constant == 3).all() and (monarch.freeze(array) == 9).all()
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert (array == 3).all()
    assert (monarch.freeze(array) == 3).all()


def test_importing_it_imports_neither_numpy_nor_torch():
    code = "import monarch, sys; monarch.empty, monarch.freeze; print('numpy' in sys.modules, 'torch' in sys.modules)"
    assert Run(code, prologue="").ok().out.split() == ["False", "False"]


def test_without_descriptors_it_is_told_so():
    code = """
import resource, monarch
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
kept = []
try:
    while True: kept.append(monarch.empty(1 << 16, "u1"))
except OSError as error:
    print(len(kept) > 40, error)
"""
    said = Run(code, prologue="").ok().out
    assert re.match(r"True cannot make memory to be frozen: out of file descriptors: .* raise ulimit -n", said)


def test_the_core_refuses_what_is_no_memory():
    assert _core.memory_at(0, 10) is None and not _core.is_frozen(0, 10)
    with pytest.raises(TypeError):
        _core.freeze_memory(b"abc")


@pytest.mark.parametrize("way", ["exec", "unix"])
def test_other_ways_to_start_and_to_send(way):
    Run(
        """
import numpy as np, monarch
class Echo(Actor):
    @endpoint
    def echo(self, value): return value, value.flags.writeable, float(value.sum())
echo = this_host().spawn_procs().spawn("echo", Echo)
array = monarch.freeze(np.arange(1 << 17, dtype="f8"))
for _ in range(3):
    back, writable, total = echo.echo.call_one(array).get()
    assert not back.flags.writeable and not writable and total == array.sum() and (back == array).all()
""",
        way=way,
    ).ok()


def test_on_another_host_it_is_a_copy_and_read_only(daemons):
    daemons[0].run(
        """
import numpy as np, monarch
class Echo(Actor):
    @endpoint
    def echo(self, value): return value, value["a"].flags.writeable
echo = hosts.spawn_procs().spawn("echo", Echo)
array = monarch.freeze(np.arange(1 << 17, dtype="f8"))
for _ in range(2):
    for back, writable in echo.echo.call({"a": array}).get().values():
        assert not back["a"].flags.writeable and not writable and (back["a"] == array).all()
""",
        daemons[1],
    ).ok()
