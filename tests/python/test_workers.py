"""Hosts that outlive scripts: monarch-hostd, and scripts that attach to it."""

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from failure_texts import memory_cgroup
from hostd import HOSTD, Daemon
from script_run import ended

from monarch.actor import SupervisionError, attach_to_workers, start_worker_loop_forever

LIMIT = 30


def pids_of(text):
    return [int(pid) for pid in text.split()]


def test_ranks_are_places_in_the_list_and_siblings_reach_each_other(daemons):
    first, second = daemons
    first.run("""
assert hosts.sizes == {"hosts": 2} and hosts.initialized.get() is True
procs = hosts.spawn_procs({"gpus": 2})
workers = procs.spawn("worker", Worker)
assert workers.on.call(hosts).get().values() == [[True, False]] * 2 + [[False, True]] * 2
pids = workers.pid.call().get().values()
assert workers.slice(hosts=0, gpus=0).add.call_one(workers.slice(hosts=1)).get() == sum(pids[2:])
assert len(set(pids)) == 4
nested = workers.slice(hosts=0, gpus=0).nested.call_one(hosts).get()
assert nested.on.call(hosts).get().values() == [[True, False], [False, True]]
workers.slice(hosts=1, gpus=1).say.call_one("hello").get()
hosts.stop().get()
""", second).ok()  # fmt: skip


def test_lines_come_to_the_script_that_has_attached(daemons, scheme):
    run = daemons[0].run("""
workers = hosts.spawn_procs({"gpus": 2}).spawn("worker", Worker)
for i in range(4):
    workers.flatten("all").slice(all=i).say.call_one(f"hello {i}").get()
hosts.stop().get()
""", daemons[1]).ok()  # fmt: skip
    # Over a network an answer may overtake them.
    lines = run.out.splitlines() if scheme == "ipc" else sorted(run.out.splitlines())
    assert lines == [f"[{i}] hello {i}" for i in range(4)]


