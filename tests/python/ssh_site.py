"""An sshd for a test: hosts that jobs log in to."""

import contextlib
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from script_run import MARK, ended, marked

from monarch.job import SSHJob

ROOT = Path(__file__).parents[2]
LIMIT = 30
SSHD = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
PYTHON = shlex.join(["env", f"PYTHONPATH={ROOT / 'python'}", sys.executable])


def fails(job):
    with pytest.raises(RuntimeError) as info:
        job.apply()
    assert not job.active and job.apply_id is None or not job._workers
    return str(info.value)


def key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, timeout=LIMIT)
    return path.with_suffix(".pub").read_text()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Site:
    """An sshd at 127.0.0.2 (host ``one``) and 127.0.0.3 (``two``), and what a client needs."""

    def __init__(self, folder):
        self.folder, self.mark = folder, "ssh" + os.urandom(6).hex()
        self.port, self.runtime = free_port(), folder / "r"
        self.runtime.mkdir(mode=0o700)
        public, host = key(folder / "user"), key(folder / "host")
        key(folder / "stranger")
        (folder / "authorized").write_text(public)
        self.known(host)
        self.config()
        (folder / "greet").write_text('echo "Welcome to this cluster."\nexec sh -c "$SSH_ORIGINAL_COMMAND"\n')
        (folder / "sshd_config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.2\nListenAddress 127.0.0.3\nHostKey {folder}/host\n"
            f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPidFile none\nPermitRootLogin yes\n"
            f"LogLevel DEBUG1\nForceCommand sh {folder}/greet\nMaxStartups 100\n"
            f"SetEnv {MARK}={self.mark} XDG_RUNTIME_DIR={self.runtime}\n"
        )
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        self.log = folder / "sshd.log"
        self.process = subprocess.Popen([SSHD, "-D", "-f", folder / "sshd_config", "-E", self.log])
        until = time.monotonic() + LIMIT
        while "Server listening on 127.0.0.3" not in (self.log.read_text() if self.log.exists() else ""):
            assert time.monotonic() < until and self.process.poll() is None, self.log.read_text()
            select.select([], [], [], 0.02)

    def known(self, public):
        (self.folder / "known").write_text(
            "".join(f"[127.0.0.{number}]:{self.port} {public}" for number in (2, 3)).replace("\n\n", "\n")
        )

    def config(self, name="config", identity="user", more=""):
        """Its path. ``hang`` is a host where nobody answers, once somebody listens at ``hang_port``."""
        path = self.folder / name
        identity = f"IdentityFile {self.folder / identity}" if identity else ""
        path.write_text(
            f"{more}\nHost one\n HostName 127.0.0.2\nHost two\n HostName 127.0.0.3\nHost *\n Port {self.port}\n"
            f" {identity}\n IdentitiesOnly {'yes' if identity else 'no'}\n StrictHostKeyChecking yes\n"
            f" UserKnownHostsFile {self.folder}/known\n GlobalKnownHostsFile none\n"
        )
        return str(path)

    def job(self, *hosts, args=(), config=None, python=PYTHON, port=0):
        job = SSHJob(python, [*args, "-F", config or str(self.folder / "config")], monarch_port=port)
        job.add_mesh("hosts", list(hosts))
        return job

    def left(self):
        return marked(self.mark)

    def files(self):
        return sorted(str(path.relative_to(self.runtime)) for path in self.runtime.rglob("*.log"))

    def ends(self):
        """Whether all that was started over ssh ends."""
        until = time.monotonic() + LIMIT
        return all(ended(pid, until) for pid in self.left()) and not self.left()


@pytest.fixture(scope="session")
def sshd(tmp_path_factory):
    if SSHD is None:
        pytest.skip("there is no sshd here (package openssh-server)")
    found = Site(tmp_path_factory.mktemp("s"))
    yield found
    found.process.terminate()
    found.process.wait(LIMIT)


@pytest.fixture
def site(sshd, tmp_path, monkeypatch):
    """Nothing may be left there, nor here in the folder for tokens."""
    here = tmp_path / "x"
    here.mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(here))
    monkeypatch.setenv("SSH_CONFIG", str(sshd.folder / "config"))
    monkeypatch.setenv("PYTHON_THERE", PYTHON)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield sshd
    left = sshd.left()
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert left == [] and sshd.files() == []
    assert list(here.rglob("*.token")) == []
