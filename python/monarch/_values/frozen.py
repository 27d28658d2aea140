"""Arrays and tensors that are sent without a copy: memory made for it, and frozen before it is sent."""

from __future__ import annotations

import math
import operator
import sys
from typing import Any

from monarch import _core

# Smaller ones lie in ordinary memory: a descriptor for each costs more than the copy.
FREEZABLE_MIN = 64 * 1024
# From this size on it is looked up first whether there is so much memory.
_LARGE = 64 * 1024 * 1024


def empty(shape: Any, dtype: Any = None, *, torch: bool = False) -> Any:
    """An array whose memory :func:`freeze` need not copy; as ``numpy.empty`` otherwise.

    From 64 KiB on the memory is shared memory of its own, zeros, all of which the system provides at once, and a file
    descriptor. It goes back when nothing here or in another process refers to it. Until it is frozen the array is sent
    as any other: by copy.

    Args:
        shape: An int, or a tuple of ints.
        dtype: What ``numpy.dtype`` takes, by default ``float64``; or a dtype of torch's: then it is a tensor.
        torch: It is a tensor on the CPU, by default of ``torch.get_default_dtype()``.

    Raises ``TypeError`` for a dtype that holds Python objects, ``ValueError`` for a shape that is none, ``MemoryError``
    if there is not so much memory, ``OSError`` if descriptors are short.
    """
    try:
        sizes = tuple(operator.index(size) for size in ((shape,) if hasattr(shape, "__index__") else shape))
    except TypeError:
        raise TypeError(f"a shape is an int or a tuple of ints, such as (1024, 256), and not {shape!r}") from None
    if any(size < 0 for size in sizes):
        raise ValueError(f"a size of shape {sizes} is negative")
    loaded = sys.modules.get("torch")
    if torch or (loaded is not None and isinstance(dtype, loaded.dtype)):
        return _empty_tensor(sizes, dtype)
    import numpy

    plain = numpy.dtype(dtype)
    _check_dtype(plain)
    size = math.prod(sizes) * plain.itemsize
    if size < FREEZABLE_MIN:
        return numpy.empty(sizes, plain)
    return numpy.ndarray(sizes, plain, _make_memory(size))


def freeze(value: Any) -> Any:
    """The same contents, read-only, which are not copied when they are sent to a process of this host.

    ``value`` is a NumPy array or a torch tensor on the CPU; from here on nobody may write to it, by whatever older
    view. One that fills memory of :func:`empty` is frozen where it lies; any other, and a part of such memory, is
    copied once. Who gets it, or a view of it, as an argument, in a result or deep in another value, sees the same
    memory, and may send it on. On other hosts it is a copy, of NumPy read-only too. Results of ``reduce=`` are new.

    A write is an error: a ``ValueError`` of NumPy's where it knows, else (an older view, a tensor: torch has none that
    are read-only) SIGSEGV, which ends the process. What is smaller than 64 KiB is an ordinary copy: of NumPy read-only,
    of torch not.

    Raises ``TypeError`` for anything else: objects as items, subclasses of arrays, tensors of a GPU, that require a
    gradient or are not dense; ``MemoryError`` and ``OSError`` as :func:`empty`.
    """
    torch = _torch_of(value, "freeze")
    if torch is not None:
        return _freeze_tensor(torch, value)
    if not is_frozen(value):
        value = _frozen_array(sys.modules["numpy"], value)
    view = value.view()
    view.flags.writeable = False
    return view


def thaw(value: Any) -> Any:
    """The same contents, writable: a copy, of frozen memory made page by page as it is written.

    ``value`` is a NumPy array or a torch tensor on the CPU, as it has arrived, say. What is written is seen in the
    result only. The rest of it goes on being the frozen memory, which lives as long as the result does; the result is
    sent as any other array: by copy. Copied at once is what does not lie in frozen memory, takes less than 64 KiB, or
    has items that share bytes (of ``broadcast_to``, ``expand``, windows), and what cannot be mapped for a shortage.

    Raises ``TypeError`` as :func:`freeze`; ``MemoryError`` if there is no memory for a copy. To write may find that
    there is not so much memory then, which ends the process, as it does in any memory that has not been touched.
    """
    torch = _torch_of(value, "thaw")
    if torch is not None:
        return _thaw_tensor(torch, value)
    import numpy

    first, size = _bounds(value)
    memory = _core.thawed(first, size) if _is_worth_mapping(value.nbytes, value.shape, value.strides) else None
    if memory is None:
        return value.copy("K")
    return numpy.ndarray(value.shape, value.dtype, memory, value.ctypes.data - first, value.strides)


def _is_worth_mapping(size: int, shape: Any, strides: Any) -> bool:
    """And no item's bytes are another one's, too: each stride leads beyond all that those within it reach over."""
    reach = 0
    for stride, count in sorted((abs(stride), count) for stride, count in zip(strides, shape) if count > 1):
        if stride <= reach:
            return False
        reach += stride * (count - 1)
    return size >= FREEZABLE_MIN