def test_one_script_comes_after_the_other_and_finds_nothing_of_it(daemons):
    left = []
    for ending in ("hosts.stop().get()", "", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"):
        run = daemons[0].run(f"""
workers = hosts.spawn_procs({{"gpus": 2}}).spawn("worker", Worker)
print(*workers.pid.call().get().values())
{ending}
""").done()  # fmt: skip
        assert run.err == ""
        left += pids_of(run.out)
        assert all(ended(pid, time.monotonic() + LIMIT) for pid in left)
    assert len(set(left)) == 8
    assert daemons[0].process.poll() is None


@pytest.mark.feature(53, "another script attaches to what was left")
def test_shutdown_ends_the_daemon_and_stop_does_not(folder, scheme):
    daemon = Daemon(folder, scheme=scheme)
    daemon.run("""
workers = hosts.spawn_procs().spawn("worker", Worker)
workers.pid.call().get()
hosts.stop().get()
""").ok()  # fmt: skip
    assert daemon.process.poll() is None
    daemon.run("""
procs = hosts.spawn_procs()
workers = procs.spawn("worker", Worker)
print(*workers.pid.call().get().values())
hosts.shutdown().get()
try:
    workers.pid.call().get()
except SupervisionError as error:
    assert "stopped by client" in str(error), error
""").ok()  # fmt: skip
    assert daemon.process.wait(LIMIT) == 0
    assert os.listdir(folder) == ["token"]
    daemon.end()


def test_the_end_of_a_daemon_that_this_script_has_not_asked_for_is_a_failure(folder, scheme):
    daemon = Daemon(folder, scheme=scheme)
    run = daemon.run("""
import queue
import monarch.actor
told = queue.Queue()
monarch.actor.unhandled_fault_hook = lambda failure: [told.put((failure.mesh_name, r)) for r in failure.crashed_ranks]
workers = hosts.spawn_procs({"gpus": 2}, name="procs").spawn("worker", Worker)
print("pid", next(iter(workers.pid.call().get().values())))
ends = sorted(told.get(timeout=20) for _ in range(4))
assert ends == [(mesh, rank) for mesh in ("procs", "worker") for rank in range(2)], ends
error = workers.pid.call().exception(timeout=20)
assert isinstance(error, SupervisionError), error
assert "was ended with its monarch-hostd (rank {'hosts': 0/1} of 'workers', pid" in str(error), error
try:
    hosts.spawn_procs().spawn("late", Worker).pid.call().get(timeout=20)
    raise AssertionError("spawned on a host that has ended")
except SupervisionError:
    pass
""")  # fmt: skip
    pid = int(run.line("pid "))
    assert daemon.end() == (0, "")
    assert ended(pid, time.monotonic())
    run.done()
    assert run.status == 0 and run.err == "", run.err


def test_a_script_whose_daemon_is_ended_by_others_stops_with_that_as_the_cause(folder, scheme):
    daemon = Daemon(folder, scheme=scheme)
    run = daemon.run("""
workers = hosts.spawn_procs({"gpus": 4}, name="procs").spawn("worker", Worker)
print("pid", next(iter(workers.pid.call().get().values())))
time.sleep(100)
""")  # fmt: skip
    pid = int(run.line("pid "))
    assert daemon.end() == (0, "")
    assert ended(pid, time.monotonic())
    run.done()
    assert run.status == 1
    assert run.err.startswith("monarch: ranks 0-3 of 'worker' have failed: was ended with its monarch-hostd\n"), run.err


def test_a_daemon_that_is_killed_is_a_failure_of_all_ranks_there_and_no_stop(folder, scheme):
    """Whatever its hosts are at, who hears of it first: five times."""
    for number in range(5):
        daemon = Daemon(folder, number, scheme)
        run = daemon.run("""
import monarch.actor
told = []
monarch.actor.unhandled_fault_hook = lambda failure: told.extend((failure.mesh_name, r) for r in failure.crashed_ranks)
procs = hosts.spawn_procs({"gpus": 3}, name="procs")
workers = procs.spawn("worker", Worker)
if sys.argv[2:] == ["idle"]:
    workers.pid.call().get()
print("spawned")
input()
began = time.monotonic()
error = workers.pid.call().exception(timeout=20)
while isinstance(error, type(None)):
    error = workers.pid.call().exception(timeout=20)
assert isinstance(error, SupervisionError) and "stopped" not in str(error), error
while len(told) < 6 and time.monotonic() < began + 20:
    time.sleep(0.01)
assert sorted(told) == [(mesh, rank) for mesh in ("procs", "worker") for rank in range(3)], told
""")  # fmt: skip
        run.line("spawned")
        daemon.process.kill()
        run.tell("\n")
        run.done()
        assert run.status == 0, run.err
        daemon.process.wait()
        daemon.process.stdout.close()
        daemon.process.stderr.close()
        Daemon.made.remove(daemon.process)


NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.fixture
def namespaces():
    if subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0:
        pytest.skip("this kernel, or this user, makes no namespaces of processes")


def test_a_host_in_another_namespace_of_processes_has_its_number_of_here(folder, namespaces):
    """As in a container of its own, whose daemon is reached by a socket in a folder that both see."""
    daemon = Daemon(folder, inside=NAMESPACE)
    run = daemon.run("""
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None

def here(pid):  # by the number that it has there
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if status(name)["NSpid"] == [name, str(pid)]:
                return name
        except OSError:
            pass  # it has ended

def status(pid):
    with open(f"/proc/{pid}/status") as file:
        return {line.partition(":")[0]: line.split()[1:] for line in file}

worker = hosts.spawn_procs().spawn("worker", Worker)
server = status(here(worker.pid.call_one().get()))["PPid"][0]
host = status(server)["PPid"][0]
assert len(status(host)["NSpid"]) == 2, "a process of the daemon's"
os.kill(int(host), signal.SIGKILL)
while (error := worker.pid.call().exception(timeout=20)) is None:
    pass
assert isinstance(error, SupervisionError) and "Killed(sig=9)" in str(error) and f", pid {host})" in str(error), error
""")  # fmt: skip
    try:
        run.ok()
    finally:
        daemon.process.kill()  # it hands on no other signal, and has made what --kill-child ends
    with daemon.process:
        Daemon.made.remove(daemon.process)


def test_a_host_that_is_out_of_reach_for_signals_ends_with_its_script(folder, namespaces):
    """As between two containers: no process reaches one of another namespace that is not within its own."""
    daemon = Daemon(folder)
    run = daemon.run("""
import monarch.actor
worker = hosts.spawn_procs().spawn("worker", Worker)
print("workers", worker.pid.call_one().get())
input()
""", inside=NAMESPACE)  # fmt: skip
    (pid,) = pids_of(run.line("workers "))
    host = parent(parent(pid))
    os.kill(host, signal.SIGSTOP)
    run.tell("\n")
    run.done()
    assert (run.status, run.err) == (0, "")
    assert all(ended(each, time.monotonic() + LIMIT) for each in (pid, host))
    assert daemon.end() == (0, "")


# What is frozen lies in the script's memory where that is on the same machine, and in the gateway's else.
@pytest.mark.parametrize(
    ("scheme", "kept"),
    [("ipc", "array"), ("ipc", "array.copy()"), ("tcp", "array"), ("tcp", "array.copy()"), ("tcp", "frozen")],
)
def test_arrays_that_fill_the_memory_of_a_host_cost_a_worker_which_is_told_as_out_of_memory(folder, scheme, kept):
    """The pages of shared memory count, too. The daemon and its host go on."""
    with memory_cgroup(300 << 20) as inside:
        if inside is None:
            pytest.skip("no memory cgroup can be made here")
        daemon = Daemon(folder, 0, scheme, inside=inside)
        run = daemon.run(f"""
import monarch.actor
import numpy
monarch.actor.unhandled_fault_hook = lambda failure: None
class Keeper(Worker):
    @endpoint
    def keep(self, array):
        self.kept = [*getattr(self, "kept", []), {kept.replace("frozen", "array")}]
        return len(self.kept)
procs = hosts.spawn_procs({{"gpus": 2}})
keepers = procs.spawn("keeper", Keeper)
pids = keepers.pid.call().get().values()
array = numpy.ones(32 << 20, dtype=numpy.uint8)
for _ in range(30):
    sent = array.copy()
    if error := keepers.keep.call(monarch.freeze(sent) if {kept == "frozen"} else sent).exception(timeout=20):
        break
assert "out of memory: the kernel's OOM killer" in str(error), error
procs.stop().get()
assert hosts.spawn_procs().spawn("worker", Worker).pid.call_one().get() not in pids
""")  # fmt: skip
        run.ok()
        assert daemon.end() == (0, "")


def test_a_host_that_does_not_come_is_told_once_for_all(folder):
    daemon = Daemon(folder)
    run = daemon.run("""
late = attach_to_workers(workers=["tcp://127.0.0.9:1", "tcp://127.0.0.9:2"], name="late")
procs = late.spawn_procs()
sys.stdin.readline()
os._exit(0)
""")  # fmt: skip
    told = run.err_line(LIMIT, "waiting for the host")
    where, left = r"the host at tcp://127\.0\.0\.9:[12] and 1 more", r"for \d+ s yet: .*Connection refused"
    assert re.fullmatch(f"monarch: waiting for {where}, {left}\n?", told), told
    run.tell("\n")
    run.done()


def test_a_host_on_this_machine_that_does_not_come_is_told_of_too(folder):
    daemon = Daemon(folder)
    run = daemon.run(f"""
procs = attach_to_workers(workers=["ipc://{folder}/late"], name="late").spawn_procs()
sys.stdin.readline()
os._exit(0)
""")
    told = run.err_line(LIMIT, "waiting for the host")
    what = rf"the host at ipc://{folder}/late, for \d+ s yet: nobody listens there"
    assert re.fullmatch(f"monarch: waiting for {what}\n?", told), told
    run.tell("\n")
    run.done()


BEAR = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_a_daemon_that_is_born_with_ends_of_children_ignored_knows_them_all_the_same(folder, scheme):
    daemon = Daemon(folder, 0, scheme, inside=[sys.executable, "-c", BEAR])
    daemon.run("""
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
worker = hosts.spawn_procs().spawn("worker", Worker)
os.kill(worker.pid.call_one().get(), signal.SIGKILL)
while (error := worker.pid.call().exception(timeout=20)) is None:
    pass
assert "Killed(sig=9)" in str(error), error
again = hosts.spawn_procs().spawn("worker", Worker)
host = again.host.call_one().get()
os.kill(host, signal.SIGKILL)
while (error := again.pid.call().exception(timeout=20)) is None:
    pass
assert "Killed(sig=9)" in str(error) and f", pid {host})" in str(error), error
""").ok()  # fmt: skip
    began = time.monotonic()
    assert daemon.end() == (0, "")
    assert time.monotonic() - began < 4, "it has waited for one that had ended"


def test_orphans_of_workers_leave_no_zombies(folder):
    daemon, python = Daemon(folder, 0, "tcp"), Path(folder) / "python"  # another program, and no fork server
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    run = daemon.run(f"""
worker = hosts.with_python_executable("{python}").spawn_procs().spawn("worker", Worker)
for _ in range(3):
    worker.orphan.call_one().get()
print("worker", worker.pid.call_one().get())
input()
""")  # fmt: skip
    host = parent(int(run.line("worker ")))
    deadline = time.monotonic() + LIMIT
    while len(children(parent(host))) > 1:
        assert time.monotonic() < deadline, children(parent(host))
    run.tell("\n")
    run.ok()
    assert daemon.end() == (0, "")


@pytest.mark.feature(58, "settings are in force there")
@pytest.mark.feature(78, "what is configured reaches attached hosts")
def test_the_configuration_goes_along(daemons):
    daemons[0].run("""
import monarch.actor.config
from monarch.config import configure, get_global_config
class Asked(Worker):
    @endpoint
    def asked(self):
        return get_global_config()["cleanup_timeout"]
configure(cleanup_timeout="7s")
assert hosts.spawn_procs().spawn("asked", Asked).asked.call().get().values() == [get_global_config()["cleanup_timeout"]]
hosts.stop().get()
""").ok()  # fmt: skip


@pytest.mark.feature(58, "an unreachable host is named")
def test_a_host_that_cannot_be_attached_to_is_named(folder, scheme, monkeypatch):
    daemon = Daemon(folder, scheme=scheme)
    monkeypatch.setenv("MONARCH_TOKEN_FILE", f"{folder}/another")
    hosts = attach_to_workers(workers=[daemon.address])
    with pytest.raises(SupervisionError, match=f"{daemon.address} cannot be attached to: .*{folder}/another"):
        hosts.initialized.get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match=f"{daemon.address} cannot be attached to"):
        hosts.spawn_procs()
    daemon.end()


