"""What runs in the processes of a storm: work with answers that can be checked, and ways to come to harm."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import zlib
from typing import Any

from monarch.actor import Actor, MeshFailure, Port, context, current_rank, endpoint, this_host

Answer = tuple[int, Any]  # the rank that has answered, and what


class Harm(Exception):
    """Raised on purpose; its text says which one."""


def come_to_harm(how: str, word: Any) -> None:
    """Does not return."""
    if how == "os._exit":
        os._exit(word)
    if how == "null pointer":
        ctypes.string_at(0)
    if how == "exception":
        raise Harm(word)
    if how == "SystemExit":
        sys.exit(word)
    if how == "abort":
        context().actor_instance.abort(word)


class Worker(Actor):
    def __init__(self, failing: tuple[int, ...] = (), word: str = "") -> None:
        self.rank = current_rank().rank  # that of a call is its place in the slice that is called
        if self.rank in failing:
            raise Harm(word)

    @endpoint
    def pid(self) -> Answer:
        return self.rank, os.getpid()

    @endpoint
    def square(self, x: int) -> Answer:
        return self.rank, x * x

    @endpoint
    def checksum(self, block: bytes) -> Answer:
        return self.rank, zlib.crc32(block)

    @endpoint
    def block(self, size: int, fill: int) -> Answer:
        return self.rank, bytes([fill]) * size

    @endpoint
    def post(self, port: Port[Answer], count: int) -> None:
        for number in range(count):
            port.send((self.rank, number))

    @endpoint
    def ask(self, other: Any, x: int) -> Answer:
        """A call between two workers."""
        return self.rank, other.square.call_one(x).get()

    @endpoint
    def fork(self, code: int) -> Answer:
        pid = os.fork()
        if pid == 0:
            os._exit(code)
        return self.rank, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @endpoint
    def run_program(self, text: str) -> Answer:
        return self.rank, subprocess.run(["echo", text], capture_output=True, text=True).stdout.strip()

    @endpoint
    def leave_program(self) -> Answer:
        """Which ends with this process."""
        return self.rank, subprocess.Popen(["sleep", "1000"]).pid

    @endpoint
    def harm(self, how: str, word: Any) -> None:
        come_to_harm(how, word)


class AsyncWorker(Worker):
    """The same, with an event loop that is never idle for long."""

    @endpoint
    async def square(self, x: int) -> Answer:
        await asyncio.sleep(0.001)
        return self.rank, x * x

    @endpoint
    async def ask(self, other: Any, x: int) -> Answer:
        return self.rank, await other.square.call_one(x)


class Owner(Actor):
    """Owns a mesh of processes, and leaves to its own owner what fails there."""

    def __init__(self, answer: str, word: str) -> None:
        self.answer, self.word = answer, word
        self.told: list[tuple[str, int, str]] = []
        self.hire()

    def hire(self) -> None:
        self.procs = this_host().spawn_procs({"gpus": 2}, name=f"{self.word}-kids-procs")
        self.workers = self.procs.spawn(f"{self.word}-kids", Worker)

    def decide(self, failure: MeshFailure) -> bool:
        self.told.append((failure.mesh_name, failure.crashed_ranks[0], failure.report()))
        if self.answer == "raises":
            raise Harm(self.word)
        return self.answer == "handles"

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def harm(self, how: str, word: Any) -> None:
        come_to_harm(how, word)

    @endpoint
    def kids(self) -> Any:
        return self.workers

    @endpoint
    def failures(self) -> list[tuple[str, int, str]]:
        return self.told

    @endpoint
    def replace(self) -> None:
        """Those that have failed, and the others, with new ones."""
        self.procs.stop().get()
        self.hire()

    @endpoint
    def squares(self, x: int) -> list[Answer]:
        return list(self.workers.square.call(x).get().values())


class SyncOwner(Owner):
    def __supervise__(self, failure: MeshFailure) -> bool:
        return self.decide(failure)


class AsyncOwner(Owner):
    async def __supervise__(self, failure: MeshFailure) -> bool:
        await asyncio.sleep(0.001)
        return self.decide(failure)

    @endpoint
    async def squares(self, x: int) -> list[Answer]:
        return list((await self.workers.square.call(x)).values())
