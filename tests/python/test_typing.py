"""What a type checker makes of programs: tests/typing/accept_*.py have no error, reject_*.py those that they say."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "typing"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(file, line) -> the codes of mypy's errors there."""
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "--python-version=3.10",
         f"--cache-dir={tmp_path_factory.mktemp('mypy')}", "--follow-imports=silent", str(FOLDER)],
        env={"MYPYPATH": str(ROOT / "python"), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode in (0, 1) and run.stderr == "", run.stdout + run.stderr
    errors = defaultdict(set)
    for line in run.stdout.splitlines():
        match = re.match(r"(.*?):(\d+): error: .*\[([a-z-]+)\]$", line)
        if match:
            errors[Path(match[1]).name, int(match[2])].add(match[3])
        else:
            assert ": note: " in line, line
    return errors


def expected(path: Path) -> dict:
    marks = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if mark := re.search(r"  # error: ([a-z, -]+)$", line):
            marks[path.name, number] = set(mark[1].split(", "))
    return marks


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_type_checker_finds_what_is_wrong_and_only_that(path, found):
    marks = expected(path)
    assert bool(marks) == path.name.startswith("reject_")
    assert {place: codes for place, codes in found.items() if place[0] == path.name} == marks


def test_endpoints_can_be_named_in_annotations_at_run_time():
    from typing import Optional, get_type_hints

    from monarch.actor import Endpoint, Future, Port, ValueMesh

    def f(ep: Endpoint[[int], str], later: Optional[Endpoint[[], Future[Port[int]]]]) -> Endpoint[..., ValueMesh[int]]:  # noqa: UP045
        raise AssertionError

    hints = get_type_hints(f)
    assert hints["ep"].__origin__ is Endpoint and hints["ep"].__args__[1] is str
    assert Endpoint[[int], str] == Endpoint[[int], str] and Endpoint[[int], str] != Endpoint[[str], str]


HEAVY = ("asyncio", "cloudpickle", "inspect", "logging")


def test_importing_the_api_imports_nothing_heavy():
    path = str(ROOT / "python")
    show = f"print([name for name in {HEAVY} if name in sys.modules])"
    code = f"import sys; sys.path.append({path!r}); import monarch.actor; {show}"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout == "[]\n"
