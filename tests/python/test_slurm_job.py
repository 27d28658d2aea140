"""monarch.job.SlurmJob, with the daemons of a real Slurm on this machine where they are installed."""

import contextlib
import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from script_run import MARK, PROGRAMS, Run, ended, marked
from slurm import Slurm, why_not

from monarch.actor import Actor, SupervisionError, endpoint
from monarch.job import SlurmJob, _slurm_commands, _slurm_script, job_load
from monarch.job._slurm_commands import Found, parse_json, parse_text

LIMIT = 60
JOB, CLIENT = (str(PROGRAMS / "slurm_job" / name) for name in ("job.py", "client.py"))
RECORDED = json.loads((PROGRAMS / "slurm_job" / "recorded.json").read_text())


class Worker(Actor):
    @endpoint
    def node(self) -> str:
        return os.environ["SLURMD_NODENAME"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    made = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        made.start()
    except RuntimeError as error:
        pytest.skip(str(error))
    yield made
    made.stop()


@pytest.fixture
def slurm(cluster, tmp_path, monkeypatch):
    """The cluster, and a working directory. No job, and no process of one, may be left."""
    mark = tmp_path.name + os.urandom(4).hex()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(MARK, mark)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PROGRAMS.parent), os.environ.get("PYTHONPATH", "")]))
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    yield cluster
    left = cluster.jobs()
    for job_id in left:
        cluster.run("scancel", job_id)
    until = time.monotonic() + LIMIT / 3
    alive = [pid for pid in in_jobs(mark) if not ended(pid, until)]
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert (left, alive) == ([], [])


def in_jobs(mark):
    """The processes of Slurm jobs among those with the mark."""
    found = []
    for pid in marked(mark):
        with contextlib.suppress(OSError):
            if b"\0SLURM_JOB_ID=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
                found.append(pid)
    return found


def wait_until(is_so, limit=LIMIT):
    """Looks now and then, as there is no event for what Slurm does."""
    until = time.monotonic() + limit
    while not is_so():
        assert time.monotonic() < until
        select.select([], [], [], 0.1)


def made(meshes=None, **options):
    return SlurmJob(meshes or {"hosts": 2}, python_exe=sys.executable, **{"monarch_port": 0, **options})


def nodes(hosts):
    return hosts.spawn_procs().spawn("worker", Worker).node.call().get(timeout=LIMIT).values()


