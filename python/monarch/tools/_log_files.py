"""The files that a job's processes write, and their lines."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import lru_cache
from typing import BinaryIO, NamedTuple

from monarch._processes.output import safe_name
from monarch.job import DEFAULT_JOB_PATH, JobTrait, _saved
from monarch.tools._active import hosts_of

# As monarch._processes.output names them: a file for each host and script; and before that one for each process, whose
# lines had no times.
_OF_HOST = re.compile(r"monarch_log_([^~_]{8})(?:~([^~]+)~(\d+))?_(\d{8}-\d{6}-\d+)\.log")
_OF_PROCESS = re.compile(r"monarch_log_([^~_]{8})(?:~([^~]+)~(\d+))?_(.+)_([0-9a-f]{6})_(\d+)\.log")
# A line of a host's, as src/monarch/host/output/log_file.h has it: the time, "kept" from a file that is gone, who.
_BEGIN = rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (kept )?\[([^\]\n]*)\] "
_TIMED = re.compile(_BEGIN)
_TIMED_NEXT = re.compile(b"\n" + _BEGIN)
# Of what Monarch's own processes say in files (src/monarch/base/log.h).
_OWN = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ")
_KEPT = "log"  # as monarch.job._keeper names it
# Of a program's own, at the beginning of a line.
_TIME = re.compile(r"\s*\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,]\d+)?(Z|[+-]\d\d:\d\d)?")
_BLOCK = 1 << 16
_OPEN_MAX = 64  # files that are followed without being opened for each look
_KNOWN_BY = 256  # bytes, by which a file that was closed is known again: its number may be another's by then
_NEVER = b"9"  # later than any time that stands in a file
_told: set[str] = set()
_LINE_MAX = (1 << 20) + (1 << 10)  # bytes; what is longer is cut


class Wanted(NamedTuple):
    """Which lines are wanted. None: all.

    Args:
        mesh: of processes, or of the job's hosts.
        host: its number in the job's mesh.
        rank: in the mesh of processes.
        since: seconds since 1970.
        pattern: somewhere in the line.
        last_run: of what workers print, the files of the script that began last.
    """

    mesh: str | None = None
    host: int | None = None
    rank: int | None = None
    since: float | None = None
    pattern: re.Pattern[str] | None = None
    last_run: bool = False


class Line(NamedTuple):
    """A line of a file, without its end. ``time``: when it was read from its process, in UTC, if the file says so."""

    source: Source
    text: str
    time: str | None = None


@dataclass
class Source:
    """A file, or a process whose lines stand in one with those of others.

    ``kind``: "host", of a daemon; "adopted", of what outlives scripts; "worker", of processes; "client", of a script in
    batch mode. ``within``: who has started it, "trainers 3/". ``is_shared``: all processes of a host have written it.
    ``run``: of which run of a script it is, when that began and its pid; ``written``: when that has last written.
    """

    path: str
    kind: str
    hosts: str | None = None
    host: int | None = None
    mesh: str | None = None
    rank: int | None = None
    within: str = ""
    is_shared: bool = False
    run: str | None = field(default=None, compare=False)
    written: float = field(default=0.0, compare=False)
    order: tuple[object, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        where = f"{self.hosts}[{self.host}]" if self.hosts is not None else None
        return (
            " ".join(part for part in (where, self.mesh and f"{self.within}{self.mesh} {self.rank}") if part)
            or self.kind
        )

    def is_wanted(self, wanted: Wanted) -> bool:
        """Whether lines of it may be: of one that is shared, those of some processes."""
        if wanted.host not in (None, self.host):
            return False
        if self.is_shared:
            return True
        return wanted.rank in (None, self.rank) and (wanted.mesh is None or self._is_of(safe_name(wanted.mesh)))

    def _is_of(self, mesh: str) -> bool:
        if self.hosts is not None and mesh == safe_name(self.hosts):
            return True
        # The second of a name is NAME#2.
        return self.mesh is not None and mesh in (safe_name(self.mesh), safe_name(self.mesh.partition("#")[0]))

    def of(self, who: str) -> Source:
        """One of the processes that have written it, by what stands in front of its lines."""
        within, slash, who = who.rpartition("/")
        mesh, _, rank = who.rpartition(" ")
        return replace(
            self, mesh=mesh, rank=int(rank) if rank.isdecimal() else None, within=within + slash, is_shared=False
        )


def find(job: JobTrait | str, last_run: bool = False) -> list[Source]:
    """The files of a job that are there now, here: of hosts, of adopted actors, of the client, of workers.

    Args:
        job: or the first eight characters of its ``apply_id``: what its workers have printed.
        last_run: of the script only that began last.
    """
    if isinstance(job, str):
        return of_workers(job, last_run)
    apply_id = str(job.apply_id)
    hosts = hosts_of(job)
    found = [Source(host.log, "host", host.mesh, host.number) for host in hosts if os.path.exists(host.log)]
    kept = {os.path.join(os.path.dirname(host.log), _KEPT) for host in hosts}
    found += [Source(path, "adopted") for path in kept if os.path.exists(path)]
    client = _saved.log_path(apply_id, make=False)
    found += [Source(client, "client")] if os.path.exists(client) else []
    return found + of_workers(job, last_run)


def of_workers(job: JobTrait | str, last_run: bool = False) -> list[Source]:
    """Of those of :func:`find` what workers have printed into, mesh of hosts by mesh of hosts."""
    known = None if isinstance(job, str) else job
    name = job if isinstance(job, str) else str(job.apply_id)[:8]
    places = {} if known is None else {host.mesh: place for place, host in enumerate(hosts_of(known))}
    captured = [each for folder in folders_of(known) for each in _captured(folder, name)]
    if last_run and captured:
        # The name of a run begins with the time; that of files of single processes, of versions before, has none.
        named = [each for each in captured if each.is_shared]
        last = max(named, key=lambda source: str(source.run)) if named else max(captured, key=lambda one: one.written)
        captured = [each for each in captured if each.run == last.run]
    return sorted(captured, key=lambda source: (places.get(source.hosts or "", len(places)), source.order))


def folders_of(job: JobTrait | None) -> list[str]:
    """Where the files are that workers print into. It goes by variables, which their script may have had others of.

    None: of a job of which nothing is known any more.
    """
    hosts = [] if job is None else hosts_of(job)
    folders = {tempfile.gettempdir(), *(os.path.dirname(os.path.dirname(host.log)) for host in hosts)}
    user = (os.environ.get("USER") or str(os.getuid())).replace("/", "_")
    return sorted(os.path.join(folder, user) for folder in folders)


def nothing_of(job: JobTrait | str, wanted: Wanted) -> str | None:
    """Why nothing there is of what is wanted, and what there is. None: something is."""
    if (wanted.mesh, wanted.host, wanted.rank) == (None, None, None):
        return None
    there = []
    for source in find(job, wanted.last_run):
        for each in _writers(source) if source.is_shared else (source,):
            if each.is_wanted(wanted):
                return None
            there.append(each)
    asked = {"--mesh": wanted.mesh, "--host": wanted.host, "--rank": wanted.rank}
    options = " ".join(f"{option} {value}" for option, value in asked.items() if value is not None)
    written = [each for each in there if _has_text(each)]
    if not written:
        return f"nothing in the files of the job is of {options}: {nothing_yet(job)}"
    had = {(each.hosts, each.host) for each in written}
    hosts = [place[0] for place in dict.fromkeys((each.hosts, each.host) for each in there) if place in had]
    workers = {(each.mesh, each.rank): each for each in written if each.kind == "worker"}.values()
    counts = _counts(hosts, "host") + _counts([each.mesh for each in workers], "rank")
    others = dict.fromkeys(each.kind for each in written if each.hosts is None and each.mesh is None)
    by = ", ".join([*counts, *others])
    return f"nothing in the files of the job is of {options}; there is what was written by {by}"


def nothing_in(job: JobTrait | str, asked: str) -> str:
    """Why no line was found. ``asked``: the options that say which are wanted."""
    if asked and any(map(_has_text, find(job))):
        return f"no line in the files of the job matches {asked}"
    return nothing_yet(job)


def nothing_yet(job: JobTrait | str) -> str:
    """What to do where nobody has written anything."""
    if isinstance(job, str):
        return "nothing is written there"
    return (
        "nothing is written there so far; what workers print is, of scripts that have called "
        f"configure(enable_file_capture=True) before spawn_procs, in {' or '.join(folders_of(job))}, which goes by "
        "USER and TMPDIR: have them as they had"
    )


def _has_text(source: Source) -> bool:
    for path in (source.path, source.path + ".1"):
        with contextlib.suppress(OSError):
            if os.path.getsize(path) > 0:
                return True
    return False


def _counts(meshes: list[str | None], what: str) -> list[str]:
    return [
        f"{mesh} ({count} {what}{'s' * (count != 1)})" for mesh, count in Counter(meshes).items() if mesh is not None
    ]


def _writers(shared: Source) -> Iterator[Source]:
    """Those whose lines stand in it, or in what was put aside when it was full."""
    found = set()
    with contextlib.ExitStack() as files:
        for file in [_opened(shared.path + end, files) for end in (".1", "")]:
            for line in _TIMED_NEXT.finditer(b"\n" + (b"" if file is None else file.read())):
                if (who := line[3]) not in found:
                    found.add(who)
                    yield shared.of(who.decode(errors="replace"))


def _captured(folder: str, job: str) -> Iterator[Source]:
    try:
        if os.stat(folder).st_uid != os.geteuid():  # whatever is in there, Monarch has not written it
            return
        entries = list(os.scandir(folder))
    except OSError:
        return
    written: dict[str, float] = {}  # by a script, or a mesh of processes -> when
    sources = []
    for entry in entries:
        named = _OF_HOST.fullmatch(entry.name) or _OF_PROCESS.fullmatch(entry.name)
        if named is None or named[1] != job or not entry.is_file(follow_symlinks=False):
            continue
        hosts, number = named[2], int(named[3] or 0)
        if named.re is _OF_HOST:
            by, mesh, rank = named[4], None, None
        else:
            by, mesh, rank = named[5], named[4], int(named[6])
        try:
            written[by] = max(written.get(by, 0.0), entry.stat().st_mtime)
        except FileNotFoundError:  # it was removed meanwhile
            continue
        host = None if hosts is None else number
        source = Source(entry.path, "worker", hosts, host, mesh, rank, is_shared=mesh is None)
        sources.append((by, number if mesh is None else rank or 0, source))
    for by, number, source in sources:
        # Of one name, the later ones come later.
        source.run, source.written = by, written[by]
        source.order = (source.mesh or "", written[by], by, number)
        yield source


class Reader:
    """Reads a file as it grows. One that was replaced, or cut to nothing, is read from its start.

    When it was put aside as ``.1``, the rest of that comes first; so does all of one that was there before, or that
    was begun and put aside since the last look. It stays open, so no other one is taken for it by a number used again.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.file: BinaryIO | None = None  # which is read
        self.at = 0
        self.aside: tuple[int, ...] | None = None  # that which was .1, and has been read
        self.rest = b""  # the beginning of a line
        self.last_time: float | None = None
        self.writers: dict[bytes, tuple[Source, bool]] = {}  # of one that is shared; are they wanted?
        self.last: tuple[bytes, str] | None = None  # whose the last line was, and its time
        self.newest = b""  # time of a line
        self.kept_after = b""  # lines of what is gone are shown where they stand again, if they are newer than this
        self.parked: os.stat_result | None = None  # of the file that was read, to its end
        self.last_bytes = b""  # of that

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """What comes after it is read as if for the first time."""
        if self.file is not None:
            self.file.close()
            self.file, self.at, self.aside = None, 0, None

    def park(self) -> None:
        """Gives its descriptor back, until there is something new."""
        if self.file is not None:
            self.parked = os.fstat(self.file.fileno())
            self.last_bytes = self._before(self.file)
            self.file.close()
            self.file = None

    def _before(self, file: BinaryIO) -> bytes:
        """What stands before the place that was read to: of another file with its number, something else."""
        begin = max(0, self.at - _KNOWN_BY)
        return os.pread(file.fileno(), self.at - begin, begin)

    def _has_news(self) -> bool:
        """Of one that was parked, which is opened again then, if it is still there."""
        if (parked := self.parked) is None:
            return True
        for end in ("", ".1"):
            try:
                found = os.stat(self.source.path + end)
            except OSError:
                continue
            if not os.path.samestat(found, parked):
                continue
            if not end and found.st_size == parked.st_size == self.at:
                return False
            with contextlib.ExitStack() as files:
                file = _opened(self.source.path + end, files)
                if file is not None and self._before(file) != self.last_bytes:
                    continue
                if file is not None:
                    self._hold(file)
            break
        else:
            if os.path.exists(self.source.path + ".1"):
                self._tell_of_gap()
        self.parked = None
        return True

    def lines(self, wanted: Wanted, at_end: bool = False) -> Iterator[Line]:
        """What is new. ``at_end``: also a last line that has no end yet."""
        was_read = self.file is not None or self.parked is not None
        if not self._has_news():
            yield from self._finish(wanted, at_end)
            return
        self.last_time = None  # what has come since the last look is no part of what stands before it
        # Of one that was parked and is gone, what it had at its end may stand in those that came after it, as kept.
        self.kept_after = _NEVER if self.file is not None else self.newest if was_read else b""
        with contextlib.ExitStack() as files:
            # In this order: one that is put aside meanwhile is the same, and not the one before.
            now, aside = (_opened(self.source.path + end, files) for end in ("", ".1"))
            if not _is_same(self.file, now):
                if self.file is not None:
                    yield from self._read(self.file, wanted)  # the rest of it, whatever it is called now
                if aside is not None and not _is_same(aside, now) and not self._has_read(aside):
                    self._look_for_gap(aside)
                    yield from self._read(aside, wanted)
            if aside is not None and not _is_same(aside, now):
                self.aside = _put_aside(aside)
            if now is None:
                yield from self._finish(wanted, True)
                return
            yield from self._read(now, wanted)
        yield from self._finish(wanted, at_end)

    def _has_read(self, aside: BinaryIO) -> bool:
        return _is_same(self.file, aside) or _put_aside(aside) == self.aside

    def _look_for_gap(self, aside: BinaryIO) -> None:
        """Says so if ``aside`` is not the one that came after what was read last: that is gone, and others with it."""
        if self.file is None:
            return
        read = os.fstat(self.file.fileno())
        # That which came after it took its place as .1, by which it was removed; nothing is written to it since then.
        if read.st_nlink == 0 and os.fstat(aside.fileno()).st_mtime_ns > read.st_ctime_ns:
            self._tell_of_gap()
            self.kept_after = self.newest

    def _tell_of_gap(self) -> None:
        _tell(f"{self.source.path} was full more than twice since it was last read: lines are missing here")

    def _read(self, file: BinaryIO, wanted: Wanted) -> Iterator[Line]:
        found = os.fstat(file.fileno())
        is_new = not _is_same(self.file, file)
        if is_new or found.st_size < self.at:
            yield from self._finish(wanted, True)
            self.at = 0
        if is_new:
            self._hold(file)
        is_old = wanted.since is not None and found.st_mtime < wanted.since
        file.seek(self.at)
        while block := file.read(_BLOCK):
            self.at += len(block)
            yield from self._cut(block, wanted, is_old)

    def _hold(self, file: BinaryIO) -> None:
        before, self.file = self.file, open(os.dup(file.fileno()), "rb", buffering=0)
        if before is not None:
            before.close()

    def _cut(self, block: bytes, wanted: Wanted, is_old: bool) -> Iterator[Line]:
        more, *begun = block.split(b"\n")
        self.rest += more[: _LINE_MAX - len(self.rest)]
        for begin in begun:
            line, self.rest = self.rest, begin[:_LINE_MAX]
            if not is_old:
                yield from self._line(line, wanted)

    def _finish(self, wanted: Wanted, at_end: bool) -> Iterator[Line]:
        if at_end and self.rest:
            rest, self.rest = self.rest, b""
            yield from self._line(rest, wanted)

    def _line(self, line: bytes, wanted: Wanted) -> Iterator[Line]:
        if self.source.is_shared:
            yield from self._timed_line(line, wanted)
            return
        text = line.decode(errors="replace").rstrip("\r")
        if wanted.since is not None:
            self.last_time = _time_of(text) or self.last_time
            if self.last_time is not None and self.last_time < wanted.since:
                return
        time = None
        if self.source.kind in ("host", "adopted") and (own := _OWN.match(text)) is not None:
            time, text = own[1], text[own.end() :]
        if wanted.pattern is None or wanted.pattern.search(text):
            yield Line(self.source, text, time)

    def _timed_line(self, line: bytes, wanted: Wanted) -> Iterator[Line]:
        if (begin := _TIMED.match(line)) is not None:
            if begin[2] is not None and begin[1] <= self.kept_after:
                return
            self.newest = max(self.newest, begin[1])
            self.last = begin[3], begin[1].decode()
        if self.last is None:  # it has lost its beginning, and there is none before it
            return
        who, time = self.last
        if wanted.since is not None and time < _utc_text(wanted.since):
            return
        if (known := self.writers.get(who)) is None:
            source = self.source.of(who.decode(errors="replace"))
            known = self.writers[who] = source, source.is_wanted(wanted)
        if not known[1]:
            return
        text = line[0 if begin is None else begin.end() :].decode(errors="replace").rstrip("\r")
        if wanted.pattern is None or wanted.pattern.search(text):
            yield Line(known[0], text, time)


