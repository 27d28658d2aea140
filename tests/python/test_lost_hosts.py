"""Hosts that are reached over a network, and what is there: how they end, and who hears of it."""

import contextlib
import os
import re
import select
import socket
import time
import warnings

import pytest
from hostd import LIMIT, Daemon
from script_run import ended, program

from monarch._errors.mesh_failure import _in_a_few_words
from monarch.actor import SupervisionError, attach_to_workers
from monarch.config import configured

FAILURES = program("workers/failures.py")


@pytest.fixture
def scheme():
    return "tcp"


def test_a_process_that_is_killed_there_is_told_of_to_all(daemons):
    daemons[0].run("""
os.kill(pids[2][0], signal.SIGKILL)
cause = f"Killed(sig=9) (rank {{'hosts': 1/2, 'gpus': 0/2}} of 'procs', pid {pids[2][0]}), while in sleepers.sleep"
assert cause in error_of(pending), error_of(pending)
assert cause in beside.get(timeout=20)
while len(faults) < 2:
    time.sleep(0.01)
assert crashed("sleepers") == crashed("procs") == [2], faults
assert second.slice(gpus=1).pids.call_one().get(timeout=20) == pids[3], "the other one there is as it was"
hosts.stop().get()
""", daemons[1], begin=FAILURES).ok()  # fmt: skip


def test_a_host_that_is_killed_is_one_cause_for_all_its_ranks(daemons):
    daemons[0].run("""
os.kill(pids[2][1], signal.SIGKILL)
cause = "the host of the process this actor was running on failed: Killed(sig=9) "
cause += f"(rank {{'hosts': 1/2}} of 'machines', pid {pids[2][1]})"
assert cause in error_of(pending), error_of(pending)
assert cause in beside.get(timeout=20)
while len(faults) < 4:
    time.sleep(0.01)
assert sorted(crashed("sleepers")) == sorted(crashed("procs")) == [2, 3], "each is told once"
assert all(cause in str(fault) for fault in faults)
assert all(os.path.exists(f"/proc/{pid}") for pid, _ in pids[:2])
assert first.pids.call().get(timeout=20).values() == pids[:2]
hosts.slice(hosts=0).spawn_procs().initialized.get(timeout=20)
try:
    hosts.spawn_procs()
    raise AssertionError("spawned on a host that has ended")
except SupervisionError as error:
    assert "Killed(sig=9)" in str(error), error
print(pids[2][0], pids[3][0])
""", daemons[1], begin=FAILURES).ok()  # fmt: skip


def test_a_host_that_says_nothing_is_lost_when_its_lease_is_over(daemons):
    run = daemons[0].run("""
stop(pids[2][1])
at = time.monotonic()
cause = "the host of the process this actor was running on was lost (rank {'hosts': 1/2} of 'machines', on 127.0.0.3): "
cause += "nothing has come from it for 1 s (host_lease)"
assert cause in error_of(pending), error_of(pending)
assert 0.8 < time.monotonic() - at < 4, "the last sign of life had come up to an eighth of a second before it stopped"
assert "the host of the process this actor was running on was lost" in beside.get(timeout=20)
while len(faults) < 4:
    time.sleep(0.01)
assert sorted(crashed("sleepers")) == sorted(crashed("procs")) == [2, 3], "each is told once"
assert first.pids.call().get(timeout=20).values() == pids[:2]
print("pid", *(pid for pair in pids[2:] for pid in pair))
input()
""", daemons[1], begin=FAILURES, env={"MONARCH_HOST_LEASE": "1s"})  # fmt: skip
    pids = [int(pid) for pid in run.line("pid ").split()]
    deadline = time.monotonic() + LIMIT
    assert all(ended(pid, deadline) for pid in pids), "its monarch-hostd was told to kill it"
    run.tell("\n")
    run.done()


def test_a_break_that_is_shorter_than_the_lease_is_not_noticed(daemons):
    daemons[0].run("""
stop(pids[2][1])
asked = second.slice(gpus=1).pids.call_one()
assert isinstance(asked.exception(timeout=2), TimeoutError)
os.kill(pids[2][1], signal.SIGCONT)
assert asked.get(timeout=20) == pids[3]
assert not faults
hosts.stop().get()
""", daemons[1], begin=FAILURES, env={"MONARCH_HOST_LEASE": "20s"}).ok()  # fmt: skip


