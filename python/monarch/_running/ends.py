"""The end of an actor, and what becomes of messages that found nobody."""

from __future__ import annotations

import os
from typing import Any

from monarch._actors.declarations import is_async
from monarch._errors.exceptions import SetupFailed
from monarch._errors.tracebacks import format_exception, text_of
from monarch._meshes import owned
from monarch._meshes.instance import ActorInstance
from monarch._meshes.spawning import ProcMeshParts
from monarch._runtime import forks, runtime


def format_failure(error: BaseException, identity: ActorInstance | None) -> str:
    """Why an actor has failed: who, where, then the traceback."""
    if identity is None:
        return format_exception(error).rstrip()
    rank = identity.rank
    where = f"rank {rank!r} of {identity.name!r}" if len(rank) else repr(identity.name)
    who = f"{where} ({identity.class_name}, pid {os.getpid()})"
    if type(error) is SetupFailed:  # the actor is well, its process is not
        procs = f" of {ProcMeshParts(*identity._procs).name!r}" if identity._procs else ""
        error, who = error.cause, f"the bootstrap function{procs} (pid {os.getpid()})"
    text = format_exception(error).rstrip().replace("\n", "\n  ")
    return f"{who} failed: {type(error).__name__}: {text_of(error)}\n  {text}"


def end_actor(cell: Any, failure: BaseException | None) -> None:
    """The last on the actor's thread: what it owns ends, its __cleanup__ hook runs, what it has held back is sent.

    Async actors have run their hook on their loop.
    """
    if cell.identity._owned is not None:
        owned.stop_and_wait(cell.identity, runtime.limit("process_exit_timeout"))
    try:
        hook = getattr(cell.instance, "__cleanup__", None)
        if hook is not None and failure is None and not is_async(hook):
            forks.call(hook, RuntimeError(cell.end_reason) if cell.failed else None)
    finally:
        runtime.flush_ports(runtime.limit("cleanup_timeout"))


class UndeliverableMessage:
    """A one-way message that found nobody: the argument of ``_handle_undeliverable_message``."""

    def __init__(self, sender: str, dest: str, text: str) -> None:
        self._sender = sender
        self._dest = dest
        self._text = text

    def sender(self) -> str:
        """The actor that sent it, as the chain of who made whom."""
        return self._sender

    def dest(self) -> str:
        """The actor that it was for, as the end of its ``actor_id``: ``<index>@node``."""
        return self._dest

    def error_msg(self) -> str:
        """Why it could not be delivered."""
        return self._text


def undeliverable(cell: Any, text: str, dest: tuple[int, int]) -> Any:
    """Asks the actor's hook about a message that found nobody, and ends it unless that says True.

    None, or a coroutine that does so.
    """
    hook = getattr(cell.instance, "_handle_undeliverable_message", None)
    dealt_with = False
    if hook is not None:
        dealt_with = forks.call(hook, UndeliverableMessage(str(cell.identity), f"<{dest[1]:x}>@{dest[0]:016x}", text))
        if hasattr(dealt_with, "__await__"):
            return _end_unless(dealt_with, cell, text)
    if not dealt_with:
        cell.end(f"undeliverable message: {text}", True)
    return None


async def _end_unless(dealt_with: Any, cell: Any, text: str) -> None:
    answer = await dealt_with
    forks.end_if_child()
    if not answer:
        cell.end(f"undeliverable message: {text}", True)
