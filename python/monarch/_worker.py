"""The main program of a worker process: of an interpreter of its own, or of a child of the fork server."""

from __future__ import annotations

import _signal as signal
import os
import sys


def main(fds: list[int]) -> None:
    """Runs the worker until its owner ends it. Does not return."""
    status = 1
    try:
        status = _run(fds)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        from monarch import _runtime

        _runtime.flush()
        os._exit(status)


def _run(fds: list[int]) -> int:
    import _pickle as pickle

    from monarch import _actor, _core, _runtime

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the script
    _runtime.configure()
    _actor.hold_constructors()
    payload = pickle.loads(_core.start_worker(fds, _runtime.arena_bytes()))
    _take_up(payload)
    _runtime.mark_started(payload["root"])
    _actor.release_constructors(payload)
    reason = _core.wait_for_stop()
    _core.stop_worker(_runtime.limit("cleanup_timeout"), reason)
    return 0


def _take_up(payload: dict[str, object]) -> None:
    """Makes this process look like the script: search path, directory, environment, umask, arguments, configuration."""
    sys.path[:] = payload["path"]  # type: ignore[call-overload]
    sys.argv[:] = payload["argv"]  # type: ignore[call-overload]
    env: dict[str, str] = payload["env"]  # type: ignore[assignment]
    if dict(os.environ) != env:
        for name in [name for name in os.environ if name not in env]:
            del os.environ[name]
        os.environ.update(env)
    if "config" in payload:
        from monarch import _config

        _config.take_up(payload["config"])  # type: ignore[arg-type]
    os.umask(payload["umask"])  # type: ignore[arg-type]
    try:
        os.chdir(payload["cwd"])  # type: ignore[arg-type]
    except OSError:
        pass
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    # A line is one write, so that lines of several workers do not mix, also under PYTHONUNBUFFERED, where Python would
    # write each argument of print() and the newline for themselves.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
