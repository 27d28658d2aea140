"""The programs in examples/ run as they stand, print what they should, and leave no process behind."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 60
# Runs a command as the reaper of its orphans (PR_SET_CHILD_SUBREAPER), so that whoever it leaves behind is ours to wait
# for; one that has not ended after two seconds ends this by SIGALRM.
REAPER = """
import ctypes, os, signal, subprocess, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
status = subprocess.call(sys.argv[1:])
signal.alarm(2)
while True:
    try:
        os.wait()
    except ChildProcessError:
        sys.exit(status)
"""
# Every process of the program says who prints.
PRINT_WITH_PID = """
import builtins, os
real_print = print
builtins.print = lambda *values, **options: real_print(os.getpid(), *values, **options)
"""


def run(name: str, *options: str, **env: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", REAPER, sys.executable, str(EXAMPLES / name), *options]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, env={**os.environ, **env}, stdin=subprocess.DEVNULL
    )


IDENTITIES = {f"[{rank}] Identity: {rank}, msg='hey there, from script!!'" for rank in range(4)}


def test_hello():
    done = run("hello.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello, world\n", "")


def test_quickstart_prints_each_identity_once():
    done = run("quickstart.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == sorted(IDENTITIES)


def test_the_old_quickstart_prints_each_identity_once_and_says_what_is_old():
    done = run("quickstart_async.py")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == sorted(IDENTITIES)
    warnings = [line for line in done.stderr.splitlines() if not line.startswith("  ")]  # the rest quotes the source
    assert len(warnings) == 2
    assert all(": DeprecationWarning: " in line for line in warnings), done.stderr


@pytest.mark.parametrize("name", ["quickstart.py", "quickstart_async.py"])
def test_the_identities_come_from_four_processes(tmp_path, name):
    (tmp_path / "sitecustomize.py").write_text(PRINT_WITH_PID)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run(name, PYTHONPATH=path, PYTHONUNBUFFERED="1")
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert {f"{speaker} {text}" for speaker, _, text in lines} == IDENTITIES
    assert len({pid for _, pid, _ in lines}) == len(lines) == 4


@pytest.mark.parametrize("workers", [1, 3])
def test_digits_trains_a_model_and_agrees_with_one_process(workers):
    pytest.importorskip("sklearn")
    done = run("digits.py", "--workers", str(workers), "--steps", "120")
    assert (done.returncode, done.stderr) == (0, "")
    assert float(re.search(r"^test accuracy (\S+)$", done.stdout, re.MULTILINE)[1]) >= 0.95
    assert float(re.search(r"^largest difference of a loss: (\S+)$", done.stdout, re.MULTILINE)[1]) < 1e-9
    assert re.findall(r"^step (\d+)/120, loss", done.stdout, re.MULTILINE) == ["30", "60", "90", "120"]
    table = re.findall(r"^ +(\d+) +(\d+) +(\d+) +[\d.]+ s +[\d.]+ s$", done.stdout, re.MULTILINE)
    assert [int(rank) for rank, _, _ in table] == list(range(workers))
    assert len({pid for _, pid, _ in table}) == workers
    assert sum(int(samples) for _, _, samples in table) == 120 * 479
    assert len(re.findall(r"[\d.]+ ms per step", done.stdout)) == 2


def test_the_workers_of_digits_need_numpy_only():
    pytest.importorskip("sklearn")
    program = "import sys, digits; assert 'numpy' in sys.modules and 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=EXAMPLES, check=True, timeout=DEADLINE_S)
