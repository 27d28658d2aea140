#!/usr/bin/env python3
"""docs/pictures/performance.svg: ours beside the peers, from a run of bench/run.py.

tools/chart.py             writes the picture, from bench/results/side-by-side.json
tools/chart.py RUN.json    keeps that run as bench/results/side-by-side.json first, without its raw samples
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from picture import picture

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "bench" / "results" / "side-by-side.json"
PICTURE = ROOT / "docs" / "pictures" / "performance.svg"

LABELS = {"ours": "ours", "torchmonarch": "torchmonarch", "ray": "Ray", "mpi4py": "MPI"}
TITLES = {  # in other words than those of bench/rows.py, for who does not know the rows
    "W1s": "one call and its answer",
    "W2w": "calls and answers, 64 under way",
    "W4_8": "a call to 8 processes and all their answers",
    "W6_1M": "an array of 1 MiB as argument",
    "W8_8": "8 new processes, an actor in each",
}
STYLE = """\
    .bar { fill: var(--line); }
    .ours { fill: var(--lit); }
"""
WIDTH = 480
AXIS_LEFT, AXIS_RIGHT = 118, 342  # of the times below, in pixels
VALUES_END, TIMES_END = 420, 466
TIMES_MIN, TIMES_MAX = 0.5, 1000
TICKS = (1, 10, 100, 1000)
TOP, LINE, ROW_GAP = 74, 17, 30  # pixels: the first line of a system, from line to line, between rows


def main() -> int:
    if sys.argv[1:]:
        KEPT.write_text(json.dumps(without_samples(json.loads(Path(sys.argv[1]).read_text())), indent=1) + "\n")
    PICTURE.write_text(render(json.loads(KEPT.read_text())))
    return 0


def without_samples(run: dict[str, Any]) -> dict[str, Any]:
    """The run with one value for each row, system and round: what its table is made of."""
    readings = {
        row: {name: [omit(line, "samples") for line in lines] for name, lines in systems.items()}
        for row, systems in run["readings"].items()
    }
    return {**run, "readings": readings}


def omit(line: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != key}


def render(run: dict[str, Any]) -> str:
    """An SVG: for each row of the run a bar for each system, as long as ours is times better, on a logarithmic axis."""
    lines = [
        '<text class="name" x="14" y="28">How many times better ours is</text>',
        *[f'<text class="dim mid" x="{place(times)}" y="{TOP - 22}">{times}×</text>' for times in TICKS],
    ]
    y = TOP
    for entry in run["table"]:
        lines += row_of(entry, y)
        y += ROW_GAP + (len(LABELS) + 1) * LINE - LINE // 2
    machine = f"{run['machine']['cpu']}, {run['machine']['cores']} cores, Python {run['machine']['python']}"
    caption = f"Medians of {run['rounds']} rounds; {machine}; commit {run['source']['commit'][:7]}"
    lines.append(f'<text class="dim" x="14" y="{y - 4}">{escape(caption)}</text>')
    return picture(WIDTH, y + 12, "Ours beside torchmonarch, Ray and MPI", description(run), lines, STYLE)


def title_of(entry: dict[str, Any]) -> str:
    return TITLES.get(entry["row"], entry["title"])


def row_of(entry: dict[str, Any], y: int) -> list[str]:
    lines = [
        f'<text class="name" x="14" y="{y}">{escape(title_of(entry))} <tspan class="dim">{entry["row"]}</tspan></text>'
    ]
    first, last = y + 5, y + 6 + len(LABELS) * LINE
    lines += [f'<path class="wire" d="M{place(times)} {first}V{last}" opacity="0.4"/>' for times in TICKS]
    for number, (system, label) in enumerate(LABELS.items(), 1):
        at = y + number * LINE
        lines.append(f'<text x="22" y="{at}">{label}</text>')
        cell = entry["systems"].get(system)
        if cell is None:
            lines.append(f'<text class="dim" x="{VALUES_END}" y="{at}" text-anchor="end">not offered</text>')
        else:
            lines += bar(cell, system, entry["unit"], at)
    return lines


def bar(cell: dict[str, Any], system: str, unit: str, y: int) -> list[str]:
    value = f'<text x="{VALUES_END}" y="{y}" text-anchor="end">{quantity(cell["median"][0], unit)}</text>'
    if system == "ours":
        return [f'<circle class="ours" cx="{place(1)}" cy="{y - 4.5}" r="5.5"/>', value]
    times = cell["ours_ahead"][0]
    left, right = sorted((place(1), place(times)))
    return [
        f'<rect class="bar" x="{left}" y="{y - 9}" width="{round(right - left, 1)}" height="9"/>',
        value,
        f'<text class="dim" x="{TIMES_END}" y="{y}" text-anchor="end">{factor(times)}×</text>',
    ]


def place(times: float) -> float:
    """Where so many times better stands on the axis, in pixels."""
    share = math.log(min(max(times, TIMES_MIN), TIMES_MAX) / TIMES_MIN) / math.log(TIMES_MAX / TIMES_MIN)
    return round(AXIS_LEFT + share * (AXIS_RIGHT - AXIS_LEFT), 1)


def factor(times: float) -> str:
    return f"{times:.0f}" if times >= 10 else f"{times:.2g}"


def quantity(value: float, unit: str) -> str:
    """Three digits, in the unit that needs the fewest zeros."""
    if unit in ("us", "ms"):
        seconds = value * {"us": 1e-6, "ms": 1e-3}[unit]
        scale, unit = next(pair for pair in ((1, "s"), (1e-3, "ms"), (1e-6, "us")) if seconds >= pair[0])
        value = seconds / scale
    elif unit == "/s":
        value, unit = (value / 1e6, "M/s") if value >= 1e6 else (value / 1e3, "k/s")
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def description(run: dict[str, Any]) -> str:
    """The same in words, for who does not see it."""
    sentences = []
    for entry in run["table"]:
        cells = entry["systems"]
        told = [
            f"{LABELS[name]} {quantity(cells[name]['median'][0], entry['unit'])}" for name in LABELS if name in cells
        ]
        sentences.append(f"{title_of(entry)}: {', '.join(told)}.")
    return " ".join(sentences)


if __name__ == "__main__":
    sys.exit(main())
