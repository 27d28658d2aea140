"""What runs on the hosts of a soak: they import this, and not what drives them."""

from __future__ import annotations

import os

from monarch.actor import Actor, Port, endpoint


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


class Worker(Actor):
    @endpoint
    def pids(self) -> tuple[int, int]:
        """Its own, and that of its host, which has started the fork server."""
        return os.getpid(), parent_of(os.getppid())

    @endpoint
    def square(self, x: int) -> int:
        return x * x

    @endpoint
    async def ask(self, other: Worker, x: int) -> int:
        return await other.square.call_one(x)

    @endpoint
    def same(self, data: bytes) -> bytes:
        return data

    @endpoint
    def fail(self, word: str) -> None:
        raise ValueError(word)

    @endpoint
    def send_numbers(self, port: Port[int], count: int) -> None:
        for number in range(count):
            port.send(number)