def script(*args):
    return subprocess.Popen(
        [sys.executable, JOB, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def words(process, status=0):
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == status, err
    return out.splitlines()[-1].split(), err


# ---- A life ----


@pytest.mark.parametrize("speaks_json", [True, False])
@pytest.mark.feature(90, "workers on nodes")
def test_hosts_on_nodes_of_which_each_mesh_has_its_own(slurm, monkeypatch, speaks_json, capfd):
    monkeypatch.setattr(_slurm_commands, "_json_fails", not speaks_json)
    job = made({"trainers": 2, "generators": 1})
    state = job.state(cached_path=None)
    assert (state.trainers.sizes, state.generators.sizes) == ({"hosts": 2}, {"hosts": 1})
    assert sorted([*nodes(state.trainers), *nodes(state.generators)]) == sorted(slurm.nodes)
    job_id, folder = job._job_id, job._folder()
    told = rf"monarch: Slurm job {job_id} \(monarch_job\) is PENDING.*\nmonarch: .* runs on n2, n3, {slurm.nodes[0]}\n"
    err = capfd.readouterr().err
    assert err == "" or re.search(told, err), err  # nothing: it ran when it was looked at first
    job.kill()
    assert not job.active and slurm.jobs() == [] and not os.path.exists(folder)
    assert "JobState=CANCELLED" in slurm.run("scontrol", "show", "job", job_id)
    job.kill()


@pytest.mark.parametrize("speaks_json", [True, False])
@pytest.mark.feature(90, "workers on nodes")
def test_meshes_in_partitions_of_their_own_are_one_job(slurm, monkeypatch, speaks_json):
    monkeypatch.setattr(_slurm_commands, "_json_fails", not speaks_json)
    job = made({"trainers": 1, "generators": 1}, partition={"generators": "small"})
    job.add_mesh("judges", 1, partition="all")
    state = job.state(cached_path="job.json")
    assert nodes(state.generators) == slurm.nodes[:1], "the only node of small"
    assert sorted([*nodes(state.trainers), *nodes(state.judges)]) == sorted(slurm.nodes[1:])
    assert [name for name, _ in state._hosts.items()] == ["trainers", "generators", "judges"]
    job_id, parts = job._job_id, slurm.run("squeue", "-h", "-o", "%P").split()
    assert sorted(parts) == ["all", "all", "small"]
    again = job_load("job.json")
    assert again.can_run(job) and nodes(again.state(cached_path=None).generators) == slurm.nodes[:1]
    other = made({"trainers": 1, "generators": 1}, partition={"generators": "all"})
    assert not again.can_run(other)
    again.kill()
    assert slurm.jobs() == []
    assert slurm.run("scontrol", "show", "job", job_id).count("JobState=CANCELLED") == 3


def test_the_token_is_seen_by_nobody_else(slurm):
    job = made()
    nodes(job.state(cached_path=None).hosts)
    token, file = job._token, os.path.join(job._folder(), "token")
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600 and stat.S_IMODE(os.stat(job._folder()).st_mode) == 0o700
    assert Path(file).read_bytes().hex() == token
    assert len(in_jobs(os.environ[MARK])) > 4
    for pid in in_jobs(os.environ[MARK]):
        for name in ("environ", "cmdline"):
            with contextlib.suppress(FileNotFoundError):
                assert token.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    assert token not in slurm.run("scontrol", "write", "batch_script", job._job_id, "-")
    job.kill()
    assert token not in Path(job._log_dir, os.listdir(job._log_dir)[0]).read_text()
    assert not list(Path(os.environ["XDG_RUNTIME_DIR"]).rglob("*.token"))


@pytest.mark.feature(90, "the next run")
def test_the_next_run_goes_on_with_the_same_hosts_until_it_wants_others(slurm):
    (first, *there), _ = words(script("job.pkl"))
    (second, *again), err = words(script("job.pkl"))
    assert (first, sorted(there)) == (second, sorted(again)) and err == ""
    (third, *_), _ = words(script("job.pkl", "--comment=another"))
    assert third != first and slurm.jobs() == [third]
    job_load("job.pkl").kill()
    assert slurm.jobs() == [] and not os.path.exists("job.pkl")


def test_what_is_not_saved_ends_with_its_script(slurm):
    words(script("-"))
    wait_until(lambda: slurm.jobs() == [])
    assert os.listdir(".monarch/slurm")[1:] == []  # the log


def test_a_fixed_port_is_reached_by_the_name_of_the_node(slurm):
    job = made({"hosts": 1}, monarch_port=22923, partition="small", bind_to="127.0.0.1")
    state = job.state(cached_path=None)
    assert nodes(state.hosts) == [slurm.nodes[0]]
    assert job._addresses() == {"hosts": [f"tcp://{slurm.nodes[0]}:22923"]}
    job.kill()


def test_a_script_outside_of_the_cluster_goes_through_one_host(slurm):
    text = Path(JOB).read_text().replace("monarch_port=0", "monarch_port=0, out_of_cluster=True")
    begin = "import monarch._meshes.attachment as way\n"
    run = Run(f"{begin}{text}\njob.kill()\nprint(way._way.url, state.hosts.sizes)", args=("-",), prologue="").done(
        LIMIT
    )
    assert run.status == 0 and re.search(r"^tcp://\S+ \{'hosts': 2\}", run.out, re.MULTILINE), run.err
    assert slurm.jobs() == []


def test_the_host_that_a_script_goes_through_may_be_given(slurm):
    job = made({"hosts": 1}, monarch_port=22924, partition="small", attach_to="tcp://127.0.0.1:22924")
    assert job._out_of_cluster
    with pytest.raises(RuntimeError, match=r"client was initialized without a remote attachment; call attach\("):
        job.state(cached_path=None)
    job.kill()


def test_nodes_may_be_shared(slurm):
    jobs = [made({"hosts": 3}, job_name=f"part{number}") for number in range(2)]
    for job in jobs:
        job.share_node(tasks_per_node=2, gpus_per_task=0, partition="all")
    states = [job.state(cached_path=None) for job in jobs]
    assert all(sorted(nodes(state.hosts)) == sorted(slurm.nodes) for state in states)
    assert slurm.run("squeue", "-h", "-o", "%C %j", "--sort=j").split("\n") == ["6 part0", "6 part1"]
    for job in jobs:
        job.kill()


def test_a_mesh_may_be_added(slurm):
    job = made({"one": 1})
    job.state(cached_path=None)
    first = job._job_id
    job.add_mesh("two", 1)
    state = job.state(cached_path=None)
    assert job._job_id != first and nodes(state.one) != nodes(state.two)
    job.kill()


# ---- The queue ----


@pytest.mark.feature(90, "the queue")
def test_it_says_what_it_waits_for_and_ctrl_c_cancels_the_job(slurm):
    run = Run(Path(JOB).read_text(), args=("job.pkl", "--hold"), prologue="", cwd=os.getcwd())
    err = run.err_line(LIMIT, "JobHeldUser")
    job_id = re.search(r"monarch: Slurm job (\d+) \(monarch_job\) is PENDING \(JobHeldUser\)", err)[1]
    assert slurm.jobs() == [job_id] and os.path.exists("job.pkl")
    run.interrupt()
    run.done(LIMIT)
    assert f"Slurm job {job_id} is cancelled, since this script was interrupted while it waited" in run.err
    assert run.status == -signal.SIGINT and slurm.jobs() == [] and not os.path.exists("job.pkl")


def test_a_script_that_is_killed_while_it_waits_leaves_its_place_to_the_next_run(slurm):
    first = script("job.pkl", "--hold")
    wait_until(lambda: os.path.exists("job.pkl"))  # it is saved after it has been submitted
    first.kill()
    first.communicate(timeout=LIMIT)
    second = script("job.pkl", "--hold")
    (job_id,) = slurm.jobs()
    slurm.run("scontrol", "release", job_id)
    (told, *_), err = words(second)
    assert told == job_id
    job_load("job.pkl").kill()


def test_it_does_not_wait_for_longer_than_it_is_told(slurm):
    job = made(slurm_args=["--hold"], job_start_timeout=0.3)
    text = r"Slurm job \d+ .* has not started in 0\.3 s \(job_start_timeout\), and is cancelled: it is PENDING"
    with pytest.raises(RuntimeError, match=text):
        job.state(cached_path=None)
    assert not job.active and slurm.jobs() == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"partition": "no-such"}, "cannot be applied: invalid partition specified: no-such; .*Invalid partition name"),
        ({"partition": "closed"}, "cannot be applied: Batch job submission failed: "),
        ({"gpus_per_node": 8}, r"Invalid generic resource \(gres\) specification"),
        ({"slurm_args": ["--no-such-option"]}, "unrecognized option '--no-such-option'"),
    ],
)
def test_what_slurm_refuses_is_said_in_its_own_words(slurm, options, text):
    job = made(**options)
    with pytest.raises(RuntimeError, match=text) as info:
        job.apply()
    assert "\n" not in str(info.value) and not job.active and os.listdir(".monarch/slurm") == []


