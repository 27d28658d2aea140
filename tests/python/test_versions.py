"""Scripts and hosts whose Python or cloudpickle are of different versions."""

import os
import pickle
import sys

import cloudpickle
import pytest
from hostd import Daemon
from script_run import Run

from monarch._calls import versions
from monarch.job._keeper import Kept

OURS = ".".join(str(part) for part in sys.version_info[:2])
SCRIPT = """
import fractions
import math
from monarch._calls import pickling, versions
from monarch.actor import Actor, endpoint, this_host
class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value
def set_up():
    pass
echo = this_host().spawn_procs({"gpus": 2}).spawn("echo", Echo)
echo.echo.call(1).get()
ours, versions._of_sender, pickling._code_pickler = versions._of_sender, "3.9", None  # this process sends as another
for value in (fractions.Fraction(1, 3), math, {1: 2}.keys()):
    assert echo.echo.choose(value).get() == value
print(echo.echo.choose(lambda: 1).exception(timeout=20))
print(this_host().spawn_procs().spawn("again", Echo).echo.choose(1).exception(timeout=20))
print(this_host().spawn_procs(bootstrap=set_up).spawn("set_up", Echo).echo.choose(1).exception(timeout=20))
versions._of_sender, pickling._code_pickler = ours, None
assert echo.echo.choose(lambda: 1).get()() == 1  # it lives
"""


def test_code_for_another_python_is_refused_by_a_line_that_names_both_and_other_values_are_not():
    run = Run(SCRIPT).ok()
    lines = [line for line in run.out.splitlines() if "3.9" in line]
    assert len(lines) == 3, run.out
    for line in lines:
        assert "code that is sent by value is for the sender's version of Python, 3.9, and this process" in line
        assert f"runs {OURS}" in line


def test_what_a_keeper_is_sent_says_so_too(monkeypatch):
    class Sent(Exception):
        pass

    class FakeKeeper:
        @property
        def adopt(self):
            return self

        def call_one(self, name, make):
            raise Sent(make)

    monkeypatch.setattr(versions, "_of_sender", "3.9")
    with pytest.raises(Sent) as sent:
        Kept(FakeKeeper()).adopt("x", lambda state: None)
    with pytest.raises(RuntimeError, match="for the sender's version of Python, 3.9, and this process .* runs 3"):
        pickle.loads(sent.value.args[0])
    assert versions.loads(versions.dumps({1: 2}.keys())) == {1: 2}.keys()


CALLS = {
    "a class": """
print(hosts.spawn_procs().spawn("worker", Worker).pid.call_one().exception(timeout=20))
""",
    "a bootstrap function": """
def set_up():
    pass
print(hosts.spawn_procs(bootstrap=set_up).spawn("worker", Worker).pid.call_one().exception(timeout=20))
""",
}


@pytest.mark.parametrize("what", CALLS)
def test_a_host_whose_cloudpickle_is_another_says_which_both_have(folder, what):
    package = os.path.join(folder, "old", "cloudpickle")
    os.makedirs(package)
    with open(os.path.join(package, "__init__.py"), "w") as file:
        file.write("from . import cloudpickle\n__version__ = '0.9'\n")
    with open(os.path.join(package, "cloudpickle.py"), "w") as file:
        file.write("class Pickler: pass\n")
    error = _error_of(folder, f"{folder}/old", CALLS[what])
    assert "AttributeError: Can't get attribute '_make_" in error
    assert f"needs cloudpickle, of which the sender has {cloudpickle.__version__}, and this process, " in error
    assert error.endswith(", has 0.9)")


@pytest.mark.parametrize("what", CALLS)
def test_a_host_without_cloudpickle_says_so(folder, what):
    with open(os.path.join(folder, "cloudpickle.py"), "w") as file:
        file.write("raise ModuleNotFoundError('No module named cloudpickle', name='cloudpickle')\n")
    error = _error_of(folder, folder, CALLS[what])
    assert f"needs cloudpickle, of which the sender has {cloudpickle.__version__}, and this process, " in error
    assert error.endswith(", has none)")


def _error_of(folder, first, call):
    """What an actor of a script fails of, on a host whose Python looks for packages there first."""
    path = os.pathsep.join(filter(None, (first, os.environ.get("PYTHONPATH"))))
    daemon = Daemon(folder, inside=("env", f"PYTHONPATH={path}"))
    run = daemon.run(call).ok()
    daemon.end()
    return next(line for line in run.out.splitlines() if "cloudpickle" in line and "Error: " in line)


class Broken:
    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return _raise, (self.error,)


def _raise(error):
    raise error


@pytest.mark.parametrize("error", [AttributeError("of cloudpickle"), AttributeError("mine"), KeyError("cloudpickle")])
def test_an_error_stays_what_it_is_and_says_more_where_cloudpickle_may_be_why(monkeypatch, error):
    pickled = versions.dumps((lambda: 1, Broken(error)))
    monkeypatch.setattr(cloudpickle, "__version__", "0.9")
    with pytest.raises(type(error)) as raised:
        versions.loads(pickled)
    explained = str(error) == "of cloudpickle"
    assert ("and this process" in str(raised.value)) == explained
    assert raised.traceback[-1].name == "_raise"
