"""Processes that a program's own code starts and ends: ``spawn_procs(proc_launcher=...)``.

The core waits for them at a socket (``src/monarch/host/start/launch_door.h``), and sees their end by itself. Here is
what asks the launcher, an actor, and tells the core what it says: tasks of one event loop, on a thread that is there
once a program has a launcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import os
import re
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from monarch import _core
from monarch._actors.actor import Actor
from monarch._actors.declarations import endpoint
from monarch._errors.exceptions import ActorError
from monarch._meshes.actor_mesh import ActorMesh
from monarch._ports.port import Channel, Port
from monarch._processes import launch
from monarch._runtime import deadline
from monarch._runtime.here import here

if TYPE_CHECKING:
    from monarch._calls.future import Future
    from monarch._meshes.proc_mesh import ProcMesh

__all__ = ["LaunchOptions", "ProcExitResult", "ProcLauncher"]

_EXITED, _FAILED, _LATE = 1, 2, 3  # LaunchNews::Kind
_REPORT_LIMIT = 1.0  # seconds that a launcher has to say that a process has ended, before it is told to kill it
_OWNER_LIMIT = 0.1  # seconds after the end of a launcher in which its owner may end, too
_LOOK_EVERY = 0.02


@dataclasses.dataclass
class LaunchOptions:
    """What a launcher is to start: ``command`` with ``environment()``, or something that does so in turn."""

    bootstrap_payload: str
    """Where the process comes for the rest. Not secret; the last one of ``args``, too."""
    process_name: str
    """For people: ``rank {'gpus': 1/2} of 'procs'``."""
    program: str
    args: list[str] = dataclasses.field(default_factory=list)
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    """Variables that are added to the environment, or all of it if ``inherit_env`` is False."""
    want_stdio: bool = False
    """Whether the launcher must show what the process prints: never, since it does so itself once it is up."""
    tail_lines: int = 0
    """So many last lines of stderr are told with a death: how many are of use in ``ProcExitResult.stderr_tail``."""
    log_channel: str | None = None
    proc_bind: dict[str, str] | None = None
    """As given to ``spawn_procs``; ``program`` and ``args`` see to it already."""
    inherit_env: bool = True
    env_remove: list[str] = dataclasses.field(default_factory=list)
    """Names of variables that the process must not have."""

    @property
    def command(self) -> list[str]:
        """``program`` and ``args``."""
        return [self.program, *self.args]

    def environment(self) -> dict[str, str]:
        """The whole environment: that of the launcher's process, changed as these options say."""
        base = dict(os.environ) if self.inherit_env else {}
        for name in self.env_remove:
            base.pop(name, None)
        return {**base, **self.env}


@dataclasses.dataclass
class ProcExitResult:
    """How a process has ended, as its launcher sends it on ``exit_port``. All of it may be left out."""

    exit_code: int | None = None
    signal: int | None = None
    """The number of the signal that has killed it."""
    core_dumped: bool = False
    failed_reason: str | None = None
    """What else there is to say: why it could not be started, what the container's runtime says."""
    stderr_tail: list[str] | None = None
    """The last lines of its stderr, as far as the launcher has seen them."""

    def _check(self) -> None:
        kinds: dict[str, type] = {"exit_code": int, "signal": int, "core_dumped": bool, "failed_reason": str}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise TypeError(f"{name} of a ProcExitResult must be of type {kind.__name__}, but is {value!r}")
        for number in (self.exit_code, self.signal):
            if number is not None and not -(1 << 31) <= number < 1 << 31:
                raise ValueError(f"a ProcExitResult takes numbers of 32 bits, not {number!r}")
        tail = self.stderr_tail
        if tail is not None and (isinstance(tail, (str, bytes)) or not all(isinstance(line, str) for line in tail)):
            raise TypeError(f"stderr_tail of a ProcExitResult must be a list of str, but is {tail!r}")


