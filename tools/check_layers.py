#!/usr/bin/env python3
"""Checks the structure of the C++ sources: which layer may include which, and the few calls that belong to one file.

    tools/check_layers.py [root]

Prints `file:line: what is wrong; what to do instead` for each violation and exits 1 if there is one. The layers and
their order are those of src/monarch/CMakeLists.txt. Comments are ignored, strings are not.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from source_files import source_files

SUFFIXES = {".h", ".cc", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)
PYTHON_HEADER = re.compile(r"^(Python\.h|nanobind/|pybind11/)")
TEST_HEADER = re.compile(r"^(gtest|gmock)/")


class Ban(NamedTuple):
    """A call that only some files may contain."""

    pattern: re.Pattern[str]
    roots: tuple[str, ...]  # path prefixes that the ban covers
    allowed: re.Pattern[str]  # files that are exempt
    message: str


BANS = (
    Ban(
        re.compile(
            r"\b(PyGILState_(?:Ensure|Release)|PyEval_(?:Save|Restore)Thread|Py_(?:BEGIN|END)_ALLOW_THREADS"
            r"|gil_scoped_(?:release|acquire))\b"
        ),
        ("src/", "bindings/"),
        re.compile(r"^bindings/python/gil\.(h|cc)$"),
        "only bindings/python/gil.* takes and drops the GIL; use what gil.h offers, which counts it",
    ),
    Ban(
        re.compile(r"\b(clock_gettime|gettimeofday|(?:steady|system|high_resolution)_clock::now)\b"),
        ("src/",),
        re.compile(r"^src/monarch/base/clock\.(h|cc)$|_(test|bench|fuzz)\.cc$"),
        "only src/monarch/base/clock.* reads the clock; take a Clock as an argument: the simulator gives its own",
    ),
)


class Violation(NamedTuple):
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def read_layers(root: Path) -> list[str]:
    """The layers, lowest first: set(MONARCH_LAYERS ...) in src/monarch/CMakeLists.txt is the one list of them."""
    match = re.search(r"set\(MONARCH_LAYERS ([a-z ]+)\)", (root / "src/monarch/CMakeLists.txt").read_text())
    if match is None:
        raise SystemExit("check_layers: no set(MONARCH_LAYERS ...) in src/monarch/CMakeLists.txt")
    return match[1].split()


def without_comments(text: str) -> str:
    """The text with comments blanked; strings and line numbers stay."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n") if match[0].startswith("/") else match[0]

    return COMMENT_OR_STRING.sub(blank, text)


def layer_of(path: str) -> str | None:
    """'loop' for src/monarch/loop/reactor.h; '' for a file in src/monarch itself; None outside."""
    match = re.match(r"src/monarch/(?:([^/]+)/)?", path)
    return (match[1] or "") if match else None


def check_include(path: str, quote: str, target: str, layers: list[str]) -> str | None:
    """What is wrong with `path` including `target`, or None."""
    own = layer_of(path)
    if own is not None:
        if PYTHON_HEADER.match(target):
            return "the core knows nothing of Python; what needs it goes to bindings/python"
        if TEST_HEADER.match(target) and own != "testing" and not path.endswith("_test.cc"):
            return "only *_test.cc and testing/ include GoogleTest; move the test code there"
        if quote == '"' and not target.startswith("monarch/"):
            return f'name it from the root of the tree: "monarch/{own or "<layer>"}/{Path(target).name}"'
    if not target.startswith("monarch/"):
        return None
    other = layer_of("src/" + target) or ""
    if "/internal/" in target and other != own:
        return f"internal/ headers are private to their layer; include a public header of {other or 'monarch'}"
    if own is None or own == other or own in ("", "testing"):
        return None
    if other == "testing":
        if path.endswith(("_test.cc", "_fuzz.cc", "_bench.cc")):
            return None
        return "nothing that ships uses testing; take the interface as an argument and let the test pass the fake"
    if own not in layers:
        return f"layer {own} is unknown; add it to MONARCH_LAYERS in src/monarch/CMakeLists.txt"
    if other not in layers or layers.index(other) > layers.index(own):
        return (
            f"layer {own} may not use {other or 'the umbrella header'} (order: {' '.join(layers)}); "
            f"move the code up, or declare an interface in {own} that the higher layer implements"
        )
    return None


def check_file(path: str, text: str, layers: list[str]) -> Iterator[Violation]:
    bans = [ban for ban in BANS if path.startswith(ban.roots) and not ban.allowed.search(path)]
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        if include := INCLUDE.match(line):
            if message := check_include(path, include[1], include[2], layers):
                yield Violation(path, number, f"includes {include[2]}: {message}")
            continue
        for ban in bans:
            if found := ban.pattern.search(line):
                yield Violation(path, number, f"{found[1]}: {ban.message}")


def check_tree(root: Path) -> list[Violation]:
    layers = read_layers(root)
    violations = []
    for path, text in source_files(root, SUFFIXES):
        violations += check_file(path, text, layers)
    return violations


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    violations = check_tree(root)
    for violation in violations:
        print(violation)
    print(f"check_layers: {len(violations)} violations" if violations else "check_layers: clean")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
