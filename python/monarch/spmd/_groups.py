"""The default process group of torch, where a program leaves one: its process goes on, other than under torchrun."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["close_left_over", "of_a_program"]

_left_over = False


def _distributed() -> Any:
    """``torch.distributed``, if somebody has imported it here and it has a default group; else None."""
    module = sys.modules.get("torch.distributed")
    if module is None or not hasattr(module, "is_initialized"):  # it may have been imported in part only
        return None
    return module if module.is_available() and module.is_initialized() else None


def close_left_over() -> None:
    """Closes the group that the last program here has left, or the next one could not make its own."""
    global _left_over
    if _left_over and (distributed := _distributed()) is not None:
        distributed.destroy_process_group()
    _left_over = False


@contextlib.contextmanager
def of_a_program() -> Iterator[None]:
    """While a program runs: a group that is there afterwards, and was not before, is its own.

    Other ranks may still use that of a program that has ended well. With one that has failed they would wait for this
    rank until they time out; gloo's can be closed at any time, others only by all ranks together.
    """
    global _left_over
    pid, was_there = os.getpid(), _distributed() is not None
    failed = True
    try:
        yield
        failed = False
    finally:
        of_this_process = os.getpid() == pid  # and no child's, which the program has forked
        if of_this_process and not was_there and (distributed := _distributed()) is not None:
            _left_over = True
            if failed and distributed.get_backend() == "gloo":
                close_left_over()
