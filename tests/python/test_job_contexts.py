"""Jobs by name in one directory, the commands about them, and what a saved job looks like."""

import contextlib
import datetime
import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from decimal import Decimal
from pathlib import Path

import pytest
from script_run import MARK, ended, marked

from monarch.job import (
    DEFAULT_JOB_PATH,
    JobState,
    JobTrait,
    LocalJob,
    MeshAdminConfig,
    ProcessJob,
    SlurmJob,
    SSHJob,
    TelemetryConfig,
    _contexts,
    _saved,
    job_load,
    job_loads,
    load_current_job,
    set_current_job,
)
from monarch.tools.cli import main

LIMIT = 60
JOBS, A_CLASS = "there are: cluster.job, cluster.local", "a class of jobs, of which none is made"
LOST = "ModuleNotFoundError: No module named 'lost'"
CLUSTER = """
from monarch.job import LocalJob, ProcessJob
job = ProcessJob({"hosts": 2, "one": 1})
local = LocalJob(["a", "b"])
number = 5
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with a module of jobs. Nothing that begins there may be left."""
    (tmp_path / "t").mkdir()
    (tmp_path / "cluster.py").write_text(CLUSTER)
    mark = tmp_path.name + os.urandom(4).hex()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "cluster", raising=False)
    yield tmp_path
    left = set(marked(mark)) - {os.getpid()}
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert all(ended(pid, time.monotonic() + LIMIT) for pid in left)


def monarch(*arguments, status=0):
    """What it says on stdout, and on stderr."""
    done = subprocess.run([sys.executable, "-m", "monarch", *arguments], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


@pytest.mark.feature(96, "the commands")
def test_apply_allocates_what_a_module_names_and_kill_releases_it(place):
    assert monarch("apply", "cluster.job") == ("hosts: 2\none: 1\n", "")
    first = job_load()
    assert first.active and all(os.path.exists(f"/proc/{worker.pid}") for worker in first._run.workers)
    told, _ = monarch("apply", "--json")  # the same, which is there
    assert json.loads(told) == {
        "apply_id": first.apply_id, "context": "default", "meshes": {"hosts": {"hosts": 2}, "one": {"hosts": 1}},
    }  # fmt: skip
    assert monarch("context", "ls")[0] == "* default  cluster.job  ProcessJob({'hosts': 2, 'one': 1})\n"
    assert monarch("kill") == ("", "")
    assert all(ended(worker.pid, time.monotonic() + LIMIT) for worker in first._run.workers)
    assert monarch("kill") == ("", f"no job was saved in the context 'default' of {place}\n")
    assert monarch("context", "ls")[0] == "* default  cluster.job  not applied\n"


def test_kill_says_what_it_has_ended_as_json(place, monkeypatch):
    monkeypatch.setenv("USER", "somebody")
    monarch("apply", "cluster.job")
    apply_id = job_load().apply_id
    (place / "t/somebody").mkdir()
    (place / f"t/somebody/monarch_log_{apply_id[:8]}~hosts~0_20260131-120000-4711.log").touch()
    told, said = monarch("kill", "--json")
    assert said == "" and json.loads(told) == {
        "context": "default", "apply_id": apply_id, "job": "ProcessJob({'hosts': 2, 'one': 1})",
        "logs": [f"{place}/t/somebody"],
    }  # fmt: skip
    nothing = {"context": "default", "apply_id": None, "job": None, "logs": []}
    assert json.loads(monarch("kill", "default", "--json")[0]) == nothing


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("cluster.number", f"cluster.number must be a job, a JobTrait, but there is a int; {JOBS}"),
        ("cluster.nothing", "cluster.nothing must be a job, a JobTrait, but there is nothing of that name; " + JOBS),
        ("no_such.job", "No module named 'no_such', in PLACE or where else Python looks"),
        ("imports.job", f"imports cannot be imported: {LOST} (PLACE/imports.py, line 1)"),
        ("cluster.LocalJob", f"cluster.LocalJob must be a job, a JobTrait, but there is {A_CLASS}; {JOBS}"),
        ("empty.job", "empty.job must be a job, a JobTrait, but there is nothing of that name, and empty makes none"),
        ("wrong.job", "wrong cannot be imported: SyntaxError: invalid syntax (wrong.py, line 1)"),
        ("fails.job", "fails cannot be imported: KeyError: 'a' (PLACE/fails.py, line 2)"),
    ],
)
def test_apply_says_why_what_it_was_given_is_no_job(place, name, why):
    (place / "imports.py").write_text("import lost\n")
    (place / "empty.py").touch()
    (place / "wrong.py").write_text("job = = 5\n")
    (place / "fails.py").write_text("jobs = {}\njob = jobs['a']\n")
    assert monarch("apply", name, status=1) == ("", f"monarch apply: {why.replace('PLACE', str(place))}\n")
    assert not os.path.lexists(DEFAULT_JOB_PATH)


