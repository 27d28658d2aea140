"""Weights on their way from those who train them to those who use them: versions, of which nobody sees a half."""

from __future__ import annotations

import asyncio
import math
import numbers
import operator
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from monarch import _core
from monarch._bulk import buffer as buffers
from monarch._bulk.action import RDMAAction
from monarch._bulk.buffer import RDMABuffer, block_of, is_elsewhere
from monarch._bulk.errors import BufferDropped, RDMATimeout
from monarch._bulk.layout import Box, box_of_dtensor, cover, whole
from monarch._bulk.memory import dtype_of, kind_of, local_memory
from monarch._calls.future import got
from monarch._runtime import runtime

__all__ = ["Moved", "PushHandle", "Source", "SourceHandle", "Target", "VersionGone", "WeightsError"]

Progress = Callable[[int, int], None]
Where = Mapping[str, tuple[Sequence[int], Box]]

_ALIGN = 64  # bytes, of what lies in a slot
_GROUP = 64 << 20  # so many bytes are moved between two words about progress
_SLOTS = 2
_SOURCES_MAX = 4096  # that push: a word of each says how many bytes it has written
_WORD = 8
_WRITING = -1  # in the place of a version: there is none, or not all of it yet
_FIRST_LOOK, _LAST_LOOK = 0.0002, 0.02  # seconds between looks for a version that is not there yet


class WeightsError(RuntimeError):
    """Weights cannot be moved so: the text says why."""


class VersionGone(WeightsError):
    """The version that was asked for has been replaced by later ones."""


class Moved(NamedTuple):
    """What has been moved: which version, how many bytes, and in what time."""

    version: int
    nbytes: int
    seconds: float

    @property
    def gigabytes_per_second(self) -> float:
        """In 10^9 bytes; 0 if it took no time."""
        return self.nbytes / self.seconds / 1e9 if self.seconds else 0.0

    def __str__(self) -> str:
        return (
            f"version {self.version}: {self.nbytes / 1e6:.1f} MB in {self.seconds * 1e3:.1f} ms, "
            f"{self.gigabytes_per_second:.1f} GB/s"
        )


class _Shard(NamedTuple):
    """What one process has of one array."""

    shape: tuple[int, ...]  # of the whole
    box: Box
    dtype: Any  # as Kind's
    itemsize: int
    at: int  # where its bytes begin in a slot

    @property
    def nbytes(self) -> int:
        return self.box.items * self.itemsize


class SourceHandle(NamedTuple):
    """What a target has to know of a source: to be sent to it. Of a few hundred bytes for each array."""

    shards: dict[str, _Shard]
    header: RDMABuffer  # the versions in the slots
    slots: tuple[RDMABuffer, ...]


class PushHandle(NamedTuple):
    """What a source has to know of a target that accepts one version."""

    version: int
    shards: dict[str, _Shard]
    header: RDMABuffer  # the bytes that have come of each source
    slot: RDMABuffer


def _by_name(weights: Any, where: Where | None) -> dict[str, Any]:
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights are arrays by name, such as module.state_dict(). Got: {type(weights).__name__}")
    if where is not None and not isinstance(where, Mapping):
        raise TypeError(f"where has (shape, box) by name. Got: {type(where).__name__}")
    for name, is_at in (where or {}).items():
        if name not in weights:
            known = ", ".join(map(repr, list(weights)[:8])) + (", ..." if len(weights) > 8 else "")
            raise ValueError(f"where names {name!r}, which is none of the weights: {known}")
        if not (isinstance(is_at, Sequence) and len(is_at) == 2 and isinstance(is_at[1], Box)):
            raise ValueError(
                f"where has (shape, box) for each name, as ((8, 4), shard((8, 4), 0, 1, 2)). Got: {is_at!r}"
            )
        if not all(isinstance(number, numbers.Integral) for sizes in (is_at[0], *is_at[1]) for number in sizes):
            raise ValueError(f"where has a shape and a box of ints for each name. Got: {is_at!r}")
    return dict(weights)


