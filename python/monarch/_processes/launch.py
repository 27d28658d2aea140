"""Starting processes: by fork from the warm fork server, or by exec where that would not do."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._actors.actor import Actor
from monarch._config import state as configuration
from monarch._runtime import runtime

if TYPE_CHECKING:
    from monarch._processes.bootstrap import BootstrapCommand

_base_env: dict[str, str] = {}  # the environment that the fork server was started with
# What runs the processes that this one starts; None: the interpreter that runs this one.
default_python: str | None = None
host_agent: tuple[int, int] | None = None  # of the host that this process was started on; None: the machine

# What only a new interpreter can take up: a difference here means exec instead of fork.
_BEFORE_MAIN = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_", "GLIBC_TUNABLES")


def start_fork_server() -> None:
    """Starts the warm process that workers are forked from, in the background."""
    global _base_env
    if os.environ.get("MONARCH_SPAWN") == "exec":
        return
    _base_env = dict(os.environ)
    command = [sys.executable, *interpreter_args("fork_server", f", {_has_actors_of_main()}")]
    _core.start_fork_server(command, _env_list(_base_env))


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
        f"{program}.main([int(sys.argv[-1])]{arguments})"
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


def _env_list(env: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in env.items()]


def _must_exec(env: dict[str, str]) -> bool:
    if os.environ.get("MONARCH_SPAWN") == "exec":
        return True
    if not _core.has_fork_server():  # a worker that spawns for the first time, or it died
        start_fork_server()
    names = {name for name in (*env, *_base_env) if name.startswith(_BEFORE_MAIN)}
    return any(env.get(name) != _base_env.get(name) for name in names)


def launch(
    label: str,
    setup: Any,
    mesh: Any,
    python: str | None = None,
    command: BootstrapCommand | None = None,
    prefix: list[str] | None = None,
    agent: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """What the core needs to start one process.

    ``python``: the interpreter that is the default from there on, None: this one. ``command``: how to start it, None:
    the default. ``prefix``: a program, with arguments, that starts it in turn. ``agent``: of the host that it is on.
    """
    import _pickle as pickle

    env = dict(os.environ) if command is None else _environment(command)
    program, argv, ours = _command_line(python, command, prefix or [])
    by_exec = not ours or _must_exec(env)
    umask = os.umask(0o77)
    os.umask(umask)
    payload = {
        "path": sys.path,
        "prefixes": (sys.prefix, sys.base_prefix),
        "cwd": working_directory() or f"/proc/{os.getpid()}/cwd",  # there a deleted one can still be entered
        "env": env if ours else None,
        "umask": umask,
        "argv": sys.argv,
        "python": python,
        "cloudpickle": None if ours else _folder_of_cloudpickle(),
        "setup": setup,
        "mesh": mesh,
        "agent": agent,
        "root": runtime.root(),
    }
    if configuration.changed:
        from monarch._config import settings

        payload["config"] = settings.for_children()
    return {
        "fork": not by_exec,
        "program": program,
        "argv": argv if by_exec else [],
        "env": _env_list(env) if by_exec else [],
        "cwd": "",
        "payload": pickle.dumps(payload, protocol=4),
        "label": label,
    }


def _environment(command: BootstrapCommand) -> dict[str, str]:
    env = dict(os.environ) if command.inherit_env else {}
    for name, value in command.env.items():
        if value is not None:
            env[name] = value
        else:
            env.pop(name, None)
    return env


def _command_line(
    python: str | None, command: BootstrapCommand | None, prefix: list[str]
) -> tuple[str, list[str], bool]:
    """Program, argv, and whether that is our own interpreter with our own arguments, which is what a fork would give.

    Anything else may do what it likes with the environment before a worker is up, and may find packages of its own.
    """
    own_args = interpreter_args("worker")
    program, arg0, args = python or sys.executable, None, own_args
    if command is not None:
        program, arg0, args = command.program, command.arg0, list(command.args)
    ours = program == sys.executable and default_python is None and args == own_args and arg0 in (None, program)
    if prefix:
        return prefix[0], [*prefix, program, *args], False
    return program, [arg0 or program, *args], ours


def _folder_of_cloudpickle() -> str:
    """Only the version that has pickled something by value can read it for sure: other environments are given ours."""
    import cloudpickle

    return os.path.dirname(os.path.dirname(cloudpickle.__file__))


def start_here(requests: list[tuple[Any, ...]], owner: int = 0, mesh: int = 0) -> list[int]:
    """Starts processes on this machine. ``owner``, ``mesh``: of whom, and of which mesh, if not of this process."""
    return _core.spawn_procs([{**launch(*args), **who} for args, who in requests], owner, mesh)
