"""RDMAAction: many operations as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._bulk import buffer as buffers
from monarch._bulk.buffer import COMPARE_SWAP, FENCE, FETCH_ADD, READ, WRITE, RDMABuffer
from monarch._bulk.errors import raise_first
from monarch._bulk.memory import finish_pending, local_memory
from monarch._notices import deprecated

if TYPE_CHECKING:
    from monarch._calls.future import Future


# Kind, buffer, memory of this process, operand, what is expected there.
_Operation = tuple[int, RDMABuffer | None, _core.LocalMemory | None, int, int]


class RDMAAction:
    """Operations on buffers, of one or of several owners, which :meth:`submit` begins together.

    They run side by side, in no order but that of :meth:`fence`; that they overlap is not looked for. Each method adds
    one, checks its sizes at once, and returns the action. What was added can be submitted again and again.
    """

    def __init__(self) -> None:
        self._operations: list[_Operation] = []
        self._olds: list[Any] = []  # for each operation where its result goes, or None
        self._on_devices: list[Any] = []  # tensors
        self._last: Future[None] | None = None

    def __repr__(self) -> str:
        return f"<RDMAAction of {len(self._operations)} operations>"

    def read_remote(self, dst_local: Any, src_buffer: RDMABuffer) -> RDMAAction:
        """``src_buffer.read_into(dst_local)``."""
        _expect_buffer(src_buffer, "read_remote(dst_local, src_buffer)")
        memory = buffers.target_memory(dst_local, src_buffer.size())
        return self._add(READ, src_buffer, memory, of=dst_local)

    def write_remote(self, dst_buffer: RDMABuffer, src_local: Any) -> RDMAAction:
        """``dst_buffer.write_from(src_local)``."""
        _expect_buffer(dst_buffer, "write_remote(dst_buffer, src_local)")
        return self._add(WRITE, dst_buffer, buffers.source_memory(src_local, dst_buffer), of=src_local)

    def read_into(self, src_buffer: RDMABuffer, dst_local: Any) -> RDMAAction:
        """Deprecated: ``read_remote``, which takes the target first."""
        deprecated("RDMAAction.read_into(buffer, local) is deprecated: use read_remote(local, buffer)")
        return self.read_remote(dst_local, src_buffer)

    def write_from(self, src_buffer: RDMABuffer, src_local: Any) -> RDMAAction:
        """Deprecated: ``write_remote``."""
        deprecated("RDMAAction.write_from(buffer, local) is deprecated: use write_remote(buffer, local)")
        return self.write_remote(src_buffer, src_local)

    def fetch_add(self, src: RDMABuffer, dst: Any, add: int) -> RDMAAction:
        """``src.fetch_add(add)``.

        Args:
            src: 8 bytes of a buffer.
            dst: 8 bytes of this process, for what was there; None: nobody wants to know.
            add: a 64-bit integer.
        """
        _expect_buffer(src, "fetch_add(src, dst, add)")
        buffers.check_word(src)
        return self._add(FETCH_ADD, src, None, dst, buffers._int64(add))

    def compare_and_swap(self, src: RDMABuffer, dst: Any, compare: int, swap: int) -> RDMAAction:
        """``src.compare_and_swap(compare, swap)``.

        Args:
            src: 8 bytes of a buffer.
            dst: as ``fetch_add``'s.
            compare: what is expected there.
            swap: what then comes there.
        """
        _expect_buffer(src, "compare_and_swap(src, dst, compare, swap)")
        buffers.check_word(src)
        return self._add(COMPARE_SWAP, src, None, dst, buffers._int64(swap), buffers._int64(compare))

    def fence(self) -> RDMAAction:
        """What is added after this begins when all before has been done, and not at all if some of that has failed."""
        self._check_idle()
        self._operations.append((FENCE, None, None, 0, 0))
        return self

    def submit(self, *, timeout: float = buffers.TIMEOUT) -> Future[None]:
        """Begins all of them, now; the future is done when the last of them is.

        If some have failed it raises the first of their errors, whose ``outcomes`` (of an ``RDMAError``) say what has
        become of each. ``timeout`` in seconds.
        """
        seconds = buffers.seconds_of(timeout)
        for tensor in self._on_devices:
            finish_pending(tensor)
        orders, used = [], []
        for kind, buffer, memory, operand, expected in self._operations:
            if buffer is not None:
                buffer._enter()
                used.append(buffer)  # and kept: with its last handle here a buffer may end
            orders.append((kind, None if buffer is None else buffer._handle, memory, operand, expected))
        olds = tuple(self._olds)
        submitted = tuple(each for each in self._operations if each[1] is not None)

        def finish(outcomes: list[Any]) -> None:
            for each in used:
                buffers.warn_of_tcp(each._handle)
            for old, outcome in zip(olds, outcomes):
                if old is not None and isinstance(outcome, int):
                    old[:] = outcome.to_bytes(8, "little", signed=True)
            if not all(outcome is None or isinstance(outcome, int) for outcome in outcomes):
                raise_first(outcomes, [_described(each, seconds) for each in submitted])

        if not orders:
            return _core.completed_future(None, False)
        self._last = _core.bulk_submit(orders, seconds, finish, None)
        return self._last

    def _add(
        self, kind: int, buffer: RDMABuffer, memory: _core.LocalMemory | None, old: Any = None,
        operand: int = 0, expected: int = 0, of: Any = None,
    ) -> RDMAAction:  # fmt: skip
        self._check_idle()
        if memory is not None and memory.on_device:
            self._on_devices.append(of)
        if old is not None:
            old = _view_of_8_bytes(old)
        self._operations.append((kind, buffer, memory, operand, expected))
        self._olds.append(old)
        return self

    def _check_idle(self) -> None:
        if self._last is not None and not self._last._ready():
            raise RuntimeError("cannot add operations to an RDMAAction that is being submitted")
        self._last = None


def _described(operation: _Operation, seconds: float) -> buffers.Operation:
    kind, buffer, memory, _, _ = operation
    assert buffer is not None
    size = memory.size if kind == WRITE and memory is not None else buffer.size()
    return buffers.Operation(kind, buffer, size, seconds)


def _expect_buffer(buffer: Any, call: str) -> None:
    if not isinstance(buffer, RDMABuffer):
        raise ValueError(f"{call}: what should be an RDMABuffer is a {type(buffer).__name__}")


def _view_of_8_bytes(old: Any) -> memoryview:
    if hasattr(old, "numpy"):
        old = old.numpy()
    memory = local_memory(old)
    if memory.size != 8 or not memory.writable:
        raise ValueError(f"the result of an atomic operation goes into 8 bytes. Got: {memory.size}")
    return memoryview(old).cast("B")
