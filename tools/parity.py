#!/usr/bin/env python3
"""docs/parity.md: each row of the feature table (feature_rows.py), its status, and the tests that prove it.

tools/parity.py RESULTS.json     writes it, from what `pytest --parity-out RESULTS.json` wrote about a whole run
tools/parity.py --check          compares it with the markers in the tree, without a run; exits 1 if they disagree
--root FOLDER                    another tree than this one
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from feature_rows import ROWS, Row

TESTS = "tests/python"
PAGE = "docs/parity.md"
SHOWN = 3  # tests named per row; the others are counted
BAD_OUTCOMES = ("failed", "skipped", "not run")

HEAD = """\
# Parity with PyTorch Monarch

Written by `make parity` from a run of the tests; `make lint` compares it with the markers in the tests. A feature
**works** if a test that is marked with its row passes and none fails; a test that was skipped proves nothing. **Not
yet** with a remark: the tests beside it pass, and what the remark names is missing. What differs on purpose is told in
[Moving from PyTorch Monarch](moving.md). The tests of each area stand below its table, folded away.

"""


@dataclass
class Test:
    """A marked test function. If it is parametrised: failed if one case failed, else passed if one passed."""

    rows: set[int]
    outcome: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    options = parser.parse_args()
    if options.check == (options.results is not None):
        parser.error("either RESULTS.json or --check")
    problems = check(options.root) if options.check else write(options.root, options.results)
    for problem in problems:
        print(f"parity: {problem}")
    if not problems:
        print("parity: clean" if options.check else f"parity: {summary((options.root / PAGE).read_text())}")
    return 1 if problems else 0


# ---- What the tests say ----


def marked_tests(root: Path) -> dict[str, set[int]]:
    """``file::name`` -> rows, read from the source of the tests."""
    found = {}
    for file in sorted((root / TESTS).rglob("test_*.py")):
        for name, decorators in functions(ast.parse(file.read_text()).body, []):
            rows = {row for decorator in decorators for row in rows_in(decorator)}
            if rows:
                found[f"{file.relative_to(root / TESTS).as_posix()}::{name}"] = rows
    return found


def functions(body: list[ast.stmt], outer: list[ast.expr], prefix: str = "") -> Iterator[tuple[str, list[ast.expr]]]:
    """(name, decorators, its class's among them) of each test function."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body, outer + node.decorator_list, f"{prefix}{node.name}::")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
            yield prefix + node.name, outer + node.decorator_list


def rows_in(decorator: ast.expr) -> Iterator[int]:
    for node in ast.walk(decorator):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.feature":
            for argument in node.args:
                yield ast.literal_eval(argument)


def tests_of_run(results: Path) -> dict[str, Test]:
    """``file::name`` -> test, from the JSON of a run; the cases of a parametrised test count as one."""
    found: dict[str, Test] = {}
    for node, entry in json.loads(results.read_text()).items():
        name = node.split("[")[0].removeprefix(TESTS + "/")
        test = found.setdefault(name, Test(set(), entry["outcome"]))
        test.rows |= set(entry["rows"])
        outcomes = (test.outcome, entry["outcome"])
        test.outcome = "failed" if "failed" in outcomes else "passed" if "passed" in outcomes else outcomes[0]
    return found


# ---- The page ----


def render(tests: dict[str, Test]) -> str:
    proofs = {
        row.number: {name: test for name, test in sorted(tests.items()) if row.number in test.rows} for row in ROWS
    }
    statuses = {row.number: status_of(row, proofs[row.number]) for row in ROWS}
    areas: dict[str, list[Row]] = {}
    for row in ROWS:
        areas.setdefault(row.area, []).append(row)
    parts = [HEAD + summary_line(statuses.values()), overview(areas, statuses)]
    parts += [section(area, rows, statuses, proofs) for area, rows in areas.items()]
    return "\n".join(parts)


def summary_line(statuses: Iterable[str]) -> str:
    counts = counts_of(statuses)
    total = f"Of {len(ROWS)} features {counts['works']} work, {counts['differs on purpose']} differ on purpose, "
    return total + f"{counts['not yet']} are not there yet.\n"


def counts_of(statuses: Iterable[str]) -> Counter[str]:
    return Counter(re.split("[:,]", status)[0] for status in statuses)


def overview(areas: dict[str, list[Row]], statuses: dict[int, str]) -> str:
    lines = ["| area | works | differs on purpose | not yet |", "|---|---|---|---|"]
    for area, rows in areas.items():
        counts = counts_of(statuses[row.number] for row in rows)
        cells = (str(counts[kind] or "") for kind in ("works", "differs on purpose", "not yet"))
        lines.append(f"| [{area}](#{anchor(area)}) | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def anchor(area: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", area.lower()).replace(" ", "-")


def section(area: str, rows: list[Row], statuses: dict[int, str], proofs: dict[int, dict[str, Test]]) -> str:
    """A table of the area's features, and folded away below it the tests."""
    lines = [f"## {area}", "", "| # | feature | status |", "|---|---|---|"]
    lines += [f"| {row.number} | {row.name} | {statuses[row.number]} |" for row in rows]
    told = [f"- {row.number}: {test_list(proofs[row.number])}" for row in rows if proofs[row.number]]
    if told:
        lines += ["", '<details markdown="1">', "<summary>tests</summary>", "", *told, "", "</details>"]
    return "\n".join(lines) + "\n"


def status_of(row: Row, tests: dict[str, Test]) -> str:
    outcomes = [test.outcome for test in tests.values()]
    if "failed" in outcomes:
        return "not yet: a test fails"
    if "passed" not in outcomes:
        return f"not yet, needs {row.needs}" if row.needs else "not yet"
    if row.missing:
        return f"not yet: {row.missing}"
    return f"differs on purpose: {row.differs}" if row.differs else "works"


def test_list(tests: dict[str, Test]) -> str:
    """The first few that passed, how many more did, and all that did not."""
    passed = [name for name, test in tests.items() if test.outcome == "passed"]
    text = ", ".join(f"`{name}`" for name in passed[:SHOWN])
    if len(passed) > SHOWN:
        text += f" and {len(passed) - SHOWN} more"
    for outcome in BAD_OUTCOMES:
        names = [f"`{name}`" for name, test in tests.items() if test.outcome == outcome]
        if names:
            text += f"{'; ' if text else ''}{outcome}: {', '.join(names)}"
    return text


def summary(page: str) -> str:
    return next(line for line in page.splitlines() if line.startswith("Of "))


def write(root: Path, results: Path) -> list[str]:
    tests = tests_of_run(results)
    marked = marked_tests(root)
    problems = unknown_rows(marked)
    if left_out := sorted(marked.keys() - tests.keys()):
        problems.append(f"the run left out {len(left_out)} marked tests, {left_out[0]} among them: run all")
    if more := sorted(tests.keys() - marked.keys()):
        problems.append(f"marks that are not seen in the source, of {more[0]}: write @pytest.mark.feature(1, 2)")
    if not problems:
        (root / PAGE).write_text(render(tests))
    return problems


def check(root: Path) -> list[str]:
    """The page must be what the markers give, where all tests pass but those that the page itself says did not."""
    marked = marked_tests(root)
    problems = unknown_rows(marked)
    if not (root / PAGE).exists():
        return [*problems, f"no {PAGE}: run `make parity`"]
    page = (root / PAGE).read_text()
    outcomes = {
        name: outcome
        for outcome in BAD_OUTCOMES
        for listed in re.findall(rf"[:;] {outcome}: ([^;\n]*)", page)
        for name in re.findall("`(.*?)`", listed)
    }
    expected = render({name: Test(rows, outcomes.get(name, "passed")) for name, rows in marked.items()})
    if page != expected:
        problems.append(
            f"{PAGE} is not what the tests and tools/feature_rows.py say; run `make parity`. It should say:"
        )
        problems += [line for line in expected.splitlines() if line not in page.splitlines()][:10]
    return problems


def unknown_rows(marked: dict[str, set[int]]) -> list[str]:
    known = {row.number for row in ROWS}
    return [f"{test} is marked with row {row}, which there is not" for test in marked for row in marked[test] - known]


if __name__ == "__main__":
    sys.exit(main())
