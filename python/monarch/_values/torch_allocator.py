"""Tensors that torch makes, in memory as that of :func:`monarch.empty`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from monarch._values.frozen import FREEZABLE_MIN, empty


def torch_allocator() -> AbstractContextManager[Any]:
    """While it is entered, in this thread, the tensors that torch makes on the CPU lie in memory that others can map.

    ``with torch_allocator(): model = Net()``, or ``load_state_dict(..., assign=True)``: buffers of its parameters are
    read by mapped memory on the same host, and :func:`monarch.freeze` need not copy them. What is smaller than 64 KiB,
    a view of what was there before, or not dense, stays what it is. Each tensor takes a file descriptor, and all but
    those of ``torch.empty`` are copied once, from where torch has made them: enter it around what makes the tensors,
    not around the computation.

    Raises ``ModuleNotFoundError`` without torch; what torch makes inside, ``MemoryError`` and ``OSError`` as
    :func:`monarch.empty`.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    of_size = torch.ops.aten.empty.memory_format

    class Allocator(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            if function is of_size and not _is_special(kwargs):
                return empty(tuple(args[0]), kwargs.get("dtype") or torch.get_default_dtype(), torch=True)
            made = function(*args, **kwargs)
            if not isinstance(made, torch.Tensor):
                return made
            return _moved(torch, made, [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)])

    return Allocator()


def _is_special(kwargs: dict[str, Any]) -> bool:
    """Not a dense tensor of the CPU, with its items in the order of its dimensions."""
    device, layout = kwargs.get("device"), kwargs.get("layout")
    return (
        (device is not None and device.type != "cpu")
        or (layout is not None and str(layout) != "torch.strided")
        or bool(kwargs.get("pin_memory"))
        or str(kwargs.get("memory_format") or "torch.contiguous_format") != "torch.contiguous_format"
    )


def _moved(torch: Any, made: Any, given: list[Any]) -> Any:
    if type(made) is not torch.Tensor or made.device.type != "cpu" or made.layout is not torch.strided:
        return made
    if made.nbytes < FREEZABLE_MIN or not made.is_contiguous() or made.is_conj() or made.is_neg() or made.is_quantized:
        return made
    storage = made.untyped_storage().data_ptr()
    if any(each.layout is torch.strided and each.untyped_storage().data_ptr() == storage for each in given):
        return made  # a view, or what was written in its place
    return empty(tuple(made.shape), made.dtype, torch=True).copy_(made)
