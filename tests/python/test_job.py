"""monarch.job: jobs on this machine, and how scripts come back to them."""

import contextlib
import os
import pickle
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import job_scripts
import pytest
from job_scripts import JOB, LIMIT, Script, folders, kill_one, workers_of
from script_run import MARK, Run, ended, marked

from monarch.actor import this_host
from monarch.job import (
    DEFAULT_JOB_PATH,
    JobState,
    JobTrait,
    LocalJob,
    ProcessJob,
    _ending,
    job_load,
    job_loads,
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    yield from job_scripts.directory(tmp_path, monkeypatch)


# ---- ProcessJob: a life ----


@pytest.mark.feature(89, "several hosts on a machine")
def test_processes_on_several_hosts_of_this_machine_which_end_with_kill():
    Run(JOB + """
from monarch.actor import HostMesh, SupervisionError
assert isinstance(state.hosts, HostMesh) and state.hosts.sizes == {"hosts": 2}
assert job.active and job.apply_id
job.kill()
assert not job.active and job.apply_id is None
assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
try:
    workers.pid.call().get()
except SupervisionError as error:
    assert "stopped by client" in str(error), error
job.kill()
""", args=("-",)).ok()  # fmt: skip


def test_a_job_is_killed_after_the_end_of_the_client_too():
    Run(JOB + """
from monarch.actor import shutdown_context
shutdown_context().get()
job.kill()
assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
""", args=("-",)).ok()  # fmt: skip


@pytest.mark.parametrize("stuck", ["worker", "keeper", "daemon"])
def test_what_cannot_end_is_killed_a_second_later_and_no_failure(stuck):
    run = Run(JOB + f"""
import asyncio
worker = pids[0]
daemon, keeper, *_ = lineage(worker, job._run.workers[0].pid)
os.kill({stuck}, signal.SIGSTOP)
async def main():
    began = time.monotonic()
    job.kill()
    print("took", time.monotonic() - began)
asyncio.run(main())
""", args=("-",)).done()  # fmt: skip
    # Besides, that it is stopped, and a call waits for it.
    assert run.status == 0 and re.sub(r".* (is stopped \(SIGSTOP\); .*|goes on, after .*)\n", "", run.err) == ""
    assert float(run.line("took ")) < 5


@pytest.mark.parametrize("ending", ["", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_what_is_not_saved_ends_with_the_script(place, ending):
    script = Script(f"print(*pids, *[each.pid for each in job._run.workers], flush=True)\n{ending}", "-")
    pids = [int(word) for word in script.words(-9 if "kill" in ending else 0)]
    assert len(pids) == 6 and all(ended(pid, time.monotonic() + LIMIT) for pid in pids)
    assert os.listdir(place) == ["t"]
    assert len(folders()) == (1 if ending else 0)
    for name in folders():  # what a killed script has left is removed by a later one
        os.utime(place / "t" / name, (0, 0))
    Script("job.kill()", "-").words()
    assert folders() == []


def test_a_child_by_fork_that_lives_on_does_not_keep_what_is_not_saved(place):
    script = Script("""
if os.fork() == 0:
    for fd in (1, 2):
        os.close(fd)
    os.read(0, 1)  # until the test ends it
    os._exit(0)
print(*[each.pid for each in job._run.workers], flush=True)
""", "-")  # fmt: skip
    pids = [int(word) for word in script.process.stdout.readline().split()]
    assert script.process.wait(LIMIT) == 0
    assert len(pids) == 2 and all(ended(pid, time.monotonic() + LIMIT) for pid in pids)
    script.process.communicate()  # its stdin ends, and so does the child


def test_a_script_that_dies_before_the_job_is_saved_leaves_no_worker(place):
    script = Script("""
job = ProcessJob({"hosts": 2})
job.dump = lambda path: (print(*[each.pid for each in job._run.workers], flush=True), os.kill(os.getpid(), 9))
job.state("job.pkl")
""", begin=JOB.split("path =")[0])  # fmt: skip
    pids = [int(word) for word in script.words(-9)]
    assert len(pids) == 2 and all(ended(pid, time.monotonic() + LIMIT) for pid in pids)
    assert not os.path.exists("job.pkl")
    assert len(Script("print(*pids)\njob.kill()", "job.pkl").words()) == 4


@pytest.mark.feature(89, "kill ends all")
@pytest.mark.feature(88, "kill")
@pytest.mark.parametrize("before", ["", "os.kill(daemon, 9)", "os.kill(keeper, 9)", "os.kill(daemon, 19)"])
def test_kill_ends_all_that_the_workers_have_started(before):
    """Also where a worker, or what stands between it and its processes, was killed or stopped by hand."""
    run = Run(JOB + f"""
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
daemon, keeper, *_ = lineage(pids[0], job._run.workers[0].pid)
left = [workers.leave.call(["sleep", "600"], bare).get().values() for bare in (False, True)]
left = [pid for each in left for pid in each]
assert len(left) == 8 and all(os.path.exists(f"/proc/{{pid}}") for pid in left)
{before}
job.kill()
from monarch.job import _ending
alive = [pid for pid in [*pids, *left, daemon, keeper] if _ending.identify(pid)]
assert not alive, alive
""", args=("-",)).done()  # fmt: skip
    assert run.status == 0, run.err  # which tells what has failed before


def test_a_process_without_its_first_thread_runs_and_can_be_ended(place):
    script = """
import ctypes, os, threading
threading.Thread(target=lambda: (print("runs", flush=True), threading.Event().wait())).start()
ctypes.CDLL(None).syscall(60 if os.uname().machine == "x86_64" else 93, 0)  # exit(2): of this thread alone
"""
    env = {**os.environ, "ENDED": "x"}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env) as it:
        it.stdout.readline()
        deadline = time.monotonic() + LIMIT
        while Path(f"/proc/{it.pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
            assert time.monotonic() < deadline
        assert _ending.identify(it.pid) is not None
        assert _ending.end_all("ENDED=x", [], 0.05, LIMIT) == []
        assert it.wait(LIMIT) == -signal.SIGTERM


def test_what_is_ending_by_itself_is_waited_for_though_nothing_but_its_session_tells_whose_it_is():
    """As the keeper of a killed daemon may be: nobody's child, and without memory no environment can be read."""
    child = "memory = bytearray(b'x') * (1 << 29); print('ready', flush=True); input()"  # takes long to be given back
    leader = (
        f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", leader], start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as it:
        known = _ending.identify(it.pid)
        number, ready = sorted(it.stdout.readline() for _ in range(2))  # either may be first
        exiting = int(number)
        assert ready == "ready\n"
        it.kill()
        assert it.wait(LIMIT) == -signal.SIGKILL
        os.kill(exiting, signal.SIGKILL)
        assert _ending.end_all("ENDED=x", [known], 0.0, LIMIT) == []
        assert _ending.identify(exiting) is None


def test_two_jobs_at_the_same_time_are_apart():
    Run(JOB + """
other = ProcessJob({"trainers": 1, "generators": 2}, env={"GREETING": "hello", "MONARCH_X": "a=b"})
there = other.state(None)
assert (there.trainers.sizes, there.generators.sizes) == ({"hosts": 1}, {"hosts": 2})
greeted = there.generators.spawn_procs().spawn("worker", Worker)
assert greeted.variable.call("GREETING").get().values() == ["hello"] * 2
assert greeted.variable.call("MONARCH_X").get().values() == ["a=b"] * 2
assert workers.variable.call("GREETING").get().values() == [None] * 4
assert other.apply_id != job.apply_id
job.kill()
assert greeted.variable.call("GREETING").get().values() == ["hello"] * 2
other.kill()
""", args=("-",)).ok()  # fmt: skip


def test_asked_again_the_state_has_the_same_hosts_until_they_end():
    Run(JOB + """
first = job.state(None).hosts
assert first is state.hosts
first.stop().get()
again = job.state(None).hosts
assert again is not first
apply_id, before = job.apply_id, job._run.workers
assert len(again.spawn_procs().spawn("worker", Worker).pid.call().get().values()) == 2
assert (job.apply_id, job._run.workers) == (apply_id, before)
for worker in job._run.workers:
    os.kill(worker.pid, signal.SIGSTOP)  # which takes any time to end
again.shutdown().get()  # the workers themselves
anew = job.state(None).hosts
assert job.apply_id != apply_id
assert len(anew.spawn_procs().spawn("worker", Worker).pid.call().get().values()) == 2
job.kill()
""", args=("-",)).ok()  # fmt: skip


def test_a_worker_that_cannot_start_says_why_and_leaves_nothing(place, monkeypatch):
    broken = place / "broken"
    broken.write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr("monarch._meshes.workers.hostd_program", lambda: str(broken))
    job = ProcessJob({"hosts": 2})
    with pytest.raises(RuntimeError, match="a worker of a ProcessJob cannot start: no such luck"):
        job.state("job.pkl")
    assert not job.active and folders() == [] and not os.path.exists("job.pkl")


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        (({},), TypeError, "meshes must be a dict"),
        ((["hosts"],), TypeError, "meshes must be a dict"),
        (({"hosts": 0},), ValueError, "at least one host"),
        (({"hosts": "2"},), TypeError, "'hosts' has the size '2'"),
        (({"admin_url": 1},), ValueError, "cannot be called 'admin_url'"),
        (({"_a": 1},), ValueError, "cannot be called '_a'"),
        (({"../x": 1},), ValueError, "cannot be called '../x': its name may have no space, no '/'"),
        (({"a\nb": 1},), ValueError, "cannot be called"),
        (({".": 1},), ValueError, "may not begin with a dot"),
        (({"hosts": 1}, {"A": 1}), TypeError, "env must map names to values"),
        (({"hosts": 1}, {"A=B": "1"}), ValueError, "env cannot have 'A=B'"),
    ],
)
def test_wrong_specifications_raise_at_once(arguments, error, text):
    with pytest.raises(error, match=text):
        ProcessJob(*arguments)


def test_a_process_job_runs_no_batch():
    job = ProcessJob({"hosts": 1})
    with pytest.raises(RuntimeError, match="ProcessJob cannot run batch-mode scripts"):
        job.apply("script.py")
    assert not job.active


# ---- ProcessJob: the next script ----


@pytest.mark.feature(88, "a second run takes the job over")
def test_a_second_run_takes_the_job_over(place):
    path = ".monarch/job_state.pkl"
    first = Script("print(job.apply_id, *pids)", path).words()
    assert all(ended(int(pid), time.monotonic() + LIMIT) for pid in first[1:])  # the script's, not the job's
    daemons = workers_of(path)
    assert len(daemons) == 2 and not any(ended(pid, time.monotonic()) for pid in daemons)
    assert os.stat(path).st_mode & 0o777 == 0o600 and os.stat(".monarch").st_mode & 0o777 == 0o700
    assert os.listdir(".monarch") == ["job_state.pkl"]
    folder = place / "t" / folders()[0]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}
    second = Script("print(job.apply_id, *pids)", path).words()
    assert second[0] == first[0] and not set(first[1:]) & set(second[1:])
    assert workers_of(path) == daemons
    # Whoever has the file can end it.
    job = job_load()
    assert job.active and job.apply_id == first[0] and isinstance(job, ProcessJob)
    job.kill()
    assert all(ended(pid, time.monotonic()) for pid in daemons)
    assert (os.listdir(".monarch"), folders()) == ([], [])


@pytest.mark.feature(88)
def test_a_client_that_is_killed_while_it_spawns_leaves_whole_hosts_to_the_next(place):
    spawning = """
print(*pids, flush=True)
while True:
    state.hosts.spawn_procs({"gpus": 4}).spawn("more", Worker)
"""
    ends = "print(*pids)"
    killed = Script(spawning, DEFAULT_JOB_PATH)
    first = killed.process.stdout.readline().split()
    hosts = workers_of(DEFAULT_JOB_PATH)
    killed.process.kill()
    killed.process.communicate(timeout=LIMIT)
    assert all(ended(int(pid), time.monotonic() + LIMIT) for pid in first)
    second = Script(ends, DEFAULT_JOB_PATH).words()
    assert len(second) == 4 and not set(first) & set(second)
    assert workers_of(DEFAULT_JOB_PATH) == hosts
    until = time.monotonic() + LIMIT
    while left := set(marked(os.environ[MARK])) - {os.getpid(), *hosts, *waiting_for_the_next(hosts)}:
        assert time.monotonic() < until, left
    job_load().kill()


def waiting_for_the_next(hosts):
    """Each of these daemons has a fork server for its next client."""
    found = []
    for holder in (pid for host in hosts for pid in children(host)):
        if servers := [pid for pid in children(holder) if "fork_server" in command_of(pid)]:
            found += [holder, *servers]
    return found


def children(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
    return []


def command_of(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
        return file.read()
    return ""


@pytest.mark.feature(88, "one that does not fit is replaced")
def test_a_saved_job_that_does_not_fit_is_killed_and_replaced(place):
    first = Script("print(job.apply_id)", "job.pkl").words()
    daemons = workers_of("job.pkl")
    second = Script("print(job.apply_id)", "job.pkl", "3").words()
    assert second != first and all(ended(pid, time.monotonic()) for pid in daemons)
    assert len(workers_of("job.pkl")) == 3 and len(folders()) == 1
    job_load("job.pkl").kill()
    assert folders() == [] and not os.path.exists("job.pkl")


def kill_all(path):
    for pid in workers_of(path):
        os.kill(pid, signal.SIGKILL)


def forget_the_machine(path):
    job = job_load(path)
    kill_all(path)
    job._run = job._run._replace(machine="another")
    job.dump(path)


def take_the_numbers(path):
    """What a job that was lost long ago says: numbers of processes that are others by now."""
    kill_all(path)
    job = job_load(path)
    job._run = job._run._replace(workers=[_ending.Process(os.getpid(), worker.started) for worker in job._run.workers])
    job.dump(path)


@pytest.mark.parametrize("harm", [kill_one, kill_all, take_the_numbers, forget_the_machine])
def test_a_saved_job_that_does_not_run_any_more_is_replaced(place, harm):
    first = Script("print(job.apply_id)", "job.pkl").words()
    daemons = workers_of("job.pkl")
    harm("job.pkl")
    script = Script("print(job.apply_id)", "job.pkl")
    out, err = script.process.communicate(timeout=LIMIT)
    assert script.process.returncode == 0 and out.split() != first
    assert ("of another machine, or of before a restart" in err) == (harm is forget_the_machine)
    lost = {kill_one: "1 of 2 hosts have ended (hosts[1])", kill_all: "2 of 2 hosts have ended (hosts[0], hosts[1])"}
    assert lost.get(harm, "") in err and ("is replaced: " in err) == (harm is not forget_the_machine)
    assert not set(daemons) & set(workers_of("job.pkl"))
    assert all(ended(pid, time.monotonic()) for pid in daemons)
    job_load("job.pkl").kill()
    assert len(folders()) == (1 if harm is forget_the_machine else 0)


@pytest.mark.parametrize("lost", ["1", "token", ""])
def test_a_saved_job_whose_files_others_have_removed_is_replaced(place, lost):
    first = Script("print(job.apply_id)", "job.pkl").words()
    daemons, folder = workers_of("job.pkl"), job_load("job.pkl")._run.folder
    gone = os.path.join(folder, lost) if lost else f"{folder}/token"
    if lost:
        os.unlink(gone)
    else:
        shutil.rmtree(folder)
    out, err = Script("print(job.apply_id)", "job.pkl").process.communicate(timeout=LIMIT)
    assert out.split() not in ([], first) and f"is replaced: its hosts cannot be reached, since {gone} is gone" in err
    assert all(ended(pid, time.monotonic()) for pid in daemons)
    job_load("job.pkl").kill()


def test_a_job_whose_files_are_gone_is_not_replaced_under_who_uses_it(place):
    user = Script("print(job.apply_id, flush=True); sys.stdin.read()", "job.pkl")
    user.process.stdout.readline()
    os.unlink(f"{job_load('job.pkl')._run.folder}/token")
    err = Script("", "job.pkl").process.communicate(timeout=LIMIT)[1]
    assert f"It is not replaced, since process {user.process.pid} " in err
    assert not any(ended(pid, time.monotonic()) for pid in workers_of("job.pkl"))
    user.process.communicate("", timeout=LIMIT)
    job_load("job.pkl").kill()


def test_a_job_that_was_saved_before_containers_counted_is_gone_on_with(place):
    first = Script("print(job.apply_id)", "job.pkl").words()
    job = job_load("job.pkl")
    job._run = job._run._replace(machine=job._run.machine.rpartition("/")[0])
    job.dump("job.pkl")
    assert Script("print(job.apply_id)", "job.pkl").words() == first
    job_load("job.pkl").kill()


def test_numbers_of_processes_of_another_container_say_nothing_here(place):
    """It may see the files of a job, and not its processes."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("no process namespaces on this machine")
    Script("print(job.apply_id)", ".monarch/job_state.pkl").words()
    daemons, folder = workers_of(".monarch/job_state.pkl"), job_load()._run.folder
    for text, why in (
        ("job_load().kill()", "run in another container of this machine: kill it there"),
        ("from monarch.tools.cli import main; sys.exit(main(['exec', 'true']))", "runs in another container of this"),
        ("ProcessJob({'hosts': 2}).state()", "runs in another container of this machine, and is not replaced: use it"),
    ):
        script = f"import sys; from monarch.job import ProcessJob, job_load; {text}"
        done = subprocess.run([*unshare, sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 1 and why in done.stderr
        assert os.path.isdir(folder) and not any(ended(pid, time.monotonic()) for pid in daemons)
    job_load().kill()
    assert all(ended(pid, time.monotonic() + LIMIT) for pid in daemons)


# ---- Files ----


@pytest.mark.parametrize("data", [b"", b"nonsense", pickle.dumps(5), b"cno_such_module\nJob\n."])
def test_a_file_that_holds_no_job_is_refused_and_left_alone(place, data):
    Path("job.pkl").write_bytes(data)
    with pytest.raises(
        ValueError, match=r"job.pkl cannot be read as a saved job: it is no job .* save the job elsewhere$"
    ):
        LocalJob().state("job.pkl")
    assert Path("job.pkl").read_bytes() == data
    with pytest.raises(TypeError, match=r"^cached_path must be the path of a file, or None, but is 3$"):
        LocalJob().state(3)
    with pytest.raises(IsADirectoryError):
        LocalJob().state(str(place))


def test_who_replaces_a_job_of_its_own_is_told(place, caplog):
    ProcessJob({"trainers": 1}).state("job.pkl")
    second = ProcessJob({"evals": 1})
    second.state("job.pkl")
    assert (
        "is replaced: this script uses its hosts itself. For several jobs at a time give each a cached" in caplog.text
    )
    caplog.clear()
    second.state("job.pkl").evals.shutdown().get()
    second.state("job.pkl")
    assert "is replaced: this script has shut its hosts down" in caplog.text
    second.kill()
    with pytest.raises(TypeError, match="^exclusive must be True or False, but is 'no'$"):
        second.state("job.pkl", exclusive="no")
    with pytest.raises(TypeError, match="^env must be a dict of names and values"):
        ProcessJob({"hosts": 1}, env=["X=3"])


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_not_unpickled(place, mode):
    Path("job.pkl").write_bytes(b"cos\nabort\n(tR.")  # ends whoever unpickles it
    os.chmod("job.pkl", mode)
    for use in (lambda: LocalJob().state("job.pkl"), lambda: job_load("job.pkl")):
        with pytest.raises(PermissionError, match=r"job.pkl is not read as a saved job: others .* write it"):
            use()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_not_unpickled(place):
    Path("job.pkl").write_bytes(b"cos\nabort\n(tR.")
    os.chmod("job.pkl", 0o600)
    os.chown("job.pkl", 12345, -1)
    with pytest.raises(PermissionError, match="it belongs to user 12345"):
        LocalJob().state("job.pkl")


def test_a_job_that_cannot_be_saved_is_not_kept(place):
    job = Rented(fails=lambda: None)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        job.state("job.pkl")
    assert not job.active and notes() == ["create", "kill"]
    assert not os.path.exists("job.pkl")
    os.mkdir("job.pkl")
    with pytest.raises(OSError, match="job.pkl"):
        Rented().state("job.pkl")
    assert notes() == ["create", "kill"]


def test_what_a_symlink_names_is_written(place):
    os.mkdir("there")
    os.symlink("there/state.pkl", "job.pkl")
    job = LocalJob()
    job.state("job.pkl")
    assert os.path.islink("job.pkl") and job_load("there/state.pkl").apply_id == job.apply_id
    job.kill()
    assert os.path.islink("job.pkl") and os.listdir("there") == []


# ---- JobTrait ----


class Rented(JobTrait):
    """Writes what is done to it into a file."""

    def __init__(self, size=1, fails=""):
        self.size, self.fails = size, fails

    def _create(self, client_script):
        self._note("create")
        self.at = self.size

    def _state(self):
        return JobState({"hosts": this_host()})

    def can_run(self, spec):
        if self.fails == "can_run":
            raise ValueError("of another version")
        return self.at == spec.size

    def _kill(self):
        if self.fails == "kill":
            raise OSError("no way")
        self._note("kill")

    def _note(self, what):
        with open("notes", "a") as file:
            file.write(f"{what} {self._apply_id}\n")


def notes():
    return [line.split()[0] for line in Path("notes").read_text().splitlines()]


def test_apply_is_done_once_for_a_specification(place):
    job = Rented()
    assert (job.active, job.apply_id) == (False, None)
    job.apply()
    first = job.apply_id
    job.apply()
    assert (job.active, job.apply_id, notes()) == (True, first, ["create"])
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", first)
    job.size = 2
    job.apply()
    assert job.apply_id != first and notes() == ["create", "kill", "create"]
    job.kill()
    job.kill()
    assert (job.active, job.apply_id, notes()) == (False, None, ["create", "kill", "create", "kill"])


def test_state_goes_on_with_a_saved_job_that_can_run_it(place):
    first, second = Rented(), Rented()
    first.state()
    assert os.path.exists(DEFAULT_JOB_PATH) and DEFAULT_JOB_PATH == ".monarch/job_state.pkl"
    second.state()
    assert second.apply_id == first.apply_id and notes() == ["create"]
    assert job_loads(second.dumps()).apply_id == first.apply_id
    third = Rented(3)
    third.state()
    assert third.apply_id != first.apply_id and notes() == ["create", "kill", "create"]
    assert Rented(3).state(cached_path=None) and notes()[3:] == ["create"]
    third.kill()
    assert not os.path.exists(DEFAULT_JOB_PATH)


@pytest.mark.parametrize(
    "fails, text",
    [
        ("kill", "cannot be killed, and is forgotten: OSError: no way"),
        ("can_run", "cannot be compared: ValueError: of another version"),
    ],
)
def test_a_saved_job_that_fails_is_forgotten_and_that_is_logged(place, fails, text, caplog):
    Rented(1, fails).state("job.pkl")
    job = Rented(2)
    job.state("job.pkl")
    assert text in caplog.text and job_load("job.pkl").apply_id == job.apply_id


def test_a_job_that_was_applied_before_is_saved_by_state(place):
    job = Rented()
    job.apply()
    job.state("job.pkl")
    assert notes() == ["create"] and job_load("job.pkl").apply_id == job.apply_id


def test_that_only_the_script_can_read_a_job_of_its_own_class_is_a_warning(place):
    script = Script("class Mine(LocalJob): pass\nMine().state('job.pkl')\n", begin="from monarch.job import LocalJob\n")
    _, err = script.process.communicate(timeout=LIMIT)
    assert script.process.returncode == 0 and err.count("\n") == 1
    assert err.startswith("Mine is a class of the script: the job in ") and "not by 'monarch kill'" in err


def test_what_is_done_is_logged(place, caplog):
    with caplog.at_level("INFO", logger="monarch.job"):
        Rented().state("job.pkl")
    assert [record.message.removeprefix("[actor=<root>] ") for record in caplog.records] == [
        "Applying current job", "Job has started, connecting to current state",
    ]  # fmt: skip


def test_a_job_says_that_its_hosts_are_those_of_its_state():
    job = LocalJob(["trainers"])
    with pytest.raises(
        AttributeError, match="^'LocalJob' object has no attribute 'trainers'; meshes of hosts are attri"
    ):
        job.trainers
    assert not hasattr(job, "__enter__") and job_loads(job.dumps())._names == job._names


def test_a_state_has_its_hosts_by_name():
    state = LocalJob(["trainers", "generators"]).state(None)
    assert state.trainers == state.generators == this_host()
    assert {"trainers", "generators"} <= set(dir(state))
    with pytest.raises(AttributeError) as info:
        state.foo
    assert str(info.value) == "'foo' is not a valid host mesh name. Available names: trainers, generators"
    assert repr(state).startswith("JobState(hosts={'trainers': HostMesh(")
    assert (state.query_engine, state.query_engine_client, state.telemetry_url) == (None, None, None)
    assert (state.dashboard_url, state.admin_url) == (None, None)


@pytest.mark.feature(89)
def test_a_local_job_has_this_host_in_every_script(place):
    job = LocalJob()
    assert job.state().hosts == this_host()
    other = LocalJob()
    assert other.state().hosts == this_host() and other.apply_id == job.apply_id
    with pytest.raises(TypeError, match="a sequence of names"):
        LocalJob("hosts")
    for names in ([], ["a", "a"]):
        with pytest.raises(ValueError, match="hosts must be names of meshes, each of them once, such as"):
            LocalJob(names)
    with pytest.raises(ValueError, match="a mesh cannot be called 'admin_url', since state"):
        LocalJob(["admin_url"])


CLIENT = """
import os, subprocess, sys
from monarch.job import LocalJob
hosts = LocalJob().state("job.pkl").hosts
subprocess.Popen(["sleep", "600"], start_new_session=True)
print("client", os.getpid(), os.environ["MONARCH_BATCH_JOB"], hosts.sizes, flush=True)
os.mkfifo("told")
open("told", "w").close()
sys.stdin.read()
import signal; signal.pause()
"""


def test_a_local_job_runs_a_script_as_its_client_which_outlives_the_one_that_has_applied_it(place):
    Path("client.py").write_text(CLIENT)
    apply = """
from monarch.job import LocalJob
job = LocalJob()
job.apply("client.py")
job.dump("job.pkl")
print(job.process.pid, job.apply_id)
"""
    pid, apply_id = Script(apply, begin="").words()
    log = place / ".monarch/logs" / f"{apply_id}.log"
    deadline = time.monotonic() + LIMIT
    while not os.path.exists("told"):
        assert time.monotonic() < deadline, log.read_text()
        assert not ended(int(pid), time.monotonic() + 0.02), log.read_text()
    open("told").close()  # it has printed
    assert log.read_text() == f"client {pid} 1 {{}}\n" and log.stat().st_mode & 0o777 == 0o600
    job = job_load("job.pkl")
    assert job.process is None and len(marked(apply_id)) >= 2
    job.apply()  # runs already
    assert job.apply_id == apply_id
    job.kill()
    assert ended(int(pid), time.monotonic()) and marked(apply_id) == [] and not os.path.exists("job.pkl")


def test_a_client_that_is_not_there_is_refused(place):
    job = LocalJob()
    with pytest.raises(FileNotFoundError, match="the job's client is no script that is there: 'nope.py'"):
        job.apply("nope.py")
    assert not job.active


def test_a_client_that_is_not_run_since_another_runs_is_a_warning(place, caplog):
    for name in ("client.py", "other.py"):
        Path(name).write_text("import signal; signal.pause()")
    job = LocalJob()
    job.apply("client.py")
    job.apply("other.py")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages[0].endswith("The job runs already, so other.py is not run: kill() it first")
    job.kill()


def test_a_client_that_has_ended_is_no_running_job(place):
    Path("client.py").write_text("")
    job = LocalJob()
    job.apply("client.py")
    assert job.process.wait(LIMIT) == 0
    first = job.apply_id
    job.apply()
    assert job.apply_id != first and job.process is None
    job.kill()


# ---- Ends of processes ----


def test_a_number_that_another_process_has_by_now_is_not_signalled():
    with subprocess.Popen(["sleep", "600"]) as other:
        process = _ending.identify(other.pid)
        before = process._replace(started=process.started - 1)
        assert _ending.is_alive(process) and not _ending.is_alive(before)
        assert _ending.end_all("MONARCH_JOB_ID=none-such", [before], 0.0, 1.0) == []
        assert other.poll() is None
        assert _ending.end_all("MONARCH_JOB_ID=none-such", [process], 0.0, 1.0) == []
        assert other.wait(LIMIT) in (-signal.SIGTERM, -signal.SIGKILL)


def test_children_end_too_whatever_their_environment_is():
    code = (
        "import subprocess\n"
        "print(subprocess.Popen(['sleep', '600'], env={}, start_new_session=True).pid, flush=True)\n"
        "input()"
    )
    env = {**os.environ, "MONARCH_JOB_ID": "parent"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdin=pipe, stdout=pipe, text=True) as parent:
        child = int(parent.stdout.readline())
        assert _ending.end_all("MONARCH_JOB_ID=parent", [], 5.0, 5.0) == []
        assert ended(child, time.monotonic())
        assert parent.wait(LIMIT) == -signal.SIGTERM


def test_who_does_not_end_by_sigterm_is_killed_when_its_time_is_over():
    code = (
        "import signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))\n"
        "print('up', flush=True)\n"
        "while True: signal.pause()"
    )
    env = {**os.environ, "MONARCH_JOB_ID": "stubborn"}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as stubborn:
        assert stubborn.stdout.readline() == "up\n"
        began = time.monotonic()
        assert _ending.end_all("MONARCH_JOB_ID=stubborn", [], 0.3, 5.0) == []
        assert time.monotonic() - began >= 0.3
        assert select.select([stubborn.stdout], [], [], LIMIT)[0] and stubborn.stdout.readline() == "asked\n"
        assert stubborn.wait(LIMIT) == -signal.SIGKILL


def test_nobody_goes_on_because_another_one_has_been_killed_a_moment_before(tmp_path):
    # Where those that are to be killed are not stopped first, the last of them goes on in two of three runs.
    after = tmp_path / "went on"
    code = (
        "import os, select, signal, subprocess\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "first, *_ = [subprocess.Popen(['sleep', '600']) for _ in range(400)]\n"  # they ignore it, too
        "if os.fork() == 0:\n"  # looked at after all of them
        "    fd = os.pidfd_open(first.pid)\n"
        "    print('up', flush=True)\n"
        "    select.select([fd], [], [])\n"
        f"    os.mkdir({str(after)!r})\n"
        "signal.pause()"
    )
    env = {**os.environ, "MONARCH_JOB_ID": "together"}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "up\n"
        assert _ending.end_all("MONARCH_JOB_ID=together", [], 0.0, LIMIT) == []
        assert parent.wait(LIMIT) == -signal.SIGKILL
    assert not after.exists()
