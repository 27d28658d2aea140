#!/usr/bin/env python3
"""docs/parity.md: each row of the feature table (feature_rows.py), its status, and the tests that prove its clauses.

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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from feature_rows import ROWS, Row

TESTS = "tests/python"
PAGE = "docs/parity.md"
SHOWN = 3  # tests named per clause; the others are counted
BAD_OUTCOMES = ("failed", "skipped", "not run")

HEAD = """\
# Parity with PyTorch Monarch

Written by `make parity` from a run of the tests; `make lint` compares it with the markers in the tests. A feature is
cut into clauses, and **works** if each of them has a test that passes, and no test of the feature fails; a test that
was skipped proves nothing. **Not yet** with a remark: what the remark names is open, the other clauses are proved.
What differs on purpose is told in [Moving from PyTorch Monarch](moving.md). The clauses of each area, with their tests,
stand below its table, folded away.

"""


Proof = tuple[int, str]  # a row and one of its clauses, or "" for the row as a whole


@dataclass
class Test:
    """A marked test function. If it is parametrised: failed if one case failed, else passed if one passed."""

    proofs: set[Proof]
    outcome: str


Tests = dict[str, Test]  # by ``file::name``


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


def marked_tests(root: Path) -> dict[str, set[Proof]]:
    """``file::name`` -> what it is marked with, read from the source of the tests."""
    found = {}
    for file in sorted((root / TESTS).rglob("test_*.py")):
        for name, decorators in functions(ast.parse(file.read_text()).body, []):
            proofs = {proof for decorator in decorators for mark in marks_in(decorator) for proof in proofs_of(mark)}
            if proofs:
                found[f"{file.relative_to(root / TESTS).as_posix()}::{name}"] = proofs
    return found


def functions(body: list[ast.stmt], outer: list[ast.expr], prefix: str = "") -> Iterator[tuple[str, list[ast.expr]]]:
    """(name, decorators, its class's among them) of each test function."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body, outer + node.decorator_list, f"{prefix}{node.name}::")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test"):
            yield prefix + node.name, outer + node.decorator_list


def marks_in(decorator: ast.expr) -> Iterator[list[int | str]]:
    for node in ast.walk(decorator):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.feature":
            yield [ast.literal_eval(argument) for argument in node.args]


def proofs_of(mark: Sequence[int | str]) -> set[Proof]:
    """``12, "a", "b", 25`` -> clauses "a" and "b" of row 12, and row 25 as a whole."""
    proofs: set[Proof] = set()
    row = 0  # which there is not, for a clause that stands first
    for argument in mark:
        if isinstance(argument, str):
            proofs = proofs - {(row, "")} | {(row, argument)}
        else:
            row = argument
            proofs.add((row, ""))
    return proofs


def tests_of_run(results: Path) -> Tests:
    """From the JSON of a run; the cases of a parametrised test count as one."""
    found: Tests = {}
    for node, entry in json.loads(results.read_text()).items():
        name = node.split("[")[0].removeprefix(TESTS + "/")
        test = found.setdefault(name, Test(set(), entry["outcome"]))
        test.proofs.update(*(proofs_of(mark) for mark in entry["marks"]))
        outcomes = (test.outcome, entry["outcome"])
        test.outcome = "failed" if "failed" in outcomes else "passed" if "passed" in outcomes else outcomes[0]
    return found


# ---- The page ----


def render(tests: Tests) -> str:
    proved: dict[int, dict[str, Tests]] = {row.number: {} for row in ROWS}  # row -> clause -> tests
    for name, test in sorted(tests.items()):
        for row, clause in test.proofs:
            proved[row].setdefault(clause, {})[name] = test
    statuses = {row.number: status_of(row, proved[row.number]) for row in ROWS}
    areas: dict[str, list[Row]] = {}
    for row in ROWS:
        areas.setdefault(row.area, []).append(row)
    parts = [HEAD + summary_line(statuses.values()), overview(areas, statuses)]
    parts += [section(area, rows, statuses, proved) for area, rows in areas.items()]
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


def section(area: str, rows: list[Row], statuses: dict[int, str], proved: dict[int, dict[str, Tests]]) -> str:
    """A table of the area's features, and folded away below it their clauses and tests."""
    lines = [f"## {area}", "", "| # | feature | status |", "|---|---|---|"]
    lines += [f"| {row.number} | {row.name} | {statuses[row.number]} |" for row in rows]
    told = [line for row in rows for line in clause_list(row, proved[row.number])]
    if told:
        lines += ["", '<details markdown="1">', "<summary>clauses and tests</summary>", "", *told, "", "</details>"]
    return "\n".join(lines) + "\n"


def clause_list(row: Row, proved: dict[str, Tests]) -> list[str]:
    if not row.clauses:
        return [f"- {row.number}: {test_list(proved[''])}"] if proved else []
    lines = [f"- {row.number}"]
    lines += [f"    - {clause}: {test_list(proved[clause]) if clause in proved else 'open'}" for clause in row.clauses]
    return lines + ([f"    - besides: {test_list(proved[''])}"] if "" in proved else [])


def status_of(row: Row, proved: dict[str, Tests]) -> str:
    outcomes = {clause: {test.outcome for test in tests.values()} for clause, tests in proved.items()}
    if any("failed" in each for each in outcomes.values()):
        return "not yet: a test fails"
    clauses = row.clauses or ("",)
    unproved = [clause for clause in clauses if "passed" not in outcomes.get(clause, ())]
    needs = f", needs {row.needs}" if row.needs else ""
    if len(unproved) == len(clauses):
        return f"not yet{needs}"
    if unproved:
        return f"not yet: open: {'; '.join(unproved)}{needs}"
    return f"differs on purpose: {row.differs}" if row.differs else "works"


def test_list(tests: Tests) -> str:
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
    problems = unknown_marks(marked)
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
    problems = unknown_marks(marked)
    if not (root / PAGE).exists():
        return [*problems, f"no {PAGE}: run `make parity`"]
    page = (root / PAGE).read_text()
    outcomes = {
        name: outcome
        for outcome in BAD_OUTCOMES
        for listed in re.findall(rf"[:;] {outcome}: ([^;\n]*)", page)
        for name in re.findall("`(.*?)`", listed)
    }
    if problems:
        return problems
    expected = render({name: Test(proofs, outcomes.get(name, "passed")) for name, proofs in marked.items()})
    if page != expected:
        problems.append(
            f"{PAGE} is not what the tests and tools/feature_rows.py say; run `make parity`. It should say:"
        )
        problems += [line for line in expected.splitlines() if line not in page.splitlines()][:10]
    return problems


def unknown_marks(marked: dict[str, set[Proof]]) -> list[str]:
    known = {row.number: row.clauses for row in ROWS}
    problems = []
    for test, proofs in marked.items():
        for row, clause in sorted(proofs):
            if row not in known:
                problems.append(f"{test} is marked with row {row}, which there is not")
            elif clause and clause not in known[row]:
                problems.append(f"{test} is marked with {clause!r} of row {row}, which has {known[row]}")
    return problems


if __name__ == "__main__":
    sys.exit(main())
