"""W16: what worker processes print, at the far end of the script's stdout. (Reads it; w16_print.py is the script.)

r  lines of 100 B from 8 processes at once, lines per second    q  one quiet line, from print() to here
s  time of a process that prints, over that of one that prints into a bare pipe
Every line is checked: none is lost, and each process's come in order.
"""

import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import (  # noqa: E402
    BENCH_DIR,
    PRINTED_BYTES,
    NotOffered,
    WrongAnswer,
    median,
    parse_arguments,
    percentile,
    run_rows,
)

SCRIPT = os.path.join(BENCH_DIR, "workloads", "w16_print.py")
PIPE_BYTES = 1 << 20  # the reader keeps up
SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ
LINE = re.compile(rb"(.*?)([0-9]{%d})" % (PRINTED_BYTES - 1))
GAP_S = 0.05
TIME_LIMIT_S = 50


class Run:
    """One script, read to its end: pieces of its stdout, when they came, and what it reports of itself."""

    def __init__(self, system, *what):
        reports, report_end = os.pipe()
        output, output_end = os.pipe()
        fcntl.fcntl(output, SET_PIPE_SIZE, PIPE_BYTES)
        process = subprocess.Popen(
            [sys.executable, SCRIPT, system, str(report_end), *map(str, what)],
            stdout=output_end,
            pass_fds=[report_end],
            start_new_session=True,
        )
        os.close(report_end)
        os.close(output_end)
        self.pieces, self.times_ns = [], []
        clock = time.monotonic_ns
        limit = clock() + int(TIME_LIMIT_S * 1e9)
        while select.select([output], [], [], max(0, limit - clock()) / 1e9)[0]:
            data = os.read(output, PIPE_BYTES)
            if not data:
                break
            self.times_ns.append(clock())
            self.pieces.append(data)
        else:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise RuntimeError(f"no end of the output within {TIME_LIMIT_S} s")
        status = process.wait()
        with open(reports) as file:
            text = file.read()
        os.close(output)
        if status or not text:
            raise RuntimeError(f"the script ended with status {status}")
        self.report = json.loads(text)
        if "error" in self.report:
            raise NotOffered(self.report["error"])

    def check_lines(self, procs, count):
        """Every process has printed 0 ... count - 1, in order, and each line says who it was."""
        following = {}
        for line in b"".join(self.pieces).splitlines():
            if not line.startswith(b"["):
                continue  # the reference shows each line on its host's console too, which is the same stdout
            found = LINE.fullmatch(line)
            if found is None:
                raise WrongAnswer(f"a line {line[:120]!r}")
            who, number = found[1], int(found[2])
            if following.setdefault(who, 0) != number:
                raise WrongAnswer(f"{who!r} printed line {number} after {following[who] - 1}")
            following[who] += 1
        if len(following) != procs or any(one != count for one in following.values()):
            raise WrongAnswer(f"of {procs} times {count} lines {sum(following.values())} came")

    def check_bare_lines(self, procs, count):
        """As check_lines, on one pipe, where nobody says who printed."""
        numbers = sorted(int(line) for line in b"".join(self.pieces).splitlines())
        if numbers != sorted(list(range(count)) * procs):
            raise WrongAnswer("lines of the bare pipe are lost")

    def rate(self, lines):
        return lines / ((self.times_ns[-1] - self.times_ns[0]) / 1e9)

    def delays_ms(self):
        """Each piece is one quiet line; those count that say who printed them, if there are any."""
        named = any(piece.startswith(b"[") for piece in self.pieces)
        wanted = rb"(?s)\[.*?(\d{10,})\n" if named else rb"(\d{10,})\n"
        stamps = [re.fullmatch(wanted, piece) for piece in self.pieces]
        return [
            (seen - int(stamp[1])) / 1e6 for stamp, seen in zip(stamps, self.times_ns, strict=True) if stamp is not None
        ]


def main():
    arguments = parse_arguments(["W16r", "W16q", "W16s"])
    system = arguments.system
    lines = int(100_000 * arguments.seconds)

    def checked(name, procs, count):
        run = Run(name, "lines", procs, count)
        (run.check_bare_lines if name == "limit" else run.check_lines)(procs, count)
        return run

    def rate():
        value = checked(system, 8, lines).rate(8 * lines)
        return {"unit": "/s", "value": value, "count": 8 * lines, "samples": [value]}

    def quiet():
        run = Run(system, "times", 1, max(20, int(20 * arguments.seconds)), GAP_S)
        ordered = sorted(run.delays_ms())
        if len(ordered) < 15:
            raise WrongAnswer(f"only {len(ordered)} quiet lines came one by one")
        return {
            "unit": "ms",
            "value": median(ordered),
            "p99": percentile(ordered, 0.99),
            "count": len(ordered),
            "samples": ordered,
        }

    def slowdown():
        if system == "limit":
            raise NotOffered("the bare pipe is what it is compared with")
        ours, bare = [], []
        for _ in range(3):
            for name, seconds in (("limit", bare), (system, ours)):
                seconds.append(checked(name, 1, 2 * lines).report["seconds"][0])
        return {
            "unit": "x",
            "value": median(ours) / median(bare),
            "count": len(ours),
            "bare_us": median(bare) / (2 * lines) * 1e6,
            "samples": [one / other for one, other in zip(ours, bare, strict=True)],
        }

    run_rows(arguments, None, {"W16r": rate, "W16q": quiet, "W16s": slowdown})


main()
