"""The runtime of this process: started at first use, given the Python functions that the core calls, ended at exit."""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock

from monarch import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_lock = allocate_lock()
_started = False
_base_env: dict[str, str] = {}  # the environment that the fork server was started with

# What only a new interpreter can take up: a difference here means exec instead of fork (DESIGN.md section 8).
_BEFORE_MAIN = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_", "GLIBC_TUNABLES")

# How long a script's end waits for its processes before it kills them, in seconds.
EXIT_GRACE = 0.3


def arena_bytes() -> int:
    """MONARCH_ARENA_BYTES: the most shared memory that this process lends to others; 0: a quarter of the machine's."""
    return int(os.environ.get("MONARCH_ARENA_BYTES", "0"))


def ensure() -> None:
    """Starts the runtime of this process if it has none."""
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
            _at_exit()
            start_fork_server()


def mark_started() -> None:
    """The worker's main program has started the runtime."""
    global _started
    _started = True
    os.register_at_fork(before=flush)
    _at_fork()


def _at_exit() -> None:
    import atexit

    atexit.register(_shutdown)
    atexit.register(_core.ignore_interrupts)  # runs first
    _at_fork()
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing import util  # its children end without atexit

        util.Finalize(None, _shutdown, exitpriority=10)


def _at_fork() -> None:
    os.register_at_fork(
        before=_core.before_fork,
        after_in_parent=_core.after_fork_in_parent,
        after_in_child=_core.after_fork_in_child,
    )


def flush() -> None:
    """Writes out what this process has printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


def _shutdown() -> None:
    flush()
    _core.shutdown(EXIT_GRACE)
    from monarch import _context

    _context._client = None
    _core.forget_hooks()


def configure() -> None:
    """Tells the core which Python functions to call."""
    import _pickle as pickle

    from monarch import _actor, _context, _endpoint, _exceptions, _future, _pickle, _value_mesh
    from monarch._geometry import Extent, Point

    loads = pickle.loads

    def value_mesh(ep: Any, entries: list[Any]) -> Any:
        return _value_mesh.ValueMesh(ep._mesh._result_shape(), entries)

    def run_async(cell: Any) -> None:
        from monarch import _async

        _async.run(cell)

    _core.configure(
        {
            "dumps": _pickle.dumps,
            "loads": loads,
            "future_type": _future.Future,
            "value_mesh": value_mesh,
            "lazy": lambda raw: _value_mesh.Lazy(raw, loads),
            "actor_error": _actor_error,
            "supervision_error": _supervision_error,
            "bind_arguments": _endpoint.bind_arguments,
            "warn_running_loop": _future.warn_running_loop,
            "wait_for_gate": _actor.wait_for_gate,
            "construct": _actor.construct,
            "run_async": run_async,
            "end_actor": _actor.end_actor,
            "undeliverable": _actor.undeliverable,
            "pack_error": _exceptions.pack_error,
            "format_failure": _actor.format_failure,
            "context_var": _context.current,
            "make_point": Point,
            "make_extent": lambda labels, sizes: Extent(list(labels), list(sizes)),
        }
    )


def _actor_error(ep: Any, rank: int, packed: Any) -> BaseException:
    from monarch._exceptions import ActorError

    message = f"Actor call {ep} failed." if ep is not None else "A remote actor call has failed."
    if isinstance(packed[0], str):
        kind, text = packed
        if kind == "__plain__":  # what a response port was given
            return text
        if kind == "__eof__":
            return EOFError(text)
        # A C++ actor: type and text of the exception.
        return ActorError(RuntimeError(f"{kind}: {text}"), message, f"{kind}: {text}\n")
    error, formatted = packed
    return ActorError(error, message, formatted)


def _supervision_error(ep: Any, rank: int, text: str) -> BaseException:
    from monarch._exceptions import SupervisionError

    if ep is None:
        return SupervisionError(text)
    actor = ep._mesh._describe_rank(rank)
    if text.startswith("stopped"):
        cause = f"Supervision event: actor {actor} has status:\n  {text}"
    else:
        cause = f"The actor {actor} and all its descendants have failed:\n  {text}"
    return SupervisionError(f"Endpoint call {ep}() failed, {cause}", str(ep))


# ---- Starting processes ----


def start_fork_server() -> None:
    """Starts the warm process that workers are forked from, in the background."""
    global _base_env
    if os.environ.get("MONARCH_SPAWN") == "exec":
        return
    _base_env = dict(os.environ)
    command = _interpreter("_forkserver", f", {_has_actors_of_main()}")
    _core.start_fork_server(command, _env_list(_base_env), os.getcwd())


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


def _interpreter(module: str, arguments: str = "") -> list[str]:
    """The command that runs ``main`` of a module of this package, wherever the script found the package.

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
    return [sys.executable, *_interpreter_flags(), "-c", code]


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


def launch(label: str, setup: Any, env: dict[str, str], mesh: Any) -> dict[str, Any]:
    """What the core needs to start one process."""
    import _pickle as pickle

    full_env = {**os.environ, **env}
    by_exec = _must_exec(full_env)
    umask = os.umask(0o77)
    os.umask(umask)
    payload = {
        "path": sys.path,
        "cwd": os.getcwd(),
        "env": full_env,
        "umask": umask,
        "argv": sys.argv,
        "setup": setup,
        "mesh": mesh,
    }
    return {
        "fork": not by_exec,
        "argv": _interpreter("_worker") if by_exec else [],
        "env": _env_list(full_env) if by_exec else [],
        "cwd": "",
        "payload": pickle.dumps(payload, protocol=4),
        "label": label,
    }
