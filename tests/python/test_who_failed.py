"""Errors, time-outs and futures say whom they are about."""

import asyncio
import os
import pickle
import re
import traceback
from pathlib import Path

import pytest

from monarch._calls.outcomes import FailureKind
from monarch._calls.packing import Packed
from monarch.actor import Actor, ActorError, SupervisionError, context, endpoint, this_host, this_proc
from monarch.testing import local_procs

LIMIT = 20


class Worker(Actor):
    @endpoint
    def fail(self, rank):
        if context().message_rank.rank == rank:
            raise ValueError("bad")
        return os.getpid()

    @endpoint
    def chained(self):
        try:
            int("zz")
        except ValueError as error:
            raise RuntimeError("outer") from error

    @endpoint
    async def chained_async(self):
        try:
            int("zz")
        except ValueError:
            raise RuntimeError("outer")  # noqa: B904  # a context, and no cause


@pytest.fixture(scope="module")
def workers():
    with this_host().spawn_procs({"hosts": 2, "gpus": 2}) as procs:
        yield procs.spawn("workers", Worker)


def test_an_actor_error_says_who(workers):
    pids = workers.fail.call(-1).get()
    with pytest.raises(ActorError) as info:
        workers.fail.call(3).get(timeout=LIMIT)
    error = info.value
    assert (error.rank, error.coordinates, error.pid) == (3, (1, 1), pids.item(hosts=1, gpus=1))
    assert error.host == os.uname().nodename
    note = f"raised by rank {{'hosts': 1/2, 'gpus': 1/2}} of 'workers' in process {error.pid} on {error.host}"
    assert error.__notes__ == [note]
    assert note not in str(error) and note in "".join(traceback.format_exception(error))


def test_its_rank_is_that_in_the_mesh_that_was_called(workers):
    with pytest.raises(ActorError) as info:
        workers.slice(hosts=1).fail.call(1).get(timeout=LIMIT)
    assert (info.value.rank, info.value.coordinates) == (1, (1,))
    with pytest.raises(ActorError) as info:
        workers.slice(hosts=1, gpus=0).fail.call_one(0).get(timeout=LIMIT)
    assert (info.value.rank, info.value.coordinates) == (0, ())


def test_it_says_so_after_a_journey_too(workers):
    error = workers.fail.call(2).exception()
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.rank, copy.coordinates, copy.pid, copy.host) == (error.rank, error.coordinates, error.pid, error.host)
    assert copy.__notes__ == error.__notes__ and str(copy) == str(error)


def test_made_by_hand_it_is_about_nobody():
    error = ActorError(ValueError("v"))
    assert (error.rank, error.coordinates, error.pid, error.host) == (None, None, None, None)


HEADER = "Traceback of where the remote call failed (most recent call last):"


@pytest.mark.parametrize("name", ["chained", "chained_async"])
def test_each_error_of_a_chain_has_one_header_and_no_frames_of_this_package(workers, name):
    text = str(getattr(workers.slice(hosts=0, gpus=0), name).call_one().exception(timeout=LIMIT))
    lines = text.splitlines()
    assert lines[:3:2] == [f"Actor call workers.{name} failed.", lines[2]] and lines[1] == f" {HEADER}"
    assert lines[2].startswith("  File ") and text.count(HEADER) == 2
    assert "Traceback (most recent" not in text and "/monarch/_" not in text
    assert text.index("ValueError: invalid literal") < text.index("RuntimeError: outer")


class Event(Actor):
    def __init__(self):
        self.waiting = []

    @endpoint(explicit_response_port=True)
    def wait(self, port):
        self.waiting.append(port)

    @endpoint
    def set(self):
        for port in self.waiting:
            port.send(None)


def test_a_time_out_says_whose_answers_were_missing():
    event = this_proc().spawn("event", Event)
    pending = event.wait.call_one()
    with pytest.raises(TimeoutError) as info:
        pending.get(timeout=0.01)
    error = info.value
    assert str(error) == "" and error.endpoint == "event.wait" and error.missing_ranks == (0,)
    assert error.__notes__ == ["event.wait has not been answered by rank 0 of 1"]
    assert repr(pending) == "<Future of event.wait: pending, 0 of 1 ranks have answered>"
    event.set.call_one().get(timeout=LIMIT)
    assert pending.get(timeout=LIMIT) is None
    assert repr(pending) == "<Future of event.wait: done>"


