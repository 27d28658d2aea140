"""What is said of each kind of failure, to who calls and at the end of a program: tests/golden/failures.

`python tests/python/failure_texts.py` writes them anew; what changes is for people to read.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "records" / "kinds.py"
GOLDEN = Path(__file__).parents[1] / "golden" / "failures"
KINDS = (
    "killed", "terminated", "segmentation fault", "failed assert of C", "os._exit", "sys.exit",
    "sys.exit in a constructor", "exception", "constructor", "async endpoint", "many ranks", "megabytes of stderr",
    "a library is missing", "no such interpreter", "no interpreter",
)  # fmt: skip
LIMIT = 60


def run(kind: str, how: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MONARCH_")}
    # Its stdin stays open: it waits for what stops it.
    with subprocess.Popen(["sleep", str(LIMIT)], stdout=subprocess.PIPE) as sleeper:
        try:
            return subprocess.run(
                [sys.executable, str(PROGRAM), kind, how], stdin=sleeper.stdout, capture_output=True, timeout=LIMIT,
                encoding="utf-8", errors="backslashreplace", env={**inherited, **(env or {})},
            )  # fmt: skip
        finally:
            sleeper.kill()


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
        path_of(kind).write_text(text_of(kind, run(kind, "caught"), run(kind, "told")))
        print(path_of(kind))


if __name__ == "__main__":
    main()
