"""Rules of ``.gitignore`` files, as gitignore(5) has them."""

from __future__ import annotations

import functools
import os
import re
from typing import NamedTuple

__all__ = ["ALWAYS", "Rules", "outer_rules"]

ALWAYS = frozenset({b".git", b"__pycache__", b".monarch"})  # names that are left out wherever they are
FILE = b".gitignore"

_CLASSES = {
    b"alpha": b"a-zA-Z", b"digit": b"0-9", b"alnum": b"a-zA-Z0-9", b"upper": b"A-Z", b"lower": b"a-z",
    b"space": rb"\s", b"xdigit": b"0-9a-fA-F", b"punct": rb"!-/:-@\[-`{-~",
}  # fmt: skip


class _Run(NamedTuple):
    """Neighbouring patterns of one sign: which of them matches makes no difference."""

    negated: bool
    names: re.Pattern[bytes] | None  # of those without a slash: they match the last part of a path
    paths: re.Pattern[bytes] | None

    def matches(self, path: bytes, name: bytes) -> bool:
        return bool((self.names and self.names.match(name)) or (self.paths and self.paths.match(path)))


class Rules(NamedTuple):
    """The rules of one file, for paths below the folder that it stands in."""

    prefix: bytes  # what stands before a path of the tree, seen from that folder: b"" or b"a/b/"
    skip: int  # or how many bytes of the path lead to that folder
    runs: tuple[_Run, ...]

    def decide(self, path: bytes, name: bytes, is_folder: bool) -> bool | None:
        """Whether it is ignored; None: no rule here is about it. ``name`` is the last part of ``path``."""
        end = b"/" if is_folder else b""
        path, name = self.prefix + path[self.skip :] + end, name + end
        for run in reversed(self.runs):
            if run.matches(path, name):
                return not run.negated
        return None


def rules(text: bytes, prefix: bytes = b"", skip: int = 0) -> Rules:
    """Of the text of a file."""
    return Rules(prefix, skip, _runs(text))


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
def _runs(text: bytes) -> tuple[_Run, ...]:
    runs: list[tuple[bool, list[bytes], list[bytes]]] = []
    for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if (rule := _parse(line)) is None:
            continue
        negated, is_path, pattern = rule
        if not runs or runs[-1][0] != negated:
            runs.append((negated, [], []))
        _, names, paths = runs[-1]
        (paths if is_path else names).append(pattern)
    return tuple(_Run(negated, _any_of(names), _any_of(paths)) for negated, names, paths in runs)


def _any_of(patterns: list[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(b"(?:" + b"|".join(patterns) + rb")\Z", re.DOTALL) if patterns else None


def _parse(line: bytes) -> tuple[bool, bool, bytes] | None:
    """Whether it is negated, whether it is about whole paths, and its expression; None: it is no rule."""
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
    line = line.removeprefix(b"/")
    if (pattern := _translate(line)) is None:
        return None
    return negated, is_path, pattern + (b"/" if only_folders else b"/?")


def _translate(glob: bytes) -> bytes | None:
    """A regular expression; None: it matches nothing."""
    out, at = b"", 0
    while at < len(glob):
        if glob.startswith(b"**/", at) and (at == 0 or glob[at - 1 : at] == b"/"):
            out, at = out + b"(?:[^/]+/)*", at + 3
        elif glob[at:] == b"**" and glob[at - 1 : at] == b"/":
            out, at = out + b".+", at + 2
        elif glob[at : at + 1] == b"*":
            out, at = out + b"[^/]*", at + 1
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
