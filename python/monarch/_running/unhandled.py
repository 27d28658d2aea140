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
from collections.abc import Callable
from typing import Any, NamedTuple

from monarch import _core
from monarch._errors.mesh_failure import MeshFailure
from monarch._running import threads
from monarch._runtime import forks, runtime
from monarch._runtime.here import here
from monarch._values.ranks import ranks_text

_STOP_SIGNALS = range(_signal.SIGRTMAX - 4, _signal.SIGRTMIN, -1)  # the first free one wakes the main thread
_MERGE_SECONDS, _MERGE_SECONDS_MAX = 0.01, 0.1  # what fails one right after the other is told together
# A script that catches what its calls raise may be between two of them. Less than what a death waits that nobody has
# seen before it is a line on stderr (Deaths::Limits::unobserved_ns).
_PATIENCE = 0.8


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """Called, on a thread of its own, when something that the script owns has failed and no call tells the script.

    Programs may replace it, ``monarch.actor.unhandled_fault_hook = my_hook``: theirs, a plain function, is called once
    for each failure, at once, also for one that a call raises as well, and what it returns from is dealt with. The
    script does not end before it has returned. If it raises, the program stops, as it does with this one: with a report
    on stderr, ``SystemExit`` in the main thread, and exit status 1.
    """
    sys.exit(1)


class _Held(NamedTuple):
    cell: Any  # of the owner; None: the client
    failure: MeshFailure
    until: float  # when patience ends (time.monotonic())


_WAITED_FOR = 3.0  # seconds after which the end of the script says that it waits for a hook


def watch_failures() -> None:
    """What the thread runs that decides about them."""
    threads.name_thread(threads.FAILURES)
    of = here()
    now = time.monotonic()
    while True:
        _core.wait_for_failures(bool(of.held), _seconds_left(of.held, now))
        with of.deciding:
            of.held += _arrived()
            fatal: list[MeshFailure] = []
            now = time.monotonic()  # one for all, so that they stay in order
            of.held = [each for each in of.held if not _dealt_with(each, fatal, now)]
            if fatal:
                stop_program(fatal + _those_of_the_same_time(), 1)
            if not any(each.cell is None for each in of.held):
                _core.failures_decided(of.stopping is None)


def _those_of_the_same_time(pause: float = _MERGE_SECONDS) -> list[MeshFailure]:
    """Of the script: what fails right after the first, so long one after the other. It is dealt with."""
    of = here()
    deadline = time.monotonic() + _MERGE_SECONDS_MAX
    while (left := deadline - time.monotonic()) > 0:
        _core.wait_for_failures(False, min(pause, left))
        if not (arrived := _arrived()):
            break
        of.held += arrived
    found = [each.failure for each in of.held if each.cell is None and each.failure.is_current()]
    of.held = [each for each in of.held if each.cell is not None]
    for failure in found:
        failure.handled()
    return found


def script_ends() -> None:
    """Nobody will look any more."""
    deciding = here().deciding
    if not (deciding.acquire(timeout=_WAITED_FOR) or _wait_for_hook(deciding)):
        _core.program_fails(1)
        return
    try:
        _core.failures_decided(not _report_rest())
    finally:
        deciding.release()


def block_ended(mesh_ids: set[int]) -> None:
    """A ``with`` block over these meshes, which the script owns, has ended well: ``SystemExit``, with the report.

    Of what nobody is told of in another way. Who runs several such blocks, as tests do, learns it from the right one.
    """
    of = here()
    if of.stopping is not None or not runtime.is_root() or _core.in_simulation() or _hook_of_the_program() is not None:
        return
    with of.deciding:
        of.held += _arrived()
        fatal = [each.failure for each in of.held if _is_fatal_to_block(each, mesh_ids)]
        if not fatal:
            return
        of.held = [each for each in of.held if each.failure not in fatal]
        if get_ident() != _main_thread:  # where nobody might hear of SystemExit
            for failure in fatal:
                failure.handled()
            return stop_program(fatal, 1)
        for failure in fatal:
            failure.handled()
        _core.log_line(_screen(fatal, None))
        if not any(each.cell is None for each in of.held):
            _core.failures_decided(False)
    if not _is_interactive():
        raise SystemExit(1)


