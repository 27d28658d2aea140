"""Simulated processes: what Python does for them that worker programs and the machine do for real ones."""

from __future__ import annotations

import os
import pickle
import random
import signal
import uuid
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import cloudpickle

from monarch import _core
from monarch._processes.launch import Common, Wanted
from monarch._running import construct
from monarch._runtime import here as places
from monarch._runtime import runtime
from monarch._simulation.patches import Patches


def here() -> places.Here:
    """That of the simulated process of this thread; on other threads that of the machine's."""
    if not _core.in_simulation():
        return places.of_machine()
    of = _core.simulated_locals()
    found: places.Here | None = of.get("here")
    if found is None:
        found = of["here"] = places.Here()
        root, (node, *_) = _core.simulated_root(), _core.simulated_process()
        found.root = 0 if node == root else root
    return found


def payload(common: Common, wanted: Sequence[Wanted], host: int | None) -> bytes:
    """Of an order for processes; empty if they have nothing to do before their first actor."""
    _refuse_if(common.python is not None, "with_python_executable")
    _refuse_if(any(each.command is not None for each in wanted), "bootstrap_command")
    _refuse_if(any(each.prefix is not None for each in wanted), "proc_bind")
    return b"" if common.setup is None and host is None else pickle.dumps((common.setup, host))


def _refuse_if(wanted: bool, what: str) -> None:
    if wanted:
        raise NotImplementedError(f"{what}: not in monarch.testing.simulate(), which has no real processes")


def begin(payload: bytes) -> None:
    """In a new process, before its first actor: what its payload says."""
    setup, here().host_node = pickle.loads(payload)
    construct.run_setup(setup)


def end(reason: str) -> None:
    """In a process that has been asked to end."""
    limit = runtime.limit("cleanup_timeout")
    runtime.flush_ports(limit)
    _core.stop_worker(limit, reason)


def patch(patches: Patches) -> None:
    """What a process does to itself, and what is random in it."""
    put = patches.put_for_simulated
    put(os, "getpid", lambda: _core.simulated_process()[1])
    put(os, "_exit", lambda status: _end_self(int(status) & 0xFF, 0))
    put(os, "abort", lambda: _end_self(0, signal.SIGABRT))
    kill = os.kill
    put(os, "kill", lambda pid, number: _kill(kill, pid, number))
    put(os, "fork", lambda: _refuse_if(True, "os.fork()"))
    _keep_out_of_chance(patches)
    put(os, "urandom", _urandom)


def _keep_out_of_chance(patches: Patches) -> None:
    """cloudpickle gives a class that travels by value an id the first time: later runs in this process draw none."""
    real = os.urandom
    ids = SimpleNamespace(uuid4=lambda: uuid.UUID(bytes=real(16), version=4))
    patches.put(cloudpickle.cloudpickle, "uuid", ids)


def _end_self(code: int, number: int) -> None:
    if _core.simulated_process()[0] == _core.simulated_root():
        raise SystemExit(code or 128 + number)
    _core.simulated_end(_core.simulated_process()[0], code, number)
    _core.check_simulation()


def _kill(of_machine: Any, pid: int, number: int) -> None:
    victims = [node for node, simulated, *_ in _core.simulated_living() if simulated == pid]
    if not victims:
        if pid > 10_000_000:
            raise ProcessLookupError(3, "No such process")
        return of_machine(pid, number)
    if number == 0:
        return None
    if number not in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT):
        raise NotImplementedError(f"os.kill with signal {number}: not in monarch.testing.simulate()")
    _core.simulated_end(victims[0], 0, int(number))
    _core.check_simulation()
    return None


def _urandom(size: int) -> bytes:
    return bytes(_core.simulated_random(256) for _ in range(size))


class Randomness:
    """Python's ``random``, and NumPy's if it is loaded: seeded for the simulation, and afterwards as they were."""

    def __init__(self, seed: int) -> None:
        import sys

        self._before = random.getstate()
        random.seed(seed)
        self._numpy = getattr(sys.modules.get("numpy"), "random", None)
        if self._numpy is not None:
            self._numpy_before = self._numpy.get_state()
            self._numpy.seed(seed & 0xFFFFFFFF)

    def restore(self) -> None:
        """As they were."""
        random.setstate(self._before)
        if self._numpy is not None:
            self._numpy.set_state(self._numpy_before)
