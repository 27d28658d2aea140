"""Processes that a program's own code starts and ends: spawn_procs(proc_launcher=...)."""

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from hostd import Daemon
from script_run import Run, program

from monarch._src.actor.proc_launcher import LaunchOptions, ProcExitResult, ProcLauncher
from monarch.actor import (
    Actor,
    SupervisionError,
    attach_to_workers,
    current_rank,
    default_bootstrap_cmd,
    endpoint,
    hosts_from_config,
    this_host,
    this_proc,
)
from monarch.config import configured

LIMIT = 30
POPEN = program("proc_launcher/popen.py")


class Log:
    """What launchers were asked for, and what they have started: they run in this process."""

    def __init__(self):
        self.asked = []
        self.started = []
        self.options = []
        self.ports = []
        self.changed = threading.Condition()

    def note(self, *what):
        with self.changed:
            self.asked.append(what)
            self.changed.notify_all()

    def wait_for(self, *what):
        with self.changed:
            assert self.changed.wait_for(lambda: what in self.asked, LIMIT), (what, self.asked)

    def of(self, what):
        return [rest for name, *rest in self.asked if name == what]


log = Log()


@pytest.fixture(autouse=True)
def fresh_log():
    log.__init__()
    yield
    for process in log.started:
        process.kill()
        process.wait()


class Launcher(ProcLauncher):
    """Starts them with subprocess."""

    prefix: list[str] = []
    reports = True

    def __init__(self):
        self.running = {}

    @endpoint
    def launch(self, exit_port, proc_id, launch_options):
        log.options.append(launch_options)
        log.ports.append(exit_port)
        self.start(exit_port, proc_id, launch_options)
        log.note("launch", proc_id)

    def start(self, exit_port, proc_id, options):
        process = subprocess.Popen([*self.prefix, *options.command], env=options.environment())
        log.started.append(process)
        self.running[proc_id] = process
        if self.reports:
            threading.Thread(target=self.wait, args=(process, exit_port), daemon=True).start()

    def wait(self, process, exit_port):
        status = process.wait()
        result = ProcExitResult(exit_code=status) if status >= 0 else ProcExitResult(signal=-status)
        result.failed_reason = f"it was process {process.pid}"
        exit_port.send(result)

    @endpoint
    def terminate(self, proc_id, timeout_secs):
        log.note("terminate", proc_id, timeout_secs)

    @endpoint
    def kill(self, proc_id):
        log.note("kill", proc_id)
        if proc_id in self.running:
            self.running[proc_id].kill()


class Worker(Actor):
    def __init__(self):
        self.rank = current_rank().rank

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def look(self, name) -> str | None:
        return os.environ.get(name)

    @endpoint
    def exit(self, code):
        sys.stderr.write("about to go\n")
        sys.stderr.flush()
        os._exit(code)

    @endpoint
    def die(self, number):
        os.kill(os.getpid(), number)

    @endpoint
    def sum(self, others):
        return sum(others.pid.call().get(timeout=LIMIT).values())

    @endpoint
    def stay(self):
        threading.Thread(target=time.sleep, args=(60,), daemon=False).start()

    @endpoint
    def leave(self):
        return subprocess.Popen(["sleep", "60"]).pid

    @endpoint
    def nested(self):
        return this_host().spawn_procs().spawn("nested", Worker).pid.call_one().get(timeout=LIMIT)


def launched(launcher=Launcher, count=1, **more):
    procs = this_host().spawn_procs(per_host={"gpus": count}, proc_launcher=launcher, name="launched", **more)
    return procs, procs.spawn("workers", Worker)


def told(call):
    """What a call that must fail is told."""
    with pytest.raises(SupervisionError) as caught:
        call.get(timeout=LIMIT)
    return str(caught.value)


# ---- What it is for ----


