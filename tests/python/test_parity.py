"""tools/parity.py and the plugin beside it: the table follows from the markers and a run, and --check sees each lie."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.feature(12, "one rank handles it", "at random", 13, "in order of arrival", 9)
@pytest.mark.parametrize("x", [1, 2])
def test_both(x):
    pass

class TestGroup:
    @pytest.mark.feature(13, "a future for each rank, of one send", 25)
    def test_skipped(self):
        pytest.skip("no GPU")

@pytest.mark.feature(12)
def test_besides():
    pass

@pytest.mark.feature(4, "both kinds of endpoints", "hooks of either kind")
def test_differs():
    pass

@pytest.mark.feature(10, "the extent of the mesh")
def test_fails():
    assert False

def test_unmarked():
    pass
"""


def run_tests(root: Path, tests: str = TESTS, *options: str) -> None:
    folder = root / "tests" / "python"
    folder.mkdir(parents=True, exist_ok=True)
    (root / "docs").mkdir(exist_ok=True)
    (folder / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "parity_plugin", "-p", "no:cacheprovider", "--rootdir", "."]
    subprocess.run(
        [*command, "--parity-out", "out/run.json", *options, "tests/python"],
        cwd=root, env={"PYTHONPATH": str(Path(__file__).parent)}, capture_output=True, timeout=60,
    )  # fmt: skip


def parity(root: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "tools" / "parity.py"), "--root", str(root), *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.fixture
def tree(tmp_path):
    run_tests(tmp_path)
    status, output = parity(tmp_path, "out/run.json")
    assert (status, output) == (0, "parity: Of 120 features 2 work, 1 differ on purpose, 117 are not there yet.\n")
    return tmp_path


def row(tree: Path, number: int) -> tuple[str, ...]:
    """(status, tests, or a line for each clause) of a feature; the status alone if there is nothing to tell."""
    lines = (tree / "docs" / "parity.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"| {number} |")]
    told = [line.partition(": ")[2] for line in lines if line.startswith(f"- {number}: ")]
    if f"- {number}" in lines:
        after = lines[lines.index(f"- {number}") + 1 :]
        told += [line.strip("- ") for line in itertools.takewhile(lambda line: line.startswith("    - "), after)]
    return line.strip("| ").split(" | ")[2], *told


def test_the_table_says_what_the_run_has_shown(tree):
    assert row(tree, 9) == ("works", "`test_it.py::test_both`")
    assert row(tree, 12) == (
        "works",
        "one rank handles it: `test_it.py::test_both`",
        "at random: `test_it.py::test_both`",
        "besides: `test_it.py::test_besides`",
    )
    assert row(tree, 4)[0].startswith("differs on purpose: they may be mixed")
    assert row(tree, 10)[0] == "not yet: a test fails"
    assert row(tree, 10)[1] == "the extent of the mesh: failed: `test_it.py::test_fails`"
    assert row(tree, 114) == ("not yet, needs GPUs",)
    assert parity(tree, "--check") == (0, "parity: clean\n")


def test_a_clause_without_a_test_that_passes_is_open(tree):
    assert row(tree, 13) == (
        "not yet: open: a future for each rank, of one send",
        "a future for each rank, of one send: skipped: `test_it.py::TestGroup::test_skipped`",
        "in order of arrival: `test_it.py::test_both`",
    )
    assert row(tree, 25) == ("not yet", "skipped: `test_it.py::TestGroup::test_skipped`")
    assert row(tree, 11) == ("not yet", "the one result: open", "raises at once unless the size is 1: open")


def test_each_area_has_its_counts_and_a_table(tree):
    page = (tree / "docs" / "parity.md").read_text()
    assert "| [actors](#actors) | 1 | 1 | 12 |" in page and "| [value meshes](#value-meshes) |" in page
    assert page.count("\n## actors\n") == page.count("\n## value meshes\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("feature(12)", "feature(12, 5)", "docs/parity.md is not what the tests"),
        ("feature(12)", "feature(400)", "test_it.py::test_besides is marked with row 400, which there is not"),
        ("feature(12)", "feature(12, 'at will')", "test_it.py::test_besides is marked with 'at will' of row 12, which"),
        ("feature(12)", "feature('at random')", "test_it.py::test_besides is marked with row 0, which there is not"),
        ("def test_differs", "def test_renamed", "`test_it.py::test_renamed`"),
        (', "at random"', "", "| 12 | `choose` | not yet: open: at random |"),
    ],
)
def test_the_check_sees_markers_that_the_table_does_not_follow(tree, old, new, expected):
    file = tree / "tests" / "python" / "test_it.py"
    file.write_text(file.read_text().replace(old, new))
    status, output = parity(tree, "--check")
    assert status == 1 and expected in output


def test_the_check_sees_a_table_changed_by_hand(tree):
    page = tree / "docs" / "parity.md"
    text = page.read_text()
    changes = [("not yet: a test fails", "works"), ("test_both", "test_all"), ("at random: ", "at random: open, ")]
    for old, new in [*changes, (" skipped:", " failed:")]:
        assert text.count(old)
        page.write_text(text.replace(old, new, 1))
        assert parity(tree, "--check")[0] == 1
    page.unlink()
    assert "no docs/parity.md" in parity(tree, "--check")[1]


def test_a_run_of_some_tests_makes_no_table(tree):
    run_tests(tree, TESTS, "-k", "not differs")
    status, output = parity(tree, "out/run.json")
    assert status == 1
    assert "the run left out 1 marked tests, test_it.py::test_differs among them: run all" in output