def _torch_of(value: Any, asked: str) -> Any:
    """The module, if it is a tensor; None: an array. ``TypeError``: neither, or not a plain one."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        _check_tensor(torch, value, asked)
        return torch
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray):
        raise TypeError(f"{asked}() takes a NumPy array or a torch tensor, and not {type(value).__name__!r}")
    if type(value) is not numpy.ndarray:
        raise TypeError(
            f"{asked}() takes plain arrays, and not {type(value).__name__!r}: pass numpy.asarray(...) of it"
        )
    _check_dtype(value.dtype)
    return None


def is_frozen(array: Any) -> bool:
    """Whether all of the array lies in frozen memory."""
    first, size = _bounds(array)
    return size != 0 and _core.is_frozen(first, size)


def reduce(array: Any) -> Any:
    """For ``reducer_override``, of a read-only array: what NumPy would copy into the pickle, which forgets that.

    ``NotImplemented``: it would not.
    """
    if array.dtype.kind not in "mM" and (array.flags.c_contiguous or array.flags.f_contiguous):
        return NotImplemented
    first, size = _bounds(array)
    if not size or size > 2 * array.nbytes or not _core.is_frozen(first, size):
        return _read_only, (array.copy(),)
    import pickle

    memory = _core.memory_at(first, size)
    start = first - _core.buffer_address(memory)
    layout = array.shape, array.strides, array.ctypes.data - first
    return _strided, (pickle.PickleBuffer(memoryview(memory)[start : start + size]), array.dtype, *layout)


def _strided(buffer: Any, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Any:
    import numpy

    return _read_only(numpy.ndarray(shape, dtype, buffer, offset, strides))


def _read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


def _check_dtype(dtype: Any) -> None:
    if dtype.hasobject:
        raise TypeError(f"items of dtype {dtype} are objects of this process, and cannot be frozen: they are pickled")


def _make_memory(size: int) -> Any:
    if size > _core.FREEZABLE_BYTES_MAX:
        raise MemoryError(
            f"cannot make {_gib(size)} of shared memory: at most {_gib(_core.FREEZABLE_BYTES_MAX)} at a time"
        )
    if size >= _LARGE:
        available = _available()
        if available is not None and size > available:
            raise MemoryError(f"cannot make {_gib(size)} of shared memory: {_gib(available)} of memory are available")
    return _core.make_memory(size)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _available() -> int | None:
    """Bytes that the system can give; None: it does not say."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def _bounds(array: Any) -> tuple[int, int]:
    """Where the items of an array begin, and how many bytes they reach over."""
    if array.size == 0:
        return array.ctypes.data, 0
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides)]
    before = sum(step for step in steps if step < 0)
    after = sum(step for step in steps if step > 0)
    return array.ctypes.data + before, after - before + array.itemsize


def _frozen_array(numpy: Any, array: Any) -> Any:
    if array.nbytes < FREEZABLE_MIN:
        # Over bytes, so that nobody makes it writable again.
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        return numpy.ndarray(array.shape, array.dtype, array.tobytes(order), order=order)
    memory = _memory_filled_by(array)
    if memory is None:
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        memory = _make_memory(array.nbytes)
        copy = numpy.ndarray(array.shape, array.dtype, memory, order=order)
        numpy.copyto(copy, array)
        array = copy
    _core.freeze_memory(memory)
    above = array
    while isinstance(above, numpy.ndarray):  # those that are known say so before the memory does
        above.flags.writeable = False
        above = above.base
    return array


def _memory_filled_by(array: Any) -> Any:
    first, size = _bounds(array)
    if size != array.nbytes or not (array.flags.c_contiguous or array.flags.f_contiguous):
        return None
    return _memory_of(first, size)


def _memory_of(first: int, size: int) -> Any:
    """The memory that these bytes are all of; None: there is none."""
    memory = _core.memory_at(first, size)
    return memory if memory is not None and len(memoryview(memory)) == size else None


# ---- Tensors ----


def _empty_tensor(sizes: tuple[int, ...], dtype: Any) -> Any:
    torch: Any = __import__("torch")

    if dtype is None:
        dtype = torch.get_default_dtype()
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"a tensor has a dtype of torch's, and not {dtype!r}")
    size = math.prod(sizes) * dtype.itemsize
    if size < FREEZABLE_MIN:
        return torch.empty(sizes, dtype=dtype)
    return torch.frombuffer(_make_memory(size), dtype=dtype).view(sizes)


def _check_tensor(torch: Any, tensor: Any, asked: str) -> None:
    if type(tensor) is not torch.Tensor:
        raise TypeError(f"{asked}() takes plain tensors, and not {type(tensor).__name__!r}")
    if tensor.device.type != "cpu":
        raise TypeError(f"a tensor on {tensor.device} cannot be frozen: {asked}(tensor.cpu())")
    if tensor.requires_grad:
        raise TypeError(f"a tensor that requires a gradient cannot be frozen: {asked}(tensor.detach())")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise TypeError("only plain dense tensors can be frozen")


def _freeze_tensor(torch: Any, tensor: Any) -> Any:
    storage = tensor.untyped_storage()
    first, size = storage.data_ptr(), storage.nbytes()
    if size == 0 or _core.is_frozen(first, size):
        return tensor
    memory = _memory_of(first, size) if tensor.is_contiguous() and tensor.nbytes == size else None
    if memory is None:
        if tensor.nbytes < FREEZABLE_MIN:
            return tensor.clone()
        memory = _make_memory(tensor.nbytes)
        tensor = torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape).copy_(tensor)
    _core.freeze_memory(memory)
    return tensor


def _thaw_tensor(torch: Any, tensor: Any) -> Any:
    storage = tensor.untyped_storage()
    is_worth_it = _is_worth_mapping(tensor.nbytes, tensor.shape, tensor.stride())
    memory = _core.thawed(storage.data_ptr(), storage.nbytes()) if is_worth_it else None
    if memory is None:
        return tensor.clone(memory_format=torch.contiguous_format)
    whole = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(whole, tensor.storage_offset(), tensor.shape, tensor.stride())
