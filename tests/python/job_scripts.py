"""Scripts that have jobs on this machine and leave them behind, a directory for them, and what is left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from script_run import MARK, ended, marked, program

from monarch.job import job_load

LIMIT = 30
JOB = program("job/job.py")
HOLDS = "print(os.getpid(), flush=True)\nsys.stdin.readline()"


def directory(tmp_path, monkeypatch):
    """For a fixture: a working directory, and what scripts there have in their environment.

    Nothing of them may be left.
    """
    tmp, mark = tmp_path / "t", tmp_path.name + os.urandom(4).hex()
    tmp.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv(MARK, mark)
    yield tmp_path
    left = marked(mark)
    for pid in set(left) - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert all(ended(pid, time.monotonic() + LIMIT) for pid in left)


class Script:
    """A script that leaves its job behind, which Run would not have."""

    def __init__(self, text, *args, begin=JOB):
        file = Path("t") / f"{os.urandom(4).hex()}.py"
        file.write_text(begin + text)
        self.process = subprocess.Popen(
            [sys.executable, str(file), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def words(self, status=0):
        """What it has printed, when it has ended. No worker that lives on holds its output."""
        out, err = self.process.communicate(timeout=LIMIT)
        assert (self.process.returncode, err) == (status, ""), err
        return out.split()


def workers_of(path):
    return [worker.pid for worker in job_load(path)._run.workers]


def folders():
    return [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("monarch-job-")]


def kill_one(path):
    os.kill(workers_of(path)[1], signal.SIGKILL)