def _take_up(given: Mapping[str, Any], held: dict[str, Any], shards: Mapping[str, _Shard]) -> None:
    """Who learns may put another array in the place of one: it is that which is meant from then on."""
    if given.keys() != held.keys():
        raise ValueError(f"the weights have other names than at first: {sorted(given.keys() ^ held.keys())}")
    for name, weight in given.items():
        if weight is held[name]:
            continue
        kind, shard_ = kind_of(weight), shards[name]
        if (dtype_of(kind), tuple(kind.shape)) != (shard_.dtype, tuple(shard_.box.sizes)):
            was = f"{shard_.dtype} of shape {tuple(shard_.box.sizes)}"
            raise ValueError(f"{name!r} was {was} at first, and is {dtype_of(kind)} of shape {tuple(kind.shape)} now")
        held[name] = weight


def _as_version(version: Any) -> int:
    try:
        return operator.index(version)
    except TypeError:
        raise TypeError(f"a version is an int. Got: {version!r}") from None


def _handles(given: Any, of: type, from_: str) -> list[Any]:
    """A ValueMesh is taken by its values."""
    values = getattr(given, "values", None)
    if callable(values):
        given = values()
    if isinstance(given, of) or not isinstance(given, Iterable):
        raise TypeError(f"a list of what {from_} has returned was expected. Got: {type(given).__name__}")
    found = list(given)
    for each in found:
        if not isinstance(each, of):
            raise TypeError(f"a list of what {from_} has returned was expected. Got: one with a {type(each).__name__}")
    return found


def _warn_of_loop(what: str) -> None:
    if asyncio._get_running_loop() is not None:
        text = f"{what} holds up this event loop until it is done: use `await asyncio.to_thread(...)`"
        warnings.warn(text, stacklevel=3)


def _seconds(timeout: float | None) -> float:
    return math.inf if timeout is None else timeout


def _local(weight: Any) -> Any:
    return weight.to_local() if hasattr(weight, "to_local") else weight


