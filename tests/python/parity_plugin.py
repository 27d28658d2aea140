"""``--parity-out FILE``: what of the feature table each test is marked with, and how it ended, as JSON.

tools/parity.py makes docs/parity.md of it.
``@pytest.mark.feature(12, "at random", 25)``: the test proves the clause "at random" of row 12 of
tools/feature_rows.py, and belongs to row 25 (which it proves if that has no clauses).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--parity-out", metavar="FILE", help="write marks and outcome of each marked test as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "feature(row, clause, ...): what the test proves of tools/feature_rows.py")
    path = config.getoption("--parity-out")
    if path and not hasattr(config, "workerinput"):  # of pytest-xdist
        config.pluginmanager.register(_Recorder(Path(path)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marks = [mark.args for mark in item.iter_markers("feature")]
        if marks:
            item.user_properties.append(("marks", marks))  # comes along with the report, from any process


class _Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, dict] = {}  # by node id

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        marks = dict(report.user_properties).get("marks")
        if marks is None:
            return
        test = self._tests.setdefault(report.nodeid, {"marks": marks, "outcome": "not run"})
        if report.failed:
            test["outcome"] = "failed"
        elif test["outcome"] == "not run" and (report.skipped or report.when == "call"):
            test["outcome"] = report.outcome

    def pytest_sessionfinish(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._tests, indent=1) + "\n")
