"""The C++ files that the checks look at."""

from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("src", "bindings", "tests", "bench", "examples")


def source_files(root: Path, suffixes: set[str]) -> Iterator[tuple[str, str]]:
    """(path below ``root``, text) of each. Not what lies in hidden folders: bench/.venvs holds packages of others."""
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            path = file.relative_to(root)
            if file.suffix in suffixes and not any(part.startswith(".") for part in path.parts):
                yield path.as_posix(), file.read_text()
