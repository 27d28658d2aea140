"""`monarch.rdma`: buffers that others read and write."""

import asyncio
import contextlib
import functools
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref

import numpy as np
import pytest
from script_run import Run

import monarch
from monarch import _core
from monarch.actor import Actor, SupervisionError, endpoint, this_host
from monarch.rdma import (
    BufferDropped,
    RDMAAction,
    RDMABuffer,
    RDMAError,
    RDMATimeout,
    get_rdma_backend,
    is_ibverbs_available,
    is_rdma_available,
)

LIMIT = 30
SIZE = 1 << 20


def admitted(buffer, data):
    """Writes until its owner has admitted this process, which then writes itself."""
    limit = time.monotonic() + LIMIT
    while not _core.writes_itself(buffer._handle):
        buffer.write_from(data).get()
        assert time.monotonic() < limit


class Owner(Actor):
    def __init__(self):
        self.kept = []

    @endpoint
    def buffer(self, size, where="heap"):
        """One of ``size`` bytes, of the numbers from 0 on."""
        array = monarch.empty(size, np.uint8) if where == "shm" else np.empty(size, np.uint8)
        array[:] = np.arange(size) % 251
        self.kept.append(array)
        return RDMABuffer(array)

    @endpoint
    def without_contact(self, size):
        """What a handle is made of that does not say who its owner is."""
        self.kept.append(np.zeros(size, np.uint8))
        _, (fields, kind, job, _) = RDMABuffer(self.kept[-1])._reduce_in_message()
        return fields, kind, job

    @endpoint
    def strided(self):
        self.kept.append(np.arange(600, dtype=np.int32).reshape(20, 30))
        return RDMABuffer(self.kept[-1].T)

    @endpoint
    def contents(self):
        return self.kept[-1].copy()

    @endpoint
    def read(self, buffer):
        return bytes(buffer.read().get())

    @endpoint
    def write(self, buffer, data):
        buffer.write_from(data).get()

    @endpoint
    def write_on(self, buffer, data):
        """Until the buffer has been dropped."""
        admitted(buffer, data)
        with contextlib.suppress(BufferDropped):
            while True:
                buffer.write_from(data).get()

    @endpoint
    def drop(self, buffer):
        buffer.drop().get()

    @endpoint
    def spin(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def count(self):
        gc.collect()
        return _core.buffers_here()

    @endpoint
    def held(self, size):
        """Of memory that only the buffer holds."""

        class Array(np.ndarray):
            pass

        array = np.zeros(size, np.uint8).view(Array)
        self.weak = weakref.ref(array)
        return RDMABuffer(array)

    @endpoint
    def is_held(self):
        return self.weak() is not None

    @endpoint
    def fork(self, buffer):
        """What a child of this process gets of a buffer."""
        out, into = os.pipe()
        if os.fork() == 0:
            try:
                buffer.read().get()
                told = "read"
            except BaseException as error:
                told = type(error).__name__
            os.write(into, told.encode())
            os._exit(0)
        os.close(into)
        with os.fdopen(out) as told:
            return told.read()


@pytest.fixture(scope="module")
def owner():
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    yield procs.spawn("owner", Owner)
    procs.stop().get(timeout=LIMIT)


@pytest.fixture
def mortal():
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    yield procs.spawn("mortal", Owner)
    procs.stop().get(timeout=LIMIT)


def stop(pid):
    """When it returns, all threads of the process have stopped."""
    os.kill(pid, signal.SIGSTOP)
    limit = time.monotonic() + LIMIT
    while any(open(f"/proc/{pid}/task/{each}/stat").read().rpartition(")")[2].split()[0] != "T"
              for each in os.listdir(f"/proc/{pid}/task")):  # fmt: skip
        assert time.monotonic() < limit


def expected(size):
    return np.arange(size) % 251


# ---- Reading and writing ----


@pytest.mark.feature(102)
@pytest.mark.parametrize("where", ["heap", "shm"])
@pytest.mark.parametrize("size", [1, 64, 4097, 300_001, 20 << 20])
def test_reads_and_writes(owner, where, size):
    buffer = owner.buffer.call_one(size, where).get()
    way = "shm" if where == "shm" and size >= 64 * 1024 else "cma"
    assert buffer.explain().split()[0] == way
    assert buffer.size() == len(buffer) == size
    target = np.zeros(size + 2, np.uint8)
    assert buffer.read_into(target).get() is None
    assert (target[:size] == expected(size)).all() and not target[size:].any()
    buffer.write_from((target + 1)[:size]).get()
    assert (owner.contents.call_one().get() == (expected(size) + 1)).all()
    buffer.drop().get()


@pytest.mark.feature(102)
def test_both_directions_and_three_processes(owner, procs):
    others = procs.spawn("others", Owner)
    mine = np.arange(100, dtype=np.uint8)
    buffer = RDMABuffer(mine)
    assert buffer.explain() == "local"
    assert set(others.read.call(buffer).get().values()) == {bytes(range(100))}
    owner.write.call_one(buffer, b"abc").get()
    assert bytes(mine[:4]) == b"abc\x03"
    theirs = owner.buffer.call_one(100).get()
    assert set(others.read.call(theirs).get().values()) == {bytes(range(100))}
    assert theirs.owner != buffer.owner
    buffer.write_from(b"xyz").get()
    assert bytes(buffer.read().get()[:3]) == b"xyz"
    others.stop().get()


def test_any_shape_and_strides_on_either_side(owner):
    columns = np.arange(600, dtype=np.int32).reshape(20, 30).T
    buffer = owner.strided.call_one().get()
    assert (buffer.read().get() == columns).all()
    target = np.zeros((30, 40), np.int32)[:, ::-2]
    buffer.read_into(target).get()
    assert (target == columns).all()
    buffer.write_from(target[::-1]).get()
    assert (owner.contents.call_one().get().T == columns[::-1]).all()
    one = RDMABuffer(np.array(7.0))
    assert one.size() == 8 and one.read().get() == 7.0


def test_slices_are_handles_of_their_own(owner):
    buffer = owner.buffer.call_one(1000).get()
    assert bytes(buffer[10:20].read().get()) == bytes(range(10, 20))
    assert bytes(buffer[10:20][5:].read().get()) == bytes(range(15, 20))
    assert bytes(buffer[-3:].read().get()) == bytes([244, 245, 246])
    assert owner.read.call_one(buffer[250:252]).get() == bytes([250, 0])
    buffer[100:200].write_from(b"mno").get()
    assert bytes(owner.contents.call_one().get()[99:104]) == b"\x63mno\x67"
    for bad in (slice(5, 5), slice(2000, 3000), slice(0, 10, 2)):
        with pytest.raises(ValueError, match="slice"):
            buffer[bad]
    with pytest.raises(TypeError, match="sliced by bytes"):
        buffer[3]


def test_what_read_makes_is_like_what_was_registered():
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    read = RDMABuffer(array).read().get()
    assert read.dtype == np.float16 and (read == array).all() and read is not array
    assert RDMABuffer(bytearray(b"abc")).read().get() == b"abc"
    assert isinstance(RDMABuffer(array)[:4].read().get(), memoryview)


def test_odd_objects(owner):
    import array
    import ctypes

    numbers = (ctypes.c_int * 3)(1, 2, 3)
    buffer = RDMABuffer(numbers)
    assert owner.read.call_one(buffer).get() == bytes(numbers)
    buffer.write_from(ctypes.create_string_buffer(b"hello", 12)).get()
    assert bytes(numbers) == b"hello" + bytes(7)
    assert RDMABuffer(array.array("d", [1.5, 2])).read().get().cast("d").tolist() == [1.5, 2]
    fields = np.array([(1, 2.5, 3)], [("Offset", "i4"), ("x", "f8"), ("O", "i2")])
    read = RDMABuffer(fields).read().get()
    assert read.dtype == fields.dtype and read["x"] == 2.5
    times = np.array(["2026-11-25"], "M8[s]")
    assert (RDMABuffer(times).read().get() == times).all()
    objects = np.array([None, None])
    for bad in (objects, np.zeros(2, [("a", "i4"), ("b", "O")]), memoryview(objects)):
        with pytest.raises(ValueError, match="^RDMABuffer only supports .*objects of this process"):
            RDMABuffer(bad)
    with pytest.raises(ValueError, match="objects of this process"):
        RDMABuffer(bytearray(16)).read_into(objects)
    with pytest.raises(RDMAError, match="does not lie in one piece"):
        RDMABuffer(np.arange(48).reshape(4, 12)[:, ::2]).block((1, 2), (2, 3)).read().get()
    array3 = np.arange(60).reshape(3, 4, 5)
    block = RDMABuffer(array3).block((1, 1, 2), (2, 2, 3))
    assert (block.read().get() == array3[1:3, 1:3, 2:5]).all()
    assert owner.read.call_one(block).get() == array3[1:3, 1:3, 2:5].tobytes()
    for starts, sizes in (((0, 0, 0), (4, 1, 1)), ((0, 0), (1, 1)), ((-1, 0, 0), (1, 1, 1)), ((0, 0, 0), (1, 0, 1))):
        with pytest.raises(ValueError, match="there is no block"):
            RDMABuffer(array3).block(starts, sizes)
    with pytest.raises(ValueError, match="cannot be sliced by bytes"):
        block[:8]


@pytest.mark.feature(102, "without hardware and torch")
def test_nothing_else_is_needed():
    run = Run("""
from monarch.rdma import RDMABuffer, get_rdma_backend
sys.modules["torch"] = sys.modules["numpy"] = None
class A(Actor):
    def __init__(self): self.memory = bytearray(b"hello")
    @endpoint
    def buffer(self): return RDMABuffer(memoryview(self.memory))
a = this_host().spawn_procs().spawn("a", A)
target = bytearray(5)
a.buffer.call_one().get().read_into(memoryview(target)).get()
print(bytes(target), get_rdma_backend())
""").ok()  # fmt: skip
    assert run.out == "b'hello' tcp\n"


def test_who_imports_buffers_has_the_table_of_them_before_the_first_one():
    run = Run("""
class A(Actor):
    @endpoint
    def has_parts(self):
        return "monarch._bulk.action" in sys.modules
    @endpoint
    def tables(self):
        descriptors = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum("monarch-buffers" in os.readlink(each) for each in descriptors if os.path.islink(each))
    @endpoint
    def imports(self):
        import monarch.rdma
def look(a):
    before = a.tables.call_one().get()
    a.imports.call_one().get()
    print(before, a.tables.call_one().get())
look(this_host().spawn_procs().spawn("a", A))
limit = time.monotonic() + 20
while not (late := this_host().spawn_procs().spawn("a", A)).has_parts.call_one().get():  # from the fork server
    assert time.monotonic() < limit
    time.sleep(0.5)  # it imports when nobody asks
look(late)
""").ok()  # fmt: skip
    assert run.out == "0 1\n" * 2


@pytest.mark.feature(102, "sizes are checked")
def test_sizes_and_other_bad_input(owner):
    buffer = owner.buffer.call_one(8).get()
    with pytest.raises(ValueError, match=r"^destination local memory size \(2\) must be >= remote buffer size \(8\)$"):
        buffer.read_into(bytearray(2))
    with pytest.raises(ValueError, match=r"^source local memory size \(20\) must be <= remote buffer size \(8\)$"):
        buffer.write_from(bytes(20))
    with pytest.raises(ValueError, match="read-only"):
        buffer.read_into(bytes(8))
    with pytest.raises(ValueError, match="overlaps itself"):
        buffer.read_into(np.lib.stride_tricks.as_strided(np.zeros(1), (8,), (0,)))
    for empty in (b"", np.zeros((3, 0)), bytearray()):
        with pytest.raises(ValueError, match=r"^Cannot create RDMABuffer with size 0\.$"):
            RDMABuffer(empty)
    for bad in ([1, 2], "text", 7, None):
        with pytest.raises(ValueError, match="^RDMABuffer only supports .* Got: "):
            RDMABuffer(bad)
    with pytest.raises(ValueError, match="overlaps itself"):
        RDMABuffer(np.lib.stride_tricks.as_strided(np.zeros(1), (8,), (0,)))
    for timeout in (-1, -0.5, 2**64, 1e300, float("nan")):
        which = re.escape(repr(timeout))
        told = rf"^timeout is in seconds, from 0 to 2\*\*64 - 1, or None for no limit\. Got: {which}$"
        with pytest.raises(OverflowError, match=told):
            buffer.read_into(bytearray(8), timeout=timeout)
        with pytest.raises(OverflowError, match=told):
            RDMAAction().submit(timeout=timeout)


def test_nobody_writes_with_a_handle_to_read(owner):
    memory = bytearray(8)
    buffer = RDMABuffer(memory)
    reader = buffer.read_only()
    assert not reader.writable and buffer.writable and "read-only" in repr(reader)
    assert owner.read.call_one(reader).get() == bytes(8)
    with pytest.raises(Exception, match="the remote buffer is read-only"):
        owner.write.call_one(reader, b"x").get()
    with pytest.raises(ValueError, match="read-only"):
        reader.write_from(b"x")
    forged = RDMABuffer._arrived((*reader._handle.fields()[:5], True, 0, 8, 0, [], []), tuple(reader._kind), None)
    with pytest.raises(RDMAError, match="never given out"):
        forged.write_from(b"x").get()
    asked = RDMABuffer(memory, read_only=True)
    assert not asked.writable and owner.read.call_one(asked).get() == bytes(8)
    with pytest.raises(Exception, match="the remote buffer is read-only"):
        owner.write.call_one(asked, b"x").get()
    asked.drop().get()
    assert RDMABuffer(np.lib.stride_tricks.as_strided(np.ones(1), (3,), (0,)), read_only=True).read().get().sum() == 3
    constant = RDMABuffer(b"constant")
    assert not constant.writable and owner.read.call_one(constant).get() == b"constant"
    with pytest.raises(RuntimeError, match="only the process that owns"):
        owner.buffer.call_one(8).get().read_only()


def test_atomic_operations(owner):
    word = np.zeros(2, np.int64)
    buffer = RDMABuffer(word)[8:]
    assert [buffer.fetch_add(5).get(), buffer.fetch_add(-7).get(), buffer.fetch_add(0).get()] == [0, 5, -2]
    assert buffer.compare_and_swap(3, 9).get() == -2 and word[1] == -2
    assert buffer.compare_and_swap(-2, 2**63 - 1).get() == -2 and word[1] == 2**63 - 1
    theirs = owner.buffer.call_one(64).get()
    assert theirs[8:16].fetch_add(1).get() == int.from_bytes(bytes(range(8, 16)), "little")
    with pytest.raises(RDMAError, match="8 bytes at an address"):
        theirs[4:12].fetch_add(1).get()
    for part, told in ((theirs, "Got: 64"), (theirs[:4], "Got: 4")):
        for use in (functools.partial(part.fetch_add, 1), functools.partial(part.compare_and_swap, 1, 2)):
            with pytest.raises(ValueError, match=told):
                use()
        with pytest.raises(ValueError, match=told):
            RDMAAction().fetch_add(part, None, 1)
    with pytest.raises(ValueError, match="read-only"):
        buffer.read_only().fetch_add(1)
    with pytest.raises(OverflowError, match="64-bit"):
        buffer.fetch_add(2**63)
    with pytest.raises(TypeError):
        buffer.fetch_add("1")


def test_swapped_arguments_and_odd_ones_are_told():
    buffer, local = RDMABuffer(np.zeros(2, np.int64)), np.zeros(2, np.int64)
    for use, told in (
        (lambda: RDMAAction().read_remote(buffer, local), r"^read_remote\(dst_local, src_buffer\): .* is a ndarray$"),
        (lambda: RDMAAction().write_remote(local, buffer), r"^write_remote\(dst_buffer, src_local\): .* is a ndarray$"),
        (lambda: buffer.read_into(buffer), "Got: an RDMABuffer; are the arguments swapped"),
        (lambda: buffer.read_into(None), "Got: NoneType"),
    ):
        with pytest.raises(ValueError, match=told):
            use()
    with pytest.raises(TypeError, match="^timeout is in seconds, or None for no limit. Got: '5'$"):
        buffer.read_into(local, timeout="5")
    for limit in (None, float("inf")):
        buffer.read_into(local, timeout=limit).get()


def test_a_read_only_handle_ends_a_buffer_in_its_owner_alone(owner):
    memory = bytearray(9)
    for made in (RDMABuffer(memory, read_only=True), RDMABuffer(memory).read_only()):
        with pytest.raises(Exception, match="RDMAError: .*the buffer is read-only"):
            owner.drop.call_one(made).get()
        assert made.read().get() == memory
        made.drop().get()
        with pytest.raises(BufferDropped):
            made.explain()


def test_a_read_of_up_to_a_mebibyte_is_made_by_the_call(owner):
    size = 1 << 20
    buffer, target = owner.buffer.call_one(size).get(), bytearray(size)
    buffer[:8].read().get()  # they have met
    future = buffer.read_into(target)
    assert target == expected(size).astype(np.uint8).tobytes()
    assert future.get() is None


def test_an_action_reads_little_of_several_owners_of_which_one_has_not_been_met(owner):
    stranger = this_host().spawn_procs().spawn("stranger", Owner)
    known, unknown = owner.buffer.call_one(SIZE).get(), stranger.buffer.call_one(SIZE).get()
    known.read().get()
    targets = [bytearray(100) for _ in range(4)]
    action = RDMAAction()
    for buffer, target in zip((known, known, unknown, known), targets):
        action.read_remote(target, buffer[50:150])
    action.submit().get()
    assert targets == [bytearray(expected(SIZE).astype(np.uint8).tobytes()[50:150])] * 4
    owner.drop.call_one(known).get()
    with pytest.raises(BufferDropped) as caught:
        action.submit().get()
    assert [type(each) for each in caught.value.outcomes] == [BufferDropped, BufferDropped, type(None), BufferDropped]


def test_await(owner):
    buffer = owner.buffer.call_one(SIZE).get()

    async def main():
        targets = [np.zeros(SIZE, np.uint8) for _ in range(8)]
        await asyncio.gather(*(buffer.read_into(target) for target in targets))
        assert all((target == expected(SIZE)).all() for target in targets)
        await buffer.write_from(bytes(10))
        assert (await buffer[:20].read())[:11] == bytes(10) + b"\x0a"
        async with RDMABuffer(bytearray(9)) as mine:
            assert await mine.read() == bytes(9)
        with pytest.raises(BufferDropped):
            await mine.read()

    asyncio.run(main())


# ---- Actions ----


@pytest.mark.feature(104, "again", "reads and writes mixed", "empty: nothing")
def test_actions(owner):
    first, second = (owner.buffer.call_one(1000).get() for _ in range(2))
    target, source = bytearray(1000), bytearray(b"a" * 1000)
    action = RDMAAction().read_remote(target, first).write_remote(second, source)
    assert action.submit().get() is None
    assert bytes(target) == expected(1000).astype(np.uint8).tobytes()
    assert bytes(owner.contents.call_one().get()) == b"a" * 1000
    source[:3] = b"new"
    action.submit(timeout=10).get()
    assert bytes(owner.contents.call_one().get()[:4]) == b"newa"
    assert RDMAAction().submit().get() is None
    old, word = bytearray(8), owner.buffer.call_one(8).get()
    action = RDMAAction().write_remote(word, bytes(8)).fence().fetch_add(word, old, 3).fence()
    action.compare_and_swap(word, None, 3, -1).fence().read_remote(target, word).submit().get()
    assert bytes(old) == bytes(8) and bytes(target[:8]) == b"\xff" * 8
    with pytest.raises(ValueError, match="into 8 bytes"):
        RDMAAction().fetch_add(word, bytearray(7), 1)


@pytest.mark.feature(104, "wrong sizes raise at once", "failures are collected")
def test_actions_that_fail(owner):
    good, gone = (owner.buffer.call_one(1000).get() for _ in range(2))
    gone.drop().get()
    target = bytearray(1000)
    with pytest.raises(ValueError, match="destination local memory size"):
        RDMAAction().read_remote(bytearray(3), good)
    with pytest.raises(ValueError, match="source local memory size"):
        RDMAAction().write_remote(good, bytes(2000))
    action = RDMAAction().read_remote(target, gone).read_remote(target, good).write_remote(gone, b"x")
    with pytest.raises(BufferDropped, match=r"^RdmaAction\.submit failed: ") as caught:
        action.submit().get()
    assert [type(each) for each in caught.value.outcomes] == [BufferDropped, type(None), BufferDropped]
    assert target[1] == 1, "what was well has been done"
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == ["2 of 3 operations have failed"]
    action = RDMAAction().read_remote(target, gone).fence().write_remote(good, b"x")
    with pytest.raises(BufferDropped) as caught:
        action.submit().get()
    assert "not begun" in str(caught.value.outcomes[1])
    assert owner.read.call_one(good[:1]).get() == b"\0"


def test_nothing_is_added_to_what_is_under_way(mortal):
    buffer = mortal.buffer.call_one(SIZE).get()
    action = RDMAAction().write_remote(buffer, bytes(SIZE))
    pid = mortal.pid.call_one().get()
    stop(pid)
    future = action.submit()
    with pytest.raises(RuntimeError, match="cannot add operations"):
        action.write_remote(buffer, b"x")
    os.kill(pid, signal.SIGCONT)
    future.get(timeout=LIMIT)
    action.write_remote(buffer, b"x").submit().get()


# ---- Its life ----


@pytest.mark.feature(105, "memory is held", "drop lets it go")
def test_memory_is_held_until_it_is_dropped(owner):
    memory = bytearray(1000)
    buffer = RDMABuffer(memory)
    with pytest.raises(BufferError):
        memory.append(1)
    assert owner.read.call_one(buffer).get() == bytes(1000)
    fields = buffer._handle.fields()
    del buffer
    gc.collect()
    with pytest.raises(BufferError):
        memory.append(1)  # the other one has a handle
    RDMABuffer._arrived(fields, ("bytes", "", (1000,), 1), None).drop().get()
    memory.append(1)


def test_what_nobody_was_given_ends_with_its_handle(owner):
    memory = bytearray(1000)
    buffer = RDMABuffer(memory)
    part = buffer[:10]
    del buffer
    gc.collect()
    assert bytes(part.read().get()) == bytes(10)
    with pytest.raises(BufferError):
        memory.append(1)
    del part
    gc.collect()
    memory.append(1)


def test_targets_and_sources_are_kept_no_longer_than_they_are_needed(owner):
    buffer = owner.buffer.call_one(2 * SIZE).get()
    target = bytearray(2 * SIZE)
    for operation in (buffer.read_into, buffer.write_from, buffer[:10].read_into):
        operation(target).get()
        target.append(1)
        target.pop()


@pytest.mark.feature(105)
def test_a_dropped_buffer_is_an_error_from_then_on(owner):
    buffer = owner.buffer.call_one(SIZE).get()
    again = owner.buffer.call_one(SIZE).get()
    buffer.read().get()
    owner.drop.call_one(buffer).get()
    following = owner.buffer.call_one(SIZE).get()  # in its place
    for use, what in (
        (buffer.read, f"read of {SIZE} bytes"),
        (lambda: buffer.write_from(b"x"), "write of 1 bytes"),
        (lambda: buffer[:8].fetch_add(1), "atomic addition to 8 bytes"),
    ):
        text = f"RdmaAction.submit failed: the buffer has been dropped: {what} at {buffer.owner}"
        with pytest.raises(BufferDropped, match=f"^{re.escape(text)}$"):
            use().get()
    assert buffer.drop().get() is None and buffer[4:].drop().get() is None
    assert following.read().get()[1] == again.read().get()[1] == 1


def test_a_context_drops_it():
    with RDMABuffer(bytearray(8)) as buffer:
        assert buffer.read().get() == bytes(8)
    with pytest.raises(BufferDropped):
        buffer.read().get()
    with pytest.raises(KeyError), RDMABuffer(bytearray(8)) as buffer:
        buffer.drop().get()
        raise KeyError


def test_forged_handles_are_refused(owner):
    buffer = owner.buffer.call_one(1000).get()
    buffer.read().get()
    fields = list(buffer._handle.fields())
    for change in ({1: 77}, {2: 99}, {3: fields[3] ^ 1}, {4: fields[4] ^ 1}, {1: 2**32 - 1}):
        forged = list(fields)
        for at, value in change.items():
            forged[at] = value
        made = RDMABuffer._arrived(tuple(forged), ("bytes", "", (1000,), 1), None)
        for use in (made.read, functools.partial(made.write_from, b"x"), made.drop):
            with pytest.raises(RDMAError, match="never given out such a handle"):
                use().get()
    fields[6:8] = 900, 101
    for use in (RDMABuffer._arrived(tuple(fields), ("bytes", "", (1000,), 1), None).read,):
        with pytest.raises(RDMAError, match="past the end"):
            use().get()


def test_a_slice_that_is_altered_to_mean_more_is_refused(owner):
    whole = owner.buffer.call_one(1000).get()
    part = whole[100:200][10:20]
    assert part.read().get() == whole.read().get()[110:120]
    offset, size, within = 6, 7, 10
    for change in (
        {offset: 109}, {size: 11}, {offset: 0, size: 1000}, {within: []}, {within: [(0, 1000)]}, {within: [(100, 100)]},
        {offset: 100, size: 100, within: [(100, 100)]}, {offset: 2**62, size: 10},
    ):  # fmt: skip
        forged = list(part._handle.fields())
        for at, value in change.items():
            forged[at] = value
        made = RDMABuffer._arrived(tuple(forged), ("bytes", "", (10,), 1), None)
        for use in (made.read, functools.partial(made.write_from, b"x"), made.drop):
            with pytest.raises(RDMAError, match="never given out such a handle"):
                use().get()
    assert part.read().get() == whole.read().get()[110:120]


def test_memory_that_was_unmapped_is_an_error_and_kills_nobody(owner):
    import ctypes
    import mmap

    for use in ("read", "write"):
        memory = mmap.mmap(-1, 4 << 20)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        buffer = RDMABuffer(np.frombuffer(memory, np.uint8))
        assert ctypes.CDLL(None).munmap(ctypes.c_void_p(address + (1 << 20)), ctypes.c_size_t(1 << 20)) == 0
        with pytest.raises(Exception, match="not there any more"):
            if use == "read":
                owner.read.call_one(buffer).get()
            else:
                owner.write.call_one(buffer, np.zeros(4 << 20, np.uint8)).get()
        with pytest.raises(RDMAError, match="not there any more"):
            buffer.read().get()
        # The hole belongs to nobody: it is filled before the mmap object unmaps all of it.
        ctypes.CDLL(None).mmap(
            ctypes.c_void_p(address + (1 << 20)), ctypes.c_size_t(1 << 20), 3, 0x32, -1, ctypes.c_long(0)
        )
        buffer.drop().get()
    assert owner.read.call_one(RDMABuffer(b"well")).get() == b"well"


# ---- The owner ----


def test_an_owner_that_is_busy_or_stopped_is_read_all_the_same(mortal):
    buffer = mortal.buffer.call_one(SIZE).get()
    buffer.read().get()
    busy = mortal.spin.call_one(1.5)
    begun = time.monotonic()
    assert (buffer.read().get() == expected(SIZE)).all()
    admitted(buffer, b"xyz")
    buffer[:8].fetch_add(0).get()
    assert time.monotonic() - begun < 1.0, "they did not wait for the actor"
    busy.get()
    pid = mortal.pid.call_one().get()
    stop(pid)
    try:
        assert buffer.read().get(timeout=LIMIT)[0] == ord("x")
        buffer[8:11].write_from(b"abc").get(timeout=LIMIT)
        large = bytes(SIZE - 11)
        buffer[11:].write_from(large).get(timeout=LIMIT)
        told = "atomic addition to 8 bytes"
        future = buffer[:8].fetch_add(1, timeout=0.2)
        assert told in repr(future)
        with pytest.raises(RDMATimeout, match=rf"the time for it is over: {told} at rdma_manager@\w+, 0.2 s$"):
            future.get(timeout=LIMIT)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert bytes(buffer.read().get()) == b"xyz\x03\x04\x05\x06\x07abc" + large, "what is late is not done"


def test_who_has_not_been_admitted_asks_an_owner_that_is_stopped(mortal):
    buffer = mortal.buffer.call_one(SIZE).get()
    pid = mortal.pid.call_one().get()
    stop(pid)
    try:
        future = buffer.write_from(b"abc", timeout=0.2)
        assert "write of 3 bytes" in repr(future)
        with pytest.raises(RDMATimeout, match=r"is over: write of 3 bytes at rdma_manager@\w+, 0.2 s$"):
            future.get(timeout=LIMIT)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert bytes(buffer[:3].read().get()) == b"\0\1\2", "what is late is not done"
    admitted(buffer, b"abc")


def until_written_again(array, times):
    """Returns as the last of so many writes begins: its first byte has come."""
    limit = time.monotonic() + LIMIT
    for at in [-1] * times + [0]:
        array[at] = 0
        while array[at] == 0:
            assert time.monotonic() < limit


def test_a_drop_waits_in_vain_for_a_writer_that_is_stopped(mortal):
    data = b"w" * (16 << 20)
    array = np.zeros(len(data), np.uint8)
    pid = mortal.pid.call_one().get()
    for _ in range(50):  # it is stopped where the kernel has just written a piece, but for preemption
        array[:] = 0
        buffer = RDMABuffer(array)
        writing = mortal.write_on.call_one(buffer, data)
        until_written_again(array, 5)
        stop(pid)
        dropped = buffer.drop(timeout=0.2)
        late = ""
        try:
            dropped.get(timeout=LIMIT)
        except RDMATimeout as error:
            late = str(error)
            # Nor is a second one done before the writer is.
            with pytest.raises(RDMATimeout):
                buffer.drop(timeout=0.2).get(timeout=LIMIT)
            again = buffer.drop()
        os.kill(pid, signal.SIGCONT)
        writing.get(timeout=LIMIT)
        if late:
            again.get(timeout=LIMIT)
            break
    assert "the time for it is over: drop of 16777216 bytes" in late


# 16 MiB take milliseconds: mostly it is hit while the kernel writes.
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_nobody_writes_to_what_has_been_dropped_though_the_writer_is_hit_in_the_middle(mortal, number):
    data = b"w" * (16 << 20)
    array = np.zeros(len(data), np.uint8)
    buffer = RDMABuffer(array)
    pid = mortal.pid.call_one().get()
    writing = mortal.write_on.call_one(buffer, data)
    until_written_again(array, 20)  # some of them by the writer itself
    if number == signal.SIGSTOP:
        stop(pid)
    else:
        os.kill(pid, number)
    dropped = buffer.drop(timeout=LIMIT)
    if number == signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
    dropped.get()
    array[:] = ord("o")
    if number == signal.SIGSTOP:
        writing.get(timeout=LIMIT)
    else:
        with pytest.raises(SupervisionError):
            writing.get(timeout=LIMIT)
    assert (array == ord("o")).all()


@pytest.mark.parametrize("where", ["heap", "shm"])
def test_a_dead_owner_is_told_with_its_cause(mortal, where):
    buffer = mortal.buffer.call_one(64 << 20, where).get()
    target = np.zeros(64 << 20, np.uint8)
    buffer.read_into(target).get()
    pid = mortal.pid.call_one().get()
    under_way = [buffer.read_into(target), buffer.write_from(target)]
    os.kill(pid, signal.SIGKILL)
    for future in under_way:
        try:
            future.get(timeout=LIMIT)
        except SupervisionError as error:
            assert error.signal == signal.SIGKILL
    with pytest.raises(SupervisionError):
        mortal.pid.call_one().get(timeout=LIMIT)
    for use in (lambda: buffer.read_into(target), lambda: buffer.write_from(b"x"), buffer.drop, buffer[:10].read):
        with pytest.raises(
            SupervisionError, match=r"^the process that owns the buffer failed: Killed\(sig=9\)"
        ) as caught:
            use().get(timeout=LIMIT)
        assert caught.value.pid == pid


def test_a_child_of_fork_has_none(owner):
    assert owner.fork.call_one(owner.buffer.call_one(1000).get()).get() == "RuntimeError"
    buffer = RDMABuffer(bytearray(10))
    assert owner.read.call_one(buffer).get() == bytes(10)


@pytest.mark.feature(105, "many large transfers in order")
def test_many_large_transfers_at_a_time(owner):
    buffers = [owner.buffer.call_one(16 << 20, "shm" if i % 2 else "heap").get() for i in range(8)]
    targets = [np.zeros(16 << 20, np.uint8) for _ in buffers]
    futures = [buffer.read_into(target) for buffer, target in zip(buffers, targets)]
    for future, target in zip(futures, targets):
        future.get(timeout=LIMIT)
        assert (target[:: 1 << 12] == expected(16 << 20)[:: 1 << 12]).all()
    for buffer in buffers:
        buffer.drop().get()


def test_threads_that_use_one_buffer(owner):
    buffer = owner.buffer.call_one(100_000).get()
    failed = []

    def use():
        try:
            for _ in range(50):
                assert (buffer.read().get() == expected(100_000)).all()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not failed


def test_a_deadline_of_its_own_for_each_though_nobody_has_met_the_owner(mortal):
    buffer = RDMABuffer._arrived(*mortal.without_contact.call_one(SIZE).get())
    pid = mortal.pid.call_one().get()
    stop(pid)
    try:
        long = buffer.read_into(bytearray(SIZE), timeout=LIMIT)
        begun = time.monotonic()
        with pytest.raises(RDMATimeout):
            buffer.read_into(bytearray(SIZE), timeout=0.2).get(timeout=LIMIT)
        with pytest.raises(RDMATimeout, match="does not answer"):
            buffer.explain(timeout=0.1)
        assert time.monotonic() - begun < LIMIT / 3
    finally:
        os.kill(pid, signal.SIGCONT)
    long.get(timeout=LIMIT)


@pytest.mark.parametrize("kind", ["read", "write", "add"])
def test_thousands_of_operations_on_a_dead_owner(mortal, kind):
    buffer = mortal.buffer.call_one(8).get()
    os.kill(mortal.pid.call_one().get(), signal.SIGKILL)
    with pytest.raises(SupervisionError):
        mortal.pid.call_one().get(timeout=LIMIT)
    action = RDMAAction()
    for _ in range(20_000):
        if kind == "read":
            action.read_remote(bytearray(8), buffer)
        elif kind == "write":
            action.write_remote(buffer, bytes(8))
        else:
            action.fetch_add(buffer, None, 1)
    with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
        action.submit().get(timeout=LIMIT)


def test_who_has_taken_the_place_of_a_dead_owner_is_not_asked(owner):
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    actor = procs.spawn("replaced", Owner)
    buffer = actor.buffer.call_one(SIZE).get()
    buffer.read().get()
    os.kill(actor.pid.call_one().get(), signal.SIGKILL)
    with pytest.raises(SupervisionError):
        actor.pid.call_one().get(timeout=LIMIT)
    procs.respawn([0]).get(timeout=LIMIT)
    assert actor.buffer.call_one(8).get().size() == 8
    for use in (buffer.read, lambda: buffer.write_from(b"x"), lambda: buffer[:8].fetch_add(1), buffer.drop):
        with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
            use().get(timeout=LIMIT)
    procs.stop().get(timeout=LIMIT)


def test_memory_that_became_read_only_is_an_error(owner):
    array = monarch.empty(1 << 17, np.uint8)
    buffer = RDMABuffer(array)
    monarch.freeze(array)
    for use in (lambda: buffer[:8].fetch_add(1), lambda: buffer.write_from(b"x")):
        with pytest.raises(RDMAError, match="not there any more"):
            use().get()
    with pytest.raises(Exception, match="not there any more"):
        owner.write.call_one(buffer, np.zeros(1 << 17, np.uint8)).get()
    assert buffer[:8].read().get() == bytes(8)


def test_a_buffer_is_kept_by_what_is_under_way(owner):
    target = bytearray(4 << 20)
    future = RDMAAction().read_remote(target, RDMABuffer(bytes([7]) * (4 << 20))).submit()
    gc.collect()
    future.get()
    assert target[-1] == 7


def test_a_worker_that_waits_gives_back_what_is_dropped(owner):
    before = owner.count.call_one().get()
    buffer = owner.held.call_one(SIZE).get()
    assert owner.count.call_one().get() == before + 1
    buffer.drop().get()
    limit = time.monotonic() + LIMIT
    while owner.is_held.call_one().get():
        assert time.monotonic() < limit


def test_who_has_a_handle_need_not_ask_its_owner_who_that_is():
    run = Run("""
import pickle
from monarch.rdma import RDMABuffer
class Owner(Actor):
    @endpoint
    def buffer(self):
        self.memory = bytearray(b"abc" * 1000)
        return RDMABuffer(self.memory)
    @endpoint
    def pid(self): return os.getpid()
class User(Actor):
    @endpoint
    def read(self, buffers): return [bytes(each[:6].read(timeout=5).get()) for each in buffers]
procs = this_host().spawn_procs({"gpus": 2})
owner, user = procs.slice(gpus=0).spawn("owner", Owner), procs.slice(gpus=1).spawn("user", User)
buffer = owner.buffer.call_one().get()
owner_pid = owner.pid.call_one().get()
os.kill(owner_pid, signal.SIGSTOP)
try: print(user.read.call_one([buffer, buffer]).get(timeout=10))
finally: os.kill(owner_pid, signal.SIGCONT)
print(len(pickle.dumps([buffer] * 100)) < 2 * len(pickle.dumps(buffer)))
""").ok()  # fmt: skip
    assert run.out.splitlines() == ["[b'abcabc', b'abcabc']", "True"]


# ---- In other programs ----


def test_a_handle_goes_to_another_program(owner, tmp_path):
    import pickle

    memory = bytearray(b"for a guest")
    buffer = RDMABuffer(memory)
    path = tmp_path / "handle"
    path.write_bytes(pickle.dumps(buffer))
    told = subprocess.run(
        [sys.executable, "-c", f"""
import pickle
buffer = pickle.load(open({str(path)!r}, "rb"))
print(bytes(buffer.read().get()), buffer.explain())
buffer.write_from(b"FOR").get()
"""], capture_output=True, text=True, timeout=LIMIT)  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("b'for a guest' cma")
    assert memory == b"FOR a guest"
    buffer.drop().get()


def test_a_handle_of_a_job_that_has_ended(tmp_path):
    path = tmp_path / "handle"
    Run(f"""
import pickle
from monarch.rdma import RDMABuffer
buffer = RDMABuffer(bytearray(10))
open({str(path)!r}, "wb").write(pickle.dumps(buffer))
""").ok()  # fmt: skip
    import pickle

    buffer = pickle.loads(path.read_bytes())
    with pytest.raises((SupervisionError, RuntimeError), match="ended|no such job|job"):
        buffer.read().get(timeout=LIMIT)


# ---- Names of earlier times ----


def test_backends():
    assert not is_ibverbs_available() and get_rdma_backend() == "tcp"
    with pytest.warns(DeprecationWarning, match="is_rdma_available"):
        assert is_rdma_available()
    assert monarch.rdma.empty is monarch.empty
    assert RDMABuffer(b"x").backend == "tcp"


@pytest.mark.feature(120, "the old module of RDMA")
def test_old_spellings(owner):
    sys.modules.pop("monarch.tensor_engine", None)
    with pytest.warns(DeprecationWarning, match="monarch.tensor_engine"):
        import monarch.tensor_engine as old
    assert old.RDMABuffer is RDMABuffer and old.is_available()
    assert issubclass(old.RDMAReadTransferWarning, Warning) and issubclass(old.RDMAWriteTransferWarning, Warning)
    with pytest.raises(NotImplementedError):
        old.Tensor
    buffer = owner.buffer.call_one(100).get()
    target = bytearray(100)
    with pytest.warns(DeprecationWarning, match="offset"):
        buffer.read_into(target, 0, 3).get()
    assert target[99] == 99
    with pytest.warns(DeprecationWarning, match="offset"):
        buffer.read_into(target, offset=90, timeout=3).get()
    assert target[0] == 90
    with pytest.warns(DeprecationWarning, match="write_from"):
        buffer.write(b"ab").get()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        RDMAAction().read_into(buffer, target).write_from(buffer, b"cd").submit().get()
    assert len(caught) == 2 and all(each.category is DeprecationWarning for each in caught)
    assert bytes(owner.contents.call_one().get()[:3]) in (b"cd\x02",)


def test_a_simulated_process_says_that_it_has_none():
    run = Run("""
import monarch.testing
from monarch.rdma import RDMABuffer
with monarch.testing.simulate(seed=1):
    try:
        RDMABuffer(b"x")
    except NotImplementedError as error:
        print("RDMABuffer" in str(error))
""").ok()  # fmt: skip
    assert run.out == "True\n"


def test_its_text_names_it(owner):
    assert re.match(r"<RDMABuffer of 8 bytes at rdma_manager@[0-9a-f]{16}>$", repr(owner.buffer.call_one(8).get()))
