"""The fork server. One thread; imports what workers need, then forks them."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from typing import Any


def _preload(code_by_value: bool) -> None:
    """What nearly every worker needs. Cheap enough to stand between a script's start and its first worker."""
    import faulthandler  # noqa: F401
    import logging  # noqa: F401

    if code_by_value:
        import cloudpickle  # noqa: F401

    from monarch import actor  # noqa: F401
    from monarch._calls import outcomes  # noqa: F401
    from monarch._meshes import controllers  # noqa: F401
    from monarch._running import construct, ends, supervision  # noqa: F401
    from monarch._values import identity  # noqa: F401


# What many workers need, for the ones that come later: imported while nobody asks for any, in pieces of a few
# milliseconds, so that who asks meanwhile does not wait for all.
_GAP_MS = 10  # before each piece, in which nobody asks
# Right after its first spawns a script has better use for the processor than these.
_LATER = (
    "inspect",
    "cloudpickle",
    "socket",
    "ssl",
    "concurrent.futures",
    "asyncio",
    "monarch._running.event_loop",
    "monarch._bulk.action",  # not monarch.rdma: whoever imports that makes his own process ready for buffers
    "monarch._values.torch_allocator",
)
_QUIET_MS = 300  # before the first of them


def _import(name: str, server: Any) -> None:
    signal.signal(signal.SIGCHLD, lambda *_: server.reap())  # deaths are told meanwhile
    try:
        server.reap()
        __import__(name)
    except ImportError:
        pass  # a Python without ssl
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


# Who is asked sooner has just been started, by who asks.
_WAITED_NS = 100_000_000
_ANEW = "_MONARCH_FORK_SERVER_ANEW"
# What has changed so long before this program begins, an interpreter that took long to start may not have seen.
_SLACK_NS = 5_000_000_000


def _is_stale(since_ns: int) -> bool:
    """Whether what this interpreter has found at its start has changed since: modules, and packages' folders."""
    import site

    folders = site.getsitepackages() + ([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])
    files = [_file_of(module) for module in list(sys.modules.values())] + folders
    for folder in folders:
        try:
            files += [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".pth")]
        except OSError:
            pass
    return any(file is not None and _has_changed(file, since_ns) for file in files)


def _file_of(module: Any) -> Any:
    try:
        return module.__file__
    except Exception:  # whatever stands among the modules
        return None


def _has_changed(file: str, since_ns: int) -> bool:
    try:
        return os.stat(file).st_ctime_ns > since_ns
    except (OSError, TypeError, ValueError):  # a folder that never was, a module that was in a zip
        return False


def _begin_anew(socket: int) -> None:
    """This program in place of itself; its pid, its socket and what has been asked on it stay."""
    os.set_inheritable(socket, True)
    os.environ[_ANEW] = "1"
    try:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except (OSError, TypeError):  # it has been removed, or is not known: workers are as good as what is here
        del os.environ[_ANEW]
        os.set_inheritable(socket, False)


def main(told: str, code_by_value: bool) -> None:
    """``told``: its socket. ``code_by_value``: the script has actor classes that workers cannot import."""
    began_ns = time.time_ns()
    socket = int(told)
    # Dies with the thread that started it (the script's reactor), and on EOF; Ctrl-C is the script's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from monarch import _core
    from monarch._programs import worker

    _preload(code_by_value)
    server = _core.ForkServer(socket)
    gc.collect()
    gc.freeze()  # what is here is shared by all workers: do not touch it in a collection
    server.ready()
    may_be_stale = os.environ.pop(_ANEW, None) is None
    pieces = list(_LATER)
    while True:
        if pieces and not server.has_request(_QUIET_MS if len(pieces) == len(_LATER) else _GAP_MS):
            _import(pieces.pop(0), server)
            if not pieces:
                gc.collect()
                gc.freeze()
            continue
        if may_be_stale:  # it is asked for the first time
            may_be_stale = False
            server.has_request(-1)
            if time.time_ns() - began_ns > _WAITED_NS and _is_stale(began_ns - _SLACK_NS):
                _begin_anew(socket)
        request = server.next()
        if request is None:
            os._exit(0)
        node, fds = request
        try:
            pid = os.fork()
        except OSError as error:
            server.failed(node, error.errno or 0)
        else:
            if pid == 0:
                os.close(socket)
                worker.run(fds)  # does not return
            server.spawned(node, pid)
        for fd in fds:
            os.close(fd)
