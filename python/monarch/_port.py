"""Ports: mailboxes that a program opens itself. Whoever has a port sends to it, from any process."""

from __future__ import annotations

from monarch import _core
from monarch._value_mesh import Generic, R

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from monarch._accumulating import AccumulatingReceiver
    from monarch._future import Future

    class PortAccumulator(Protocol):
        @property
        def initial_state(self) -> Any: ...
        def __call__(self, state: Any, update: Any, /) -> Any: ...


__all__ = ["Channel", "Mailbox", "Port", "PortReceiver", "RankedPortReceiver"]


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

    if TYPE_CHECKING:

        @property
        def return_undeliverable(self) -> bool:
            """Does a message that finds the receiver gone come back to its sender?"""

        @return_undeliverable.setter
        def return_undeliverable(self, value: bool) -> None:
            """For what this object sends from now on."""

        def send(self, obj: R) -> None:
            """Sends a value. ``RuntimeError`` on the second one through a port of ``open(once=True)``."""

        def exception(self, exc: BaseException) -> None:
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

    def __reduce__(self) -> Any:
        return self._receiver.__reduce__()


class Channel(Generic[R]):
    """Opens ports: ``port, receiver = Channel.open()``; ``Channel[int].open()`` for type checkers."""

    __slots__ = ()

    @staticmethod
    def open(once: bool = False) -> tuple[Port[R], PortReceiver[R]]:
        """A port at the current actor, or the client. ``once``: for a single message."""
        from monarch import _runtime

        _runtime.ensure()
        receiver: PortReceiver[R] = PortReceiver(once)
        return Port(*receiver._address(), once, -1), receiver

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[R], RankedPortReceiver[R]]:
        """As :meth:`open`, with a receiver that tells the ranks."""
        port: Port[R]
        receiver: PortReceiver[R]
        port, receiver = Channel.open(once)
        return port, receiver.ranked()


class Mailbox:
    """Opens ports at the current actor, or the client: ``context().actor_instance.mailbox``."""

    __slots__ = ()

    def open_port(self) -> tuple[Port[Any], PortReceiver[Any]]:
        """As ``Channel.open()``."""
        return Channel.open()

    def open_once_port(self) -> tuple[Port[Any], PortReceiver[Any]]:
        """As ``Channel.open(once=True)``."""
        return Channel.open(once=True)

    def open_accum_port(self, accumulator: PortAccumulator) -> tuple[Port[Any], AccumulatingReceiver]:
        """A port that folds what is sent to it; ``recv()`` gives the state, as soon as there is a newer one.

        Args:
            accumulator: called as ``accumulator(state, update) -> state``, beginning with its ``initial_state``, once
                for each message, where the receiver waits. If it has a ``reducer`` that is not None, the port takes
                that along: in every other process ``reducer(update, update) -> update`` combines what the actors there
                send, so that fewer messages leave it. At most ``split_max_buffer_size`` updates (one at a time if that
                is 0 or 1) wait for at most ``split_max_buffer_age``; the end of an actor, or of its process, sends
                them. The reducer must be associative, and commutative too if several actors send; it may change the
                first of its arguments, runs on any thread, and must not wait for others.

        A reducer that raises costs the receiver the updates that it was to combine: its ``recv()`` raises
        ``ActorError``. Of a combined message that finds no receiver, the actor that sent its last update is told.

        Raises:
            TypeError: the argument is no accumulator, or its reducer cannot be called. One that cannot be pickled:
                where the port is sent away.
        """
        from monarch import _runtime

        _runtime.ensure()
        from monarch._accumulating import open_port

        return open_port(accumulator)