def _is_fatal_to_block(each: _Held, mesh_ids: set[int]) -> bool:
    failure = each.failure
    if each.cell is not None or failure._mesh_id not in mesh_ids or not failure.is_current():
        return False
    return not (failure.is_told() or _core.will_be_told(*failure._source))


def _wait_for_hook(deciding: Any) -> bool:
    """False: Ctrl-C has ended the wait."""
    hook = "the unhandled_fault_hook of this program, which has been called with a failure and has not come back"
    _core.log_line(f"waiting for {hook} (Ctrl-C ends the program)")
    while not deciding.acquire(timeout=0.1):
        if _core.was_interrupted():
            return False
    return True


def _report_rest() -> bool:
    """True: of what is left, something has been said."""
    of = here()
    of.held += _arrived()
    left = [each.failure for each in of.held if each.cell is None and each.failure.is_current()]
    of.held = []
    hook = _hook_of_the_program()
    if hook is not None:
        for failure in left:
            _call(hook, failure)
        return False
    left = [failure for failure in left if not failure.is_told()]
    if not left:
        return False
    left += _those_of_the_same_time(_MERGE_SECONDS_MAX)  # nobody is told later
    # Whose calls are named among what is lost need not be said again. A future that somebody holds is no word: nobody
    # will look at it.
    unsaid = [each for each in left if not each.is_told(True)]
    if unsaid:
        _core.log_line(_screen(unsaid, None))
    for failure in left:
        failure.handled()
    _core.program_fails(1)
    return bool(unsaid)


def _hook_of_the_program() -> Any:
    hook = getattr(sys.modules.get("monarch.actor"), "unhandled_fault_hook", unhandled_fault_hook)
    return None if hook is unhandled_fault_hook else hook


def _arrived() -> list[_Held]:
    until = time.monotonic() + _PATIENCE
    return [_Held(cell, MeshFailure(*told), until) for cell, told in _core.take_failures()]


def _seconds_left(held: list[_Held], looked: float) -> float | None:
    """Until patience ends for one whose patience had not ended when that was looked at."""
    ends = [each.until for each in held if each.until > looked]
    return max(0.0, min(ends) - time.monotonic()) if ends else None


def _dealt_with(each: _Held, fatal: list[MeshFailure], now: float) -> bool:
    """One that cannot be dealt with must not keep the others from being."""
    try:
        return _is_over(each, fatal, now)
    except Exception as error:
        _core.log_line(f"{each.failure.report()}\nThis error occurred while it was told to its owner: {error!r}")
        return True


def _is_over(each: _Held, fatal: list[MeshFailure], now: float) -> bool:
    """False: somebody may still be told. What nobody has dealt with goes to ``fatal``."""
    failure, source = each.failure, each.failure._source
    if here().stopping is not None or not failure.is_current():
        _say_if_it_went_on(each)
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
    if excuse_simulated is not None and _core.in_simulation() and excuse_simulated(failure):
        return True
    if each.cell is None:
        fatal.append(failure)
    else:
        failure.climb(each.cell)
    return True


def _call(hook: Any, failure: MeshFailure) -> None:
    failure.handled()
    try:
        answer = forks.call(hook, failure)
        if hasattr(answer, "__await__") or hasattr(answer, "__next__") or hasattr(answer, "__anext__"):
            getattr(answer, "close", bool)()
            raise TypeError(_PLAIN)
    except SystemExit as error:
        # What it has failed of is no success, whatever the hook says: 0, 256.
        status = (error.code & 0xFF if isinstance(error.code, int) else 1) or 1
        stop_program([failure], status, more=error.code if isinstance(error.code, str) else "")
    except BaseException as error:
        stop_program([failure], 1, error)


# ---- The end of the program ----

_main_thread = 0  # that has a handler for the signal
_stop_signal = 0
# In a simulation: ends the program of the calling thread with that status.
stop_simulated: Callable[[int], None] | None = None
# At the end of one: whether that failure, which nobody was told of, is none of the program's.
excuse_simulated: Callable[[MeshFailure], bool] | None = None
_ENDS_WITHIN = 2.0  # seconds: by then a program has left, or cleans up


