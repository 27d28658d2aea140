"""`monarch.weights`: versions of weights, from those who have them in some parts to those who want them in others."""

import itertools
import os
import pickle
import random
import signal
import threading
import time

import numpy as np
import pytest
from script_run import ended

from monarch._bulk.layout import cover, pieces
from monarch.actor import Actor, ActorError, SupervisionError, current_rank, endpoint, this_host
from monarch.rdma import BufferDropped, RDMATimeout
from monarch.weights import Box, Source, Target, VersionGone, WeightsError, shard, whole

LIMIT = 30
SHAPES = {"embed": (96, 40), "w": (64, 48, 3), "bias": (48,), "scale": ()}


def full(version):
    """All of the weights of a version."""
    return {
        name: np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape) + np.float32(version) * 1000
        for name, shape in SHAPES.items()
    }


def parts_of(layout, rank, ranks):
    """``where`` of a rank, by the dimension that each array is cut along; None: it is whole."""
    return {
        name: (shape, whole(shape) if layout.get(name) is None else shard(shape, layout[name], rank, ranks))
        for name, shape in SHAPES.items()
    }


def cut(array, box):
    return np.array(array[tuple(slice(a, a + n) for a, n in zip(box.starts, box.sizes))], order="C")


def kill(one):
    """Returns when nothing is left of its process: its death is known while the kernel still has its memory."""
    pid = one.pid.call_one().get(timeout=LIMIT)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError):
        one.pid.call_one().get(timeout=LIMIT)
    assert ended(pid, time.monotonic() + LIMIT)


class Trainer(Actor):
    def __init__(self, layout, ranks):
        self.where = parts_of(layout, current_rank().rank, ranks)
        self.weights = {name: np.zeros(box.sizes, np.float32) for name, (_, box) in self.where.items()}
        self.source = Source(self.weights, self.where)

    @endpoint
    def handle(self):
        return self.source.handle()

    @endpoint
    def step(self, version):
        for name, array in full(version).items():
            self.weights[name][...] = cut(array, self.where[name][1])
        return self.source.publish(version).version

    @endpoint
    def push(self, targets, sources):
        return self.source.push(targets, sources).nbytes

    @endpoint
    def spin(self, versions):
        for version in versions:
            for array in self.weights.values():
                array[...] = version
            self.source.publish(version)

    @endpoint
    def pid(self):
        return os.getpid()


class Generator(Actor):
    def __init__(self, layout, ranks):
        self.where = parts_of(layout, current_rank().rank, ranks)
        self.weights = {name: np.full(box.sizes, -1, np.float32) for name, (_, box) in self.where.items()}
        self.target = Target(self.weights, self.where)

    @endpoint
    def pull(self, sources, version=None, timeout=20.0):
        moved = self.target.pull(sources, version, prefer=current_rank().rank, timeout=timeout)
        self.check(moved.version)
        return moved.version

    @endpoint
    def pull_many(self, sources, last):
        """-> the versions that were seen, each of which was one value throughout."""
        seen = []
        while not seen or seen[-1] < last:
            version = self.target.pull(sources).version
            values = {float(value) for array in self.weights.values() for value in array.ravel()}
            assert values == {float(version)}, (version, values)
            seen.append(version)
        return seen

    @endpoint
    def accept(self, version):
        return self.target.accept(version)

    @endpoint
    def commit(self):
        version = self.target.commit()
        self.check(version)
        return version

    @endpoint
    def first(self):
        return float(next(iter(self.weights.values())).ravel()[0])

    @endpoint
    def pid(self):
        return os.getpid()

    def check(self, version):
        for name, array in full(version).items():
            assert np.array_equal(self.weights[name], cut(array, self.where[name][1])), name


LAYOUTS = {
    "whole": {},
    "rows": {"embed": 0, "w": 0, "bias": 0},
    "columns": {"embed": 1, "w": 1, "bias": 0},
    "mixed": {"embed": 1, "w": 2},
}


@pytest.fixture(scope="module")
def hosts():
    procs = this_host().spawn_procs(per_host={"gpus": 3})
    yield procs
    procs.stop().get(timeout=LIMIT)


@pytest.fixture
def mortal():
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    yield procs
    procs.stop().get(timeout=LIMIT)


def handles(trainers):
    return list(trainers.handle.call().get(timeout=LIMIT).values())


