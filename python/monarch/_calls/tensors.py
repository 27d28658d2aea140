"""Torch tensors in messages: their memory travels beside the pickle, and is copied once, into the message.

A tensor arrives on the CPU, writable, with its own copy of the memory, but for what is frozen; tensors of one message
that share memory share it there too. This module is loaded with the first tensor, and imports torch only where it is
received.
"""

from __future__ import annotations

from typing import Any

from monarch import _core


class Storage:
    """The memory of one or more tensors of a message, while it is pickled."""

    __slots__ = ("_memory", "_origin")

    def __init__(self, origin: Any) -> None:
        self._origin = origin  # kept: another storage could get its address
        self._memory = origin if origin.device.type == "cpu" else origin.cpu()

    def __reduce__(self) -> Any:
        import ctypes
        import pickle

        size = self._memory.nbytes()
        if size == 0:
            return _storage, (b"",)
        view = (ctypes.c_ubyte * size).from_address(self._memory.data_ptr())
        view._storage = self._memory  # keeps it as long as the view
        return _storage, (pickle.PickleBuffer(view),)


def reduce(torch: Any, tensor: Any, storages: dict[int, Any]) -> Any:
    """For ``reducer_override``: plain dense tensors. Others (sparse, quantised, subclasses) pickle as torch does it."""
    plain = (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor._backward_hooks or vars(tensor))
    )
    if not plain:
        return NotImplemented
    memory = tensor.untyped_storage()
    storage = storages.get(memory._cdata)
    if storage is None:
        storage = storages[memory._cdata] = Storage(memory)
    layout = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
    return _tensor, (storage, tensor.dtype, layout, tensor.requires_grad)


def _storage(buffer: Any) -> Any:
    torch: Any = __import__("torch")

    if len(buffer) == 0:
        return torch.UntypedStorage(0)
    if memoryview(buffer).readonly:  # frozen: torch, which knows nothing of the kind, would warn
        import ctypes

        view: Any = (ctypes.c_ubyte * len(buffer)).from_address(_core.buffer_address(buffer))
        view._storage = buffer  # keeps it as long as the view
        buffer = view
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _tensor(storage: Any, dtype: Any, layout: tuple[int, tuple[int, ...], tuple[int, ...]], requires_grad: bool) -> Any:
    torch: Any = __import__("torch")

    tensor = torch.empty(0, dtype=dtype).set_(storage, *layout)
    return tensor.requires_grad_() if requires_grad else tensor
