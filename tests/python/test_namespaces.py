"""Hosts on machines of their own: network namespaces, whose cables are pulled."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from hostd import HOSTD, LIMIT
from network import wait_until
from script_run import PROGRAMS, ended

MESH = "from mesh import *\n"
NUMBERED, LOST, TWO_JOBS = (PROGRAMS / f"namespaces/{name}.py" for name in ("numbered", "lost", "two_jobs"))


def test_a_mesh_over_three_machines(network):
    network.run(MESH + """
assert [address for _, address in places] == [f"10.77.0.{2 + rank // 2}" for rank in range(6)]
begun, _ = Channel.open()
for a in range(3):
    for b in range(3):
        assert on[a].slice(gpus=0).ask.call_one(on[b].slice(gpus=1), 3 * a + b, begun).get(timeout=30) == 3 * a + b
assert workers.all_taken.call().get(timeout=30).values() == [[], [0, 3, 6], [], [1, 4, 7], [], [2, 5, 8]]
big = os.urandom(8 << 20)
assert all(taken == big for taken in workers.take.call(big).get(timeout=30).values())
hosts.stop().get()
""").ok()  # fmt: skip
    network.end()


def test_a_cable_that_is_put_back_at_once_costs_nothing(network):
    run = network.run(NUMBERED, MONARCH_HOST_LEASE="20s")
    run.line("up")
    network.pull(2)
    run.tell("\n")
    run.line("cut")
    network.put_back(2)
    run.tell("\n")
    run.ok(silent=True)
    network.end()


def test_a_cable_that_is_put_back_within_the_lease_costs_nothing_where_connections_are_made_anew(network):
    run = network.run(NUMBERED, MONARCH_HOST_LEASE="5s")
    run.line("up")
    script, there = run.process.pid, network.addresses[2]
    before = network.connections(script, there)
    network.pull(2)
    run.tell("\n")
    run.line("cut")
    wait_until(lambda: not before <= network.connections(script, there), "a connection is given up")
    network.put_back(2)
    run.tell("\n")
    run.ok(silent=True)
    network.end()


@pytest.mark.parametrize("how", ["pull", "silence", "mute"])
def test_a_machine_that_is_cut_off_for_its_lease_is_lost_and_can_be_attached_to_again(network, how):
    """A cable that both ends see is gone; packets that vanish, in both directions or in one of them."""
    run = network.run(LOST, MONARCH_HOST_LEASE="1s")
    pids = [int(pid) for pid in run.line("pid ").split()]
    run.line("up")
    getattr(network, how)(2)
    run.tell("\n")
    run.line("lost")
    deadline = time.monotonic() + LIMIT
    assert all(ended(pid, deadline) for pid in pids), "there, too, it is known, and nothing is left"
    network.mend(2)
    run.tell("\n")
    run.done()
    assert run.status == 0, run.err
    network.end()


def test_a_machine_that_is_lost_is_one_report_of_all_its_ranks(network):
    begin = "import monarch.actor\nhook = monarch.actor.unhandled_fault_hook\n" + MESH
    text = """
monarch.actor.unhandled_fault_hook = hook
tell("up")
time.sleep(20)
"""
    run = network.run(begin + text, MONARCH_HOST_LEASE="1s")
    run.line("up")
    network.pull(2)
    run.tell("\n")
    run.done()
    assert run.status == 1 and run.err.count("nothing has come from it for 1 s (host_lease)") == 1, run.err
    assert run.err.startswith("monarch: ranks 4, 5 of 'workers' have failed: was lost\n"), run.err
    network.mend(2)
    network.end()


PARTED = (
    MESH
    + """
begun, begins = Channel.open()
askers = procs.slice(gpus=1).spawn("askers", Worker)


def ask_each_other(number):
    return [askers.slice(hosts=a).ask.call_one(on[b].slice(gpus=1), number, begun) for a, b in ((0, 2), (2, 0))]


def answers(asked):
    return [each.get(timeout=20) for each in asked]


