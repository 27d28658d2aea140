"""What is said of each kind of failure, to who calls and at the end of a program: tests/golden/failures.

`python tests/python/failure_texts.py` writes them anew; what changes is for people to read.
"""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "records" / "kinds.py"
GOLDEN = Path(__file__).parents[1] / "golden" / "failures"
KINDS = (
    "killed", "terminated", "segmentation fault", "failed assert of C", "os._exit", "sys.exit",
    "sys.exit in a constructor", "exception", "constructor", "async endpoint", "many ranks", "megabytes of stderr",
    "a library is missing", "no such interpreter", "no interpreter",
)  # fmt: skip
NEVER_START = ("a library is missing", "no such interpreter", "no interpreter")
OUT_OF_MEMORY, MEMORY_MAX = "out of memory", 100 << 20  # where a cgroup with that limit can be made
LIMIT = 60
_cgroups = itertools.count()


@contextlib.contextmanager
def memory_cgroup(limit: int) -> Iterator[list[str] | None]:
    """The start of a command line that runs the rest in a cgroup with that limit in bytes; None: none can be made."""
    version_1 = Path("/sys/fs/cgroup/memory")
    folder = (
        version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")
    ) / f"monarch-test-{os.getpid()}-{next(_cgroups)}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        file = folder / ("memory.limit_in_bytes" if version_1.is_dir() else "memory.max")
        file.write_text(str(limit))
        enter = f'echo $$ >{folder}/cgroup.procs && exec "$@"'
        works = subprocess.run(["sh", "-c", enter, "sh", "true"], capture_output=True).returncode == 0
        yield ["sh", "-c", enter, "sh"] if works else None
    except OSError:  # there is no such controller here
        yield None
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def run(
    kind: str, how: str, env: dict[str, str] | None = None, prefix: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MONARCH_")}
    # Its stdin stays open: it waits for what stops it.
    with subprocess.Popen(["sleep", str(LIMIT)], stdout=subprocess.PIPE) as sleeper:
        try:
            return subprocess.run(
                [*(prefix or []), sys.executable, str(PROGRAM), kind, how], stdin=sleeper.stdout, capture_output=True,
                timeout=LIMIT, encoding="utf-8", errors="backslashreplace", env={**inherited, **(env or {})},
            )  # fmt: skip
        finally:
            sleeper.kill()


def run_told(kind: str) -> subprocess.CompletedProcess[str]:
    """What never starts is told as a process, not as the actor on it, if that comes before there is one."""
    for _ in range(10):
        done = run(kind, "told")
        if kind not in NEVER_START or "\nThe process <root>.<trainers" not in done.stderr:
            break
    return done


def run_out_of_memory(how: str, prefix: list[str] | None) -> subprocess.CompletedProcess[str]:
    """The kernel kills the script too if that wants memory while the worker's is still being given back."""
    for _ in range(30):
        done = run(OUT_OF_MEMORY, how, None, prefix)
        if done.returncode != -signal.SIGKILL:
            break
    return done


def report(done: subprocess.CompletedProcess[str]) -> str:
    """The report on stderr, without what workers have printed."""
    lines = done.stderr.splitlines()
    at = next((at for at, line in enumerate(lines) if line.startswith("monarch: ")), len(lines))
    return "\n".join(line for line in lines[at:] if not re.match(r"\[\w*[ ]?\d\] ", line))


def normalised(text: str) -> str:
    text = re.sub(r"(?<=C stack, innermost first:\n)(?:  \S[^\n]*(?: in [^\n ]+|more)(?:\n|$))+", "  ...\n", text)
    text = re.sub(r"\n {8,10}(?=\S)", " ", text)  # a line was too long for the screen, which depends on the pid
    text = re.sub(r"x{99,}", "xxx...", text)
    text = re.sub(r"\bpid \d+", "pid PID", re.sub(r"\bPID=\d+", "PID=PID", text))
    text = re.sub(r"at time \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}", "at time TIME", text)
    text = re.sub(r"hostname=\S+,", "hostname=HOST,", text)
    text = re.sub(r"[^\s'\"]+(?=/kinds\.py)", "/home/me", text)
    text = re.sub(r"/\S+/worker: error", "/tmp/worker: error", text)
    text = re.sub(r"[^\s'\"]+(?=: kernel\.c:42)", "python", text)
    text = re.sub(r"(kinds\.py\"), line \d+", r"\1, line N", text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def text_of(kind: str, caught: subprocess.CompletedProcess[str], told: subprocess.CompletedProcess[str]) -> str:
    return (
        f"# {kind}\n\n## What a caller's exception says\n\n{normalised(caught.stdout)}\n\n"
        f"## What the program says at its end, exit status {told.returncode}\n\n{normalised(report(told))}\n"
    )


def path_of(kind: str) -> Path:
    return GOLDEN / f"{re.sub(r'[^a-z]+', '-', kind.lower()).strip('-')}.txt"


def main() -> None:
    for kind in sys.argv[1:] or KINDS:
        path_of(kind).write_text(text_of(kind, run(kind, "caught"), run_told(kind)))
        print(path_of(kind))
    with memory_cgroup(MEMORY_MAX) as prefix:
        texts = [run_out_of_memory(how, prefix) for how in ("caught", "told")]
        path_of(OUT_OF_MEMORY).write_text(text_of(OUT_OF_MEMORY, *texts))


if __name__ == "__main__":
    main()
