"""Shows what `monarch ps` does, every second, until q or Ctrl-C; in place of the time of each process, how much of a
processor it uses. Where the output is no terminal, one table; with --json it goes on
there too.

example: monarch top --once
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from monarch.tools._processes import Row

HELP = "the same as ps, every second, until q or Ctrl-C"
_PERIOD_S = 1.0
_FIRST_S = 0.2  # until there is a share of a processor to be told
_HOME, _END_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"
_OPEN, _CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # a screen of its own, without a cursor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="all of Monarch that this user runs here, by job")
    parser.add_argument("--once", action="store_true", help="one table, and the end")
    parser.add_argument(
        "--json", action="store_true",
        help="in place of each table a line, a list of objects as of ps, and with cpu_percent",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    view = _View(arguments.all)
    if arguments.json:
        _print_objects(view, arguments.once)
        return 0
    if arguments.once or not sys.stdout.isatty():
        time.sleep(_FIRST_S)
        print("\n".join(view.lines()))
        return 0
    wait = _FIRST_S
    with _screen(), contextlib.suppress(KeyboardInterrupt):
        while not _is_asked_to_end(wait):
            _draw(view.lines())
            wait = _PERIOD_S
    return 0


class _View:
    """What is shown, and what was used when it was looked at last."""

    def __init__(self, of_all: bool) -> None:
        self.of_all = of_all
        self.cpu_s: dict[int, float] = {}
        self.looked_s = 0.0
        self.look()

    def lines(self) -> list[str]:
        from monarch.tools._processes import table

        return table(*self.look())

    def look(self) -> tuple[list[Row], dict[int, float]]:
        """What there is now, and how much of one processor each has used since the last look, by id."""
        from monarch.tools.cli._ps import find

        rows = find(self.of_all)
        now_s = time.monotonic()
        took_s = max(now_s - self.looked_s, 0.001)
        # One that has taken the number of one that ended has used less.
        percent = {row.pid: max(0.0, row.cpu_s - self.cpu_s.get(row.pid, row.cpu_s)) / took_s * 100 for row in rows}
        self.cpu_s, self.looked_s = {row.pid: row.cpu_s for row in rows}, now_s
        return rows, percent


def _print_objects(view: _View, once: bool) -> None:
    """Until Ctrl-C, or whoever reads has enough."""
    wait = _FIRST_S
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            time.sleep(wait)
            rows, percent = view.look()
            found = [{**row.as_json(), "cpu_percent": round(percent[row.pid], 1)} for row in rows]
            print(json.dumps(found), flush=True)
            if once:
                return
            wait = _PERIOD_S


def _draw(lines: list[str]) -> None:
    """No more than the terminal has room for."""
    width, height = os.get_terminal_size(sys.stdout.fileno())
    shown = lines[: max(1, height - 1)] if height else lines
    text = "".join(f"{line[:width] if width else line}{_END_OF_LINE}\n" for line in shown)
    sys.stdout.write(_HOME + text + _REST)
    sys.stdout.flush()


def _is_asked_to_end(wait_s: float) -> bool:
    """Waits so long for a key."""
    if not sys.stdin.isatty():
        time.sleep(wait_s)
        return False
    until = time.monotonic() + wait_s
    while select.select([sys.stdin], [], [], max(0.0, until - time.monotonic()))[0]:
        keys = os.read(sys.stdin.fileno(), 64)
        if not keys or b"q" in keys or b"Q" in keys:
            return True
    return False


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """The terminal's other screen, where keys come one by one. All is as it was afterwards."""
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if before is not None:
        tty.setcbreak(sys.stdin)
    sys.stdout.write(_OPEN)
    try:
        yield
    finally:
        sys.stdout.write(_CLOSE)
        sys.stdout.flush()
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
