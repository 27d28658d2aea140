import asyncio
import os
import signal
import sys
import threading
import time

from monarch.actor import Actor, SupervisionError, endpoint, this_host


class Kid(Actor):
    def __init__(self, failing: bool = False) -> None:
        if failing:
            raise ValueError("at birth")

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def fail(self) -> None:
        raise ValueError("bang")

    @endpoint
    def die_after(self, data: bytes) -> None:
        """Having written that to stderr."""
        os.write(2, data) if data else None
        os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def flood(self, lines: int) -> None:
        for _ in range(lines):
            os.write(2, b"x" * 1023 + b"\n")
        os.write(2, b"y" * (3 << 20))  # a line that is too long for one
        os.kill(os.getpid(), signal.SIGKILL)


class Owner(Actor):
    """``how``: what its hook does."""

    def __init__(self, how: str, victim: int = 0, count: int = 2) -> None:
        self.how, self.victim = how, victim
        self.asked: list[int] = []
        self.procs = this_host().spawn_procs({"gpus": 2}, name="kids")
        self.kids = self.procs.options(per_proc={"actors": count // 2}).spawn("kid", Kid)

    def decide(self, rank: int) -> bool:
        self.asked.append(rank)
        if self.how == "kills":
            os.kill(self.victim or os.getpid(), signal.SIGKILL)
        if self.how == "is slow":
            time.sleep(0.01)
        if self.how == "spawns again":
            self.procs.spawn("again", Kid, True)
            return len(self.asked) < 20
        return True

    @endpoint
    def mesh(self) -> Kid:
        return self.kids

    @endpoint
    def seen(self) -> list[int]:
        return self.asked

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def spawn_what_fails(self) -> None:
        self.procs.slice(gpus=0).spawn("again", Kid, True)


class SyncOwner(Owner):
    def __supervise__(self, failure: object) -> bool:
        if self.how == "hangs":
            print("hangs")
            threading.Event().wait()
        return self.decide(failure.crashed_ranks[0])  # type: ignore[attr-defined]


class AsyncOwner(Owner):
    async def __supervise__(self, failure: object) -> bool:
        if self.how == "hangs":
            print("hangs")
            await asyncio.Event().wait()
        return self.decide(failure.crashed_ranks[0])  # type: ignore[attr-defined]

    @endpoint
    async def seen(self) -> list[int]:
        return self.asked


class Boss(Actor):
    """The owner of an owner whose hook kills this one's process."""

    @endpoint
    def hire(self, kind: type[Owner]) -> Owner:
        self.procs = this_host().spawn_procs(name="hired")
        self.owner = self.procs.spawn("owner", kind, "kills", os.getpid())
        self.owner.mesh.call_one().get()
        return self.owner


def error_of(call: object) -> SupervisionError:
    try:
        call()  # type: ignore[operator]
    except SupervisionError as error:
        return error
    sys.exit("no error")


def until(there: object, limit: float = 20) -> None:
    end = time.monotonic() + limit
    while not there():  # type: ignore[operator]
        assert time.monotonic() < end, "too late"
        time.sleep(0.005)
