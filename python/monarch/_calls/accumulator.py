"""Accumulator: a fold over the answers of a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from monarch._calls.endpoint import Endpoint
from monarch._calls.future import Future
from monarch._calls.python_futures import FoldFuture

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["Accumulator"]


class Accumulator(Generic[P, R, A]):
    """Folds what the actors of a mesh answer into one value: ``Accumulator(mesh.loss, 0.0, operator.add)``.

    Args:
        endpoint: whose answers are folded.
        identity: where the fold begins, and its value for a mesh without members.
        combine: ``combine(state, answer) -> state``; called in order of arrival, in the process that waits.
    """

    def __init__(self, endpoint: Endpoint[P, R], identity: A, combine: Callable[[A, R], A]) -> None:
        if not callable(getattr(endpoint, "stream", None)):
            raise TypeError(f"Accumulator folds the answers of an endpoint of a mesh (mesh.loss), not of {endpoint!r}")
        if not callable(combine):
            raise TypeError(f"combine is called as combine(state, answer), but is {combine!r}")
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: P.args, **kwargs: P.kwargs) -> Future[A]:
        """Asks every actor now (what cannot be sent raises here); the future is the folded value.

        It raises what an actor raised (``ActorError``), how one died (``SupervisionError``), or what ``combine``
        raised; later answers are dropped then. A ``get(timeout)`` that expires loses nothing.
        """
        answers = list(self._endpoint.stream(*args, **kwargs))
        return FoldFuture._make(answers, self._identity, self._combine)
