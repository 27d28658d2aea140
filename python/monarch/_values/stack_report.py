"""Stacks of many processes as one report: what the core has taken, read, grouped by likeness and written down."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from monarch import _core

__all__ = ["StackReport"]


class Frame(NamedTuple):
    """Where a thread is in a function of Python's."""

    file: str
    line: int
    function: str


class Thread(NamedTuple):
    """What one thread does."""

    title: str  # for people: the actor and endpoint that it runs, or its name
    running: bool  # or about to; else it waits
    waits_in: str  # the kernel function, where that is known
    taken: bool  # it has written its stack down
    frames: tuple[Frame, ...]  # of the user's code, outermost first
    native: tuple[str, ...]  # functions that the last of them is in, outermost first


class Process(NamedTuple):
    """A rank of the report."""

    mesh: str  # its name; "": this is no member of one
    rank: int | None  # None: the mesh has no dimensions
    pid: int | None
    problem: str  # why nothing is known of it; "": it is
    threads: tuple[Thread, ...] = ()

    @property
    def name(self) -> str:
        if not self.mesh:
            return "the script"
        return self.mesh if self.rank is None else f"rank {self.rank} of {self.mesh}"


class Group(NamedTuple):
    """Processes that do the same."""

    processes: tuple[Process, ...]
    text: str  # behind their names: a word, or lines of their own


