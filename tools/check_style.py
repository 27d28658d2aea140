#!/usr/bin/env python3
"""Checks the few things about C++ text that no compiler says: no tabs, no line over 124, #pragma once in each header.

tools/check_style.py [root]   prints `file:line: what` for each violation and exits 1 if there is one.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from source_files import source_files

LINE_LENGTH_MAX = 124


def check_text(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), 1):
        if "\t" in line:
            yield f"{path}:{number}: a tab; indent with two spaces"
        if line != line.rstrip():
            yield f"{path}:{number}: blanks at the end of the line"
        if len(line) > LINE_LENGTH_MAX:
            yield f"{path}:{number}: {len(line)} characters; at most {LINE_LENGTH_MAX}"
    if path.endswith(".h") and "\n#pragma once\n" not in "\n" + text:
        yield f"{path}:1: no #pragma once"
    if not text.endswith("\n"):
        yield f"{path}:{text.count(chr(10)) + 1}: no newline at the end of the file"


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent)
    violations = []
    for path, text in source_files(root, {".h", ".cc"}):
        violations += check_text(path, text)
    for violation in violations:
        print(violation)
    print(f"check_style: {len(violations)} violations" if violations else "check_style: clean")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
