#!/usr/bin/env python3
"""docs/pictures/quickstart.svg: what a terminal shows while somebody types a command and examples/quickstart.py runs.

tools/record.py          runs it in a pseudo-terminal, keeps what was seen (quickstart.cast, asciicast v2), draws it
tools/record.py --draw   draws the kept recording again
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from picture import picture

ROOT = Path(__file__).parent.parent
CAST = ROOT / "docs" / "pictures" / "quickstart.cast"
PICTURE = ROOT / "docs" / "pictures" / "quickstart.svg"
COMMAND = "python examples/quickstart.py"
PROMPT = "$ "
COLUMNS, ROWS = 56, 7
KEY_S = 0.06  # between two keys
LIMIT_S = 60
CELL = (7.9, 19.0)  # pixels
MARGIN = 18
REST_S = 4.0  # how long the last picture stays before it begins again


class Event(NamedTuple):
    at_s: float
    text: str


class Piece(NamedTuple):
    """What appeared at once in one row."""

    at_s: float
    row: int
    column: int
    text: str


def main() -> int:
    if "--draw" not in sys.argv:
        CAST.write_text(to_cast(record()))
    PICTURE.write_text(render(from_cast(CAST.read_text())))
    return 0


# ---- What is seen ----


def record() -> list[Event]:
    """Types COMMAND into a shell and takes down what its terminal shows until the shell is ready for the next."""
    pid, terminal = pty.fork()
    if pid == 0:
        search = os.pathsep.join([str(ROOT / ".venv" / "bin"), os.environ.get("PATH", "")])
        os.chdir(ROOT)
        os.execvpe("sh", ["sh"], {**os.environ, "PS1": PROMPT, "TERM": "dumb", "PATH": search})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    events: list[Event] = []
    begin = time.monotonic()
    read_until(terminal, lambda seen: seen.endswith(PROMPT), events, begin)
    for key in COMMAND:
        os.write(terminal, key.encode())
        read_until(terminal, lambda seen: False, events, begin, KEY_S)
    os.write(terminal, b"\n")
    read_until(terminal, lambda seen: seen.endswith("\n" + PROMPT) and COMMAND in seen, events, begin)
    os.write(terminal, b"exit\n")  # with the status of what has run
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        raise RuntimeError(f"{COMMAND} ended with {status}: {''.join(event.text for event in events)}")
    return events


def read_until(terminal: int, enough, events: list[Event], begin: float, limit_s: float | None = None) -> None:
    """Adds what appears to `events`, until `enough` of the whole text is true or `limit_s` have passed."""
    end = time.monotonic() + (limit_s if limit_s is not None else LIMIT_S)
    while not enough("".join(event.text for event in events)):
        left = end - time.monotonic()
        if left <= 0 or not select.select([terminal], [], [], left)[0]:
            if limit_s is None:
                raise TimeoutError(f"nothing new for {LIMIT_S} s after {events[-1:]}")
            return
        events.append(Event(round(time.monotonic() - begin, 3), os.read(terminal, 65536).decode()))


def to_cast(events: list[Event]) -> str:
    head = {"version": 2, "width": COLUMNS, "height": ROWS, "command": COMMAND}
    lines = [head, *([event.at_s, "o", event.text] for event in events)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def from_cast(text: str) -> list[Event]:
    return [Event(at_s, shown) for at_s, _, shown in map(json.loads, text.splitlines()[1:])]


# ---- How it is drawn ----


def pieces_of(events: list[Event]) -> list[Piece]:
    """Where each text stands. Plain text only: an escape sequence in it is an error."""
    pieces, row, column = [], 0, 0
    for event in events:
        if "\x1b" in event.text:
            raise ValueError(f"an escape sequence: {event.text!r}")
        for number, line in enumerate(event.text.replace("\r", "").split("\n")):
            if number:
                row, column = row + 1, 0
            if line:
                pieces.append(Piece(event.at_s, row, column, line))
                column += len(line)
    return pieces


def render(events: list[Event]) -> str:
    pieces = pieces_of(events)
    rows = 1 + max(piece.row for piece in pieces)
    length_s = events[-1].at_s + REST_S
    width, height = round(COLUMNS * CELL[0]) + 2 * MARGIN, round(rows * CELL[1]) + 2 * MARGIN
    content = [f'<rect class="screen" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>']
    style = [
        "    .screen { fill: var(--box); stroke: var(--line); }",
        "    .seen { font: 13px ui-monospace, 'DejaVu Sans Mono', monospace; white-space: pre; }",
        "    @media (prefers-reduced-motion: reduce) { .seen { animation: none !important; } }",
    ]
    for number, piece in enumerate(pieces):
        share = 100 * piece.at_s / length_s
        style.append(
            f"    @keyframes k{number} {{ 0%, {share:.2f}% {{ opacity: 0; }} {share + 0.01:.2f}% {{ opacity: 1; }} }}"
        )
        content.append(text_of(piece, f"animation: k{number} {length_s:.2f}s infinite"))
    shown = " ".join("".join(event.text for event in events).split())
    return picture(
        width, height, f"A terminal in which somebody runs {COMMAND}", shown, content, "\n".join(style) + "\n"
    )


def text_of(piece: Piece, animation: str) -> str:
    x, y = MARGIN + piece.column * CELL[0], MARGIN + (piece.row + 0.75) * CELL[1]
    length = f'textLength="{len(piece.text) * CELL[0]:.1f}" lengthAdjust="spacingAndGlyphs"'
    return f'<text class="seen" x="{x:.1f}" y="{y:.1f}" {length} style="{animation}">{escape(piece.text)}</text>'


if __name__ == "__main__":
    sys.exit(main())