class ProcLauncher(Actor):
    """Base class of launchers: actors that start and end the processes of a mesh.

    ``spawn_procs(proc_launcher=...)`` takes a subclass, of which it makes one actor in the process of the caller, or
    such an actor that was spawned before. The endpoints may be ``def`` or ``async def``; while a ``def`` runs, no other
    process of the mesh is started or ended.
    """

    @endpoint
    @abstractmethod
    def launch(self, exit_port: Port[ProcExitResult], proc_id: str, launch_options: LaunchOptions) -> None:
        """Starts a process, and need not wait until it is up. What this raises is told as why it could not be started.

        When the process has ended, ``exit_port.send(ProcExitResult(...))`` is due, from whatever thread. ``proc_id`` is
        a name for it that no other process ever has, of letters, digits, ``-``, ``_`` and ``.``.
        """

    @endpoint
    @abstractmethod
    def terminate(self, proc_id: str, timeout_secs: float) -> None:
        """The process was asked to end, and has so many seconds for it. SIGTERM says the same to it."""

    @endpoint
    @abstractmethod
    def kill(self, proc_id: str) -> None:
        """The process is to be gone now, and whatever was started for it. It may have ended."""

    @endpoint(explicit_response_port=True)
    def monarch_ends(self, port: Port[None]) -> None:
        """For this package: an answer that comes with the end of this actor only."""
        self.__dict__.setdefault("<ends>", []).append(port)  # its constructor is the user's


class ExitPort:
    """What a launcher is given for one process: its results come to whoever has spawned that."""

    def __init__(self, port: Port[Any], node: int) -> None:
        self._port, self._node = port, node

    def send(self, result: ProcExitResult) -> None:
        """Says that the process has ended. ``TypeError`` for anything but a ``ProcExitResult``."""
        if not isinstance(result, ProcExitResult):
            raise TypeError(f"the exit port of a process takes a ProcExitResult, not {result!r}")
        result._check()
        try:
            self._port.send((self._node, result))
        except RuntimeError:
            pass  # the runtime of this process has ended


class _One:
    """A process."""

    def __init__(self, node: int, host: int, proc_id: str) -> None:
        self.node, self.host, self.proc_id = node, host, proc_id
        self.reported = False  # its launcher has said that it has ended
        self.stopping = False


