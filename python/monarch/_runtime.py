"""The runtime of this process: started at first use, given the Python functions that the core calls, ended at exit."""

from __future__ import annotations

import builtins
import os
import sys
from _thread import allocate_lock

from monarch import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from monarch._bootstrap import BootstrapCommand

_lock = allocate_lock()
_started = False
_ended = False  # the client was shut down before its script's end
_root: int = 0  # the node of the script; 0: this is it
_base_env: dict[str, str] = {}  # the environment that the fork server was started with
# What runs the processes that this one starts; None: the interpreter that runs this one.
default_python: str | None = None
host_agent: tuple[int, int] | None = None  # of the host that this process was started on (_hosts.py); None: the machine

# What only a new interpreter can take up: a difference here means exec instead of fork.
_BEFORE_MAIN = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_", "GLIBC_TUNABLES")

# How long a script's end waits for its processes before it kills them, in seconds.
EXIT_GRACE = 0.3
SHUTDOWN_GRACE = 10.0  # the same for shutdown_context()

# Time limits of the configuration, in seconds, as they are unless somebody configures them.
DEFAULT_LIMITS = {"cleanup_timeout": 3.0, "process_exit_timeout": 10.0}


def arena_bytes() -> int:
    """MONARCH_ARENA_BYTES: the most shared memory that this process lends to others; 0: a quarter of the machine's."""
    return int(os.environ.get("MONARCH_ARENA_BYTES", "0"))


def limit(key: str) -> float:
    """A time limit in seconds. The configuration is not loaded for it as long as nothing is configured."""
    if "monarch._config" in sys.modules or f"HYPERACTOR_{key.upper()}" in os.environ:
        from monarch import _config

        return _config.seconds(key)
    return DEFAULT_LIMITS[key]


def ensure(processes: bool = True) -> None:
    """Starts the runtime of this process if it has none.

    Without ``processes`` nothing is prepared for starting some: that costs a process, and comes with the first.
    """
    global _started
    if _started:
        return
    with _lock:
        if not _started:
            configure()
            # Without a stdout of its own, descriptor 1 may be any file of the script's.
            stdout, stderr = (-1 if stream is None else fd for fd, stream in ((1, sys.__stdout__), (2, sys.__stderr__)))
            _core.start_root(os.environ.get("MONARCH_TRANSPORT", "shm"), arena_bytes(), stdout, stderr)
            _started = True
            apply_limits()
            _at_exit()
            if processes:
                start_fork_server()
            from monarch import _controllers

            _controllers.offer()


def apply_limits() -> None:
    """Tells the core, once it runs, what it needs of the configuration, if somebody has configured anything."""
    of_core = ("HYPERACTOR_CODEC_MAX_FRAME_LENGTH", "HYPERACTOR_CLEANUP_TIMEOUT")
    if _started and ("monarch._config" in sys.modules or any(name in os.environ for name in of_core)):
        from monarch import _config

        _core.set_frame_max(_config.get("codec_max_frame_length"))
        _core.set_stop_limit(_config.seconds("cleanup_timeout"))


def is_started() -> bool:
    return _started


def mark_started(root: int) -> None:
    """The worker's main program has started the runtime; ``root`` is the script's node."""
    global _started, _root
    _started = True
    _root = root
    apply_limits()
    os.register_at_fork(before=flush)


def root() -> int:
    """The node of the script that everything here belongs to."""
    return _root or _core.node_id()


def is_root() -> bool:
    """Has this process a client, which has started its runtime?"""
    return _started and _root == 0


def _at_exit() -> None:
    import atexit

    atexit.register(_shutdown)
    atexit.register(_core.ignore_interrupts)  # runs first
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing import util  # its children end without atexit

        util.Finalize(None, _shutdown, exitpriority=10)


