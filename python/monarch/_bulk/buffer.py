"""RDMABuffer: memory of one process that others read and write, while its owner does something else."""

from __future__ import annotations

import contextlib
import math
import numbers
import operator
import sys
import warnings
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._bulk.errors import BufferDropped, RDMAError, RDMATcpFallbackWarning, RDMATimeout, error_of
from monarch._bulk.layout import Box, pieces
from monarch._bulk.memory import Kind, kind_of, local_memory, make, of_bytes
from monarch._calls.future import got
from monarch._calls.handles import Handle
from monarch._config import settings
from monarch._notices import deprecated
from monarch._runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from monarch._calls.future import Future

READ, WRITE, FETCH_ADD, COMPARE_SWAP, DROP, FENCE = range(6)  # BulkOperation::Kind (bulk/bulk.h)
_WORDS = ("read of", "write of", "atomic addition to", "atomic exchange of", "drop of")  # for people
TIMEOUT = 60.0
_TIMEOUT_MAX = 2**64 - 1
_NO_ANSWER = "its process does not answer"  # Bulk::explain
_PATHS = ("local", "shm", "cma", "link", "tcp", "ucx", "cuda-ipc")  # Path (bulk/neighbour.h)
_HOST_SHIFT = 49  # base/ids.h

_warned = False
_contact_here: tuple[Any, ...] | None = None  # of this process, once it has given out a handle


class _Registered:
    """That this process has registered the memory. If nobody else can have a handle, it ends with the last here."""

    __slots__ = ("_handle", "shared")

    def __init__(self, handle: _core.BufferHandle) -> None:
        self._handle = handle
        self.shared = False

    def __del__(self) -> None:
        if not self.shared:
            _core.drop_buffer_here(self._handle)


def block_of(
    handle: _core.BufferHandle, at: int, sizes: Sequence[int], itemsize: int, block: Box
) -> _core.BufferHandle:
    """For a block of an array that lies ``at`` so many bytes of a buffer."""
    offset, run, dims = pieces(sizes, itemsize, block)
    return handle.block(at + offset, run, dims) if dims else handle.part(at + offset, run)


def seconds_of(timeout: float | None) -> float:
    """``OverflowError`` for what is no time limit. None and ``inf``: as long as it takes."""
    if timeout is None or timeout == math.inf:
        return float(_TIMEOUT_MAX)
    if not isinstance(timeout, numbers.Real):
        raise TypeError(f"timeout is in seconds, or None for no limit. Got: {timeout!r}")
    if not 0 <= timeout <= _TIMEOUT_MAX:
        raise OverflowError(f"timeout is in seconds, from 0 to 2**64 - 1, or None for no limit. Got: {timeout!r}")
    return float(timeout)


def _contact() -> tuple[Any, ...]:
    """What readers on this machine find this process by, without asking it first. One object, once in a pickle."""
    global _contact_here
    if (contact := _contact_here) is None:
        contact = _core.contact_of_buffers()
        machine, namespace, *_, table, _ = contact
        if machine and namespace and table >= 0:  # else something was short for a moment
            _contact_here = contact
    return contact


def prepare() -> None:
    """Makes the table of buffers, and what readers find it by: for who imports them, not with the first one."""
    if runtime.is_started():
        with contextlib.suppress(RuntimeError, OSError):  # who uses them is told
            _contact()


