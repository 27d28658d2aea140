"""``HostMesh.sync_workspace``: one agent on each host, which makes folders there the same as those of the client."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from monarch import _core
from monarch._actors.actor import Actor
from monarch._actors.declarations import endpoint
from monarch._files.conda import is_conda_environment, prefix_of
from monarch._files.ignore import outer_rules
from monarch._files.places import check_places, default_root, identities
from monarch._files.receiver import Outcome, Part, Receiver
from monarch._files.tree import BLOCK, Entry, Index, Tree, read_file, scan
from monarch._meshes.proc_mesh import ProcMesh
from monarch._values.geometry import Point

__all__ = ["Failed", "check", "add_conda", "sync"]

_ON_THE_WAY = 2  # batches that hosts have not confirmed
_TOLD_AFTER_S = 1.0
_PART_BYTES = 200  # what a part costs beside its data, about


class Failed(NamedTuple):
    """What an endpoint returns in the place of an answer, for people."""

    text: str


def _text_of(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f": {os.fsdecode(error.filename)!r}"
        return f"{error.strerror}{where}"
    return str(error)


def _or_failed(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (OSError, ValueError) as error:
        return Failed(_text_of(error))


class Agent(Actor):
    """Writes on its host."""

    def __init__(self) -> None:
        self._receiver = Receiver(default_root())

    @endpoint
    def claim(
        self, number: str, machine: str, sources: list[tuple[str, list[tuple[int, int]]]], names: list[str]
    ) -> Any:
        """Whether it is the one that writes, of those that share its folder."""

        def claim() -> bool:
            is_first = self._receiver.claim(number)
            if machine == _core.machine_id():
                self._receiver.check_apart(sources, names)
            return is_first

        return _or_failed(claim)

    @endpoint
    def compare(self, trees: list[Tree]) -> Any:
        """Which files of each it wants."""
        return _or_failed(lambda: self._receiver.compare(trees))

    @endpoint
    def put(self, parts: list[Part]) -> Any:
        """Takes some of what it wants."""
        return _or_failed(lambda: self._receiver.put(parts))

    @endpoint
    def commit(self) -> Any:
        """Puts all in place."""
        return _or_failed(self._receiver.commit)

    @endpoint
    def end(self) -> Any:
        """Leaves nothing on its way behind."""
        return _or_failed(self._receiver.end)


def check(workspace: Any, conda: bool) -> dict[str, str]:
    """Folders of a ``Workspace``, and their places.

    ``TypeError`` if it is none; ``ValueError`` if they are no folders, or if there are none, by mistake.
    """
    dirs = getattr(workspace, "dirs", None)
    if not isinstance(dirs, dict) or not hasattr(workspace, "_is_null"):
        raise TypeError(f"sync_workspace takes a monarch.tools.config.Workspace, not {workspace!r}")
    if not dirs and not conda and not workspace._is_null:
        raise ValueError(
            "sync_workspace: this workspace has no folders. Name some, as in Workspace(dirs=['src']), or ask for its "
            "conda environment by conda=True; Workspace.null() is one of nothing"
        )
    for source in dirs:
        if not os.path.isdir(source):
            raise ValueError(f"sync_workspace: {os.fspath(source)!r} is no folder")
    return {os.fspath(source): name for source, name in dirs.items()}


def add_conda(dirs: dict[str, str], env: Any) -> str:
    """The folder of the environment, which gets its own name. ``RuntimeError`` says what is missing for it."""
    if env is None:
        raise RuntimeError(
            "conda=True: there is no conda environment: CONDA_PREFIX is not set, and Workspace(env=...) names none"
        )
    prefix = env.conda_prefix
    if not is_conda_environment(prefix):
        raise RuntimeError(
            f"conda=True: {prefix!r} is no conda environment, since it has no folder 'conda-meta'. Virtual "
            "environments and editable installs are folders: name them in Workspace(dirs=[...])"
        )
    prefix = os.path.abspath(prefix)
    dirs.update(check_places([*dirs.items(), (prefix, os.path.basename(prefix))]))
    return prefix


class _Hosts:
    """Agents, by the rank of their host."""

    def __init__(self, procs: ProcMesh) -> None:
        procs._unwatch()  # calls say what has become of it
        mesh: Any = procs.spawn("workspace", Agent)
        self._mesh = mesh
        self.ranks = list(range(len(self._mesh)))

    def begin(self, name: str, *args: Any, at: Sequence[int] | None = None) -> Iterator[Any]:
        """Asks them all, or those of these ranks; then gives each one's answer, and raises if one has failed."""
        ranks = self.ranks if at is None else list(at)
        meshes = [self._mesh] if ranks == self.ranks else [self._mesh.slice(**self._point(rank)) for rank in ranks]
        calls = [getattr(mesh, name).call(*args) for mesh in meshes]
        return self._answers(ranks, calls)

    def ask(self, name: str, *args: Any, at: Sequence[int] | None = None) -> list[Any]:
        """And waits."""
        return list(self.begin(name, *args, at=at))

    def _answers(self, ranks: list[int], calls: list[Any]) -> Iterator[Any]:
        answers = [answer for call in calls for answer in call.get().values()]
        for rank, answer in zip(ranks, answers):
            if isinstance(answer, Failed):
                place = ", ".join(f"{label}={index}" for label, index in self._point(rank).items())
                raise RuntimeError(f"sync_workspace{f', on host {place}' if place else ''}: {answer.text}")
            yield answer

    def _point(self, rank: int) -> dict[str, int]:
        return dict(Point(rank, self._mesh.extent).items())


