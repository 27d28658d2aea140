"""Failures that no ``__supervise__`` is asked about: of what the script owns, and of what actors own without that hook.

They are dealt with when somebody is told: by a call that waited for what has failed, whenever its future is looked at,
or by one that is made soon after. Else an actor fails with what it owns, and the script's ``unhandled_fault_hook`` is
called, which by default stops the program. A hook that a program has put in its place is called for each failure, at
once.
"""

from __future__ import annotations

import _signal
import os
import sys
import time
from _thread import get_ident
from typing import Any, NamedTuple

from monarch import _core
from monarch._errors.mesh_failure import MeshFailure
from monarch._running import threads
from monarch._runtime import runtime

_STOP_SIGNALS = range(_signal.SIGRTMAX - 4, _signal.SIGRTMIN, -1)  # the first free one wakes the main thread
_MERGE_SECONDS, _MERGE_SECONDS_MAX = 0.01, 0.1  # what fails one right after the other is told together
# A script that catches what its calls raise may be between two of them. Less than what a death waits that nobody has
# seen before it is a line on stderr (Deaths::Limits::unobserved_ns).
_PATIENCE = 0.8


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """Called, on a thread of its own, when something that the script owns has failed and no call tells the script.

    Programs may replace it, ``monarch.actor.unhandled_fault_hook = my_hook``: theirs is called once for each failure,
    at once, also for one that a call raises as well, and what it returns from is dealt with. If it raises, the program
    stops, as it does with this one: with a report on stderr, ``SystemExit`` in the main thread, and exit status 1.
    """
    sys.exit(1)


class _Held(NamedTuple):
    cell: Any  # of the owner; None: the client
    failure: MeshFailure
    until: float  # when patience ends (time.monotonic())


_held: list[_Held] = []


def watch_failures() -> None:
    """What the thread runs that decides about them."""
    global _held
    threads.name_thread(threads.FAILURES)
    while True:
        _held += _arrived(bool(_held), _seconds_left())
        fatal: list[MeshFailure] = []
        _held = [each for each in _held if not _is_over(each, fatal, time.monotonic())]
        if fatal:
            stop_program(fatal + _those_of_the_same_time(), 1)
        if not any(each.cell is None for each in _held):
            _core.failures_decided(_stopping is None)


def _those_of_the_same_time() -> list[MeshFailure]:
    found: list[MeshFailure] = []
    held = _held + _arrived(False, _MERGE_SECONDS)
    deadline = time.monotonic() + _MERGE_SECONDS_MAX
    while held:
        found += [each.failure for each in held if each.cell is None and each.failure.is_current()]
        held = _arrived(False, min(_MERGE_SECONDS, deadline - time.monotonic())) if time.monotonic() < deadline else []
    for failure in found:
        failure.handled()
    return found


def script_ends() -> None:
    """Nobody will look any more."""
    _core.failures_decided(not _report_rest())


def _report_rest() -> bool:
    """True: of what is left, something has been said."""
    held = _held + _arrived(True, 0)
    left = [each.failure for each in held if each.cell is None and each.failure.is_current()]
    hook = _hook_of_the_program()
    if hook is not None:
        for failure in left:
            _call(hook, failure)
        return False
    left = [failure for failure in left if not failure.is_told()]
    if not left:
        return False
    # Whose calls are named among what is lost need not be said again.
    unsaid = [each for each in left if not (each.is_told(True) or _core.will_be_told(*each._source))]
    if unsaid:
        _core.log_line(_screen(unsaid, None))
    for failure in left:
        failure.handled()
    _core.program_fails(1)
    return bool(unsaid)


def _hook_of_the_program() -> Any:
    hook = getattr(sys.modules.get("monarch.actor"), "unhandled_fault_hook", unhandled_fault_hook)
    return None if hook is unhandled_fault_hook else hook


def _arrived(holds: bool, seconds: float | None) -> list[_Held]:
    arrived = _core.next_failures(holds, seconds)
    until = time.monotonic() + _PATIENCE  # from now on, not from when the wait for them began
    return [_Held(cell, MeshFailure(*told), until) for cell, told in arrived]


def _seconds_left() -> float | None:
    now = time.monotonic()
    ends = [each.until for each in _held if each.until > now]
    return min(ends) - now if ends else None


def _is_over(each: _Held, fatal: list[MeshFailure], now: float) -> bool:
    """False: somebody may still be told. What nobody has dealt with goes to ``fatal``."""
    failure, source = each.failure, each.failure._source
    if _stopping is not None or not failure.is_current():
        failure.handled()
        return True
    if each.cell is None:
        hook = _hook_of_the_program()
        if hook is not None:
            _call(hook, failure)
            return True
    if failure.is_told():
        return True
    if _core.will_be_told(*source) or now < each.until:
        return False
    failure.handled()
    if each.cell is None:
        fatal.append(failure)
    else:
        failure.climb(each.cell)
    return True


def _call(hook: Any, failure: MeshFailure) -> None:
    failure.handled()
    try:
        hook(failure)
    except SystemExit as error:
        stop_program([failure], error.code if isinstance(error.code, int) else 1)
    except BaseException as error:
        stop_program([failure], 1, error)


# ---- The end of the program ----

_main_thread = 0  # that has a handler for the signal
_stop_signal = 0
_stopping: int | None = None  # with that status


def begin() -> None:
    """When the runtime of a script begins."""
    global _main_thread, _stop_signal
    free = [number for number in _STOP_SIGNALS if _signal.getsignal(number) == _signal.SIG_DFL]
    try:
        _signal.signal(free[0], _leave)
    except (IndexError, ValueError):
        return  # none is free, or this is not the main thread
    _main_thread, _stop_signal = get_ident(), free[0]


def _leave(*_: Any) -> None:
    if _stopping is not None:
        _core.main_thread_left()
        raise SystemExit(_stopping)


def is_stopping() -> bool:
    return _stopping is not None


def stop_program(failures: list[MeshFailure], status: int, of_hook: BaseException | None = None) -> None:
    """Says what has failed, and ends the program with that status."""
    global _stopping
    if _stopping is not None or _core.in_forked_child():
        return
    _stopping = status
    _core.log_line(_screen(failures, of_hook))
    if _is_interactive():
        _stopping = None
        return
    if not runtime.is_root():
        os._exit(1)  # a worker whose threads have spawned something: who has started it is told
    runtime.stopped_by_failure = True
    _core.program_fails(status)
    if _main_thread:
        _signal.pthread_kill(_main_thread, _stop_signal)
    else:
        import _thread

        _thread.interrupt_main()


def _is_interactive() -> bool:
    """Somebody sits at a prompt, who reads it and goes on."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _screen(failures: list[MeshFailure], of_hook: BaseException | None) -> str:
    from monarch._errors.screen import make_screen

    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1e6):06d}"
    host, more = os.uname().nodename, ""
    if of_hook is not None:
        from monarch._errors.tracebacks import format_exception

        more = f"unhandled_fault_hook, which was called with it, has failed:\n{format_exception(of_hook)}"
    where = f"Unhandled monarch error on the root actor, hostname={host}, PID={os.getpid()} at time {stamp}:"
    return make_screen(failures, where, more)