def test_the_processes_of_a_script_that_is_killed_end_when_the_lease_is_over(daemons):
    run = daemons[0].run("""
print("pid", *(pid for pair in pids for pid in pair))
os.kill(os.getpid(), signal.SIGKILL)
""", daemons[1], begin=FAILURES, env={"MONARCH_HOST_LEASE": "1s"})  # fmt: skip
    pids = [int(pid) for pid in run.line("pid ").split()]
    deadline = time.monotonic() + LIMIT
    assert all(ended(pid, deadline) for pid in pids)


# There was no link yet whose end the host could have seen.
@pytest.mark.parametrize("after", [0.002, 0.005, 0.01, 0.02, 0.03])
def test_nothing_is_left_of_a_script_that_is_killed_while_it_attaches(folder, after):
    daemon = Daemon(folder, 0, "tcp")
    run = daemon.run(
        "",
        begin=f"""
import os, signal, sys, threading
from monarch.actor import attach_to_workers
threading.Timer({after}, os.kill, (os.getpid(), signal.SIGKILL)).start()
attach_to_workers(workers=sys.argv[1:]).initialized.get(timeout=20)
input()
""",
        env={"MONARCH_HOST_LEASE": "1s"},
    )
    assert run.process.wait(LIMIT) == -9
    deadline = time.monotonic() + LIMIT
    pid = daemon.process.pid
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        keepers = [int(pid) for pid in file.read().split()]
    assert all(ended(pid, deadline) for pid in keepers), "what they keep is for nobody"
    assert daemon.end()[0] == 0  # it may have said that a connection went away


def test_a_process_there_is_stopped_for_as_long_as_who_waits_has_it(daemons):
    run = daemons[0].run("""
stop(pids[3][0])
asked = second.slice(gpus=1).pids.call_one()
assert "was stopped (SIGSTOP) for longer than 1 s while calls waited for it (stopped_rank_lease)" in error_of(asked)
while len(faults) < 2:
    time.sleep(0.01)
assert crashed("sleepers") == crashed("procs") == [3]
hosts.stop().get()
""", daemons[1], begin=FAILURES, env={"MONARCH_STOPPED_RANK_LEASE": "1s"}).done()  # fmt: skip
    said = r"monarch: rank 3 of procs \(pid \d+\) is stopped \(SIGSTOP\); 1 call waits for it: sleepers.pids\n"
    assert run.status == 0 and re.fullmatch(said, run.err), run.err


def test_a_call_that_was_answered_is_not_said_to_wait_for_who_is_stopped_then(daemons):
    """It has taken long enough for its host to have been asked about it."""
    err = daemons[0].run("""
import time
from monarch.actor import Actor, attach_to_workers, endpoint

class Slow(Actor):
    @endpoint
    def work(self, seconds):
        time.sleep(seconds)
        return os.getpid()

actors = attach_to_workers(workers=addresses[1:]).spawn_procs().spawn("slow", Slow)
for _ in range(3):
    pid = actors.work.call_one(1.2).get(timeout=20)
    os.kill(pid, signal.SIGSTOP)
    try:
        hosts.initialized.get(timeout=20)
        time.sleep(1.7)  # for what is not to happen
    finally:
        os.kill(pid, signal.SIGCONT)
hosts.stop().get()
""", daemons[1], begin="import signal\n" + program("workers/attach.py")).done().err  # fmt: skip
    assert "waits for it" not in err, err


def test_a_process_there_that_is_stopped_is_told_to_the_script_that_waits(daemons):
    run = daemons[0].run("""
pid = pids[3][0]
stop(pid)
asked = second.slice(gpus=1).pids.call_one()
print("stopped")
input()
os.kill(pid, signal.SIGCONT)
assert asked.get(timeout=20) == pids[3]
input()
hosts.stop().get()
""", daemons[1], begin=FAILURES)  # fmt: skip
    run.line("stopped")
    assert "rank 3 of procs (pid " in (line := run.err_line(limit=LIMIT)), line
    assert "is stopped (SIGSTOP); 1 call waits for it: sleepers.pids" in line
    run.tell("\n")
    assert "goes on, after " in run.err_line(limit=LIMIT, text="goes on")
    run.tell("\n")
    run.done()


