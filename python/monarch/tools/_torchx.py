"""The schedulers of torchx, and what they know of jobs, as ``monarch.tools.commands`` shows it."""

from __future__ import annotations

import atexit
import collections
import contextlib
import copy
import functools
import importlib
import os
import re
import signal
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple

from monarch._meshes.worker_addresses import token_file
from monarch.tools.config import Config
from monarch.tools.mesh_spec import DEFAULT_PORT, MeshSpec, ServerSpec, _State
from monarch.tools.utils import MONARCH_HOME

_HANDLE = re.compile(r"([^:/]+)://([^/]*)/(.+)")
_BIND = re.compile(r"(tcp|tls)://(.+):(\d+)")
_ANY = ("*", "0.0.0.0", "[::]")  # all interfaces: no name of a host
_LAST_LINES = 5

_made: dict[tuple[str, str], str] = {}  # scheduler and name -> the handle of what this process has made last


class Handle(NamedTuple):
    scheduler: str
    session: str
    app: str

    def __str__(self) -> str:
        return f"{self.scheduler}://{self.session}/{self.app}"


def modules() -> tuple[Any, Any]:
    """``torchx.runner`` and ``torchx.specs``."""
    try:
        return importlib.import_module("torchx.runner"), importlib.import_module("torchx.specs")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"monarch.tools.commands needs torchx ({error}): pip install 'monarch-cpp[torchx]'", name=error.name
        ) from error


@functools.cache
def runner() -> Any:
    found = modules()[0].get_runner()
    atexit.register(found.close)  # jobs of local schedulers end with the process that has made them
    return found


def use(scheduler: str) -> Any:
    """The runner, which has a scheduler of this name now. ``ValueError`` if there is none."""
    found = runner()
    known = found.scheduler_backends()
    if scheduler not in known:
        raise ValueError(f"torchx has no scheduler {scheduler!r}; it has {', '.join(sorted(known))}")
    with _handlers_stay():
        found.scheduler_run_opts(scheduler)
    return found


@contextlib.contextmanager
def _handlers_stay() -> Iterator[None]:
    """Local schedulers set handlers of their own. Where the process has none for SIGTERM, theirs ends their jobs."""
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler not in (signal.SIG_DFL, None):
                signal.signal(number, handler)


def parsed(handle: Any) -> Handle:
    found = _HANDLE.fullmatch(handle) if isinstance(handle, str) else None
    if found is None:
        raise ValueError(
            f"expected the handle of a job, such as 'slurm://torchx/1234', as create() returns it, but got {handle!r}"
        )
    return Handle(found[1], found[2] or runner().name(), found[3])


# ---- What is known of a job ----


def look_at(handle: Handle) -> ServerSpec | None:
    found, specs = use(handle.scheduler), modules()[1]
    app = found.describe(str(handle))  # before the status, with which torchx forgets an app that is gone
    status = found.status(str(handle))
    if status is None:
        return None
    replicas = {role.role: role.replicas for role in status.roles}
    roles = app.roles if app is not None else []
    meshes = [_mesh(role, replicas.get(role.name, []), status.state, handle.scheduler) for role in roles]
    said = (status.msg, status.structured_error_msg)
    message = next((text for text in said if text and text != specs.NONE), "")
    return ServerSpec(handle.app, status.state, meshes, handle.scheduler, handle.session, status.ui_url, message)


def last_words(spec: ServerSpec) -> str:
    """Of the first host that has written to stderr; those of local schedulers, whose logs end with the script."""
    if not spec.scheduler.startswith("local"):
        return ""
    stderr = importlib.import_module("torchx.schedulers.api").Stream.STDERR
    for mesh in spec.meshes:
        for number in range(mesh.num_hosts):
            lines = runner().log_lines(spec.server_handle, mesh.name, number, streams=stderr)
            if last := collections.deque((line.rstrip() for line in lines if line.strip()), _LAST_LINES):
                return f"\n{mesh.name}[{number}] has said: " + "\n    ".join(last)
    return ""


def planned(name: str, config: Config) -> ServerSpec:
    """Of a dry run."""
    meshes = [_mesh(role, [], _State.UNSUBMITTED, config.scheduler) for role in config.appdef.roles]
    return ServerSpec(name, _State.UNSUBMITTED, meshes, config.scheduler, runner().name())