class RDMABuffer(Handle):
    """Memory of this process, which whoever holds this reads and writes from its own.

    A handle of a few bytes, to be sent to actors and returned by them. Reads and writes are one-sided: no actor of the
    owner takes part in them, and it may be busy. On one machine the bytes are copied straight from memory to memory;
    between hosts they go the way that messages go. :meth:`explain` says how.

    The memory is kept, and may be read, until :meth:`drop`; without that for as long as this process, once the handle
    has been pickled, and else as long as anybody has it. The owner may use the memory as before. Reads and writes that
    overlap are not put in order. ``buf[a:b]`` is a handle for the bytes ``a`` to ``b``.

    Args:
        data: a torch tensor on the CPU or a CUDA device (of a DTensor its local shard), a NumPy array, or anything with
            the buffer protocol; of any shape and strides: what counts is its bytes, in the order of its items.
        read_only: nobody can write with this handle, or with those that are made from it.

    Raises ``ValueError`` for anything else and for zero bytes, ``OSError`` if there are too many.
    """

    _contact: tuple[Any, ...] | None = None  # of the owner, where a handle has come with it or leaves with it

    def __init__(self, data: Any, *, read_only: bool = False) -> None:
        runtime.ensure(processes=False)
        memory = local_memory(data)
        if memory.size == 0:
            raise ValueError("Cannot create RDMABuffer with size 0.")
        if memory.overlaps and not read_only:
            raise ValueError("Cannot create RDMABuffer of memory that overlaps itself, but with read_only=True.")
        self._handle = _core.register_memory(memory, not read_only)
        self._kind: Kind = kind_of(data)
        self._registered: _Registered | None = _Registered(self._handle)

    @classmethod
    def _arrived(
        cls, fields: tuple[Any, ...], kind: tuple[Any, ...], job: str | None, contact: tuple[Any, ...] | None = None
    ) -> RDMABuffer:
        made = cls._made(_core.buffer_handle(fields), Kind(*kind), None, job)
        made._contact = contact
        if contact is not None and made._job is None:
            _core.introduce_owner(made._handle.owner, contact)
        return made

    @classmethod
    def _made(
        cls, handle: _core.BufferHandle, kind: Kind, registered: _Registered | None, job: str | None
    ) -> RDMABuffer:
        made = object.__new__(cls)
        made._handle, made._kind, made._registered = handle, kind, registered
        made._arrived_from(job)
        return made

    def _reduce_for(self, job: str | None) -> tuple[Any, tuple[Any, ...]]:
        if self._registered is not None:
            self._registered.shared = True
            self._contact = _contact()
        return RDMABuffer._arrived, (self._handle.fields(), tuple(self._kind), job, self._contact)

    def __copy__(self) -> RDMABuffer:
        return self._made(self._handle, self._kind, self._registered, self._job)

    def __repr__(self) -> str:
        access = "" if self._handle.writable else ", read-only"
        return f"<RDMABuffer of {self.size()} bytes at {self.owner}{access}>"

    # ---- What it is ----

    def size(self) -> int:
        """Bytes."""
        return self._handle.size

    def __len__(self) -> int:
        return self._handle.size

    @property
    def owner(self) -> str:
        """Which process serves it, as text: equal for buffers of one process."""
        return f"rdma_manager@{self._handle.owner:016x}"

    @property
    def backend(self) -> str:
        """``"tcp"``, or ``"ibverbs"``, between hosts. :meth:`explain` says more."""
        return "ibverbs" if has_nic() else "tcp"

    @property
    def writable(self) -> bool:
        """Whether this handle can write."""
        return self._handle.writable

    def explain(self, *, timeout: float = TIMEOUT) -> str:
        """Which way the bytes come here, and why no other: ``"cma (shm: ...)"``.

        The first time the owner is asked. Raises as :meth:`read` does.

        ``local``: they are of this process. ``shm``: they lie in memory of ``monarch.empty``, from 64 KiB on, which is
        mapped here. ``cma``: the kernel copies them. ``cuda-ipc``: they lie on a CUDA device, and its driver has opened
        them here.
        ``tcp``: over a connection of their own from the owner, on another host; what is shorter than 256 KiB goes as by
        ``link``. ``link``: they go as messages do.
        """
        self._enter()
        if not self._handle.is_block:
            try:  # whether it is there
                got(self[:1].read(timeout=timeout))
            except RDMATimeout:
                raise RDMATimeout("the owner of the buffer does not answer") from None

        def text(answers: list[Any]) -> str:
            path, why = answers[0]
            if why == _NO_ANSWER:
                raise RDMATimeout("the owner of the buffer does not answer")
            return _PATHS[path] + (f" ({why})" if why else "")

        return got(_core.bulk_explain(self._handle, seconds_of(timeout), text))

    # ---- Other handles of it ----

    def __getitem__(self, part: slice) -> RDMABuffer:
        """The bytes of a slice of step 1, as ``bytes`` would: what lies beyond the end is left out."""
        if not isinstance(part, slice):
            raise TypeError(f"RDMABuffer is sliced by bytes, buf[a:b], and not indexed with {type(part).__name__!r}")
        start, stop, step = part.indices(self.size())
        if step != 1:
            raise ValueError("RDMABuffer slices have step 1")
        if stop <= start:
            raise ValueError(f"the slice {start}:{stop} of an RDMABuffer of {self.size()} bytes is empty")
        self._refuse_block("sliced by bytes")
        size = stop - start
        return self._made(self._handle.part(start, size), of_bytes(size), self._registered, self._job)

    def block(self, starts: Sequence[int], sizes: Sequence[int]) -> RDMABuffer:
        """A handle for a block of the array that was registered: where it begins and how many items, per dimension.

        Its bytes are those of the block, in the order of its items, as if it were an array of its own; only they are
        moved. The array's memory lies in one piece, else the operations raise ``RDMAError``. ``ValueError`` for what is
        not inside of it, or empty.
        """
        self._refuse_block("cut into blocks")
        shape, itemsize = self._kind.shape, self._kind.itemsize
        starts, sizes = tuple(map(operator.index, starts)), tuple(map(operator.index, sizes))
        if not len(starts) == len(sizes) == len(shape) or any(
            start < 0 or size < 1 or start + size > most for start, size, most in zip(starts, sizes, shape)
        ):
            raise ValueError(f"there is no block of {sizes} items from {starts} on in an array of shape {shape}")
        handle = block_of(self._handle, 0, shape, itemsize, Box(starts, sizes))
        return self._made(handle, self._kind._replace(shape=sizes), self._registered, self._job)

    def read_only(self) -> RDMABuffer:
        """A handle with which nobody can write. Its owner only can make one: else ``RuntimeError``."""
        handle = self._handle if not self._handle.writable else _core.read_only_handle(self._handle)
        if handle is None:
            raise RuntimeError(
                "only the process that owns a buffer makes read-only handles of it, before it is dropped"
            )
        return self._made(handle, self._kind, self._registered, self._job)

    # ---- What is done with it ----

    def read_into(self, dst: Any, offset: int | None = None, timeout: float = TIMEOUT) -> Future[None]:
        """Fills the first bytes of other memory, which has as many as this, or more.

        Args:
            dst: as what a buffer is made of. It must not be used before the future is done, and is kept until then.
            offset: where to begin to read, in earlier versions. Deprecated: slice the buffer.
            timeout: in seconds.

        Raises ``ValueError`` if it is too small or read-only. The future raises ``BufferDropped``, ``RDMATimeout``,
        ``RDMAError`` if memory is not there any more, ``SupervisionError`` if the owner has ended.
        """
        seconds_of(timeout)
        if offset is None and self._job is None and (done := _core.read_now(self._handle, dst)) is not None:
            return done
        source = self._from(offset)
        return submit_one(READ, source, target_memory(dst, source.size()), timeout)

    def write_from(self, src: Any, offset: int | None = None, timeout: float = TIMEOUT) -> Future[None]:
        """Writes other memory, which has as many bytes as this, or fewer, to the first bytes of this.

        Args:
            src: as what a buffer is made of. It must not be changed before the future is done, and is kept until then.
            offset: where to begin to write, in earlier versions. Deprecated: slice the buffer.
            timeout: in seconds. A write that was not made in time may have been made in part.

        Raises as ``read_into``.
        """
        target = self._from(offset)
        return submit_one(WRITE, target, source_memory(src, target), timeout)

    def write(self, src: Any, offset: int | None = None, timeout: float = TIMEOUT) -> Future[None]:
        """Deprecated: ``write_from``.

        Args:
            src: as its.
            offset: as its.
            timeout: as its.
        """
        deprecated("RDMABuffer.write() is deprecated: use write_from()")
        return self.write_from(src, offset, timeout)

    def read(self, *, timeout: float = TIMEOUT) -> Future[Any]:
        """What is there, in new memory: a tensor or an array like that which this was made of, else a memoryview.

        On the CPU, also of a tensor on a device.
        """
        made = make(self._kind, self.size())
        return submit_one(READ, self, local_memory(made), timeout, made)

    def fetch_add(self, add: int, *, timeout: float = TIMEOUT) -> Future[int]:
        """Adds to the 8 bytes of this, a signed integer at an address that is a multiple of 8; gives what was there.

        Atomic towards all that is done so, and towards atomic instructions of the owner.
        """
        check_word(self)
        return submit_one(FETCH_ADD, self, None, timeout, operand=_int64(add))

    def compare_and_swap(self, compare: int, swap: int, *, timeout: float = TIMEOUT) -> Future[int]:
        """Changes the 8 bytes of this only if they are what is expected; gives what was there. Else as ``fetch_add``.

        Args:
            compare: what is expected, a 64-bit integer.
            swap: what then comes there.
            timeout: in seconds.
        """
        check_word(self)
        return submit_one(COMPARE_SWAP, self, None, timeout, operand=_int64(swap), expected=_int64(compare))

    def drop(self, *, timeout: float = TIMEOUT) -> Future[None]:
        """Ends it for everybody, all of it if this is a part. Nothing if somebody has done so already.

        In the process that owns it any handle does, elsewhere one that can write. When the future is done nobody reads
        or writes any more, and the owner does not keep the memory.
        """
        return submit_one(DROP, self, None, timeout)

    def __enter__(self) -> RDMABuffer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            self.drop().get()
        except Exception:
            if exc_info[0] is None:
                raise

    async def __aenter__(self) -> RDMABuffer:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self.drop()
        except Exception:
            if exc_info[0] is None:
                raise

    # ---- Inside ----

    def _refuse_block(self, how: str) -> None:
        if self._handle.is_block:
            raise ValueError(f"a block of an RDMABuffer cannot be {how}: do so with the whole buffer")

    def _from(self, offset: int | None) -> RDMABuffer:
        if offset is None:
            return self
        deprecated("offset= of RDMABuffer operations is deprecated: slice the buffer, buf[offset:]", stacklevel=4)
        return self if offset == 0 else self[offset:]

    def _enter(self) -> None:
        """Before it is used here."""
        runtime.ensure(processes=False)
        if self._job is not None:
            self._introduce([self._handle.owner])
        if is_elsewhere(self._handle) and not settings.get("rdma_allow_tcp_fallback"):
            if not has_nic() or _core.goes_by_link(self._handle):  # the second is known from the first operation on
                raise RDMAError("rdma_allow_tcp_fallback is False, and there is no NIC for buffers between these hosts")


