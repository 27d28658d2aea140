"""A job that holds hosts for a program of torchrun, and runs it on them, again and again."""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from monarch import _core
from monarch._errors.exceptions import ActorError, retold
from monarch.job import _torchrun
from monarch.job._process_job import ProcessJob

__all__ = ["SPMDJob", "serve"]

_THREADS = "OMP_NUM_THREADS"  # without it each rank would take all processors of its host
_LOCAL = ("local", "local_cwd")
_FAILED_GRACE_S = 1.0  # for ranks that may wait for one that has failed


class SPMDJob(ProcessJob):
    """Hosts of this machine, the mesh ``workers``, and a program of torchrun for them. :func:`serve` makes it.

    It is held until it is killed, as every job: saved, other scripts go on with it, and may run their own program on
    it; not saved, it ends with the script. What runs there has the environment and the working directory of the script
    that has applied it.
    """

    def __init__(self, command: _torchrun.Command, hosts: int = 1, env: dict[str, str] | None = None) -> None:
        """
        Args:
            command: what :meth:`run_spmd` runs.
            hosts: how many.
            env: added to the environment of what runs there.
        """
        env = dict(env or {})
        if command.per_host > 1 and _THREADS not in os.environ:
            env.setdefault(_THREADS, "1")  # as torchrun does
        super().__init__({"workers": hosts}, env)
        self._command = command

    def __repr__(self) -> str:
        program = self._command.program
        return f"SPMDJob({' '.join(program[: 2 if program[0] == '-m' else 1])!r}, hosts={self._meshes['workers']})"

    def run_spmd(self) -> None:
        """Runs the program as ``__main__`` in new processes, the ranks, on each host; returns when all have ended well.

        It is read anew each time. The ranks have the environment that torchrun gives them, and what they print comes
        here with the rank in front. The first one that fails ends the others.

        Raises:
            ActorError: the program has raised in a rank, or ended with an exit status other than 0.
            SupervisionError: the process of a rank has died.
        """
        from monarch.spmd import SPMDActor

        workers = self.state(cached_path=None).workers
        ranks = workers.spawn_procs(per_host={"gpus": self._command.per_host}, name="spmd")
        try:
            actors = ranks.spawn("spmd", SPMDActor)
            first = actors.slice(**dict.fromkeys(ranks.extent.labels, 0))
            address, port = first.get_host_port.call_one(None).get()
            actors.main.call(address, port, self._command.program).get()
        except BaseException as error:
            _core.note_stopping(ranks._nodes)
            ranks._stop_nodes("the program has ended", _FAILED_GRACE_S).get()
            if isinstance(error, ActorError):
                where = "" if error.rank is None else f" in rank {error.rank}"
                raise retold(error, f"{shlex.join(self._command.program)} has failed{where}.") from None
            raise
        ranks.stop().get()


def serve(appdef: Any, scheduler: str = "local", scheduler_cfg: Mapping[str, Any] | None = None) -> SPMDJob:
    """Allocates hosts for a program of torchrun, and holds them. :meth:`SPMDJob.run_spmd` runs it.

    Args:
        appdef: a command of torchrun, as a list of words: ``["torchrun", "--nproc-per-node=4", "train.py"]``; one
            host. Or an ``AppDef`` of torchx whose first role is such a command: as many hosts as that has replicas.
        scheduler: ``"local"`` or ``"local_cwd"``: each host is a process of this machine.
        scheduler_cfg: nothing, for these.

    Raises:
        ValueError: the command is none of torchrun, or is for several hosts.
        NotImplementedError: another scheduler.
    """
    _check_scheduler(scheduler, scheduler_cfg)
    if isinstance(appdef, Sequence) and not isinstance(appdef, str):
        if not all(isinstance(word, str) for word in appdef):
            raise TypeError(f"a command must be a list of str, but is {appdef!r}")
        job = SPMDJob(_torchrun.parse(appdef))
    elif hasattr(appdef, "roles"):
        job = _of_roles(appdef.roles)
    else:
        raise TypeError(f"expected a list such as ['torchrun', 'train.py'] or an AppDef of torchx, but got {appdef!r}")
    job.apply()
    return job


def _check_scheduler(scheduler: str, config: Mapping[str, Any] | None) -> None:
    if scheduler not in _LOCAL:
        raise NotImplementedError(
            f"scheduler {scheduler!r} is not there: serve() holds processes of this machine, 'local' or 'local_cwd'. "
            "On hosts that another job has, an SPMDActor of monarch.spmd runs such programs"
        )
    if config:
        raise NotImplementedError(f"scheduler_cfg is {config!r}, but {scheduler!r} has nothing to be configured")


def _of_roles(roles: Sequence[Any]) -> SPMDJob:
    if not roles:
        raise ValueError("the AppDef has no role: expected one, whose command is that of torchrun")
    role = roles[0]
    if len(roles) > 1:
        warnings.warn(f"the AppDef has {len(roles)} roles: only the first, {role.name!r}, is used", stacklevel=3)
    command = _torchrun.parse([role.entrypoint, *role.args], one_host=False)
    return SPMDJob(command, role.num_replicas, dict(role.env))
