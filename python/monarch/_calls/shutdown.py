"""The end of the client before that of its script."""

from __future__ import annotations

from monarch._calls import python_futures
from monarch._calls.future import Future
from monarch._runtime import runtime

__all__ = ["shutdown_context"]


def shutdown_context(host_timeout: float | None = None) -> Future[None]:
    """Ends the client of this process: its actors, and the processes that it has spawned. Starts at once.

    ``host_timeout`` (seconds, default 10) is how long they may take before they are killed. Afterwards no call and no
    new client is possible in this process. Without a client (in a worker too), and from the second call on, the future
    is finished and nothing happens. Runs by itself when the script ends, with 0.3 s.

    Raises ``ValueError`` for a ``host_timeout`` that is negative, not finite or 2**64 and more.
    """
    grace = runtime.begin_shutdown(host_timeout)
    if grace is None:
        return python_futures.finished()
    return python_futures.on_thread(lambda: runtime.shut_down(grace), "monarch-shutdown")
