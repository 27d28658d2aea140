"""Jobs of torchx: hosts from any scheduler that it has. They take ``pip install 'monarch-cpp[torchx]'``.

A job's roles are meshes of hosts, each of which runs ``monarch worker`` or the like; a script attaches to them by
``attach_to_workers(workers=spec.get_mesh_spec(name).server_addrs())``.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

from monarch._public import load
from monarch.tools import _torchx
from monarch.tools.config import Config
from monarch.tools.mesh_spec import ServerSpec

__all__ = ["create", "get_or_create", "info", "kill", "kill_and_confirm", "server_ready", "torchx_runner"]

_NOT_YET = {"debug"}
_KILL_S = 60.0
_KILL_INTERVAL_S = 0.2


def __getattr__(name: str) -> Any:
    return load(globals(), name, {}, _NOT_YET)


def torchx_runner() -> Any:
    """The ``Runner`` of torchx that all of these use; one for the process, which closes it at its end."""
    return _torchx.runner()


def create(config: Config, name: str | None = None) -> str | None:
    """Submits a job, and returns its handle at once; whether it runs says :func:`info`.

    Args:
        config: what it is, and where. With ``dryrun`` what would be submitted is printed, and None returned.
        name: of the job; None: that of ``config.appdef``.

    Raises:
        ModuleNotFoundError: torchx is not installed.
        ValueError: no such scheduler, or no roles; torchx adds what it finds.
    """
    return _torchx.submit(config, _torchx.checked(config, name))


def info(server_handle: str) -> ServerSpec | None:
    """What the scheduler knows of a job now; None if it knows none such. ``ValueError`` if this is no handle."""
    return _torchx.look_at(_torchx.parsed(server_handle))


async def server_ready(
    server_handle: str,
    check_interval: timedelta | float = timedelta(seconds=5),
    *,
    timeout: timedelta | float | None = None,
) -> ServerSpec | None:
    """Waits until a job runs, or has ended; None if there is none such.

    That it runs is what its scheduler says: ``attach_to_workers`` waits for the workers.

    Args:
        server_handle: as :func:`create` returns it.
        check_interval: how often to ask, a ``timedelta`` or seconds.
        timeout: for how long to wait; None: for ever.

    Raises:
        TimeoutError: it is not ready in time. The text has its state.
    """
    every, limit = _seconds(check_interval, "check_interval"), _seconds(timeout, "timeout")
    handle = _torchx.parsed(server_handle)
    _torchx.use(handle.scheduler)
    deadline = time.monotonic() + limit
    while True:
        spec = await asyncio.to_thread(_torchx.look_at, handle)
        if spec is None or spec.is_running or spec._has_ended:
            return spec
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"not ready after {limit:g} s: {spec}")
        await asyncio.sleep(min(every, left))


async def get_or_create(
    name: str,
    config: Config,
    check_interval: timedelta | float = timedelta(seconds=5),
    force_restart: bool = False,
    *,
    timeout: timedelta | float | None = None,
) -> ServerSpec:
    """The job of a name, which runs: one that runs already or is about to, else a new one.

    What was made under a name is known to later scripts of the user, but for local schedulers, whose jobs end with the
    script. Whether it was made of the same ``config`` is not looked at.

    Args:
        name: of the job.
        config: for a new one. With ``dryrun`` none is made: it is printed, and returned as ``UNSUBMITTED``.
        check_interval: how often to ask for its state, a ``timedelta`` or seconds.
        force_restart: end one that is there, and make a new one.
        timeout: for how long to wait until it runs; None: for ever.

    Raises:
        RuntimeError: the new job has ended before it was ready. The text has its state, and where its log is.
        TimeoutError: it is not ready in time; it goes on.
    """
    name = _torchx.checked(config, name)
    _seconds(check_interval, "check_interval"), _seconds(timeout, "timeout")
    _torchx.use(config.scheduler)
    spec = await asyncio.to_thread(_torchx.find, name, config.scheduler)
    if spec is not None and not spec._has_ended:
        if not force_restart:
            ready = await server_ready(spec.server_handle, check_interval, timeout=timeout)
            if ready is not None and ready.is_running:
                return ready
        elif not config.dryrun:
            await asyncio.to_thread(kill_and_confirm, spec.server_handle, _KILL_S)
    handle = await asyncio.to_thread(_torchx.submit, config, name)
    if handle is None:
        return _torchx.planned(name, config)
    ready = await server_ready(handle, check_interval, timeout=timeout)
    if ready is None:
        raise RuntimeError(f"job {handle!r} is not there any more: its scheduler has forgotten it")
    if not ready.is_running:
        words = await asyncio.to_thread(_torchx.last_words, ready)
        raise RuntimeError(f"{ready}; it has ended before it was ready{words}")
    return ready


def kill(server_handle: str) -> None:
    """Asks the scheduler to end a job, and does not wait; nothing if it has ended, or is not there."""
    handle = _torchx.parsed(server_handle)
    _torchx.use(handle.scheduler).cancel(str(handle))


def kill_and_confirm(server_handle: str, timeout: timedelta | float = timedelta(seconds=_KILL_S)) -> None:
    """Ends a job, and waits until its scheduler says that it has; ``TimeoutError`` with its state if it does not."""
    limit = _seconds(timeout, "timeout")
    deadline = time.monotonic() + limit
    kill(server_handle)
    while (spec := info(server_handle)) is not None and not spec._has_ended:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"not ended {limit:g} s after it was killed: {spec}")
        time.sleep(min(_KILL_INTERVAL_S, left))


def _seconds(duration: timedelta | float | None, name: str) -> float:
    """None is for ever."""
    if duration is None:
        return float("inf")
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, (int, float)):
        raise TypeError(f"{name} must be a timedelta or seconds, but is {duration!r}")
    if not duration >= 0:
        raise ValueError(f"{name} must not be negative, but is {duration!r}")
    return float(duration)