def test_a_part_of_what_is_wanted_is_refused(slurm):
    job = made({"hosts": 3}, slurm_args=["--nodes=2", "--ntasks=2"])
    with pytest.raises(RuntimeError, match=r"has 2 nodes \(.*\), but 3 are wanted, so it is cancelled"):
        job.state(cached_path=None)
    assert slurm.jobs() == []


# ---- What happens meanwhile ----


def test_a_job_that_others_have_cancelled_is_told_of_and_replaced(slurm, caplog):
    job = made()
    worker = job.state("job.pkl").hosts.spawn_procs().spawn("worker", Worker)
    worker.node.call().get(timeout=LIMIT)
    first = job._job_id
    slurm.run("scancel", first)
    with pytest.raises(SupervisionError):
        while True:
            worker.node.call().get(timeout=LIMIT)
    state = job.state("job.pkl")
    assert f"Slurm job {first} has ended: it is CANCELLED" in caplog.text
    assert len(nodes(state.hosts)) == 2 and slurm.jobs() == [job._job_id] != [first]
    job.kill()


def test_a_job_that_ends_before_its_workers_are_there_is_told_of(slurm):
    job = SlurmJob({"hosts": 1}, python_exe="/no/such/python", monarch_port=0)
    with pytest.raises(RuntimeError, match=r"has ended: it is FAILED \(NonZeroExitCode\); its log is (.*)") as info:
        job.state(cached_path=None)
    assert "/no/such/python" in Path(re.search(r"its log is (.*)", str(info.value))[1]).read_text()