def test_apply_without_a_name_wants_one_that_was_remembered(place):
    _, err = monarch("apply", status=1)
    assert re.match(r"monarch apply: there is no job in the context 'default' of .*: 'monarch apply module.attrib", err)


@pytest.mark.feature(96, "contexts")
def test_contexts_have_jobs_of_their_own(place):
    LocalJob().state()  # before there were any contexts
    assert not os.path.islink(DEFAULT_JOB_PATH)
    plain = job_load().apply_id
    monarch("context", "create", "big")
    assert os.readlink(DEFAULT_JOB_PATH) == "big/state.pkl" and not os.path.exists(DEFAULT_JOB_PATH)
    monarch("apply", "cluster.local")
    big = job_load().apply_id
    assert (
        monarch("context", "ls")[0] == "* big  cluster.local  LocalJob(['a', 'b'])\n  default    LocalJob(['hosts'])\n"
    )
    monarch("context", "use", "default")
    assert job_load().apply_id == plain and _contexts.current() == "default"
    monarch("context", "rm", "big")
    assert not os.path.exists(".monarch/big") and job_load().apply_id == plain
    monarch("context", "use", "default")
    assert job_load(".monarch/default/state.pkl").apply_id == plain != big


@pytest.mark.feature(96, "contexts")
def test_removing_the_active_context_kills_its_job_and_default_is_active(place):
    monarch("context", "create", "big")
    monarch("apply", "cluster.job")
    workers, apply_id = job_load()._run.workers, job_load().apply_id
    said = f"monarch context: the job of 'big' is killed: ProcessJob({{'hosts': 2, 'one': 1}}), apply_id {apply_id}\n"
    assert monarch("context", "rm", "big") == ("", said)
    assert all(ended(worker.pid, time.monotonic() + LIMIT) for worker in workers)
    assert not os.path.lexists(DEFAULT_JOB_PATH) and _contexts.names() == ["default"]
    monarch("context", "create", "small")
    assert monarch("context", "rm", "small") == ("", "")  # it has no job


def test_which_job_ends_with_its_context_is_said_before_it_does(place, monkeypatch, capsys):
    LocalJob(["x"]).state()
    monkeypatch.setattr(LocalJob, "_kill", lambda job: print("ends", file=sys.stderr))
    assert main(["context", "rm", "default"]) == 0
    assert re.fullmatch(
        r"monarch context: the job of 'default' is killed: LocalJob\(\['x'\]\), apply_id .*\nends\n",
        capsys.readouterr().err,
    )


USES = """
import sys
from monarch.job import ProcessJob
try:
    ProcessJob({"hosts": 1}).state(exclusive=True)
except RuntimeError as error:
    print(error)
else:
    print("mine", flush=True)
    sys.stdin.readline()
"""


