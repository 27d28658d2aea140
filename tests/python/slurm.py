"""A Slurm of three nodes on this machine, for tests: munged, slurmctld and three slurmd, in a folder of their own."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

NODES = 3
LIMIT = 60
_PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "srun", "scontrol")
_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=0
MaxNodeCount=10
JobRequeue=1
KillWait=2
SlurmdTimeout=300
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=60 State=UP OverSubscribe=NO
PartitionName=small Nodes={host} MaxTime=60 State=UP OverSubscribe=NO
PartitionName=closed Nodes={names} MaxTime=60 State=UP AllowGroups=nobody-has-this DisableRootJobs=YES
"""


def why_not() -> str | None:
    """What is missing for it here; None: nothing."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=path) is None]:
        return f"Slurm is not installed (slurm-wlm, munge): no {', '.join(missing)}"
    return None if os.geteuid() == 0 else "Slurm's daemons are started as root"


class Slurm:
    """``start()`` to ``stop()``. ``env`` is what its commands need in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        # One has the name of the machine, which can be resolved.
        self.nodes = [socket.gethostname().partition(".")[0], *(f"n{number}" for number in range(2, NODES + 1))]

    def start(self) -> None:
        """``RuntimeError`` with what a daemon has said, if one does not run."""
        self._configure()
        self._start("munged", [
            "--foreground", "--force", f"--key-file={self.folder}/munge.key", f"--socket={self.folder}/munge.socket",
            f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munge.seed",
            f"--log-file={self.folder}/munged.log", "--num-threads=1",
        ])  # fmt: skip
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", ["-D", "-c", "-i"])
        for node in self.nodes:
            self.start_node(node)
        self._until(lambda: self.states() == {"idle"}, "slurmctld and slurmd")

    def _configure(self) -> None:
        taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(NODES + 1)]
        ports = [each.getsockname()[1] for each in taken]
        for each in taken:
            each.close()
        host = socket.gethostname().partition(".")[0]
        cpus = 4  # more than there may be: tests share cores
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000"
            for node, port in zip(self.nodes, ports[1:])
        )
        user = pwd.getpwuid(os.geteuid()).pw_name
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        (self.folder / "slurm.conf").write_text(
            _CONF.format(host=host, user=user, folder=self.folder, nodes=nodes, ports=ports, names=",".join(self.nodes))
        )

    def start_node(self, node: str) -> None:
        self._start("slurmd", ["-D", "-N", node], node)

    def stop_node(self, node: str) -> None:
        """Its daemon is killed; what runs there goes on."""
        daemon = self.daemons.pop(node)
        daemon.kill()
        daemon.wait(LIMIT)

    def _start(self, program: str, arguments: list[str], name: str | None = None) -> None:
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
        with open(self.folder / f"{name or program}.out", "ab") as out:
            self.daemons[name or program] = subprocess.Popen(
                [shutil.which(program, path=path) or program, *arguments],
                env={**os.environ, **self.env}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip

    def run(self, *command: str) -> str:
        """What it prints. ``RuntimeError`` with what it says otherwise."""
        done = subprocess.run(command, env={**os.environ, **self.env}, capture_output=True, text=True, timeout=LIMIT)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def states(self) -> set[str]:
        """Of its nodes."""
        with contextlib.suppress(RuntimeError):
            return set(self.run("sinfo", "-h", "-p", "all", "-N", "-o", "%T").split())
        return set()

    def jobs(self) -> list[str]:
        """The ids of those that are not over."""
        return self.run("squeue", "-h", "-o", "%A").split()

    def _until(self, is_so, what: str) -> None:
        until = time.monotonic() + LIMIT
        while not is_so():
            if time.monotonic() > until or any(each.poll() is not None for each in self.daemons.values()):
                said = {path.name: path.read_text()[-1500:] for path in self.folder.glob("*.log")}
                said |= {path.name: path.read_text()[-500:] for path in self.folder.glob("*.out")}
                self.stop()
                raise RuntimeError(f"{what} cannot be started: {said}")
            with contextlib.suppress(subprocess.TimeoutExpired):  # between two looks
                next(iter(self.daemons.values())).wait(0.1)

    def stop(self) -> None:
        """Ends the jobs, and the daemons, those last that the others need."""
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
            self.run("scancel", "--full", "--user", pwd.getpwuid(os.geteuid()).pw_name)
        for daemon in reversed(list(self.daemons.values())):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(LIMIT)
        self.daemons.clear()