assert answers(ask_each_other(1)) == [1, 1]
tell("up")
asked = ask_each_other(2)
assert workers.take.call(3).get(timeout=20).values() == [3] * 6, "all are reached"
"""
)


def test_two_machines_that_are_parted_within_the_lease_lose_nothing(network):
    run = network.run(PARTED + """
assert all(isinstance(each.exception(timeout=0.1), TimeoutError) for each in asked)
tell("waits")
assert answers(asked) == [2, 2]
assert [taken.count(2) for taken in workers.slice(gpus=1).all_taken.call().get(timeout=20).values()] == [1, 0, 1]
assert not faults
hosts.stop().get()
""", MONARCH_HOST_LEASE="20s")  # fmt: skip
    run.line("up")
    network.part(0, 2)
    run.tell("\n")
    run.line("waits")
    network.join(0, 2)
    run.tell("\n")
    run.ok()
    network.end()


def test_two_machines_that_are_parted_for_the_lease_are_told_so_and_reach_each_other_later(network):
    run = network.run(PARTED + """
from worker import Sender
senders = procs.slice(gpus=0).spawn("senders", Sender)
for a, b in ((0, 2), (2, 0)):
    senders.slice(hosts=a).send.call_one(on[b].slice(gpus=1), 3).get(timeout=20)
cause = " do not reach each other, though their script may reach both: nothing has come from it for "
assert all(cause in answer for answer in answers(asked)), answers(asked)
for a in (0, 2):
    while not (back := senders.slice(hosts=a).came_back.call_one().get(timeout=20)):
        pass
    assert len(back) == 1 and cause in back[0], back
assert workers.take.call(4).get(timeout=20).values() == [4] * 6
assert askers.slice(hosts=0).ask.call_one(on[1].slice(gpus=1), 5, begun).get(timeout=20) == 5
assert askers.slice(hosts=2).ask.call_one(on[1].slice(gpus=1), 5, begun).get(timeout=20) == 5
os.kill(places[4][0], signal.SIGKILL)
while len(faults) < 3:
    time.sleep(0.01)
tell("lost")
new = answers(ask_each_other(6))
assert new == [6, 6], new
assert "failed: Killed(sig=9)" in askers.slice(hosts=0).ask.call_one(on[2].slice(gpus=0), 7, begun).get(timeout=20)
new = hosts.spawn_procs(name="more").spawn("new", Worker)
assert new.slice(hosts=0).ask.call_one(new.slice(hosts=2), 8, begun).get(timeout=20) == 8
assert new.slice(hosts=2).ask.call_one(new.slice(hosts=0), 9, begun).get(timeout=20) == 9
for host in (0, 2):
    taken = on[host].slice(gpus=1).all_taken.call_one().get(timeout=20)
    assert (taken.count(2), taken.count(3), taken.count(6)) == (0, 1, 1), taken  # the 3 is the script's own
assert sorted(crashed("workers")) == sorted(crashed("procs")) == [4], "to the script all others are well"
assert askers.slice(hosts=0).ask.call_one(on[2].slice(gpus=1), 10, begun).get(timeout=20) == 10
assert not crashed("senders")[1:]
hosts.stop().get()
""", MONARCH_HOST_LEASE="3s")  # fmt: skip
    run.line("up")
    network.part(0, 2)
    run.tell("\n")
    run.line("lost")
    line = "do not reach each other, though this script reaches both. Calls between them fail while that is so: "
    wait_until(lambda: line in run.said(), "the script says so")
    network.join(0, 2)
    run.tell("\n")
    run.done()
    assert run.status == 0, run.err
    assert re.fullmatch(f"monarch: rank .* of 'machines' .*{line}.*10.77.0.*\n", run.err), "once: " + run.err
    network.end()


def test_a_machine_that_dials_another_one_in_vain_is_reached_by_that_one_all_the_same(network):
    run = network.run(MESH + """
