"""Casts to many hosts go from host to host: daemons on loopback addresses, with two processes each."""

import pytest
from hostd import Daemon
from script_run import program

RECORDERS = program("trees/recorders.py")


@pytest.fixture
def eight(folder, monkeypatch):
    monkeypatch.setenv("MONARCH_CAST_TREE_HOSTS", "2")
    made = [Daemon(folder, number, "tcp") for number in range(8)]
    yield made
    for each in made:
        each.end()


def test_each_rank_gets_each_once_in_the_order_of_its_sender(eight):
    eight[0].run("""
sender = procs.slice(hosts=0, gpus=0).spawn("sender", Sender)
other = sender.send.call_one(recorders, 1000, 1200)
send(recorders, 0, 300)
other.get(timeout=60)
check(recorders, 0, 300)
check(recorders, 1000, 1200)
hosts.stop().get()
""", *eight[1:], begin=RECORDERS).ok(limit=120)  # fmt: skip


def test_eighteen_hosts_do_so_without_being_asked(folder):
    first, *others = [Daemon(folder, number, "tcp") for number in range(18)]
    first.run("""
send(recorders, 0, 150)
check(recorders, 0, 150)
# In one star each has two, of two ends: its keeper's and its session.
ends = sum(line.split()[3] == "01" for line in open("/proc/net/tcp") if "sl" not in line)
assert ends > 4 * 18, ends
hosts.stop().get()
""", *others, begin=RECORDERS).ok(limit=120)  # fmt: skip
    for each in (first, *others):
        each.end()


def test_what_is_no_number_of_hosts_is_said_to_be_ignored(folder):
    daemon = Daemon(folder, 0, "tcp")
    run = daemon.run("hosts.stop().get()", env={"MONARCH_CAST_TREE_HOSTS": "two"}).done()
    assert (run.status, run.err) == (
        0,
        "monarch: MONARCH_CAST_TREE_HOSTS='two' is no number of hosts, and is ignored\n",
    )
    daemon.end()


LARGE = """
import contextlib, signal, threading, time
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda fault: None
BIG = 64 << 20
relay = recorders.slice(hosts=4).pids.call().get(timeout=60).values()[0][1]  # it passes on to the last three
others = [host for host in range(8) if host != 4]

def go_on():
    with contextlib.suppress(ProcessLookupError):  # it has been killed for its silence
        os.kill(relay, signal.SIGCONT)
"""


def test_a_host_that_is_killed_while_it_passes_something_large_on_costs_nobody_else(eight):
    eight[0].run(LARGE + """
for number in range(3):
    recorders.tell.broadcast(number, payload(number, BIG))
os.kill(relay, signal.SIGKILL)
for number in range(3, 6):
    recorders.slice(hosts=slice(5, 8)).tell.broadcast(number, payload(number, BIG))
for host in others:
    for told in recorders.slice(hosts=host).heard.call().get(timeout=120).values():
        wanted = range(6) if host > 4 else range(3)
        assert told == list(wanted), (host, told)
""", *eight[1:], begin=RECORDERS).ok(limit=240)  # fmt: skip


@pytest.mark.parametrize("lease, seconds", [("20s", 6), ("3s", 8)])
def test_a_host_that_is_stopped_holds_up_nobody_else(eight, lease, seconds):
    eight[0].run(LARGE + f"""
os.kill(relay, signal.SIGSTOP)
threading.Timer({seconds}, go_on).start()
begun = time.monotonic()
for number in range(3):
    recorders.tell.broadcast(number, payload(number, 1 << 20))
for host in others:
    for told in recorders.slice(hosts=host).heard.call().get(timeout=120).values():
        assert told == [0, 1, 2], (host, told)
took = time.monotonic() - begun
assert took < {seconds} - 1, took
try:
    told = recorders.slice(hosts=4).heard.call().get(timeout=120).values()
    assert {lease!r} == "20s" and told == [[0, 1, 2]] * 2, told
except monarch.actor.SupervisionError as error:
    assert {lease!r} == "3s", error
""", *eight[1:], begin=RECORDERS, env={"MONARCH_HOST_LEASE": lease}).ok(limit=240, silent=True)  # fmt: skip


def test_answers_come_back_from_host_to_host_and_are_what_they_were(eight):
    eight[0].run("""
large = payload(0, 1 << 20)  # each host passes it on to two
for again in range(20):
    for reducer, wanted in {"sum": 120, "min": 0, "max": 15, "count": 16, "concat": list(range(16))}.items():
        assert recorders.score.options(reduce=reducer).call(large).get(timeout=60) == wanted, reducer
    assert recorders.score.call(large).get(timeout=60).values() == list(range(16))
futures = [recorders.score.options(reduce="sum").call(large) for again in range(50)]
assert [future.get(timeout=60) for future in futures] == [120] * 50
hosts.stop().get()
""", *eight[1:], begin=RECORDERS).ok(limit=120)  # fmt: skip


def test_of_a_host_that_is_stopped_with_the_answers_of_others_only_its_own_are_missing(eight):
    eight[0].run(LARGE + """
large = payload(0, 1 << 20)
scores = recorders.score.options(reduce="sum").call(large, 4, relay)
try:
    scores.get(timeout=5)
    raise AssertionError("it has answered")
except TimeoutError as error:
    assert error.missing_ranks == (8, 9), error.missing_ranks
os.kill(relay, signal.SIGCONT)
assert scores.get(timeout=60) == 120
hosts.stop().get()
""", *eight[1:], begin=RECORDERS, env={"MONARCH_HOST_LEASE": "30s"}).ok(limit=120, silent=True)  # fmt: skip
