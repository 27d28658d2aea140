"""monarch.tools.commands: jobs of torchx, by its local_cwd scheduler, and by one of the test's own."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from datetime import timedelta

import pytest
from script_run import Run, program

import monarch.tools.commands as commands
from monarch.tools import _torchx
from monarch.tools.config import Config, Workspace
from monarch.tools.mesh_spec import MeshSpec, ServerSpec, mesh_spec_from_str
from monarch.tools.utils import MONARCH_HOME

BEGIN = program("torchx_jobs/job.py")
LIMIT = 30


@pytest.fixture
def torchx(tmp_path, monkeypatch):
    """The runner of the test; what it has started ends with the test."""
    pytest.importorskip("torchx", reason="no torchx: tools/bootstrap test")
    from torchx import runner, schedulers

    made = runner.Runner("torchx", {**schedulers.get_scheduler_factories(), "fake": lambda *_, **__: Fake.of(made)})
    monkeypatch.setattr(_torchx, "runner", lambda: made)
    monkeypatch.setattr(_torchx, "_made", {})
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "home"))
    before = signal.getsignal(signal.SIGTERM)
    yield made
    signal.signal(signal.SIGTERM, before)
    made.close()


class Fake:
    """A scheduler whose jobs are in the state that the test says, and on hosts of its own naming."""

    @staticmethod
    def of(runner):
        from torchx.schedulers import api
        from torchx.specs import AppDryRunInfo, AppState, ReplicaStatus, Role, RoleStatus, runopts

        class Scheduler(api.Scheduler):
            def __init__(self):
                super().__init__("fake", "torchx")
                self.jobs, self.state, self.after_kill, self.asked = {}, AppState.RUNNING, AppState.CANCELLED, 0

            def _run_opts(self):
                return runopts()

            def _validate(self, app, scheduler):
                pass

            def _submit_dryrun(self, app, cfg):
                return AppDryRunInfo(app, lambda app: f"would run {app.name}")

            def schedule(self, dryrun_info):
                name = f"{len(self.jobs)}"
                self.jobs[name] = [dryrun_info.request, self.state]
                return name

            def describe(self, app_id):
                if app_id == "mine":
                    raise ValueError("invalid literal for int()")  # as many do with what is no id of theirs
                if app_id not in self.jobs:
                    return None
                app, state = self.jobs[app_id]
                self.asked += 1
                replicas = {
                    role.name: [ReplicaStatus(i, state, role.name, f"h{i}") for i in reversed(range(role.num_replicas))]
                    for role in app.roles
                }
                return api.DescribeAppResponse(
                    app_id=app_id, state=state, msg="so it is\nsecond line", ui_url="http://ui/1",
                    roles=[Role(role.name, "img", num_replicas=role.num_replicas) for role in app.roles],
                    roles_statuses=[RoleStatus(*each) for each in replicas.items()],
                )  # fmt: skip

            def _cancel_existing(self, app_id):
                self.jobs[app_id][1] = self.after_kill

            def list(self):
                return []

            def close(self):
                pass

        return Scheduler()


@pytest.fixture
def fake(torchx):
    return torchx._scheduler("fake")


def role(*command, name="workers", hosts=1, **kwargs):
    from torchx.specs import Role

    return Role(name, image="", entrypoint=command[0], args=list(command[1:]), num_replicas=hosts, **kwargs)


def config(*roles, scheduler="local_cwd", logs=None, **kwargs):
    from torchx.specs import AppDef

    args = {} if logs is None else {"log_dir": str(logs)}
    roles = roles or (role("tail", "-f", "/dev/null"),)
    return Config(scheduler, args, appdef=AppDef("app", list(roles)), **kwargs)


def get_or_create(name, wanted, **kwargs):
    return asyncio.run(commands.get_or_create(name, wanted, check_interval=0.02, **{"timeout": LIMIT, **kwargs}))


def ready(handle, **kwargs):
    return asyncio.run(commands.server_ready(handle, check_interval=0.02, **{"timeout": LIMIT, **kwargs}))


def free_port():
    with socket.create_server(("127.0.1.0", 0)) as found:
        return str(found.getsockname()[1])


def script(folder, text):
    pytest.importorskip("torchx", reason="no torchx: tools/bootstrap test")
    env = {"MONARCH_TOKEN_FILE": f"{folder}/token", "MONARCH_HOME": f"{folder}/home"}
    return Run(BEGIN + text, args=(f"{folder}/logs", free_port()), env=env)


# ---- A job, from its creation to its end ----


@pytest.mark.feature(98, "created, ready, attached to, ended")
def test_actors_run_on_the_hosts_of_a_job(folder):
    script(folder, """