def test_a_host_that_is_stopped_as_a_whole_is_told_to_the_script_that_waits(daemons):
    run = daemons[0].run("""
all_of_it = [pids[3][1], pids[2][0], pids[3][0]]
for pid in all_of_it:
    stop(pid)
asked = second.slice(gpus=1).pids.call_one()
print("host", all_of_it[0])
input()
for pid in all_of_it:
    os.kill(pid, signal.SIGCONT)
assert asked.get(timeout=20) == pids[3]
input()
hosts.stop().get()
""", daemons[1], begin=FAILURES, env={"MONARCH_HOST_LEASE": "30s"})  # fmt: skip
    host = run.line("host ")
    line = run.err_line(limit=LIMIT)
    assert f"(pid {host}) has said nothing for " in line, line
    assert "it is stopped, busy or out of reach; 1 call waits for what it has started: sleepers." in line
    run.tell("\n")
    assert f"(pid {host}) says something again, after " in run.err_line(limit=LIMIT, text="again")
    run.tell("\n")
    run.done()


def test_one_host_of_many_that_is_not_there_is_named_and_the_others_can_be_used(folder, monkeypatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.9", 0))
        missing = f"tcp://127.0.0.9:{nobody.getsockname()[1]}"
        daemon = Daemon(folder, 0, "tcp")
        monkeypatch.setenv("MONARCH_TOKEN_FILE", daemon.env["MONARCH_TOKEN_FILE"])
        with configured(host_spawn_ready_timeout="1s"):
            hosts = attach_to_workers(workers=[daemon.address, missing])
        procs = hosts.slice(hosts=0).spawn_procs({"gpus": 2})
        assert procs.initialized.get(timeout=LIMIT) is True
        with pytest.raises(SupervisionError, match=f"{missing} cannot be attached to: .*refused"):
            hosts.initialized.get(timeout=LIMIT)
        assert hosts.slice(hosts=0).spawn_procs().initialized.get(timeout=LIMIT) is True
        procs.stop().get(timeout=LIMIT)
    daemon.end()


def test_a_host_that_is_not_there_is_told_in_a_few_words():
    words = "the host at tcp://10.0.0.7:4444 cannot be attached to: TLS failed: it has another certificate"
    assert _in_a_few_words(f"{words} (rank {{'hosts': 0/2}} of hosts 'hosts')") == words


def test_strangers_cost_a_line_and_harm_nobody(folder):
    """A port scan, random bytes, one that says nothing, a hundred of them: the next client is served."""
    daemon = Daemon(folder, 0, "tcp")
    host, port = daemon.address.removeprefix("tcp://").split(":")
    with contextlib.ExitStack() as held:
        for sent in (b"", os.urandom(300), b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(sent)
                if sent:
                    assert select.select([stranger], [], [], LIMIT)[0]
        for _ in range(100):
            held.enter_context(socket.create_connection((host, int(port))))
        daemon.run("""
assert len(hosts.spawn_procs({"gpus": 2}).spawn("worker", Worker).pid.call().get(timeout=30)) == 2
hosts.stop().get()
""").ok()  # fmt: skip
    status, told = daemon.end()
    assert status == 0
    assert len(told.splitlines()) < 10 and all(
        "refused a connection" in line or "did not prove itself" in line for line in told.splitlines()
    ), told


def test_whom_it_refuses_no_child_of_it_holds(folder):
    """Keepers and hosts are forked while strangers are connected."""
    daemon = Daemon(folder, 0, "tcp")
    host, port = daemon.address.removeprefix("tcp://").split(":")
    with contextlib.ExitStack() as held:
        strangers = [held.enter_context(socket.create_connection((host, int(port)))) for _ in range(40)]
        run = daemon.run("hosts.initialized.get(); print('up', flush=True); sys.stdin.readline(); hosts.stop().get()")
        run.line("up")
        for stranger in strangers:  # they are out of time
            stranger.settimeout(LIMIT)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
        run.tell("\n")
        run.ok()
    assert daemon.end()[0] == 0


def test_another_token_is_refused_in_one_line_on_both_sides(folder, monkeypatch):
    daemon = Daemon(folder, 0, "tcp")
    other = f"{folder}/other"
    with open(other, "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(os.urandom(os.path.getsize(daemon.env["MONARCH_TOKEN_FILE"])))
    monkeypatch.setenv("MONARCH_TOKEN_FILE", other)
    at = time.monotonic()
    for ca in (None, "trust_all_connections"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            hosts = attach_to_workers(ca=ca, workers=[daemon.address])
        with pytest.raises(SupervisionError, match=f"{daemon.address} cannot be attached to: ") as raised:
            hosts.initialized.get(timeout=LIMIT)
        assert len(str(raised.value)) < 400, raised.value
        assert f"({other} may not hold its token)" in str(raised.value)
    assert time.monotonic() - at < 10
    status, told = daemon.end()
    assert status == 0 and 0 < len(told.splitlines()) < 5, told


@pytest.mark.parametrize("made", ["tcp", "ipc"])
def test_a_token_that_the_script_cannot_use_is_no_fault_of_the_host(folder, monkeypatch, made):
    daemon = Daemon(folder, 0, made)
    monkeypatch.setenv("MONARCH_TOKEN_FILE", f"{folder}/open")
    with open(f"{folder}/open", "wb") as file:
        os.fchmod(file.fileno(), 0o644)
    hosts = attach_to_workers(workers=[daemon.address])
    why = f"this process has no token to show it: {folder}/open is open to other users"
    with pytest.raises(SupervisionError, match=f"{daemon.address} cannot be attached to: {why}"):
        hosts.initialized.get(timeout=LIMIT)
    assert daemon.end()[0] == 0  # it may have said that a connection went away


def test_who_trusts_all_connections_is_warned_once(daemons):
    run = daemons[0].run("""
for _ in range(2):
    hosts = attach_to_workers(ca="trust_all_connections", workers=sys.argv[1:])
    assert hosts.spawn_procs().initialized.get(timeout=30) is True
    hosts.stop().get()
""", daemons[1], begin="import sys\nfrom monarch.actor import attach_to_workers\n").done()  # fmt: skip
    assert run.status == 0 and run.err.count('RuntimeWarning: ca="trust_all_connections": certificates') == 1, run.err


def test_a_flood_of_lines_over_a_network_is_whole(daemons):
    """More than is ever under way, of both streams; the script's reader begins late."""
    run = daemons[0].run("""
class Loud(Actor):
    @endpoint
    def say(self, count):
        for i in range(count):
            print(i, "x" * 100)
            print(i, "y" * 100, file=sys.stderr)

loud = hosts.spawn_procs().spawn("loud", Loud)
loud.say.call(20_000).get(timeout=60)
hosts.stop().get()
""", daemons[1]).done(limit=120)  # fmt: skip
    for text, letter in ((run.out, "x"), (run.err, "y")):
        for rank in range(2):
            lines = [line for line in text.splitlines() if line.startswith(f"[{rank}] ")]
            assert lines == [f"[{rank}] {i} {letter * 100}" for i in range(20_000)]


def test_who_first_calls_a_process_there_that_is_dead_is_told_all_of_it(daemons):
    daemons[0].run("""
from monarch.actor import Channel
class Late(Sleeper):
    @endpoint
    def ask(self, other, ready, go):
        ready.send(None)
        go.pids.call_one().get()
        error = other.pids.call_one().exception(timeout=20)
        return isinstance(error, SupervisionError) and (error.signal, error.rank, error.pid, error.mesh)
late = procs.spawn("late", Late).slice(hosts=0, gpus=1)
ready, is_ready = Channel.open()
asked = late.ask.call_one(second.slice(gpus=0), ready, first.slice(gpus=0))
os.kill(pids[2][0], signal.SIGKILL)
error_of(pending)
assert asked.get(timeout=20) == (9, 2, pids[2][0], "procs"), asked.get()
hosts.stop().get()
""", daemons[1], begin=FAILURES).ok()  # fmt: skip
