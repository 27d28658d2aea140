"""Rules of ``.gitignore`` files, as gitignore(5) has them."""

from __future__ import annotations

import functools
import itertools
import os
import re
from typing import NamedTuple

__all__ = ["ALWAYS", "Rules", "outer_rules"]

ALWAYS = frozenset({b".git", b"__pycache__", b".monarch"})  # names that are left out wherever they are
FILE = b".gitignore"

_SPECIAL = re.compile(rb"[*?\[\\]")
_STAR, _DEEP = b"[^/]*", b"(?:[^/]+/)*"
_groups = itertools.count()  # of expressions: each has a name of its own
_ENDING = re.compile(rb"\*\.[^*?\[\\.]*")  # such as *.log
_CLASSES = {
    b"alpha": b"a-zA-Z", b"digit": b"0-9", b"alnum": b"a-zA-Z0-9", b"upper": b"A-Z", b"lower": b"a-z",
    b"space": rb"\s", b"xdigit": b"0-9a-fA-F", b"punct": rb"!-/:-@\[-`{-~",
}  # fmt: skip


class _Run(NamedTuple):
    """What is left of neighbouring patterns of one sign: which of them matches makes no difference."""

    number: int  # of all runs, those without such patterns too
    names: re.Pattern[bytes] | None  # of those without a slash: they match the last part of a path
    paths: re.Pattern[bytes] | None

    def matches(self, path: bytes, name: bytes) -> bool:
        return bool((self.names and self.names.match(name)) or (self.paths and self.paths.match(path)))


class _Table(NamedTuple):
    """The last run that matches decides. Most patterns are words and endings, for which no expression is tried.

    A name or path of a folder has a slash behind it here.
    """

    names: dict[bytes, int]  # a name -> the last run that has it
    paths: dict[bytes, int]
    ends: dict[bytes, int]  # from the last dot of a name on
    runs: tuple[_Run, ...]  # the last one first
    first_negated: bool  # every other run is

    def decide(self, path: bytes, name: bytes) -> bool | None:
        best = max(self.names.get(name, -1), self.paths.get(path, -1), self.ends.get(name[name.rfind(b".") :], -1))
        for run in self.runs:
            if run.number <= best:
                break
            if run.matches(path, name):
                best = run.number
                break
        return None if best < 0 else (best % 2 == 1) == self.first_negated


class Rules(NamedTuple):
    """The rules of one file, for paths below the folder that it stands in."""

    prefix: bytes  # what stands before a path of the tree, seen from that folder: b"" or b"a/b/"
    skip: int  # or how many bytes of the path lead to that folder
    table: _Table

    def decide(self, path: bytes, name: bytes, is_folder: bool) -> bool | None:
        """Whether it is ignored; None: no rule here is about it. ``name`` is the last part of ``path``."""
        end = b"/" if is_folder else b""
        return self.table.decide(self.prefix + path[self.skip :] + end, name + end)


def rules(text: bytes, prefix: bytes = b"", skip: int = 0) -> Rules:
    """Of the text of a file."""
    return Rules(prefix, skip, _table(text))


def outer_rules(root: bytes) -> list[tuple[bytes, bytes]] | None:
    """Texts of the files above ``root`` that count for it, outermost first, each with what leads from there to it.

    Those up to the folder that has ``.git``; none where ``root`` is in no checkout. None: it is an environment of
    Python or conda, whose packages have such files too, and which names itself in one: they do not count.
    """
    if any(os.path.lexists(os.path.join(root, name)) for name in (b"pyvenv.cfg", b"conda-meta")):
        return None
    found: list[tuple[bytes, bytes]] = []
    folder, prefix = os.path.realpath(root), b""
    while not os.path.lexists(os.path.join(folder, b".git")):
        above, name = os.path.split(folder)
        if above == folder:
            return []
        folder, prefix = above, name + b"/" + prefix
        if text := read_rules(folder):
            found.insert(0, (prefix, text))
    return found