def _mesh(role: Any, replicas: list[Any], state: Any, scheduler: str) -> MeshSpec:
    transport, host, port = _listens(role)
    hostnames = [replica.hostname for replica in sorted(replicas, key=lambda each: each.id)]
    if not hostnames and scheduler.startswith("local"):  # those tell none
        host = "localhost" if host in (None, *_ANY) else host
        hostnames = [host.replace("${replica_id}", str(number)).strip("[]") for number in range(role.num_replicas)]
    return MeshSpec(
        role.name, role.num_replicas, role.metadata.get("monarch.host_type", ""),
        role.resource.gpu if role.resource is not None else -1, transport, port,
        hostnames if all(hostnames) else [], _common_state(replicas, state), role.image,
    )  # fmt: skip


def _listens(role: Any) -> tuple[str, Any, int]:
    """Transport, host and port of the role's workers: of ``--bind``; else a port of its map, or the default."""
    for word, after in zip(role.args, [*role.args[1:], ""]):
        bind = after if word == "--bind" else word.removeprefix("--bind=") if word.startswith("--bind=") else ""
        if found := _BIND.fullmatch(bind):
            return found[1], found[2], int(found[3])
    ports = role.port_map
    return "tcp", None, int(ports.get("mesh", next(iter(ports.values()), DEFAULT_PORT)))


def _common_state(replicas: list[Any], state: Any) -> Any:
    states = {replica.state for replica in replicas}
    return states.pop() if len(states) == 1 else state


# ---- Names of jobs ----


def find(name: str, scheduler: str) -> ServerSpec | None:
    """The job that was made last under this name, or that the scheduler knows by it; None if neither is there."""
    found = None
    for handle in dict.fromkeys(filter(None, (_made.get((scheduler, name)), _remembered(name, scheduler)))):
        spec = look_at(parsed(handle))
        if spec is not None and not spec._has_ended:
            return spec
        found = found or spec
    with contextlib.suppress(Exception):  # most have numbers or the like, and fail in ways of their own on other names
        return look_at(Handle(scheduler, runner().name(), name)) or found
    return found


def _note_of(name: str, scheduler: str) -> str:
    return str(MONARCH_HOME("torchx", urllib.parse.quote(scheduler, "")) / urllib.parse.quote(name, ""))


def _remembered(name: str, scheduler: str) -> str | None:
    if scheduler.startswith("local"):
        return None
    try:
        with open(_note_of(name, scheduler)) as file:
            handle = file.read().strip()
    except FileNotFoundError:
        return None
    return handle if _HANDLE.fullmatch(handle) else None


def _remember(name: str, scheduler: str, handle: str) -> None:
    """For later scripts too, but for jobs that end with this one."""
    _made[scheduler, name] = handle
    if scheduler.startswith("local"):
        return
    path = _note_of(name, scheduler)
    with open(f"{path}.{os.getpid()}", "w") as file:
        file.write(handle + "\n")
    os.replace(file.name, path)


# ---- Submission ----


def checked(config: Any, name: str | None) -> str:
    """The job's name."""
    if not isinstance(config, Config):
        raise TypeError(f"config must be a monarch.tools.config.Config, but is {config!r}")
    roles = getattr(config.appdef, "roles", None)
    if not roles:
        raise ValueError(
            f"config.appdef must be an AppDef of torchx with a role for each mesh, but is {config.appdef!r}"
        )
    name = config.appdef.name if name is None else name
    if not isinstance(name, str) or not name:
        raise ValueError(f"a job must have a name, but got {name!r}")
    return name


def _make_token() -> None:
    """Local workers make what is missing when they start; who attaches at once would be there before them."""
    path = token_file()
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    draft, name = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".token-")
    with open(draft, "wb") as file:
        file.write(os.urandom(16))
    try:
        with contextlib.suppress(FileExistsError):
            os.link(name, path)  # whole, or not at all
    finally:
        os.unlink(name)


def submit(config: Config, name: str) -> str | None:
    """Its handle; None of a dry run."""
    found = use(config.scheduler)
    app = copy.deepcopy(config.appdef)  # torchx writes into it
    app.name = name
    with contextlib.ExitStack() as stack:
        folder = None
        if config.workspace.dirs:
            config.workspace.set_env_vars(app)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="monarch-workspace-"))
            config.workspace.merge(folder)
        request = found.dryrun(app, config.scheduler, cfg=dict(config.scheduler_args), workspace=folder)
        if config.dryrun:
            print(request, flush=True)
            return None
        if config.scheduler.startswith("local"):
            _make_token()
        handle = str(found.schedule(request))
    _remember(name, config.scheduler, handle)
    return handle