begun, _ = Channel.open()
askers = procs.slice(gpus=1).spawn("askers", Worker)
tell("up")
large = b"large" * 100_000
asked = workers.same.call(large)
assert isinstance(asked.exception(timeout=0.5), TimeoutError), "0 is to pass it on to 1"
assert askers.slice(hosts=1).ask_to_wait.call_one(on[0].slice(gpus=0), 5).get(timeout=20) == 5, "0 has given up"
assert asked.get(timeout=20).values() == [large] * 6
assert askers.slice(hosts=0).ask.call_one(on[1].slice(gpus=0), 2, begun).get(timeout=20) == 2
assert not faults
hosts.stop().get()
""", MONARCH_HOST_LEASE="4s", MONARCH_CAST_TREE_HOSTS="2")  # fmt: skip
    run.line("up")
    network.shut(0, 1)
    run.tell("\n")
    run.ok()
    network.end()


def test_a_daemon_that_was_killed_and_started_again_is_attached_to_again(network):
    run = network.run(MESH + """
tell("up")
while (error := workers.take.call(1).exception(timeout=20)) is None:
    pass  # the word of the death is on its way
# Its keeper may have been able to say so.
assert "was lost (rank {'hosts': 2/3}" in str(error) or "Killed(sig=9) (rank {'hosts': 2/3}" in str(error), error
while len(faults) < 4:
    time.sleep(0.01)
assert sorted(crashed("workers")) == sorted(crashed("procs")) == [4, 5]
tell("dead")
again = attach_to_workers(workers=sys.argv[1:], name="again")
new = again.spawn_procs().spawn("new", Worker)
begun, _ = Channel.open()
assert new.slice(hosts=0).ask.call_one(new.slice(hosts=2), 2, begun).get(timeout=20) == 2
assert on[0].slice(gpus=0).ask.call_one(new.slice(hosts=2), 3, begun).get(timeout=20) == 3
assert on[0].take.call(4).get(timeout=20).values() == [4, 4], "who has lived on is as it was"
again.stop().get()
""", MONARCH_HOST_LEASE="2s")  # fmt: skip
    run.line("up")
    network.daemons[2].process.kill()
    run.tell("\n")
    run.line("dead")
    network.daemons[2].process.communicate()
    network.daemons[2] = network.daemon(2, network.daemons[2].address.rpartition(":")[2])
    run.tell("\n")
    run.done()
    assert run.status == 0, run.err
    network.end()


def test_a_script_that_comes_back_after_its_lease_is_told_that_all_has_ended_and_attaches_again(network):
    run = network.run(MESH + """
print("pid", *(pid for pid, _ in places))
tell("up")
why = "the host of the process this actor was running on has ended, since it had not heard of this script for 1000 ms"
for number in range(3):
    assert why in (told := error_of(on[number].take.call(1))), told
while len(faults) < 12:
    time.sleep(0.01)