class Launches:
    """The processes of one mesh, and who starts them."""

    def __init__(self, launcher: Any, owned: bool, procs_name: str, binds: Sequence[Any], limit: float) -> None:
        self._launcher = launcher
        self._owned = owned  # it was made for this mesh, and ends with it
        self._name = re.sub(r"[^A-Za-z0-9]+", "-", procs_name).strip("-") or "procs"
        self._binds = binds  # proc_bind, if given
        self._limit = limit
        self._ones: dict[int, _One] = {}
        self._port, self._receiver = Channel[Any].open()
        self._port.return_undeliverable = False
        self._context = contextvars.copy_context()
        self._context.run(deadline.current.set, None)
        self._tasks: list[asyncio.Task[Any]] = []  # of the loop's thread

    # ---- For the mesh, on any thread ----

    def begin(self, nodes: Sequence[int], wanted: Sequence[launch.Wanted], hosts: Sequence[int], python: str) -> None:
        """Has the launcher start these, each on its host (0: here)."""
        first = not self._ones
        starts = []
        for node, one_wanted, host in zip(nodes, wanted, hosts):
            rank = max(one_wanted.output[1], 0)
            one = _One(node, host, f"{self._name}-{rank}-{node:016x}")
            starts.append((one, self._options(one, one_wanted, python)))
            self._ones[node] = one
            here().launched[node] = self
        if first:
            self._run(self._hear)
            self._run(self._watch)
        for one, options in starts:
            self._run(lambda one=one, options=options: self._start(one, options))  # type: ignore[misc]

    def _options(self, one: _One, wanted: launch.Wanted, python: str) -> LaunchOptions:
        address = _core.launch_address(one.host, one.node)
        command = wanted.command
        usual = [python, *launch.interpreter_args("worker")]
        program, *args = [
            *(wanted.prefix or []),
            *(usual if command is None else [command.program, *command.args]),
            address,
        ]
        env = {} if command is None else command.env
        rank = max(wanted.output[1], 0)
        return LaunchOptions(
            bootstrap_payload=address,
            process_name=wanted.label,
            program=program,
            args=args,
            env={name: value for name, value in env.items() if value is not None},
            tail_lines=wanted.output[4],
            proc_bind=dict(self._binds[rank % len(self._binds)]) if self._binds else None,
            inherit_env=command is None or command.inherit_env,
            env_remove=[name for name, value in env.items() if value is None],
        )

    def stopping(self, nodes: Sequence[int], limit: float, ending: Future[None]) -> None:
        """These of its processes were asked to end within so many seconds, and have when ``ending`` is done."""
        ones = [self._ones[node] for node in nodes if node in self._ones]
        asked = [one for one in ones if not one.stopping]
        for one in ones:
            one.stopping = True
        self._run(lambda: self._stop(ones, asked, limit, ending))

    # ---- On the loop's thread ----

    def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        loop = _loop()

        def begin() -> None:
            task = loop.create_task(work())
            self._tasks.append(task)
            task.add_done_callback(self._tasks.remove)

        loop.call_soon_threadsafe(begin, context=self._context)

    def _tell(self, one: _One, kind: int, text: str, result: ProcExitResult | None = None) -> None:
        said = result or ProcExitResult()
        tail = "\n".join(said.stderr_tail or ())
        try:
            _core.launch_news(
                one.host, one.node, kind, said.exit_code, said.signal, bool(said.core_dumped), _utf8(text), _utf8(tail)
            )
        except RuntimeError:
            pass  # the runtime has ended, and what it had started with it

    async def _start(self, one: _One, options: LaunchOptions) -> None:
        late = asyncio.get_running_loop().call_later(self._limit, lambda: self._run(lambda: self._late(one)))
        try:
            await self._launcher.launch.call_one(ExitPort(self._port, one.node), one.proc_id, options)
        except Exception as error:
            late.cancel()
            self._tell(one, _FAILED, f"launch() of its launcher has failed: {_what(error)}")

    async def _late(self, one: _One) -> None:
        if one.reported or one.stopping:
            return
        from monarch._config.durations import format_duration

        limit = format_duration(round(self._limit * 1e9))
        text = f"its launcher has not brought it up within {limit} (mesh_proc_spawn_max_idle)"
        self._tell(one, _LATE, text)
        for _ in range(int(_REPORT_LIMIT / _LOOK_EVERY)):
            if _is_down(one.node):
                return await self._kill(one)
            await asyncio.sleep(_LOOK_EVERY)

    async def _hear(self) -> None:
        try:
            while True:
                node, result = await self._receiver.recv()
                one = self._ones[node]
                one.reported = True
                self._tell(one, _EXITED, result.failed_reason or "", result)
                asyncio.get_running_loop().call_later(_REPORT_LIMIT, self._look_again, one)
        except RuntimeError:
            pass  # the runtime, or who has spawned them, has ended

    def _look_again(self, one: _One) -> None:
        if not _is_down(one.node):
            one.reported = False  # it was wrong

    async def _watch(self) -> None:
        try:
            await self._launcher.monarch_ends.call_one()
        except Exception as error:
            await asyncio.sleep(_OWNER_LIMIT)
            for one in self._ones.values():
                if not one.stopping:
                    self._tell(one, _FAILED, f"its launcher has ended: {_what(error)}")

    async def _stop(self, ones: list[_One], asked: list[_One], limit: float, ending: Future[None]) -> None:
        asking = [asyncio.ensure_future(self._terminate(one, limit)) for one in asked if not one.reported]
        ended = ending.as_asyncio()
        await asyncio.wait([ended], timeout=limit)
        if not ended.done():
            await self._kill_all(one for one in ones if not one.reported)
            await asyncio.wait([ended])
        ended.exception()
        for _ in range(int(_REPORT_LIMIT / _LOOK_EVERY)):
            if all(one.reported for one in ones):
                break
            await asyncio.sleep(_LOOK_EVERY)
        for task in asking:
            task.cancel()
        await self._kill_all(one for one in ones if not one.reported)
        if all(one.stopping for one in self._ones.values()):
            self._close()

    def _close(self) -> None:
        for node in self._ones:
            here().launched.pop(node, None)
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        if self._owned:
            with contextlib.suppress(RuntimeError):  # the runtime of this process has ended, and the launcher with it
                self._launcher.stop()

    async def _kill_all(self, ones: Any) -> None:
        await asyncio.gather(*(self._kill(one) for one in ones))

    async def _terminate(self, one: _One, limit: float) -> None:
        await self._ask("terminate", self._launcher.terminate, one.proc_id, limit)

    async def _kill(self, one: _One) -> None:
        await self._ask("kill", self._launcher.kill, one.proc_id)

    async def _ask(self, what: str, asked: Any, *args: Any) -> None:
        try:
            await asyncio.wait_for(asked.call_one(*args), self._limit)
        except ActorError as error:
            _core.log_line(f"{what}() of the launcher of {args[0]!r} has failed: {_what(error)}")
        except Exception:
            pass  # the launcher has ended, which is told elsewhere, or is stuck


