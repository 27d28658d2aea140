"""What runs on the hosts of a soak: they import this, and not what drives them."""

from __future__ import annotations

import os
import socket
import struct

from monarch.actor import Actor, Port, endpoint


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])


def host_of_this_process() -> int:
    """Its host has started the fork server, or has been given it by a holder of a single thread, a child of the daemon.

    Then it is who has made the socket to this process, as a grandchild of that daemon.
    """
    starter = parent_of(os.getppid())
    if len(os.listdir(f"/proc/{starter}/task")) > 1:
        return starter
    makers = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(fd)) as end:
                makers.add(struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
        except OSError:
            continue  # no socket
    daemon = parent_of(starter)
    (host,) = (pid for pid in makers - {0, os.getpid()} if parent_of(parent_of(pid)) == daemon)
    return host


class Worker(Actor):
    @endpoint
    def pids(self) -> tuple[int, int]:
        """Its own, and that of its host."""
        return os.getpid(), host_of_this_process()

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