assert sorted(crashed("workers")) == sorted(crashed("procs")) == list(range(6))
again = attach_to_workers(workers=sys.argv[1:], name="again")
new = again.spawn_procs().spawn("new", Worker)
begun, _ = Channel.open()
assert new.slice(hosts=0).ask.call_one(new.slice(hosts=2), 2, begun).get(timeout=20) == 2
again.stop().get()
""", MONARCH_HOST_LEASE="1s")  # fmt: skip
    pids = [int(pid) for pid in run.line("pid ").split()]
    run.line("up")
    run.kill(signal.SIGSTOP)
    deadline = time.monotonic() + LIMIT
    assert all(ended(pid, deadline) for pid in pids)
    run.kill(signal.SIGCONT)
    run.tell("\n")
    run.done()
    assert run.status == 0, run.err
    network.end()


# ---- Other users, and file systems that are full ----

USERS = (61_234, 61_235)  # nobody's


@pytest.fixture
def users():
    """For each of two users what comes before a command of theirs; what they have in /tmp is theirs."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("this user may not become another one")
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]  # the interpreter, wherever it is
    found = [["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *reads] for user in USERS]
    # Where nobody else may look, reading helps with all but access(), by which the guard is looked for.
    guard = os.path.join(os.path.dirname(HOSTD), "monarch-guard")
    probe = [*found[0], sys.executable, "-c", f"import os, monarch.actor; assert os.access({guard!r}, os.X_OK)"]
    done = subprocess.run(probe, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"another user cannot run this: {done.stderr.splitlines()[-1]}")
    yield found
    for user in USERS:
        shutil.rmtree(f"/tmp/monarch-{user}", ignore_errors=True)


def test_two_users_have_a_job_each_on_one_machine(users):
    """With what is the default: the token of each is in a folder of its own, and ports are whichever are free."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MONARCH_", "XDG_", "TMP"))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": env}
    with contextlib.ExitStack() as ends:

        def start(*command):
            process = subprocess.Popen(list(command), cwd="/", **pipes)
            ends.callback(process.kill)
            return process

        daemons = [start(*user, HOSTD, "tcp://127.0.0.1:0", "--python", sys.executable) for user in users]
        addresses = [daemon.stdout.readline().strip() for daemon in daemons]
        pairs = (addresses, addresses[::-1])
        scripts = [start(*user, sys.executable, TWO_JOBS, *pair) for user, pair in zip(users, pairs, strict=True)]
        assert [script.stdout.readline() for script in scripts] == ["up\n"] * 2, scripts[0].stderr.read()
        for script in scripts:
            _, told = script.communicate("\n", timeout=LIMIT)
            assert (script.returncode, told) == (0, "")
        for daemon in daemons:
            daemon.terminate()
            _, told = daemon.communicate(timeout=LIMIT)
            assert daemon.returncode == 0 and len(told.splitlines()) == 1 and "refused a connection" in told, told


FULL = """
mount -t tmpfs -o size=16k,mode=700 none "$1" && mount -t tmpfs -o size=16k none /dev/shm || exit 77
head -c 100k /dev/zero >"$1"/all 2>/dev/null
head -c 100k /dev/zero >/dev/shm/all 2>/dev/null
shift
exec "$@"
"""


@pytest.fixture
def full(folder):
    """A folder on a disk that is full, and what comes before a command for which it and /dev/shm are."""
    there = f"{folder}/full"
    os.mkdir(there)
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-r", "-m"]
    command = [*unshare, "sh", "-c", FULL, "sh", there]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("this kernel, or this user, makes no mount namespaces")
    return there, command


def in_full(full, code, **env):
    there, command = full
    done = subprocess.run(
        [*command, sys.executable, "-c", code], env={**os.environ, **env}, cwd="/", capture_output=True, text=True,
        timeout=LIMIT,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.replace(there, "FULL")


def test_nothing_needs_room_in_dev_shm(full):
    code = """
import os
from monarch.actor import Actor, endpoint, this_host
class Worker(Actor):
    @endpoint
    def length(self, data):
        return len(data)
workers = this_host().spawn_procs({"gpus": 2}).spawn("worker", Worker)
assert os.statvfs("/dev/shm").f_bavail == 0
assert workers.length.call(bytes(64 << 20)).get(timeout=30).values() == [64 << 20] * 2
"""
    assert in_full(full, code) == ""


def test_a_disk_that_is_full_is_named_with_what_cannot_be_written_there(full):
    there, command = full
    env = {**os.environ, "MONARCH_TOKEN_FILE": f"{there}/token"}
    hostd = [*command, HOSTD, "tcp://127.0.0.1:0", "--python", sys.executable]
    done = subprocess.run(hostd, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert f"monarch-hostd: cannot write {there}/token" in done.stderr and "No space left on device" in done.stderr
    handle = """
import pickle
from monarch.actor import Actor, endpoint, this_host
class Worker(Actor):
    @endpoint
    def take(self, number):
        return number
worker = this_host().spawn_procs().spawn("worker", Worker)
try:
    pickle.dumps(worker)
except RuntimeError as error:
    print(error)
assert worker.take.call_one(1).get(timeout=30) == 1
"""
    told = in_full(full, handle, XDG_RUNTIME_DIR=there)
    assert told.startswith("this handle cannot be used outside of its job: cannot write FULL/monarch/"), told
    assert told.endswith(": No space left on device\n")
    job = f"""
import os
from monarch.job import ProcessJob
os.chdir({there!r})
job = ProcessJob({{"hosts": 1}})
try:
    job.state()
except OSError as error:
    print(error)
assert not job.active
"""
    assert in_full(full, job) == "[Errno 28] No space left on device: 'FULL/.monarch/job_state.pkl'\n"
