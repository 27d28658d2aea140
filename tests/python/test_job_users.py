"""Who uses a saved job: scripts that share it, have it alone, and would take it from each other."""

import errno
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import job_scripts
import pytest
from job_scripts import HOLDS, LIMIT, Script, folders, kill_one, workers_of
from script_run import ended

from monarch.job import DEFAULT_JOB_PATH, LocalJob, ProcessJob, _saved, _users, job_load


@pytest.fixture
def place(tmp_path, monkeypatch):
    yield from job_scripts.directory(tmp_path, monkeypatch)


def said_of_use(script):
    """The processes that it was told of, when it has ended."""
    out, err = script.process.communicate(timeout=LIMIT)
    told = re.findall(
        r"^the job has its hosts in use by process (\d+) \(.*python.*\.py.*\) as well$", err, re.MULTILINE
    )
    assert script.process.returncode == 0 and len(told) == err.count("\n"), err
    return out.split(), {int(pid) for pid in told}


def test_scripts_that_come_at_the_same_time_share_one_job(place):
    scripts = [Script("print(job.apply_id)", "job.pkl") for _ in range(3)]
    assert len({said_of_use(script)[0][0] for script in scripts}) == 1
    assert sorted(os.listdir(place)) == ["job.pkl", "t"]
    job_load("job.pkl").kill()
    assert folders() == []


@pytest.mark.feature(88, "a second run takes the job over")
def test_who_comes_to_a_job_is_told_who_else_uses_it(place):
    first = Script("print('up', flush=True)\nsys.stdin.readline()", "job.pkl")
    assert first.process.stdout.readline() == "up\n"
    second = Script("job.state('job.pkl')  # said once", "job.pkl")
    assert said_of_use(second)[1] == {first.process.pid}
    assert said_of_use(first)[1] == set()
    assert said_of_use(Script("", "job.pkl"))[1] == set()
    job_load("job.pkl").kill()


@pytest.mark.parametrize("command", [("kill",), ("context", "rm", "default")])
def test_whose_job_a_command_kills_is_said(place, command):
    scripts = [Script(HOLDS, DEFAULT_JOB_PATH) for _ in range(2)]
    for script in scripts:
        assert script.process.stdout.readline() == f"{script.process.pid}\n"
    done = subprocess.run([sys.executable, "-m", "monarch", *command], capture_output=True, text=True, timeout=LIMIT)
    users = sorted(rf"process {script.process.pid} \(.*\)" for script in scripts)
    said = r"(monarch context: .*\n)?the job of the context 'default' is killed while it is in use by "
    both = "({}, {}|{}, {})".format(*users, *reversed(users))
    assert done.returncode == 0 and re.fullmatch(f"{said}{both}\n", done.stderr), done.stderr
    for script in scripts:
        script.process.communicate("\n", timeout=LIMIT)


