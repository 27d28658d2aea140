"""What the scripts of test_rdma_cuda.py begin with."""

import ctypes
import os
import signal  # noqa: F401
import sys
import types
from typing import Any

from monarch.actor import Actor, endpoint, this_host  # noqa: F401
from monarch.rdma import RDMAAction, RDMABuffer  # noqa: F401


def fake_torch():
    """A torch with nothing but tensors of bytes, on the devices of the stand-in driver (tests/native/fake_cuda.cc)."""
    if "torch" in sys.modules:
        return sys.modules["torch"]
    torch: Any = types.ModuleType("torch")
    torch.strided, torch.synchronized = "strided", 0
    torch.driver = ctypes.CDLL(os.environ["MONARCH_CUDA_LIBRARY"])
    torch.driver.fake_cuda_allocate.restype = ctypes.c_uint64
    torch.driver.fake_cuda_bytes.restype = ctypes.c_void_p

    class Device:
        def __init__(self, index):
            self.type, self.index = "cuda", index

        def __str__(self):
            return f"cuda:{self.index}"

    class Stream:
        def synchronize(self):
            torch.synchronized += 1

    class Tensor:
        is_nested = is_quantized = is_meta = False
        layout, dtype = "strided", "torch.uint8"

        def __init__(self, size, device=0, shareable=True):
            self.shape, self.device = (size,), Device(device)
            self.at = torch.driver.fake_cuda_allocate(ctypes.c_uint64(size), device, int(shareable))

        def detach(self):
            return self

        def is_conj(self):
            return False

        is_neg = is_conj

        def element_size(self):
            return 1

        def stride(self):
            return (1,)

        def data_ptr(self):
            return self.at

        @property
        def seen(self):
            found = torch.driver.fake_cuda_bytes(ctypes.c_uint64(self.at))
            return memoryview((ctypes.c_char * self.shape[0]).from_address(found)).cast("B")

    torch.Tensor = Tensor
    torch.cuda = types.SimpleNamespace(current_stream=lambda device: Stream())
    sys.modules["torch"] = torch
    return torch


class Owner(Actor):
    def __init__(self, library=None):
        if library is not None:
            os.environ["MONARCH_CUDA_LIBRARY"] = library

    @endpoint
    def buffer(self, size, shareable=True):
        self.tensor = fake_torch().Tensor(size, 1, shareable)
        self.tensor.seen[:] = bytes(i % 251 for i in range(size))
        return RDMABuffer(self.tensor)

    @endpoint
    def contents(self):
        return bytes(self.tensor.seen)

    @endpoint
    def read(self, buffer):
        there = bytearray(buffer.size())
        buffer.read_into(there).get()
        return bytes(there), buffer.explain()

    @endpoint
    def pid(self):
        return os.getpid()


def told(call):
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


SIZE = 300_000
WHOLE = bytes(i % 251 for i in range(SIZE))