def _what(error: BaseException) -> str:
    inner = error.exception if isinstance(error, ActorError) else error
    return f"{type(inner).__name__}: {inner}" if isinstance(error, ActorError) else str(inner)


def _utf8(text: str) -> str:
    return text.encode(errors="replace").decode()


def _is_down(node: int) -> bool:
    try:
        return _core.down_reason(node) is not None
    except RuntimeError:
        return True


_loop_lock = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    with _loop_lock:
        of = here()
        if of.launch_loop is None:
            of.launch_loop = asyncio.new_event_loop()
            threading.Thread(target=_follow, args=(of.launch_loop,), name="monarch-launches", daemon=True).start()
        loop: asyncio.AbstractEventLoop = of.launch_loop
        return loop


def _follow(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


# ---- What spawn_procs() takes ----


def launches_of(launcher: Any, procs: ProcMesh, procs_name: str, proc_bind: Sequence[Any] | None) -> Launches:
    """``launcher``: what was given as ``proc_launcher``; ``procs``: this process."""
    if _core.in_simulation():
        raise NotImplementedError("proc_launcher: not in monarch.testing.simulate(), which has no real processes")
    from monarch._config import settings

    limit = settings.seconds("mesh_proc_spawn_max_idle")
    if isinstance(launcher, ActorMesh) and issubclass(launcher._class, ProcLauncher):
        if len(launcher) != 1:
            raise ValueError(f"proc_launcher must be one actor, but is a mesh of {len(launcher)}: take a slice of it")
        return Launches(launcher, False, procs_name, proc_bind or (), limit)
    if not isinstance(launcher, type) or not issubclass(launcher, ProcLauncher):
        raise TypeError(
            f"proc_launcher must be a subclass of ProcLauncher, or a spawned actor of one, but is {launcher!r}"
        )
    if missing := sorted(getattr(launcher, "__abstractmethods__", ())):
        raise TypeError(
            f"{launcher.__name__} does not say how to {', '.join(missing)} a process: it is no launcher yet"
        )
    mesh: Any = procs.spawn(f"{procs_name}.launcher", launcher)
    if (owner := getattr(mesh, "_owner", None)) is not None:
        owner.forget(mesh)  # it ends when the processes have
    return Launches(mesh, True, procs_name, proc_bind or (), limit)


def default_python(chosen: str | None) -> str:
    """The interpreter that runs processes unless their command says otherwise."""
    return chosen or launch.default_python or sys.executable


def note_stopping(nodes: Sequence[int], limit: float, ending: Future[None]) -> None:
    """These were asked to end: some may be processes of launchers."""
    launched = here().launched
    now = [node for node in _core.latest(list(nodes)) if node in launched]
    for launches in {id(launched[node]): launched[node] for node in now}.values():
        launches.stopping([node for node in now if launched.get(node) is launches], limit, ending)