ALONE = """
import os, sys
from monarch.job import ProcessJob
job = ProcessJob({"hosts": 1})
try:
    job.state("job.pkl", exclusive=True)
except RuntimeError as error:
    print("no:", error)
else:
    print("mine", os.getpid(), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.feature(88, "a second run takes the job over")
def test_of_scripts_that_race_for_a_job_alone_one_gets_it_and_the_others_are_told_who(place):
    scripts = [Script("", begin=ALONE) for _ in range(4)]
    said = [script.process.stdout.readline() for script in scripts]
    won = [line.split()[1] for line in said if line.startswith("mine ")]
    assert len(won) == 1
    whose = rf"process {won[0]} \(.*\.py\) has the job in .*/job\.pkl for itself: wait for its end"
    assert sum(re.match(f"no: {whose}", line) is not None for line in said) == 3
    for script in scripts:
        script.words()
    assert sorted(os.listdir(place)) == ["job.pkl", "t"]  # its user has left
    job_load("job.pkl").kill()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_who_has_a_job_for_itself_has_it_until_it_ends_however(place, end):
    first = Script("", begin=ALONE)
    assert first.process.stdout.readline().startswith("mine ")
    refused = Script("", "job.pkl", "1")
    assert f"process {first.process.pid} (" in refused.process.communicate(timeout=LIMIT)[1]
    first.process.send_signal(end)
    first.process.wait(LIMIT)
    second = Script("", begin=ALONE)
    assert second.process.stdout.readline() == f"mine {second.process.pid}\n"
    second.words()
    job_load("job.pkl").kill()


def test_a_job_that_somebody_uses_cannot_be_had_alone_and_a_child_of_a_user_is_no_user(place):
    first = Script(
        "if child := os.fork():\n    "
        + HOLDS.replace("\n", "\n    ")
        + "\nelse:\n    import signal\n    signal.pause()",
        "job.pkl",
        "1",
    )
    assert first.process.stdout.readline() == f"{first.process.pid}\n"
    whose = rf"process {first.process.pid} \(.*\.py job\.pkl 1\) uses it"
    said = " ".join(Script("", begin=ALONE).words())
    assert re.fullmatch(
        rf"no: the job in .*/job\.pkl cannot be had exclusively: {whose}; wait for its end, or .*", said
    )
    first.process.kill()
    first.process.wait(LIMIT)
    second = Script("", begin=ALONE)
    assert second.process.stdout.readline() == f"mine {second.process.pid}\n"
    second.words()
    job_load("job.pkl").kill()


@pytest.mark.feature(88, "one that does not fit is replaced")
def test_a_job_is_not_taken_from_a_script_that_uses_it_for_one_that_wants_something_else(place):
    first = Script(HOLDS, "job.pkl", "2")
    assert first.process.stdout.readline() == f"{first.process.pid}\n"
    daemons = workers_of("job.pkl")
    refused = Script("", "job.pkl", "3")
    err = refused.process.communicate(timeout=LIMIT)[1].rstrip()
    assert err.endswith("wait for its end, 'monarch kill' the job, or have one of your own by another cached_path")
    whose = rf"It is not replaced, since process {first.process.pid} \(.*\) uses it: "
    assert re.search(rf"the job in .*/job\.pkl is ProcessJob\(.*2.*\), and not ProcessJob\(.*3.*\). {whose}", err)
    assert workers_of("job.pkl") == daemons
    first.words()
    Script("", "job.pkl", "3").words()  # now it is
    assert len(workers_of("job.pkl")) == 3
    job_load("job.pkl").kill()


ANOTHER = "import monarch.job._process_job as m\nm._program = lambda: ('another',)\n"  # installation


def test_a_job_in_use_is_not_taken_by_another_installation_either(place):
    first = Script("", begin=ALONE)
    assert first.process.stdout.readline() == f"mine {first.process.pid}\n"
    daemons = workers_of("job.pkl")
    other = " ".join(Script("", begin=ANOTHER + ALONE).words())
    assert other.startswith("no: the job in ") and " cannot be gone on with here, as another inst" in other
    about = {"class": "cno_such_module.Job", "specification": "Job()", "apply_id": "1"}
    Path("job.pkl").write_bytes(_saved.pack(about, b"cno_such_module\nJob\n."))
    out, _ = Script("", begin=ALONE).process.communicate(timeout=LIMIT)
    assert " cannot be read here. It is not replaced, since process" in out
    assert not any(ended(pid, time.monotonic()) for pid in daemons)
    first.words()
    for pid in daemons:
        os.kill(pid, signal.SIGKILL)


def test_a_job_of_which_a_host_has_ended_is_replaced_though_others_use_it(place):
    first = Script(HOLDS, "job.pkl", "2")
    assert first.process.stdout.readline() == f"{first.process.pid}\n"
    kill_one("job.pkl")
    second = Script("print(job.apply_id)", "job.pkl", "2")
    assert "1 of 2 hosts have ended" in second.process.communicate(timeout=LIMIT)[1]
    assert second.process.returncode == 0
    first.process.kill()
    job_load("job.pkl").kill()


def test_a_second_state_of_one_job_does_not_take_it_from_others_either(place):
    again = "try:\n    job.state('job.pkl')\nexcept RuntimeError as error:\n    print(error)"
    first = Script(f"sys.stdin.readline()\n{ANOTHER}{again}", "job.pkl", "1")
    second = Script(HOLDS, "job.pkl", "1")
    assert second.process.stdout.readline() == f"{second.process.pid}\n"
    out, _ = first.process.communicate("\n", timeout=LIMIT)
    assert f"It is not replaced, since process {second.process.pid} (" in out
    second.process.communicate("\n", timeout=LIMIT)
    job_load("job.pkl").kill()


def test_who_loads_a_job_is_one_of_its_users(place):
    first = Script("", begin=ALONE)
    assert first.process.stdout.readline() == f"mine {first.process.pid}\n"
    with pytest.raises(
        RuntimeError, match=rf"^process {first.process.pid} \(.*\) has the job in .*/job.pkl for itself"
    ):
        job_load("job.pkl").state(None)
    first.words()
    loaded = job_load("job.pkl")
    loaded.state(None, exclusive=True)
    assert " has the job in " in " ".join(Script("", begin=ALONE).words())
    loaded.kill()
    assert sorted(os.listdir(place)) == ["t"]


def test_who_could_not_attach_does_not_keep_others_out(place, monkeypatch):
    job = ProcessJob({"hosts": 1})

    def fail(self):
        raise OSError("no more descriptors")

    with monkeypatch.context() as patch:
        patch.setattr(ProcessJob, "_state", fail)
        with pytest.raises(OSError, match="no more descriptors"):
            job.state("job.pkl", exclusive=True)
    assert Script("", begin=ALONE).process.stdout.readline().startswith("mine ")
    job.kill()


def test_a_full_disk_leaves_no_user_and_no_job(place, monkeypatch):
    def fail(fd, user):
        raise OSError(errno.ENOSPC, "No space left on device")

    job = ProcessJob({"hosts": 1})
    with monkeypatch.context() as patch:
        patch.setattr(_users, "_write", fail)
        with pytest.raises(OSError, match="No space left"):
            job.state("job.pkl")
    assert sorted(os.listdir(place)) == ["t"] and folders() == [] and not job.active
    job.state("job.pkl")
    job.kill()


def test_files_that_are_no_users_are_left_alone_and_hold_nobody_up(place):
    os.mkfifo("job.pkl.user.a")
    os.mkdir("job.pkl.user.b")
    os.symlink("nowhere", "job.pkl.user.c")
    Path("job.pkl.user.d").write_bytes(pickle.dumps(5))
    job = ProcessJob({"hosts": 1})
    job.state("job.pkl", exclusive=True)
    job.kill()
    assert sorted(os.listdir(place)) == [*(f"job.pkl.user.{name}" for name in "abcd"), "t"]


def test_scripts_with_a_local_job_are_nothing_to_each_other(place):
    first = Script(
        "",
        begin="from monarch.job import LocalJob\nLocalJob(['a']).state('job.pkl')\n"
        + HOLDS.replace("print", "import os, sys; print"),
    )
    assert first.process.stdout.readline()
    LocalJob(["b"]).state("job.pkl")
    first.words()


IN_A_LONG_CALL = """
import subprocess, sys, time
from monarch.actor import Actor, SupervisionError, endpoint
from monarch.job import ProcessJob, job_load
class Sleeper(Actor):
    @endpoint
    def sleep(self):
        time.sleep(60)
