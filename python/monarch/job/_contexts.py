"""Named jobs of a working directory: ``.monarch/<context>/{spec,state.pkl}``, one of which is the active one.

``.monarch/job_state.pkl``, where jobs are saved if nobody says otherwise, is a link to the active one's ``state.pkl``.
``spec`` says where that job is made: ``module.attribute``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable

from monarch.job import _saved, _users
from monarch.job._log import logger
from monarch.job._saved import DEFAULT_JOB_PATH
from monarch.job._trait import LEFT, JobTrait, load_to_end, load_unnamed

__all__ = ["load_current_job", "set_current_job"]

_FOLDER = os.path.dirname(DEFAULT_JOB_PATH)
_STATE, _SPEC = _saved.STATE, "spec"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_LOCK = "contexts"
_NAMED_MAX = 5  # of those that use a job
# Something else in that folder, or in ~/.monarch.
_NO_NAMES = {"logs", "slurm", "workspace", os.path.basename(DEFAULT_JOB_PATH), f"{_LOCK}.lock"}
DEFAULT = _saved.DEFAULT_CONTEXT


def set_current_job(module_path: str) -> None:
    """Remembers, in the active context, where its job is made: ``module.attribute``. It is not imported here."""
    if not isinstance(module_path, str):
        raise TypeError(
            f"set_current_job takes where a job is made, a str such as 'cluster.job', but was given {module_path!r}"
        )
    _split(module_path)
    _saved.write(os.path.join(_activate(current()), _SPEC), module_path.encode() + b"\n")


def set_back(module_path: str | None) -> None:
    """To what :func:`spec_of` said before, of the active context."""
    if module_path is not None:
        set_current_job(module_path)
    else:
        _saved.remove(os.path.join(_FOLDER, current(), _SPEC))


def load_current_job() -> JobTrait:
    """The job of the active context: as its module makes it or, if no module is known, as it was saved.

    Its ``state()`` goes on with what has been saved there. ``RuntimeError`` if there is none.
    """
    name = current()
    if (module_path := spec_of(name)) is not None:
        return imported(module_path)
    try:
        return _load(name, load_unnamed)
    except FileNotFoundError:
        raise RuntimeError(
            f"there is no job in the context {name!r} of {os.getcwd()}: 'monarch apply module.attribute', or "
            "set_current_job(), says which it is"
        ) from None


def imported(module_path: str) -> JobTrait:
    """The job that ``module.attribute`` names; modules in the working directory are found too.

    ``ValueError`` if it is none, ``ImportError`` if the import raises one, ``RuntimeError`` where it raises another.
    """
    module_name, attribute = _split(module_path)
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            looked = f"{error}, in {os.getcwd()} or where else Python looks"
            raise ModuleNotFoundError(looked, name=missing) from None
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if isinstance(error, SyntaxError) else f" ({at.filename}, line {at.lineno})"
        raised = ImportError if isinstance(error, ImportError) else RuntimeError
        raise raised(f"{module_name} cannot be imported: {type(error).__name__}: {error}{where}") from error
    job = getattr(module, attribute, None)
    if not isinstance(job, JobTrait):
        what = "nothing of that name" if job is None else f"a {type(job).__name__}"
        if isinstance(job, type) and issubclass(job, JobTrait):
            what = "a class of jobs, of which none is made"
        jobs = [f"{module_name}.{name}" for name, value in vars(module).items() if isinstance(value, JobTrait)]
        there = f"; there are: {', '.join(jobs)}" if jobs else f", and {module_name} makes none"
        raise ValueError(f"{module_path} must be a job, a JobTrait, but there is {what}{there}")
    return job


def check_path(module_path: str) -> None:
    """``ValueError`` if it is not ``module.attribute``."""
    _split(module_path)


def _split(module_path: str) -> tuple[str, str]:
    module, _, attribute = module_path.rpartition(".")
    if not module or not all(part.isidentifier() for part in module_path.split(".")):
        raise ValueError(f"a job is named as module.attribute, such as 'cluster.job', and not {module_path!r}")
    return module, attribute


def current() -> str:
    """The name of the active context. A state that was saved before there were any becomes that of ``default``."""
    return _linked() or DEFAULT


def _linked() -> str | None:
    """Whose state the link leads to. None: it is a file, a link of somebody's own, or not there."""
    try:
        name, file = os.path.split(os.readlink(DEFAULT_JOB_PATH))
    except OSError:
        return None
    return name if file == _STATE and _NAME.fullmatch(name) else None


def use(name: str) -> None:
    """Makes it the active one. ``ValueError`` if there is none of that name."""
    if name not in names():
        raise ValueError(f"there is no context {name!r}; there are: {', '.join(names())}")
    _activate(name)