@pytest.mark.parametrize(
    "workers, error, text",
    [
        (
            ["foo://a"],
            ValueError,
            '^invalid worker address "foo://a": unsupported ZMQ scheme: foo; expected a channel URL '
            "such as 'tcp://host:4444' or a ProcAddr such as '",
        ),
        (["/tmp/host"], ValueError, "invalid worker address"),
        (["inproc://x"], ValueError, "invalid inproc port: x"),
        ([7], TypeError, "must be a str"),
        (["@ipc:///tmp/host"], ValueError, "no identity of a host"),
        (["quic://h:1"], NotImplementedError, "quic://h:1"),
        (["tcp://h"], ValueError, "tcp://h"),
        ("ipc:///tmp/host", TypeError, "a sequence of addresses"),
        ([], TypeError, "a sequence of addresses"),
    ],
)
def test_wrong_addresses_raise_at_once(workers, error, text):
    with pytest.raises(error, match=text):
        attach_to_workers(ca="trust_all_connections", workers=workers)


@pytest.mark.feature(57, "the three loops")
@pytest.mark.parametrize("loop, after", [("until_shutdown", "after\n"), ("forever", "")])
def test_a_worker_loop_that_a_program_waits_in_ends_when_it_is_shut_down(folder, monkeypatch, loop, after):
    monkeypatch.setenv("MONARCH_TOKEN_FILE", f"{folder}/token")
    code = (
        "import sys\n"
        f"from monarch.actor import run_worker_loop_{loop} as run\n"
        "run(ca='trust_all_connections', address=sys.argv[1])\n"
        "print('after')"
    )
    address = f"ipc://{folder}/loop"
    with subprocess.Popen([sys.executable, "-c", code, address], stdout=subprocess.PIPE, text=True) as process:
        hosts = attach_to_workers(ca="trust_all_connections", workers=[address])
        assert hosts.initialized.get(timeout=LIMIT) is True
        hosts.shutdown().get(timeout=LIMIT)
        assert process.communicate(timeout=LIMIT)[0] == after
    assert process.returncode == 0


