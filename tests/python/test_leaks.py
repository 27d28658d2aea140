"""No bound object outlives a script (nanobind looks at exit, when asked to)."""

import os
import subprocess
import sys

from script_run import program

SCRIPT = program("leaks/script.py")


def test_a_script_leaks_no_bound_object():
    env = {**os.environ, "MONARCH_LEAK_CHECK": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
