"""The runtime of this process: started at first use, ended at exit.

It knows nothing of what is above it: ``monarch._wiring`` has told it what the core is to call, and what else begins and
ends with it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from monarch import _core
from monarch._config import state as configuration
from monarch._runtime.here import here

_lock = threading.RLock()  # what begins with the runtime asks for it
_started = False
_ready = False  # and all that begins with it has begun
_ended = False  # the client was shut down before its script's end
stopped_by_failure = False  # the program ends because of one that nobody has dealt with

# How long a script's end waits for its processes before it kills them, in seconds.
EXIT_GRACE = 0.3
_GRACE_MAX = 1e6
ANSWER_GRACE = 1.0  # and before that for answers to what it has sent, unless MONARCH_EXIT_GRACE says otherwise
SHUTDOWN_GRACE = 10.0  # the same for shutdown_context()

# Time limits of the configuration, in seconds, as they are unless somebody configures them.
DEFAULT_LIMITS = {"cleanup_timeout": 3.0, "process_exit_timeout": 10.0}


_TRANSPORTS = ("shm", "unix")
_PATHS = ("shm", "cma", "cuda-ipc", "tcp", "ucx")


def arena_bytes() -> int:
    """MONARCH_ARENA_BYTES: the most shared memory that this process lends to others; 0: a quarter of the machine's."""
    text = os.environ.get("MONARCH_ARENA_BYTES", "")
    return int(text) if _is_size(text) else 0


