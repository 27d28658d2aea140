"""Accumulators for tests of ports that fold, and what to ask of such a port."""

from monarch.actor import context


class Fold:
    """An accumulator made of functions."""

    def __init__(self, initial_state, function, reducer=None):
        self.initial_state = initial_state
        self.reducer = reducer
        self._function = function

    def __call__(self, state, update):
        return self._function(state, update)


def collected(reducer=None):
    """The state is the list of what has arrived."""
    return Fold([], lambda state, update: [*state, update], reducer)


def open_port(accumulator) -> tuple:
    return context().actor_instance.mailbox.open_accum_port(accumulator)


def nothing_there(receiver) -> bool:
    """What a call's actor has sent before it answers is there when the answer is, unless it is held back."""
    return isinstance(receiver.recv().exception(timeout=0), TimeoutError)