@pytest.fixture
def resume(slurm):
    """Nodes that the test has set down."""
    found = []
    yield found
    for node in found:  # on which Slurm then ends what runs there
        slurm.run("scontrol", "update", f"nodename={node}", "state=resume")
    wait_until(lambda: slurm.states() == {"idle"})


@pytest.mark.parametrize("cause", ["requeue", "node down"])
def test_a_job_that_is_requeued_is_followed(slurm, cause, resume):
    job = made(slurm_args=["--requeue"])
    worker = job.state("job.pkl").hosts.spawn_procs().spawn("worker", Worker)
    there = worker.node.call().get(timeout=LIMIT).values()
    job_id = job._job_id
    if cause == "requeue":
        slurm.run("scontrol", "requeue", job_id)
    else:
        slurm.run("scontrol", "update", f"nodename={there[1]}", "state=down", "reason=test")
        resume.append(there[1])
    with pytest.raises(SupervisionError):
        while True:
            worker.node.call().get(timeout=LIMIT)
    wait_until(lambda: "PENDING" in slurm.run("squeue", "-h", "-o", "%T", "-j", job_id))
    # Slurm would wait for two minutes; within the same second its credential would be the old, revoked one.
    slurm.run("scontrol", "update", f"jobid={job_id}", "starttime=now+2")
    state = job.state("job.pkl")
    again = nodes(state.hosts)
    assert (job._job_id, slurm.jobs()) == (job_id, [job_id]) and len(set(again)) == 2 and not set(resume) & set(again)
    job.kill()


def test_a_controller_that_does_not_answer_is_no_end_of_the_job(slurm, monkeypatch, caplog, tmp_path):
    job = made()
    job.state("job.pkl")
    conf = Path(os.environ["SLURM_CONF"]).read_text()
    nobody = tmp_path / "nobody.conf"
    nobody.write_text(re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", conf) + "MessageTimeout=1\n")
    with monkeypatch.context() as context:
        context.setenv("SLURM_CONF", str(nobody))
        assert job.can_run(made())
        assert "Unable to contact slurm controller" in caplog.text
        assert len(nodes(job.state("job.pkl").hosts)) == 2
        with pytest.raises(RuntimeError, match="Unable to contact slurm controller"):
            job.kill()
        assert job.active
    job.kill()


def test_a_controller_that_does_not_answer_is_waited_for(slurm, monkeypatch, capfd):
    look, answers = _slurm_commands.look, [_slurm_commands.Unreachable("Socket timed out")]

    def look_at(job_id):
        if answers:
            raise answers.pop()
        return look(job_id)

    monkeypatch.setattr(_slurm_commands, "look", look_at)
    job = made({"hosts": 1})
    assert len(nodes(job.state(cached_path=None).hosts)) == 1
    assert "(monarch_job) is not heard of: Socket timed out\n" in capfd.readouterr().err
    job.kill()


def test_no_slurm_on_this_machine_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="cannot be applied: sbatch is not on PATH; a SlurmJob is applied where"):
        made().apply()
    assert os.listdir(".monarch/slurm") == []


# ---- Batch mode ----


@pytest.mark.feature(93)
def test_a_script_in_the_allocation_attaches_to_it_and_the_job_has_its_status(slurm):
    job = made()
    job.apply(client_script=CLIENT)
    job_id, folder, log = job._job_id, job._folder(), Path(job._log_file())
    wait_until(lambda: slurm.jobs() == [])
    told = log.read_text()
    assert "ExitCode=3:0" in slurm.run("scontrol", "show", "job", job_id), told
    assert re.search(r"^batch 1 \w+ \w+$", told, re.MULTILINE) and re.search(r"^again \w+ \w+$", told, re.MULTILINE)
    assert not os.path.exists(folder) and not os.path.exists(".monarch/job_state.pkl")


