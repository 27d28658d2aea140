"""Scripts and hosts whose Python or cloudpickle are of different versions."""

import os
import sys

import cloudpickle
from hostd import Daemon
from script_run import Run

OURS = ".".join(str(part) for part in sys.version_info[:2])
SCRIPT = """
import fractions
from monarch._calls import pickling, versions
from monarch.actor import Actor, SupervisionError, endpoint, this_host
class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value
echo = this_host().spawn_procs({"gpus": 2}).spawn("echo", Echo)
echo.echo.call(1).get()
ours, versions._ours, pickling._code_pickler = versions._ours, (3, 9), None  # from now on this process sends as another
assert echo.echo.choose(fractions.Fraction(1, 3)).get() == fractions.Fraction(1, 3)
error = echo.echo.choose(lambda: 1).exception(timeout=20)
print(error)
again = this_host().spawn_procs().spawn("again", Echo)
print(again.echo.choose(1).exception(timeout=20))
versions._ours, pickling._code_pickler = ours, None
assert echo.echo.choose(lambda: 1).get()() == 1  # it lives
"""


def test_code_for_another_python_is_refused_by_a_line_that_names_both_and_plain_values_are_not():
    run = Run(SCRIPT).ok()
    lines = [line for line in run.out.splitlines() if "3.9" in line]
    assert len(lines) == 2, run.out
    for line in lines:
        assert "code that is sent by value is for the sender's version of Python, 3.9, and this process" in line
        assert f"runs {OURS}" in line


def test_a_host_whose_cloudpickle_is_another_says_which_both_have(folder):
    package = os.path.join(folder, "old", "cloudpickle")
    os.makedirs(package)
    with open(os.path.join(package, "__init__.py"), "w") as file:
        file.write("from . import cloudpickle\n__version__ = '0.9'\n")
    with open(os.path.join(package, "cloudpickle.py"), "w") as file:
        file.write("class Pickler: pass\n")
    error = _error_of(folder, f"{folder}/old")
    assert error.startswith("  AttributeError: Can't get attribute '_make_")
    assert (
        f" (what is sent by value is of the sender's cloudpickle {cloudpickle.__version__}, and this process" in error
    )
    assert error.endswith(f"runs {OURS} with 0.9)")


def test_a_host_without_cloudpickle_says_so(folder):
    with open(os.path.join(folder, "cloudpickle.py"), "w") as file:
        file.write("raise ModuleNotFoundError('No module named cloudpickle', name='cloudpickle')\n")
    error = _error_of(folder, folder)
    needs = (
        f"what is sent by value needs cloudpickle, of which the sender has {cloudpickle.__version__}, and this process"
    )
    assert needs in error and error.endswith(f"runs {OURS} without it")


def _error_of(folder, first):
    """What an actor of a script fails of, on a host whose Python looks for packages there first."""
    path = os.pathsep.join(filter(None, (first, os.environ.get("PYTHONPATH"))))
    daemon = Daemon(folder, inside=("env", f"PYTHONPATH={path}"))
    run = daemon.run("""
print(hosts.spawn_procs().spawn("worker", Worker).pid.call_one().exception(timeout=20))
""").ok()
    daemon.end()
    *_, line = (line for line in run.out.splitlines() if line)
    return line
