"""What all jobs are: a specification, and what runs for it; saved so that another script can come back to it."""

from __future__ import annotations

import contextlib
import os
import pickle
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from monarch.job import _mounts, _saved, _users
from monarch.job._log import logger
from monarch.job._saved import DEFAULT_JOB_PATH
from monarch.job._specification import digest

if TYPE_CHECKING:
    from monarch._meshes.actor_mesh import ActorMesh
    from monarch._meshes.host_mesh import HostMesh
    from monarch.job._wishes import MeshAdminConfig, TelemetryConfig

# A script that comes back to its job waits for these imports: what only a first one needs is imported where it does.
__all__ = ["JobState", "JobTrait", "job_load", "job_loads"]


_HASHED = 3  # how specifications are hashed
_GRACE_S = 1.0  # for what this script has spawned there
attachments: weakref.WeakSet[Any] = weakref.WeakSet()  # of this process: each an Attached (_attached.py)
J = TypeVar("J", bound="JobTrait")


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

    # That which runs: this one, or a saved one that can run this one's specification. None: nothing does.
    _running: JobTrait | None = None
    _apply_id: str | None = None
    _here: Any = None
    _saved_in: str | None = None  # by this process, or it was loaded from there
    _wants: tuple[str, ...] = ()  # of what is not there yet
    _is_within = False  # this process runs in its allocation, which ends with it
    _is_shared = True  # scripts that come back to it have the same hosts
    _declared: tuple[_mounts.Remote | _mounts.Gather, ...] = ()
    _mounted: _mounts.Opened | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_here", "_mounted", "_saved_in")}

    if not TYPE_CHECKING:  # it would have any attribute then

        def __getattr__(self, name: str) -> Any:
            where = "" if name.startswith("_") else "; meshes of hosts are attributes of its state: job.state().NAME"
            text = f"{type(self).__name__!r} object has no attribute {name!r}{where}"
            raise AttributeError(text, name=name, obj=self)

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
            if client_script is None:
                logger.info("The job runs already")
            else:
                logger.warning("The job runs already, so %s is not run: kill() it first", client_script)
            return
        if self._running is not None and self._running._saved_in is not None:
            self._check_unused(self._running, self._running._saved_in)
        self._release()
        logger.info("Applying current job")
        import uuid

        self._apply_id = str(uuid.uuid4())
        self._create(client_script)
        self._running = self

    def state(self, cached_path: str | None = DEFAULT_JOB_PATH, *, exclusive: bool = False) -> JobState:
        """Its hosts, attached to; they are allocated first, if they are not. Does not wait until they can be used.

        Where a job is saved at ``cached_path`` that runs what this one wants, that is taken; one that does not is
        killed, and replaced. What is applied here is saved there, and then outlives this script. ``ValueError`` for a
        file that is no saved job, or a damaged one.

        Several scripts may use one saved job; who comes later is told in the log who else does. ``RuntimeError``, which
        says who, if another script has it for itself, or uses it and would lose it, as something else is wanted here.
        ``PermissionError`` if somebody else may have written that file.

        In the script of batch mode: those that it runs beside, if it wants what they are. Nothing is saved then.

        Args:
            cached_path: in a folder that is made if need be; None: nothing is looked up, and nothing saved.
            exclusive: until this script ends, no other one gets it; ``RuntimeError`` if one has it already.
        """
        import monarch._wiring  # noqa: F401  # a script may have imported nothing but jobs

        if not isinstance(exclusive, bool):
            raise TypeError(f"exclusive must be True or False, but is {exclusive!r}")
        is_new_user = self._have_it(cached_path, exclusive)
        assert self._running is not None
        apply_id = self._running._apply_id  # it may be killed in what follows
        try:
            for what in self._wants:
                logger.warning("%s is not there yet: the job runs without", what)
            logger.info("Job has started, connecting to current state")
            state = self._running._state()
            if not self._declared:
                return state
            self._mounted = self._mounted or _mounts.Opened()
            return _mounts.opened(self._declared, self._mounted, state)
        except BaseException:
            if is_new_user:
                _users.leave(apply_id)
            raise

    def kill(self) -> None:
        """Releases its hosts, with all that runs there. Nothing if there are none.

        The file that it was saved in goes too, if this process has saved it there or loaded it from there.
        """
        if self._running is None:
            return
        apply_id, saved_in = self._running._apply_id, self._running._saved_in
        self._release()
        for path in () if saved_in is None else _saved.places(saved_in):
            if os.path.exists(path):
                with _saved.locked(path):
                    if _saved.apply_id_in(path) == apply_id:
                        _saved.remove(path)

    def adopt(self, name: str, make: Callable[[JobState], ActorMesh[Any]]) -> ActorMesh[Any]:
        """Actors that outlive this script: those that were made under ``name`` or, if there are none, ``make(state)``.

        They end with the job, or :meth:`release`. Their processes, ids and state are the same in each script. What they
        print is in the job's log. Where they have failed, calls raise, until they are released and made anew.

        ``make`` runs in a process of the job, which owns them; it is given the job's :class:`JobState`, spawns
        processes and actors, and returns the actors. ``RuntimeError`` if the job is not saved, or was not applied.
        ``NotImplementedError`` for a kind of job that has no such process; ``ActorError`` has what ``make`` raised.

        Args:
            name: of these actors, in this job.
            make: pickled by value, if it is of the script.
        """
        adopted: ActorMesh[Any] = self._keeper().adopt(name, make)
        return adopted

    def adopted(self) -> list[str]:
        """The names of what :meth:`adopt` has made. Errors as there."""
        names: list[str] = self._keeper().names()
        return names

    def release(self, name: str) -> bool:
        """Stops the actors that :meth:`adopt` has made under this name; False: there are none. Errors as there."""
        was_there: bool = self._keeper().release(name)
        return was_there

    def _keeper(self) -> Any:
        """Who owns what outlives scripts: ``monarch.job._keeper.Kept``."""
        if self._running is None:
            raise RuntimeError("the job has not been applied: call job.state() first")
        if self._running._saved_in is None:
            raise RuntimeError(
                "the job is not saved, and ends with this script, so nothing of it can outlive that: give job.state() "
                "a path, or leave cached_path out"
            )
        if type(self._running)._start_keeper is JobTrait._start_keeper:
            raise NotImplementedError(f"actors that outlive scripts are not there yet for {type(self).__name__}")
        return self._running._start_keeper()

    def _start_keeper(self) -> Any:
        """For a kind of job that can."""
        raise NotImplementedError

    def remote_mount(
        self,
        source: str,
        mntpoint: str | None = None,
        meshes: list[str] | None = None,
        python_exe: str | None = ".venv/bin/python",
        **kwargs: Any,
    ) -> None:
        """Has :meth:`state` mount a directory of this machine on the hosts, read-only; a later one refreshes it.

        It ends with the script, and with :meth:`kill`. ``ValueError`` if ``source`` is no directory, or has no such
        interpreter.

        Args:
            source: the directory.
            mntpoint: where on the hosts, as in ``remotemount``; None: at the same path.
            meshes: names of meshes; None: all.
            python_exe: the interpreter that what is spawned there runs, a path below ``source``; None: the usual one.
            **kwargs: nothing here: options of other implementations.
        """
        self._declared = (*self._declared, _mounts.remote(source, mntpoint, meshes, python_exe))

    def gather_mount(self, remote_mount_point: str, local_mount_point: str, meshes: list[str] | None = None) -> None:
        """Has :meth:`state` show directories of the hosts on this machine, read-only, until the script ends.

        Args:
            remote_mount_point: a directory on the hosts, in which ``$SUBDIR`` is each host's place, ``hosts_0``.
            local_mount_point: where here; a directory for each host, below one for each mesh if there are several.
            meshes: names of meshes; None: all.
        """
        self._declared = (*self._declared, _mounts.gather(remote_mount_point, local_mount_point, meshes))

    def enable_telemetry(
        self: J,
        config: TelemetryConfig | None = None,
        *,
        mesh_admin_config: MeshAdminConfig | None = None,
        **kwargs: Any,
    ) -> J:
        """Asks for telemetry, which is not there yet: :meth:`state` says so in the log, and the job runs without.

        Args:
            config: what is wanted of it.
            mesh_admin_config: as :meth:`enable_admin`.
            **kwargs: fields of :class:`TelemetryConfig`, in its place.
        """
        from monarch.job import _wishes

        _wishes.check(_wishes.TelemetryConfig, config, kwargs)
        if mesh_admin_config is not None:
            self.enable_admin(mesh_admin_config)
        self._wants = (*self._wants, "telemetry")
        return self

    def enable_admin(self: J, config: MeshAdminConfig | None = None, **kwargs: Any) -> J:
        """Asks for the administration's API, which is not there yet: as :meth:`enable_telemetry`."""
        from monarch.job import _wishes

        _wishes.check(_wishes.MeshAdminConfig, config, kwargs)
        self._wants = (*self._wants, "the API of administration")
        return self

    def profile(self, *, on_trace_ready: Any = None) -> Any:
        """``RuntimeError``: it takes telemetry, which is not there yet."""
        if "telemetry" not in self._wants:
            raise RuntimeError(
                "job.profile() requires distributed telemetry; call job.enable_telemetry() before job.state()"
            )
        raise RuntimeError("distributed telemetry is not active; it is not there yet")

    def telemetry_query_client(self) -> Any:
        """``RuntimeError``: it takes telemetry, which is not there yet."""
        if not self.active:
            raise RuntimeError("the saved job is not active")
        if not self._runs():
            raise RuntimeError("the active job is no longer running or healthy")
        if "telemetry" not in self._wants:
            raise RuntimeError(
                "the active job has no distributed telemetry configured; call job.enable_telemetry() before job.state()"
            )
        raise RuntimeError("could not connect to distributed telemetry: it is not there yet")

    def dumps(self) -> bytes:
        """The job as :func:`job_loads` reads it. From here on what it has allocated outlives this script."""
        data = self._packed()
        (self._running or self)._note_saved()
        return data

    def dump(self, filename: str) -> None:
        """As :meth:`dumps`, into a file, with mode 0600. A symlink is followed. ``OSError`` if it cannot be written."""
        _saved.write(filename, self._packed())
        running = self._running or self
        if type(running).__module__ == "__main__":
            logger.warning(
                "%s is a class of the script: the job in %s can be read by this script only, and not by 'monarch kill' "
                "or another one; put the class into a module",
                type(running).__name__, filename,
            )  # fmt: skip
        running._saved_in = os.path.realpath(filename)
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

    def _is_running_for(self, needed: Callable[[str, int, bool], Sequence[int] | None]) -> bool:
        """Whether what has been allocated is there, as far as it is ``needed`` (``monarch.job._attached.Needed``).

        Of classes that do not say it, all of it.
        """
        return self._is_running()

    def _specification(self) -> Any:
        """What ``can_run`` compares with what another one wants, for a hash in the file of a saved job.

        It has to be the same in every process. None, of classes that do not say it: they have no hash.
        """
        return None

    def _digest(self) -> str | None:
        wants = self._specification()
        return None if wants is None else digest(f"{type(self).__module__}.{type(self).__qualname__}", wants)

    def _note_saved(self) -> None:  # noqa: B027  # most need not know
        """From here on another script may come back to it. For allocations that would end with this one."""

    def _runs_elsewhere(self) -> bool:
        """Whether it runs where nothing here can use or end it, though this process has found it."""
        return False

    def _has_ended(self) -> bool:
        """Whether it is known that hosts of it have ended: then it is replaced also where others use it."""
        return False

    def _loses(self) -> str:
        """What a person would miss if it were replaced, for the log; empty: nothing."""
        return ""

    # ---- The rest ----

    def _packed(self) -> bytes:
        job = self._running or self
        about: dict[str, Any] = {
            "class": f"{type(job).__module__}.{type(job).__qualname__}",
            "specification": repr(job),
            "apply_id": job._apply_id,
        }
        pickled = pickle.dumps(job)
        # Of what comes out of the pickle, which need not have all that went in. It may want another process than this.
        with contextlib.suppress(Exception):
            if job._specification() is not None:
                about |= {"specification_sha256": pickle.loads(pickled)._digest(), "hashed": _HASHED}
        return _saved.pack(about, pickled)

    def _runs(self) -> bool:
        return self._running is not None and self._running.can_run(self) and self._running._is_running()

    def _release(self) -> None:
        """Kills what runs, if something does."""
        if self._mounted is not None:
            _mounts.close(self._mounted)
        if (running := self._running) is None:
            return
        running._let_others_go()
        running._kill()
        _users.leave(running._apply_id)
        for job in (running, self):
            job._running = job._apply_id = job._saved_in = None

    def _let_others_go(self) -> None:
        """This process wants the job to end, also where another object of it has attached to the job's hosts."""
        here = getattr(self, "_here", None)
        own = getattr(here, "attached", here)
        for attached in list(attachments):
            if attached is not own and attached.is_of(self._apply_id):
                attached.let_go(_GRACE_S)

    def _have_it(self, cached_path: str | None, exclusive: bool) -> bool:
        """It runs. Whether this process was not among its users before."""
        if self._running is None:
            self._running = _of_this_batch_job(self)
        if self._running is not None and self._running._is_within:
            self.apply()
        elif cached_path is not None:
            if not isinstance(cached_path, (str, os.PathLike)):
                raise TypeError(f"cached_path must be the path of a file, or None, but is {cached_path!r}")
            path = os.path.realpath(cached_path)  # now: another context may become the active one meanwhile
            with _saved.locked(path):
                return self._find_or_apply(path, exclusive)
        elif self._running is None or (saved_in := self._running._saved_in) is None:
            self.apply()
        else:
            with _saved.locked(saved_in):
                self.apply()
                if self._running._saved_in is not None:  # it is what was saved
                    return self._enter(self._running, saved_in, exclusive)
        return False

    def _find_or_apply(self, path: str, exclusive: bool) -> bool:
        """As :meth:`_have_it`."""
        told = None
        if not self._runs():
            if self._running is not None:
                self._check_unused(self._running, path)
                told = self._running._apply_id
                _tell_replaced(self._running, path)
            self._release()
        saved = _load_or_none(path, refuse=True)
        if saved is not None and _can_run(saved, self, path):
            # What runs here already stays what it is.
            return self._enter(self._running or saved._running, path, exclusive)
        if os.path.lexists(path):
            self._check_unused(None if saved is None else saved._running, path)
            _replace(saved, path, told)
        self.apply()
        try:
            self.dump(path)
            return self._enter(self._running, path, exclusive)
        except BaseException:
            self._release()
            _saved.remove(path)
            raise

    def _enter(self, running: JobTrait | None, path: str, exclusive: bool) -> bool:
        """As :meth:`_have_it`; ``running`` is what it has."""
        assert running is not None and running._apply_id is not None
        others = _users.others(path, running._apply_id) if running._is_shared else []
        for user in others:
            if user.exclusive:
                raise RuntimeError(
                    f"{user} has the job in {path} for itself: wait for its end, or have a job of your own by another "
                    "cached_path"
                )
            if exclusive:
                raise RuntimeError(
                    f"the job in {path} cannot be had exclusively: {user} uses it; wait for its end, or have a job of "
                    "your own by another cached_path"
                )
        is_new = running._is_shared and _users.enter(path, running._apply_id, exclusive)
        self._running = running
        if is_new:
            for user in others:
                logger.warning("the job has its hosts in use by %s as well", user)
        return is_new

    def _check_unused(self, running: JobTrait | None, path: str) -> None:
        """That, which is to be replaced. ``RuntimeError``: somebody would lose it. None: it cannot be read here."""
        if running is not None and running._runs_elsewhere():
            raise RuntimeError(
                f"the job in {path} runs in another container of this machine, and is not replaced: use it there, or "
                "have one of your own by another cached_path"
            )
        if running is not None and (not running._is_shared or running._has_ended()):
            return
        for user in _users.others(path, None if running is None else running._apply_id):
            if running is None:
                why = "cannot be read here"
            elif repr(running) != repr(self):
                why = f"is {running!r}, and not {self!r}"
            else:
                why = "cannot be gone on with here, as another installation has made it, or not all of its hosts answer"
            raise RuntimeError(
                f"the job in {path} {why}. It is not replaced, since {user} uses it: wait for its end, 'monarch kill' "
                "the job, or have one of your own by another cached_path"
            )