@pytest.mark.feature(59, "members like any other")
def test_processes_that_a_launcher_starts_are_like_any_other():
    procs, workers = launched(count=2)
    with procs:
        pids = list(workers.pid.call().get(timeout=LIMIT).values())
        assert sorted(pids) == sorted(process.pid for process in log.started)
        assert len({proc_id for (proc_id,) in log.of("launch")}) == 2
        assert procs.initialized.get(timeout=LIMIT)
        forked = this_host().spawn_procs(per_host={"gpus": 2})
        others = forked.spawn("workers", Worker)
        askers = procs.spawn("askers", Worker)
        assert list(askers.sum.call(workers).get(timeout=LIMIT).values()) == [sum(pids)] * 2
        expected = sum(others.pid.call().get(timeout=LIMIT).values())
        assert list(askers.sum.call(others).get(timeout=LIMIT).values()) == [expected] * 2
        assert list(others.sum.call(workers).get(timeout=LIMIT).values()) == [sum(pids)] * 2
        assert workers.slice(gpus=0).nested.call_one().get(timeout=LIMIT) not in pids
        forked.stop().get(timeout=LIMIT)
    assert [process.wait(LIMIT) for process in log.started] == [0, 0]
    log.wait_for("terminate", log.of("launch")[0][0], 10.0)
    assert "stopped: stopped by client" in told(workers.pid.call())


@pytest.mark.feature(59, "program, arguments and environment")
def test_it_is_told_which_program_arguments_and_environment(monkeypatch):
    monkeypatch.setenv("GONE", "still there")
    command = default_bootstrap_cmd().with_env({"COLOUR": "green", "GONE": None})
    bind = {"cpus": str(min(os.sched_getaffinity(0)))}
    procs, workers = launched(bootstrap_command=command, proc_bind=[bind])
    with procs:
        assert workers.look.call_one("COLOUR").get(timeout=LIMIT) == "green"
        assert workers.look.call_one("GONE").get(timeout=LIMIT) is None
        assert workers.look.call_one("PATH").get(timeout=LIMIT) == os.environ["PATH"]
    (options,) = log.options
    assert isinstance(options, LaunchOptions)
    assert (options.env, options.env_remove, options.inherit_env) == ({"COLOUR": "green"}, ["GONE"], True)
    assert options.command[:3] == ["taskset", "-c", bind["cpus"]] and options.proc_bind == bind
    assert options.command[3:-1] == [command.program, *command.args]
    assert options.args[-1] == options.bootstrap_payload
    assert options.process_name == "rank {'gpus': 0/1} of 'launched'"
    assert (options.want_stdio, options.tail_lines, options.log_channel) == (False, 10, None)


@pytest.mark.feature(59, "program, arguments and environment")
def test_nothing_that_it_is_told_is_secret_and_its_socket_is_this_users_alone():
    procs, workers = launched()
    with procs:
        workers.pid.call_one().get(timeout=LIMIT)
        path, _, node = log.options[0].bootstrap_payload.partition("#")
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
        assert len(node) == 16 and node not in path


@pytest.mark.feature(59, "program, arguments and environment")
def test_a_program_around_it_may_start_it_as_a_child():
    class Wrapped(Launcher):
        prefix = ["sh", "-c", '"$@"; exit $?', "wrapper"]

    procs, workers = launched(Wrapped)
    with procs:
        assert workers.pid.call_one().get(timeout=LIMIT) != log.started[0].pid
    assert log.started[0].wait(LIMIT) == 0


@pytest.mark.feature(59, "members like any other")
@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "--pid", "--fork", "--kill-child", "true"], capture_output=True).returncode != 0,
    reason="this user may not make a namespace of processes",
)
def test_it_may_live_among_other_process_numbers():
    class Contained(Launcher):
        prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]

    procs, workers = launched(Contained, count=2)
    with procs:
        assert list(workers.pid.call().get(timeout=LIMIT).values()) == [1, 1]
        assert list(procs.spawn("askers", Worker).sum.call(workers).get(timeout=LIMIT).values()) == [2, 2]
        assert "exited with non-zero code 5" in told(workers.slice(gpus=0).exit.call_one(5))
        assert workers.slice(gpus=1).pid.call_one().get(timeout=LIMIT) == 1
    assert [process.wait(LIMIT) for process in log.started] == [5, 0]