def _is_size(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < 2**63


def _transport() -> str:
    wanted = os.environ.get("MONARCH_TRANSPORT", "")
    return wanted if wanted in _TRANSPORTS else _TRANSPORTS[0]


def _is_seconds(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False


def _warn_of_environment() -> None:
    """Of variables that are taken for not set, since they make no sense. Those that are keys are looked at as such."""
    checks: dict[str, tuple[Callable[[str], bool], str]] = {
        "MONARCH_TRANSPORT": (lambda text: text in _TRANSPORTS, "shm or unix"),
        "MONARCH_ARENA_BYTES": (_is_size, "a number of bytes"),
        "MONARCH_SPAWN": (lambda text: text == "exec", "exec"),
        "MONARCH_RDMA_PATHS": (
            lambda text: all(word in _PATHS for word in text.replace(",", " ").split()),
            "a list of " + ", ".join(_PATHS),
        ),
        "MONARCH_EXIT_GRACE": (_is_seconds, "a number of seconds"),
    }  # fmt: skip
    for name, (is_valid, wants) in checks.items():
        text = os.environ.get(name, "")
        if text and not is_valid(text):
            why = f"it must be {wants}, but is {text!r}"
            warnings.warn(f"environment variable {name} is ignored: {why}", RuntimeWarning, stacklevel=2)


def limit(key: str) -> float:
    """A time limit in seconds. The configuration is not loaded for it as long as nothing is configured."""
    if configuration.changed or f"HYPERACTOR_{key.upper()}" in os.environ:
        from monarch._config import settings

        return settings.seconds(key)
    return DEFAULT_LIMITS[key]


class Wired(NamedTuple):
    """What the layers above give the runtime."""

    callbacks: Any  # _wiring.Callbacks: what the core calls
    started: Callable[[bool], None]  # in a script; argument: whether processes are to be started soon
    ended: Callable[[], None]
    losses: Callable[[float | None], list[str]]  # waits, if so long, and gives lines about what is lost


_wired: Wired | None = None


def wire(wired: Wired) -> None:
    """Before the runtime is started."""
    global _wired
    _wired = wired


def ensure(processes: bool = True) -> None:
    """Starts the runtime of this process if it has none.

    Without ``processes`` nothing is prepared for starting some: that costs a process, and comes with the first.
    """
    global _started, _ready
    if _ready:
        return
    with _lock:
        if not _started:
            assert _wired is not None
            _core.configure(_wired.callbacks)
            # Without a stdout of its own, descriptor 1 may be any file of the script's.
            stdout, stderr = (-1 if stream is None else fd for fd, stream in ((1, sys.__stdout__), (2, sys.__stderr__)))
            _warn_of_environment()
            _core.start_root(_transport(), arena_bytes(), stdout, stderr)
            _started = True
            apply_limits()
            _at_exit()
            _wired.started(processes)
            _ready = True


def apply_limits() -> None:
    """Tells the core, once it runs, what it needs of the configuration, if somebody has configured anything."""
    of_core = (
        "HYPERACTOR_CODEC_MAX_FRAME_LENGTH", "HYPERACTOR_CLEANUP_TIMEOUT", "MONARCH_STOPPED_RANK_LEASE",
        "HYPERACTOR_MESH_SUPERVISION_WATCHDOG_TIMEOUT", "MONARCH_RDMA_ENCRYPT", "MONARCH_RDMA_TCP_FALLBACK_PARALLELISM",
        "MONARCH_RDMA_DISABLE_IBVERBS", "MONARCH_RDMA_IBVERBS_TARGET",
    )  # fmt: skip
    if _started and (configuration.changed or any(name in os.environ for name in of_core)):
        from monarch._config import settings

        _core.set_frame_max(settings.get("codec_max_frame_length"))
        _core.set_stop_limit(settings.seconds("cleanup_timeout"))
        _core.set_watch_limits(settings.seconds("stopped_rank_lease"), settings.seconds("supervision_watchdog_timeout"))
        target = settings.get("rdma_ibverbs_target")
        _core.use_streams(
            settings.get("rdma_encrypt"), settings.get("rdma_tcp_fallback_parallelism"),
            not settings.get("rdma_disable_ibverbs"), target.removeprefix("nic:") if target.startswith("nic:") else "",
        )  # fmt: skip


configuration.listeners.append(apply_limits)


def is_started() -> bool:
    return _started


def configure_worker() -> None:
    """Before a worker's main program starts the runtime itself."""
    assert _wired is not None
    _core.configure(_wired.callbacks)


def mark_started(root: int) -> None:
    """The worker's main program has started the runtime; ``root`` is the script's node."""
    global _started, _ready
    _started = _ready = True
    here().root = root
    apply_limits()
    os.register_at_fork(before=flush)


def begin_simulation() -> tuple[bool, bool]:
    """The processes of a simulation have runtimes of their own from now on. Gives what end_simulation() takes."""
    global _started, _ready
    assert _wired is not None
    before = _started, _ready
    if not _started:
        _core.configure(_wired.callbacks)
    _started = _ready = True
    return before


def end_simulation(before: tuple[bool, bool]) -> None:
    """What was there is there again."""
    global _started, _ready
    _started, _ready = before


def root() -> int:
    """The node of the script that everything here belongs to."""
    return here().root or _core.node_id()


def is_root() -> bool:
    """Has this process a client, which has started its runtime?"""
    return _started and here().root == 0


def _at_exit() -> None:
    # They run from the last to the first.
    atexit.register(_shutdown)
    atexit.register(_tell_losses)
    atexit.register(_core.ignore_interrupts)
    if hasattr(threading, "_register_atexit"):  # runs before those, and before Python waits for its threads
        try:
            threading._register_atexit(_wait_for_threads)
        except RuntimeError:
            pass  # it waits already
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and multiprocessing.parent_process() is not None:
        from multiprocessing import util  # its children end without atexit

        util.Finalize(None, _tell_losses, exitpriority=11)
        util.Finalize(None, _shutdown, exitpriority=10)


def _wait_for_threads() -> None:
    """Where a failure ends the program: Python would wait for ever, and say nothing."""
    if not stopped_by_failure or _core.in_forked_child():
        return
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    left = [thread for thread in others if not thread.daemon]
    if not left:
        return
    seconds = limit("process_exit_timeout")
    names = ", ".join(repr(thread.name) for thread in left)
    s, are = ("", "is no daemon") if len(left) == 1 else ("s", "are no daemons")
    _core.log_line(f"the program ends, and waits {seconds:g} s at most for its thread{s} {names}, which {are}")
    deadline = time.monotonic() + seconds
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in left):
        _stop_waiting()


def _stop_waiting() -> NoReturn:
    """What is raised here keeps Python from waiting; it would print that as well."""
    shown = sys.unraisablehook

    def hide(_: Any) -> None:
        sys.unraisablehook = shown

    sys.unraisablehook = hide
    raise SystemExit


def flush() -> None:
    """Writes out what this process has printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass


port_flushers: list[Callable[[float], None]] = []  # of modules whose ports hold something back


def flush_ports(limit: float) -> None:
    """Sends what ports with a reducer hold back in this process; waits ``limit`` seconds for who is doing so."""
    for flush_held_back in port_flushers:
        flush_held_back(limit)


def _shutdown() -> None:
    """The end of the script."""
    flush()
    if _core.in_forked_child():
        return  # the script is its parent
    flush_ports(EXIT_GRACE)
    _core.shutdown(EXIT_GRACE, True)
    _tell_of_end()
    _core.forget_hooks()
    _remember_interrupt()


def _remember_interrupt() -> None:
    """That Ctrl-C has ended the script, so that its status is SIGINT. Python forgets it whenever it runs source text.

    That is what a module does which is imported here, since Ctrl-C came before it was, and defines a named tuple.
    """
    if getattr(sys, "last_type", None) is KeyboardInterrupt and not (hasattr(sys, "ps1") or sys.flags.interactive):
        try:
            exec("raise KeyboardInterrupt")
        except KeyboardInterrupt:
            pass


def _tell_losses() -> None:
    """Gives what was sent a short grace, unless the script has failed, and says what is lost. Ctrl-C ends the grace."""
    if _ended or stopped_by_failure or _core.in_forked_child() or not _core.has_runtime():
        return
    failed = getattr(sys, "last_type", None) is not None
    flush_ports(EXIT_GRACE)
    try:
        _tell_losses_after(None if failed else exit_grace())
    except SystemExit:
        pass  # a failure has stopped the program meanwhile, and has been reported


def _tell_losses_after(grace: float | None) -> None:
    assert _wired is not None
    try:
        for line in _wired.losses(grace):
            _core.log_line(line)
    except RuntimeError:
        pass  # the runtime has lost its descriptors, and has said so


def exit_grace() -> float:
    """MONARCH_EXIT_GRACE: seconds that a script's end waits for answers that nobody has looked at."""
    text = os.environ.get("MONARCH_EXIT_GRACE", "")
    return min(float(text), _GRACE_MAX) if _is_seconds(text) else ANSWER_GRACE


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
    _tell_losses_after(None)
    flush_ports(min(grace, SHUTDOWN_GRACE))
    _core.shutdown(min(grace, 1e9), False)
    _tell_of_end()


def _tell_of_end() -> None:
    if _wired is not None:
        _wired.ended()