def has_nic() -> bool:
    """Whether buffers go over a NIC by verbs where both sides have one, and say that nothing need be enciphered."""
    if settings.get("rdma_disable_ibverbs") or settings.get("rdma_encrypt") or not _core.has_rdma_device():
        return False
    return not _core.why_no_ucx()


def backend() -> str:
    """``"ibverbs"``, ``"tcp"`` or ``"none"``: between hosts."""
    return "ibverbs" if has_nic() else "tcp" if settings.get("rdma_allow_tcp_fallback") else "none"


def is_elsewhere(handle: _core.BufferHandle) -> bool:
    """Whether its owner is on another host than this process."""
    return handle.owner >> _HOST_SHIFT != _core.node_id() >> _HOST_SHIFT


def warn_of_tcp(handle: _core.BufferHandle) -> None:
    """Once, when bytes have gone over TCP."""
    global _warned
    if is_elsewhere(handle) and not _warned and _core.goes_by_link(handle):
        _warned = True
        text = "RDMABuffer goes over TCP: there is no NIC for it between these hosts"
        # From get() it is one frame to the user's, by `await` two.
        inside = sys._getframe(2).f_globals.get("__name__", "").startswith("monarch.")
        warnings.warn(text, RDMATcpFallbackWarning, stacklevel=4 if inside else 3)


