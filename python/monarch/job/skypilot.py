"""A job on a cluster that SkyPilot rents: :class:`SkyPilotJob`. Needs the package ``skypilot``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from monarch.job._attached import check_meshes
from monarch.job._log import logger
from monarch.job._ssh import SSHJob

__all__ = ["SkyPilotJob"]

# What SkyPilot does not know to be busy it stops. Runs on the head node for as long as there are hosts.
_BUSY = 'sleep 300; while pgrep -u "$(id -u)" -x monarch-hostd >/dev/null; do sleep 30; done'


class SkyPilotJob(SSHJob):
    """The nodes of a cluster that ``sky.launch`` makes, as hosts. :meth:`kill` takes the cluster down.

    Workers are started over SSH, by the names that SkyPilot has put into this user's ``~/.ssh/config``. Scripts reach
    them at the addresses that stand there, on ``monarch_port`` and the ports of the system's range. A job that is not
    saved leaves its cluster when the script ends without :meth:`kill`: say ``idle_minutes_to_autostop``. For virtual
    machines, with SkyPilot's local API server, which is what writes that file.
    """

    def __init__(
        self, meshes: dict[str, int], resources: Any = None, cluster_name: str = "monarch", monarch_port: int = 22222,
        idle_minutes_to_autostop: int | None = None, down_on_autostop: bool = False, python_exe: str = "python",
        setup_commands: str | Sequence[str] | None = None, workdir: str | None = None,
        file_mounts: dict[str, str] | None = None, ssh_args: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """
        Args:
            meshes: the name of each mesh, and how many nodes it has, ``{"trainers": 2}``.
            resources: of each node, a ``sky.Resources``. None: SkyPilot chooses.
            cluster_name: one that is there already is used.
            monarch_port: that workers listen on; 0: any that is free.
            idle_minutes_to_autostop: the cluster stops when it has had no host for so long. None: never.
            down_on_autostop: it is taken down then.
            python_exe: the interpreter there, which has monarch.
            setup_commands: for a shell, on each node, before all else: what installs monarch, say.
            workdir: a folder that is copied to ``~/sky_workdir`` of each node.
            file_mounts: more files and folders, ``{"/there": "here"}``.
            ssh_args: for ``ssh``, before the host.
        """
        if not isinstance(cluster_name, str) or not cluster_name:
            raise TypeError(f"cluster_name must be a str, but is {cluster_name!r}")
        if setup_commands is not None and not isinstance(setup_commands, (str, Sequence)):
            raise TypeError(f"setup_commands must be lines for a shell, but are {setup_commands!r}")
        if file_mounts is not None and not isinstance(file_mounts, Mapping):
            raise TypeError(f"file_mounts must be a dict such as {{'/there': 'here'}}, but is {file_mounts!r}")
        super().__init__(python_exe, ssh_args, monarch_port)
        counts = check_meshes(meshes)
        nodes = [cluster_name, *(f"{cluster_name}-worker{number}" for number in range(1, sum(counts.values())))]
        for name, count in counts.items():
            self.add_mesh(name, nodes[:count])
            nodes = nodes[count:]
        self._cluster = cluster_name
        self._resources = resources
        self._autostop = idle_minutes_to_autostop, down_on_autostop
        setup = setup_commands if isinstance(setup_commands, str) else "\n".join(setup_commands or ())
        self._task = {"setup": setup or None, "workdir": workdir}
        self._file_mounts = dict(file_mounts or {})
        self._launched = False

    def _config(self) -> Any:
        own = (self._cluster, repr(self._resources), self._autostop, self._task, self._file_mounts)
        return (*super()._config(), *own)

    def _specification(self) -> Any:
        # Not the resources: what they are in words may be another with SkyPilot's next version.
        return super()._config(), self._cluster, self._autostop, self._task, self._file_mounts

    def _create(self, client_script: str | None) -> None:
        try:
            super()._create(client_script)
        except BaseException:
            self._take_down()
            raise

    def _allocate(self) -> None:
        sky = _sky()
        self._launched = True
        self._launch(sky)

    def _launch(self, sky: Any) -> None:
        """Makes the cluster, and returns when it is set up."""
        count = sum(map(len, self._meshes.values()))
        task = sky.Task(name="monarch", run="true", num_nodes=count, **self._task)
        if self._resources is not None:
            task.set_resources(self._resources)
        if self._file_mounts:
            task.set_file_mounts(self._file_mounts)
        idle_minutes, down = self._autostop
        autostop = {} if idle_minutes is None else {"idle_minutes_to_autostop": idle_minutes, "down": down}
        number, _ = sky.stream_and_get(sky.launch(task, cluster_name=self._cluster, **autostop))
        if number is not None and (status := sky.tail_logs(self._cluster, number, follow=True)):
            raise RuntimeError(
                f"the setup of cluster {self._cluster!r} has ended with status {status}; "
                f"`sky logs {shlex.quote(self._cluster)} {number}` has what it said"
            )
        if idle_minutes is not None:
            sky.get(sky.exec(sky.Task(name="monarch-busy", run=_BUSY), cluster_name=self._cluster))

    def _kill(self) -> None:
        try:
            super()._kill()
        except RuntimeError as error:  # they go with their nodes
            logger.warning("%s", error)
        self._take_down()
        self._workers, self._allocated = [], None
        self._forget()

    def _take_down(self) -> None:
        """Nothing if it has stopped to be there."""
        if self._launched:
            sky = _sky()
            if sky.get(sky.status(cluster_names=[self._cluster])):
                logger.info("%r takes the cluster %r down", self, self._cluster)
                sky.get(sky.down(self._cluster))
            self._launched = False


def _sky() -> Any:
    try:
        import sky
    except ImportError as error:
        raise ImportError(
            f"SkyPilotJob needs SkyPilot ({error}): pip install 'skypilot[aws]', or another cloud"
        ) from None
    return sky