def test_a_worker_loop_says_which_port_it_has_and_ends_quietly_at_ctrl_c(folder, monkeypatch):
    monkeypatch.setenv("MONARCH_TOKEN_FILE", f"{folder}/token")
    code = (
        "from monarch.actor import run_worker_loop_forever\n"
        "run_worker_loop_forever(ca='trust_all_connections', address='tcp://127.0.0.2:0')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert select.select([process.stderr], [], [], LIMIT)[0], "it says nothing"
            line = process.stderr.readline()
            found = re.fullmatch(r"monarch: a worker loop listens at (tcp://127\.0\.0\.2:[1-9]\d*)\n", line)
            assert found is not None, line
            hosts = attach_to_workers(workers=[found[1]])
            assert hosts.initialized.get(timeout=LIMIT) is True
            hosts.stop().get(timeout=LIMIT)
            os.killpg(process.pid, signal.SIGINT)
            assert (process.communicate(timeout=LIMIT)[1], process.returncode) == ("", 130)
        finally:
            process.kill()


def test_a_worker_loop_goes_on_where_nobody_reads_what_it_says(folder, monkeypatch):
    monkeypatch.setenv("MONARCH_TOKEN_FILE", f"{folder}/token")
    path = f"{folder}/loop"
    code = f"from monarch.actor import run_worker_loop_forever as run; run(address='ipc://{path}')"
    nobody, stderr = os.pipe()
    os.close(nobody)
    with subprocess.Popen([sys.executable, "-c", code], stderr=stderr) as process:
        os.close(stderr)
        hosts = attach_to_workers(workers=[f"ipc://{path}"])
        assert hosts.initialized.get(timeout=LIMIT) is True
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.settimeout(LIMIT)
            stranger.connect(path)
            stranger.send(b"nonsense" * 8)
            with contextlib.suppress(ConnectionResetError):
                while stranger.recv(256):  # until it has been refused, of which there is a line
                    pass
        hosts.shutdown().get(timeout=LIMIT)
        assert process.wait(LIMIT) == 0


def test_a_worker_loop_ends_with_its_program_also_where_a_child_by_fork_lives_on(folder):
    code = (
        "import os, sys\n"
        "from monarch._meshes.workers import Daemon\n"
        "loop = Daemon(None, None, sys.argv[1])\n"
        "if (child := os.fork()) == 0:\n"
        "    os.read(int(sys.argv[2]), 1), os._exit(0)\n"
        "print(child, loop._process.pid, flush=True)\n"
        "sys.stdin.read()"
    )
    until, to_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", code, f"ipc://{folder}/loop", str(until)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, pass_fds=(until,),
        env={**os.environ, "MONARCH_TOKEN_FILE": f"{folder}/token"},
    )  # fmt: skip
    os.close(until)
    try:
        child, host = map(int, process.stdout.readline().split())
        process.kill()
        process.wait()
        assert ended(host, time.monotonic() + LIMIT) and os.path.exists(f"/proc/{child}")
    finally:
        os.close(to_end)
        process.stdin.close()
        process.stdout.close()
    assert ended(child, time.monotonic() + LIMIT)