_PLAIN = "unhandled_fault_hook must be a plain function: what it returns is not awaited"
_MADE_LATER = 0x20 | 0x80 | 0x200  # inspect.CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR: a call of it runs nothing


def check_hook(hook: Any) -> None:
    """Raises what is known to be wrong with it before something fails."""
    if not callable(hook):
        raise TypeError(f"unhandled_fault_hook must be a function that takes a MeshFailure, but is {hook!r}")
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    if getattr(code, "co_flags", 0) & _MADE_LATER:
        raise TypeError(_PLAIN)


def hook_changed() -> None:
    """What the end of a program does whose C code keeps the GIL follows from that."""
    _core.default_decides(_hook_of_the_program() is None and not _is_interactive())


def begin() -> None:
    """When the runtime of a script begins."""
    global _main_thread, _stop_signal
    hook_changed()
    number = take_signal(_leave)
    if number != 0:
        _main_thread, _stop_signal = get_ident(), number


def take_signal(handler: Callable[..., Any]) -> int:
    """One that wakes the main thread out of whatever it waits in. 0: none is free, or this is not the main thread."""
    free = [number for number in _STOP_SIGNALS if _signal.getsignal(number) == _signal.SIG_DFL]
    try:
        _signal.signal(free[0], handler)
    except (IndexError, ValueError):
        return 0
    return free[0]


def _leave(*_: Any) -> None:
    if here().stopping is not None and _core.main_thread_left():
        raise SystemExit(here().stopping)


def is_stopping() -> bool:
    return here().stopping is not None


def stop_program(
    failures: list[MeshFailure], status: int, of_hook: BaseException | None = None, more: str = ""
) -> None:
    """Says what has failed, and ends the program with that status."""
    of = here()
    if of.stopping is not None or _core.in_forked_child():
        return
    of.stopping, of.stopped_at = status, time.monotonic()
    _core.log_line(_screen(failures, of_hook, more))
    if stop_simulated is not None and _core.in_simulation() and runtime.is_root():
        return stop_simulated(status)
    if _is_interactive():
        of.stopping = None
        return
    if not runtime.is_root():
        os._exit(1)  # a worker whose threads have spawned something: who has started it is told
    runtime.stopped_by_failure = True
    _core.program_fails(status, _main_thread, _stop_signal)
    if not _main_thread:
        import _thread

        _thread.interrupt_main()


def _say_if_it_went_on(each: _Held) -> None:
    """Somebody has caught what was to end the program, and nobody decides about failures any more."""
    of = here()
    if of.stopping is None or each.cell is not None or time.monotonic() < of.stopped_at + _ENDS_WITHIN:
        return
    kind, mesh = each.failure.kind, each.failure.mesh_name
    _core.log_line(
        f"{ranks_text(each.failure.crashed_ranks)} of {mesh!r} has failed: {kind}; nobody is asked, since the program "
        "was to end of an earlier failure, and has caught SystemExit"
    )


def _is_interactive() -> bool:
    """Somebody sits at a prompt, who reads it and goes on."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _screen(failures: list[MeshFailure], of_hook: BaseException | None, more: str = "") -> str:
    now = time.time()
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1e6):06d}"
    where = (
        f"Unhandled monarch error on the root actor, hostname={os.uname().nodename}, PID={os.getpid()} at time {stamp}:"
    )
    try:
        from monarch._errors.screen import make_screen

        if of_hook is not None:
            from monarch._errors.tracebacks import format_exception

            more = f"unhandled_fault_hook, which was called with it, has failed:\n{format_exception(of_hook)}"
        return make_screen(failures, where, more)
    except (
        Exception
    ) as error:  # an exception of the hook's that cannot be shown, no memory: the program ends all the same
        also = "" if of_hook is None else f"\nunhandled_fault_hook has failed: {type(of_hook).__name__}"
        return f"{failures[0].origin}\n{where}{also}\nthe report could not be made: {type(error).__name__}"