def test_who_uses_a_job_goes_along_where_contexts_move_it(place):
    def script():
        return subprocess.Popen(
            [sys.executable, "-c", USES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip

    with script() as holder:
        assert holder.stdout.readline() == "mine\n"
        monarch("context", "create", "big")
        monarch("context", "use", "default")
        with script() as second:
            assert f"process {holder.pid} (" in second.communicate(timeout=LIMIT)[0]
        monarch("context", "rm", "default")
        assert not os.path.exists(".monarch/default")
        holder.communicate("\n", timeout=LIMIT)


class Slow(LocalJob):
    """Another command comes in the middle."""

    meanwhile = []

    def _create(self, client_script):
        if "create" in self.meanwhile:
            monarch("context", "use", "default")

    def _kill(self):
        if "kill" in self.meanwhile:
            other = LocalJob(["other"])
            other.apply()
            other.dump(DEFAULT_JOB_PATH)


@pytest.mark.feature(96, "contexts")
def test_a_job_is_saved_in_the_context_that_was_active_when_it_was_asked_for(place, monkeypatch):
    LocalJob(["plain"]).state()
    _contexts.create("big")
    monkeypatch.setattr(Slow, "meanwhile", ["create"])
    Slow(["slow"]).state()
    assert _contexts.current() == "default" and repr(job_load()) == "LocalJob(['plain'])"
    assert repr(job_load(".monarch/big/state.pkl")) == "LocalJob(['slow'])"


def test_the_first_context_waits_for_a_job_that_is_being_saved(place, monkeypatch):
    began, made = threading.Event(), []

    def create():
        _contexts.create("big")
        made.append(_contexts.current())

    class Creates(LocalJob):
        def _create(self, client_script):
            monkeypatch.setattr(fcntl, "flock", lambda *how: (began.set(), flock(*how))[1])
            other.start()
            assert began.wait(LIMIT)  # it comes to a lock

    flock, other = fcntl.flock, threading.Thread(target=create)
    monkeypatch.setitem(globals(), "Creates", Creates)
    Creates.__qualname__ = "Creates"
    Creates(["slow"]).state()
    other.join(LIMIT)
    assert made == ["big"] and not os.path.exists(DEFAULT_JOB_PATH)
    assert repr(job_load(".monarch/default/state.pkl")) == "LocalJob(['slow'])"


def test_a_job_that_contexts_have_moved_leaves_no_file_when_its_script_kills_it(place):
    mine, other = LocalJob(["mine"]), LocalJob(["other"])
    mine.state()
    monarch("context", "create", "big")
    other.state()
    mine.kill()
    assert not os.path.lexists(".monarch/default/state.pkl")
    assert repr(job_load()) == "LocalJob(['other'])"
    mine.state(".monarch/default/state.pkl")
    other.kill()
    assert repr(job_load(".monarch/default/state.pkl")) == "LocalJob(['mine'])", "which is not its own"


def test_a_job_is_found_if_the_first_context_was_not_completely_made(place, monkeypatch):
    LocalJob(["plain"]).state()
    for name in ("big", "small"):
        with monkeypatch.context() as killed:
            killed.setattr(_contexts, "_link", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                _contexts.create(name)
        assert repr(job_load()) == "LocalJob(['plain'])"
    _contexts.use("default")
    assert os.path.islink(DEFAULT_JOB_PATH) and repr(job_load()) == "LocalJob(['plain'])"


@pytest.mark.feature(96, "contexts")
def test_what_is_saved_while_a_job_is_killed_stays(place, monkeypatch):
    Slow(["slow"]).state()
    monkeypatch.setattr(Slow, "meanwhile", ["kill"])
    assert _contexts.kill("default") and repr(job_load()) == "LocalJob(['other'])"


class Interrupted(LocalJob):
    @property
    def initialized(self):
        raise KeyboardInterrupt

    def _state(self):
        return JobState({"hosts": self})


def test_who_interrupts_apply_is_told_that_there_are_hosts(place, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cluster", type(sys)("cluster"))
    sys.modules["cluster"].job = Interrupted()
    assert main(["apply", "cluster.job"]) == 130
    assert capsys.readouterr().err == "monarch apply: the hosts stay allocated; 'monarch kill' releases them\n"


def test_who_waits_for_another_process_says_so(place, monkeypatch):
    monkeypatch.setattr(_saved, "_TOLD_AFTER_S", 0.01)
    has_lock, is_told, told = threading.Event(), threading.Event(), []

    def hold():
        with _saved.locked("job"):
            has_lock.set()
            is_told.wait(LIMIT)

    holder = threading.Thread(target=hold)
    holder.start()
    assert has_lock.wait(LIMIT)
    monkeypatch.setattr(_saved.logger, "warning", lambda text, *args: (told.append(text % args), is_told.set()))
    with _saved.locked("job"):
        assert told == ["waiting for another process that uses job"]
    holder.join()


@pytest.mark.feature(96, "contexts")
def test_there_is_always_a_default_to_go_back_to(place):
    monarch("context", "create", "big")
    assert monarch("context", "ls")[0] == "* big    not applied\n  default    not applied\n"
    monarch("context", "use", "default")
    assert _contexts.current() == "default"


def test_a_saved_job_that_cannot_be_read_is_named(place):
    monarch("apply", "cluster.local")
    good = Path(DEFAULT_JOB_PATH).read_text()
    Path(DEFAULT_JOB_PATH).write_text(good.replace('"sha256": "', '"sha256": "x'))
    why = "monarch kill: .monarch/default/state.pkl cannot be read as a saved job: it is damaged: something is missing"
    assert monarch("kill", status=1)[1].startswith(why)
    assert monarch("apply", "cluster.local", status=1)[1].endswith("`pgrep -af monarch-hostd` shows it)\n")
    os.unlink(".monarch/default/state.pkl")
    (place / "cluster.py").write_text(CLUSTER + "class Mine(LocalJob): pass\nmine = Mine()\n")
    monarch("apply", "cluster.mine")
    (place / "cluster.py").write_text(CLUSTER)
    why = "monarch kill: .monarch/default/state.pkl cannot be read as a saved job: AttributeError: "
    assert monarch("kill", status=1)[1].startswith(why)


def test_a_file_that_cannot_be_a_saved_job_is_named(place):
    Path("job").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="^job cannot be read as a saved job: it is no job that this project has sav"):
        job_load("job")
    Path("job").write_bytes(b"[" * 100_000)
    with pytest.raises(ValueError, match="^job cannot be read as a saved job: it is no job that this project has sav"):
        job_load("job")
    os.truncate("job", 60 << 30)
    with pytest.raises(
        ValueError, match=f"^job cannot be read as a saved job: it is too large for one: {60 << 30} byt"
    ):
        job_load("job")
    with pytest.raises(IsADirectoryError, match=r"Is a directory: '\.'$"):
        job_load(".")
    os.makedirs(DEFAULT_JOB_PATH)
    assert monarch("ps", status=1)[1] == f"monarch ps: [Errno 21] Is a directory: '{DEFAULT_JOB_PATH}'\n"


def test_commands_on_hosts_say_that_a_saved_class_is_gone(place):
    (place / "cluster.py").write_text(CLUSTER + "class Mine(LocalJob): pass\nmine = Mine()\n")
    monarch("apply", "cluster.mine")
    (place / "cluster.py").write_text(CLUSTER)
    _, err = monarch("exec", "true", status=1)
    assert err.startswith(f"monarch exec: {DEFAULT_JOB_PATH} cannot be read as a saved job: AttributeError: ")


def test_a_job_of_which_a_host_has_ended_says_which(place):
    monarch("apply", "cluster.job")
    daemon = job_load()._run.workers[2].pid
    os.kill(daemon, signal.SIGKILL)
    assert ended(daemon, time.monotonic() + LIMIT)
    _, err = monarch("exec", "--all", "true", status=1)
    assert (
        "the active job is no longer running or healthy: 1 of 3 hosts have ended (one[0]). 'monarch apply', or" in err
    )
    monarch("apply")
    monarch("exec", "--all", "true")
    monarch("kill")


def test_what_is_no_file_is_not_waited_for(place):
    os.makedirs(".monarch/default")
    os.mkfifo(DEFAULT_JOB_PATH)
    assert "job_state.pkl cannot be read as a saved job: it is no regular file" in monarch("kill", status=1)[1]
    Path(".monarch/default/spec").touch(0o600)
    os.chmod(".monarch/default/spec", 0o666)
    assert "default/spec is not read as a saved job: others than its owner may write it" in monarch("context", "ls")[0]


@pytest.mark.feature(96, "contexts")
def test_a_link_of_the_users_own_is_the_default_context(place):
    os.makedirs(".monarch")
    os.symlink("../mine", DEFAULT_JOB_PATH)
    monarch("apply", "cluster.local")
    assert repr(job_load("mine")) == "LocalJob(['a', 'b'])" and _contexts.current() == "default"
    monarch("context", "create", "big")
    monarch("context", "use", "default")
    assert monarch("kill") == ("", "") and not os.path.exists("mine")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../x",
        ".x",
        "-x",
        "a/b",
        "logs",
        "slurm",
        "workspace",
        "contexts.lock",
        "job_state.pkl",
        "a" * 64,
        "a b",
        "ü",
    ],
)
def test_what_cannot_be_the_name_of_a_context_is_refused(place, name):
    with pytest.raises(ValueError, match="a context cannot be called"):
        _contexts.create(name)
    assert not os.path.exists(".monarch")


def test_folders_of_something_else_are_no_contexts(place):
    for name in ("logs", "slurm", "workspace"):
        os.makedirs(f".monarch/{name}/1")
    assert _contexts.names() == ["default"]


def test_a_context_is_made_once_and_used_only_if_it_is_there(place):
    _contexts.create("big")
    with pytest.raises(ValueError, match="there is a context 'big' already"):
        _contexts.create("big")
    for change in (_contexts.use, _contexts.remove):
        with pytest.raises(ValueError, match="there is no context 'small'; there are: big"):
            change("small")
    assert monarch("kill", "small", status=1)[1].startswith("monarch kill: there is no context 'small'")


@pytest.mark.feature(88)
def test_the_current_job_is_what_was_set_or_what_was_saved(place):
    with pytest.raises(RuntimeError, match="there is no job in the context 'default'"):
        load_current_job()
    job = LocalJob(["x"])
    job.state()
    assert load_current_job().apply_id == job.apply_id
    set_current_job("cluster.local")
    assert repr(load_current_job()) == "LocalJob(['a', 'b'])"
    assert load_current_job() is load_current_job()  # the module's own
    for wrong in ("cluster", "cluster.", ".job", "a b.c", ""):
        with pytest.raises(ValueError, match="a job is named as module.attribute"):
            set_current_job(wrong)
    why = r"^set_current_job takes where a job is made, a str such as 'cluster.job', but was given LocalJob\(\['x'\]\)$"
    with pytest.raises(TypeError, match=why):
        set_current_job(job)


def test_a_saved_job_says_what_it_is_without_being_unpickled(place):
    LocalJob(["x"]).state()
    saved = json.loads(Path(DEFAULT_JOB_PATH).read_text())
    assert (saved["monarch_job"], saved["class"]) == (2, "monarch.job._local.LocalJob")
    assert saved["specification"] == "LocalJob(['x'])" and saved["apply_id"] == job_load().apply_id
    assert stat.S_IMODE(os.stat(DEFAULT_JOB_PATH).st_mode) == 0o600


def _damaged():
    good = json.loads(LocalJob().dumps())
    yield b"", "no job that this project has saved"
    yield b"cos\nabort\n(tR.", "no job that this project has saved"
    yield b"[1]", "no job that this project has saved"
    yield json.dumps({**good, "monarch_job": 99}).encode(), "saved by another version"
    yield json.dumps({**good, "monarch_job": 1}).encode(), "saved by another version"
    yield json.dumps({**good, "pickled": good["pickled"][:-8]}).encode(), "damaged"
    yield json.dumps({**good, "pickled": "Y29zCmFib3J0Cih0Ui4="}).encode(), "damaged"
    for name in list(good)[1:]:
        yield json.dumps({each: good[each] for each in good if each != name}).encode(), "damaged"
        yield json.dumps({**good, name: f"{good[name]}a"}).encode(), "damaged"
    yield json.dumps({**good, "more": ""}).encode(), "damaged"


@pytest.mark.parametrize(("data", "why"), list(_damaged()))
def test_what_is_no_saved_job_or_damaged_is_not_unpickled(data, why):
    with pytest.raises(ValueError, match=why):
        job_loads(data)


@pytest.mark.parametrize("text, other", [("trainers", "trainerz"), ("_process_job.ProcessJob", "_process_job.Rented")])
def test_a_file_of_which_a_person_has_changed_what_is_for_people_is_refused_unread(place, text, other):
    data = ProcessJob({"trainers": 1}).dumps()
    Path("job").write_bytes(data.replace(text.encode(), other.encode(), 1))
    Path("job").chmod(0o600)
    for refused in (
        lambda: job_loads(Path("job").read_bytes()), lambda: job_load("job"), lambda: LocalJob().state("job"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="it is damaged: something is missing, or was changed. Remove it"):
            refused()


def test_how_a_file_is_laid_out_does_not_matter():
    data = LocalJob(["x"]).dumps()
    assert repr(job_loads(json.dumps(json.loads(data), sort_keys=True).encode())) == "LocalJob(['x'])"


def _resaved(path, **changed):
    """As one that a process with another class would have saved. None: without that."""
    about, pickled = _saved.unpack(_saved.read(path))
    about = {name: value for name, value in {**about, **changed}.items() if value is not None}
    _saved.write(path, _saved.pack(about, pickled))


def _of_ssh(host):
    job = SSHJob()
    job.add_mesh("a", [host])
    return job


@pytest.mark.parametrize(
    "one, other",
    [
        (LocalJob(["x"]), LocalJob(["y"])),
        (ProcessJob({"a": 1}), ProcessJob({"a": 2})),
        (ProcessJob({"a": 1}, env={"A": "1"}), ProcessJob({"a": 1}, env={"A": "2"})),
        (_of_ssh("b"), _of_ssh("c")),
        (SlurmJob({"a": 1}), SlurmJob({"a": 1}, mem="1G")),
    ],
)
def test_the_hash_of_a_specification_tells_one_from_another_and_is_the_same_elsewhere(one, other):
    def hash_of(job):
        return json.loads(job.dumps())["specification_sha256"]

    assert re.fullmatch("[0-9a-f]{64}", hash_of(one)) and hash_of(one) != hash_of(other)
    data = one.dumps()
    code = (
        "import sys; from monarch.job import job_loads; job = job_loads(sys.stdin.buffer.read()); print(job._digest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    found = subprocess.run([sys.executable, "-c", code], input=data, env=environment, capture_output=True, check=True)
    assert found.stdout.decode().strip() == hash_of(one) == job_loads(data)._digest()


def test_a_saved_job_whose_specification_is_another_is_refused(place):
    LocalJob(["x"]).state()
    good = json.loads(Path(DEFAULT_JOB_PATH).read_text())["specification_sha256"]
    _resaved(DEFAULT_JOB_PATH, specification_sha256=good[::-1])
    why = "cannot be read as a saved job: its specification is not the one that it was saved with: LocalJob, or what it"
    with pytest.raises(ValueError, match=why):
        job_load()
    before = Path(DEFAULT_JOB_PATH).read_text()
    for wanted in (LocalJob(["x"]), LocalJob(["y"])):
        with pytest.raises(ValueError, match=why):
            wanted.state()
    assert Path(DEFAULT_JOB_PATH).read_text() == before, "nobody has replaced it"
    _resaved(DEFAULT_JOB_PATH, specification_sha256=good)
    assert job_load().active
    _resaved(DEFAULT_JOB_PATH, specification_sha256=good[::-1])
    assert "is ended, though its specification is not the one" in monarch("kill")[1]
    assert not os.path.exists(DEFAULT_JOB_PATH)


class PidJob(JobTrait):
    """One of a user's, which does not say what it wants."""

    def _create(self, client_script=None):
        pass

    def _state(self):
        return JobState({})

    def can_run(self, spec):
        return isinstance(spec, PidJob)

    def _kill(self):
        pass

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.made_in = object()


def test_a_class_that_does_not_say_what_it_wants_is_gone_on_with_whatever_it_keeps(place):
    first = PidJob()
    first.state()
    assert "specification_sha256" not in json.loads(Path(DEFAULT_JOB_PATH).read_text())
    again = PidJob()
    again.state()
    assert again.apply_id == first.apply_id


def test_a_job_that_was_saved_without_the_hash_of_its_specification_is_gone_on_with(place):
    LocalJob(["x"]).state()
    saved = json.loads(Path(DEFAULT_JOB_PATH).read_text())
    _resaved(DEFAULT_JOB_PATH, specification_sha256=None)
    job = LocalJob(["x"])
    job.state()
    assert job.apply_id == saved["apply_id"]
    assert json.loads(monarch("context", "ls", "--json")[0])[0]["specification"] is None


def test_the_beginning_of_the_hash_is_told_of_contexts(place):
    monarch("apply", "cluster.local")
    whole = json.loads(Path(DEFAULT_JOB_PATH).read_text())["specification_sha256"]
    (found,) = json.loads(monarch("context", "ls", "--json")[0])
    assert found == {
        "name": "default", "active": True, "job": "cluster.local", "saved": "LocalJob(['a', 'b'])",
        "specification": whole[:12],
    }  # fmt: skip


class OddJob(LocalJob):
    """One of a user's, with values of its own."""

    def __init__(self, *values):
        super().__init__()
        self.values = values

    def _specification(self):
        return self.values


def test_any_value_has_a_hash_that_goes_by_what_it_says():
    class Machine:
        def __init__(self, size):
            self.size, self.myself = size, self  # not for ever

    values = [b"a", {"b", "a"}, {1: (2.5, None)}, Machine(1), TelemetryConfig(), [True], "\ud800"]
    hashes = [OddJob(value)._digest() for value in values]
    assert len(set(hashes)) == len(values)
    values[1], values[3] = {"a", "b"}, Machine(1)
    assert [OddJob(value)._digest() for value in values] == hashes
    assert OddJob(Machine(2))._digest() != hashes[3]


class Settings:
    """A user's, which leaves something out when it is pickled."""

    def __init__(self, size):
        self.size, self.cache = size, {"open": True}

    def __getstate__(self):
        return {"size": self.size}


class Unreadable:
    """What cannot be unpickled where it was pickled."""

    def __reduce__(self):
        return int, ("none",)


def test_the_hash_is_of_what_comes_out_of_the_pickle():
    data = OddJob(Settings(1)).dumps()
    assert "specification_sha256" in json.loads(data)
    assert job_loads(data).values[0].size == 1
    assert "specification_sha256" not in json.loads(OddJob(Unreadable()).dumps())


def test_objects_that_refer_to_each_other_are_looked_at_once():
    class Node:
        pass

    nodes = [Node() for _ in range(40)]
    for node in nodes:
        node.others, node.some = nodes, set(nodes[:5])
    begin = time.monotonic()
    assert OddJob(*nodes)._digest() == OddJob(*nodes)._digest()
    shared = ["x"]
    for _ in range(15):
        shared = [shared] * 10
    OddJob(shared)._digest()
    assert time.monotonic() - begin < 5
    one = [1]
    assert OddJob(one, one)._digest() == OddJob([1], [1])._digest()


def test_objects_without_attributes_count_by_value():
    pairs = [(Path("a"), Path("b")), (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
             (Decimal("1.0"), Decimal("1.1")), (deque([1]), deque([2])), (re.compile("a"), re.compile("b")),
             (range(1), range(2)), (1j, 2j), (len, max), (Path, Decimal)]  # fmt: skip
    for one, other in pairs:
        assert OddJob(one)._digest() == OddJob(one)._digest() != OddJob(other)._digest()
    assert job_loads(OddJob(*(one for one, _ in pairs)).dumps()).values[0] == Path("a")


def test_telemetry_and_administration_are_asked_for_and_said_not_to_be_there(place, caplog):
    job = LocalJob().enable_telemetry(include_dashboard=True, mesh_admin_config=MeshAdminConfig())
    assert job.enable_telemetry(TelemetryConfig(retention_secs=0)) is job
    with caplog.at_level("WARNING", "monarch.job"):
        state = job.state(cached_path=None)
    assert "telemetry is not there yet: the job runs without" in caplog.text
    assert "the API of administration is not there yet" in caplog.text
    assert (state.telemetry_url, state.dashboard_url, state.admin_url, state.query_engine_client) == (None,) * 4
    with pytest.raises(RuntimeError, match="distributed telemetry is not active"):
        job.profile()
    with pytest.raises(RuntimeError, match="could not connect to distributed telemetry"):
        job.telemetry_query_client()
    with pytest.raises(TypeError, match="retention"):
        LocalJob().enable_telemetry(retention=5)
    with pytest.raises(TypeError, match="config must be a TelemetryConfig, but is 5"):
        LocalJob().enable_telemetry(5)


@pytest.mark.feature(88)
def test_what_takes_telemetry_says_what_to_call_first(place):
    job = LocalJob()
    with pytest.raises(RuntimeError, match="requires distributed telemetry; call job.enable_telemetry"):
        job.profile()
    with pytest.raises(RuntimeError, match="the saved job is not active"):
        job.telemetry_query_client()
    job.state(cached_path=None)
    with pytest.raises(RuntimeError, match="the active job has no distributed telemetry configured"):
        job.telemetry_query_client()


def test_what_lies_beside_a_job_of_another_place_is_not_looked_at(place, caplog):
    os.makedirs("x/default/state.pkl")  # a user's own
    job = LocalJob(["x"])
    job.state(cached_path="x/job.pkl")
    job.kill()
    assert os.listdir("x") == ["default"] or sorted(os.listdir("x")) == ["default", "job.pkl.lock"]
    assert not caplog.records
