"""A job of a script that goes on, and the command `monarch` beside it, for tests of commands that look at jobs."""

import os
import subprocess
import sys
from pathlib import Path

from script_run import PROGRAMS, Run

LIMIT = 30
MONARCH = [sys.executable, "-m", "monarch"]


class SavedJob:
    """``folder``: where the script runs, with the job saved there and all of its files below."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "t").mkdir()
        self.env = {"TMPDIR": str(folder / "t"), "USER": "somebody"}
        self.run = Run(PROGRAMS / "saved_job/talk.py", env=self.env, cwd=str(folder))
        self.run.line("ready")

    def command(self, *arguments: str, **options: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*MONARCH, *arguments], cwd=self.folder, env={**os.environ, **self.env}, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, **options,
        )  # fmt: skip

    def monarch(self, *arguments: str) -> tuple[int, str, str]:
        """Its exit status, and what it says on stdout and on stderr."""
        with self.command(*arguments) as process:
            out, err = process.communicate(timeout=LIMIT)
            return process.returncode, out, err

    def end(self) -> None:
        """Kills the job, and waits for the script."""
        self.run.tell("kill\n")
        self.run.done()
