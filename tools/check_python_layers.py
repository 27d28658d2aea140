#!/usr/bin/env python3
"""Checks the structure of the Python package: which of its sub-packages may import which, and that no circle is left.

    tools/check_python_layers.py [root]

Prints `file:line: what is wrong; what to do instead` for each violation and exits 1 if there is one. Imports inside of
functions count, since an import comes late for its weight and never to break a circle. What only type checkers see
(`if TYPE_CHECKING:`) does not.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = "monarch"
# Lowest first. A layer may import itself and those below it. What has no line here is public, and comes above all of
# them: public modules may import each other, as long as there is no circle.
LAYERS = (
    "_core",
    "_checks",
    "_notices",
    "_public",
    "_files",
    "_values",
    "_config",
    "_errors",
    "_runtime",
    "_actors",
    "_calls",
    "_ports",
    "_bulk",
    "_processes",
    "_meshes",
    "_running",
    "_wiring",
    "_mounts",
    "_simulation",
    "_compat",
)
PUBLIC = len(LAYERS)
# Above what is public: the main programs of worker processes, and of the command `monarch`; re-exports under the names
# of earlier times.
ABOVE = ("__main__", "_programs", "_src", "_rust_bindings", "actor_mesh", "bootstrap_main", "proc_mesh", "service")


class Violation(NamedTuple):
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class Import(NamedTuple):
    module: str
    line: int


def rank_of(module: str) -> int | None:
    """The height of a module's layer; None: it is in none and has a private name."""
    name = (module.split(".") + [""])[1]
    if name in LAYERS:
        return LAYERS.index(name)
    if name in ABOVE:
        return PUBLIC + 1
    return None if name.startswith("_") and name else PUBLIC


class Imports(ast.NodeVisitor):
    """Collects what a module imports of this package, but for type checkers."""

    def __init__(self, modules: set[str]) -> None:
        self.modules = modules
        self.found: list[Import] = []

    def visit_If(self, node: ast.If) -> None:
        for part in node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else [*node.body, *node.orelse]:
            self.visit(part)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            self.add(inner if inner in self.modules else str(node.module), node.lineno)

    def add(self, module: str, line: int) -> None:
        if module in self.modules or rank_of(module) == 0:
            self.found.append(Import(module, line))


def check_layers(module: str, path: str, imports: list[Import]) -> Iterator[Violation]:
    own = rank_of(module)
    if own is None:
        name = module.split(".")[1]
        yield Violation(path, 1, f"{name} is in no layer; add it to LAYERS in tools/check_python_layers.py")
        return
    for target, line in imports:
        other = rank_of(target)
        if other is not None and other > own and target != PACKAGE:
            lower, upper = module.split(".")[1], (target.split(".") + ["monarch"])[1]
            yield Violation(
                path,
                line,
                f"{lower} may not import {upper}, which is above it; move the code up, or let the upper one give it "
                "what it needs (as _wiring does)",
            )


def find_circle(graph: dict[str, list[Import]]) -> list[str] | None:
    """Modules that import each other in turn, the first of them again at the end."""
    state: dict[str, int] = {}  # 1: being looked at, 2: done
    stack: list[str] = []

    def visit(module: str) -> list[str] | None:
        state[module] = 1
        stack.append(module)
        for target, _ in graph.get(module, ()):
            if target == module or target not in graph:
                continue
            if state.get(target) == 1:
                return [*stack[stack.index(target) :], target]
            if target not in state and (circle := visit(target)):
                return circle
        stack.pop()
        state[module] = 2
        return None

    for module in sorted(graph):
        if module not in state and (circle := visit(module)):
            return circle
    return None


def check_tree(root: Path) -> list[Violation]:
    package = root / "python" / PACKAGE
    files: dict[str, Path] = {}
    for file in sorted(package.rglob("*.py")):
        parts = (PACKAGE, *file.relative_to(package).with_suffix("").parts)
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    graph: dict[str, list[Import]] = {}
    violations: list[Violation] = []
    for module, file in files.items():
        imports = Imports(set(files))
        imports.visit(ast.parse(file.read_text()))
        graph[module] = imports.found
        violations += check_layers(module, file.relative_to(root).as_posix(), imports.found)
    if circle := find_circle(graph):
        path = files[circle[0]].relative_to(root).as_posix()
        line = next(line for target, line in graph[circle[0]] if target == circle[1])
        violations.append(Violation(path, line, f"a circle of imports: {' -> '.join(circle)}"))
    return violations


def main() -> int:
    violations = check_tree(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent))
    for violation in violations:
        print(violation)
    print(f"check_python_layers: {len(violations)} violations" if violations else "check_python_layers: clean")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
