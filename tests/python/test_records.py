"""One failure, one record: what it says, to whom, and in which words (tests/golden/failures)."""

import asyncio
import os
import pickle
import signal
import time

import failure_texts
import pytest
from script_run import Run, program

from monarch._errors.mesh_failure import MeshFailure
from monarch._errors.record import OutOfMemory
from monarch._errors.screen import COLUMNS, LINES, make_screen
from monarch.actor import (
    Actor,
    DeadlineExceeded,
    SupervisionError,
    concurrent_endpoint,
    current_rank,
    dump_stacks,
    endpoint,
    this_host,
)

LIMIT = 20


def until(there, limit=LIMIT):
    end = time.monotonic() + limit
    while not there():
        assert time.monotonic() < end, "too late"
        time.sleep(0.01)


@pytest.mark.feature(
    64, "the signal or exit status", "the tail of stderr", 70, "the traceback", 63, "a fault at the owner"
)
@pytest.mark.parametrize("kind", failure_texts.KINDS)
def test_each_kind_of_failure_has_its_words_on_one_screen(kind):
    check_words_of(kind, failure_texts.run(kind, "caught"), failure_texts.run_told(kind))


def test_a_kill_by_the_oom_killer_at_the_limit_of_a_cgroup_is_told_as_that():
    with failure_texts.memory_cgroup(failure_texts.MEMORY_MAX) as prefix:
        if prefix is None:
            pytest.skip("no memory cgroup can be made here")
        runs = [failure_texts.run_out_of_memory(how, prefix) for how in ("caught", "told")]
    check_words_of(failure_texts.OUT_OF_MEMORY, *runs)


def check_words_of(kind, caught, told):
    expected = failure_texts.path_of(kind).read_text()
    assert failure_texts.text_of(kind, caught, told) == expected, (
        "python tests/python/failure_texts.py writes them anew"
    )
    lines = failure_texts.report(told).splitlines()
    assert 1 < len(lines) <= LINES and lines[0].startswith("monarch: ") and "Unhandled" not in lines[0]
    assert all(len(line) <= COLUMNS for line in lines if not line.startswith("Unhandled monarch error")), lines
    assert "/monarch/_" not in caught.stdout + told.stderr
    assert sum(line.startswith("monarch: ") for line in told.stderr.splitlines()) == 1, "it is said once"


def test_frames_of_the_runtime_are_shown_if_somebody_asks():
    done = failure_texts.run("sys.exit in a constructor", "caught", {"MONARCH_RUNTIME_FRAMES": "1"})
    assert "/monarch/_running/construct.py" in done.stdout, done.stdout
    done = failure_texts.run("segmentation fault", "caught", {"MONARCH_RUNTIME_FRAMES": "1"})
    assert "_PyEval_EvalFrameDefault" in done.stdout and "in _core." in done.stdout, done.stdout


# ---- Attributes ----


class Worker(Actor):
    @endpoint
    def fail(self, rank):
        if current_rank().rank == rank:
            raise SystemExit("enough")


@pytest.mark.parametrize("then", ["at once", "later", "pickled"])
def test_where_an_actor_has_failed_the_attributes_say_which(then):
    with this_host().spawn_procs({"hosts": 2, "gpus": 2}) as procs:
        workers = procs.spawn("workers", Worker)
        with pytest.raises(SupervisionError) as info:
            workers.fail.call(3).get(timeout=LIMIT)
        if then == "later":
            with pytest.raises(SupervisionError) as info:
                workers.slice(hosts=1).fail.call(9).get(timeout=LIMIT)
        error = pickle.loads(pickle.dumps(info.value)) if then == "pickled" else info.value
        assert (error.mesh, error.rank, error.coordinates) == ("workers", 3, (1, 1))
        assert error.pid and error.host and error.endpoint == "workers.fail"
        assert (error.exit_code, error.signal, error.in_flight, error.stack) == (None, None, (), None)


