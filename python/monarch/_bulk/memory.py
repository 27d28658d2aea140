"""Memory of this process: tensors, arrays and whatever has the buffer protocol, of any shape and strides."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from monarch import _core


class Kind(NamedTuple):
    """What it is, so that ``RDMABuffer.read`` makes the same."""

    of: str  # "torch", "numpy" or "bytes"
    dtype: Any  # a str; of NumPy's with fields the dtype
    shape: tuple[int, ...]
    itemsize: int


def local_memory(data: Any) -> _core.LocalMemory:
    """The memory of ``data``, which is kept as long as that. ``ValueError`` if it has none that can be used."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        return _of_tensor(torch, data)
    got = type(data).__name__
    if got == "RDMABuffer":
        raise ValueError("memory of this process was expected. Got: an RDMABuffer; are the arguments swapped?")
    if getattr(getattr(data, "dtype", None), "hasobject", False):
        got += f" with items that are objects of this process, {data.dtype}"
    elif data is not None:
        try:
            return _core.memory_of_buffer(data)
        except (BufferError, TypeError) as error:
            got += f" ({error})"
    raise ValueError(
        f"RDMABuffer only supports torch.Tensor, numpy.ndarray and what has the buffer protocol. Got: {got}"
    )


def _of_tensor(torch: Any, tensor: Any) -> _core.LocalMemory:
    if hasattr(tensor, "to_local"):  # a DTensor: its shard
        tensor = tensor.to_local()
    tensor = tensor.detach()
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError(f"RDMABuffer only supports dense tensors. Got: {tensor.layout}, {tensor.dtype}")
    if tensor.is_conj() or tensor.is_neg():
        how = "resolve_conj" if tensor.is_conj() else "resolve_neg"
        raise ValueError(
            f"RDMABuffer only supports tensors that lie in memory as they are. Got: a lazy view; use .{how}()"
        )
    if tensor.is_meta:
        raise ValueError("RDMABuffer only supports tensors with memory. Got: a tensor on meta")
    where = tensor.device.type
    size = tensor.element_size()
    strides = [stride * size for stride in tensor.stride()]
    why = "" if where in ("cpu", "cuda") else "of devices it knows those of CUDA"
    if where == "cuda":
        finish_pending(tensor)
    try:
        if not why:
            return _core.memory_at_address(
                tensor, tensor.data_ptr(), size, list(tensor.shape), strides, True, where == "cuda"
            )
    except ValueError as error:
        why = str(error)
    raise ValueError(
        f"RDMABuffer only supports memory of the CPU here: {why}. Got: a tensor on {tensor.device}; copy it with .cpu()"
    )


def finish_pending(tensor: Any) -> None:
    """Waits for the kernels that the current stream of its device has been given: they may write it still."""
    torch: Any = sys.modules["torch"]
    torch.cuda.current_stream(tensor.device).synchronize()


def kind_of(data: Any) -> Kind:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        local = data.to_local() if hasattr(data, "to_local") else data
        return Kind("torch", str(local.dtype).rpartition(".")[2], tuple(local.shape), local.element_size())
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(data, numpy.ndarray):
        plain = data.dtype.names is None and data.dtype.subdtype is None
        return Kind("numpy", data.dtype.str if plain else data.dtype, data.shape, data.itemsize)
    return of_bytes(memoryview(data).nbytes)


def dtype_of(kind: Kind) -> Any:
    """One name for what NumPy and torch both have: ``float32``."""
    numpy: Any = sys.modules.get("numpy")
    if kind.of != "numpy" or not isinstance(kind.dtype, str) or numpy is None:
        return kind.dtype
    dtype = numpy.dtype(kind.dtype)
    return dtype.name if dtype.isnative and dtype.kind in "biufc" else kind.dtype


def of_bytes(size: int) -> Kind:
    return Kind("bytes", "", (size,), 1)


def make(kind: Kind, size: int) -> Any:
    """New memory of that kind, with ``size`` bytes."""
    if kind.of == "torch":
        torch: Any = __import__("torch")

        return torch.empty(kind.shape, dtype=getattr(torch, kind.dtype))
    if kind.of == "numpy":
        numpy: Any = __import__("numpy")

        return numpy.empty(kind.shape, kind.dtype)
    return memoryview(bytearray(size))
