"""Handlers of signals use the API too, in the middle of what the main thread does with it."""

import threading

import pytest

from monarch._meshes import remote_results
from monarch._ports import reducing_port
from monarch.actor import Actor, context, endpoint

LIMIT = 30


class Sum:
    initial_state = 0

    def __call__(self, state, update):
        return state + update

    @staticmethod
    def reducer(first, second):
        return first + second


class Plain(Actor):
    @endpoint
    def one(self):
        return 1

    @endpoint
    def open(self):
        port, self.receiver = context().actor_instance.mailbox.open_accum_port(Sum())
        return port


def in_a_handler(lock, function):
    """As a handler that comes while its thread has the lock: in a thread of its own, since it might wait for ever."""
    results = []

    def run():
        with lock:
            results.append(function())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert results, "it waits for itself"
    return results[0]


@pytest.mark.parametrize("what", ["spawn", "results", "reducers"])
def test_a_handler_may_come_while_its_thread_holds_a_lock_of_the_package(procs, what):
    actor = procs.slice(gpus=0).spawn("plain", Plain)
    if what == "spawn":
        lock = procs._origin._list_lock
        assert in_a_handler(lock, lambda: procs.spawn("more", Plain).one.call().get(timeout=LIMIT).values()) == [1, 1]
    elif what == "results":
        one = actor.one.options(results="remote")
        assert in_a_handler(remote_results._lock, lambda: one.call_one().get(timeout=LIMIT).get(timeout=LIMIT)) == 1
    else:
        port = actor.open.call_one().get(timeout=LIMIT)
        in_a_handler(reducing_port._flusher()._changed, lambda: port.send(2) or True)