@pytest.mark.feature(59, "started and stopped by a program")
def test_an_async_launcher_that_was_spawned_before_starts_several_meshes():
    class Async(Launcher):
        def __init__(self, name):
            super().__init__()
            self.name = name

        @endpoint
        async def launch(self, exit_port, proc_id, launch_options):
            launch_options.env["LAUNCHED_BY"] = self.name
            self.start(exit_port, proc_id, launch_options)

    launcher = this_proc().spawn("launcher", Async, "me")
    meshes = [launched(launcher) for _ in range(2)]
    for _, workers in meshes:
        assert workers.look.call_one("LAUNCHED_BY").get(timeout=LIMIT) == "me"
    for procs, _ in meshes:
        procs.stop().get(timeout=LIMIT)
    launcher.stop().get(timeout=LIMIT)
    assert [process.wait(LIMIT) for process in log.started] == [0, 0]


@pytest.mark.feature(59, "members like any other")
def test_on_several_hosts_of_this_machine():
    with hosts_from_config("cluster") as hosts:
        procs = hosts.spawn_procs(per_host={"gpus": 1}, proc_launcher=Launcher)
        workers = procs.spawn("workers", Worker)
        pids = list(workers.pid.call().get(timeout=LIMIT).values())
        assert sorted(pids) == sorted(process.pid for process in log.started)
        assert "exited with non-zero code 4" in told(workers.slice(hosts=0).exit.call_one(4))
        assert f"its launcher says: it was process {pids[0]}" in told(workers.slice(hosts=0).pid.call_one())
        procs.stop().get(timeout=LIMIT)
    assert sorted(process.wait(LIMIT) for process in log.started) == [0, 4]


@pytest.mark.feature(59, "members like any other")
def test_a_process_is_respawned_by_its_launcher():
    procs, workers = launched(count=2)
    with procs:
        told(workers.slice(gpus=1).exit.call_one(3))
        procs.respawn().get(timeout=LIMIT)
        assert workers.slice(gpus=1).pid.call_one().get(timeout=LIMIT) == log.started[2].pid
    assert [process.wait(LIMIT) for process in log.started] == [0, 3, 0]


@pytest.mark.feature(59, "started and stopped by a program")
def test_what_does_not_end_in_its_time_is_killed_after_it_was_terminated():
    procs, workers = launched()
    workers.stay.call_one().get(timeout=LIMIT)
    with configured(process_exit_timeout="300ms", cleanup_timeout="30s"):
        procs.stop().get(timeout=LIMIT)
    (proc_id,) = log.of("launch")[0]
    log.wait_for("terminate", proc_id, 0.3)
    assert log.started[0].wait(LIMIT) == -signal.SIGKILL


@pytest.mark.feature(59, "started and stopped by a program")
def test_sigterm_ends_it_in_order(tmp_path):
    class Cleaning(Worker):
        @endpoint
        def use(self, path):
            self.path = path

        def __cleanup__(self, error):
            with open(self.path, "w") as file:
                file.write("clean")

    procs, _ = launched()
    cleaning = procs.spawn("cleaning", Cleaning)
    cleaning.use.call_one(str(tmp_path / "said")).get(timeout=LIMIT)
    log.started[0].terminate()
    assert log.started[0].wait(LIMIT) == -signal.SIGTERM
    assert (tmp_path / "said").read_text() == "clean"
    assert "Terminated(sig=15)" in told(cleaning.pid.call_one())
    procs.stop().get(timeout=LIMIT)


@pytest.mark.feature(59, "started and stopped by a program")
def test_a_stop_does_not_wait_for_one_that_is_not_there_yet():
    class Slow(Launcher):
        prefix = ["sh", "-c", 'while test ! -e "$0"; do sleep 0.02; done; exec "$@"', "/nowhere/at/all"]

    procs, workers = launched(Slow)
    call = workers.pid.call_one()
    log.wait_for("launch", f"launched-0-{procs._nodes[0]:016x}")
    start = time.monotonic()
    procs.stop().get(timeout=LIMIT)
    assert time.monotonic() - start < 5
    assert "stopped: stopped by client" in told(call)
    log.wait_for("kill", log.of("launch")[0][0])
    assert log.started[0].wait(LIMIT) == -signal.SIGKILL


@pytest.mark.feature(59, "started and stopped by a program")
def test_it_ends_with_the_actor_that_has_spawned_it():
    class Owner(Actor):
        @endpoint
        def spawn(self):
            self.procs, self.workers = launched()
            return self.workers.pid.call_one().get(timeout=LIMIT)

    owner = this_proc().spawn("owner", Owner)
    assert owner.spawn.call_one().get(timeout=LIMIT) == log.started[0].pid
    owner.stop().get(timeout=LIMIT)
    assert log.started[0].wait(LIMIT) == 0
    log.wait_for("terminate", log.of("launch")[0][0], 10.0)