def _int64(value: int) -> int:
    value = operator.index(value)
    if not -(2**63) <= value < 2**63:
        raise OverflowError("an atomic operation takes 64-bit integers")
    return value


def check_word(buffer: RDMABuffer) -> None:
    """``ValueError`` for what no atomic operation is for."""
    if buffer.size() != 8 or buffer._handle.is_block:
        raise ValueError(f"an atomic operation is for 8 bytes: slice the buffer, buf[a:a+8]. Got: {buffer.size()}")
    if not buffer.writable:
        raise ValueError("the remote buffer is read-only")


def target_memory(dst: Any, size: int) -> _core.LocalMemory:
    """Of what ``size`` bytes are read into."""
    memory = local_memory(dst)
    if memory.size < size:
        raise ValueError(f"destination local memory size ({memory.size}) must be >= remote buffer size ({size})")
    if not memory.writable:
        raise ValueError("destination local memory is read-only")
    if memory.overlaps:
        raise ValueError("destination local memory overlaps itself")
    return memory


def source_memory(src: Any, buffer: RDMABuffer) -> _core.LocalMemory:
    """Of what is written to ``buffer``."""
    memory = local_memory(src)
    if memory.size > buffer.size():
        raise ValueError(f"source local memory size ({memory.size}) must be <= remote buffer size ({buffer.size()})")
    if not buffer.writable:
        raise ValueError("the remote buffer is read-only")
    return memory


class Operation:
    """One that has been submitted, in words; and what becomes of it."""

    __slots__ = ("_buffer", "_kind", "_result", "_seconds", "_size")

    def __init__(self, kind: int, buffer: RDMABuffer, size: int, seconds: float, result: Any = None) -> None:
        self._kind, self._buffer, self._size, self._seconds, self._result = kind, buffer, size, seconds, result

    def __str__(self) -> str:
        return f"{_WORDS[self._kind]} {self._size} bytes at {self._buffer.owner}"

    def __repr__(self) -> str:
        limit = "" if self._seconds >= _TIMEOUT_MAX else f", {self._seconds:g} s"
        return f"{self}{limit}"

    def __call__(self, outcomes: list[Any]) -> Any:
        warn_of_tcp(self._buffer._handle)
        outcome = outcomes[0]
        if isinstance(outcome, int):
            return outcome
        error = error_of(outcome, self)
        if error is not None and not (self._kind == DROP and isinstance(error, BufferDropped)):
            raise error
        return self._result


def submit_one(
    kind: int, buffer: RDMABuffer, memory: _core.LocalMemory | None, timeout: float,
    result: Any = None, operand: int = 0, expected: int = 0,
) -> Future[Any]:  # fmt: skip
    buffer._enter()
    seconds = seconds_of(timeout)
    size = memory.size if kind == WRITE and memory is not None else buffer.size()
    operation = Operation(kind, buffer, size, seconds, result)
    return _core.bulk_submit([(kind, buffer._handle, memory, operand, expected)], seconds, operation, result)