def test_a_future_says_what_it_is_without_being_looked_at(workers):
    future = workers.fail.call(0)
    assert repr(future).startswith("<Future of workers.fail: ")
    assert isinstance(future.exception(timeout=LIMIT), ActorError)
    assert repr(future) == "<Future of workers.fail: failed>"


def test_local_actors_say_it_as_well():
    with local_procs({"gpus": 2}) as procs:
        error = procs.spawn("local", Worker).fail.call(1).exception(timeout=LIMIT)
        assert (error.rank, error.coordinates, error.pid) == (1, (1,), os.getpid())


def test_of_a_chosen_rank_it_is_the_rank_in_the_mesh(workers):
    errors = [workers.chained.choose().exception(timeout=LIMIT) for _ in range(40)]
    pids = [pid for _, pid in workers.fail.call(-1).get().items()]
    assert all(error.pid == pids[error.rank] for error in errors) and len({error.rank for error in errors}) > 1


@pytest.mark.parametrize(("header", "kind"), [("failure.h", FailureKind), ("error_kind.h", Packed)])
def test_the_numbers_of_kinds_are_those_of_the_core(header, kind):
    text = (Path(__file__).parents[2] / "src/monarch/wire" / header).read_text()
    known = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper(): int(n) for name, n in re.findall(r"k(\w+) = (\d+),", text)}
    assert known.items() >= {member.name: member.value for member in kind}.items()


# ---- What is waited for until processes are up ----


class Mortal(Actor):
    @endpoint
    def die(self):
        os._exit(3)


def test_a_mesh_that_is_not_up_speaks_of_its_processes():
    procs = this_host().spawn_procs({"hosts": 2, "gpus": 2}, name="trainers")
    mortals = procs.spawn("mortals", Mortal)
    procs.initialized.get(timeout=LIMIT)
    with pytest.raises(SupervisionError) as info:
        mortals.slice(hosts=1, gpus=1).die.call_one().get(timeout=LIMIT)
    gone = r"the process exited with non-zero code 3 \(rank {'hosts': 1/2, 'gpus': 1/2} of 'trainers', pid \d+\)"
    late = procs.slice(hosts=1).spawn("late", Mortal)
    for wait, what in (
        (lambda: procs.initialized, "trainers.initialized"),
        (lambda: procs.slice(gpus=1).initialized, "trainers.initialized"),
        (lambda: late.initialized, "late.initialized"),
    ):
        with pytest.raises(SupervisionError) as info:
            wait().get(timeout=LIMIT)
        assert re.match(rf"{re.escape(what)}: {gone}", str(info.value)), info.value
        assert (info.value.endpoint, info.value.mesh, info.value.rank) == (what, "trainers", 3)
    assert repr(procs.slice(hosts=0).initialized).startswith("<Future of trainers.initialized")
    with pytest.raises(SupervisionError, match="^trainers.logging_option: the process exited with non-zero code 3"):
        asyncio.run(procs.logging_option(level=30))
    procs.stop().get(timeout=LIMIT)


def test_a_process_that_cannot_be_started_is_spoken_of_as_that():
    procs = this_host().with_python_executable("/no/such/python").spawn_procs(name="trainers")
    said = "trainers.initialized: the process could not be started ('trainers'): cannot run /no/such/python: No such"
    with pytest.raises(SupervisionError, match=f"^{re.escape(said)}"):
        procs.initialized.get(timeout=LIMIT)


def bad_bootstrap():
    raise ValueError("no GPU")


def test_a_bootstrap_function_that_raises_is_named_with_its_rank():
    procs = this_host().spawn_procs({"hosts": 2, "gpus": 2}, name="trainers", bootstrap=bad_bootstrap)
    mortals = procs.spawn("mortals", Mortal)
    part = "rank {'hosts': 1/2, 'gpus': 0/2} of 'mortals'"
    for wait, rank, where in (
        (lambda: procs.slice(hosts=1, gpus=slice(1, 2)).initialized, 0, "rank {'gpus': 0/1} of 'trainers'"),
        (lambda: mortals.slice(hosts=1).initialized, (0, 1), r"rank {'gpus': ./2} of 'mortals'"),
        (lambda: mortals.slice(hosts=1, gpus=slice(0, 1)).die.call(), 0, part),
    ):
        with pytest.raises(ActorError) as info:
            wait().get(timeout=LIMIT)
        assert info.value.rank in (rank if isinstance(rank, tuple) else (rank,))
        [note] = info.value.__notes__
        assert re.match(rf"raised by the bootstrap function of {where} in process \d+ on ", note), note
    procs.stop().get(timeout=LIMIT)
