"""The fork server. One thread; imports what workers need, then forks them."""

import gc
import os
import signal


def _preload() -> None:
    """What nearly every worker needs. Cheap enough to stand between a script's start and its first worker."""
    import pickle  # noqa: F401
    import threading  # noqa: F401

    import cloudpickle  # noqa: F401

    from monarch import _actor, _mesh, _runtime, _value_mesh, _worker, actor  # noqa: F401


def _preload_more() -> None:
    """What many workers need, for the ones that come later."""
    import asyncio  # noqa: F401
    import linecache  # noqa: F401

    from monarch import _async, _exceptions  # noqa: F401


def main(fds: list[int]) -> None:
    socket = fds[0]
    # Dies with the thread that started it (the script's reactor), and on EOF; Ctrl-C is the script's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from monarch import _core, _worker

    _preload()
    server = _core.ForkServer(socket)
    gc.collect()
    gc.freeze()  # what is here is shared by all workers: do not touch it in a collection
    server.ready()
    more = False
    while True:
        if not more and not server.has_request():
            _preload_more()
            gc.collect()
            gc.freeze()
            more = True
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
                _worker.main(fds)  # does not return
            server.spawned(node, pid)
        for fd in fds:
            os.close(fd)