handle = commands.create(config, "mine")
spec = ready(handle)
assert spec.is_running and spec.server_handle == handle, spec
assert [spec.get_mesh_spec("workers").server_addrs(), spec.host0("workers")] == [
    [f"tcp://127.0.1.{i}:{port}" for i in range(2)], "127.0.1.0"], spec
hosts = attach_to_workers(workers=spec.get_mesh_spec("workers").server_addrs(), name="workers")
procs = hosts.spawn_procs(per_host={"gpus": 2})
ranks = procs.spawn("speakers", Speaker).rank.call().get()
assert sorted(ranks.values()) == [0, 1, 2, 3], ranks
hosts.stop().get()
commands.kill_and_confirm(handle, 30)
assert commands.info(handle).state.name == "CANCELLED"
""").ok()  # fmt: skip


@pytest.mark.feature(98, "created, ready, attached to, ended")
def test_get_or_create_is_awaited_where_actors_are_called(folder):
    script(folder, """
async def main():
    spec = await commands.get_or_create("mine", config, check_interval=0.05)
    hosts = attach_to_workers(workers=spec.get_mesh_spec("workers").server_addrs(), name="workers")
    print(sorted((await hosts.spawn_procs().spawn("speakers", Speaker).rank.call()).values()), flush=True)
asyncio.run(main())
""").ok()  # fmt: skip


@pytest.mark.feature(98, "created, ready, attached to, ended")
def test_the_example_of_the_page(folder):
    pytest.importorskip("torchx", reason="no torchx: tools/bootstrap test")
    text = program("torchx_jobs/example.py").replace("26600", free_port())
    text = text.replace('Config("local_cwd", ', f'Config("local_cwd", {{"log_dir": "{folder}/logs"}}, ')
    run = Run(text, env={"MONARCH_TOKEN_FILE": f"{folder}/token"}).ok()
    assert "ValueMesh({hosts: 2, gpus: 2})" in run.out


@pytest.mark.feature(98)
def test_a_job_of_this_machine_ends_with_its_script(folder):
    run = script(folder, """
handle = commands.create(config, "mine")
print("state", ready(handle).state.name, flush=True)
sys.stdin.readline()
""")  # fmt: skip
    assert run.line("state").endswith("RUNNING")
    run.tell("\n")
    run.ok()


@pytest.mark.feature(98)
@pytest.mark.parametrize("number, error", [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "SignalException")])
def test_a_signal_ends_the_script_and_its_job(folder, number, error):
    run = script(folder, """
