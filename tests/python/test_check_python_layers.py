"""tools/check_python_layers.py finds each kind of violation, and only those."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKER = ROOT / "tools/check_python_layers.py"


def check(root: Path, files: dict[str, str]) -> tuple[int, str]:
    for path, text in files.items():
        file = root / "python/monarch" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    done = subprocess.run([sys.executable, str(CHECKER), str(root)], capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("path", "line", "expected"),
    [
        ("_values/shape.py", "from monarch._calls.future import Future", "_values may not import _calls"),
        ("_values/shape.py", "import monarch._calls.future", "_values may not import _calls"),
        ("_values/shape.py", "from monarch._calls import future", "_values may not import _calls"),
        ("_values/shape.py", "def late(): from monarch._calls import future", "_values may not import _calls"),
        ("_meshes/mesh.py", "from monarch.actor import Actor", "_meshes may not import actor"),
        ("actor.py", "from monarch._src import later", "actor may not import _src"),
        ("_new/thing.py", "import sys", "_new is in no layer"),
    ],
)
def test_a_violation_is_named_with_its_place(tmp_path, path, line, expected):
    others = {"_calls/future.py": "", "_calls/__init__.py": "", "actor.py": "", "_src/__init__.py": ""}
    status, output = check(tmp_path, {**others, path: f'"""Text."""\n{line}\n'})
    assert status == 1
    assert f"python/monarch/{path}:{1 if 'no layer' in expected else 2}: {expected}" in output


def test_a_circle_within_a_layer_is_found_also_through_functions(tmp_path):
    files = {
        "_calls/a.py": "from monarch._calls import b\n",
        "_calls/b.py": "from monarch._calls.c import name\n",
        "_calls/c.py": "def late():\n    from monarch._calls import a\n",
        "_calls/__init__.py": "",
    }
    status, output = check(tmp_path, files)
    assert status == 1
    circle = "monarch._calls.a -> monarch._calls.b -> monarch._calls.c -> monarch._calls.a"
    assert f"python/monarch/_calls/a.py:1: a circle of imports: {circle}" in output


def test_what_the_rules_allow_passes(tmp_path):
    status, output = check(
        tmp_path,
        {
            "_values/shape.py": (
                "from typing import TYPE_CHECKING\nfrom monarch import _core\n"
                "if TYPE_CHECKING:\n    from monarch._calls.future import Future\nelse:\n    import sys\n"
            ),
            "_calls/future.py": "from monarch._values.shape import Shape\nimport monarch._calls.other\n",
            "_calls/other.py": "import sys\n",
            "actor.py": "from monarch._calls.future import Future\nimport monarch.config\n",
            "config.py": "import os\n",
            "_src/old.py": "from monarch.actor import Actor\n",
            "_programs/worker.py": "import monarch.actor\n",
        },
    )
    assert (status, output) == (0, "check_python_layers: clean\n")


def test_this_tree_is_clean():
    done = subprocess.run([sys.executable, str(CHECKER)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
