"""A program as a user would write it, run in simulated processes with kills: farm.py SEED [SEED ...].

Workers do jobs for a coordinator, which spawns helpers; whoever dies is respawned or made anew by a policy. Each job is
tried until it is done. Prints all that has happened, so two runs can be compared.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from monarch.actor import (
    Actor,
    ActorError,
    Channel,
    MeshFailure,
    Port,
    Restart,
    SupervisionError,
    context,
    current_rank,
    endpoint,
    this_host,
    this_proc,
)
from monarch.testing import simulate


class Helper(Actor):
    @endpoint
    def double(self, x: int) -> int:
        time.sleep(0.01)
        return 2 * x


class Worker(Actor):
    def __init__(self, step: float) -> None:
        self.step = step
        self.heard = 0
        self.helper = this_proc().spawn("helper", Helper)

    @endpoint
    async def work(self, x: int) -> int:
        await asyncio.sleep(self.step * random.random())
        return await self.helper.double.call_one(x) + 1

    @endpoint
    def note(self, x: int) -> None:
        self.heard += x

    @endpoint
    def report(self, port: Port[tuple[int, int]], x: int) -> None:
        port.send((current_rank().rank, x))

    @endpoint
    def epoch(self) -> int:
        return context().epoch


class Coordinator(Actor):
    """Owns workers in processes of its own, and has what dies there respawned."""

    def __init__(self) -> None:
        self.procs = this_host().spawn_procs({"gpus": 2}, name="inner")
        self.workers = self.procs.spawn("inner_workers", Worker, 0.02)
        self.failures: list[str] = []

    @endpoint
    def ask(self, x: int) -> list[int]:
        for _ in range(50):
            try:
                return list(self.workers.work.call(x).get().values())
            except (SupervisionError, ActorError):
                self.procs.respawn().get()
        raise RuntimeError("fifty deaths one after the other")

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.failures.append(failure.kind)
        return True


def text(error: BaseException) -> str:
    """In one line: what it is, and what it says last."""
    return f"{type(error).__name__} {str(error).splitlines()[-1:]}"


def run(seed: int, kill_every: float | None = 1.0, seconds: float = 5.0) -> list[str]:
    """What happened, as lines."""
    lines: list[str] = []
    say = lines.append
    with simulate(seed=seed, kill_every=kill_every) as world:
        procs = this_host().spawn_procs({"gpus": 3})
        policy = Restart(times=1000, within=60)
        workers = procs.options(restart=policy).spawn("workers", Worker, 0.05)
        plain = this_host().spawn_procs({"gpus": 2}, name="plain")
        others = plain.spawn("others", Worker, 0.05)
        boss_procs = this_host().spawn_procs(name="boss")
        boss = boss_procs.options(restart=policy).spawn("boss", Coordinator)
        number = 0
        while world.now < seconds:
            number += 1
            try:
                values = list(workers.work.call(number).get().values())
                assert values == [2 * number + 1] * 3, values
                say(f"{world.now:.9f} {number} {values}")
            except SupervisionError as error:
                say(f"{world.now:.9f} {number} {text(error)}")
            answers = others.work.options(partial=True).call(number).get()
            for rank, answer in enumerate(answers.values()):
                assert isinstance(answer, SupervisionError) or answer == 2 * number + 1
                say(f"{world.now:.9f} partial {rank} {answer if isinstance(answer, int) else text(answer)}")
            try:
                plain.respawn().get()
                assert boss.ask.options(deadline=10.0).call_one(number).get() == [2 * number + 1] * 2
                others.note.broadcast(1)
                port, receiver = Channel.open()
                others.report.broadcast(port, number)
                for _ in range(2):
                    rank, value = receiver.recv().get(timeout=1.0)
                    assert value == number and rank in (0, 1)
                seen = [future.get() for future in others.work.stream(number)]
                assert seen == [2 * number + 1] * 2
                say(f"{world.now:.9f} epoch {others.epoch.choose().get()}")
            except (SupervisionError, ActorError, TimeoutError) as error:
                say(f"{world.now:.9f} {text(error)}")
        for mesh in (procs, plain, boss_procs):
            mesh.stop().get()
        say(f"{world.now:.9f} stopped")
    lines += [repr(event) for event in world.log]
    return [*lines, f"{world.now} {world.events}"]


if __name__ == "__main__":
    import monarch.actor

    monarch.actor.unhandled_fault_hook = lambda failure: None
    for argument in sys.argv[1:]:
        print("\n".join(run(int(argument))))
