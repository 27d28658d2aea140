"""The fork server. One thread; imports what workers need, then forks them."""

import _signal as signal
import gc
import os


def _preload(code_by_value: bool) -> None:
    """What nearly every worker needs. Cheap enough to stand between a script's start and its first worker."""
    import _pickle  # noqa: F401
    import threading  # noqa: F401

    if code_by_value:
        import cloudpickle  # noqa: F401

    from monarch import _actor, _logs, _mesh, _runtime, _value_mesh, _worker, actor  # noqa: F401


# What many workers need, for the ones that come later: imported in the gaps, in pieces of a few milliseconds.
_LATER = (
    "pickle",
    "signal",
    "typing",
    "inspect",
    "cloudpickle",
    "linecache",
    "socket",
    "ssl",
    "concurrent.futures",
    "asyncio",
    "monarch._async",
    "monarch._exceptions",
)
_GAP_MS = 10  # nothing asked for in this time: a gap


def main(fds: list[int], code_by_value: bool) -> None:
    """``code_by_value``: the script has actor classes that workers cannot import."""
    socket = fds[0]
    # Dies with the thread that started it (the script's reactor), and on EOF; Ctrl-C is the script's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from monarch import _core, _worker

    _preload(code_by_value)
    server = _core.ForkServer(socket)
    gc.collect()
    gc.freeze()  # what is here is shared by all workers: do not touch it in a collection
    server.ready()
    later = list(_LATER)
    while True:
        if later and not server.has_request(_GAP_MS):
            try:
                __import__(later.pop(0))
            except ImportError:
                pass  # a Python without ssl
            if not later:
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
                _worker.main(fds)  # does not return
            server.spawned(node, pid)
        for fd in fds:
            os.close(fd)