ready(commands.create(config, "mine"))
print("ready", flush=True)
sys.stdin.readline()
""")  # fmt: skip
    run.line("ready")
    run.kill(number)
    run.done()  # nothing is left behind
    assert error in run.err


@pytest.mark.feature(98)
def test_kill_ends_every_process_and_may_come_again(torchx, tmp_path):
    handle = commands.create(config(role("sh", "-c", "echo $$; exec tail -f /dev/null", hosts=2), logs=tmp_path))
    spec = ready(handle)
    assert (spec.name, spec.get_mesh_names(), spec.host0("workers")) == (
        spec.server_handle.rpartition("/")[2], ["workers"], "localhost")  # fmt: skip
    assert commands.torchx_runner() is torchx and torchx.status(handle).state == spec.state
    commands.kill(handle)
    commands.kill_and_confirm(handle, timedelta(seconds=LIMIT))
    commands.kill(handle)
    assert commands.info(handle).state.name == "CANCELLED" and not commands.info(handle).is_running


# ---- Jobs that are not ready ----


@pytest.mark.feature(98, "states are told")
def test_a_job_that_has_failed_says_where_its_log_is_and_its_last_words(torchx, tmp_path, monkeypatch):
    schedule = torchx.schedule

    def and_wait(request):
        handle = schedule(request)
        app = torchx._scheduler("local_cwd")._apps[handle.rpartition("/")[2]]
        for replicas in app.role_replicas.values():
            replicas[0].proc.wait(LIMIT)
        return handle

    monkeypatch.setattr(torchx, "schedule", and_wait)
    says = role("sh", "-c", "exec >&2; echo first; for i in 1 2 3 4; do echo; echo $i; done; exit 3")
    wrong = config(role("sh", "-c", "exit 0", name="silent"), says, logs=tmp_path)
    with pytest.raises(RuntimeError) as raised:
        get_or_create("wrong", wrong)
    assert re.fullmatch(
        rf"job 'local_cwd://torchx/wrong-\w+' is FAILED; its log: file://{tmp_path}/torchx/wrong-\w+; "
        r"it has ended before it was ready\nworkers\[0\] has said: first\n    1\n    2\n    3\n    4",
        str(raised.value),
    )  # fmt: skip
    spec = ready(re.search("'(.*)'", str(raised.value))[1])
    assert spec.state.name == "FAILED"
    with pytest.raises(RuntimeError, match="mesh 'workers' has no hosts: job .* is FAILED; its log: file:"):
        spec.host0("workers")


@pytest.mark.feature(98, "states are told")
def test_a_job_that_is_pending_is_waited_for(fake):
    from torchx.specs import AppState

    fake.state = AppState.PENDING
    handle = commands.create(config(scheduler="fake"), "slow")
    with pytest.raises(
        TimeoutError, match=r"not ready after 0.1 s: job 'fake://torchx/0' is PENDING \(so it is\); its"
    ):
        ready(handle, timeout=timedelta(milliseconds=100))
    with pytest.raises(TimeoutError, match="is PENDING"):
        get_or_create("slow", config(scheduler="fake"), timeout=0)
    assert len(fake.jobs) == 1, "it is waited for, no other one is made"

    async def comes_later():
        waiting, asked = asyncio.create_task(commands.server_ready(handle, 0.01)), fake.asked
        while fake.asked < asked + 3:  # the loop is free meanwhile
            await asyncio.sleep(0)
        fake.jobs["0"][1] = AppState.RUNNING
        return await asyncio.wait_for(waiting, LIMIT)

    assert asyncio.run(comes_later()).is_running


@pytest.mark.feature(98, "states are told")
def test_a_job_that_does_not_end_is_told(fake):
    from torchx.specs import AppState

    handle = commands.create(config(scheduler="fake"))
    fake.after_kill = AppState.RUNNING
    with pytest.raises(TimeoutError, match=r"not ended 0.05 s after it was killed: job 'fake://torchx/0' is RUNNING"):
        commands.kill_and_confirm(handle, 0.05)


# ---- get_or_create ----


@pytest.mark.feature(98, "get or create")
def test_what_runs_is_given_again_and_what_has_ended_made_anew(torchx, tmp_path):
    wanted = config(logs=tmp_path)
    first = get_or_create("mine", wanted)
    assert get_or_create("mine", wanted).server_handle == first.server_handle
    other = get_or_create("other", wanted)
    assert other.server_handle != first.server_handle
    commands.kill_and_confirm(first.server_handle, LIMIT)
    second = get_or_create("mine", wanted)
    assert second.is_running and second.server_handle != first.server_handle
    third = get_or_create("mine", wanted, force_restart=True)
    assert third.is_running and commands.info(second.server_handle).state.name == "CANCELLED"
    assert commands.info(other.server_handle).is_running


@pytest.mark.feature(98, "get or create")
def test_a_later_script_finds_a_job_of_a_scheduler_that_keeps_it(fake, monkeypatch):
    wanted = config(role("w", name="a/b"), scheduler="fake")
    first = get_or_create("mine", wanted)
    monkeypatch.setattr(_torchx, "_made", {})  # as in another process
    fake_runner = _torchx.runner()
    fake_runner._apps.clear()
    again = get_or_create("mine", wanted)
    assert (again.server_handle, again.get_mesh_names()) == (first.server_handle, ["a/b"]) and len(fake.jobs) == 1
    assert get_or_create("0", wanted).server_handle == first.server_handle, "a scheduler may know jobs by their names"
    fake.jobs.clear()  # the scheduler has forgotten it
    assert get_or_create("mine", wanted).is_running and len(fake.jobs) == 1


@pytest.mark.feature(98, "get or create")
def test_a_job_that_ends_while_it_is_waited_for_is_made_anew(fake):
    from torchx.specs import AppState

    fake.state = AppState.PENDING
    commands.create(config(scheduler="fake"), "mine")
    fake.state = AppState.RUNNING
    looked = fake.describe

    def describe(app_id):
        found = looked(app_id)
        fake.jobs["0"][1] = AppState.FAILED
        return found

    fake.describe = describe
    assert get_or_create("mine", config(scheduler="fake")).server_handle == "fake://torchx/1"


# ---- Dry runs, workspaces ----


@pytest.mark.feature(98, "dry runs")
def test_a_dry_run_prints_and_submits_nothing(torchx, tmp_path, capfd):
    wanted = config(role("tail", "-f", "/dev/null", hosts=2), logs=tmp_path, dryrun=True)
    assert commands.create(wanted, "mine") is None
    assert "'/dev/null'" in capfd.readouterr().out
    spec = get_or_create("mine", wanted)
    assert "'/dev/null'" in capfd.readouterr().out
    assert (spec.state.name, spec.get_mesh_spec("workers").num_hosts) == ("UNSUBMITTED", 2)
    assert list(tmp_path.iterdir()) == [] and _torchx._made == {}


@pytest.mark.feature(98)
def test_a_dry_run_ends_no_job_that_is_to_be_restarted(fake):
    spec = get_or_create("mine", config(scheduler="fake"))
    get_or_create("mine", config(scheduler="fake", dryrun=True), force_restart=True)
    assert commands.info(spec.server_handle).is_running


@pytest.mark.feature(98)
def test_the_workspace_is_importable_and_the_appdef_stays_as_it_is(fake, torchx, tmp_path, monkeypatch):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/mine.py").write_text("x = 1\n")
    wanted = config(scheduler="fake", workspace=Workspace([tmp_path / "src"]))
    given = []
    dryrun = torchx.dryrun

    def spied(app, *args, workspace, **kwargs):
        given.extend(os.listdir(f"{workspace}/src"))
        return dryrun(app, *args, workspace=workspace, **kwargs)

    monkeypatch.setattr(torchx, "dryrun", spied)
    commands.create(wanted, "mine")
    env = fake.jobs["0"][0].roles[0].env
    assert env["PYTHONPATH"] == f"{env['WORKSPACE_DIR']}/src" and given == ["mine.py"]
    assert (wanted.appdef.name, wanted.appdef.roles[0].env) == ("app", {})


# ---- Specs ----


@pytest.mark.feature(98, "specs of jobs and meshes")
def test_a_spec_tells_hosts_in_the_order_of_replicas(fake):
    from torchx.specs import Resource

    trainers = role("w", "--bind=tcp://*:4444", name="trainers", hosts=2, resource=Resource(1, 8, 1),
                    metadata={"monarch.host_type": "gpu.large"})  # fmt: skip
    others = role("w", name="others", hosts=1, port_map={"mesh": 5555})
    spec = get_or_create("mine", config(trainers, others, role("w", name="third"), scheduler="fake"))
    mesh = spec.get_mesh_spec("trainers")
    assert (mesh.host_type, mesh.gpus, mesh.state.name, mesh.num_hosts) == ("gpu.large", 8, "RUNNING", 2)
    assert mesh.server_addrs() == ["tcp://h0:4444", "tcp://h1:4444"]
    assert spec.get_mesh_spec("others").server_addrs() == ["tcp://h0:5555"]
    assert spec.get_mesh_spec("third").server_addrs() == ["tcp://h0:26600"]
    assert spec.host0("trainers") == "h0" and spec.get_mesh_names() == ["trainers", "others", "third"]
    with pytest.raises(ValueError, match=r"job 'fake://torchx/0' has no mesh 'x'; it has \['trainers', 'others', 'th"):
        spec.get_mesh_spec("x")
    told = json.loads(json.dumps(spec.to_json()))
    assert (told["state"], told["server_handle"], told["meshes"]["trainers"]["hostnames"]) == (
        "RUNNING", "fake://torchx/0", ["h0", "h1"])  # fmt: skip


@pytest.mark.feature(98, "specs of jobs and meshes")
def test_specs_need_no_torchx():
    mesh = MeshSpec("m", 2, port=1, hostnames=["a", "::1"])
    assert mesh.server_addrs() == ["tcp://a:1", "tcp://[::1]:1"] and mesh.state.name == "UNSUBMITTED"
    with pytest.raises(
        RuntimeError, match=r"mesh 'm' \(UNSUBMITTED\) has 2 hosts, but the scheduler has told .* of 1:"
    ):
        MeshSpec("m", 2, hostnames=["a"]).server_addrs()
    with pytest.raises(RuntimeError, match="mesh 'm' has port 0"):
        MeshSpec("m", 1, hostnames=["a"], port=0).server_addrs()
    spec = ServerSpec("n", mesh.state, [mesh], "slurm")
    assert spec.server_handle == "slurm:///n" and not spec.is_running
    with pytest.raises(RuntimeError, match="mesh 'm' has no hosts: job 'slurm:///n' is UNSUBMITTED$"):
        spec.host0("m")


@pytest.mark.feature(98, "specs of jobs and meshes")
def test_a_mesh_is_read_from_a_string():
    mesh = mesh_spec_from_str("trainers:4:unknown.type")
    assert (mesh.name, mesh.num_hosts, mesh.host_type, mesh.gpus) == ("trainers", 4, "unknown.type", -1)
    for text in ("", "a", "a:1", "a:1:b:c", "a::b", ":1:b"):
        with pytest.raises(ValueError, match="a mesh must be 'name:count:type'"):
            mesh_spec_from_str(text)
    for count in ("0", "-1", "x", "1.5", "²"):
        with pytest.raises(ValueError, match="count of hosts, 1 or more"):
            mesh_spec_from_str(f"a:{count}:b")


def test_a_type_of_host_that_torchx_knows_has_gpus(torchx):
    assert mesh_spec_from_str("a:1:aws_p3.8xlarge").gpus == 4


def test_the_folder_of_monarch_is_made(tmp_path, monkeypatch):
    monkeypatch.setenv("MONARCH_HOME", str(tmp_path / "a"))
    assert MONARCH_HOME("b", "c") == tmp_path / "a/b/c" and (tmp_path / "a/b/c").is_dir()
    monkeypatch.delenv("MONARCH_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert MONARCH_HOME() == tmp_path / ".monarch"


# ---- Wrong uses ----


@pytest.mark.feature(98, "wrong uses are refused")
def test_wrong_uses_say_what_is_expected(torchx):
    with pytest.raises(ValueError, match="torchx has no scheduler 'slurmm'; it has aws_batch, .*slurm"):
        commands.create(config(scheduler="slurmm"))
    with pytest.raises(ValueError, match="torchx has no scheduler 'x'"):
        get_or_create("mine", config(scheduler="x"))
    for call in (commands.info, commands.kill, commands.kill_and_confirm, ready):
        for handle in ("mine", "", None, "local_cwd:/x", "local_cwd://a"):
            with pytest.raises(ValueError, match="expected the handle of a job, such as 'slurm://torchx/1234'"):
                call(handle)
        with pytest.raises(ValueError, match="no scheduler 'nowhere'"):
            call("nowhere://torchx/1")
    for missing in (None, object()):
        with pytest.raises(ValueError, match="config.appdef must be an AppDef of torchx with a role"):
            commands.create(Config("local_cwd", appdef=missing))
    with pytest.raises(TypeError, match=r"config must be a monarch\.tools\.config\.Config"):
        commands.create("local_cwd")
    with pytest.raises(ValueError, match="a job must have a name"):
        commands.create(config(), "")


@pytest.mark.feature(98, "wrong uses are refused")
def test_a_job_that_is_not_there_is_none(torchx):
    gone = "local_cwd://torchx/gone"
    assert commands.info(gone) is commands.info("local_cwd:///gone") is ready(gone) is None
    commands.kill(gone)
    commands.kill_and_confirm(gone, 0)


@pytest.mark.feature(98, "wrong uses are refused")
def test_wrong_durations_and_configurations(torchx):
    for wrong in ("5", True, object()):
        with pytest.raises(TypeError, match="timeout must be a timedelta or seconds"):
            commands.kill_and_confirm("local_cwd://torchx/x", wrong)
    with pytest.raises(ValueError, match="timeout must not be negative"):
        ready("local_cwd://torchx/x", timeout=timedelta(seconds=-1))
    with pytest.raises(ValueError, match="must not be negative"):
        ready("local_cwd://torchx/x", timeout=float("nan"))
    for wrong in ({"scheduler": ""}, {"scheduler": None}, {"scheduler_args": ["a"]}, {"workspace": "here"}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            Config(**{"scheduler": "slurm", **wrong})


@pytest.mark.feature(98, "wrong uses are refused")
def test_without_torchx_a_line_says_what_to_install():
    text = """
import sys
from monarch.tools import commands
from monarch.tools.config import Config
assert "torchx" not in sys.modules
sys.modules["torchx"] = None
try:
    commands.info("slurm://torchx/1")
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=LIMIT)
    assert (done.stderr, done.stdout.count("\n")) == ("", 1), done
    assert re.fullmatch(
        r"monarch\.tools\.commands needs torchx \(.*\): pip install 'monarch-cpp\[torchx\]'\n", done.stdout
    )


@pytest.mark.feature(98, "wrong uses are refused")
def test_the_debugger_is_not_there_yet():
    with pytest.raises(NotImplementedError, match=r"monarch\.tools\.commands\.debug is not there yet"):
        commands.debug("localhost", 27000)
    assert not hasattr(commands, "debug")


@pytest.mark.feature(98)
def test_handlers_of_signals_stay(torchx):
    def handler(*_):
        pass

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        commands.info("local_cwd://torchx/x")
        assert all(signal.getsignal(number) is handler for number in before)
    finally:
        for number, old in before.items():
            signal.signal(number, old)