def job_loads(data: bytes) -> JobTrait:
    """The job that ``dumps()`` has made this of. It is unpickled, which runs what whoever made it wants.

    ``ValueError`` if it is something else, or of a version that saved jobs in another way.
    """
    job, why_altered = loads_to_end(data)
    if why_altered is not None:
        raise _saved.AlteredError(f"{why_altered}. `monarch kill` ends it")
    return job


def loads_to_end(data: bytes) -> tuple[JobTrait, str | None]:
    """As :func:`job_loads`, for who ends the job or serves it as it is; and why nobody else is to go on with it."""
    about, pickled = _saved.unpack(data)
    job = pickle.loads(pickled)
    if not isinstance(job, JobTrait):
        raise TypeError(f"a saved job must be a JobTrait, but is a {type(job).__name__}")
    # Not of classes that do not say what they want, and not if it was made in another way.
    is_hashed = "specification_sha256" in about and about.get("hashed") == _HASHED
    if is_hashed and about["specification_sha256"] != job._digest():
        what = f"{type(job).__name__}, or what it is made of, was altered since"
        return job, f"its specification is not the one that it was saved with: {what}"
    return job, None


def job_load(filename: str = DEFAULT_JOB_PATH) -> JobTrait:
    """The job that was saved in this file; nothing is attached to.

    ``FileNotFoundError`` if there is none; ``PermissionError`` if somebody else may have written it; ``ValueError`` for
    what is no saved job.
    """
    try:
        return load_unnamed(filename)
    except ValueError as error:
        raise ValueError(f"{filename} cannot be read as a saved job: {error}") from None


