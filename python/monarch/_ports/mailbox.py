"""What opens ports at an actor, among them such as fold what is sent to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from monarch._ports.port import Channel, Port, PortReceiver
from monarch._runtime import runtime

if TYPE_CHECKING:
    from typing import Protocol

    from monarch._ports.accumulating_port import AccumulatingReceiver

    class PortAccumulator(Protocol):
        @property
        def initial_state(self) -> Any: ...
        def __call__(self, state: Any, update: Any, /) -> Any: ...


__all__ = ["Mailbox"]


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
        runtime.ensure()
        from monarch._ports.accumulating_port import open_port

        return open_port(accumulator)