class _Source:
    """A folder of the client, and what it knows of it."""

    def __init__(self, path: str, name: str, is_environment: bool = False) -> None:
        self.path = os.fsencode(os.path.realpath(path))
        self.index = Index(_index_path(self.path))
        outer = outer_rules(self.path)
        entries, self.skipped = scan(self.path, outer, self.index)
        self.tree = Tree(name, outer, entries, prefix_of(path) if is_environment else None)

    def parts(self, number: int, path: bytes) -> Iterator[Part]:
        """The file in blocks; anew from its beginning, if it has changed meanwhile."""
        held: bytes | None = None
        offset = 0
        try:
            for block in read_file(os.path.join(self.path, path)):
                if not isinstance(block, bytes):
                    of, digest = block
                    self.index.put(path, of, digest)
                    final = Entry("f", of.st_mode & 0o777, of.st_size, digest)
                    yield Part(number, path, offset, held or b"", final, of.st_mtime_ns)
                elif not block:
                    held, offset = None, 0
                elif held is None:
                    held = block
                else:
                    yield Part(number, path, offset, held, None)
                    held, offset = block, offset + len(held)
        except FileNotFoundError:
            yield Part(number, path, 0, b"", None, is_gone=True)


def _index_path(source: bytes) -> str:
    import hashlib

    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "monarch", "workspace", hashlib.blake2b(source, digest_size=16).hexdigest() + ".index")


class _Progress:
    """One line on stderr, of what takes longer than a second."""

    def __init__(self, hosts: int) -> None:
        self._hosts = f"{hosts} host{'s' * (hosts != 1)}"
        self._began = time.monotonic()
        self._is_told = False

    def tell(self, done: int, of: int, files: int) -> None:
        """``done`` of so many bytes, of so many files, are there."""
        if self._is_told or time.monotonic() - self._began < _TOLD_AFTER_S:
            return
        self._is_told = True
        _core.log_line(
            f"sync_workspace: {done / 2**20:.1f} of {of / 2**20:.1f} MiB ({files} files that differ) "
            f"sent to {self._hosts}"
        )


def sync(procs: ProcMesh, dirs: dict[str, str], environment: str | None = None) -> list[str]:
    """Makes the folders the same on each host, by agents in ``procs``. Returns paths there of files that have changed.

    ``environment``: which of them conda has made. ``RuntimeError`` if a host cannot write, or something cannot be read.
    """
    hosts = _Hosts(procs)
    progress = _Progress(len(hosts.ranks))
    sources = [(path, identities(path)) for path in dirs]
    claims = hosts.begin("claim", os.urandom(8).hex(), _core.machine_id(), sources, list(dirs.values()))
    try:
        found = [_Source(path, name, path == environment) for path, name in dirs.items()]
        _warn(found)
        writers = [rank for rank, is_first in zip(hosts.ranks, claims) if is_first]
        wanted = hosts.ask("compare", [source.tree for source in found], at=writers)
        _send(hosts, found, dict(zip(writers, wanted)), progress)
        outcomes: list[Outcome] = hosts.ask("commit", at=writers)
        for source in found:
            source.index.save()
    except BaseException as error:
        with contextlib.suppress(Exception):
            hosts.ask("end")
        if isinstance(error, OSError) and error.filename is not None:
            raise RuntimeError(f"sync_workspace: {_text_of(error)}") from None
        raise
    return sorted({path for outcome in outcomes for path in outcome.changed})


def _warn(found: list[_Source]) -> None:
    skipped = [(source, each) for source in found for each in source.skipped]
    if skipped:
        source, first = skipped[0]
        others = f", and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        _core.log_line(
            f"sync_workspace: left out of {os.fsdecode(source.path)!r}: {first}{others}. Only files, folders and links "
            "that stay inside are sent"
        )


def _send(hosts: _Hosts, found: list[_Source], wanted: dict[int, list[list[bytes]]], progress: _Progress) -> None:
    """All that somebody wants, to whom it may concern."""
    wanting = [rank for rank, lists in wanted.items() if any(lists)]
    files = sorted({(number, path) for lists in wanted.values() for number, each in enumerate(lists) for path in each})
    total = sum(found[number].tree.entries[path].size for number, path in files)
    done, on_the_way = 0, list[Iterator[Any]]()
    for batch in _batches(part for number, path in files for part in found[number].parts(number, path)):
        on_the_way.append(hosts.begin("put", batch, at=wanting))
        if len(on_the_way) > _ON_THE_WAY:
            list(on_the_way.pop(0))
        done += sum(len(part.data) for part in batch)
        progress.tell(done, total, len(files))
    for answers in on_the_way:
        list(answers)
    progress.tell(done, total, len(files))


def _batches(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """Of some MiB."""
    batch: list[Part] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += len(part.data) + len(part.path) + _PART_BYTES
        if size >= BLOCK:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