@pytest.mark.parametrize("way", ["fork", "exec", "unix"])
def test_an_owner_is_told_what_the_process_was_in(way):
    Run(program("supervision/owners.py") + """
import monarch.actor
faults = []
monarch.actor.unhandled_fault_hook = faults.append
procs = this_host().spawn_procs({"gpus": 2}, name="mine")
kids, others = procs.spawn("kid", Kid), procs.spawn("other", Kid)
pids = list(kids.pid.call().get().values())
kids.hang.broadcast(); others.hang.broadcast()
import select
def hangs():  # both have begun, in the process that is killed
    stacks = str(monarch.actor.dump_stacks(kids.slice(gpus=1)).get())
    return "actor kid, endpoint hang" in stacks and "actor other, endpoint hang" in stacks
until(hangs)
os.kill(pids[1], signal.SIGKILL)
until(lambda: len(faults) == 3)
assert all(fault.in_flight == ("kid.hang", "other.hang") for fault in faults), [fault.in_flight for fault in faults]
assert all(", while in kid.hang and other.hang" in fault.report() for fault in faults)
assert faults[0].out_of_memory in (False, None), faults[0].out_of_memory
os.kill(pids[0], signal.SIGKILL)
until(lambda: len(faults) == 6)
""", way=way).ok()  # fmt: skip


def test_an_actor_that_does_nothing_was_in_nothing():
    class Idle(Actor):
        @endpoint
        def pid(self):
            return os.getpid()

    procs = this_host().spawn_procs(name="idle")
    idle = procs.spawn("idle", Idle)
    pid = idle.pid.call_one().get()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError) as info:
        while True:
            idle.pid.call_one().get(timeout=LIMIT)
    assert info.value.in_flight in ((), ("idle.pid",))


def test_who_has_given_up_a_call_is_in_it_no_more():
    class Waits(Actor):
        @endpoint
        async def wait(self):
            await asyncio.sleep(60)

        @concurrent_endpoint
        async def wait_beside(self):
            await asyncio.sleep(60)

        @endpoint
        async def pid(self):
            return os.getpid()

    waits = this_host().spawn_procs(name="waits").spawn("waits", Waits)
    for method in (waits.wait, waits.wait_beside):
        with pytest.raises(DeadlineExceeded):
            method.options(deadline=0.2).call_one().get(timeout=LIMIT)
    pid = waits.pid.call_one().get(timeout=LIMIT)  # behind the end of the first
    until(lambda: "awaits in" not in str(dump_stacks(waits).get(timeout=LIMIT)))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(SupervisionError) as info:
        while True:
            waits.pid.call_one().get(timeout=LIMIT)
    assert info.value.in_flight in ((), ("waits.pid",))


def test_an_exception_names_all_ranks_of_its_call_that_have_failed():
    class Kid(Actor):
        @endpoint
        def pid(self):
            return os.getpid()

    kids = this_host().spawn_procs({"gpus": 6}, name="kids").spawn("kid", Kid)
    pids = list(kids.pid.call().get(timeout=LIMIT).values())
    for rank in (1, 3, 4, 5):
        os.kill(pids[rank], signal.SIGKILL)
    for rank in (1, 3, 4, 5):
        with pytest.raises(SupervisionError):
            while True:
                kids.slice(gpus=rank).pid.call_one().get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match="\nRanks 3-5 of this call have failed as well$"):
        kids.pid.call().get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match="\nRank 1 of this call has failed as well$"):
        kids.slice(gpus=slice(4, 6)).pid.call().get(timeout=LIMIT)


# ---- The report ----


def failure(
    mesh="trainers",
    rank=0,
    node=None,
    cause="it broke",
    out_of_memory=OutOfMemory.NO,
    number=9,
    in_flight=(),
    is_procs=True,
):
    record = (2, 4711, "node1", None, number, rank, "trainers", (rank,), out_of_memory, in_flight, "", "")
    who = f"<root>.<{mesh}{{'gpus': {rank}/40}}>"
    report = f"The process {who} and all its descendants have failed:\n  {cause}".replace("\n", "\n  ")
    origin = cause.partition("\n")[0]
    return MeshFailure(mesh, rank, (rank,), who, report, cause, origin, is_procs, node or rank + 1, 0, record)


