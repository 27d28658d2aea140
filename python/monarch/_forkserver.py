"""The fork server. One thread; imports what workers need, then forks them."""

import gc
import os
import signal


def _preload() -> None:
    import asyncio  # noqa: F401
    import pickle  # noqa: F401
    import threading  # noqa: F401

    import cloudpickle  # noqa: F401

    from monarch import _actor, _async, _mesh, _runtime, _worker, actor  # noqa: F401


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
    while True:
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
