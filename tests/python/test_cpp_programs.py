"""Programs in C++ (examples/cpp), on this machine and over hosts that run no Python."""

import os
import subprocess
from pathlib import Path

import pytest
from hostd import Daemon

EXAMPLES = Path(__file__).parents[2] / "build" / "release" / "examples"
LIMIT = 60


def run(program, *args, **env):
    """What it prints, without what its workers do."""
    done = subprocess.run(
        [EXAMPLES / program, *args], env={**os.environ, **env}, capture_output=True, text=True, timeout=LIMIT
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if not line.startswith("[")]


@pytest.fixture
def bare_daemons(folder, scheme):
    made = [Daemon(folder, number, scheme, options=["--no-python"]) for number in range(2)]
    yield made
    for each in made:
        assert each.end() == (0, "")


def over_hosts(daemons):
    return ["--hosts", *(each.address for each in daemons)], daemons[0].env


def test_hello():
    assert run("hello", NUM_ACTORS="2") == ["hello from 0", "hello from 1"]


def test_hello_over_hosts(bare_daemons):
    args, env = over_hosts(bare_daemons)
    assert run("hello", *args, **{**env, "NUM_ACTORS": "2"}) == [f"hello from {rank}" for rank in range(4)]


@pytest.mark.parametrize("program", ["hello", "tour"])
def test_a_wrong_address_ends_a_program_with_a_line(program):
    words = [EXAMPLES / program, "--hosts", "nonsense"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith(f"{program}: ") and "nonsense" in line


TOUR = """\
total {before:g}
std::invalid_argument: nothing would be left
... exited with non-zero code 7 ...
total {after:g}"""


def test_tour():
    lines = run("tour")
    assert lines[:2] == ["{'gpus': 0/2} 120", "{'gpus': 1/2} 12"]
    assert lines[2:] == TOUR.format(before=132, after=126).splitlines()


def test_tour_over_hosts(bare_daemons):
    args, env = over_hosts(bare_daemons)
    lines = run("tour", *args, **env)
    sums = ["0/2, 'gpus': 0/2} 120", "0/2, 'gpus': 1/2} 12", "1/2, 'gpus': 0/2} 120", "1/2, 'gpus': 1/2} 12"]
    assert lines[:4] == ["{'hosts': " + line for line in sums]
    assert lines[4:] == TOUR.format(before=264, after=258).splitlines()


def test_what_needs_python_is_told_that_there_is_none(bare_daemons):
    bare_daemons[0].run("""
try:
    hosts.spawn_procs().initialized.get()
    raise AssertionError("it was started")
except SupervisionError as error:
    assert "this host runs no Python: its monarch-hostd was started with --no-python" in str(error), error
hosts.stop().get()
""", bare_daemons[1]).ok()  # fmt: skip
