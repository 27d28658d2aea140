"""Starting processes: by fork from the warm fork server, or by exec where that would not do."""

from __future__ import annotations

import _pickle as pickle
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch import _core
from monarch._actors.actor import Actor
from monarch._config import state as configuration
from monarch._runtime import runtime
from monarch._runtime.here import here

if TYPE_CHECKING:
    from monarch._processes.bootstrap import BootstrapCommand

# What runs the processes that this one starts; None: the interpreter that runs this one.
default_python: str | None = None

# In a simulation: the payload of an order. Raises for what is not there.
simulated_payload: Callable[[Common, Sequence[Wanted], int | None], bytes] | None = None

# What only a new interpreter can take up: a difference here means exec instead of fork.
_BEFORE_MAIN = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_", "GLIBC_TUNABLES")


def start_fork_server() -> None:
    """Starts the warm process that workers are forked from, in the background."""
    if os.environ.get("MONARCH_SPAWN") != "exec":
        _core.start_fork_server(_core.encode_native(_defaults(b"")))


def working_directory() -> str | None:
    """None: it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _has_actors_of_main() -> bool:
    """Has the script, or the notebook, defined actor classes? Workers get them by value."""
    classes = Actor.__subclasses__()
    while classes:
        cls = classes.pop()
        if cls.__module__ in ("__main__", "__mp_main__"):
            return True
        classes += cls.__subclasses__()
    return False


def interpreter_args(program: str, arguments: str = "") -> list[str]:
    """What an interpreter is told to run a program of ``monarch._programs``, wherever the script found the package.

    Not with ``-m``: that looks into the working directory first, where a ``pickle.py`` of the user's may lie.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = (
        "import _signal, sys\n"
        "_signal.signal(_signal.SIGINT, _signal.SIG_IGN)\n"  # Ctrl-C belongs to the script
        "if sys.path[:1] == ['']: del sys.path[0]\n"
        f"if {root!r} not in sys.path: sys.path.append({root!r})\n"
        f"from monarch._programs import {program}\n"
        f"{program}.main(sys.argv[-1]{arguments})"
    )
    return [*_interpreter_flags(), "-c", code]


def _interpreter_flags() -> list[str]:
    flags = sys.flags
    options = [("-I", flags.isolated), ("-S", flags.no_site), ("-B", flags.dont_write_bytecode)]
    if not flags.isolated:
        options += [("-E", flags.ignore_environment), ("-s", flags.no_user_site)]
    found = [option for option, value in options if value] + ["-O"] * flags.optimize
    found += [f"-W{option}" for option in sys.warnoptions]
    for name, value in sys._xoptions.items():
        found += ["-X", name if value is True else f"{name}={value}"]
    return found