def test_a_script_in_an_allocation_of_several_partitions(slurm, tmp_path):
    client = tmp_path / "client.py"
    client.write_text("""
import sys
from test_slurm_job import SlurmJob, made, nodes
state = made({"one": 1, "two": 2}, partition={"one": "small"}).state()
print("batch", nodes(state.one), len(nodes(state.two)), flush=True)
sys.exit(3)
""")
    job = made({"one": 1, "two": 2}, partition={"one": "small"})
    job.apply(client_script=str(client))
    job_id, folder, log = job._job_id, job._folder(), Path(job._log_file())
    wait_until(lambda: slurm.jobs() == [])
    told = log.read_text()
    assert "ExitCode=3:0" in slurm.run("scontrol", "show", "job", job_id), told
    assert re.search(rf"^batch \['{slurm.nodes[0]}'\] 2$", told, re.MULTILINE), told
    assert not os.path.exists(folder)


def test_a_batch_job_is_killed_from_outside(slurm, tmp_path):
    client = tmp_path / "client.py"
    client.write_text("import signal; print('there', flush=True); signal.pause()")
    job = made()
    job.apply(client_script=str(client))
    wait_until(lambda: os.path.exists(job._log_file()) and "there" in Path(job._log_file()).read_text())
    assert stat.S_IMODE(os.stat(job._batch_state()).st_mode) == 0o600
    job.kill()
    assert slurm.jobs() == []


def test_a_script_that_is_not_there_is_refused(slurm):
    with pytest.raises(FileNotFoundError, match="the script of the batch job is not there: .*no-such.py"):
        made().apply(client_script="no-such.py")
    assert slurm.jobs() == []


# ---- Without Slurm ----


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"bind_to": "10.0.0.1:22222"}, ValueError, "bind_to must be an IPv4 or IPv6 address without a port"),
        ({"bind_to": "host"}, ValueError, "bind_to must be an IPv4 or IPv6 address without a port"),
        ({"meshes": {"hosts": 0}}, ValueError, "hosts"),
        ({"meshes": {"_x": 1}}, ValueError, "a mesh cannot be called '_x'"),
        ({"monarch_port": 70000}, ValueError, "monarch_port must be a port, 0 to 65535, but is 70000"),
        ({"slurm_args": "--hold"}, TypeError, "slurm_args must be a sequence such as"),
        ({"partition": "a\nb"}, ValueError, "partition must be a line of text"),
        ({"partition": {"hosts": ""}}, ValueError, "partition of 'hosts' must be a line of text"),
        ({"partition": {"hosts": None}}, ValueError, "partition of 'hosts' must be .* leave it out for the default"),
        ({"partition": 7}, TypeError, "partition must be a str"),
        ({"gpus_per_node": 0}, ValueError, "gpus_per_node must be a count, 1 or more, but is 0"),
        ({"job_start_timeout": 0}, ValueError, "job_start_timeout must be seconds, more than 0, or None"),
    ],
)
def test_bad_input_is_refused(options, error, text):
    with pytest.raises(error, match=text):
        SlurmJob(**{"meshes": {"hosts": 1}, **options})


def test_a_job_without_a_mesh_is_refused_when_it_is_applied():
    job = SlurmJob({})
    with pytest.raises(ValueError, match="a SlurmJob needs a mesh"):
        job.apply()
    job.add_mesh("hosts", 2)
    with pytest.raises(ValueError, match="there is a mesh 'hosts' already"):
        job.add_mesh("hosts", 1)
    assert repr(job) == "SlurmJob({'hosts': 2})"


def test_options_of_sbatch(monkeypatch, tmp_path):
    job = SlurmJob(
        {"a": 2, "b": 1}, slurm_args=["--constraint=x"], job_name="n", ntasks_per_node=2, time_limit="1:00:00",
        partition="p", log_dir=str(tmp_path / "100%"), gpus_per_node=8, cpus_per_task=4, mem="0", account="a", qos="q",
    )  # fmt: skip
    assert job._options() == [
        "--nodes=3", "--ntasks=6", "--ntasks-per-node=2", "--job-name=n", f"--output={tmp_path}/100%%/slurm-%j.log",
        "--open-mode=append", "--time=1:00:00", "--partition=p", "--gpus-per-node=8", "--cpus-per-task=4",
        "--mem=0", "--account=a", "--qos=q", "--exclusive", "--constraint=x",
    ]  # fmt: skip
    job.share_node(tasks_per_node=4, gpus_per_task=1, partition="shared")
    assert "--gpus-per-node=4" in job._options() and "--exclusive" not in job._options()


