"""What users see when a process is out of threads or descriptors: which actor could not begin, and why."""

import operator
import pathlib
import re

import pytest
from folds import Fold, open_port
from script_run import Run, program

from monarch import _core, cpp
from monarch.actor import Actor, SupervisionError, endpoint, this_host

LIBRARY = str(pathlib.Path(__file__).parents[2] / "build" / "release" / "examples" / "libcounters.so")


class Shortage(Actor):
    @endpoint
    def fail(self, nth):
        _core.fail_nth_system_call(nth)

    @endpoint
    def pid(self):
        import os

        return os.getpid()


class Sync(Actor):
    @endpoint
    def add(self, a, b):
        return a + b


class Async(Actor):
    @endpoint
    async def add(self, a, b):
        return a + b


@pytest.fixture
def procs():
    procs = this_host().spawn_procs()
    yield procs
    procs.stop().get()


def failures(procs, spawn, upto):
    """What calls to a new actor say when one system call after the other fails in its process."""
    shortage = procs.spawn("shortage", Shortage)
    found = []
    for nth in range(1, upto + 1):
        shortage.fail.call_one(nth).get()
        try:
            spawn(nth)
        except SupervisionError as error:
            found.append(str(error))
        finally:
            shortage.fail.call_one(0).get()
    return shortage.pid.call_one().get(), found


@pytest.mark.parametrize("kind", [Sync, Async])
@pytest.mark.parametrize("options", [{}, {"actors": 3}], ids=["actor", "swarm"])
def test_an_actor_that_gets_no_thread_fails_with_that_cause_and_others_live_on(procs, kind, options):
    living = procs.spawn("living", kind)
    assert living.add.call_one(1, 2).get() == 3
    kept = []  # or its thread would be parked for the next one

    def spawn(nth):
        actors = procs.options(per_proc=options).spawn(f"late{nth}", kind)
        kept.append(actors)
        assert set(actors.add.call(nth, 1).get().values()) == {nth + 1}

    pid, found = failures(procs, spawn, 12)
    assert any(f"cannot start a thread for this actor in process {pid}: Resource temporarily unavailable" in text
               for text in found), found  # fmt: skip
    assert all(re.search(r"\.<test_shortages\.\w+ late\d", text) for text in found)
    assert living.add.call_one(1, 2).get() == 3
    spawn(100)


def test_a_cpp_actor_that_gets_no_thread_fails_with_that_cause(procs):
    counters = cpp.load(LIBRARY)

    def spawn(nth):
        assert procs.spawn(f"late{nth}", counters.Counter, nth).add.call_one(1).get() == nth + 1

    pid, found = failures(procs, spawn, 6)
    assert any(f"cannot start a thread for C++ actors in process {pid}: Resource" in text for text in found), found
    spawn(100)


class Sender(Actor):
    @endpoint
    def send(self, port):
        import threading

        def start(_):
            raise RuntimeError("can't start new thread")

        start, threading.Thread.start = threading.Thread.start, start
        try:
            for _ in range(10):
                port.send(1)
        finally:
            threading.Thread.start = start


def test_a_port_with_a_reducer_holds_nothing_back_if_there_is_no_thread_to_send_it_later(procs):
    port, receiver = open_port(Fold(0, operator.add, operator.add))
    procs.spawn("sender", Sender).send.call_one(port).get()
    assert receiver.recv().get(timeout=30) == 10


def test_an_event_loop_without_a_descriptor_fails_its_actor_and_an_await_raises():
    run = Run(program("shortages/an_event_loop_without_a_descriptor_fails_its_actor_and_an_await_raises.py")).ok()
    assert run.status == 0


@pytest.mark.parametrize("way", ["fork", "unix"])
def test_a_script_that_closes_our_descriptors_is_told_and_ends(way):
    run = Run(program("shortages/a_script_that_closes_our_descriptors_is_told_and_ends.py"), way=way).done()
    assert run.status == 0, run.err
    assert run.err == (
        "monarch: its file descriptors were closed by this program (os.closerange?): what it has started ends\n"
    )


@pytest.mark.parametrize("way", ["fork", "exec"])
def test_a_working_directory_that_is_gone_is_that_of_workers_too(way):
    Run(program("shortages/a_working_directory_that_is_gone_is_that_of_workers_too.py"), way=way).ok()
