"""A monarch-hostd for a test."""

import os
import subprocess
import sys
from typing import ClassVar

from script_run import MARK, Run, program

from monarch import _core
from monarch.job import service_proc_addr

HOSTD = os.path.join(os.path.dirname(_core.__file__), "bin", "monarch-hostd")
ATTACH = program("workers/attach.py")
LIMIT = 30


class Daemon:
    """A monarch-hostd, and what it needs to be found."""

    made: ClassVar = []

    def __init__(self, folder, number=0, scheme="ipc", identity=None, address=None, options=(), inside=()):
        """``inside``: what its command, and that of its scripts, comes behind."""
        self.address = f"ipc://{folder}/host{number}" if scheme == "ipc" else f"tcp://127.0.0.{number + 2}:0"
        self.address = address or service_proc_addr(self.address, identity)
        self.env = {**os.environ, "MONARCH_TOKEN_FILE": f"{folder}/token", MARK: os.path.basename(folder)}
        self.process = subprocess.Popen(
            [*inside, HOSTD, self.address, "--python", sys.executable, *options],
            env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.made.append(self.process)
        told = self.process.stdout.readline().removesuffix("\n")
        tcp = scheme == "tcp" and told.startswith(self.address.removesuffix("0"))
        assert told == self.address or tcp or (address and told), self.process.stderr.read()
        self.address = told

    def run(self, text, *others, begin=ATTACH, env=None, **kwargs):
        """A script that has attached to it and the others, or that begins in another way."""
        addresses = (self.address, *(other.address for other in others))
        env = {"MONARCH_TOKEN_FILE": self.env["MONARCH_TOKEN_FILE"], **(env or {})}
        return Run(begin + text, args=addresses, env=env, **kwargs)

    def end(self):
        """Its exit status, and what it has said."""
        self.process.terminate()
        _, told = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, told
