"""Each ```python block of README.md is a program that runs; a ```text block after it is exactly what it prints.

A fragment that is no program of its own is fenced as ```py.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs() -> list[tuple[str, str | None]]:
    """(program, what it prints or None), in order."""
    blocks = [match.groups() for match in FENCE.finditer(README.read_text())]
    following = [*blocks[1:], ("", "")]
    return [
        (text, after if kind_after == "text" else None)
        for (kind, text), (kind_after, after) in zip(blocks, following, strict=True)
        if kind == "python"
    ]


def test_there_is_a_program():
    assert programs()


@pytest.mark.parametrize(("program", "output"), programs())
def test_program_runs(tmp_path, program, output):
    script = tmp_path / "program.py"
    script.write_text(program)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    if output is not None:
        assert done.stdout == output