def create(name: str) -> None:
    """Makes it, and the active one. ``ValueError`` if it is there, or this cannot be a name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _NO_NAMES:
        raise ValueError(
            f"a context cannot be called {name!r}: letters, digits, '-', '_' and '.', at most 63, no '.' or '-' first"
            + (", and this name is taken" if name in _NO_NAMES else "")
        )
    if name in names():
        raise ValueError(f"there is a context {name!r} already")
    _activate(name)


def remove(name: str, before: Callable[[JobTrait], None] = lambda _: None) -> None:
    """Kills its job, as :func:`kill`, and forgets it. The active one is ``default`` then, if it was this.

    ``ValueError`` if there is none of that name.
    """
    if name not in names():
        raise ValueError(f"there is no context {name!r}; there are: {', '.join(names())}")
    was_current = current() == name
    if was_current:
        _activate(name)
    kill(name, before)
    _users.forget(os.path.join(_FOLDER, name, _STATE))
    for left in (_SPEC, _STATE):
        _saved.remove(os.path.join(_FOLDER, name, left))
    if os.path.isdir(os.path.join(_FOLDER, name)):
        os.rmdir(os.path.join(_FOLDER, name))
    if was_current and os.path.islink(DEFAULT_JOB_PATH):
        os.unlink(DEFAULT_JOB_PATH)


def kill(name: str, before: Callable[[JobTrait], None] = lambda _: None) -> bool:
    """Kills its job and forgets its state; ``before`` is given what runs. False: none was saved."""
    try:
        job = _load(name, load_to_end)
    except FileNotFoundError:
        return False
    if job._running is not None:
        before(job._running)
    if job.active:
        if users := [str(user) for user in _users.others(state_path(name), job.apply_id)]:
            more = f" and {len(users) - _NAMED_MAX} more" if len(users) > _NAMED_MAX else ""
            logger.warning(
                "the job of the context %r is killed while it is in use by %s%s",
                name,
                ", ".join(users[:_NAMED_MAX]),
                more,
            )
        job.kill()  # and its file, unless another one is saved there by now
    else:
        _saved.remove(state_path(name))
    return True


def names() -> list[str]:
    """All contexts, ``default`` and the active one among them."""
    try:
        found = {entry.name for entry in os.scandir(_FOLDER) if entry.is_dir() and _NAME.fullmatch(entry.name)}
    except FileNotFoundError:
        found = set()
    return sorted((found - _NO_NAMES) | {current(), DEFAULT})


def state_path(name: str) -> str:
    """Where its job is saved. That of ``default`` may lie where it did before there were contexts."""
    if name == DEFAULT and _linked() is None and os.path.lexists(DEFAULT_JOB_PATH):
        return DEFAULT_JOB_PATH
    return os.path.join(_FOLDER, name, _STATE)


def _load(name: str, load: Callable[[str], JobTrait]) -> JobTrait:
    """What is saved there. ``FileNotFoundError``: nothing is; ``ValueError`` says why it cannot be read."""
    try:
        return load(state_path(name))
    except OSError:
        raise
    except Exception as error:
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(f"{state_path(name)} cannot be read as a saved job: {why}{LEFT}") from error


def spec_of(name: str) -> str | None:
    """``module.attribute``; None: nobody has said."""
    try:
        return _saved.read(os.path.join(_FOLDER, name, _SPEC)).decode().strip()
    except FileNotFoundError:
        return None


def spec_summary(name: str) -> str | None:
    """As :func:`spec_of`, for a list of them, or in brackets why it is not read."""
    try:
        return spec_of(name)
    except (OSError, ValueError) as error:
        return f"({error})"


def summary(name: str) -> tuple[str | None, str | None]:
    """What is saved there, in a line, and the beginning of the hash of its specification; nothing is unpickled.

    None: nothing is.
    """
    try:
        about = _saved.unpack(_saved.read(state_path(name)))[0]
        return str(about["specification"]), str(about.get("specification_sha256", ""))[:12] or None
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError, KeyError) as error:
        return f"cannot be read: {error}", None


def _activate(name: str) -> str:
    """Its folder, which is made if need be; it is the active one from here on."""
    folder = os.path.join(_FOLDER, name)
    with _saved.locked(os.path.join(_FOLDER, _LOCK)), contextlib.ExitStack() as until_linked:
        if _linked() is None:
            # A job that is on its way there is of ``default``.
            until_linked.enter_context(_saved.locked(DEFAULT_JOB_PATH))
            if os.path.lexists(DEFAULT_JOB_PATH):
                _keep_default()
        os.makedirs(folder, mode=0o700, exist_ok=True)
        _link(os.path.join(name, _STATE), DEFAULT_JOB_PATH)
    return folder


def _keep_default() -> None:
    """What was saved before there were contexts. It also stays where it is, in case that this process ends now."""
    os.makedirs(os.path.join(_FOLDER, DEFAULT), mode=0o700, exist_ok=True)
    state = os.path.join(_FOLDER, DEFAULT, _STATE)
    if os.path.islink(DEFAULT_JOB_PATH):
        return _link(os.path.realpath(DEFAULT_JOB_PATH), state)
    _users.move(DEFAULT_JOB_PATH, state)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(state)
        os.link(DEFAULT_JOB_PATH, state)
    except OSError:  # a file system without such links
        os.replace(DEFAULT_JOB_PATH, state)


def _link(leads_to: str, path: str) -> None:
    """In the place of what is there."""
    draft = f"{path}.link"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)  # of one that was killed
    os.symlink(leads_to, draft)
    os.replace(draft, path)
