"""tools/hello_1000.py sees each way in which a hello world can misbehave; the programs here stand in for it."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools/hello_1000.py"
HELLO = "print('hello, world')\n"
CHILD = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"


def run(tmp_path: Path, program: str, *options: str) -> tuple[int, str]:
    file = tmp_path / "program.py"
    file.write_text(program)
    command = [sys.executable, str(SCRIPT), "--program", str(file), "--seed", "7", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_clean_runs_pass_and_a_tenth_is_killed(tmp_path):
    status, output = run(tmp_path, HELLO, "--runs", "40")
    assert status == 0, output
    assert "40 runs of program.py, 4 of them killed, seed 7" in output
    assert output.endswith("40 passed, 0 failed\n")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (CHILD + HELLO, "left behind process"),
        ("import tempfile\ntempfile.mkstemp(prefix='mine')\n" + HELLO, "left behind temporary file mine"),
        ("print('hello, moon')\n", "exit status 0, stdout 'hello, moon\\n', stderr ''"),
        (HELLO + "import sys\nprint('oh', file=sys.stderr)\n", "stderr 'oh\\n'"),
        (HELLO + "raise SystemExit(3)\n", "exit status 3"),
    ],
)
def test_a_misbehaving_run_fails(tmp_path, program, expected):
    status, output = run(tmp_path, program, "--runs", "2", "--deadline", "0.2")
    assert status == 1
    assert output.count(expected) == 2, output
    assert output.endswith("0 passed, 2 failed\n")


def test_a_file_left_in_shared_memory_fails(tmp_path):
    program = f"import os\nopen('/dev/shm/hello-test-{tmp_path.name}-' + str(os.getpid()), 'w')\n" + HELLO
    try:
        status, output = run(tmp_path, program, "--runs", "1", "--deadline", "0.2")
        assert status == 1
        assert f"left behind /dev/shm/hello-test-{tmp_path.name}-" in output
    finally:
        for file in Path("/dev/shm").glob(f"hello-test-{tmp_path.name}-*"):
            file.unlink()


def test_a_killed_run_that_leaves_its_child_fails(tmp_path):
    program = CHILD + "import signal\nsignal.pause()\n"
    status, output = run(tmp_path, program, "--runs", "10", "--timeout", "0.2", "--deadline", "0.1")
    assert status == 1
    assert "left behind process" in output
    assert output.endswith("failed\n")


def test_a_run_that_does_not_end_fails(tmp_path):
    status, output = run(tmp_path, "import signal\nsignal.pause()\n", "--runs", "1", "--timeout", "0.5")
    assert status == 1
    assert "no end after" in output
