"""What a type checker makes of programs: tests/typing/accept_*.py have no error, reject_*.py those that they say."""

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_docs import PAGES, blocks_of

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


def programs_of_the_documentation() -> Iterator[tuple[str, str]]:
    """(name, text) of each Python block, with those that continue it."""
    for page in PAGES:
        program, start = "", 0
        for block in [*blocks_of(page.read_text()), None]:
            if block is not None and (block.language != "python" or block.marker.startswith(("part of", "not run"))):
                continue
            if block is not None and block.marker.startswith("continues"):
                program += block.text
                continue
            if program:
                yield f"{page.stem.replace('-', '_')}_{start}.py", program
            if block is not None:
                program, start = block.text, block.line


def test_type_checkers_accept_the_programs_of_the_documentation(tmp_path):
    for name, text in programs_of_the_documentation():
        (tmp_path / name).write_text(text)
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--check-untyped-defs", "--config-file=", "--ignore-missing-imports",
         "--scripts-are-modules", f"--cache-dir={tmp_path / 'cache'}", "--follow-imports=silent",
         *sorted(map(str, tmp_path.glob("*.py")))],
        env={"MYPYPATH": str(ROOT / "python"), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


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