def flush() -> None:
    """Writes out what this process has printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def flush_ports(limit: float) -> None:
    """Sends what ports with a reducer hold back in this process; waits ``limit`` seconds for who is doing so."""
    reducers = sys.modules.get("monarch._reducers")
    if reducers is not None:
        reducers.flush(limit)


def _shutdown() -> None:
    """The end of the script."""
    flush()
    if _core.in_forked_child():
        return  # the script is its parent
    flush_ports(EXIT_GRACE)
    _core.shutdown(EXIT_GRACE, True)
    _forget_client()
    _core.forget_hooks()


def begin_shutdown(host_timeout: float | None) -> float | None:
    """How long shut_down() may take, in seconds; None: there is no client to shut down (any more)."""
    global _ended
    if _core.in_forked_child():
        return None
    with _lock:
        if not is_root() or _ended:
            return None
        grace = SHUTDOWN_GRACE if host_timeout is None else host_timeout
        if not 0 <= grace < 2.0**64:
            raise ValueError("host_timeout must be finite, non-negative and less than 2**64 seconds")
        _ended = True
    return grace


def shut_down(grace: float) -> None:
    """Ends the client before its script does."""
    flush()
    flush_ports(min(grace, SHUTDOWN_GRACE))
    _core.shutdown(min(grace, 1e9), False)
    _forget_client()


def _forget_client() -> None:
    from monarch import _context

    _context._client = None


def configure() -> None:
    """Tells the core which Python functions to call."""
    import _pickle as pickle

    from monarch import _actor, _context, _deadline, _endpoint, _exceptions, _future, _pickle, _port, _value_mesh
    from monarch._geometry import Extent, Point

    loads = pickle.loads

    def value_mesh(ep: Any, entries: list[Any]) -> Any:
        return ep._mesh._gather(entries)

    def end_child(error: BaseException | None) -> None:
        from monarch import _forks

        _forks.end(error)

    def run_async(cell: Any) -> None:
        from monarch import _async

        _async.run(cell)

    def run_swarm(swarm: Any) -> None:
        from monarch import _async

        _async.run_swarm(swarm)

    _core.configure(
        {
            "dumps": _pickle.dumps,
            "loads": loads,
            "future_type": _future.Future,
            "port_type": _port.Port,
            "value_mesh": value_mesh,
            "lazy": lambda raw: _value_mesh.Lazy(raw, loads),
            "actor_error": _actor_error,
            "supervision_error": _supervision_error,
            "bind_arguments": _endpoint.bind_arguments,
            "warn_running_loop": _future.warn_running_loop,
            "construct": _actor.construct,
            "run_async": run_async,
            "run_swarm": run_swarm,
            "end_actor": _actor.end_actor,
            "undeliverable": _actor.undeliverable,
            "pack_answer": _exceptions.pack_answer,
            "format_failure": _actor.format_failure,
            "end_child": end_child,
            "context_var": _context.current,
            "deadline_var": _deadline.current,
            "deadline_exceeded": _exceptions.DeadlineExceeded,
            "make_point": Point,
            "make_extent": lambda labels, sizes: Extent(list(labels), list(sizes)),
        }
    )


def _actor_error(ep: Any, rank: int, packed: Any) -> BaseException:
    from monarch._exceptions import ActorError, fill_in_source

    message = f"Actor call {ep} failed." if ep is not None else "A remote actor call has failed."
    if isinstance(packed[0], str):
        kind, text = packed
        if kind == "__builtin__":
            name, args, formatted, complete = text
            error = getattr(builtins, name)(*args)
            return ActorError(error, message, formatted if complete else fill_in_source(formatted))
        if kind == "__plain__":  # what a response port was given
            return text
        if kind == "__eof__":
            return EOFError(text)
        if kind == "__deadline__":
            from monarch._exceptions import DeadlineExceeded

            return DeadlineExceeded(text if ep is None else f"{ep}: {text}")
        if kind == "__setup__":  # whatever was called: the process is of no use
            error, formatted = text
            return ActorError(error, "Actor call setup.setup failed.", formatted)
        # A C++ actor: type and text of the exception.
        return ActorError(RuntimeError(f"{kind}: {text}"), message, f"{kind}: {text}\n")
    error, formatted = packed
    return ActorError(error, message, fill_in_source(formatted))


# Kinds of failures that are told in words of their own (wire/failure.h): a process or an actor was asked to end; a
# message was refused, cannot be sent, or was never sent, and whom it was for may be well.
_STOPPED = (4, 12)
_NOBODY_DIED = (1, 7, 8, 13)


def _supervision_error(ep: Any, rank: int, text: str, record: tuple[Any, ...] | None) -> BaseException:
    from monarch._exceptions import SupervisionError, fill_in_source

    text = fill_in_source(text)
    if ep is None:
        return SupervisionError(text)._with_record(record)
    actor = ep._mesh._describe_rank(rank)
    kind = 0 if record is None else record[0]
    if kind in _NOBODY_DIED:
        cause = text
    elif kind in _STOPPED:
        cause = f"Supervision event: actor {actor} has status:\n  {text}"
    else:
        cause = f"The actor {actor} and all its descendants have failed:\n  {text}"
    return SupervisionError(f"Endpoint call {ep}() failed, {cause}", str(ep))._with_record(record)


# ---- Starting processes ----


def start_fork_server() -> None:
    """Starts the warm process that workers are forked from, in the background."""
    global _base_env
    if os.environ.get("MONARCH_SPAWN") == "exec":
        return
    _base_env = dict(os.environ)
    command = [sys.executable, *interpreter_args("_forkserver", f", {_has_actors_of_main()}")]
    _core.start_fork_server(command, _env_list(_base_env))


def working_directory() -> str | None:
    """None: it has been deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _has_actors_of_main() -> bool:
    """Has the script, or the notebook, defined actor classes? Workers get them by value."""
    from monarch._actor import Actor

    classes = Actor.__subclasses__()
    while classes:
        cls = classes.pop()
        if cls.__module__ in ("__main__", "__mp_main__"):
            return True
        classes += cls.__subclasses__()
    return False


def interpreter_args(module: str, arguments: str = "") -> list[str]:
    """What an interpreter is told to run ``main`` of a module of this package, wherever the script found the package.

    Not with ``-m``: that looks into the working directory first, where a ``pickle.py`` of the user's may lie.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    code = (
        "import sys\n"
        "if sys.path[:1] == ['']: del sys.path[0]\n"
        f"if {root!r} not in sys.path: sys.path.append({root!r})\n"
        f"from monarch import {module}\n"
        f"{module}.main([int(sys.argv[-1])]{arguments})"
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
        "root": root(),
    }
    configuration = sys.modules.get("monarch._config")
    if configuration is not None and (layer := configuration.for_children()):
        payload["config"] = layer
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
    own_args = interpreter_args("_worker")
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
