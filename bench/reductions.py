"""One number of many ranks: call().get() and a sum, beside options(reduce="sum"), by turns in one run; medians in ms.

bench/reductions.py [rounds]: over 32 processes of this machine, and over 4 monarch-hostd with 8 processes each, on TCP.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from monarch import _core
from monarch.actor import Actor, attach_to_workers, endpoint, this_host

HOSTD = os.path.join(os.path.dirname(_core.__file__), "bin", "monarch-hostd")


class Trainer(Actor):
    @endpoint
    def number(self) -> float:
        return 0.5

    @endpoint
    def numbers(self) -> dict[str, Any]:
        return {"loss": 0.5, "samples": 32, "by_class": [1] * 100}

    @endpoint
    def array(self) -> Any:
        return numpy.ones(1 << 16, "float32")


def add(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {key: add([value[key] for value in values]) for key in first}
    return [sum(column) for column in zip(*values)] if isinstance(first, list) else sum(values)


def in_turns(ways: list[Callable[[], Any]], rounds: int) -> list[float]:
    """What each takes, in ms."""
    taken: list[list[float]] = [[] for _ in ways]
    for turn in range(rounds + 5):
        for way, times in zip(ways, taken):
            started = time.perf_counter()
            way()
            if turn >= 5:  # the first warm up
                times.append(1000 * (time.perf_counter() - started))
    return [statistics.median(times) for times in taken]


def compare(where: str, name: str, method: Any, rounds: int) -> None:
    summed = method.options(reduce="sum")
    added, reduced = in_turns([lambda: add(method.call().get().values()), lambda: summed.call().get()], rounds)
    print(
        f"{where:14} {name:8} call and sum {added:7.3f}   reduce {reduced:7.3f}   {added / reduced:5.2f} times",
        flush=True,
    )


def compare_all(where: str, trainers: Any, rounds: int) -> None:
    for name in ("number", "numbers", "array"):
        compare(where, name, getattr(trainers, name), rounds)


@contextlib.contextmanager
def daemons(count: int) -> Iterator[list[str]]:
    """Their addresses."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        os.environ["MONARCH_TOKEN_FILE"] = f"{folder}/token"
        addresses = []
        for number in range(count):
            command = [HOSTD, f"tcp://127.0.0.{number + 2}:0", "--python", sys.executable]
            process = ends.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            ends.callback(process.terminate)
            assert process.stdout is not None
            addresses.append(process.stdout.readline().strip())
        yield addresses


def main(rounds: int) -> None:
    procs = this_host().spawn_procs({"gpus": 32})
    compare_all("32 processes", procs.spawn("trainers", Trainer), rounds)
    procs.stop().get()
    with daemons(4) as addresses:
        hosts = attach_to_workers(workers=list(addresses), name="hosts")
        compare_all("4 hosts of 8", hosts.spawn_procs({"gpus": 8}).spawn("trainers", Trainer), rounds)
        hosts.stop().get()


main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