class StackReport:
    """What all threads of some processes were doing: what ``dump_stacks`` gives. Its ``str`` is for people.

    Processes that do the same are one group, the largest first, so that the odd ones stand at the end. They do the same
    if their threads wait at the same lines, or compute in the same function. Only threads that run code of the user's
    count: a process without any is idle.
    """

    def __init__(self, processes: Iterable[Process]) -> None:
        self._groups = group(processes)

    @property
    def groups(self) -> list[list[str]]:
        """The names of the processes of each group, ``"rank 3 of procs"`` or ``"the script"``."""
        return [[process.name for process in each.processes] for each in self._groups]

    def __str__(self) -> str:
        count = sum(len(each.processes) for each in self._groups)
        lines = [f"stacks of {count} process{'es' * (count != 1)}, most recent call last"]
        for each in self._groups:
            lines.append(f"{_describe_members(each.processes)}:{each.text}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        count = sum(len(each.processes) for each in self._groups)
        return f"<StackReport of {count} processes in {len(self._groups)} groups>"


def make_report(members: Sequence[tuple[str, int | None]], answers: Sequence[Any]) -> StackReport:
    """Of these, by mesh and rank, what the core gives for each."""
    names = _function_names(code_places(answers))
    return StackReport(read_process(mesh, rank, answer, names) for (mesh, rank), answer in zip(members, answers))


_names: dict[str, dict[int, str]] = {}  # that have been looked up: of functions, by file and offset
_NAMES_MAX = 100_000


def _function_names(places: dict[str, set[int]]) -> dict[str, dict[int, str]]:
    if sum(map(len, _names.values())) > _NAMES_MAX:
        _names.clear()
    for path, offsets in places.items():
        known = _names.setdefault(path, {})
        new = [offset for offset in offsets if offset not in known]
        if new:
            known.update(zip(new, _core.function_names(path, new)))
    return _names


# ---- Reading ----

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_PROGRAMS = os.path.join(_PACKAGE, "_programs", "")
_IMPORT = "<frozen importlib."
# The interpreter's own modules, of whatever interpreter.
_LIBRARY = re.compile(r".*/lib/python3\.\d+/(?!site-packages/|dist-packages/)|<frozen ")

FunctionNames = Mapping[str, Mapping[int, str]]  # by file and offset there; "" where it has none


def code_places(answers: Iterable[Any]) -> dict[str, set[int]]:
    """The offsets in files of code that occur in these."""
    places: dict[str, set[int]] = {}
    for answer in answers:
        if isinstance(answer, tuple) and len(answer) == 4:
            _, threads, modules, _ = answer
            for *_, code in threads:
                for module, offset in zip(code[::2], code[1::2]):
                    places.setdefault(modules[module], set()).add(offset)
    return places


def read_process(mesh: str, rank: int | None, answer: Any, names: FunctionNames) -> Process:
    """Of what the core gives for a process (``host/stacks/process_stacks.h``), or a text that says why it does not."""
    if isinstance(answer, str):
        return Process(mesh, rank, None, answer)
    if len(answer) == 3:
        return _silent(mesh, rank, *answer)
    pid, threads, modules, actors = answer
    read = [_read_thread(pid, thread, actors, modules, names) for thread in threads]
    of_user = sorted((thread for thread in read if thread is not None), key=lambda thread: thread.title)
    return Process(mesh, rank, pid, "", tuple(of_user))


_STATES = {
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead",
    "X": "dead",
    "D": "held in the kernel",
}


def _silent(mesh: str, rank: int | None, pid: int, state: str, waits_in: str) -> Process:
    what = _STATES.get(state, "does not answer")
    if waits_in and state not in "TtZX":
        what += f", in {waits_in}"
    return Process(mesh, rank, pid if pid > 0 else None, what)


_INTERPRETER = re.compile(r"_?PyEval_Eval")
_GLUE = re.compile(
    r"_?Py[A-Z]\w+|cfunction_\w+|method_vectorcall\w*|builtin_exec|slot_tp_\w+|wrapper_call|vectorcall\w*|object_vacall|"
    r"nanobind::.*|_Z\w*8nanobind\w*"
)
_WAITS_FOR_GIL = ("take_gil", "PyEval_RestoreThread", "PyEval_AcquireThread")


def _read_thread(
    pid: int, thread: Any, actors: Sequence[Any], modules: Sequence[str], names: FunctionNames
) -> Thread | None:
    """None: it runs nothing of the user's."""
    number, name, state, waits_in, taken, text, code = thread
    of_thread = [actor for actor in actors if actor[0] == number]
    frames = _user_frames(text)
    if not frames and not of_thread:
        return None
    functions = [names.get(modules[module], {}).get(offset, "") for module, offset in zip(code[::2], code[1::2])]
    running = state == "R" or any(function in _WAITS_FOR_GIL for function in functions)
    title = _title(of_thread) if of_thread else "main thread" if number == pid else f"thread {name}"
    return Thread(title, running, waits_in, taken, frames, _native(functions) if frames else ())


def _user_frames(text: str) -> tuple[Frame, ...]:
    """Outermost first, without those of this package, and of the interpreter's library around and below them."""
    frames = []
    for line in text.splitlines():
        found = _FRAME.fullmatch(line)
        if found is not None:
            number = found["line"]
            frames.append(Frame(found["file"], int(number) if number.isdigit() else 0, found["function"]))
    frames.reverse()
    is_ours = [frame.file.startswith((_PACKAGE, _IMPORT)) for frame in frames]
    if len(frames) > 1 and frames[0].file == "<string>" and frames[1].file.startswith(_PROGRAMS):
        is_ours[0] = True  # of a worker
    kept = [frame for frame, ours in zip(frames, is_ours) if not ours]
    while kept and _LIBRARY.match(kept[0].file):
        del kept[0]
    return tuple(kept)


def _native(functions: list[str]) -> tuple[str, ...]:
    """From where the innermost frame of Python's calls into C to where it is, without the interpreter's own steps."""
    called = []
    for function in functions:
        if _INTERPRETER.match(function):
            break
        if function.startswith("monarch::"):
            called = ["a wait for an answer" if _WAITS_FOR_ANSWER.search(function) else "Monarch's own code"]
        elif function and not _GLUE.fullmatch(function):
            called.append(function)
    else:
        called = []  # it is not known where Python begins
    return tuple(reversed(called[-_NATIVE_MAX:]))


_NATIVE_MAX = 6
# Those of a file without its local symbols are not known: then the outermost that is, is one of those below.
_WAITS_FOR_ANSWER = re.compile(r"future_|::Driver::wait$|::wait_for$")


def _title(actors: Sequence[Any]) -> str:
    """Of a thread on which these are."""
    texts = []
    for _, name, _, doing, waiting in actors[:_ACTORS_MAX]:
        parts = []
        if doing == "__init__":
            parts.append("constructor")
        elif doing:
            parts.append(doing if doing in _HOOKS else f"endpoint {doing}")
        if waiting:
            parts.append("awaits in " + ", ".join(sorted({endpoint or "?" for endpoint in waiting})))
        texts.append(f"actor {name}, {' and '.join(parts)}" if name else f"an actor, {' and '.join(parts)}")
    if len(actors) > _ACTORS_MAX:
        texts.append(f"and {len(actors) - _ACTORS_MAX} more")
    return "; ".join(texts)


_ACTORS_MAX = 4
_HOOKS = ("__cleanup__", "__supervise__", "_handle_undeliverable_message")


# ---- Grouping ----


def group(processes: Iterable[Process]) -> list[Group]:
    """The largest first; else in the order of their first members."""
    alike: dict[Any, list[Process]] = {}
    for process in processes:
        alike.setdefault(_likeness(process), []).append(process)
    groups = [Group(tuple(members), _describe(members)) for members in alike.values()]
    return sorted(groups, key=lambda each: -len(each.processes))


def _likeness(process: Process) -> Any:
    return process.problem, tuple(map(_likeness_of_thread, process.threads))


def _likeness_of_thread(thread: Thread) -> Any:
    if thread.running:  # it is somewhere else a moment later
        return thread.title, True, tuple((frame.file, frame.function) for frame in thread.frames[:1])
    return thread.title, False, thread.taken, thread.frames, thread.native


# ---- Writing ----


def _describe(members: Sequence[Process]) -> str:
    """What they do, from what each of them does."""
    first = members[0]
    if first.problem:
        return f" {first.problem}"
    if not first.threads:
        return " idle"
    lines = [""]
    alike: dict[Any, list[Thread]] = {}  # those of each process that do the same, under whatever title
    for threads in zip(*(process.threads for process in members)):
        likeness = _likeness_of_thread(threads[0])
        alike.setdefault(likeness[1:] if threads[0].frames else likeness, []).extend(threads)
    for same in alike.values():
        lines.append(f"  {_titles(same, len(members))}{_state(same[0])}")
        lines += [f"    {line}" for line in _merged(same)]
    return "\n".join(lines)


def _titles(threads: Sequence[Thread], of_processes: int) -> str:
    """Of those that do the same."""
    count = len(threads) // of_processes
    if count == 1:
        return threads[0].title
    named = list(dict.fromkeys(thread.title for thread in threads))
    text = "; ".join(named[:_TITLES_MAX])
    return f"{count} threads: {text}" + (f" and {len(named) - _TITLES_MAX} more" if len(named) > _TITLES_MAX else "")


_TITLES_MAX = 3


def _state(thread: Thread) -> str:
    if not thread.taken:
        return ": cannot be asked" + (f", it waits in {thread.waits_in}" if thread.waits_in else "")
    return (", running" if thread.running else "") + (":" if thread.frames else "")


def _merged(threads: Sequence[Thread]) -> list[str]:
    """The frames that they have in common, with the lines that they are at."""
    lines = []
    for frames in zip(*(thread.frames for thread in threads)):
        if len({(frame.file, frame.function) for frame in frames}) > 1:
            break
        lines.append(f'File "{frames[0].file}", {_lines([frame.line for frame in frames])}, in {frames[0].function}')
    if any(len(thread.frames) > len(lines) for thread in threads):
        lines.append("... and from there each its own way")
    elif threads[0].native and all(thread.native == threads[0].native for thread in threads):
        lines.append(f"in C: {', '.join(threads[0].native)}")
    return lines


def _lines(numbers: list[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"line {least}" if least == most else f"lines {least}-{most}"


def _describe_members(processes: Sequence[Process]) -> str:
    """``ranks 0-30, 33 of procs and the script (pid 17)``."""
    ranks: dict[str, list[int]] = {}
    texts = []
    for process in processes:
        if process.mesh and process.rank is not None:
            ranks.setdefault(process.mesh, []).append(process.rank)
        else:
            texts.append(process.name)
    of_meshes = [f"rank{'s' * (len(found) > 1)} {_ranges(found)} of {mesh}" for mesh, found in ranks.items()]
    text = " and ".join([*of_meshes, *texts])
    if len(processes) == 1 and processes[0].pid is not None:
        return f"{text} (pid {processes[0].pid})"
    return text


def _ranges(numbers: Iterable[int]) -> str:
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
