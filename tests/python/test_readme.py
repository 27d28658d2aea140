"""Each ```python block of README.md is a program that runs; a ```text block after it is exactly what it prints.

A fragment that is no program of its own is fenced as ```py.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import monarch
import monarch.actor
from monarch.actor import Actor, as_endpoint, this_host, this_proc

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


# ---- What is not there yet ----


def listed_by_name() -> dict[str, set[str]]:
    """Where a missing name belongs -> names, from the list at the end of its section."""
    section = README.read_text().split("## What is not there yet")[1].split("\n## ")[0]
    items = re.findall(r"^- `([\w.]+)`: ((?:.+)(?:\n  .+)*)", section, re.MULTILINE)
    return {owner: set(re.findall(r"`(\w+)`", names)) for owner, names in items}


def test_the_missing_names_are_the_listed_ones():
    assert listed_by_name() == {
        "monarch": monarch._NOT_YET,
        "monarch.actor": monarch.actor._NOT_YET,
        "HostMesh": monarch.actor.HostMesh._NOT_YET,
        "ProcMesh": monarch.actor.ProcMesh._NOT_YET,
    }


def test_a_missing_name_says_so():
    host = this_host()
    owners = {"monarch": monarch, "monarch.actor": monarch.actor, "HostMesh": host, "ProcMesh": this_proc()}
    for owner, names in listed_by_name().items():
        for name in names:
            with pytest.raises(NotImplementedError, match=f"{name} is not there yet"):
                getattr(owners[owner], name)
    with pytest.raises(NotImplementedError, match="proc_bind and bootstrap_command are not there yet"):
        host.spawn_procs(proc_bind=[{}])
    with pytest.raises(NotImplementedError, match="proc_bind and bootstrap_command are not there yet"):
        host.spawn_procs(bootstrap_command=lambda point: None)
    plain = this_proc().spawn("plain", Plain).method
    assert "- endpoints: `rref`" in README.read_text()
    with pytest.raises(NotImplementedError, match="rref is not there yet"):
        as_endpoint(plain).rref()


class Plain(Actor):
    def method(self):
        pass
