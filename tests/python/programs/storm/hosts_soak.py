"""Scripts, processes, hosts and daemons that come and go, over TCP on loopback addresses, for a given time.

    hosts_soak.py --seconds 60 --seed 7

Every call must be answered rightly, or fail for what has been killed; of what lives nothing may be lost, or come twice.
Between two looks, after a quarter of the time and at its end, nothing may have grown: neither here nor in the daemons.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator

import census
from hosts_worker import Worker
from rounds import GONE_WITHIN, Round, wait
from verdict import LIMIT, Wrong, tally

import monarch.actor
from monarch import _core
from monarch.actor import ActorError, Channel, MeshFailure, SupervisionError, attach_to_workers

HOSTD = os.path.join(os.path.dirname(_core.__file__), "bin", "monarch-hostd")
THREADS, EACH = 2, 3  # that have rounds of their own, and so many daemons
WARM_UP = 0.25  # of the time, before things are counted
SCRIPTS = 0.1  # of the rounds are those of a script that is killed
LEASE_S = 1.0
CALLS = 200
LARGE = 1 << 20
# What a daemon may have more of at the end: it is a small program, and what it keeps of one script goes with that.
DAEMON_ROOM = {"descriptors": 2, "threads": 1, "KiB": 1024}
WARM = 2  # processes of a daemon to which nobody is attached: a fork server that waits for a script, and its holder


class Daemon:
    """A monarch-hostd, which is started again at the same address when it was killed."""

    def __init__(self, number: int) -> None:
        self.address = f"tcp://127.0.2.{number + 1}:0"
        self.start()

    def start(self) -> None:
        command = [HOSTD, self.address, "--python", sys.executable]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            raise Wrong(f"a daemon cannot be started: {command}")

    def kill_and_start(self) -> None:
        self.process.kill()
        self.end()
        self.start()

    def end(self) -> None:
        assert self.process.stdout is not None
        self.process.terminate()
        self.process.wait(LIMIT)
        self.process.stdout.close()

    def counts(self) -> dict[str, int]:
        folder = f"/proc/{self.process.pid}"
        with open(f"{folder}/smaps_rollup") as text:
            found = re.search(r"^Anonymous: *(\d+)", text.read(), re.MULTILINE)  # whether a child has it, too, or not
        assert found is not None
        names = {"descriptors": len(os.listdir(f"{folder}/fd")), "threads": len(os.listdir(f"{folder}/task"))}
        return {**names, "KiB": int(found[1]), "processes": len(census.descendants(self.process.pid))}


class Told:
    """Which ranks of which meshes the hook was asked about, and how often."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._asked: collections.Counter[tuple[str, int]] = collections.Counter()

    def __call__(self, failure: MeshFailure) -> None:
        with self._lock:
            self._asked.update((failure.mesh_name, rank) for rank in failure.crashed_ranks)
            self._lock.notify_all()

    def settle(self, mesh: str, ranks: set[int]) -> None:
        """Waits until it was asked about these, each of them once."""
        wanted = {(mesh, rank): 1 for rank in ranks}

        def so_far() -> dict[tuple[str, int], int]:
            return {asked: count for asked, count in self._asked.items() if asked[0] == mesh}

        with self._lock:
            self._lock.wait_for(lambda: len(so_far()) >= len(wanted), LIMIT)
            if so_far() != wanted:
                raise Wrong(f"the hook was asked about {so_far()} and not {wanted}")
            for asked in wanted:
                del self._asked[asked]


told = Told()


