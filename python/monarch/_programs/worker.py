"""The main program of a worker process: of an interpreter of its own, or of a child of the fork server."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import traceback
from typing import Any, NoReturn

import monarch._wiring  # noqa: F401
from monarch import _core
from monarch._actors import class_table
from monarch._processes import launch
from monarch._programs.finalise import finalise
from monarch._running import construct
from monarch._runtime import runtime
from monarch._runtime.here import here


def main(told: str) -> None:
    """``run``, in an interpreter of its own, which was told where its descriptors are."""
    if told.isdigit():
        run([int(told)])
    try:
        fds = _core.enter_launch_door(told)  # user code has started it (_meshes/launchers.py)
    except Exception as error:
        print(f"monarch: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    run(fds, by_user=True)


def run(fds: list[int], by_user: bool = False) -> NoReturn:
    """Runs the worker until its owner ends it."""
    status = 1
    try:
        status = _run(fds, by_user)
    except BaseException:
        traceback.print_exc()
    finally:
        runtime.flush()
        os._exit(status)


def _run(fds: list[int], by_user: bool) -> int:
    logging.getLogger().setLevel(logging.INFO)  # as in the reference
    class_table.code_arrives = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the script
    runtime.configure_worker()
    _core.hold_actors()
    of_host, of_order, env, is_host = _core.start_worker(fds, runtime.arena_bytes())
    host = pickle.loads(of_host)
    payload = _take_up(host, of_order, env)
    runtime.mark_started(payload["root"] or host["root"])
    if "mounts" in payload:
        from monarch._mounts import hook

        hook.install(payload["mounts"])
    construct.run_setup(payload["setup"])
    if is_host:
        launch.offer()
    _core.release_actors()
    reason, terminated = _wait_for_stop() if by_user else (_core.wait_for_stop(), False)
    limit = runtime.limit("cleanup_timeout")
    runtime.flush_ports(limit)  # what no actor's end would send, or not in time
    _core.stop_worker(limit, reason)
    finalise(limit)
    if terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)  # without effect on the first process of a container
        return 128 + signal.SIGTERM
    return 0


# A launcher that is to end a process may be faster than the word of that process's owner.
_ASKED_WITHIN = 0.3


class _Terminated(BaseException):
    pass


def _wait_for_stop() -> tuple[str, bool]:
    """Who has started this process may end it by SIGTERM, too: it ends in order then, unless it does so already."""

    def on_signal(*_: Any) -> None:
        raise _Terminated

    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # the user's own
        return _core.wait_for_stop(), False
    try:
        signal.signal(signal.SIGTERM, on_signal)
        reason = _core.wait_for_stop()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        asked: str | None = _core.stop_reason(_ASKED_WITHIN)
        return asked or "its process was terminated (SIGTERM)", asked is None
    return reason, False


def _take_up(host: dict[str, Any], of_order: bytes, env: list[bytes] | None) -> dict[str, Any]:
    """Makes this process look like its host's, and the script's: search path, directory, environment, umask, arguments.

    Returns what was ordered. ``env``: None, what the command has made of it stands.
    """
    if env is None and host["cloudpickle"] is not None:
        sys.path.insert(0, host["cloudpickle"])
        import cloudpickle  # noqa: F401

        del sys.path[0]
    same_packages = host["prefixes"][0] == sys.prefix
    sys.path[:] = host["path"] if same_packages else _search_path(host["path"], host["prefixes"])
    _forget_places()
    if env is not None:
        _take_environment(dict(variable.split(b"=", 1) for variable in env))
    os.umask(host["umask"])
    try:
        os.chdir(host["cwd"])
    except OSError:
        pass
    payload: dict[str, Any] = pickle.loads(of_order)
    launch.default_python = payload["python"] or (None if same_packages else sys.executable)
    here().host_node = payload["host"]
    sys.argv[:] = payload["argv"]
    if "config" in payload:
        from monarch._config import settings

        settings.take_up(payload["config"])
    _take_up_streams()
    return payload


def _forget_places() -> None:
    """What the fork server has found nothing in, or has a table of, may be another by now; folders are looked at."""
    for place, finder in list(sys.path_importer_cache.items()):
        if finder is None:
            del sys.path_importer_cache[place]
        elif type(finder).__name__ != "FileFinder" and hasattr(finder, "invalidate_caches"):
            finder.invalidate_caches()  # of a zip


def _take_environment(env: dict[bytes, bytes]) -> None:
    if dict(os.environb) == env:
        return
    for name in [name for name in os.environb if name not in env]:
        del os.environb[name]
    os.environb.update(env)


def _take_up_streams() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    if null == 0:  # it was closed
        os.set_inheritable(0, True)
    else:
        os.dup2(null, 0)
        os.close(null)
    # A line is one write, so that lines of several workers do not mix, also under PYTHONUNBUFFERED, where Python would
    # write each argument of print() and the newline for themselves.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]


def _search_path(theirs: list[str], prefixes: tuple[str, str]) -> list[str]:
    """For an environment that is not the script's: its own packages come before the script's.

    What is no part of the script's environment (its folder, ``PYTHONPATH``) comes before both, as it does there.
    """
    roots = tuple(os.path.join(prefix, "") for prefix in prefixes)
    folders = [entry for entry in theirs if not entry.startswith(roots)]
    return list(dict.fromkeys([*folders, *sys.path, *theirs]))
