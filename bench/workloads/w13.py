"""W13: buffers of another process: read and written, one at a time, and the limits of that in the same program.

W13s: the buffer lies in memory that is mapped (monarch.empty). W13v: in ordinary memory, which the kernel copies
(process_vm_readv). W13w: writes to ordinary memory.
W13x<row>: the same readings as a part of the limit's, which alternates with them: numpy.copyto for s, a bare
process_vm_readv of the same memory for v and w.
W13c: registration, first contact and first read, between two fresh processes.
"""

import ctypes
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import (  # noqa: E402
    NotOffered,
    Stage,
    expect,
    latency_of_few,
    load_system,
    median,
    parse_arguments,
    percentile,
    run_rows,
)

SIZES = {"64": 64, "4K": 4 << 10, "1M": 1 << 20, "4M": 4 << 20, "64M": 64 << 20}
KINDS = {"s": "mapped", "v": "ordinary", "w": "ordinary"}
ROWS = [f"W13{kind}_{size}" for kind in KINDS for size in SIZES]
PARTS = [f"W13x{kind}_{size}" for kind in KINDS for size in ("4M", "64M")]
COLD = "W13c_1M"
PAGE = 4096


class IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def bare_reader(pid, address, target):
    """-> function: one process_vm_readv of all of it."""
    call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    here = IoVec(target.ctypes.data, target.nbytes)
    there = IoVec(address, target.nbytes)

    def read():
        got = call(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if got != target.nbytes:
            raise OSError(ctypes.get_errno(), "process_vm_readv")

    return read


def array_at_page(size):
    """Zeros that begin with a page. NumPy's begin 16 bytes into one, and memory of MPI's windows 8: where the target
    begins so little further into its page than the source, memcpy was seen to be 12 times slower, on an AMD EPYC."""
    import numpy

    array = numpy.zeros(size + PAGE, "u1")
    start = -array.ctypes.data % PAGE
    return array[start : start + size]


def timed(function):
    start = time.perf_counter_ns()
    function()
    return time.perf_counter_ns() - start


def measure(system, kind, size, seconds, with_limit):
    import numpy

    operate, pid, address = system.buffer_operation(KINDS[kind], size, kind == "w")
    array = array_at_page(size)
    target = memoryview(array)
    written = [4, 7, 11]
    array[-3:] = written
    operate(target)
    if kind == "w":
        expect(system.buffer_tail(), written)
    else:
        expect(array[-3:].tolist(), [(size - 3 + i) % 251 for i in range(3)])
    limit = None
    if with_limit and kind == "s":
        source, into = numpy.ones(size, "u1"), array_at_page(size)

        def limit():
            numpy.copyto(into, source)
    elif with_limit:
        limit = bare_reader(pid, address, array_at_page(size))
    times, limits, end = [], [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        times.append(timed(lambda: operate(target)))
        if limit is not None:
            limits.append(timed(limit))
    expect(system.buffer_tail(), array[-3:].tolist())
    return times, limits


def main():
    arguments = parse_arguments([*ROWS, *PARTS, COLD])
    system = load_system(arguments.system)
    if system.is_worker():
        return system.serve()
    stage = Stage(system, arguments.placement)

    def row_of(row):
        def run():
            stage.ready()
            kind, size_name = row[3:].split("_")
            size, with_limit = SIZES[size_name], kind.startswith("x")
            if with_limit and arguments.system != "ours":
                raise NotOffered("a part of ours")
            times, limits = measure(system, kind[-1], size, arguments.seconds, with_limit)
            if with_limit:
                parts = [limit / own for own, limit in zip(times, limits)]
                return {"unit": "x", "value": median(parts), "count": len(parts), "samples": parts}
            if size < 1 << 20:
                us = [each / 1e3 for each in times]
                return {
                    "unit": "us",
                    "value": median(us),
                    "p99": percentile(sorted(us), 0.99),
                    "count": len(us),
                    "samples": us,
                }
            rates = [size / each for each in times]
            return {"unit": "GB/s", "value": size / median(times), "count": len(times), "samples": rates}

        return run

    def cold():
        parts = []

        def measure():
            parts.append(system.cold_read(SIZES["1M"], arguments.placement))
            return sum(parts[-1])

        line = latency_of_few(measure, arguments.seconds)
        of_handle, of_read = zip(*parts[1:])  # the first one warmed
        return {**line, "handle_ms": median(of_handle), "read_ms": median(of_read)}

    run_rows(arguments, system, {**{row: row_of(row) for row in ROWS + PARTS}, COLD: cold})
    stage.end()


main()
