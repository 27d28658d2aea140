#!/usr/bin/env python3
"""Checks the structure of the C++ sources: which layer, and which room of a layer, may include which, and the few calls
that belong to one file.

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


# The rooms of a layer are its folders. Each may use itself, and the layers and rooms in its line; the name of its own
# layer means there the files directly in it, the name of another one all of it. The files directly in a layer assemble
# its rooms and may use all of them. A layer without a line here has no rooms to speak of.
ROOMS = {
    "net/local": ("base", "loop", "wire", "net"),
    "net/inproc": ("base", "loop", "wire", "net"),
    "net/shm": ("base", "loop", "wire", "net", "net/local"),
    "net/unix": ("base", "loop", "wire", "net", "net/local", "net/shm"),  # own_bell.h: a link may become one of rings
    "net/tls": ("base", "loop", "wire", "net"),
    "net/tcp": ("base", "loop", "wire", "net", "net/tls"),
    "host/output": ("base", "loop", "wire"),
    "host/membership": ("base", "loop", "wire", "net", "actor"),
    "host/stacks": ("base", "loop", "wire"),
    "host/remote": ("base", "loop", "wire", "net", "actor", "host/output"),
    "host/start": ("base", "loop", "wire", "net", "host/membership", "host/output"),
}

TEST_FILE = r"_(test|bench|fuzz)\.cc$"

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
    Ban(
        re.compile(r"\b(monotonic_ns|cpu_ticks|SystemClock)\b"),
        tuple(f"src/monarch/{layer}/" for layer in ("wire", "net", "actor", "mesh", "host")),
        re.compile(TEST_FILE),
        "above loop nobody reads the clock; take a Clock& or Timers& (loop/timers.h): the simulator gives its own",
    ),
    Ban(
        re.compile(
            r"(\bepoll_create1?\s*\(|\beventfd\s*\(|\btimerfd_create\b|\bsignalfd\s*\(|\bmemfd_create\b|\bsocketpair\s*\("
            r"|\baccept4\s*\(|(?<!\w)::accept\s*\(|\bF_DUPFD\w*|\bpipe2\s*\(|(?<!\w)::pipe\s*\(|\b(?:SYS_)?pidfd_open\b"
            r"|\bftruncate\s*\(|(?<!\w)::open\s*\(|\bopen\(\"|\bopenat\s*\(|\bmmap\s*\(|(?<!\w)::socket\s*\("
            r"|\bEPOLL_CTL_ADD\b|\bsendmsg\s*\(|\brecvmsg\s*\(|\bSCM_RIGHTS\b)"
        ),
        ("src/", "bindings/"),
        re.compile(r"^src/monarch/base/system\.(h|cc)$|_main\.cc$|^src/monarch/testing/|" + TEST_FILE),
        "what can fail for want of something goes through sys:: (base/system.h), where a test can make it fail",
    ),
    Ban(
        re.compile(
            r"((?:\w*intrin|arm_neon|arm_acle)\.h\b|\b_mm_\w+|\b__m128\w*|\b__builtin_(?:ia32|arm|aarch64)_\w+"
            r"|\b(?:__)?asm(?:__)?\b|\b__(?:x86_64|aarch64|i386|ARM_\w+)(?:__)?\b)"
        ),
        ("src/", "bindings/"),
        re.compile(r"^src/monarch/base/arch(_\w+)?\.h$"),
        "what belongs to one processor stands in base/arch_<processor>.h; call it through base/arch.h (arch::pause())",
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


def room_of(path: str) -> str | None:
    """'host/output' for src/monarch/host/output/lines.h; None for a file that is not in a room."""
    match = re.match(r"src/monarch/([^/]+/(?!internal/)[^/]+)/", path)
    return match[1] if match else None


def check_room(path: str, target: str) -> str | None:
    """What is wrong with a file of one room including `target`, or None."""
    room, own = room_of(path), layer_of(path)
    if room is None or not any(name.startswith(f"{own}/") for name in ROOMS):
        return None
    if room not in ROOMS:
        return f"room {room} is unknown; add it to ROOMS in tools/check_layers.py"
    other = "src/" + target
    place = (room_of(other) or layer_of(other)) if layer_of(other) == own else layer_of(other)
    if place == room or place in ROOMS[room] or (place == "testing" and path.endswith("_test.cc")):
        return None
    return (
        f"room {room} may use {', '.join(ROOMS[room])} (ROOMS in tools/check_layers.py), not {place}; "
        f"take what it needs as an argument, or declare an interface in {room} that {own} implements"
    )


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
    if own is None or own in ("", "testing"):
        return None
    if own == other:
        return check_room(path, target)
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
    return check_room(path, target)


def check_file(path: str, text: str, layers: list[str]) -> Iterator[Violation]:
    bans = [ban for ban in BANS if path.startswith(ban.roots) and not ban.allowed.search(path)]
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        if include := INCLUDE.match(line):
            if message := check_include(path, include[1], include[2], layers):
                yield Violation(path, number, f"includes {include[2]}: {message}")
        for ban in bans:
            if found := ban.pattern.search(line):
                yield Violation(path, number, f"{found[1].rstrip('( ')}: {ban.message}")


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