@pytest.mark.feature(59, "nothing is left")
def test_what_it_leaves_in_its_process_group_ends_with_it():
    procs, workers = launched()
    with procs:
        left = workers.leave.call_one().get(timeout=LIMIT)
        pidfd = os.pidfd_open(left)
        told(workers.exit.call_one(3))
        assert select.select([pidfd], [], [], LIMIT)[0]
        os.close(pidfd)


# ---- How it ends ----


@pytest.mark.feature(59, "its exit is told")
def test_a_death_is_told_once_with_what_the_launcher_says():
    procs, workers = launched(count=2)
    with procs:
        pid = workers.slice(gpus=0).pid.call_one().get(timeout=LIMIT)
        text = told(workers.slice(gpus=0).exit.call_one(3))
        assert f"exited with non-zero code 3 (rank {{'gpus': 0/2}} of 'launched', pid {pid})" in text
        assert f"its launcher says: it was process {pid}" in text and "about to go" in text
        assert text == told(workers.slice(gpus=0).exit.call_one(3)).replace("pid.call", "exit.call")
        text = told(workers.slice(gpus=1).die.call_one(signal.SIGKILL))
        assert "Killed(sig=9)" in text and "its launcher says: it was process" in text


@pytest.mark.feature(59, "its exit is told")
def test_a_launcher_that_says_nothing_delays_a_death_and_hides_it_not():
    class Silent(Launcher):
        reports = False

    procs, workers = launched(Silent)
    with procs:
        workers.pid.call_one().get(timeout=LIMIT)
        text = told(workers.exit.call_one(3))
        assert "exited with non-zero code 3" in text and "launcher says" not in text
    log.wait_for("kill", log.of("launch")[0][0])


@pytest.mark.feature(59, "its exit is told")
def test_its_owner_is_told():
    failures = []

    class Owner(Actor):
        def __supervise__(self, failure):
            failures.append(str(failure))
            return True

        @endpoint
        def spawn(self):
            self.procs, self.workers = launched()
            return self.workers.pid.call_one().get(timeout=LIMIT)

        @endpoint
        def seen(self):
            return list(failures)

    owner = this_proc().spawn("owner", Owner)
    pid = owner.spawn.call_one().get(timeout=LIMIT)
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + LIMIT
    while not owner.seen.call_one().get(timeout=LIMIT) and time.monotonic() < end:
        time.sleep(0.02)
    assert any(f"its launcher says: it was process {pid}" in failure for failure in failures)
    owner.stop().get(timeout=LIMIT)


# ---- What goes wrong ----


@pytest.mark.feature(59, "what goes wrong is told")
def test_one_that_raises_says_why_it_could_not_be_started():
    class Raising(Launcher):
        def start(self, exit_port, proc_id, options):
            raise FileNotFoundError("no such image: trainer:7")

    procs, workers = launched(Raising)
    with procs:
        text = told(workers.pid.call_one())
        assert "could not be started (rank {'gpus': 0/1} of 'launched')" in text
        assert "launch() of its launcher has failed: FileNotFoundError: no such image: trainer:7" in text
        with pytest.raises(SupervisionError):
            procs.initialized.get(timeout=LIMIT)


@pytest.mark.feature(59, "what goes wrong is told")
def test_one_that_starts_nothing_has_a_limit():
    class Idle(Launcher):
        def start(self, exit_port, proc_id, options):
            pass

    with configured(mesh_proc_spawn_max_idle="300ms"):
        procs, workers = launched(Idle)
    with procs:
        assert "its launcher has not brought it up within 300ms (mesh_proc_spawn_max_idle)" in told(workers.pid.call())
        log.wait_for("kill", log.of("launch")[0][0])