class HostsRound:
    """Attaches to some daemons, works there, has something come to harm, and stops."""

    def __init__(self, name: str, rng: random.Random, daemons: list[Daemon]) -> None:
        self.name, self.rng = name, rng
        self.daemons = rng.sample(daemons, rng.randint(1, len(daemons)))
        self.gpus = rng.randint(1, 2)
        self.ranks = range(len(self.daemons) * self.gpus)
        self.dead: set[int] = set()
        self.harm: str | None = None

    def run(self) -> None:
        addresses = [daemon.address for daemon in self.daemons]
        hosts = attach_to_workers(workers=addresses, name=f"{self.name}-hosts")
        procs = hosts.spawn_procs({"gpus": self.gpus}, name=f"{self.name}-procs")
        self.workers = procs.spawn(f"{self.name}-workers", Worker).flatten("all")
        self.pids = self.workers.pids.call().get(LIMIT).values()
        with Round.followed([pid for pids in self.pids for pid in pids]):
            self.work()
            self.harm = harm = self.rng.choice([None, None, "process", "host", "silence", "daemon"])
            if harm is not None:
                pending = [self.workers.slice(all=rank).square.call_one(9) for rank in self.ranks]
                self.come_to_harm(harm)
                for rank, future in zip(self.ranks, pending):
                    self.settle(rank, future, 81, pending=True)
                self.work()
                told.settle(f"{self.name}-procs", self.dead)
                told.settle(f"{self.name}-workers", self.dead)
                tally.add(f"x {harm}")
            hosts.stop().get(LIMIT)
        tally.add("rounds")

    def work(self) -> None:
        calls = [(rank, self.rng.randrange(1000)) for rank in self.rng.choices(self.ranks, k=CALLS)]
        futures = [self.workers.slice(all=rank).square.call_one(x) for rank, x in calls]
        for (rank, x), future in zip(calls, futures):
            self.settle(rank, future, x * x)
        alive = [rank for rank in self.ranks if rank not in self.dead]
        if not alive:
            return
        one = self.workers.slice(all=self.rng.choice(alive))
        try:
            one.fail.call_one(self.name).get(LIMIT)
            raise Wrong("an endpoint that raises has answered")
        except ActorError as error:
            if self.name not in str(error):
                raise Wrong(f"{error} and not {self.name}") from error
        self.stream(one)
        if not self.dead:
            large = self.rng.randbytes(LARGE)
            if self.workers.same.call(large).get(LIMIT).values() != [large] * len(self.ranks):
                raise Wrong("a large payload has changed")
            first, last = self.workers.slice(all=0), self.workers.slice(all=self.ranks[-1])
            if len(self.ranks) > 1 and first.ask.call_one(last, 7).get(LIMIT) != 49:
                raise Wrong("a wrong answer between hosts")

    @staticmethod
    def stream(one: Worker) -> None:
        port, arriving = Channel.open()
        one.send_numbers.broadcast(port, CALLS)
        numbers = [arriving.recv().get(LIMIT) for _ in range(CALLS)]
        if numbers != [*range(CALLS)]:
            raise Wrong(f"{CALLS} numbers came as {numbers}")

    def settle(self, rank: int, future: monarch.actor.Future[int], right: int, pending: bool = False) -> None:
        """It is answered if its actor lives, and fails if it is dead; before that was known (``pending``): either."""
        try:
            answer = future.get(LIMIT)
        except TimeoutError as error:
            raise Wrong(f"rank {rank}, where {self.dead} are dead of {self.harm}: nothing within {LIMIT} s") from error
        except SupervisionError as error:
            if rank not in self.dead:
                raise Wrong(f"rank {rank} lives, and only {self.dead} are dead of {self.harm}: {error}") from error
            return tally.add("calls that failed")
        if answer != right or (rank in self.dead and not pending):
            raise Wrong(f"rank {rank}, where {self.dead} are dead of {self.harm}: {answer} and not {right}")
        tally.add("calls")

    def come_to_harm(self, harm: str) -> None:
        """Returns when it has happened: a signal is on its way for a while."""
        rank = self.rng.choice(self.ranks)
        pid, host = self.pids[rank]
        if harm == "process":
            self.dead = {rank}
            os.kill(pid, signal.SIGKILL)
            return wait_until(lambda: state(pid) in "ZX")
        number = rank // self.gpus
        self.dead = {number * self.gpus + gpu for gpu in range(self.gpus)}
        if harm == "daemon":
            self.daemons[number].kill_and_start()
        else:
            os.kill(host, signal.SIGKILL if harm == "host" else signal.SIGSTOP)
        wait_until(lambda: state(host) in ("T" if harm == "silence" else "ZX"))


