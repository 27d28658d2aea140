"""Handles of actors and processes, and how they leave their job: in a pickle that is no message (docs/design/008).

Between the processes of a job a handle is only ids. Elsewhere it also says which job it belongs to; whoever unpickles
it there and uses it becomes a guest of that job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from monarch import _core
from monarch._runtime import runtime

_tried_to_publish = False


class Handle:
    """Base of what may be pickled, and used where it arrives. Subclasses define :meth:`_reduce_for`."""

    _job: str | None = None  # the address of the job that it belongs to; None: that of this process

    def _reduce_for(self, job: str | None) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What ``__reduce__`` returns, with that address in it."""
        raise NotImplementedError

    def __reduce__(self) -> Any:
        return self._reduce_for(self._job or _own_job_published())

    def _reduce_in_message(self) -> Any:
        """As ``__reduce__``, for a message of this process."""
        return self._reduce_for(self._job_in_message())

    def _job_in_message(self) -> str | None:
        return self._job or _own_job_in_message()

    def __copy__(self) -> Any:
        make, args = self._reduce_for(self._job)
        return make(*args)

    def __deepcopy__(self, memo: Any) -> Any:
        return self.__copy__()

    def _arrived_from(self, job: str | None) -> None:
        """The handle has been unpickled: it belongs to ``job``."""
        if job is not None and job != _core.job_address():
            self._job = job

    def _introduce(self, nodes: Iterable[int]) -> None:
        """Before first use of these nodes: makes this process a guest of their job, if it is another one.

        ``RuntimeError`` if that cannot be; that the job has ended is only said by the calls.
        """
        if self._job is not None:
            runtime.ensure()
            _core.introduce(self._job, list(nodes))


def _own_job_published() -> str | None:
    """The address of this process's job, whose token others find from now on.

    At its end, and in a process made by ``os.fork()``, only the address: whoever uses the handle gets on with a token
    that was published before, or hears why not.
    """
    if _core.has_runtime():
        return _core.publish_job()
    return _core.job_address()


def _own_job_in_message() -> str | None:
    """The same for a message; None while all who can get it are of this job."""
    global _tried_to_publish
    if not _core.knows_other_jobs():
        return None
    if not _tried_to_publish and _core.has_runtime():
        _tried_to_publish = True
        try:
            _core.publish_job()
        except RuntimeError:
            pass  # most of these handles stay in the job: whoever gets one that does not is told
    return _core.job_address()
