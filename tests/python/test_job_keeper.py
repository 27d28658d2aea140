"""Actors of a job that outlive the scripts that use them."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from script_run import MARK, ended, marked, program

from monarch.job import LocalJob, ProcessJob, _keeper, job_load

LIMIT = 60
TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
KEEPS = program("job/keeps.py")
PATH = "job_state.pkl"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory. Nothing that begins there may be left after the job's kill()."""
    (tmp_path / "t").mkdir()
    mark = tmp_path.name + os.urandom(4).hex()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    env = {**os.environ, MARK: mark}
    yield lambda text, status=0, source=KEEPS: script(env, source + text, status)
    if os.path.exists(PATH):
        job_load(PATH).kill()
    left = marked(mark)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not [pid for pid in left if not ended(pid, time.monotonic() + LIMIT)]
    assert not left


def script(env, text, status):
    """The words that it prints, and what it says on stderr."""
    done = subprocess.run([sys.executable, "-c", text, PATH], env=env, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == status, done.stderr
    return done.stdout.split(), done.stderr


TELL = "\nfor pid, count in answers: print(pid, count)\n"


@pytest.mark.feature(88)
def test_the_next_script_finds_the_same_actors_with_their_processes_and_state(place):
    first, _ = place(TELL)
    assert first[1::2] == ["1", "1"] and first[0] != first[2]
    second, _ = place(TELL + "print(*job.adopted())")
    assert second == [first[0], "2", first[2], "2", "counters"]


def test_a_script_that_is_killed_leaves_them_as_they_are(place):
    first, _ = place(TELL + "sys.stdout.flush(); os.kill(os.getpid(), 9)", status=-signal.SIGKILL)
    second, _ = place(TELL)
    assert second == [first[0], "2", first[2], "2"]


def test_they_end_when_they_are_released_and_with_the_job(place):
    first, _ = place(TELL + "print(job.release('counters'), job.release('counters'), *job.adopted())")
    assert first[4:] == ["True", "False"]
    assert all(ended(int(pid), time.monotonic() + LIMIT) for pid in first[:4:2])
    second, _ = place(TELL + "job.kill()")
    assert second[1::2] == ["1", "1"] and second[0] not in first
    assert all(ended(int(pid), time.monotonic() + LIMIT) for pid in second[::2])


def test_what_has_died_is_told_by_its_calls_and_can_be_made_anew(place):
    told, err = place(
        """
from monarch.actor import SupervisionError
os.kill(answers[0][0], 9)
try:
    counters.add.call().get(timeout=30)
except SupervisionError as error:
    print("Killed(sig=9)" in str(error))
job.release("counters")
answers = job.adopt("counters", make).add.call().get().values()
"""
        + TELL
    )
    assert told[0] == "True" and told[2::2] == ["1", "1"] and err == ""


def test_that_they_are_lost_with_a_job_that_is_replaced_is_a_warning(place):
    place("")
    _, err = place("", source=KEEPS.replace('{"hosts": 2}', '{"hosts": 1}'))
    said = "job_state.pkl does not run what is wanted now, and is replaced: what it may have adopted is lost\n"
    assert err.endswith(said) and err.count("\n") == 1


def test_what_they_print_and_who_owns_them_is_shown(place):
    text = """
import subprocess
os.makedirs(".monarch", exist_ok=True)
os.symlink("../" + sys.argv[1], ".monarch/job_state.pkl")
for command in ("ps", "logs", "logs -t", "logs --since 1h", "logs --since 1ms"):
    subprocess.run([sys.executable, "-m", "monarch", *command.split()], check=True)
"""
    told, _ = place(text, source=KEEPS.replace("self.count += 1", "self.count += 1; print('asked', flush=True)"))
    shown = " ".join(told)
    assert "adopted actors' owner" in shown and "import json" not in shown
    assert shown.count("[adopted] [0] asked") == 3 and len(re.findall(rf"{TIME} \[adopted\] \[0\] asked", shown)) == 1


def test_what_makes_them_may_fail_and_be_called_again(place):
    told, _ = place(
        """
def fails(state): raise KeyError("no such thing")
for make in (fails, lambda state: 5):
    try:
        job.adopt("other", make)
    except Exception as error:
        print(type(error).__name__, "no such thing" in str(error), "must return a mesh of actors" in str(error))
        assert str(error).startswith("What is adopted as 'other' cannot be made.\\n Traceback of where"), error
        assert "Actor call" not in str(error) and type(error.exception) in (KeyError, TypeError), error
print(*job.adopted())
"""
    )
    assert told == ["ActorError", "True", "False", "ActorError", "False", "True", "counters"]


def test_a_keeper_that_was_killed_takes_its_actors_along_and_is_started_again(place):
    first, _ = place(TELL)
    keeper = "\nfrom monarch.job import _keeper\nimport signal\n"
    killed, _ = place(
        keeper + "saved, _ = _keeper._saved.unpack(open(job._running._run.folder + '/keeper', 'rb').read())\n"
        "os.kill(saved['process'][0], signal.SIGKILL)\n"
    )
    assert killed == [] and all(ended(int(pid), time.monotonic() + LIMIT) for pid in first[::2])
    again, _ = place(TELL)
    assert again[1::2] == ["1", "1"] and again[0] not in first


def test_what_is_wrong_is_said(place):
    with pytest.raises(RuntimeError, match="has not been applied: call job.state"):
        ProcessJob({"hosts": 1}).adopt("x", lambda state: None)
    local = LocalJob()
    local.state(PATH)
    with pytest.raises(NotImplementedError, match="actors that outlive scripts are not there yet for LocalJob"):
        local.adopt("x", lambda state: None)
    local.kill()
    job = ProcessJob({"hosts": 1})
    job.state(PATH)
    for name, make in ((1, len), ("x", None)):
        with pytest.raises(TypeError, match="adopt takes a name, a str, and a function of the job's state, not"):
            job.adopt(name, make)
    job.kill()
    job.state(cached_path=None)
    with pytest.raises(RuntimeError, match="the job is not saved, and ends with this script"):
        job.adopted()
    job.kill()


def test_a_script_that_is_killed_while_the_keeper_starts_leaves_one_keeper(place):
    """Whose handle no other one writes over."""
    place("", source="import sys\nfrom monarch.job import ProcessJob\nProcessJob({'hosts': 1}).state(sys.argv[1])\n")
    folder = job_load(PATH)._run.folder
    stop = """
import os, signal
from monarch.job import _keeper
started = _keeper.Detached.__init__
def start(self, *arguments, **named):
    started(self, *arguments, **named)
    os.kill(self.pid, signal.SIGSTOP)
    print(self.pid, flush=True)
_keeper.Detached.__init__ = start
_keeper.readable = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # it has been told what it needs
"""
    adopts = """
import sys
from monarch.job import ProcessJob
job = ProcessJob({"hosts": 1})
job.state(sys.argv[1])
def make(state):
    from monarch.job._runner import Runner
    return state.hosts.spawn_procs().spawn("runner", Runner)
job.adopt("runner", make)
print(*job.adopted())
"""
    stopped, _ = place(adopts, status=-signal.SIGKILL, source=stop)
    waits = subprocess.Popen(
        [sys.executable, "-c", adopts, PATH], env=os.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert "waiting for another process that uses" in waits.stderr.readline()
    assert not os.path.exists(os.path.join(folder, "keeper"))
    os.kill(int(stopped[0]), signal.SIGCONT)
    out, err = waits.communicate(timeout=LIMIT)
    assert (waits.returncode, out, err) == (0, "runner\n", "")
    assert _keeper._saved.unpack(_keeper._saved.read(os.path.join(folder, "keeper")))[0]["process"][0] == int(
        stopped[0]
    )