def _laid_out(weights: Mapping[str, Any], where: Where | None) -> tuple[dict[str, _Shard], int]:
    """Where each has its place in a slot, and how large that is."""
    shards, at = {}, 0
    for name, weight in weights.items():
        try:
            kind = kind_of(weight)
            memory = local_memory(weight)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name!r} is a {type(weight).__name__}, and no array that can be sent: {error}") from None
        del memory
        if where is not None and name in where:
            shape, box = where[name]
        elif hasattr(weight, "to_local"):
            shape, box = tuple(weight.shape), box_of_dtensor(weight)
        else:
            shape, box = kind.shape, whole(kind.shape)
        if kind.of == "bytes":
            raise ValueError(f"{name!r} is a {type(weight).__name__}, and neither a NumPy array nor a torch tensor")
        if tuple(box.sizes) != tuple(kind.shape):
            raise ValueError(f"{name!r} is a {kind.of} of shape {kind.shape}, and not the block {tuple(box.sizes)}")
        outside = any(a < 0 or a + n > most for a, n, most in zip(box.starts, box.sizes, shape))
        if len(box.sizes) != len(shape) or outside:
            raise ValueError(f"the block of {name!r} does not lie within its shape {tuple(shape)}")
        shards[name] = _Shard(tuple(shape), box, dtype_of(kind), kind.itemsize, at)
        at += -(-shards[name].nbytes // _ALIGN) * _ALIGN
    return shards, max(at, _ALIGN)


def _views(weights: Mapping[str, Any], shards: Mapping[str, _Shard], slot: Any) -> dict[str, Any]:
    """Arrays like the weights, in the memory of a slot."""
    views = {}
    for name, weight in weights.items():
        at, box = shards[name].at, shards[name].box
        if kind_of(weight).of == "torch":
            torch: Any = sys.modules["torch"]
            dtype = _local(weight).dtype
            flat = (
                torch.frombuffer(slot, dtype=dtype, count=box.items, offset=at)
                if box.items
                else torch.empty(0, dtype=dtype)
            )
            views[name] = flat.view(box.sizes)
        else:
            numpy: Any = sys.modules["numpy"]
            views[name] = numpy.frombuffer(slot, weight.dtype, box.items, at).reshape(box.sizes)
    return views


def _copy(to: Any, from_: Any) -> None:
    if hasattr(to, "copy_"):
        to.detach().copy_(_local(from_).detach())
    else:
        to[...] = from_


def _make_slot(size: int) -> Any:
    """Memory that the other processes of the machine map, where it is worth that."""
    return _core.make_memory(size) if size >= 64 * 1024 else bytearray(size)


class Source:
    """Weights of this process, or its part of them, as others get them: the last two versions that were published.

    Keeps two copies, until :meth:`close`. Whoever has :meth:`handle` pulls a version when it wants to, while this
    process goes on; or this process pushes it.

    Args:
        weights: NumPy arrays or torch tensors by name. Of a DTensor its shard is meant, where its placements say. What
            is in the place of an array later on is published from then on, if it has the same shape and dtype.
        where: for arrays that are a part of a larger one, ``(shape, box)`` by name: the shape of the whole, and which
            block of it this is (:func:`shard`, :class:`Box`). What is not named is whole.
    """

    def __init__(self, weights: Mapping[str, Any], where: Where | None = None) -> None:
        runtime.ensure(processes=False)
        self._given, self._weights = weights, _by_name(weights, where)
        self._shards, size = _laid_out(self._weights, where)
        self._is_open = True
        self._memory = [_make_slot(size) for _ in range(_SLOTS)]
        self._views = [_views(self._weights, self._shards, slot) for slot in self._memory]
        self._slots = tuple(RDMABuffer(slot) for slot in self._memory)
        self._versions = bytearray(_WORD * _SLOTS)
        self._header = RDMABuffer(self._versions)
        for slot in range(_SLOTS):
            self._set(slot, _WRITING)

    def __reduce__(self) -> Any:
        raise TypeError("a Source stays in its process: send its handle()")

    def __repr__(self) -> str:
        state = f"versions {self.versions}" if self._is_open else "closed"
        return f"<Source of {len(self._shards)} weights, {self.nbytes} bytes, {state}>"

    @property
    def nbytes(self) -> int:
        """The bytes of a version, as far as they are here."""
        return sum(each.nbytes for each in self._shards.values())

    def handle(self) -> SourceHandle:
        """For targets, in whatever process. Good as long as this is open."""
        self._check_open()
        return SourceHandle(self._shards, self._header.read_only(), tuple(slot.read_only() for slot in self._slots))

    def publish(self, version: int) -> Moved:
        """Takes a copy of the weights as they are now: that is ``version``, an int larger than those before."""
        self._check_open()
        begun = time.perf_counter()
        version = _as_version(version)
        _take_up(self._given, self._weights, self._shards)
        held = self.versions
        if version < 0 or held and version <= held[-1]:
            raise ValueError(f"a version is larger than those before and not negative. Got: {version} after {held}")
        slot = min(range(_SLOTS), key=self._get)
        self._set(slot, _WRITING)
        for name, view in self._views[slot].items():
            _copy(view, self._weights[name])
        self._set(slot, version)
        return Moved(version, self.nbytes, time.perf_counter() - begun)

    @property
    def versions(self) -> list[int]:
        """Those that can be had now, in order."""
        self._check_open()
        return sorted(version for version in map(self._get, range(_SLOTS)) if version != _WRITING)

    def push(
        self, targets: Iterable[PushHandle], sources: Sequence[SourceHandle], *,
        timeout: float | None = buffers.TIMEOUT, progress: Progress | None = None,
    ) -> Moved:  # fmt: skip
        """Writes to each target what it wants of this source, of the version that it accepts.

        Args:
            targets: what their :meth:`Target.accept` has returned; a list, or a ValueMesh.
            sources: the handles of all sources, in the same order at each; every item is written by one of them.
            timeout: seconds, for each of some groups of operations; None: no limit.
            progress: is called with bytes so far and bytes in all, for each target.

        If some targets cannot be written to, the others have been, and the first error is raised: ``WeightsError`` if
        one accepts something else by now, ``SupervisionError`` if it has died. ``VersionGone`` if this has another.
        """
        self._check_open()
        _warn_of_loop("Source.push()")
        targets = _handles(targets, PushHandle, "Target.accept()")
        sources = _handles(sources, SourceHandle, "Source.handle()")
        begun, moved, version = time.perf_counter(), 0, _WRITING
        me = [i for i, each in enumerate(sources) if _is_same(each.header, self._header)]
        if len(sources) > _SOURCES_MAX:
            raise WeightsError(f"at most {_SOURCES_MAX} sources push. Got: {len(sources)}")
        if not me:
            raise WeightsError("this source is not among the sources that push")
        failed: Exception | None = None
        for target in targets:
            version = target.version
            try:
                moved += self._push_to(target, me[0], sources, timeout, progress)
            except BufferDropped:
                failed = failed or WeightsError(f"the target does not accept version {version} any more")
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return Moved(version, moved, time.perf_counter() - begun)

    def _push_to(
        self,
        target: PushHandle,
        me: int,
        sources: Sequence[SourceHandle],
        timeout: float | None,
        progress: Progress | None,
    ) -> int:
        """-> bytes; ``me``: which of the sources this is."""
        version = target.version
        slot = next((slot for slot in range(_SLOTS) if self._get(slot) == version), None)
        if slot is None:
            raise VersionGone(f"version {version} is not here, but {self.versions}")
        transfer = _Transfer(timeout, progress)
        for name, theirs in target.shards.items():
            mine = self._shards.get(name)
            for who, box in cover(theirs.box, _offers(name, theirs, sources)):
                if who == me and mine is not None:
                    here = self._views[slot][name][_index(box.inside(mine.box))]
                    transfer.add(_write, _block(target.slot, theirs, box), here, box.items * mine.itemsize)
        transfer.run()
        if self._get(slot) != version:
            raise VersionGone(f"version {version} was replaced while it was written")
        # Set and not added, so that who repeats it counts once.
        word = target.header[me * _WORD : (me + 1) * _WORD]
        got(word.write_from(transfer.total.to_bytes(_WORD, "little"), timeout=_seconds(timeout)))
        return transfer.total

    def close(self) -> None:
        """Nobody gets anything any more; the memory goes back. Twice is fine."""
        if self._is_open:
            self._is_open = False
            for each in (self._header, *self._slots):
                got(each.drop())

    def _check_open(self) -> None:
        if not self._is_open:
            raise WeightsError("this Source is closed")

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Atomic operations, so that what is in a slot is seen before the version that says so.

    def _get(self, slot: int) -> int:
        return int(got(self._header[slot * _WORD : (slot + 1) * _WORD].fetch_add(0)))

    def _set(self, slot: int, version: int) -> None:
        word = self._header[slot * _WORD : (slot + 1) * _WORD]
        got(word.fetch_add(version - got(word.fetch_add(0))))


class Target:
    """Weights of this process that come from sources, which may have them in other parts: :meth:`pull` gets them.

    Keeps one copy more, into which a version comes; only when all of it is there, and is one version, it gets to the
    weights themselves. So an actor that pulls between two of its messages never uses half of one.

    Args:
        weights: as :class:`Source`'s; they are written to in place, and may have other parts of the whole. The sources
            have the same dtypes; whether of NumPy or of torch does not matter.
        where: the same.
    """

    def __init__(self, weights: Mapping[str, Any], where: Where | None = None) -> None:
        runtime.ensure(processes=False)
        self._given, self._weights = weights, _by_name(weights, where)
        self._shards, size = _laid_out(self._weights, where)
        self._check_writable()
        self._memory = _make_slot(size)
        self._staged = _views(self._weights, self._shards, self._memory)
        self.version: int | None = None  # what the weights are, if a version was taken
        self._accepting: tuple[int, bytearray, RDMABuffer, RDMABuffer] | None = None

    def __reduce__(self) -> Any:
        raise TypeError("a Target stays in its process: send what its accept() returns")

    def __repr__(self) -> str:
        return f"<Target of {len(self._shards)} weights, {self.nbytes} bytes, version {self.version}>"

    def _check_writable(self) -> None:
        for name, weight in self._weights.items():
            memory = local_memory(weight)
            if not memory.writable or memory.overlaps:
                raise ValueError(f"{name!r} cannot be written to: it is read-only, or overlaps itself")

    @property
    def nbytes(self) -> int:
        """The bytes of a version, as far as they are wanted here."""
        return sum(each.nbytes for each in self._shards.values())

    # ---- Pulled ----

    def pull(
        self, sources: Sequence[SourceHandle], version: int | None = None, *, prefer: int = 0,
        timeout: float | None = buffers.TIMEOUT, progress: Progress | None = None,
    ) -> Moved:  # fmt: skip
        """Gets a version, and waits for it if it is not there yet.

        Args:
            sources: the handles of all of them; a list, or a ValueMesh.
            version: None: the last one that all of them have.
            prefer: what several have is taken from the first of those on this machine, else from the first, counted
                from this number on: the ranks of a mesh should name their own, so that not all read from the same.
            timeout: seconds, for all of it; None: no limit.
            progress: is called with bytes so far and bytes in all, now and then.

        Blocks its thread: in an ``async`` endpoint, ``await asyncio.to_thread(target.pull, handles)``. Raises
        ``VersionGone`` if a version was named and is no more, ``monarch.rdma.RDMATimeout``, ``WeightsError`` for what
        sources do not have and where one was closed, and what reading a buffer raises: ``SupervisionError`` if a source
        has died. The weights are as they were then, and it may be called again with others.
        """
        _warn_of_loop("Target.pull()")
        sources = _handles(sources, SourceHandle, "Source.handle()")
        if not sources:
            raise ValueError("sources is empty: there is nobody to get the weights from")
        prefer = operator.index(prefer)
        version = None if version is None else _as_version(version)
        begun = time.monotonic()
        deadline = begun + _seconds(timeout)
        plan = self._plan(sources, prefer)
        try:
            taken, moved = self._fetch(sources, plan, version, deadline, progress)
        except BufferDropped as error:
            raise WeightsError("a source has been closed since its handle() was made") from error
        self._take(taken)
        return Moved(taken, moved, time.monotonic() - begun)

    def _fetch(
        self,
        sources: Sequence[SourceHandle],
        plan: Sequence[tuple[int, str, Box]],
        version: int | None,
        deadline: float,
        progress: Progress | None,
    ) -> tuple[int, int]:
        """To what is staged. -> its version, and how many bytes that were."""
        used = sorted({who for who, _, _ in plan}) or list(range(len(sources)))  # who wants nothing keeps step
        while True:
            taken, slots = _wait_for_version([sources[who] for who in used], version, deadline)
            slot_of = dict(zip(used, slots))
            transfer = _Transfer(max(deadline - time.monotonic(), 0.0), progress)
            for who, name, box in plan:
                theirs = sources[who].shards[name]
                there = _block(sources[who].slots[slot_of[who]], theirs, box)
                here = self._staged[name][_index(box.inside(self._shards[name].box))]
                transfer.add(_read, there, here, box.items * theirs.itemsize)
            transfer.run()
            now = _versions([sources[who] for who in used], deadline)
            if all(found[slot] == taken for found, slot in zip(now, slots)):
                return taken, transfer.total
            if version is not None:
                raise VersionGone(f"version {version} was replaced while it was read")

    def _plan(self, sources: Sequence[SourceHandle], prefer: int) -> list[tuple[int, str, Box]]:
        order = sorted(
            range(len(sources)),
            key=lambda who: (is_elsewhere(sources[who].header._handle), (who - prefer) % len(sources)),
        )
        plan = []
        for name, wanted in self._shards.items():
            offers = {who: box for who, box in _offers(name, wanted, sources)}
            plan += [(who, name, box) for who, box in cover(wanted.box, [(w, offers[w]) for w in order if w in offers])]
        return plan

    # ---- Pushed ----

    def accept(self, version: int) -> PushHandle:
        """For sources that push: what they write with this handle, until :meth:`commit` or the next :meth:`accept`."""
        version = _as_version(version)
        self._refuse()
        counter = bytearray(_WORD * _SOURCES_MAX)
        header, slot = RDMABuffer(counter), RDMABuffer(self._memory)
        self._accepting = version, counter, header, slot
        return PushHandle(version, self._shards, header, slot)

    def commit(self) -> int:
        """All sources have pushed: the weights are that version now, which it returns.

        ``WeightsError`` if some of it has not come; then they are as they were, and :meth:`accept` begins anew.
        """
        if self._accepting is None:
            raise WeightsError("no version is accepted: accept() comes first")
        version, counter, _, _ = self._accepting
        self._refuse()  # from here on nobody writes there
        come = sum(memoryview(counter).cast("Q"))
        if come != self.nbytes:
            raise WeightsError(f"version {version} is not complete: {come} of {self.nbytes} bytes have come")
        self._take(version)
        return version

    def _refuse(self) -> None:
        if self._accepting is not None:
            for each in self._accepting[2:]:
                got(each.drop())
            self._accepting = None

    def _take(self, version: int) -> None:
        _take_up(self._given, self._weights, self._shards)
        self._check_writable()
        for name, staged in self._staged.items():
            _copy(_local(self._weights[name]), staged)
        self.version = version


def _read(action: RDMAAction, there: RDMABuffer, here: Any) -> None:
    action.read_remote(here, there)


def _write(action: RDMAAction, there: RDMABuffer, here: Any) -> None:
    action.write_remote(there, here)


class _Transfer:
    """Operations in groups, each of which is one action; two of them are under way."""

    def __init__(self, timeout: float | None, progress: Progress | None) -> None:
        self.total = 0
        self._timeout, self._progress = timeout, progress
        self._groups: list[tuple[RDMAAction, int]] = []

    def add(self, do: Callable[[RDMAAction, RDMABuffer, Any], Any], there: RDMABuffer, here: Any, nbytes: int) -> None:
        if not self._groups or self._groups[-1][1] >= _GROUP:
            self._groups.append((RDMAAction(), 0))
        action, size = self._groups[-1]
        do(action, there, here)
        self._groups[-1] = action, size + nbytes
        self.total += nbytes

    def run(self) -> None:
        done = 0
        under_way: list[tuple[Any, int]] = []
        try:
            for action, size in [*self._groups, *[(None, 0)] * 2]:
                if len(under_way) == 2 or action is None and under_way:
                    future, moved = under_way.pop(0)
                    got(future)
                    done += moved
                    if self._progress is not None:
                        self._progress(done, self.total)
                if action is not None:
                    under_way.append((action.submit(timeout=_seconds(self._timeout)), size))
        finally:
            for future, _ in under_way:  # what is there belongs to somebody else afterwards
                future._wait(None)


def _offers(name: str, wanted: _Shard, sources: Sequence[SourceHandle]) -> list[tuple[int, Box]]:
    offers = []
    for who, source in enumerate(sources):
        theirs = source.shards.get(name)
        if theirs is None:
            continue
        if (theirs.shape, theirs.dtype) != (wanted.shape, wanted.dtype):
            raise WeightsError(
                f"{name!r} is {theirs.dtype} of shape {theirs.shape} there, {wanted.dtype} of shape {wanted.shape} here"
            )
        offers.append((who, theirs.box))
    if not offers:
        known = sorted({name for source in sources for name in source.shards})
        names = ", ".join(map(repr, known[:8])) + (", ..." if len(known) > 8 else "")
        raise WeightsError(f"no source has {name!r}, but {names or 'nothing'}")
    try:
        cover(wanted.box, offers)
    except LookupError as error:
        raise WeightsError(f"{name!r}: of the sources {error}") from None
    return offers


def _versions(sources: Sequence[SourceHandle], deadline: float) -> list[list[int]]:
    """For each source the versions in its slots."""
    found = [bytearray(_WORD * _SLOTS) for _ in sources]
    action = RDMAAction()
    for source, into in zip(sources, found):
        action.read_remote(into, source.header)
    got(action.submit(timeout=max(deadline - time.monotonic(), 0.0)))
    return [list(memoryview(into).cast("q")) for into in found]


def _wait_for_version(sources: Sequence[SourceHandle], version: int | None, deadline: float) -> tuple[int, list[int]]:
    """The version to be taken, and the slot that has it at each."""
    pause = _FIRST_LOOK
    while True:
        held = _versions(sources, deadline)
        common = set.intersection(*map(set, held)) - {_WRITING} if held else {0 if version is None else version}
        if version is not None and any(min(each) > version for each in held):
            raise VersionGone(f"version {version} has been replaced: there are {sorted(common)}")
        wanted = max(common, default=None) if version is None else version if version in common else None
        if wanted is not None:
            return wanted, [each.index(wanted) for each in held]
        if time.monotonic() + pause > deadline:
            what = "no version" if version is None else f"version {version} not"
            there = ", ".join(str(sorted(set(each) - {_WRITING})) for each in held[:8])
            more = ", ..." if len(held) > 8 else ""
            raise RDMATimeout(f"{what} published by all {len(sources)} sources in time: they have {there}{more}")
        time.sleep(pause)
        pause = min(2 * pause, _LAST_LOOK)


def _block(buffer: RDMABuffer, shard_: _Shard, box: Box) -> RDMABuffer:
    handle = block_of(buffer._handle, shard_.at, shard_.box.sizes, shard_.itemsize, box.inside(shard_.box))
    return RDMABuffer._made(handle, buffer._kind, buffer._registered, buffer._job)


def _index(box: Box) -> Any:
    return tuple(slice(start, start + size) for start, size in zip(box.starts, box.sizes)) or ...


def _is_same(one: RDMABuffer, other: RDMABuffer) -> bool:
    return one._handle.fields()[:3] == other._handle.fields()[:3]
