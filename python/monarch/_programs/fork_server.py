"""The fork server. One thread; imports what workers need, then forks them."""

from __future__ import annotations

import gc
import os
import signal
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


def main(told: str, code_by_value: bool) -> None:
    """``told``: its socket. ``code_by_value``: the script has actor classes that workers cannot import."""
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
    pieces = list(_LATER)
    while True:
        if pieces and not server.has_request(_QUIET_MS if len(pieces) == len(_LATER) else _GAP_MS):
            _import(pieces.pop(0), server)
            if not pieces:
                gc.collect()
                gc.freeze()
            continue
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
