"""What all jobs are: a specification, and what runs for it; saved so that another script can come back to it."""

from __future__ import annotations

import logging
import os
import pickle
import uuid
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from monarch._notices import not_yet
from monarch.job import _saved
from monarch.job._saved import DEFAULT_JOB_PATH

if TYPE_CHECKING:
    from monarch._meshes.host_mesh import HostMesh

__all__ = ["JobState", "JobTrait", "job_load", "job_loads"]

logger = logging.getLogger("monarch.job")


class JobState:
    """The hosts of a job, as this script is attached to them: an attribute for each mesh, by its name."""

    query_engine: Any = None
    query_engine_client: Any = None
    telemetry_url: str | None = None
    dashboard_url: str | None = None
    admin_url: str | None = None

    def __init__(self, hosts: dict[str, HostMesh]) -> None:
        """``hosts``: each mesh under its name."""
        self._hosts = dict(hosts)

    def __getattr__(self, name: str) -> HostMesh:
        hosts: dict[str, HostMesh] = self.__dict__.get("_hosts", {})
        if name in hosts:
            return hosts[name]
        raise AttributeError(f"{name!r} is not a valid host mesh name. Available names: {', '.join(hosts)}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._hosts})

    def __repr__(self) -> str:
        return f"JobState(hosts={self._hosts!r})"


class JobTrait(ABC):
    """A job: what hosts it wants, and the allocation that it has or has not.

    Picklable, together with how its allocation is found, and so another script can go on with it. For one thread at a
    time. A subclass says how hosts are allocated, ``_create``, attached to, ``_state``, and released, ``_kill``, and
    whether what is allocated is (still) what a specification wants, ``can_run``. What belongs to one process only, it
    keeps in ``_here``, which is not pickled.
    """

    _NOT_YET = frozenset(
        {"enable_admin", "enable_telemetry", "gather_mount", "profile", "remote_mount", "telemetry_query_client"}
    )
    # That which runs: this one, or a saved one that can run this one's specification. None: nothing does.
    _running: JobTrait | None = None
    _apply_id: str | None = None
    _here: Any = None
    _saved_in: str | None = None  # by this process, or it was loaded from there

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in JobTrait._NOT_YET:
                raise not_yet(f"JobTrait.{name}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_here", "_saved_in")}

    # ---- For users ----

    @property
    def active(self) -> bool:
        """Whether it has been applied and not been killed; not, whether all of it is well."""
        return self._running is not None

    @property
    def apply_id(self) -> str | None:
        """A UUID, new with each :meth:`apply`; None: nothing has been applied."""
        return None if self._running is None else self._running._apply_id

    def apply(self, client_script: str | None = None) -> None:
        """Allocates its hosts. Nothing if it has them; if what it has is not, or no more, what it wants, it is killed.

        What has been applied ends with this script, unless the job is saved: by :meth:`state`, :meth:`dump` or
        :meth:`dumps`.

        Args:
            client_script: a Python script that runs as the job's client, in place of this one (batch mode), with
                ``MONARCH_BATCH_JOB=1`` in its environment.
        """
        if self._runs():
            logger.info("The job runs already")
            return
        self._release()
        logger.info("Applying current job")
        self._apply_id = str(uuid.uuid4())
        self._create(client_script)
        self._running = self

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH) -> JobState:
        """Its hosts, attached to; they are allocated first, if they are not. Does not wait until they can be used.

        Where a job is saved at ``cached_path`` that runs what this one wants, that is taken; one that does not is
        killed, and replaced. What is applied here is saved there, and then outlives this script.

        ``PermissionError`` if somebody else may have written that file.

        Args:
            cached_path: in a folder that is made if need be; None: nothing is looked up, and nothing saved.
        """
        if cached_path is None:
            self.apply()
        else:
            with _saved.locked(cached_path):
                self._find_or_apply(cached_path)
        assert self._running is not None
        logger.info("Job has started, connecting to current state")
        return self._running._state()

    def kill(self) -> None:
        """Releases its hosts, with all that runs there. Nothing if there are none.

        The file that it was saved in goes too, if this process has saved it there or loaded it from there.
        """
        if self._running is None:
            return
        apply_id, saved_in = self._running._apply_id, self._running._saved_in
        self._release()
        if saved_in is not None and os.path.exists(saved_in):
            with _saved.locked(saved_in):
                if (there := _load_or_none(saved_in)) is not None and there.apply_id == apply_id:
                    _saved.remove(saved_in)

    def dumps(self) -> bytes:
        """The job as :func:`job_loads` reads it. From here on what it has allocated outlives this script."""
        data = self._pickled()
        (self._running or self)._note_saved()
        return data

    def dump(self, filename: str) -> None:
        """As :meth:`dumps`, into a file, with mode 0600. A symlink is followed. ``OSError`` if it cannot be written."""
        _saved.write(filename, self._pickled())
        running = self._running or self
        running._saved_in = os.path.abspath(filename)
        running._note_saved()

    # ---- For subclasses ----

    @abstractmethod
    def _create(self, client_script: str | None) -> None:
        """Allocates. Raises if it cannot, and leaves nothing then. ``_apply_id`` is set."""

    @abstractmethod
    def _state(self) -> JobState:
        """Attaches this process to what is allocated. Called each time that somebody asks for it."""

    @abstractmethod
    def can_run(self, spec: JobTrait) -> bool:
        """Whether what has been allocated for this job is there, and what ``spec`` wants."""

    @abstractmethod
    def _kill(self) -> None:
        """Releases what is allocated, also where it is there in part only. Raises if something is left."""

    def _is_running(self) -> bool:
        """Whether what has been allocated is there."""
        return self.can_run(self)

    def _note_saved(self) -> None:  # noqa: B027  # most need not know
        """From here on another script may come back to it. For allocations that would end with this one."""

    # ---- The rest ----

    def _pickled(self) -> bytes:
        return pickle.dumps(self._running or self)

    def _runs(self) -> bool:
        return self._running is not None and self._running.can_run(self) and self._running._is_running()

    def _release(self) -> None:
        """Kills what runs, if something does."""
        if (running := self._running) is None:
            return
        running._kill()
        for job in (running, self):
            job._running = job._apply_id = job._saved_in = None

    def _find_or_apply(self, path: str) -> None:
        if not self._runs():
            self._release()
        saved = _load_or_none(path)
        if saved is not None and _can_run(saved, self, path):
            if not self.active:
                self._running = saved._running
            return  # what runs here already stays what it is: of this script
        if os.path.lexists(path):
            _replace(saved, path)
        self.apply()
        try:
            self.dump(path)
        except BaseException:
            self._release()
            raise