@lru_cache(maxsize=1)
def _utc_text(time: float) -> str:
    return datetime.fromtimestamp(time, timezone.utc).isoformat(timespec="milliseconds")[:-6] + "Z"


def _opened(path: str, files: contextlib.ExitStack) -> BinaryIO | None:
    """None: it is not there, or it is nothing that Monarch has written, or cannot be read, which is said once."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_NOFOLLOW if path.endswith(".1") else 0)
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        why = "it is a symlink" if error.errno == errno.ELOOP else error.strerror
        _tell_once(f"{path} is left out: {why}")
        return None
    # Without a buffer, which would give what was there before a file was cut.
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return files.enter_context(open(fd, "rb", buffering=0))
    os.close(fd)
    _tell_once(f"{path} is left out: it is no regular file")
    return None


def _is_same(one: BinaryIO | None, other: BinaryIO | None) -> bool:
    if one is None or other is None:
        return False
    return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))


def _put_aside(file: BinaryIO) -> tuple[int, ...]:
    """Which one it is: nothing is written to it any more."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _tell(text: str) -> None:
    sys.stdout.flush()  # where it belongs among the lines
    print(f"monarch logs: {text}", file=sys.stderr)


def _tell_once(text: str) -> None:
    if text not in _told:
        _told.add(text)
        _tell(text)


