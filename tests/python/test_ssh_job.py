"""monarch.job.SSHJob, over an sshd of this test's own: two addresses of this machine."""

import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from script_run import ended, program
from ssh_site import LIMIT, ROOT, fails

from monarch.config import configured
from monarch.job import LoginJob, SSHJob, job_load
from monarch.job._logins import Login, LoginError

JOB = program("ssh_job/job.py")
STATE = """
state = job.state(path)
workers = state.hosts.spawn_procs().spawn("worker", Worker)
pids = workers.pid.call().get().values()
print(*[each.pid for each in job._running._workers], flush=True)
"""


@pytest.fixture
def silent():
    """A port where somebody listens and never answers."""
    with socket.create_server(("127.0.0.4", 0)) as server:
        yield server.getsockname()[1]


class Script:
    """A script that may leave its job behind."""

    def __init__(self, text, *args):
        file = Path("script.py")
        file.write_text(JOB + text)
        self.process = subprocess.Popen(
            [sys.executable, str(file), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        )  # fmt: skip

    def words(self, status=0):
        """What it has printed, when it has ended. No worker, and no ssh, that lives on holds its output."""
        out, err = self.process.communicate(timeout=LIMIT)
        assert (self.process.returncode, err) == (status, ""), err
        return out.split()


# ---- A life ----


@pytest.mark.feature(92, "workers over ssh")
def test_hosts_by_ssh_which_end_with_kill_and_all_that_they_have_started(site):
    words = Script(STATE + """
left = workers.leave.call().get().values()
assert state.hosts.sizes == {"hosts": 2} and len(set(pids)) == 2
for pid in pids:
    with open(f"/proc/{pid}/environ") as file:
        assert f"MONARCH_JOB_ID={job.apply_id}." in file.read()
token = job._token
assert len(token) == 32
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("cmdline", "environ"):
        try:
            with open(f"/proc/{pid}/{name}") as file:
                assert token not in file.read()
        except OSError:
            pass
job.kill()
assert not any(os.path.exists(f"/proc/{pid}") for pid in (*pids, *left))
job.kill()
""", "-", "one", "two").words()  # fmt: skip
    assert len(words) == 2


def test_a_token_of_which_a_part_was_written_is_written_anew(site):
    job = site.job("one")
    job.apply()
    written = Path(job._token_file())
    written.parent.mkdir(mode=0o700, exist_ok=True)
    written.touch(0o600)  # by one that was killed
    hosts = job.state(cached_path=None).hosts
    assert hosts.initialized.get(timeout=LIMIT) is True
    assert written.stat().st_size == 16 and written.stat().st_mode & 0o777 == 0o600
    job.kill()
    assert site.ends()


@pytest.mark.feature(92, "workers over ssh")
def test_the_next_run_goes_on_with_them_until_one_is_gone(site):
    first = Script(STATE, "job.pkl", "one", "two").words()
    assert len(set(first)) == 2 and len(site.files()) == 2
    assert [os.path.exists(f"/proc/{pid}") for pid in first] == [True, True]
    assert Script(STATE, "job.pkl", "one", "two").words() == first
    os.kill(int(first[0]), signal.SIGKILL)
    assert ended(int(first[0]), time.monotonic() + LIMIT)
    second = Script(STATE, "job.pkl", "one", "two").words()
    assert not set(first) & set(second)
    job_load("job.pkl").kill()
    assert not os.path.exists("job.pkl") and site.ends()


def test_a_job_of_another_specification_is_replaced(site):
    first = Script(STATE, "job.pkl", "one").words()
    second = Script(STATE, "job.pkl", "two").words()
    assert first != second and ended(int(first[0]), time.monotonic() + LIMIT)
    loaded = job_load("job.pkl")
    assert loaded._running.can_run(site.job("two")) and not loaded._running.can_run(site.job("two", "two"))
    assert not loaded._running.can_run(site.job("two", port=9)) and loaded.active
    loaded.kill()
    assert not loaded.active


@pytest.mark.parametrize("ending", ["", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_what_is_not_saved_ends_with_the_script(site, ending):
    kill = "kill" in ending
    words = Script(STATE + ending, "-", "one", "one").words(-9 if kill else 0)
    assert len(set(words)) == 2 and site.ends()
    for path in Path(os.environ["XDG_RUNTIME_DIR"]).rglob("*.token"):  # of 16 bytes that mean nothing any more
        assert ending
        path.unlink()


def test_a_script_that_dies_before_the_job_is_saved_leaves_nothing(site):
    script = Script("""
job.dump = lambda path: (print(*[each.pid for each in job._workers], flush=True), os.kill(os.getpid(), 9))
job.state(path)
""", "job.pkl", "one", "two")  # fmt: skip
    assert len(script.words(-9)) == 2 and site.ends() and not os.path.exists("job.pkl")


def test_a_script_that_dies_after_the_job_was_saved_leaves_its_hosts(site):
    first = Script(STATE + "os.kill(os.getpid(), 9)", "job.pkl", "one", "two").words(-9)
    assert Script(STATE + "job.kill()", "job.pkl", "one", "two").words() == first


def test_hosts_stay_as_long_as_the_script_also_where_nobody_has_the_job(site):
    words = Script("""
import gc
job.apply()
hosts, pids = job._state().hosts, [each.pid for each in job._workers]
del job
gc.collect()
hosts.spawn_procs().spawn("worker", Worker).pid.call().get()
print(*pids, flush=True)
""", "-", "one").words()  # fmt: skip
    assert len(words) == 1 and site.ends()


def test_a_connection_that_ends_takes_its_worker_with_it_unless_the_job_is_saved(site):
    job = site.job("one", "two")
    job.apply()
    workers = [worker.pid for worker in job._workers]
    os.kill(job._here.logins[0]._process.pid, signal.SIGKILL)
    assert ended(workers[0], time.monotonic() + LIMIT) and os.path.exists(f"/proc/{workers[1]}")
    job.dump("job.pkl")
    assert not job.can_run(job) and os.path.exists(f"/proc/{workers[1]}")
    job.kill()
    assert site.ends() and not os.path.exists("job.pkl")


def test_a_network_that_is_gone_is_noticed_by_what_is_said_into_it():
    """Of which the connection ends, and with it what the host's process says it to."""
    beat = "from monarch.job import _login_there as it; it._BEAT_S = 0.01; raise SystemExit(5 + it._is_kept())"
    with subprocess.Popen([sys.executable, "-c", beat], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.read(2) == b"\n\n" and process.poll() is None
        process.stdout.close()
        assert process.wait(LIMIT) == 5


def test_a_child_by_fork_does_not_hold_a_connection():
    login = Login("host", ["cat"])
    until, to_end = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.close(to_end)
            os.read(until, 1)
        finally:
            os._exit(0)
    os.close(until)
    try:
        login.let_go()
        assert login._process.wait(LIMIT) == 0
    finally:
        os.close(to_end)
        os.waitpid(child, 0)
        login.close(0.0)


def test_ctrl_c_while_hosts_start_leaves_nothing(site, silent, monkeypatch):
    config = site.config("hang", more=f"Host hang\n HostName 127.0.0.4\n Port {silent}")
    monkeypatch.setenv("SSH_CONFIG", config)
    script = Script("print('begun', flush=True)\njob.state(path)", "-", "one", "hang")
    assert script.process.stdout.readline() == "begun\n"
    until = time.monotonic() + LIMIT
    while not site.files():  # a worker has begun
        assert time.monotonic() < until
        select.select([], [], [], 0.02)
    script.process.send_signal(signal.SIGINT)
    _, err = script.process.communicate(timeout=LIMIT)
    assert err.rstrip().endswith("KeyboardInterrupt") and script.process.returncode == -signal.SIGINT
    assert site.ends()


# ---- What cannot be ----


def test_a_host_that_never_answers_is_told_and_the_others_are_released(site, silent):
    config = site.config("hang", more=f"Host hang\n HostName 127.0.0.4\n Port {silent}")
    with configured(host_spawn_ready_timeout="3s"):
        said = fails(site.job("one", "hang", config=config))
    assert "  hang: no answer in time" in said and "host_spawn_ready_timeout, 3 s" in said and "one" not in said
    said = fails(site.job("one", "hang", config=config, args=["-o", "ConnectTimeout=1"]))
    assert "hang: Connection timed out during banner exchange" in said
    assert site.ends()


def test_a_host_that_says_something_else_without_an_end_is_given_up():
    login, told = Login("host", ["yes"]), []

    def listen():
        with pytest.raises(LoginError, match="something else than an answer, without an end|no answer in time"):
            login.answer(time.monotonic() + 0.1)
        told.append(True)

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    listening.join(LIMIT)
    login._process.kill()
    login.close(0.0)
    assert told == [True]


@pytest.mark.parametrize("answer", ["hello", "3", "\\0377"])
def test_an_answer_that_is_none_is_told(answer):
    login = Login("host", ["sh", "-c", f"printf 'monarch-host: {answer}\\n'"])
    with pytest.raises(LoginError, match="its answer cannot be read"):
        login.answer(time.monotonic() + LIMIT)
    login.close(time.monotonic() + LIMIT)


def test_a_host_key_that_has_changed_is_told_in_the_words_of_openssh(site):
    right = (site.folder / "known").read_text()
    site.known((site.folder / "stranger.pub").read_text())
    try:
        said = fails(site.job("one", "two"))
    finally:
        (site.folder / "known").write_text(right)
    assert said.count("REMOTE HOST IDENTIFICATION HAS CHANGED!") == 2 and "Host key verification failed." in said
    assert len(said.splitlines()) < 50


def test_a_key_that_is_not_the_users_is_refused(site):
    said = fails(site.job("one", config=site.config("wrong", "stranger")))
    assert "one: " in said and "Permission denied (publickey)" in said


def test_a_name_that_nobody_knows(site):
    assert "Could not resolve hostname no-such-host.invalid" in fails(site.job("one", "no-such-host.invalid"))
    assert site.ends()


def test_a_port_that_is_taken_is_named_with_its_host(site):
    with socket.create_server(("127.0.0.2", 0)) as taken:
        port = taken.getsockname()[1]
        said = fails(site.job("two", port=port))
    assert f"  two: port {port} is taken there" in said and "monarch_port" in said


def test_an_interpreter_that_is_not_there_or_lacks_monarch(site):
    said = fails(site.job("one", python="/no/such/python"))
    assert "  one: " in said and "/no/such/python" in said and "not found" in said
    said = fails(site.job("one", python=f"env PYTHONPATH= {sys.executable} -I -S"))
    assert "  one: " in said and "No module named 'monarch'" in said


def test_no_ssh_at_all(site, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert fails(site.job("one")) == "cannot run 'ssh' for host one: there is no such program here"


def test_too_few_descriptors(site):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 20, limits[1]))
    try:
        said = fails(site.job(*["one"] * 20))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert said == "cannot run 'ssh' for host one: Too many open files" and site.ends()


def test_hosts_that_cannot_be_reached_any_more_make_kill_fail_and_it_may_be_tried_again(site):
    job = site.job("one", "two")
    job.apply()
    job.dump("job.pkl")
    right = (site.folder / "authorized").read_text()
    (site.folder / "authorized").write_text("")
    try:
        assert not job.can_run(job)
        with pytest.raises(RuntimeError, match=r"cannot be killed:\n  one: .*Permission denied"):
            job.kill()
    finally:
        (site.folder / "authorized").write_text(right)
    assert job.active and len(site.left()) >= 2
    job.kill()
    assert site.ends()


# ---- OpenSSH's own ----


def test_a_jump_host(site):
    before = len(site.log.read_text())
    job = site.job("two", args=["-J", "one"])
    job.apply()
    assert "direct-tcpip" in site.log.read_text()[before:]
    assert job._workers[0].url.startswith("tcp://127.0.0.3:")
    job.kill()


def test_an_agent(site, monkeypatch):
    path = site.folder / "agent"
    with subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.PIPE, text=True) as agent:
        assert "SSH_AUTH_SOCK" in agent.stdout.readline()
        try:
            config = site.config("agent_config", identity="")
            assert "Permission denied" in fails(site.job("one", config=config))
            monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
            subprocess.run(["ssh-add", "-q", site.folder / "user"], check=True, timeout=LIMIT)
            job = site.job("one", config=config)
            job.apply()
            job.kill()
        finally:
            agent.terminate()


def test_one_connection_for_all_that_stays(site):
    """``ControlMaster``: what a host is told, and the end of what it is told, do not wait for the connection's end."""
    control = site.folder / "c"
    config = site.config("shared", more=f"Host *\n ControlMaster auto\n ControlPersist 600\n ControlPath {control}")
    first, second = site.job("one", config=config), site.job("one", config=config)
    try:
        first.apply()
        second.apply()
        first.dump("job.pkl")
        assert first.can_run(first) and control.exists()
        second.kill()
        first.kill()
    finally:
        subprocess.run(["ssh", "-F", config, "-O", "exit", "one"], check=True, capture_output=True, timeout=LIMIT)
    assert site.ends()


def test_a_user_before_the_host_and_a_host_twice(site):
    user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
    job = site.job(f"{user}@one", f"{user}@one")
    job.apply()
    urls = [worker.url for worker in job._workers]
    assert len(set(urls)) == 2 and all(url.startswith("tcp://127.0.0.2:") for url in urls)
    job.kill()
    assert site.ends()


# ---- What is asked for ----


def test_bad_input_is_refused():
    job = SSHJob()
    assert isinstance(job, LoginJob) and repr(job) == "SSHJob({})"
    for call, said in [
        (lambda: SSHJob(transport="metatls"), "transport must be 'tcp', which is with TLS, but is 'metatls'"),
        (lambda: SSHJob(monarch_port=70000), "monarch_port must be from 0 .* to 65535, but is 70000"),
        (lambda: SSHJob(monarch_port="1"), "monarch_port must be an int, but is '1'"),
        (lambda: SSHJob(python_exe=""), "python_exe must be a command such as 'python3', but is ''"),
        (lambda: SSHJob(ssh_args="-v"), "ssh_args must be a sequence"),
        (lambda: job.add_mesh("hosts", "one"), "hosts must be a list such as .*, but is 'one'"),
        (lambda: job.add_mesh("hosts", []), r"hosts must be a list such as .*, but is \[\]"),
        (lambda: job.add_mesh("hosts", [1]), "a host must be a str such as 'node1', but is 1"),
        (lambda: job.add_mesh("hosts", ["-oProxyCommand=x"]), "'-oProxyCommand=x' is no name of a host"),
        (lambda: job.add_mesh("_x", ["one"]), "a mesh cannot be called '_x'"),
        (lambda: job.apply("script.py"), "SSHJob cannot run batch-mode scripts"),
        (lambda: job.apply(), "SSHJob has no hosts"),
    ]:
        with pytest.raises((TypeError, ValueError, RuntimeError), match=said):
            call()
    job.add_mesh("hosts", ["one"])
    with pytest.raises(ValueError, match="there is a mesh 'hosts' already"):
        job.add_mesh("hosts", ["one"])
    from monarch._src.job.job import SSHJob as private

    assert private is SSHJob


def test_hosts_may_stand_in_a_file(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# two racks\nnode1\n\n  me@node2 slots=8 max_slots=8  # the large one\nnode1\n")
    job = SSHJob()
    job.add_mesh("trainers", file)
    assert job._meshes == {"trainers": ["node1", "me@node2", "node1"]}
    for text, error in {
        "node1 node2\n": r"hosts, line 1: a host a line is wanted, not 'node1 node2'",
        "# none\n": "there is no host in .*hosts",
        "ok\n-oProxyCommand=x\n": "'-oProxyCommand=x' is no name of a host",
    }.items():
        file.write_text(text)
        with pytest.raises(ValueError, match=error):
            job.add_mesh("others", file)
    with pytest.raises(FileNotFoundError, match="none"):
        job.add_mesh("others", tmp_path / "none")