def job_loads(data: bytes) -> JobTrait:
    """The job that ``dumps()`` has made this of. It is unpickled, which runs what whoever made it wants.

    ``TypeError`` if it is something else.
    """
    job = pickle.loads(data)
    if not isinstance(job, JobTrait):
        raise TypeError(f"a saved job must be a JobTrait, but is a {type(job).__name__}")
    return job


def job_load(filename: str = DEFAULT_JOB_PATH) -> JobTrait:
    """The job that was saved in this file; nothing is attached to.

    ``FileNotFoundError`` if there is none; ``PermissionError`` if somebody else may have written it.
    """
    job = job_loads(_saved.read(filename))
    if job._running is not None:
        job._running._saved_in = os.path.abspath(filename)
    return job


_LEFT = "; what it has started may go on (on this machine, `pgrep -af monarch-hostd` shows it)"


def _load_or_none(path: str) -> JobTrait | None:
    """None: there is none, or none that can be read, of which the log says why."""
    try:
        return job_load(path)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise
    except Exception as error:
        logger.warning("%s cannot be read as a saved job: %s: %s%s", path, type(error).__name__, error, _LEFT)
        return None


def _can_run(saved: JobTrait, spec: JobTrait, path: str) -> bool:
    try:
        return saved._running is not None and saved._running.can_run(spec)
    except Exception as error:  # of another version, perhaps
        logger.warning("the job in %s cannot be compared: %s: %s", path, type(error).__name__, error)
        return False


def _replace(saved: JobTrait | None, path: str) -> None:
    """It cannot be gone on with: it is killed, if it can be, and its file removed in any case."""
    try:
        if saved is not None and saved._running is not None:
            logger.info("The job in %s does not run what is wanted now, and is replaced", path)
            saved._running._kill()
    except Exception as error:
        logger.warning(
            "the job in %s cannot be killed, and is forgotten: %s: %s%s", path, type(error).__name__, error, _LEFT
        )
    finally:
        _saved.remove(path)
