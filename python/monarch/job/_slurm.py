"""A job of Slurm."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from monarch import _core
from monarch.job import _slurm_commands as slurm
from monarch.job._attached import Attached, check_mesh_name, check_meshes
from monarch.job._batch import BatchJob
from monarch.job._log import logger
from monarch.job._remote import RemoteJob
from monarch.job._slurm_checks import check_counts, check_words, checked_ip, checked_partition
from monarch.job._slurm_node import address_file, bracketed
from monarch.job._slurm_queue import POLL_S, JobEnded, wait_until_it_runs
from monarch.job._slurm_script import batch_script
from monarch.job._trait import JobState, JobTrait

__all__ = ["SlurmJob"]

_FOLDER = os.path.join(".monarch", "slurm")
_END_LIMIT_S = 60.0  # for a job that has been cancelled to end


class _Part(NamedTuple):
    """Meshes whose nodes are asked for together."""

    partition: str | None
    meshes: dict[str, int]


def _parts(meshes: Mapping[str, int], partition: str | Mapping[str, str] | None) -> list[_Part]:
    """In the order in which Slurm numbers the nodes."""
    parts: dict[str | None, dict[str, int]] = {}
    for name, count in meshes.items():
        own = partition if partition is None or isinstance(partition, str) else partition.get(name)
        parts.setdefault(own, {})[name] = count
    return [_Part(*each) for each in parts.items()]


class _Here(Attached):
    """What belongs to this process."""

    found: slurm.Found | None = None  # the job, when it was attached to


class SlurmJob(RemoteJob):
    """Hosts that Slurm allocates: one job for all meshes, and in it a worker on each node.

    :meth:`state` waits in the queue, and says on stderr what it waits for; Ctrl-C cancels the job. Slurm's commands
    (``sbatch``, ``squeue``, ``scancel``) must be on PATH, the nodes must see the folder for logs, and this user's
    scripts reach the nodes by TCP.

    Saved, the job outlives the script, and the next one that wants the same goes on with it; not saved, it is cancelled
    when the script ends, but for a script that is killed: ``scancel`` ends what that has left.
    """

    def __init__(
        self, meshes: dict[str, int], python_exe: str = "python", slurm_args: Sequence[str] = (),
        monarch_port: int = 22222, job_name: str = "monarch_job", ntasks_per_node: int = 1,
        time_limit: str | None = None, partition: str | Mapping[str, str] | None = None, log_dir: str | None = None,
        exclusive: bool = True, gpus_per_node: int | None = None, cpus_per_task: int | None = None,
        mem: str | None = None, job_start_timeout: float | None = None, account: str | None = None,
        qos: str | None = None, out_of_cluster: bool = False, attach_to: str | None = None, bind_to: str | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            meshes: the name of each mesh, and how many nodes it has, ``{"trainers": 2}``.
            python_exe: the interpreter on the nodes, which has monarch; perhaps with ``env NAME=VALUE`` before it.
            slurm_args: more options for ``sbatch``, which count before those that follow from these arguments.
            monarch_port: that workers listen on; 0: any that is free, for nodes that are shared with other jobs.
            job_name: as ``squeue`` shows it.
            ntasks_per_node: for how many tasks room is reserved on each node. There is one worker in any case.
            time_limit: ``"HH:MM:SS"`` or what else ``sbatch --time`` takes; None: the partition's.
            partition: None: the default one; a mapping: that of each mesh, ``{"trainers": "gpu"}``, of others the
                default one. It is one job all the same (a heterogeneous one), whose parts begin together.
            log_dir: where the workers' output goes, and for the life of the job a folder with its token; all nodes
                must see it. None: ``.monarch/slurm``.
            exclusive: whether nodes are not shared with other jobs.
            gpus_per_node: None: none are asked for.
            cpus_per_task: None: the partition's default.
            mem: on each node, ``"64G"``; ``"0"``: all of it. None: the partition's default.
            job_start_timeout: seconds that :meth:`state` waits at most, then it cancels the job. None: for ever.
            account: whom it is charged to.
            qos: its quality of service.
            out_of_cluster: this script reaches one host only, and the others from there, as with
                ``monarch.actor.attach``; so :meth:`state` comes before anything else.
            attach_to: where this script reaches it, such as a port that is forwarded; None: where the first node is.
            bind_to: the IP address that workers listen on. None: all of IPv4. Scripts find them by the nodes' names.
        """
        self._meshes = check_meshes(meshes) if meshes else {}
        check_words(python_exe=python_exe, job_name=job_name)
        check_words(time_limit=time_limit, log_dir=log_dir, mem=mem, account=account, qos=qos)
        check_words(attach_to=attach_to)
        if isinstance(slurm_args, str) or not all(isinstance(word, str) for word in slurm_args):
            raise TypeError(f"slurm_args must be a sequence such as ['--constraint=a100'], but is {slurm_args!r}")
        check_counts(ntasks_per_node=ntasks_per_node, gpus_per_node=gpus_per_node, cpus_per_task=cpus_per_task)
        if not isinstance(monarch_port, int) or not 0 <= monarch_port <= 65535:
            raise ValueError(f"monarch_port must be a port, 0 to 65535, but is {monarch_port!r}")
        if job_start_timeout is not None and job_start_timeout <= 0:
            raise ValueError(f"job_start_timeout must be seconds, more than 0, or None, but is {job_start_timeout!r}")
        self._python_exe, self._slurm_args, self._monarch_port = python_exe, list(slurm_args), monarch_port
        self._job_name, self._ntasks_per_node, self._time_limit = job_name, ntasks_per_node, time_limit
        self._partition = checked_partition(partition)
        self._exclusive, self._gpus_per_node = exclusive, gpus_per_node
        self._log_dir = os.path.abspath(log_dir or _FOLDER)
        self._cpus_per_task, self._mem, self._account, self._qos = cpus_per_task, mem, account, qos
        self._job_start_timeout = job_start_timeout
        self._out_of_cluster, self._attach_to = out_of_cluster or attach_to is not None, attach_to
        self._bind_to = None if bind_to is None else checked_ip(bind_to)
        self._job_id: str | None = None  # of what has been applied
        self._applied: dict[str, Any] = {}  # what that was applied with

    def __repr__(self) -> str:
        return f"SlurmJob({self._meshes!r}{'' if self._job_id is None else f', job {self._job_id}'})"

    def add_mesh(self, name: str, num_nodes: int, partition: str | None = None) -> None:
        """One more mesh, for when the job is applied next. ``ValueError`` if there is one.

        Args:
            name: under which :meth:`state` has it.
            num_nodes: how many nodes it has.
            partition: its own; None: as the constructor was told.
        """
        check_mesh_name(name)
        check_words(partition=partition)
        if name in self._meshes:
            raise ValueError(f"there is a mesh {name!r} already")
        meshes = {**self._meshes, **check_meshes({name: num_nodes})}
        if partition is not None:
            known = self._partition
            others = dict(known) if isinstance(known, dict) else dict.fromkeys(self._meshes, known) if known else {}
            self._partition = {**others, name: partition}
        self._meshes = meshes

    def share_node(self, tasks_per_node: int, gpus_per_task: int, partition: str) -> None:
        """Takes a part of each node, which is shared with other jobs. With ``monarch_port=0``, if those have workers.

        Args:
            tasks_per_node: for how many tasks room is reserved, with ``cpus_per_task`` for each.
            gpus_per_task: 0: none.
            partition: one that lets nodes be shared.
        """
        check_counts(tasks_per_node=tasks_per_node)
        if not isinstance(gpus_per_task, int) or gpus_per_task < 0:
            raise ValueError(f"gpus_per_task must be a count, 0 or more, but is {gpus_per_task!r}")
        check_words(partition=partition)
        self._exclusive, self._partition, self._ntasks_per_node = False, partition, tasks_per_node
        self._gpus_per_node = tasks_per_node * gpus_per_task or None

    def _has_ended(self) -> bool:
        return not self.can_run(self)

    def can_run(self, spec: JobTrait) -> bool:
        """Whether its job is in Slurm's queue or runs, and was applied with what ``spec`` says.

        If Slurm does not answer, it is held to be as it was last known to be, and the log says so.
        """
        if not isinstance(spec, SlurmJob) or self._job_id is None or self._applied != spec._specification():
            return False
        if self._here is not None and self._here.has_shut_down():
            return False
        if self._is_around:
            return True
        try:
            found = slurm.look(self._job_id)
            until = time.monotonic() + _END_LIMIT_S
            while found.ends and time.monotonic() < until:
                time.sleep(POLL_S / 4)
                found = slurm.look(self._job_id)
        except slurm.Unreachable as error:
            logger.warning("Slurm does not say how job %s is: %s; it is taken to be there", self._job_id, error)
            return True
        if found.is_over:
            logger.warning("Slurm job %s has ended: it is %s", self._job_id, found.words)
        return not found.is_over

    # ---- Its life ----

    def _create(self, client_script: str | None) -> None:
        if _core.in_simulation():
            raise NotImplementedError("SlurmJob: not in monarch.testing.simulate(), which has no real processes")
        if not self._meshes:
            raise ValueError("a SlurmJob needs a mesh: SlurmJob({'hosts': 2}), or add_mesh('hosts', 2)")
        if isinstance(self._partition, dict) and (unknown := self._partition.keys() - self._meshes.keys()):
            raise ValueError(f"partition names meshes that are not there: {', '.join(sorted(unknown))}")
        if client_script is not None:
            client_script = os.path.abspath(client_script)
            if not os.path.isfile(client_script):
                raise FileNotFoundError(f"the script of the batch job is not there: {client_script}")
        self._begin()
        self._job_id, self._applied = None, self._specification()
        try:
            self._make_folder()
            if client_script is not None:
                BatchJob(self).dump(self._batch_state())
            script = batch_script(
                self._python_exe, self._folder(), self._monarch_port, self._bind_to,
                [sum(part.meshes.values()) for part in self._parts()], client_script,
            )  # fmt: skip
            self._job_id = slurm.submit(self._options(), script)
        except BaseException as error:
            self._remove_folder()
            self._forget()
            if isinstance(error, slurm.SlurmError):
                raise RuntimeError(f"{self!r} cannot be applied: {error}") from None
            raise
        logger.info("Slurm job %s is submitted", self._job_id)
        if client_script is None:
            _unsaved[self._job_id] = os.getpid(), self

    def _state(self) -> JobState:
        found = self._wait()
        before = self._attached().found
        if before is not None and before.restarts != found.restarts:
            logger.info("Slurm job %s has been requeued, and is attached to anew", self._job_id)
            self._let_go()
            self._here = None
        self._attached().found = found
        if self._out_of_cluster:
            self._go_through(next(iter(self._addresses().values()))[0])
        return super()._state()

    def _addresses(self) -> dict[str, list[str]]:
        found = self._attached().found
        assert found is not None
        urls, first, placed = self._worker_urls(found), 0, {}
        for part in _parts(self._applied["meshes"], self._applied["partition"]):
            for name, count in part.meshes.items():
                placed[name] = urls[first : first + count]
                first += count
        return {name: placed[name] for name in self._applied["meshes"]}

    def _note_saved(self) -> None:
        if self._job_id is not None:
            _unsaved.pop(self._job_id, None)

    def _kill(self) -> None:
        self._let_go()
        if self._job_id is None or self._is_around:
            self._here = None
            return
        slurm.cancel(self._job_id)
        until = time.monotonic() + _END_LIMIT_S
        pause = 0.05
        while not (found := slurm.look(self._job_id)).is_over:
            if time.monotonic() > until:
                raise RuntimeError(f"Slurm job {self._job_id} has been cancelled, and is still {found.words}")
            time.sleep(pause)
            pause = min(2 * pause, POLL_S)
        _unsaved.pop(self._job_id, None)
        self._remove_folder()
        self._forget()
        self._job_id = None

    # ---- Waiting ----

    def _wait(self) -> slurm.Found:
        """Until it runs, and all its workers have said where they are. Cancelled if that does not come to pass."""
        try:
            return self._wait_until_it_runs()
        except KeyboardInterrupt:
            _core.log_line(f"Slurm job {self._job_id} is cancelled, since this script was interrupted while it waited")
            self.kill()
            raise
        except RuntimeError:
            try:
                self.kill()
            except RuntimeError as error:
                logger.warning("%s", error)
            raise

    def _wait_until_it_runs(self) -> slurm.Found:
        assert self._job_id is not None
        before = self._attached().found

        def is_ready(found: slurm.Found) -> bool:
            self._refuse_part(found)
            return all(self._worker_urls(found))

        what = f"Slurm job {self._job_id} ({self._applied['job_name']})"
        try:
            return wait_until_it_runs(self._job_id, what, is_ready, self._job_start_timeout, before)
        except JobEnded as error:
            raise RuntimeError(f"{error}; its log is {self._log_file()}") from None

    def _refuse_part(self, found: slurm.Found) -> None:
        wanted = sum(self._applied["meshes"].values())
        if len(found.nodes) != wanted:
            raise RuntimeError(
                f"Slurm job {self._job_id} has {len(found.nodes)} nodes ({', '.join(found.nodes) or 'none'}), but "
                f"{wanted} are wanted, so it is cancelled; the number of nodes is what meshes say, not slurm_args"
            )

    def _worker_urls(self, found: slurm.Found) -> list[str]:
        """One that is not known yet is empty."""
        if self._monarch_port != 0:
            return [f"tcp://{bracketed(name)}:{self._monarch_port}" for name in found.nodes]
        return [_read(address_file(self._folder(), found.restarts, number)) for number in range(len(found.nodes))]

    # ---- The rest ----

    @property
    def _is_around(self) -> bool:
        """This process is the script of this job's batch mode."""
        return os.environ.get("MONARCH_BATCH_JOB") == "1" and os.environ.get("SLURM_JOB_ID") == self._job_id

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._job_id is None and self._applied and os.environ.get("MONARCH_BATCH_JOB") == "1":
            self._job_id = os.environ.get("SLURM_JOB_ID")  # it was saved before Slurm had given it one

    def _specification(self) -> dict[str, Any]:
        """All that the constructor was given, and what has been changed since."""
        return {name[1:]: value for name, value in self.__dict__.items() if name[1:] in _FIELDS}

    def _parts(self) -> list[_Part]:
        return _parts(self._meshes, self._partition)

    def _options(self) -> list[str]:
        """Those of each part, between colons."""
        words: list[str] = []
        for part in self._parts():
            words += [*([":"] if words else []), *self._options_of(part)]
        return words

    def _options_of(self, part: _Part) -> list[str]:
        nodes = sum(part.meshes.values())
        options: dict[str, Any] = {
            "nodes": nodes, "ntasks": nodes * self._ntasks_per_node, "ntasks-per-node": self._ntasks_per_node,
            "job-name": self._job_name, "output": self._log_file("%j", "%%"), "open-mode": "append",
            "time": self._time_limit,
            "partition": part.partition, "gpus-per-node": self._gpus_per_node, "cpus-per-task": self._cpus_per_task,
            "mem": self._mem, "account": self._account, "qos": self._qos,
        }  # fmt: skip
        words = [f"--{name}={value}" for name, value in options.items() if value is not None]
        return [*words, *(["--exclusive"] if self._exclusive else []), *self._slurm_args]

    def _log_file(self, number: str | None = None, percent: str = "%") -> str:
        return os.path.join(self._log_dir.replace("%", percent), f"slurm-{number or self._job_id}.log")

    def _folder(self) -> str:
        return os.path.join(self._log_dir, str(self._apply_id))

    def _batch_state(self) -> str:
        return os.path.join(self._folder(), "job_state.pkl")

    def _make_folder(self) -> None:
        os.makedirs(self._folder(), mode=0o700)
        fd = os.open(os.path.join(self._folder(), "token"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "wb") as file:
            file.write(bytes.fromhex(self._token))

    def _remove_folder(self) -> None:
        shutil.rmtree(self._folder(), ignore_errors=True)

    def _attached(self) -> _Here:
        if self._here is None:
            self._here = _Here()
        found: _Here = self._here
        return found

    def _go_through(self, first: str) -> None:
        from monarch._meshes.attachment import attach_by

        self._write_token()
        attach_by(self._attach_to or first, self._token_file())


_FIELDS = frozenset(
    "meshes python_exe slurm_args monarch_port job_name ntasks_per_node time_limit partition log_dir exclusive "
    "gpus_per_node cpus_per_task mem account qos out_of_cluster attach_to bind_to".split()
)
_unsaved: dict[str, tuple[int, SlurmJob]] = {}  # by its id, and the process with which it ends


@atexit.register
def _end_unsaved() -> None:
    for job_id, (pid, job) in _unsaved.items():
        if pid == os.getpid():
            job._let_go()
            with contextlib.suppress(slurm.SlurmError):
                slurm.cancel(job_id)
            job._remove_folder()
            job._forget()


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""
