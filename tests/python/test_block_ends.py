"""``with procs:`` over busy workers: it says what it waits for, and Ctrl-C ends the wait and the workers."""

import dataclasses
import signal
import time
from pathlib import Path

import pytest
from script_run import WAYS, Run

from monarch._meshes import block_end
from monarch._values.ranks import ranks_text

PROGRAM = str(Path(__file__).parent / "programs" / "block_ends.py")
LIMIT = 8  # seconds: less than what a busy worker is waited for
WAITS = "monarch: waiting up to 10 s for "


def begin(kind: str, workers: int = 1, way: str = "fork") -> Run:
    """Until so many workers are busy."""
    run = Run(argv=[PROGRAM, kind], way=way)
    while run.out.count("busy\n") < workers:
        assert run._read(time.monotonic() + 30)
    return run


KINDS = {
    "block": "1 of 2 processes of 'trainers' (rank 1)",
    "async_block": "1 of 2 processes of 'trainers' (rank 1)",
    "block_of_a_host": "1 process on this host",
    "block_of_hosts": "2 processes on 2 hosts",
    "nested_blocks": "2 of 2 processes of 'inner' (ranks 0, 1)",
}


@pytest.mark.feature(24, 38)
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_ctrl_c_waits_and_says_for_whom_the_second_kills(kind):
    run = begin(kind, workers={"nested_blocks": 4, "block_of_hosts": 2}.get(kind, 1))
    run.interrupt()
    said = run.err_line(limit=LIMIT)
    run.interrupt()
    run.done(limit=LIMIT)
    assert said == f"{WAITS}{KINDS[kind]} to end; Ctrl-C{'' if 'async' in kind else ' again'} kills them at once\n"
    assert run.status == -signal.SIGINT
    assert run.err.count("monarch: ") == 1
    assert run.err.rstrip().endswith("\nKeyboardInterrupt")
    if "async" not in kind:  # there asyncio shows where it was cancelled
        assert run.err.count("Traceback (most") == 1
    assert run.out.endswith("left: 0\n")


@pytest.mark.feature(38)
@pytest.mark.parametrize("way", WAYS)
def test_one_ctrl_c_is_enough_once_the_limit_has_passed(way):
    run = Run(argv=[PROGRAM, "block"], way=way, env={"HYPERACTOR_PROCESS_EXIT_TIMEOUT": "700ms"})
    run.line("busy")
    run.interrupt()
    run.done(limit=LIMIT)
    assert run.err.startswith("monarch: waiting up to 0.7 s for 1 of 2 processes of 'trainers' (rank 1) to end; ")
    assert (run.status, run.err.count("Traceback (most")) == (-signal.SIGINT, 1)
    assert run.out.endswith("left: 0\n")


@pytest.mark.feature(38)
def test_a_block_that_an_error_leaves_says_so_too():
    run = begin("block_with_an_error")
    run.tell("\n")
    said = run.err_line(limit=LIMIT)
    run.interrupt()
    run.done(limit=LIMIT)
    assert said == f"{WAITS}1 of 2 processes of 'trainers' (rank 1) to end; Ctrl-C kills them at once\n"
    assert run.status == -signal.SIGINT
    assert "\nValueError: mine\n\nDuring handling" in run.err and run.err.rstrip().endswith("\nKeyboardInterrupt")
    assert run.out.endswith("left: 0\n")


@pytest.mark.feature(38)
@pytest.mark.parametrize("kind", ["block_that_is_over", "async_block_that_is_over"])
def test_ctrl_c_at_the_end_of_a_block_kills_what_it_waits_for(kind):
    run = begin(kind)
    run.tell("\n")
    said = run.err_line(limit=LIMIT)
    run.interrupt()
    run.done(limit=LIMIT)
    assert said == f"{WAITS}1 of 2 processes of 'trainers' (rank 1) to end; Ctrl-C kills them at once\n"
    assert (run.status, run.err.rstrip().endswith("\nKeyboardInterrupt")) == (-signal.SIGINT, True)
    assert run.out.endswith("left: 0\n")


@pytest.mark.feature(38)
def test_nothing_is_said_where_workers_end_soon():
    run = Run(argv=[PROGRAM, "block_of_idle_workers"]).done()
    assert (run.status, run.out) == (1, "left: 0\n")
    assert "monarch: " not in run.err and run.err.endswith("\nValueError: mine\n")


@pytest.mark.feature(38)
def test_nobody_waits_for_local_actors_after_the_second_ctrl_c():
    run = begin("local_block")
    run.interrupt()
    said = run.err_line(limit=LIMIT)
    run.interrupt()
    run.done(limit=LIMIT)
    assert said == f"{WAITS}the local actors worker to end; Ctrl-C again ends the wait\n"
    assert (run.status, run.err.count("Traceback (most")) == (-signal.SIGINT, 1)


def test_of_many_ranks_the_first_are_named():
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([0, 2, 3]) == "ranks 0, 2, 3"
    assert ranks_text([*range(31), 33]) == "ranks 0-30, 33"
    assert ranks_text([*range(0, 40, 2), 41]) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 13 more"


@pytest.mark.feature(38)
def test_blocks_around_do_not_wait_either_whatever_the_exception_allows():
    @dataclasses.dataclass(frozen=True)
    class Frozen(Exception):
        text: str

    error = Frozen("mine")
    block_end._hurry(KeyboardInterrupt(), error, None)
    assert block_end._in_a_hurry(error) and not block_end._in_a_hurry(Frozen("other"))
