"""Ports: mailboxes that a program opens itself. Whoever has a port sends to it, from any process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from monarch import _core
from monarch._runtime import runtime

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultedTypeVar

    from monarch._calls.future import Future

    R = DefaultedTypeVar("R", default=Any)
else:
    R = TypeVar("R")

__all__ = ["Channel", "Port", "PortReceiver", "RankedPortReceiver"]


class Port(_core.PortBase, Generic[R]):
    """The sending end. It may travel in arguments and results; a copy sends as the actor that has it.

    Made by ``Channel.open()``, or given to an endpoint that is declared with ``explicit_response_port=True``. Messages
    of one sender arrive in order. Any thread may send.

    ``return_undeliverable`` (default True): a message that finds the receiver gone comes back to its sender, as a
    one-way message to a dead actor does, and fails it unless its ``_handle_undeliverable_message`` deals with it; if
    False it is dropped. The setting belongs to this object and its later copies.

    ``send`` waits while 64 MiB wait at the receiver, as ``broadcast`` does. What cannot be pickled raises, and nothing
    is sent.
    """

    def __new__(cls, *parts: Any) -> Port[Any]:
        if len(parts) != 4:
            raise TypeError("programs do not make a Port themselves: say port, receiver = Channel.open()")
        return super().__new__(cls, *parts)  # type: ignore[call-arg]

    if TYPE_CHECKING:

        @property
        def return_undeliverable(self) -> bool:
            """Does a message that finds the receiver gone come back to its sender?"""

        @return_undeliverable.setter
        def return_undeliverable(self, value: bool) -> None:
            """For what this object sends from now on."""

        def send(self, obj: R) -> None:
            """Sends a value. ``RuntimeError`` on the second one through a port of ``open(once=True)``."""

        def exception(self, e: BaseException) -> None:
            """Sends an exception: the ``recv`` that meets it raises it, as it is."""

    def __reduce__(self) -> Any:
        parts = self._parts()
        return (_answering if len(parts) == 3 else _port, (*parts, self.return_undeliverable))


def _port(node: int, index: int, once: bool, rank: int, returns: bool) -> Port[Any]:
    port: Port[Any] = Port(node, index, once, rank)
    port.return_undeliverable = returns
    return port


def _answering(node: int, token: int, rank: int, returns: bool) -> Port[Any]:
    return Port._answering(node, token, rank)


class PortReceiver(_core.PortReceiverBase, Generic[R]):
    """The receiving end, at the actor (or the client) that opened it; it cannot travel.

    The port closes when the receiver and the futures of its ``recv()`` are gone.
    """

    __slots__ = ("_once", "_used")

    def __init__(self, once: bool = False) -> None:
        self._once = once
        self._used = False

    def recv(self) -> Future[R]:
        """The next message: each future takes one when it is looked at, in the order of the looks.

        A future whose ``get(timeout)`` expires and that is dropped loses nothing: the next ``recv()`` takes its
        message. ``ValueError`` on the second call for a port of ``open(once=True)``.
        """
        return self._next(False)

    def ranked(self) -> RankedPortReceiver[R]:
        """The same port, seen with ranks."""
        return RankedPortReceiver(self)

    def _next(self, ranked: bool) -> Future[Any]:
        if self._once and self._used:
            raise ValueError("OncePort is already used")
        self._used = True
        return self._receive(ranked)

    def __reduce__(self) -> Any:
        raise TypeError("a PortReceiver stays where it was opened: send its Port instead")


class RankedPortReceiver(Generic[R]):
    """A receiver whose ``recv()`` gives ``(rank, value)``: who has sent it, by rank in the mesh that was asked.

    A message that says no rank (a plain ``Port.send``) raises ``ValueError`` at its ``recv``.
    """

    __slots__ = ("_receiver",)

    def __init__(self, receiver: PortReceiver[R]) -> None:
        self._receiver = receiver

    def recv(self) -> Future[tuple[int, R]]:
        """As :meth:`PortReceiver.recv`, with the rank."""
        return self._receiver._next(True)

    def ranked(self) -> RankedPortReceiver[R]:
        """Itself."""
        return self

    def __reduce__(self) -> Any:
        return self._receiver.__reduce__()


class Channel(Generic[R]):
    """Opens ports: ``port, receiver = Channel.open()``; ``Channel[int].open()`` for type checkers."""

    __slots__ = ()

    @staticmethod
    def open(once: bool = False) -> tuple[Port[R], PortReceiver[R]]:
        """A port at the current actor, or the client. ``once``: for a single message."""
        runtime.ensure()
        receiver: PortReceiver[R] = PortReceiver(once)
        return Port(*receiver._address(), once, -1), receiver

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[R], RankedPortReceiver[R]]:
        """As :meth:`open`, with a receiver that tells the ranks."""
        port: Port[R]
        receiver: PortReceiver[R]
        port, receiver = Channel.open(once)
        return port, receiver.ranked()