def load_unnamed(filename: str) -> JobTrait:
    """As :func:`job_load`, but the ``ValueError`` does not name the file."""
    return _located(job_loads(_saved.read(filename)), filename)


def load_to_end(filename: str) -> JobTrait:
    """What is saved there, for who ends it: also what :func:`job_load` refuses as altered, with a warning."""
    job, why_altered = loads_to_end(_saved.read(filename))
    if why_altered is not None:
        logger.warning("the job in %s is ended, though %s", filename, why_altered)
    return _located(job, filename)


def _located(job: JobTrait, filename: str) -> JobTrait:
    if job._running is not None:
        job._running._saved_in = os.path.realpath(filename)
    return job


def _of_this_batch_job(spec: JobTrait) -> JobTrait | None:
    """That within which this process runs, if it does, and that can run ``spec``."""
    path = os.environ.get("MONARCH_BATCH_JOB_STATE")
    saved = _load_or_none(path) if path else None
    if path is None or saved is None or not _can_run(saved, spec, path):
        return None
    assert saved._running is not None
    saved._running._saved_in = None  # the file is the allocation's
    return saved._running


LEFT = "; what it has started may go on (on this machine, `pgrep -af monarch-hostd` shows it)"


def _load_or_none(path: str, refuse: bool = False) -> JobTrait | None:
    """None: there is none, or none that can be unpickled, of which the log says why.

    ``refuse``: ``ValueError`` for what is no saved job, or a damaged one, which is nobody's to replace.
    """
    try:
        data = _saved.read(path)
        if refuse:
            _saved.unpack(data)
    except FileNotFoundError:
        return None
    except ValueError as error:
        if refuse:
            raise ValueError(f"{path} cannot be read as a saved job: {error}") from None
        return None
    try:
        return _located(job_loads(data), path)
    except Exception as error:
        if refuse and isinstance(error, _saved.AlteredError):
            raise ValueError(f"{path} cannot be read as a saved job: {error}") from None
        logger.warning("%s cannot be read as a saved job: %s: %s%s", path, type(error).__name__, error, LEFT)
        return None