job = ProcessJob({"hosts": 2})
actors = job.state().hosts.spawn_procs(name="p").spawn("sleeper", Sleeper)
under_way = actors.sleep.call()
"""


def run_here(place, script):
    (place / "script.py").write_text(script)
    return subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=LIMIT)


def test_a_job_that_others_kill_in_a_long_call_is_no_crash(place):
    done = run_here(place, IN_A_LONG_CALL + """
subprocess.run([sys.executable, "-m", "monarch", "kill"], check=True, stderr=subprocess.DEVNULL)
try:
    under_way.get()
except SupervisionError as error:
    print(error)
""")  # fmt: skip
    # A death that nobody has looked at for a second is a line, too: the command may take so long to end.
    cause = "was ended with its monarch-hostd (rank {'hosts': "
    others = [line for line in done.stderr.splitlines() if cause not in line]
    assert (done.returncode, others) == (0, []), done.stderr
    assert cause in done.stdout and "Killed" not in done.stdout, done.stdout


OTHERS = ["job_load().kill()", "ProcessJob({'hosts': 2}).state() and job_load().kill()"]


@pytest.mark.parametrize("end", [*OTHERS, "ProcessJob({'hosts': 1}).state()"])
def test_a_script_ends_its_job_by_any_object_or_replaces_it(place, end):
    done = run_here(place, IN_A_LONG_CALL + f"""
{end}
print(under_way.exception(timeout=20))
""")  # fmt: skip
    told = [line for line in done.stderr.splitlines() if "is replaced: this script uses its hosts itself" not in line]
    assert (done.returncode, told) == (0, []), done.stderr
    assert "stopped: stopped by client" in done.stdout, done.stdout