@pytest.mark.feature(59, "what goes wrong is told")
def test_the_second_of_two_is_refused(capfd):
    class Twice(Launcher):
        def start(self, exit_port, proc_id, options):
            super().start(exit_port, proc_id, options)
            self.options = options
            self.reports = False

        @endpoint
        def again(self):
            self.start(None, "again", self.options)

    launcher = this_proc().spawn("launcher", Twice)
    procs, workers = launched(launcher)
    with procs:
        pid = workers.pid.call_one().get(timeout=LIMIT)
        launcher.again.call_one().get(timeout=LIMIT)
        assert log.started[1].wait(LIMIT) == 1
        assert workers.pid.call_one().get(timeout=LIMIT) == pid
    assert "it is there already, and this would be the second" in capfd.readouterr().err
    launcher.stop().get(timeout=LIMIT)


@pytest.mark.feature(59, "what goes wrong is told")
def test_an_end_that_is_wrong_is_not_believed(capfd):
    procs, workers = launched()
    with procs:
        pid = workers.pid.call_one().get(timeout=LIMIT)
        log.ports[0].send(ProcExitResult(exit_code=3, failed_reason="invented"))
        end = time.monotonic() + LIMIT
        said = ""
        while "invented" not in said and time.monotonic() < end:
            said += capfd.readouterr().err
            time.sleep(0.02)
        assert f"says that it has ended (exited with code 3; invented), but it lives: pid {pid}" in said
        assert workers.pid.call_one().get(timeout=LIMIT) == pid


@pytest.mark.feature(59, "what goes wrong is told")
def test_one_that_dies_before_it_is_there():
    class Broken(Launcher):
        def start(self, exit_port, proc_id, options):
            exit_port.send(ProcExitResult(exit_code=127, failed_reason="sh: not found", stderr_tail=["a", "b"]))

    procs, workers = launched(Broken)
    with procs:
        text = told(workers.pid.call_one())
        assert "could not be started" in text
        assert "it ended before it was there; its launcher says: exited with code 127; sh: not found" in text
        assert text.rstrip().endswith("a\n  b") or "  a\n" in text


@pytest.mark.feature(59, "what goes wrong is told")
def test_when_the_launcher_fails_its_processes_end():
    class Failing(Launcher):
        @endpoint
        def fail(self):
            raise ValueError("the launcher is broken")

    launcher = this_proc().spawn("launcher", Failing)
    procs, workers = launched(launcher)
    workers.pid.call_one().get(timeout=LIMIT)
    launcher.fail.broadcast()
    assert log.started[0].wait(LIMIT) == -signal.SIGKILL
    text = told(workers.pid.call_one())
    assert "was ended because its launcher has ended" in text and "the launcher is broken" in text
    procs.stop().get(timeout=LIMIT)


@pytest.mark.feature(59, "what goes wrong is told")
def test_results_of_other_kinds_are_refused_where_they_are_sent():
    procs, workers = launched()
    with procs:
        workers.pid.call_one().get(timeout=LIMIT)
        port = log.ports[0]
        with pytest.raises(TypeError, match="takes a ProcExitResult, not 3"):
            port.send(3)
        with pytest.raises(TypeError, match="exit_code of a ProcExitResult must be of type int, but is 'x'"):
            port.send(ProcExitResult(exit_code="x"))
        with pytest.raises(ValueError, match="32 bits"):
            port.send(ProcExitResult(exit_code=1 << 40))
        with pytest.raises(TypeError, match="stderr_tail"):
            port.send(ProcExitResult(stderr_tail="text"))


@pytest.mark.feature(59, "what goes wrong is told")
def test_what_is_no_launcher_is_refused():
    class Half(ProcLauncher):
        @endpoint
        def launch(self, exit_port, proc_id, launch_options): ...

    host = this_host()
    for wrong in (3, Worker, "docker"):
        with pytest.raises(TypeError, match="proc_launcher must be a subclass of ProcLauncher"):
            host.spawn_procs(proc_launcher=wrong)
    with pytest.raises(TypeError, match="Half does not say how to kill, terminate a process"):
        host.spawn_procs(proc_launcher=Half)
    procs = host.spawn_procs(per_host={"gpus": 2})
    with pytest.raises(ValueError, match="must be one actor, but is a mesh of 2"):
        host.spawn_procs(proc_launcher=procs.spawn("launchers", Launcher))
    procs.stop().get(timeout=LIMIT)
    command = default_bootstrap_cmd()
    command.arg0 = "me"
    with pytest.raises(ValueError, match="is not told arg0"):
        host.spawn_procs(proc_launcher=Launcher, bootstrap_command=command)