def test_options_of_several_partitions(tmp_path):
    job = SlurmJob({"a": 2, "b": 1, "c": 3}, partition={"b": "gpu"}, log_dir=str(tmp_path))
    first, second = " ".join(job._options()).split(" : ")
    assert "--nodes=5 " in first and "--partition" not in first and first.endswith("--exclusive")
    assert "--nodes=1 " in second and "--partition=gpu " in second and second.endswith("--exclusive")
    job.add_mesh("d", 1, partition="gpu")
    assert "--nodes=2 " in " ".join(job._options()).split(" : ")[1]
    whole = SlurmJob({"a": 2}, partition="p")
    whole.add_mesh("b", 1, partition="q")
    assert [" --partition=p " in part for part in " ".join(whole._options()).split(" : ")] == [True, False]
    text = _slurm_script.batch_script("python", "/folder", 0, None, [5, 1], None)
    assert "srun --het-group=0 --ntasks=5 " in text and "_slurm_node /folder 0 0 &" in text
    assert "srun --het-group=1 --ntasks=1 " in text and "_slurm_node /folder 0 5 &" in text
    assert text.endswith("wait $workers\n")


def test_a_partition_of_a_mesh_that_is_not_there_is_refused_when_it_is_applied():
    with pytest.raises(ValueError, match="partition names meshes that are not there: generator$"):
        SlurmJob({"generators": 1}, partition={"generator": "gpu"}).apply()


def test_a_job_of_several_parts_is_as_far_as_the_last_of_them():
    def job(number, state, nodes):
        return f"JobId={number} HetJobId=7 JobState={state} Reason=None Restarts=1 NodeList={nodes}"

    def found(*parts):
        return parse_text("\n".join(job(7 + i, *part) for i, part in enumerate(parts)))

    assert found(("RUNNING", "a"), ("RUNNING", "b,c")) == Found("RUNNING", "None", 1, ["a", "b", "c"])
    assert found(("RUNNING", "a"), ("PENDING", "(null)")).state == "PENDING"
    assert found(("RUNNING", "a"), ("FAILED", "b")).is_over
    assert found(("COMPLETING", "a"), ("CANCELLED", "b")).ends


def test_ctrl_c_while_sbatch_runs_leaves_no_job(tmp_path):
    """Stand-ins for Slurm's commands: the job is in the queue, and sbatch has not said so yet."""
    for name, lines in {
        "sbatch": "cat > script; echo > submitted; read word < interrupted; echo '4711;cluster'",
        "scancel": "echo $* > cancelled",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncd {tmp_path}\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("submitted", "interrupted"):
        os.mkfifo(tmp_path / name)
    script = f"from monarch.job import SlurmJob\nSlurmJob({{'hosts': 1}}, log_dir={str(tmp_path)!r}).apply()"
    run = Run(script, prologue="", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    (tmp_path / "submitted").read_text()
    run.interrupt()
    (tmp_path / "interrupted").write_text("go on\n")
    run.done(LIMIT)
    assert run.status == -signal.SIGINT and "KeyboardInterrupt" in run.err
    assert (tmp_path / "cancelled").read_text() == "4711\n"


def test_the_script_quotes_what_it_is_given():
    text = _slurm_script.batch_script("env A='b c' python", "/a folder", 0, "::", [2], "/it's.py")
    assert "env 'A=b c' python -m monarch.job._slurm_node '/a folder' 0 0 ::" in text
    assert """python '/it'"'"'s.py'\n""" in text


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_answers_of_several_versions_are_understood(case):
    if "json" in case:
        found = parse_json(json.dumps(case["json"]), case["job"])
    else:
        found = parse_text(case["text"])
    assert found == Found(**case["found"])


@pytest.mark.parametrize("text", ["", "[]", '{"jobs": [{}]}', '{"jobs": [{"job_id": 1, "job_state": 7}]}'])
def test_an_answer_of_another_kind_is_none(text):
    with pytest.raises(ValueError):
        parse_json(text, "1")


def test_an_answer_with_an_error_does_not_say_that_the_job_is_over():
    with pytest.raises(ValueError, match="squeue --json has an error: .*slurm_load_jobs"):
        parse_json('{"errors": [{"error": "Unspecified error", "source": "slurm_load_jobs"}], "jobs": []}', "1")
