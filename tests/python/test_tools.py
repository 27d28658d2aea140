"""The tools of the checkout say when they cannot do their work, and what to do."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Knows its version; builds fuzzers once the package with the run-time is "installed". Reads what it is to compile, as a
# compiler does: who writes that would fail too.
CLANG = """#!/bin/sh
[ "$1" = -dumpversion ] && { echo 14.0.6; exit; }
cat >/dev/null
[ -e "$(dirname "$0")/libclang-rt-14-dev" ]
"""
APT = """#!/bin/sh
for package; do :; done
touch "$(dirname "$0")/installs"
[ -e "$(dirname "$0")/no-apt" ] || touch "$(dirname "$0")/$package"
[ ! -e "$(dirname "$0")/no-apt" ]
"""
SUDO = '#!/bin/sh\nshift\nexec "$@"\n'


@pytest.fixture
def commands(tmp_path):
    """A folder before all others on PATH, with a compiler and a package manager of the test's own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"clang++": CLANG, "apt-get": APT, "sudo": SUDO}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def run(commands: Path, *line: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}
    env.pop("PYTHON", None)
    return subprocess.run([str(word) for word in line], env=env, capture_output=True, text=True, timeout=60)


def checkout(root: Path) -> Path:
    """A checkout that has been set up but for the group lint."""
    (root / "tools").mkdir(parents=True)
    for name in ("bootstrap", "requirements.txt"):
        shutil.copy(ROOT / "tools" / name, root / "tools" / name)
    (root / ".venv/bin").mkdir(parents=True)
    (root / ".venv/bin/python").write_text("#!/bin/sh\n")
    (root / ".venv/bin/python").chmod(0o755)
    inputs = f"{root}\n".encode() + b"".join(
        (root / "tools" / name).read_bytes() for name in ("bootstrap", "requirements.txt")
    )
    (root / ".venv/stamp.build").write_text(hashlib.sha256(inputs).hexdigest() + "  -\n")
    return root / "tools/bootstrap"


def test_the_soak_runs_every_test_that_runs_over_seeds():
    over_seeds = set()
    for path in (ROOT / "src/monarch").rglob("*_test.cc"):
        test = ""
        for line in path.read_text().splitlines():
            if found := re.match(r"TEST\((\w+), (\w+)\)", line):
                test = ".".join(found.groups())
            if "sim_seeds(" in line:
                over_seeds.add(test)
    spec = importlib.util.spec_from_file_location("soak_seeds", ROOT / "tools/soak_seeds.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert {test for tests in tool.TESTS.values() for test in tests} == over_seeds


def test_fuzzing_without_a_fuzzer_fails(commands):
    done = run(commands, ROOT / "tools/fuzz", 1)
    assert done.returncode == 1
    assert "CANNOT RUN" in done.stderr and "libclang-rt" in done.stderr


def test_bootstrap_installs_the_run_time_that_the_compiler_lacks(commands, tmp_path):
    done = run(commands, checkout(tmp_path / "checkout"), "lint")
    assert done.returncode == 0, done.stderr
    assert (commands / "libclang-rt-14-dev").exists()
    assert (tmp_path / "checkout/.venv/stamp.lint").exists()


def test_bootstrap_fails_when_it_cannot_be_installed(commands, tmp_path):
    (commands / "no-apt").touch()
    done = run(commands, checkout(tmp_path / "checkout"), "lint")
    assert done.returncode == 1
    assert "sudo apt-get install -y clang libclang-rt-14-dev" in done.stderr
    assert not (tmp_path / "checkout/.venv/stamp.lint").exists()
