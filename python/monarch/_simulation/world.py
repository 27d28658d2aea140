"""``monarch.testing.simulate``: a program, its processes and what befalls them, in one process and from one seed."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import monarch._wiring  # noqa: F401
from monarch import _core
from monarch._processes import launch
from monarch._running import unhandled
from monarch._runtime import context, runtime
from monarch._runtime import here as places
from monarch._simulation import clock, ending, patience, processes, threads
from monarch._simulation.patches import Patches

if TYPE_CHECKING:
    from monarch._meshes.proc_mesh import ProcMesh

__all__ = ["SimulatedEvent", "simulate"]

_VARIABLE = "MONARCH_SIM_SEED"


class SimulatedEvent(NamedTuple):
    """What has happened to a simulated process: an entry of ``world.log``."""

    time: float
    """Seconds since the block began, of its own time."""
    what: str
    """``"spawned"``, ``"stopped"``; at its end ``"killed"`` (SIGKILL), ``"signal 11"`` and the like, ``"exit 0"``."""
    mesh: str
    """The name of its mesh of processes."""
    rank: int
    """Its rank in that; -1 for a mesh of one, without dimensions."""
    pid: int
    """Its simulated pid."""


class simulate:
    """Runs the program in its block in simulated processes: ``with simulate(seed=17, kill_every=0.5) as world:``.

    What the block spawns are no processes of the machine. They live in this one, on a clock, a network and with
    failures that come out of the seed, and no two threads run at a time; so the same seed gives the same run, event for
    event. Meshes, calls, failures and supervision are run by the code that real processes run. Time passes only while
    all wait, so hours take moments. A block that an exception leaves says on stderr how to run it again.

    Args:
        seed: any int; the environment variable ``MONARCH_SIM_SEED``, if it is set, is taken in its place.
        kill_every: about so many seconds after one another processes die, as by SIGKILL: any but the script's. None:
            none do.
        delay: seconds that a message takes at most.
        patience: seconds of real time that a thread may run without waiting for anything of the simulation; then that
            is given up, with ``RuntimeError`` in the block. For the script's own thread a real-time signal is taken, if
            one is free, while the block runs.

    While the block runs, in its threads: ``time`` (``sleep``, ``time``, ``monotonic``, ``perf_counter``, and those in
    nanoseconds), event loops, ``threading`` (threads, and locks and what is made of them, if they were made in the
    block) and ``queue`` are simulated; ``random`` and ``os.urandom`` are seeded; ``os.getpid``, ``os.kill``,
    ``os._exit`` and ``os.abort`` mean simulated processes. Names that a module has imported from those before
    (``from time import sleep``) are not replaced.

    What real processes have of their own, simulated ones share: modules with their globals, environment, working
    directory, standard output. What needs them raises ``NotImplementedError``: ``bootstrap_command``, ``proc_bind``,
    interpreters, stacks, actors of C++, handles of other programs, ``os.fork``, sockets and subprocesses of asyncio.
    Files, sockets and whatever else is real are as they are: who waits for them, holds up the simulation.

    Code of a process that has died does not go on; what it has in ``finally`` runs when the block ends.

    At its end the block goes on, for a second of its own time and until all that has failed is decided: what nobody
    deals with raises ``SystemExit`` there, as it would end a program. Kills of ``kill_every`` end before that; those
    that nobody has been told of by then are no failures of the program.

    Raises:
        TypeError, ValueError: for wrong arguments.
        RuntimeError: inside of another simulation, of an actor or of a running event loop; in the block, if it waits
            for what never comes, or for longer than ``patience`` for something real.
    """

    def __init__(
        self, seed: int, *, kill_every: float | None = None, delay: float = 0.002, patience: float = 60.0
    ) -> None:
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise TypeError(f"seed must be an int, but is {seed!r}")
        for name, value in (("kill_every", kill_every), ("delay", delay), ("patience", patience)):
            if value is None and name == "kill_every":
                continue
            if not isinstance(value, (int, float)) or isinstance(value, bool):
                raise TypeError(f"{name} must be a number of seconds, but is {value!r}")
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}: it must be above 0 seconds, and finite")
        self._seed, self._kill_every, self._delay, self._patience = seed, kill_every, delay, patience
        self._running = False
        self._ended: tuple[float, list[SimulatedEvent], int] | None = None

    @property
    def seed(self) -> int:
        """The seed that is in force."""
        return self._seed

    @property
    def now(self) -> float:
        """Seconds since the block began, of its own time; when it has ended, until its end."""
        return self._ended[0] if self._ended else _core.simulated_now()

    @property
    def events(self) -> int:
        """How much has happened: messages, timers, ends. Equal in equal runs."""
        return self._ended[2] if self._ended else _core.simulated_events()

    @property
    def log(self) -> list[SimulatedEvent]:
        """What has happened to processes so far, oldest first."""
        return list(self._ended[1]) if self._ended else [SimulatedEvent(*entry) for entry in _core.simulated_log()]

    @property
    def kills(self) -> list[SimulatedEvent]:
        """Those of the log that were killed."""
        return [event for event in self.log if event.what == "killed"]

    def __repr__(self) -> str:
        if self._ended is not None:
            return f"<simulation with seed {self._seed}, ended at {self.now:.6f} s>"
        if not (self._running and _core.in_simulation()):
            return f"simulate(seed={self._seed})"
        return f"<simulation with seed {self._seed}, now {self.now:.6f} s>"

    def kill(self, procs: ProcMesh, rank: int = 0) -> None:
        """Kills the process of that rank of ``procs``, as SIGKILL does.

        Args:
            procs: its mesh of processes, or a slice of that.
            rank: which of that, an int.

        Raises:
            TypeError: for something else, such as a mesh of actors.
            ValueError: it does not live, or there is no such rank.
            RuntimeError: the mesh is not of this simulation, or the block does not run.
        """
        self._do(_core.simulated_end, "kill", procs, rank, 0, 9)

    def stop(self, procs: ProcMesh, rank: int, seconds: float) -> None:
        """Stops a process, as SIGSTOP does, and has it go on later. Raises what ``kill`` raises.

        Args:
            procs: its mesh of processes, or a slice of that.
            rank: which of that, an int.
            seconds: how long nothing of it runs; above 0, and finite, else ``ValueError``.
        """
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
            raise TypeError(f"stop: seconds must be a number, but is {seconds!r}")
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"stop: seconds is {seconds}: it must be above 0, and finite")
        self._do(_core.simulated_pause, "stop", procs, rank, float(seconds))

    def _do(self, what: Callable[..., bool], name: str, procs: ProcMesh, rank: int, *more: Any) -> None:
        from monarch._meshes.proc_mesh import ProcMesh

        self._check_running()
        if not isinstance(procs, ProcMesh):
            raise TypeError(
                f"{name} takes a mesh of processes, what spawn_procs() returns, and a rank of it, "
                f"but was given {procs!r}"
            )
        if not hasattr(rank, "__index__") or isinstance(rank, bool):
            raise TypeError(f"{name}: rank must be an int, but is {rank!r}")
        number, ranks = rank.__index__(), list(procs._view.ranks())
        if not 0 <= number < len(ranks):
            raise ValueError(f"there is no rank {number} in {procs._name!r}, which has {len(ranks)}")
        (node,) = _core.latest([procs._nodes[ranks[number]]])  # of who is there now
        if node == _core.simulated_root():
            raise ValueError(f"{name}: rank {number} of {procs._name!r} is the process of the script")
        if not what(int(node), *more):
            if not _core.simulated_knows(int(node)):
                raise RuntimeError(f"{name}: {procs._name!r} is not a mesh of this simulation")
            raise ValueError(f"rank {number} of {procs._name!r} does not live")

    def _check_running(self) -> None:
        if not self._running or not _core.in_simulation():
            raise RuntimeError("the block of this simulation does not run")

    # ---- The block ----

    def __enter__(self) -> simulate:
        self._check_place()
        if _VARIABLE in os.environ:
            self._seed = int(os.environ[_VARIABLE])
        self._ended = None
        self._runtime_before = runtime.begin_simulation()
        _core.enter_simulation(self._seed & (1 << 64) - 1, self._patience, self._delay, processes.begin, processes.end)
        places.find, launch.simulated_payload = processes.here, processes.payload
        unhandled.stop_simulated = _core.simulated_stop_program
        self._context = context.current.set(None)
        self._patches = Patches()
        for room in (clock, threads, processes):
            room.patch(self._patches)
        self._policy = threads.put_policy()
        self._randomness = processes.Randomness(self._seed)
        self._running = True
        from monarch._meshes import controllers

        controllers.offer()
        if self._kill_every is not None:
            _core.simulated_kill_every(float(self._kill_every))
        self._watch = patience.Watch(self._patience)
        return self

    def _check_place(self) -> None:
        if self._running or _core.in_simulation():
            raise RuntimeError("a simulation runs already: they do not nest")
        if context.current.get(None) is not None or _core.on_actor_thread():
            raise RuntimeError("simulate() is for scripts and tests, not for actors")
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("simulate() inside of a running event loop: begin the block outside, the loop inside")
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("simulate() is for the main thread")

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        now, late = _core.simulated_now(), None
        if error is None:
            try:
                ending.decide_rest()
            except BaseException as raised:
                now, late = _core.simulated_now(), raised
        self._watch.end()
        self._running = False
        self._ended = now, [SimulatedEvent(*each) for each in _core.simulated_log()], _core.simulated_events()
        try:
            _core.leave_simulation()
        finally:
            self._randomness.restore()
            asyncio.set_event_loop_policy(self._policy)
            self._patches.restore()
            places.find = launch.simulated_payload = unhandled.stop_simulated = unhandled.excuse_simulated = None
            context.current.reset(self._context)
            runtime.end_simulation(self._runtime_before)
        if error is not None or late is not None:
            print(f"replay: {_VARIABLE}={self._seed} {_command()}", file=sys.stderr)
        if late is not None:
            raise late


def _command() -> str:
    """The program's, about as it was given."""
    test = os.environ.get("PYTEST_CURRENT_TEST")
    if test is not None and "pytest" in sys.modules:
        return f"python -m pytest '{test.rpartition(' (')[0]}'"
    return " ".join(["python", *sys.argv]) if sys.argv and sys.argv[0] not in ("", "-c") else "python ..."