def _texts(texts: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(os.fsencode(text) for text in texts)


def _defaults(payload: bytes, env: Mapping[bytes, bytes] | None = None) -> tuple[Any, ...]:
    """What this process gives to all that it starts now: LaunchDefaults (``src/monarch/host/start/launch.h``).

    ``env``: None, its own environment.
    An interpreter with packages of its own forks nothing: the fork server would have imported others than the script's.
    """
    forks = os.environ.get("MONARCH_SPAWN") != "exec"
    server = [sys.executable, *interpreter_args("fork_server", f", {_has_actors_of_main()}")] if forks else []
    return (
        os.fsencode(default_python or sys.executable),
        os.fsencode(sys.executable) if default_python is None else b"",
        _texts(interpreter_args("worker")),
        tuple(name + b"=" + value for name, value in (os.environb if env is None else env).items()),
        _texts(_BEFORE_MAIN),
        _texts(server),
        payload,
    )


def _payload_of_host(needs_cloudpickle: bool) -> bytes:
    """What new interpreters, and children of the fork server, make themselves look like (``_programs/worker.py``)."""
    umask = os.umask(0o77)
    os.umask(umask)
    return pickle.dumps(
        {
            "path": sys.path,
            "prefixes": (sys.prefix, sys.base_prefix),
            "cwd": working_directory() or f"/proc/{os.getpid()}/cwd",  # there a deleted one can still be entered
            "umask": umask,
            "root": runtime.root() if runtime.is_started() else None,
            "cloudpickle": _folder_of_cloudpickle() if needs_cloudpickle else None,
        },
        protocol=4,
    )


def _folder_of_cloudpickle() -> str | None:
    """Only the version that has pickled something by value can read it for sure: other environments are given ours."""
    from importlib.util import find_spec  # finding it is much faster than importing it

    spec = find_spec("cloudpickle")
    return None if spec is None or spec.origin is None else os.path.dirname(os.path.dirname(spec.origin))


def offered(env: Mapping[bytes, bytes] | None = None) -> bytes:
    """What a host gives to all that it starts which starts them as this process would for itself now.

    ``env``: None, with its own environment.
    """
    encoded: bytes = _core.encode_native(_defaults(_payload_of_host(needs_cloudpickle=True), env))
    return encoded


def offer() -> None:
    """This process is a host: from now on it starts processes for whoever asks."""
    _core.offer_agent(offered())


# ---- Orders ----


class Wanted(NamedTuple):
    """One process that is to be started."""

    label: str  # for people
    command: BootstrapCommand | None  # None: the default
    prefix: list[str] | None  # a program, with arguments, that starts it in turn
    coordinates: list[int]
    output: tuple[str, int, bool, str, int]  # the name of its mesh, its rank, prefixed? log file, last lines


class Common(NamedTuple):
    """What the processes of a mesh have in common."""

    number: int  # under which their output is known, below 2**63
    setup: bytes | None  # a pickled function that each runs first
    mesh: tuple[list[str], list[int], str]  # labels, sizes and name
    python: str | None = None  # the interpreter that is the default from there on; None: that of their host
    are_hosts: bool = False  # they start processes for others
    launches: Any = None  # Launches (_meshes/launchers.py): who starts them, if that is the program's own code


def order(common: Common, wanted: Sequence[Wanted], host: int | None, foreign: bool = False) -> bytes:
    """What a host needs to start these: LaunchOrder (``src/monarch/host/start/launch.h``).

    ``host``: its node; None, the machine. ``foreign``: it belongs to another job, and so will they.
    """
    if simulated_payload is not None and _core.in_simulation():
        payload = simulated_payload(common, wanted, host)
    else:
        payload = _payload_of_order(common, host, foreign)
    launches = tuple(_plain(each) for each in wanted)
    python = b"" if common.python is None else os.fsencode(common.python)
    values = (common.number, common.are_hosts, python, payload, launches, common.launches is not None)
    encoded: bytes = _core.encode_native(values)
    return encoded


def _payload_of_order(common: Common, host: int | None, foreign: bool) -> bytes:
    payload: dict[str, Any] = {
        "argv": sys.argv,
        "python": common.python,
        "setup": common.setup,
        "mesh": common.mesh,
        "host": host,
        "root": None if foreign else runtime.root(),
    }
    if here().mounts:
        payload["mounts"] = here().mounts
    if configuration.changed:
        from monarch._config import settings

        payload["config"] = settings.for_children()
    return pickle.dumps(payload, protocol=4)


def _plain(wanted: Wanted) -> tuple[Any, ...]:
    mesh, rank, prefix, log_file, tail_lines = wanted.output
    output = (mesh.encode(errors="replace"), rank, prefix, os.fsencode(log_file))
    command = None if wanted.command is None else _plain_command(wanted.command)
    label = wanted.label.encode(errors="replace")
    return command, _texts(wanted.prefix or ()), label, output, tuple(wanted.coordinates), tail_lines


def _plain_command(command: BootstrapCommand) -> tuple[Any, ...]:
    return (
        os.fsencode(command.program),
        None if command.arg0 is None else os.fsencode(command.arg0),
        _texts(command.args),
        tuple((os.fsencode(k), None if v is None else os.fsencode(v)) for k, v in command.env.items()),
        bool(command.inherit_env),
    )


def start_here(common: Common, wanted: Sequence[Wanted], host: int | None = None) -> list[int]:
    """Starts processes on this machine, for this process."""
    if simulated_payload is not None and _core.in_simulation():
        return _core.spawn_procs(order(common, wanted, host))
    usual = common.python is None and default_python is None
    usual = usual and common.launches is None and not any(each.command is not None or each.prefix for each in wanted)
    defaults = _core.encode_native(_defaults(_payload_of_host(needs_cloudpickle=not usual)))
    return _core.spawn_procs(order(common, wanted, host), defaults)