# ---- Scripts ----


@pytest.mark.feature(59, "nothing is left")
def test_a_script_ends_cleanly():
    run = Run(POPEN + "\nmain()[0].stop().get()\nprint('stopped')", prologue="").ok()
    assert "stopped" in run.out
    Run(POPEN + "\nmain()", prologue="").ok()


@pytest.mark.feature(59, "nothing is left")
def test_nothing_is_left_of_a_script_that_is_killed():
    run = Run(POPEN + "\nmain()\nimport time; time.sleep(60)", prologue="")
    run.line("pids")
    run.kill()
    run.done()


@pytest.mark.feature(59, "nothing is left")
def test_one_that_comes_when_its_script_has_gone_ends():
    late = """
class Late(Popen):
    @endpoint
    def launch(self, exit_port, proc_id, launch_options):
        print("launched", flush=True)
        command = ["sh", "-c", 'read ended; exec "$@"', "late", *launch_options.command]
        self.late = subprocess.Popen(
            command, env=launch_options.environment(), start_new_session=True, stdin=subprocess.PIPE
        )
this_host().spawn_procs(proc_launcher=Late)
import time; time.sleep(60)
"""
    run = Run(POPEN + late, prologue="")
    run.line("launched")
    run.kill()
    run.done()


NESTED = (
    POPEN
    + """
import os, signal
class Owner(Actor):
    @endpoint
    def spawn(self):
        self.procs, self.workers = main()
        return os.getpid()
owner = this_host().spawn_procs().spawn("owner", Owner)
pid = owner.spawn.call_one().get()
print("nested", flush=True)
"""
)


@pytest.mark.feature(59, "members like any other")
def test_workers_may_have_launchers_too():
    run = Run(NESTED, prologue="").ok()
    assert "nested" in run.out
    run = Run(NESTED + "\nimport time; time.sleep(60)", prologue="")
    run.line("nested")
    run.kill()
    run.done()


@pytest.mark.feature(59, "nothing is left")
def test_what_a_killed_worker_has_launched_ends():
    kill = """
os.kill(pid, signal.SIGKILL)
try:
    owner.spawn.call_one().get()
except Exception as error:
    print("told", "Killed(sig=9)" in str(error))
"""
    run = Run(NESTED + kill, prologue="").done()
    assert "told True" in run.out


# ---- Where there is none ----


def test_not_on_hosts_over_a_network(folder, monkeypatch):
    daemon = Daemon(folder, scheme="tcp")
    monkeypatch.setenv("MONARCH_TOKEN_FILE", daemon.env["MONARCH_TOKEN_FILE"])
    hosts = attach_to_workers(workers=[daemon.address])
    with pytest.raises(NotImplementedError, match="proc_launcher: not for hosts over a network"):
        hosts.spawn_procs(proc_launcher=Launcher)
    assert log.started == []
    assert hosts.spawn_procs().initialized.get(timeout=LIMIT) is True
    hosts.stop().get(timeout=LIMIT)
    assert daemon.end() == (0, "")


def test_not_in_a_simulation():
    Run("""
from monarch._src.actor.proc_launcher import ProcLauncher
from monarch.testing import simulate
class Launcher(ProcLauncher):
    @endpoint
    def launch(self, exit_port, proc_id, launch_options): pass
    @endpoint
    def terminate(self, proc_id, timeout_secs): pass
    @endpoint
    def kill(self, proc_id): pass
with simulate(seed=1):
    try:
        this_host().spawn_procs(proc_launcher=Launcher)
        raise AssertionError("there are no processes")
    except NotImplementedError as error:
        assert "proc_launcher: not in monarch.testing.simulate()" in str(error), error
""").ok()  # fmt: skip


def test_not_on_hosts_of_another_job(monkeypatch):
    with hosts_from_config("hosts") as hosts:
        monkeypatch.setattr(hosts._agents, "_job", "another")
        with pytest.raises(NotImplementedError, match="not on the hosts of another job"):
            hosts.spawn_procs(proc_launcher=Launcher)
        monkeypatch.undo()
    assert log.started == []
