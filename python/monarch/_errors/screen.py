"""The report of a program that a failure has stopped: one screen, the cause first, and each thing once."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from monarch._errors.mesh_failure import MeshFailure
from monarch._values.ranks import ranks_text

LINES, COLUMNS = 24, 120
_FIRST = len("monarch: ")  # which the log puts before the first line
_TAIL = 9  # lines at the end that are left, if there are too many
_WRAPPED = 3  # lines that a long one may take
_FURTHER = " " * 8  # before those after its first
_OTHERS = 5  # meshes and kinds of failures that are named


def make_screen(failures: list[MeshFailure], where: str, more: str = "") -> str:
    """``where``: the line that says whose program it was. ``more``: what else belongs to it."""
    alike = _grouped(failures)
    (mesh, kind), same = next(iter(alike.items()))
    first = min(same, key=lambda failure: failure.crashed_ranks)
    cause, who = _parts(first)
    if len(same) > 1:
        ranks = sorted({rank for failure in same for rank in failure.crashed_ranks})
        has, first_of = ("has", "the first time") if len(ranks) == 1 else ("have", "the first of them")
        cause = f"{ranks_text(ranks)} of {mesh!r} {has} failed: {kind}{_in_flight(same)}\n{first_of}: {cause}"
    lines = [*cause.split("\n"), where, *who, *_others(alike), *more.splitlines()]
    return "\n".join(_fitted(lines, where))


def _grouped(failures: list[MeshFailure]) -> dict[tuple[str, str], list[MeshFailure]]:
    """By mesh and kind. Of a process, one mesh is named: of its actors, if there is one, whichever was told first."""
    names: dict[int, str] = {}
    for failure in sorted(failures, key=lambda failure: failure._is_procs):
        if failure._source[1] == 0:
            names.setdefault(failure._source[0], failure.mesh_name)
    alike: dict[tuple[str, str], list[MeshFailure]] = {}
    for failure in failures:
        node, actor = failure._source
        if actor == 0 and names[node] != failure.mesh_name:
            continue
        alike.setdefault((failure.mesh_name, failure.kind), []).append(failure)
    return alike


def _parts(failure: MeshFailure) -> tuple[str, list[str]]:
    """What it all began with, and who has failed of that, from the owner down."""
    lines = failure.report().split("\n")
    at = next((at for at, line in enumerate(lines) if line.strip() == failure.origin), None)
    if at is None:
        return failure.origin, lines
    depth = len(lines[at]) - len(lines[at].lstrip())
    cause = [line[depth:] if not line[:depth].strip() else line for line in lines[at:]]
    who = lines[:at]
    who[-1:] = [line.removesuffix(":") for line in who[-1:]]
    return "\n".join(cause), who


def _in_flight(failures: list[MeshFailure]) -> str:
    """What all of them were in; some may have been in something else besides, as another actor's ``__cleanup__``."""
    common = set.intersection(*(set(failure.in_flight) for failure in failures))
    return f", while in {min(common)}" if common else ""


def _others(alike: dict[tuple[str, str], list[MeshFailure]]) -> Iterator[str]:
    rest = list(alike.items())[1:]
    for (mesh, kind), failures in rest[:_OTHERS]:
        ranks = sorted({rank for failure in failures for rank in failure.crashed_ranks})
        yield f"So ha{'s' if len(ranks) == 1 else 've'} {ranks_text(ranks)} of {mesh!r}: {kind}"
    if len(rest) > _OTHERS:
        yield f"and {len(rest) - _OTHERS} others"


def _fitted(lines: list[str], where: str) -> list[str]:
    fitted: list[str] = []
    for line in lines:
        plain = "".join(c if c.isprintable() else " " if c == "\t" else "\ufffd" for c in line)
        room = COLUMNS - (0 if fitted else _FIRST)
        if len(plain) <= room or line == where:  # programs look for that one
            fitted.append(plain)
            continue
        indent = plain[: len(plain) - len(plain.lstrip())]
        plain = plain.replace("pid ", "pid\xa0")  # stay together
        wrapped = textwrap.wrap(plain, room, subsequent_indent=indent + _FURTHER, break_on_hyphens=False)
        if len(wrapped) > _WRAPPED:
            wrapped[_WRAPPED - 1 :] = [wrapped[_WRAPPED - 1][: room - 4] + " ..."]
        fitted += [part.replace("\xa0", " ") for part in wrapped]
    if len(fitted) <= LINES:
        return fitted
    # The line that says whose program it was stays.
    at = max(index for index, line in enumerate(fitted) if line == where)
    tail = fitted[at:][: LINES // 2]
    head, rest = fitted[:at], LINES - len(tail)
    if len(head) > rest:
        last = min(_TAIL, rest // 2)
        left_out = f"  [... {len(head) - rest + 1} lines are left out ...]"
        head = [*head[: rest - last - 1], left_out, *head[-last:]]
    return [*head, *tail]
