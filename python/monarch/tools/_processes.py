"""Monarch's processes on this machine, as /proc shows them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from monarch.job import _ending
from monarch.job._ending import JOB_ID
from monarch.tools._active import Host

_STATES = {"R": "running", "S": "sleeping", "D": "in kernel", "T": "stopped", "t": "traced", "I": "idle"}
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROGRAM = "from monarch._programs import "  # in what an interpreter runs that Monarch has started
_KEEPS = "from monarch.job import _keeper"  # in what keeps actors that outlive scripts
_COMMAND_MAX = 60  # characters of a command in a table


@dataclass
class Row:
    """A process. ``host``: of the job, such as ``trainers[0]``."""

    job: str | None
    host: str | None
    pid: int
    parent: int
    state: str
    age_s: float
    rss_bytes: int
    cpu_s: float
    what: str
    command: list[str]
    depth: int = 0  # below the first of those that are shown

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "depth"}


def of_job(job_id: str | None, hosts: list[Host]) -> list[Row]:
    """These hosts, ended ones too, what they have started, and whatever says that it is of this job."""
    known = {_ending.Process(host.pid, host.started): str(host) for host in hosts}
    found = _ending.find(f"{JOB_ID}={job_id}", known)
    rows = _rows({process.pid: parent for process, parent in found.items()})
    names = {process.pid: name for process, name in known.items() if process in found}
    for row in rows.values():
        row.job, row.host = job_id, _nearest(row, rows, names)
    for process, name in known.items():
        if process not in found:
            rows[process.pid] = Row(job_id, name, process.pid, 0, "ended", 0, 0, 0, "host daemon", [])
    order = {str(host): index for index, host in enumerate(hosts)}
    return list(_in_order(rows, lambda row: (order.get(row.host or "", len(order)), row.pid)))


def of_user() -> list[Row]:
    """All of Monarch that this user runs, by job; scripts that use it, too. Not this process."""
    parents = {process.pid: parent for process, parent in _all()}
    rows = _rows(parents)
    said = {pid: _job_of(pid) for pid in rows}
    for row in rows.values():  # guards have no environment
        row.job = next((job for each in (row, *_above(row, rows)) if (job := said[each.pid]) is not None), None)
    for row in list(rows.values()):
        script = rows.get(row.parent) if row.what in ("guard", "fork server") else None
        if script is not None and script.pid != 1 and script.what == _title(script.command):
            script.what = f"script: {script.what}"
    ours = {pid for pid, row in rows.items() if row.job is not None or row.what != _title(row.command)}
    for row in rows.values():
        if row.pid not in ours and any(
            above.pid in ours and not above.what.startswith("script") for above in _above(row, rows)
        ):
            ours.add(row.pid)
    kept = {pid: rows[pid] for pid in ours}
    return list(_in_order(kept, lambda row: (row.job is None, row.job or "", row.pid)))


def _all() -> Iterator[tuple[_ending.Process, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and (entry := _ending._look_at(int(name))) is not None:
            yield entry.process, entry.parent


def _rows(parents: dict[int, int]) -> dict[int, Row]:
    with open("/proc/uptime") as file:
        uptime_s = float(file.read().split()[0])
    rows = {pid: row for pid, parent in parents.items() if (row := _read(pid, parent, uptime_s)) is not None}
    for row in rows.values():
        row.what = _what(row, rows)
    return rows


def _read(pid: int, parent: int, uptime_s: float) -> Row | None:
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            fields = file.read().rpartition(") ")[2].split()
        with open(f"/proc/{pid}/cmdline", errors="replace") as file:
            command = file.read().rstrip("\0").split("\0")
    except OSError:  # it has ended
        return None
    age_s = max(0.0, uptime_s - int(fields[19]) / _TICKS)
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
    state = _STATES.get(fields[0], fields[0])
    return Row(None, None, pid, parent, state, round(age_s, 2), int(fields[21]) * _PAGE, cpu_s, "", command)


def _what(row: Row, rows: dict[int, Row]) -> str:
    """What Monarch knows it as; else its title."""
    program = os.path.basename(row.command[0])
    if program == "monarch-guard":
        return "guard"
    if program == "monarch-hostd":
        depth = sum(_is_hostd(above) for above in _above(row, rows))
        if depth == 1 and any(other.parent == row.pid and _program(other) == "fork_server" for other in rows.values()):
            return "holder"
        return ("host daemon", "keeper")[depth] if depth < 2 else "agent"
    if any(_KEEPS in part for part in row.command):
        return "adopted actors' owner"
    ours = _program(row)
    if ours == "fork_server":  # forked from one, they have its command
        parent = rows.get(row.parent)
        return "worker" if parent is not None and _program(parent) == "fork_server" else "fork server"
    return _title(row.command) if ours is None else ours.replace("_", " ")


def _title(command: list[str]) -> str:
    """The command, or what a program has put into its place."""
    text = "".join(c if c.isprintable() else "?" for c in " ".join(" ".join(command).split()))
    return text if len(text) <= _COMMAND_MAX else text[: _COMMAND_MAX - 3] + "..."


def _is_hostd(row: Row) -> bool:
    return os.path.basename(row.command[0]) == "monarch-hostd"


def _program(row: Row) -> str | None:
    """Of those that the package has for processes, ``worker`` or ``fork_server``; None: none of them."""
    for part, text in zip(row.command, row.command[1:]):
        if part == "-c" and _PROGRAM in text:
            return text.partition(_PROGRAM)[2].split("\n")[0].strip()
    return None


def _above(row: Row, rows: dict[int, Row]) -> Iterator[Row]:
    seen = {row.pid}
    while (parent := rows.get(row.parent)) is not None and parent.pid not in seen:
        seen.add(parent.pid)
        yield parent
        row = parent


def _nearest(row: Row, rows: dict[int, Row], names: dict[int, str]) -> str | None:
    return next((names[each.pid] for each in (row, *_above(row, rows)) if each.pid in names), None)


def _job_of(pid: int) -> str | None:
    mark = f"{JOB_ID}=".encode()
    found = (line[len(mark) :] for line in _ending._environment(pid) if line.startswith(mark))
    return next((value.decode(errors="replace") for value in found), None)


def _in_order(rows: dict[int, Row], key: Any) -> Iterator[Row]:
    """Each before those that it has started."""
    children: dict[int, list[Row]] = {}
    for row in sorted(rows.values(), key=key):
        children.setdefault(row.parent if row.parent in rows else 0, []).append(row)
    stack = [(row, 0) for row in reversed(children.get(0, []))]
    while stack:
        row, row.depth = stack.pop()
        yield row
        stack += [(child, row.depth + 1) for child in reversed(children.get(row.pid, []))]


# ---- Tables ----


def table(rows: Iterable[Row], percent: dict[int, float] | None = None) -> list[str]:
    """Lines. ``percent``: of one processor, by id; None: their time instead."""
    lines = [("HOST", "PID", "STATE", "AGE", "RSS", "CPU", "WHAT")]
    job: str | None = ""
    for row in rows:
        if row.host is None and row.job != job:
            lines.append((f"job {row.job}" if row.job else "no job", "", "", "", "", "", ""))
        job = row.job
        cpu = f"{row.cpu_s:.2f} s" if percent is None else f"{percent.get(row.pid, 0):.0f}%"
        what = "  " * row.depth + row.what
        lines.append((row.host or "-", str(row.pid), row.state, _age(row.age_s), _size(row.rss_bytes), cpu, what))
    wide = [len(columns) > 1 and columns[1:] != ("",) * 6 for columns in lines]
    widths = [max(len(line[column]) for line, has in zip(lines, wide) if has) for column in range(7)]
    return [_line(line, widths) if has else line[0] for line, has in zip(lines, wide)]


def _line(line: tuple[str, ...], widths: list[int]) -> str:
    left = (0, 2, 6)
    return "  ".join(
        text.ljust(width) if column in left else text.rjust(width)
        for column, (text, width) in enumerate(zip(line, widths))
    ).rstrip()


def _age(seconds: float) -> str:
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if hours < 1 else f"{hours} h" if hours < 48 else f"{hours // 24} d"


def _size(count: int) -> str:
    return f"{count / (1 << 20):.0f} MiB" if count < 1 << 30 else f"{count / (1 << 30):.1f} GiB"