@pytest.mark.parametrize(("there", "here"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_any_layout_from_any_other(hosts, there, here):
    trainers = hosts.slice(gpus=slice(0, 2)).spawn("trainers", Trainer, LAYOUTS[there], 2)
    generators = hosts.spawn("generators", Generator, LAYOUTS[here], 3)
    sources = handles(trainers)
    for version in (0, 7):
        trainers.step.call(version).get(timeout=LIMIT)
        assert set(generators.pull.call(sources).get(timeout=LIMIT).values()) == {version}
    trainers.step.call(8).get(timeout=LIMIT)
    targets = list(generators.accept.call(8).get(timeout=LIMIT).values())
    moved = trainers.push.call(targets, sources).get(timeout=LIMIT).values()
    assert sum(moved) == sum(4 * box.items for rank in range(3) for _, box in parts_of(LAYOUTS[here], rank, 3).values())
    assert set(generators.commit.call().get(timeout=LIMIT).values()) == {8}
    for mesh in (trainers, generators):
        mesh.stop().get(timeout=LIMIT)


def test_nobody_sees_half_of_a_version(hosts):
    trainers = hosts.slice(gpus=slice(0, 2)).spawn("trainers", Trainer, LAYOUTS["rows"], 2)
    generators = hosts.slice(gpus=slice(2, 3)).spawn("generators", Generator, LAYOUTS["columns"], 1)
    sources = handles(trainers)
    spinning = trainers.spin.call(range(1, 400))
    seen = generators.pull_many.call_one(sources, 399).get(timeout=LIMIT)
    spinning.get(timeout=LIMIT)
    assert seen == sorted(seen) and seen[-1] == 399


def test_a_version_is_waited_for_or_gone(hosts):
    trainers = hosts.slice(gpus=slice(0, 2)).spawn("trainers", Trainer, {}, 2)
    generators = hosts.slice(gpus=slice(2, 3)).spawn("generators", Generator, {}, 1)
    sources = handles(trainers)
    with pytest.raises(ActorError, match="no version published by all") as caught:
        generators.pull.call_one(sources, timeout=0.1).get(timeout=LIMIT)
    assert isinstance(caught.value.exception, RDMATimeout)
    early = generators.pull.call_one(sources, 3)
    for version in (1, 2, 3):
        trainers.step.call(version).get(timeout=LIMIT)
    assert early.get(timeout=LIMIT) == 3
    assert generators.pull.call_one(sources, 2).get(timeout=LIMIT) == 2
    with pytest.raises(ActorError, match="version 1 has been replaced"):
        generators.pull.call_one(sources, 1).get(timeout=LIMIT)
    with pytest.raises(ActorError, match="larger than those before"):
        trainers.step.call(3).get(timeout=LIMIT)


def test_a_trainer_that_dies_is_replaced(hosts, mortal):
    trainers = mortal.spawn("trainers", Trainer, LAYOUTS["rows"], 2)
    generators = hosts.slice(gpus=slice(2, 3)).spawn("generators", Generator, {}, 1)
    sources = handles(trainers)
    trainers.step.call(1).get(timeout=LIMIT)
    assert generators.pull.call_one(sources).get(timeout=LIMIT) == 1
    kill(trainers.slice(gpus=1))
    with pytest.raises(ActorError, match=r"Killed\(sig=9\)") as caught:
        generators.pull.call_one(sources).get(timeout=LIMIT)
    assert isinstance(caught.value.exception, SupervisionError)
    assert generators.first.call_one().get(timeout=LIMIT) == 1000, "they are as they were"
    mortal.respawn([1]).get(timeout=LIMIT)
    sources = handles(trainers)
    trainers.step.call(2).get(timeout=LIMIT)
    assert generators.pull.call_one(sources).get(timeout=LIMIT) == 2


def test_one_of_several_that_have_the_same_is_enough(hosts, mortal):
    trainers = mortal.spawn("trainers", Trainer, {}, 2)
    generators = hosts.slice(gpus=slice(1, 3)).spawn("generators", Generator, {}, 2)
    sources = handles(trainers)
    trainers.step.call(1).get(timeout=LIMIT)
    kill(trainers.slice(gpus=1))
    assert set(generators.pull.call(sources[:1]).get(timeout=LIMIT).values()) == {1}


def test_a_generator_that_dies_does_not_keep_the_others_from_it(hosts, mortal):
    trainers = hosts.slice(gpus=slice(0, 2)).spawn("trainers", Trainer, LAYOUTS["columns"], 2)
    generators = mortal.spawn("generators", Generator, LAYOUTS["rows"], 2)
    sources = handles(trainers)
    trainers.step.call(1).get(timeout=LIMIT)
    targets = list(generators.accept.call(1).get(timeout=LIMIT).values())
    kill(generators.slice(gpus=0))
    for told in trainers.push.options(partial=True).call(targets, sources).get(timeout=LIMIT).values():
        assert isinstance(told, ActorError) and "Killed(sig=9)" in str(told)
    assert generators.slice(gpus=1).commit.call_one().get(timeout=LIMIT) == 1
    mortal.respawn([0]).get(timeout=LIMIT)
    targets = list(generators.accept.call(1).get(timeout=LIMIT).values())
    trainers.push.call(targets, sources).get(timeout=LIMIT)
    assert set(generators.commit.call().get(timeout=LIMIT).values()) == {1}


def test_what_was_pushed_in_part_is_not_taken(hosts):
    trainers = hosts.slice(gpus=slice(0, 2)).spawn("trainers", Trainer, LAYOUTS["rows"], 2)
    generators = hosts.slice(gpus=slice(2, 3)).spawn("generators", Generator, {}, 1)
    sources = handles(trainers)
    trainers.step.call(1).get(timeout=LIMIT)
    with pytest.raises(ActorError, match=r"accept\(\) comes first"):
        generators.commit.call_one().get(timeout=LIMIT)
    old = [generators.accept.call_one(1).get(timeout=LIMIT)]
    trainers.slice(gpus=0).push.call_one(old, sources).get(timeout=LIMIT)
    with pytest.raises(ActorError, match="version 1 is not complete"):
        generators.commit.call_one().get(timeout=LIMIT)
    assert generators.first.call_one().get(timeout=LIMIT) == -1
    new = [generators.accept.call_one(1).get(timeout=LIMIT)]
    with pytest.raises(ActorError, match="does not accept version 1 any more"):
        trainers.slice(gpus=1).push.call_one(old, sources).get(timeout=LIMIT)
    trainers.push.call(new, sources).get(timeout=LIMIT)
    assert generators.commit.call_one().get(timeout=LIMIT) == 1
    with pytest.raises(ActorError, match="version 9 is not here"):
        trainers.push.call([generators.accept.call_one(9).get()], sources).get(timeout=LIMIT)


def test_a_push_that_is_repeated_counts_once():
    halves = [shard((4, 4), 0, rank, 2) for rank in range(2)]
    first, second = (Source({"w": np.ones(box.sizes, np.float32)}, {"w": ((4, 4), box)}) for box in halves)
    sources = [first.handle(), second.handle()]
    for source in (first, second):
        source.publish(1)
    target = Target({"w": np.zeros((4, 4), np.float32)})
    accepted = target.accept(1)
    for _ in range(2):
        first.push([accepted], sources)
    with pytest.raises(WeightsError, match="32 of 64 bytes"):
        target.commit()
    accepted = target.accept(1)
    for source in (first, second, first):
        source.push([accepted], sources)
    assert target.commit() == 1 and target._weights["w"].all()


def test_a_version_that_is_replaced_while_it_is_pushed_is_not_taken():
    weights, into = {"w": np.zeros(1_000_000)}, {"w": np.zeros(1_000_000)}
    source, target = Source(weights), Target(into)
    done = threading.Event()

    def publish():
        for version in itertools.count(1):
            weights["w"][:] = version
            source.publish(version)
            if done.is_set():
                return

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for _ in range(20):
            try:
                held = source.versions  # one after the other: between two looks both may be being written
                version = held[-1] if held else 1
                source.push([target.accept(version)], [source.handle()])
                assert target.commit() == version
            except VersionGone:
                continue
            assert (into["w"] == version).all()
    finally:
        done.set()
        thread.join(LIMIT)


def test_who_wants_nothing_keeps_step():
    with Source({"w": np.zeros((2, 4), np.float32)}) as source:
        box = shard((2, 4), 0, 3, 4)
        target = Target({"w": np.zeros(box.sizes, np.float32)}, {"w": ((2, 4), box)})
        with pytest.raises(RDMATimeout):
            target.pull([source.handle()], 7, timeout=0.05)
        source.publish(5)
        assert target.pull([source.handle()]).version == target.version == 5


def test_progress_and_figures():
    weights = {name: np.ones((1 << 20,), np.float32) for name in "abcdefghijklmnopqrst"}
    with Source(weights) as source:
        source.publish(5)
        target, told = Target({name: np.zeros_like(array) for name, array in weights.items()}), []
        moved = target.pull([source.handle()], progress=lambda done, of: told.append((done, of)))
        assert moved.version == target.version == 5 and moved.nbytes == target.nbytes == 80 << 20
        assert told == [(64 << 20, 80 << 20), (80 << 20, 80 << 20)]
        assert moved.gigabytes_per_second > 0 and "GB/s" in str(moved)
        assert source.versions == [5]


def test_bad_input():
    array = np.zeros((4, 6), np.float32)
    with pytest.raises(ValueError, match="not the block"):
        Source({"w": array}, {"w": ((8, 6), Box((0, 0), (5, 6)))})
    with pytest.raises(ValueError, match="does not lie within its shape"):
        Source({"w": array}, {"w": ((8, 6), Box((5, 0), (4, 6)))})
    with pytest.raises(ValueError, match="'w' is a list, and no array"):
        Source({"w": [1.0]})
    constant = np.zeros(4)
    constant.flags.writeable = False
    for bad in (constant, np.broadcast_to(np.zeros(1), (4,))):
        with pytest.raises(ValueError, match="'w' cannot be written to"):
            Target({"w": bad})
    with pytest.raises(ValueError, match="is a bytes"):
        Source({"w": b"123"})
    with pytest.raises(ValueError, match="there is no rank 4 of 4"):
        shard((8,), 0, 4, 4)
    with pytest.raises(ValueError, match="has no dimension 1"):
        shard((8,), 1, 0, 4)
    for of_no_ints in ("84", 0, 0, 2), ((8, 4), 0, 0.5, 2):
        with pytest.raises(TypeError, match="interpreted as an integer"):
            shard(*of_no_ints)
    for where, error, told in (
        ([array], TypeError, "by name. Got: list"),
        ({"w": ((8, 6), Box("ab", (4, 6)))}, ValueError, "of ints for each name"),
        ({"w": ((8, 6), Box((0.5, 0), (4, 6)))}, ValueError, "of ints for each name"),
    ):
        with pytest.raises(error, match=told):
            Source({"w": array}, where)
    with Source({"w": array}) as source:
        source.publish(0)
        handle = source.handle()
        for wanted, told in (
            ({"w": np.zeros((4, 6))}, "is float32 of shape"),
            ({"w": np.zeros((4, 5), np.float32)}, "of shape"),
            ({"v": array}, "no source has 'v', but 'w'"),
        ):
            with pytest.raises(WeightsError, match=told):
                Target(wanted).pull([source.handle()])
        with pytest.raises(WeightsError, match="not among the sources"):
            source.push([], [])
        with pytest.raises(ValueError, match="sources is empty"):
            Target({"w": array}).pull([])
        with pytest.raises(TypeError, match=r"send its handle\(\)"):
            pickle.dumps(source)
        with pytest.raises(TypeError, match=r"send what its accept\(\) returns"):
            pickle.dumps(Target({"w": array}))
        with pytest.raises(ValueError, match="larger than those before"):
            source.publish(-1)
    with pytest.raises(WeightsError, match="a source has been closed") as caught:
        Target({"w": array}).pull([handle])
    assert isinstance(caught.value.__cause__, BufferDropped)
    with pytest.raises(VersionGone.__mro__[2]):
        raise VersionGone


def test_an_array_in_the_place_of_another_is_what_is_meant():
    weights = {"w": np.zeros(4, np.float32)}
    mine = {"w": np.zeros(4, np.float32)}
    target = Target(mine)
    with Source(weights) as source:
        weights["w"] = weights["w"] + 1  # as who learns without writing in place
        source.publish(0)
        mine["w"] = np.full(4, 9, np.float32)
        target.pull([source.handle()])
        assert (mine["w"] == 1).all()
        for bad, told in (
            (
                {"w": np.zeros(5, np.float32)},
                r"was float32 of shape \(4,\) at first, and is float32 of shape \(5,\) now",
            ),
            ({"v": np.zeros(4, np.float32)}, "other names than at first: \\['v', 'w'\\]"),
        ):
            weights.clear()
            weights.update(bad)
            with pytest.raises(ValueError, match=told):
                source.publish(1)
        mine["w"] = np.broadcast_to(np.zeros(1, np.float32), (4,))
        with pytest.raises(ValueError, match="cannot be written to"):
            target.pull([source.handle()])


def test_mistakes_are_told():
    array = np.zeros(4)
    source, target = Source({"w": array}), Target({"w": np.ones(4)})
    for use, kind, told in (
        (lambda: Source([array]), TypeError, "weights are arrays by name.* Got: list"),
        (lambda: Source({"w": np.zeros(2, object)}), ValueError, "'w' is a ndarray, and no array that can be sent"),
        (
            lambda: Source({"w": array}, {"W": ((4,), whole((4,)))}),
            ValueError,
            "where names 'W', which is none of .* 'w'",
        ),
        (lambda: Source({"w": array}, {"w": whole((4,))}), ValueError, r"where has \(shape, box\)"),
        (lambda: target.pull(source.handle()), TypeError, "has returned was expected. Got: SourceHandle"),
        (lambda: target.pull([source]), TypeError, r"what Source.handle\(\) has returned .* one with a Source"),
        (lambda: target.pull([source.handle()], version="1"), TypeError, "a version is an int. Got: '1'"),
        (lambda: source.publish(None), TypeError, "a version is an int"),
        (lambda: target.accept("x"), TypeError, "a version is an int"),
        (lambda: source.push(target.accept(0), [source.handle()]), TypeError, "Got: PushHandle"),
        (
            lambda: target.pull([source.handle()], timeout=0.01),
            RDMATimeout,
            r"by all 1 sources in time: they have \[\]",
        ),
    ):
        with pytest.raises(kind, match=told):
            use()
    source.publish(0)
    assert target.pull([source.handle()], timeout=None).version == 0
    for _ in range(2):
        source.close()
    for use in (source.handle, lambda: source.publish(1), lambda: source.versions, lambda: source.push([], [])):
        with pytest.raises(WeightsError, match="^this Source is closed$"):
            use()


class Holder(Actor):
    def __init__(self):
        self.source = Source({"w": np.full(4, 7.0)})
        self.source.publish(0)

    @endpoint
    def handle(self):
        return self.source.handle()


def test_a_value_mesh_of_handles_and_an_event_loop():
    import asyncio

    handles = this_host().spawn_procs({"gpus": 2}).spawn("holders", Holder).handle.call().get()
    mine = {"w": np.zeros(4)}
    target = Target(mine)

    async def main():
        with pytest.warns(UserWarning, match=r"Target.pull\(\) holds up this event loop") as caught:
            target.pull(handles)
        assert [each.filename for each in caught] == [__file__]
        await asyncio.to_thread(target.pull, handles)

    asyncio.run(main())
    assert (mine["w"] == 7).all()


def test_boxes_cover_each_item_once():
    rng = random.Random(4711)
    for _ in range(300):
        shape = [rng.randint(1, 6) for _ in range(rng.randint(0, 3))]

        def box(shape=shape):
            starts = [rng.randrange(most) for most in shape]
            return Box(tuple(starts), tuple(rng.randint(1, most - start) for start, most in zip(starts, shape)))

        wanted, offered = box(), [(who, box()) for who in range(3)] + [(3, whole(shape))]
        seen = np.zeros(shape, int)
        for who, part in cover(wanted, offered):
            assert part.cut(dict(offered)[who]) == part
            seen[tuple(slice(a, a + n) for a, n in zip(part.starts, part.sizes))] += 1
        expected = np.zeros(shape, int)
        expected[tuple(slice(a, a + n) for a, n in zip(wanted.starts, wanted.sizes))] = 1
        assert (seen == expected).all()
        array = np.arange(int(np.prod(shape)), dtype=np.int16).reshape(shape)
        offset, run, dims = pieces(shape, 2, wanted)
        flat = array.tobytes()
        at = [offset]
        for count, stride in dims:
            at = [each + i * stride for each in at for i in range(count)]
        assert b"".join(flat[each : each + run] for each in at) == cut(array, wanted).tobytes()


def test_shards_are_those_of_torch_chunk():
    for size, ranks in itertools.product(range(0, 12), range(1, 6)):
        boxes = [shard((3, size), 1, rank, ranks) for rank in range(ranks)]
        assert sum(box.sizes[1] for box in boxes) == size
        each = -(-size // ranks)
        assert [box.sizes[1] for box in boxes] == [max(0, min(each, size - rank * each)) for rank in range(ranks)]


def test_what_they_are_is_shown():
    weights = {"w": np.ones(100, np.float32), "b": np.ones((), np.float64)}
    source, target = Source(weights), Target({"w": np.zeros(100, np.float32)})
    source.publish(3)
    target.pull([source.handle()])
    assert repr(source) == "<Source of 2 weights, 408 bytes, versions [3]>"
    assert repr(target) == "<Target of 1 weights, 400 bytes, version 3>"
    source.close()
    assert repr(source).endswith("closed>")