def _time_of(text: str) -> float | None:
    if (found := _TIME.match(text)) is None:
        return None
    try:
        return datetime.fromisoformat(found[1] + (found[2] or "").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def follow(job: JobTrait | str, wanted: Wanted, goes_on: bool, period_s: float = 0.2) -> Iterator[Line | None]:
    """All lines that are wanted. ``goes_on``: waits for more until the job ends, and gives None before each wait."""
    readers: dict[str, Reader] = {}
    saved_in = os.path.realpath(DEFAULT_JOB_PATH)  # another context may become the active one
    while True:
        is_last = not goes_on or _has_ended(job, saved_in)
        for source in find(job, wanted.last_run):
            if source.path not in readers and source.is_wanted(wanted):
                readers[source.path] = Reader(source)
        for reader in list(readers.values()):
            yield from reader.lines(wanted, is_last)
            # There may be more of them than one process may have open.
            if is_last:
                reader.close()
            elif len(readers) > _OPEN_MAX:
                reader.park()
        if is_last:
            return
        yield None
        time.sleep(period_s)


def _has_ended(job: JobTrait | str, saved_in: str) -> bool:
    """Its hosts' daemons, where it has some here, or the client of its batch mode; else when its file is gone."""
    from monarch.job import LocalJob, _ending

    if isinstance(job, str):
        return True
    known = [_ending.Process(host.pid, host.started) for host in hosts_of(job)]
    if isinstance(job, LocalJob) and job._client is not None:
        known.append(job._client)
    return not any(map(_ending.is_alive, known)) if known else not _is_saved(str(job.apply_id), saved_in)


def _is_saved(apply_id: str, saved_in: str) -> bool:
    """Whether the job there, or in the working directory, is that one."""
    return any(_saved.apply_id_in(path) == apply_id for path in (saved_in, *_saved.places(DEFAULT_JOB_PATH)))
