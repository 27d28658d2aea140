#!/usr/bin/env python3
"""Runs hello world a thousand times, kills a tenth of the runs, and looks for what they leave behind.

    tools/hello_1000.py [--runs 1000] [--seed N] [--program examples/hello.py]

A run that is not killed must exit 0, print exactly what hello world prints, and nothing on stderr. After every run,
killed or not, three things must hold within two seconds: no process carries the run's mark in its environment or
command line; its temporary folder (TMPDIR, also XDG_RUNTIME_DIR) is empty; /dev/shm holds no file that came with it.
"""

import argparse
import contextlib
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARK = "MONARCH_HELLO_MARK"
SHM = Path("/dev/shm")
AT_ONCE = 2
POLL_S = 0.01


def marked_processes(mark: str) -> list[int]:
    """Ids of the live processes that carry the mark. Those of other users, and those that end meanwhile, are none."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        for file in ("environ", "cmdline"):
            try:
                if mark.encode() in (entry / file).read_bytes():
                    found.append(int(entry.name))
                    break
            except OSError:
                pass
    return found


def describe(pid: int) -> str:
    try:
        command = (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return f"{pid} ({command.strip()[:80]})"
    except OSError:
        return f"{pid} (ended late)"


def shm_files() -> dict[int, str]:
    """Inode -> name: a name that is used again by another file is another file."""
    with os.scandir(SHM) as entries:
        return {entry.inode(): entry.name for entry in entries}


def is_in_use(name: str) -> bool:
    """Whether a live process has the /dev/shm file mapped or open: then it is that process's, not an ended run's."""
    path = str(SHM / name)
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if path in (process / "maps").read_text(errors="replace"):
                return True
            if any(os.readlink(fd) == path for fd in (process / "fd").iterdir()):
                return True
        except OSError:
            pass
    return False


class Series:
    """One series of runs; each run() may be called from any thread."""

    def __init__(self, program: Path, expected: str, deadline_s: float, timeout_s: float):
        self.program = program
        self.expected = expected
        self.deadline_s = deadline_s
        self.timeout_s = timeout_s
        self.mark = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._durations: list[float] = []

    def normal_duration(self) -> float:
        with self._lock:
            return statistics.median(self._durations) if self._durations else 0.1

    def run(self, number: int, kill_at: float | None) -> list[str]:
        """One run, killed at the fraction `kill_at` of the normal run time unless None. Returns what was wrong."""
        mark = f"{self.mark}-{number}."
        shm_before = shm_files()
        with tempfile.TemporaryDirectory(prefix="hello-") as folder:
            tmp = Path(folder) / "tmp"
            tmp.mkdir(mode=0o700)
            # Files, not pipes: whoever is left behind would keep a pipe open and this script waiting.
            with open(Path(folder) / "out", "w+") as out, open(Path(folder) / "err", "w+") as err:
                start = time.monotonic()
                process = subprocess.Popen(
                    [sys.executable, str(self.program)],
                    env=dict(os.environ, TMPDIR=str(tmp), XDG_RUNTIME_DIR=str(tmp), **{MARK: mark}),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                )
                killed, problems = self._wait(process, kill_at)
                duration = time.monotonic() - start
                problems += self._leftovers(mark, tmp, shm_before)
                out.seek(0)
                err.seek(0)
                stdout, stderr = out.read(), err.read()
            if killed:
                if not self.expected.startswith(stdout) or "Traceback" in stderr:
                    problems.append(f"killed, yet printed {stdout!r}, stderr {stderr!r}")
            elif (process.returncode, stdout, stderr) != (0, self.expected, ""):
                problems.append(f"exit status {process.returncode}, stdout {stdout!r}, stderr {stderr!r}")
            elif kill_at is None:
                with self._lock:
                    self._durations.append(duration)
        how = f"killed after {duration * 1000:.0f} ms" if killed else "not killed"
        return [f"run {number} ({how}): {problem}" for problem in problems]

    def _wait(self, process: subprocess.Popen, kill_at: float | None) -> tuple[bool, list[str]]:
        """Waits for the end, by itself or by our kill: (killed by us, problems)."""
        ended = os.pidfd_open(process.pid)  # precise, where Popen.wait(timeout) polls in steps of up to 50 ms
        try:
            limit = self.timeout_s if kill_at is None else kill_at * self.normal_duration()
            if select.select([ended], [], [], limit)[0]:
                process.wait()
                return False, []
            process.kill()
            process.wait()
        finally:
            os.close(ended)
        if kill_at is None:
            return True, [f"no end after {self.timeout_s:.0f} s"]
        return process.returncode == -signal.SIGKILL, []  # else it ended by itself just before

    def _leftovers(self, mark: str, tmp: Path, shm_before: dict[int, str]) -> list[str]:
        """What is still there at the deadline. Processes that are left are ended, so as not to trouble later runs."""
        deadline = time.monotonic() + self.deadline_s
        shm_candidates = {inode for inode in shm_files() if inode not in shm_before}
        while True:
            pids = marked_processes(mark)
            files = sorted(str(path.relative_to(tmp)) for path in tmp.rglob("*"))
            shm = {inode: name for inode, name in shm_files().items() if inode in shm_candidates}
            if not (pids or files or shm):
                return []
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        problems = [f"left behind process {describe(pid)}" for pid in pids]
        problems += [f"left behind temporary file {name}" for name in files]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        problems += [f"left behind /dev/shm/{name}" for name in shm.values() if pids or not is_in_use(name)]
        return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="which runs are killed, and when; printed")
    parser.add_argument("--program", type=Path, default=ROOT / "examples/hello.py")
    parser.add_argument("--expected", default="hello, world\n", help="stdout of a run that is not killed")
    parser.add_argument("--deadline", type=float, default=2.0, help="seconds in which everything must be gone")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds that a run may take")
    options = parser.parse_args()

    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    rng = random.Random(seed)
    kills = {number: rng.random() for number in rng.sample(range(options.runs), options.runs // 10)}
    print(f"{options.runs} runs of {options.program.name}, {len(kills)} of them killed, seed {seed}", flush=True)

    series = Series(options.program.resolve(), options.expected, options.deadline, options.timeout)
    failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = [pool.submit(series.run, number, kills.get(number)) for number in range(options.runs)]
        for done, run in enumerate(as_completed(runs), 1):
            problems = run.result()
            failed += bool(problems)
            for problem in problems:
                print(problem, flush=True)
            if done % 100 == 0:
                print(f"{done} done, {failed} failed, {series.normal_duration() * 1000:.0f} ms a run", flush=True)
    if stray := marked_processes(series.mark):
        print("left behind at the end:", ", ".join(map(describe, stray)))
        failed += 1
    print(f"{options.runs - min(failed, options.runs)} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