WHERE = "Unhandled monarch error on the root actor, hostname=node1, PID=1 at time 2026-11-22 10:15:31.820108:"


def test_equal_failures_of_many_ranks_are_one():
    failures = [failure(rank=rank) for rank in [*range(31), 33]]
    # The same processes, as another mesh has lost them, and one that ended in another way.
    failures += [failure("others", rank) for rank in range(31)] + [failure(rank=35, number=11)]
    assert make_screen(failures, WHERE).splitlines() == [
        "ranks 0-30, 33 of 'trainers' have failed: killed by signal 9",
        "the first of them: it broke",
        WHERE,
        "The process <root>.<trainers{'gpus': 0/40}> and all its descendants have failed",
        "So has rank 35 of 'trainers': killed by signal 11",
    ]


def test_a_process_is_told_by_its_actors_whichever_of_both_was_told_first():
    actors = [failure("worker", rank, is_procs=False) for rank in range(4)]
    procs = [failure("procs", rank) for rank in range(5)]  # one without an actor
    told = [actors[0], procs[0], actors[1], procs[1], actors[2], procs[2], procs[3], procs[4], actors[3]]
    screen = make_screen(told, WHERE)
    assert screen.startswith("ranks 0-3 of 'worker' have failed: killed by signal 9\n"), screen
    assert screen.endswith("\nSo has rank 4 of 'procs': killed by signal 9"), screen


def test_one_rank_that_has_failed_more_than_once_is_one():
    assert make_screen([failure(rank=3), failure(rank=3)], WHERE).splitlines()[:3] == [
        "rank 3 of 'trainers' has failed: killed by signal 9",
        "the first time: it broke",
        WHERE,
    ]


@pytest.mark.parametrize("besides", [(), ("logger.__cleanup__",)])
def test_what_all_of_them_were_in_is_said_once(besides):
    failures = [failure(rank=rank, in_flight=("trainer.step", *(besides if rank == 1 else ()))) for rank in range(3)]
    assert make_screen(failures, WHERE).startswith(
        "ranks 0-2 of 'trainers' have failed: killed by signal 9, while in trainer.step\n"
    )


@pytest.mark.parametrize(
    ("out_of_memory", "words", "known"),
    [
        (OutOfMemory.UNKNOWN, "killed by signal 9", None),
        (OutOfMemory.NO, "killed by signal 9", False),
        (OutOfMemory.MACHINE, "killed by signal 9, perhaps out of memory", None),
        (OutOfMemory.CGROUP, "killed by signal 9, probably out of memory", True),
        (OutOfMemory.CGROUP_LIMIT, "killed by signal 9, probably out of memory", True),
    ],
)
def test_a_kill_for_want_of_memory_is_told_from_others(out_of_memory, words, known):
    told = failure(out_of_memory=out_of_memory)
    assert (told.kind, told.out_of_memory) == (words, known)
    assert failure(number=11, out_of_memory=out_of_memory).out_of_memory is None


@pytest.mark.parametrize(
    "cause", ["x" * 5000, "words " * 1000, "\n".join(["y" * 500] * 500), "a\x1b[31m\x00\tb\u2028c"]
)
def test_whatever_a_cause_is_it_fits_one_screen(cause):
    screen = make_screen([failure(cause=cause)] + [failure(f"m{n}", n, number=n) for n in range(1, 60)], WHERE)
    lines = screen.split("\n")
    assert len(lines) <= LINES and all(len(line) <= COLUMNS for line in lines), screen
    assert len(lines[0]) <= COLUMNS - len("monarch: ") and WHERE in lines and "and 54 others" in lines
    assert all(line.isprintable() for line in lines)
