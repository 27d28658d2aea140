"""Exceptions whose classes raise when they are asked: what callers and the owner are told of them."""

import asyncio
import sys
import threading
from typing import Any, NoReturn

import monarch.actor
from monarch.actor import Actor, ActorError, MeshFailure, SupervisionError, endpoint, this_host


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Hides(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def raise_it(name: str) -> NoReturn:
    raise {each.__name__: each for each in (NoText, Exits, Hides)}[name]()


class Sync(Actor):
    def __init__(self, name: str = "") -> None:
        if name:
            raise_it(name)

    @endpoint
    def fail(self, name: str) -> None:
        raise_it(name)

    @endpoint
    def well(self) -> int:
        return 1


class Async(Actor):
    @endpoint
    async def fail(self, name: str) -> None:
        await asyncio.sleep(0)
        raise_it(name)

    @endpoint
    async def well(self) -> int:
        return 1


told: list[str] = []
both = threading.Semaphore(0)


def note(failure: MeshFailure) -> None:
    told.append(failure.report())
    both.release()


def text_of(call: Any, kind: type[Exception]) -> str:
    try:
        call.get(timeout=30)
    except kind as error:
        return str(error)
    raise AssertionError("it did not fail")


name = sys.argv[1]
monarch.actor.unhandled_fault_hook = note
procs = this_host().spawn_procs()
for cls in (Sync, Async):
    actor: Any = procs.spawn("actor", cls)
    texts = [text_of(actor.fail.call_one(name), ActorError)]
    texts.append(text_of(actor.fail.options(deadline=60).call_one(name), ActorError))
    assert actor.well.call_one().get(timeout=30) == 1
    for text in texts:
        assert ", in raise_it\n" in text and name in text.splitlines()[-1], text
broken, failed = procs.spawn("broken", Sync, name), procs.spawn("failed", Sync)
failed.fail.broadcast(name)
told += [text_of(each.well.call_one(), SupervisionError) for each in (broken, failed)]
assert both.acquire(timeout=30) and both.acquire(timeout=30)
for text in told:
    assert f"failed: {name}: " in text and ", pid " in text and ", in raise_it\n" in text, text
    assert name == "Hides" or "<exception str() failed>" in text, text