def _can_run(saved: JobTrait, spec: JobTrait, path: str) -> bool:
    try:
        return saved._running is not None and saved._running.can_run(spec)
    except Exception as error:  # of another version, perhaps
        logger.warning("the job in %s cannot be compared: %s: %s", path, type(error).__name__, error)
        return False


def _tell_replaced(job: JobTrait, path: str) -> None:
    lost = job._loses()
    if not lost and _users.is_own(job._apply_id):
        lost = "this script uses its hosts itself. For several jobs at a time give each a cached_path of its own"
    tell, why = (logger.warning, f": {lost}") if lost else (logger.info, "")
    tell("The job in %s does not run what is wanted now, and is replaced%s", path, why)


def _replace(saved: JobTrait | None, path: str, told: str | None) -> None:
    """It cannot be gone on with: it is killed, if it can be, and its file removed in any case.

    Args:
        saved: what was in the file.
        path: its name.
        told: the ``apply_id`` of one whose end the log has told of.
    """
    try:
        if saved is not None and saved._running is not None:
            if saved.apply_id != told:
                _tell_replaced(saved._running, path)
            saved._running._let_others_go()
            saved._running._kill()
    except Exception as error:
        logger.warning(
            "the job in %s cannot be killed, and is forgotten: %s: %s%s", path, type(error).__name__, error, LEFT
        )
    finally:
        _saved.remove(path)