@pytest.mark.feature(57, "the three loops")
def test_a_worker_loop_beside_a_program_ends_when_it_is_shut_down(folder, monkeypatch):
    monkeypatch.setenv("MONARCH_TOKEN_FILE", f"{folder}/token")
    address = f"ipc://{folder}/loop"
    loop = start_worker_loop_forever(ca="trust_all_connections", address=address)
    with pytest.raises(OSError, match="another one does"):
        start_worker_loop_forever(ca="trust_all_connections", address=address)
    hosts = attach_to_workers(ca="trust_all_connections", workers=[f"service@{address}"])
    assert hosts.initialized.get(timeout=LIMIT) is True
    hosts.shutdown().get(timeout=LIMIT)
    loop.get(timeout=LIMIT)


def regular(path):
    path.write_text("mine")


def of_another_kind(path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()
    return listener


@pytest.mark.parametrize(
    ("make", "why"), [(regular, "something else is there, which is no socket"), (of_another_kind, "another one does")]
)
def test_what_is_at_the_address_and_no_worker_loops_is_left_alone(tmp_path, make, why):
    path = tmp_path / "there"
    made = make(path)
    found = path.stat()
    command = [HOSTD, f"ipc://{path}", "--no-python", "--token-file", f"{tmp_path}/token"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (1, f"monarch-hostd: cannot listen at ipc://{path}: {why}\n")
    assert path.stat() == found
    del made


def test_a_worker_loop_ends_with_its_program(folder):
    code = (
        "import sys\n"
        "from monarch.actor import start_worker_loop_forever as start\n"
        "loop = start(ca='trust_all_connections', address=sys.argv[1])\n"
        "print('up', flush=True)\n"
        "sys.stdin.read()"
    )
    address = f"{folder}/loop"
    process = subprocess.Popen(
        [sys.executable, "-c", code, f"ipc://{address}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "MONARCH_TOKEN_FILE": f"{folder}/token"},
    )  # fmt: skip
    assert process.stdout.readline() == "up\n"
    process.kill()
    process.wait()
    assert select.select([process.stdout], [], [], LIMIT)[0] and process.stdout.read() == ""
    again = Daemon(folder, "again")
    assert again.end() == (0, "")


@pytest.mark.parametrize("is_there", [True, False], ids=["one that is stopped", "one that never came"])
def test_the_end_of_a_script_says_for_whom_it_waits_and_does_not_wait_long(folder, is_there):
    daemon = Daemon(folder)
    run = daemon.run(f"""
with attach_to_workers(workers=[{daemon.address if is_there else f"ipc://{folder}/nobody"!r}], name="there") as hosts:
    if {is_there}:
        hosts.spawn_procs().initialized.get()
    print("up")
    input()
    hosts.spawn_procs()
""", begin="from monarch.actor import attach_to_workers\n")  # fmt: skip
    run.line("up")
    if is_there:
        [keeper] = children(daemon.process.pid)
        for host in children(keeper):
            stop(host)
    run.tell("\n")
    at = time.monotonic()
    run.done(limit=60)
    assert time.monotonic() - at < 25, "it was 30 s"
    assert "monarch: waiting up to 5 s for rank 0 of 'there', which does not answer, to end\n" in run.err, run.err
    daemon.end()


def test_what_ends_as_it_was_asked_to_is_no_failure_also_where_its_host_says_nothing(folder):
    daemon = Daemon(folder)
    run = daemon.run("""
class Where(Actor):
    @endpoint
    def pid(self): return os.getpid()

hosts = attach_to_workers(workers=[sys.argv[1]], name="there")
pid = hosts.spawn_procs().spawn("where", Where).pid.call_one().get()
print("up")
input()
ending = hosts.shutdown()
os.kill(pid, signal.SIGKILL)  # as its host would have ended it
ending.get()
print("ended")
""", begin="from monarch.actor import attach_to_workers\n")  # fmt: skip
    run.line("up")
    [keeper] = children(daemon.process.pid)
    [host] = children(keeper)
    stop(host)
    run.tell("\n")
    run.line("ended")
    assert run.done(limit=60).status == 0 and "failed" not in run.err, run.err
    daemon.end()


def stop(pid):
    """Stops a process, all of whose threads have stopped when this returns: after the signal they run for a moment."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + LIMIT
    while set(states(pid)) != {"T"}:
        assert time.monotonic() < deadline
        select.select([], [], [], 0.001)


def states(pid):
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/stat") as file:
            yield file.read().rpartition(")")[2].split()[0]


def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]