def read_rules(folder: bytes) -> bytes:
    """The text of its file; empty if there is none. A link is none, as for git."""
    try:
        handle = os.open(os.path.join(folder, FILE), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with open(handle, "rb") as file:
        return file.read()


@functools.lru_cache(maxsize=256)
def _table(text: bytes) -> _Table:
    words: tuple[dict[bytes, int], dict[bytes, int]] = {}, {}
    ends: dict[bytes, int] = {}
    left: list[tuple[list[bytes], list[bytes]]] = []
    signs: list[bool] = []
    for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if (rule := _parse(line)) is None:
            continue
        if not signs or signs[-1] != rule.negated:
            signs.append(rule.negated)
            left.append(([], []))
        number = len(signs) - 1
        for each in (rule.glob + b"/",) if rule.only_folders else (rule.glob, rule.glob + b"/"):
            if not _SPECIAL.search(rule.glob):
                words[rule.is_path][each] = number
            elif not rule.is_path and _ENDING.fullmatch(rule.glob):
                ends[each[1:]] = number
            elif (pattern := _translate(rule.glob)) is not None:
                left[number][rule.is_path].append(pattern + (b"/" if rule.only_folders else b"/?"))
                break
    runs = [_Run(number, _any_of(names), _any_of(paths)) for number, (names, paths) in enumerate(left)]
    runs = [run for run in reversed(runs) if run.names or run.paths]
    return _Table(*words, ends, tuple(runs), signs[:1] == [True])


def _any_of(patterns: list[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(b"(?:" + b"|".join(patterns) + rb")\Z", re.DOTALL) if patterns else None


class _Rule(NamedTuple):
    negated: bool
    is_path: bool  # it is about whole paths
    only_folders: bool
    glob: bytes


def _parse(line: bytes) -> _Rule | None:
    """None: it is no rule."""
    line = line.removesuffix(b"\r")
    while line.endswith(b" ") and not line.endswith(b"\\ "):
        line = line[:-1]
    if not line or line.startswith(b"#"):
        return None
    negated = line.startswith(b"!")
    line = line[1:] if negated else line
    only_folders = line.endswith(b"/")
    line = line.rstrip(b"/") if only_folders else line
    is_path = b"/" in line
    glob = line.removeprefix(b"/")
    return _Rule(negated, is_path, only_folders, glob) if _translate(glob) is not None else None


def _translate(glob: bytes) -> bytes | None:
    """A regular expression; None: it matches nothing.

    What stands between two stars of one name is looked for once, where it comes first: the second star takes whatever
    else there is. Without that, a few stars would be tried at all places, each for all of the others. So it is with
    names between two ``**``.
    """
    out, at = b"", 0
    star = deep = -1  # where in `out` the last star of this name stands, and the last `**`
    while at < len(glob):
        if glob[at : at + 1] == b"/" or glob[at : at + 2] == b"\\/":
            star = -1
        if glob.startswith(b"**/", at) and (at == 0 or glob[at - 1 : at] == b"/"):
            at += 3
            if deep >= 0:
                if not (between := out[deep + len(_DEEP) :]):
                    continue
                out = out[:deep] + _first(b"(?:[^/]+/)*?" + between)
            deep = len(out)
            out += _DEEP
        elif glob[at:] == b"**" and glob[at - 1 : at] == b"/":
            out, at = out + b".+", at + 2
        elif glob[at : at + 1] == b"*":
            if star >= 0:
                out = out[:star] + _first(b"[^/]*?" + out[star + len(_STAR) :])
            star = len(out)
            out, at = out + _STAR, at + 1
        elif glob[at : at + 1] == b"?":
            out, at = out + b"[^/]", at + 1
        elif glob[at : at + 1] == b"[":
            one, at = _bracket(glob, at)
            if not one:
                return None
            out += one
        else:
            at += glob[at : at + 1] == b"\\"
            if at == len(glob):
                return None  # a backslash at the end
            out, at = out + re.escape(glob[at : at + 1]), at + 1
    return out or None


def _first(pattern: bytes) -> bytes:
    """That, where it matches first, and no other place is tried."""
    group = b"s%d" % next(_groups)
    return b"(?=(?P<" + group + b">" + pattern + b"))(?P=" + group + b")"


def _bracket(glob: bytes, at: int) -> tuple[bytes, int]:
    """The set that begins at ``at``, and where it ends; an empty one if it does not end."""
    at += 1
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    inside, first = b"", True
    while first or glob[at : at + 1] != b"]":
        first = False
        if at >= len(glob):
            return b"", at
        if named := re.match(rb"\[:(\w+):\]", glob[at:]):
            if named[1] not in _CLASSES:
                return b"", at
            inside, at = inside + _CLASSES[named[1]], at + len(named[0])
            continue
        is_range = glob[at : at + 1] == b"-" and inside != b"" and glob[at + 1 : at + 2] not in (b"]", b"")
        at += glob[at : at + 1] == b"\\"
        inside, at = inside + (b"-" if is_range else re.escape(glob[at : at + 1])), at + 1
    try:
        re.compile(b"[" + inside + b"]")
    except re.error:  # a range that ends before it begins
        return b"", at
    return b"(?!/)[" + (b"^" if negated else b"") + inside + b"]", at + 1