def state(pid: int) -> str:
    """Of a process, in a letter of the kernel's."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise Wrong("a signal has not arrived")
        wait(0.001)


class ScriptRound:
    """Another script attaches, and is killed: what it has started ends with its lease."""

    def __init__(self, name: str, rng: random.Random, daemons: list[Daemon]) -> None:
        self.addresses = [daemon.address for daemon in daemons]

    def run(self) -> None:
        command = [sys.executable, __file__, "--attach", *self.addresses]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as script:
            assert script.stdout is not None
            pids = [int(pid) for pid in script.stdout.readline().split()]
            if len(pids) != 2 * len(self.addresses):
                raise Wrong("another script could not attach")
            with Round.followed(pids, LEASE_S + GONE_WITHIN):
                script.kill()
        tally.add("scripts")


def attach_and_wait(addresses: list[str]) -> None:
    workers = attach_to_workers(workers=addresses).spawn_procs().spawn("workers", Worker)
    print(*(pid for pids in workers.pids.call().get(LIMIT).values() for pid in pids), flush=True)
    wait(1000)


class Soak:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rounds = 0
        self.daemons = [[Daemon(EACH * thread + number) for number in range(EACH)] for thread in range(THREADS)]
        self.broken: list[str] = []
        self._lock = threading.Lock()

    def go_on(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        threads = [threading.Thread(target=self._have_rounds, args=(daemons, until)) for daemons in self.daemons]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.broken:
            raise SystemExit("\n".join([*self.broken, f"seed {self.seed}; so far {tally}"]))

    def _have_rounds(self, daemons: list[Daemon], until: float) -> None:
        while time.monotonic() < until and not self.broken:
            with self._lock:
                self.rounds += 1
                name = f"h{self.rounds}"
            rng = random.Random(f"{self.seed} {name}")
            try:
                kind = ScriptRound if rng.random() < SCRIPTS else HostsRound
                kind(name, rng, daemons).run()
            except BaseException:
                self.broken.append(f"round {name}: {traceback.format_exc()}")

    def pids(self) -> set[int]:
        """Of the daemons: it changes when one is killed."""
        return {daemon.process.pid for daemons in self.daemons for daemon in daemons}

    def counts(self) -> dict[str, int]:
        """The most that one of them has."""
        each = [daemon.counts() for daemons in self.daemons for daemon in daemons]
        return {name: max(counts[name] for counts in each) for name in each[0]}

    def check(self, before: dict[str, int]) -> dict[str, int]:
        limits = {name: before[name] + room for name, room in DAEMON_ROOM.items()} | {"processes": WARM}
        deadline = time.monotonic() + census.SETTLES_WITHIN
        while True:
            now = self.counts()
            if not any(count > limits[name] for name, count in now.items()):
                return now
            if time.monotonic() > deadline:
                raise Wrong(f"a daemon has {now}, and had {before}")
            wait(0.1)

    @contextlib.contextmanager
    def running(self) -> Iterator[Soak]:
        try:
            yield self
        finally:
            for daemons in self.daemons:
                for daemon in daemons:
                    daemon.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--attach", nargs="+", metavar="ADDRESS", help="be the script that another one kills")
    options = parser.parse_args()
    if options.attach:
        return attach_and_wait(options.attach)
    print(f"seed {options.seed}", flush=True)
    faulthandler.dump_traceback_later(options.seconds + 180, exit=True)
    monarch.actor.unhandled_fault_hook = told
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(filter(None, [os.path.dirname(__file__), os.environ.get("PYTHONPATH")]))
        os.environ.update(
            MONARCH_TOKEN_FILE=f"{folder}/token", MONARCH_HOST_LEASE=f"{LEASE_S}s", PYTHONPATH=path
        )  # fmt: skip
        with Soak(options.seed).running() as soak:
            soak.go_on(options.seconds * WARM_UP)
            before, daemons_before, rounds = census.take(soak.pids()), soak.counts(), soak.rounds
            soak.go_on(options.seconds * (1 - WARM_UP))
            after = census.check(before, soak.rounds - rounds, soak.pids())
            daemons_after = soak.check(daemons_before)
    print(f"{tally}\nleft: {after} (before: {before})\ndaemons: {daemons_after} (before: {daemons_before})")


if __name__ == "__main__":
    main()
