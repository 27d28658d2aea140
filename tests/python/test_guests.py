"""Handles in a process that the script has nothing to do with: started by the test, of the same user and machine.

Each side has a runtime folder of its own, which must be empty in the end (script_run.Run looks).
"""

import base64
import contextlib
import os
import random
import select
import stat
import subprocess
import sys
import time

import cloudpickle
import pytest
from script_run import WAYS, Run, program

ways = pytest.mark.parametrize("way", WAYS)

TOOLS = program("guests/tools.py")

JOB = TOOLS + program("guests/job.py")
# The job stays until it is told to go on.
SERVE = JOB + "counters.get.call().get()\nshow(counters, procs, this_host(), waiters)\nline()\n"


def start_job(source: str = SERVE, way: str = "fork") -> tuple[Run, str]:
    """A job that is up, and the handles that it shows."""
    job = Run(source, way=way)
    return job, job.line("handle ")


def guest(source: str, handle: str, way: str = "fork", **options) -> Run:
    return Run(TOOLS + source, way=way, env={"HANDLE": handle, **options.pop("env", {})}, **options)


def token_files(job: Run) -> list[str]:
    return sorted(str(path) for path in (job.tmp / "monarch").glob("*"))


@pytest.mark.feature(61)
@ways
def test_calls_broadcasts_and_spawns(way):
    job, handle = start_job(SERVE + "print('then', counters.get.call().get().values())\n", way)
    run = guest("""
counters, procs, host, waiters = given()
print(counters.add.call(5).get().values())
print(counters.slice(gpus=1).add.call_one(1).get(), [f.get() for f in counters.slice(gpus=0).get.stream()])
print(counters.get.choose().get() in (15, 16), len(counters), counters.extent)
print(outcome(lambda: counters.fail.call().get()).splitlines()[0])
counters.add.broadcast(100)
print(counters.get.call().get().values())
mine = procs.spawn("mine", counters._class, 7)
print(mine.get.call().get().values(), mine.pid.call().get().values() == counters.pid.call().get().values())
async def main():
    return (await counters.get.call()).values()
print(asyncio.run(main()))
""", handle, way).ok()  # fmt: skip
    assert run.out.splitlines() == [
        "[15, 15]", "16 [15]", "True 2 {gpus: 2}", "ActorError: Actor call counters.fail failed.",
        "[115, 116]", "[7, 7] True", "[115, 116]",
    ]  # fmt: skip
    job.tell("\n")
    assert job.ok().out.splitlines()[-1] == "then [115, 116]"


@pytest.mark.feature(61)
@pytest.mark.parametrize(("there", "here"), [("fork", "unix"), ("unix", "fork")])
def test_large_arrays_whatever_transport_either_side_prefers(there, here):
    pytest.importorskip("numpy")
    job, handle = start_job(way=there)
    run = guest("""
import numpy
counters = given()[0]
array = numpy.arange(1_000_000.0)
for _ in range(5):
    for _, doubled in counters.double.call(array).get().items():
        assert (doubled == 2 * array).all()
        doubled += 1
print("equal")
""", handle, here).ok()  # fmt: skip
    assert run.out == "equal\n"
    job.tell("\n")
    job.ok()


@ways
def test_messages_within_a_job_write_no_file(way):
    run = Run(JOB + """
class Holder(Actor):
    def __init__(self, kept):
        self.kept = kept
    @endpoint
    def exchange(self, other):
        nested = this_host().spawn_procs().spawn("nested", Counter)
        return [self.kept.slice(gpus=0), other, nested.ask.call_one(other).get(), copy.copy(other), runtime_files()]
def use_handle():
    counters.get.call().get()
holder = this_host().spawn_procs(bootstrap=use_handle).spawn("holder", Holder, counters)
kept, other, asked, copied, files = holder.exchange.call_one(procs.spawn("other", Counter)).get()
print(kept.get.call_one().get(), asked, other == copied, files)
print(copy.deepcopy({"a": counters})["a"].get.call().get().values())
print(this_host() == pickle.loads(pickle.dumps(this_host())))
print(runtime_files())
""", way=way).ok()  # fmt: skip
    assert run.out.splitlines() == ["10 [1, 1] True []", "[10, 10]", "True", "[]"]


@pytest.mark.feature(61)
def test_a_bare_pickle_writes_a_file_that_only_this_user_can_read():
    job, _ = start_job(SERVE + """
again = pickle.loads(pickle.dumps(counters))
print(again == counters, again.get.call().get().values(), runtime_files())
line()
""")  # fmt: skip
    (path,) = token_files(job)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
    os.remove(path)
    job.tell("\n")
    assert job.line("True [10, 10] ") == repr([path])  # there again, since somebody may use what is pickled now
    job.tell("\n")
    job.ok()


def test_handles_do_not_hold_the_token():
    job, handle = start_job()
    (path,) = token_files(job)
    with open(path, "rb") as file:
        token = file.read()
    assert len(token) == 16 and token not in base64.b64decode(handle) and token.hex() not in handle
    job.tell("\n")
    job.ok()


@pytest.mark.feature(61)
@ways
def test_an_actor_in_a_worker_shows_its_handle_too(way):
    job, handle = start_job(JOB + """
class Shower(Actor):
    @endpoint
    def pickled(self, deeper):
        if deeper:
            return this_host().spawn_procs().spawn("shower", Shower).pickled.call_one(False).get()
        return cloudpickle.dumps((this_proc().spawn("inner", Counter, 3),))
shower = this_host().spawn_procs().spawn("shower", Shower)
print("handle", base64.b64encode(shower.pickled.call_one(True).get()).decode(), flush=True)
line()
""", way)  # fmt: skip
    assert len(token_files(job)) == 1
    assert guest("print(given()[0].get.call_one().get())", handle, way).ok().out == "3\n"
    job.tell("\n")
    job.ok()


@pytest.mark.feature(21, 61)
@ways
def test_a_guests_own_actors_can_be_called_by_the_job(way):
    job, handle = start_job(way=way)
    run = guest("""
counters, procs, host, waiters = given()
Counter = counters._class
local = this_proc().spawn("local", Counter)
workers = this_host().spawn_procs(per_host={"w": 2}).spawn("workers", Counter, 50)
print(counters.ask.call(local).get().values())    # each of the job's processes comes to this one
print(counters.ask.call(workers).get().values())  # and to its workers
print(workers.ask.call(counters).get().values())  # which are guests of the job themselves
class Giver(Actor):
    @endpoint
    def give(self):
        return workers
print(procs.slice(gpus=0).spawn("giver", Giver).give.call_one().get().get.call().get().values())
""", handle, way).ok()  # fmt: skip
    lines = run.out.splitlines()
    flat = [sorted(line.replace("[", "").replace("]", "").split(", ")) for line in lines[:3]]
    assert flat == [["1", "2"], ["51", "51", "52", "52"], ["11", "11", "12", "12"]]
    assert lines[3] == "[52, 52]"
    job.tell("\n")
    job.ok()


@pytest.mark.feature(61)
def test_a_handle_that_comes_back_from_the_job_is_one_of_the_job():
    job, handle = start_job(JOB + """
class Directory(Actor):
    @endpoint
    def find(self):
        return counters
show(procs.spawn("directory", Directory).slice(gpus=0))
line()
""")  # fmt: skip
    assert guest("print(given()[0].find.call_one().get().get.call().get().values())", handle).ok().out == "[10, 10]\n"
    job.tell("\n")
    job.ok()


@pytest.mark.feature(61)
@ways
def test_a_host_mesh_of_another_job_spawns_for_the_one_who_has_it(way):
    job, handle = start_job(TOOLS + "show(this_host())\nprint(runtime_files(), flush=True)\nline()\n", way)
    run = guest("""
(host,) = given()
class A(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
print(host == this_host(), hash(host) == hash(this_host()))
actors = host.spawn_procs(per_host={"gpus": 2}).spawn("a", A)
print("pids", *actors.pid.call().get().values(), flush=True)
line()
""", handle, way)  # fmt: skip
    pids = [int(pid) for pid in run.line("pids ").split()]
    assert job.line("[") == "]"  # the reference needs no token
    job.tell("\n")
    job.ok()
    for pid in pids:
        os.kill(pid, 0)  # its owner lives
    run.tell("\n")
    assert "True True\n" in run.ok().out


def test_a_host_mesh_of_another_machine_says_so():
    _, machine_id, name = cloudpickle.loads(_pickle_of("this_host()"))
    elsewhere = _pickle_of("this_host()", {machine_id: "x" * len(machine_id), name: "n" * len(name)}, raw=True)
    run = guest("""
(host,) = given()
print(host == this_host())
print(outcome(host.spawn_procs))
""", elsewhere).ok()  # fmt: skip
    same, error = run.out.splitlines()
    assert same == "False"
    assert error.startswith("RuntimeError: this HostMesh names another machine") and f"'{'n' * len(name)}'" in error


def _pickle_of(expression, replaced=None, raw=False):
    """The pickle of a HostMesh, doctored; or (as a pickle) what it says of its machine."""
    code = f"""
import base64, pickle, sys
from monarch.actor import *
handle = {expression}
machine = handle.__reduce__()[1][-1]
data = pickle.dumps((handle,))
for old, new in {replaced or {}!r}.items():
    data = data.replace(old.encode(), new.encode())
data = data if {raw} else pickle.dumps((None, *machine))
print(base64.b64encode(data).decode())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() if raw else base64.b64decode(done.stdout)


# ---- Ends ----

TALK = """
counters, procs, host, waiters = given()
print("first", counters.get.call().get().values(), flush=True)
"""


@ways
@pytest.mark.parametrize("kill", [False, True], ids=["end", "kill"])
def test_the_end_of_the_job_ends_all_calls_of_its_guest(way, kill):
    job, handle = start_job(way=way)
    run = guest(TALK + """
class Hooked(Actor):
    @endpoint
    def flood(self, counters):
        counters.add.broadcast(1)
    @endpoint
    def asked(self):
        return self.text
    def _handle_undeliverable_message(self, message):
        self.text = message.error_msg()
        return True
view = counters.slice(gpus=1)
future = waiters.wait.call()
print("pending", flush=True)
print("error", outcome(future.get).replace("\\n", " "))
begin = time.monotonic()
print("later", outcome(lambda: view.get.call_one().get()).splitlines()[0])
print("spawn", outcome(lambda: procs.spawn("late", counters._class).get.call().get()).splitlines()[-1])
hooked = this_proc().spawn("hooked", Hooked)
hooked.flood.call_one(counters).get()
print("bounced", hooked.asked.call_one().get())
print("at once", time.monotonic() - begin < 5, flush=True)
""", handle, way)  # fmt: skip
    job.line("waiting 0")
    job.line("waiting 1")  # a worker that prints later may find the pipe closed, and say so
    run.line("pending")
    name = f"(its script has pid {job.process.pid}) has ended"
    if kill:
        job.kill()
    else:
        job.tell("\n")
    job.done(limit=3)
    run.ok(limit=10)
    # Or, if the worker was quicker to say so: "stopped: job ...".
    assert run.line("error").startswith("SupervisionError: Endpoint call waiters.wait() failed, ")
    for start in ("error", "spawn", "bounced"):
        assert run.line(start).endswith(name), run.out
    assert run.line("later").startswith("SupervisionError: Endpoint call counters.get() failed")
    assert run.line("at once") == "True"


@pytest.mark.feature(61)
@ways
def test_a_handle_of_a_job_that_has_ended(way):
    job, handle = start_job(way=way)
    job.tell("\n")
    job.ok()
    run = guest("""
counters, procs, host, waiters = given()
begin = time.monotonic()
print(outcome(lambda: counters.get.call().get()).replace("\\n", " "))
print(outcome(lambda: procs.spawn("a", counters._class).initialized.get()).replace("\\n", " "), len(counters))
counters.add.broadcast(1)
print(time.monotonic() - begin < 5)
""", handle, way).done()  # fmt: skip
    lines = run.out.splitlines()
    assert run.status == 0 and lines[1].startswith("SupervisionError: ") and lines[1].endswith(" 2")
    assert lines[2:] == ["True"]
    assert lines[0].startswith("SupervisionError: Endpoint call counters.get() failed")
    assert f"(its script has pid {job.process.pid}) has ended: there is no {job.tmp}/monarch/" in lines[0]
    assert "a message could not be delivered: job " in run.err and "Traceback" not in run.err


def test_the_death_of_one_process_is_told_with_its_cause_and_the_others_go_on():
    hook = "monarch.actor.unhandled_fault_hook = lambda failure: print('owner:', failure.kind, failure.crashed_ranks)\n"
    job, handle = start_job("import monarch.actor\n" + hook + SERVE)
    run = guest(TALK + """
print("dead", outcome(lambda: counters.slice(gpus=1).die.call_one().get()).splitlines()[-1])
print("other", counters.slice(gpus=0).get.call_one().get())
""", handle).ok()  # fmt: skip
    assert "failed: Killed(sig=9) (rank {'gpus': 1/2} of 'procs', pid" in run.line("dead")
    assert run.line("other") == "10"
    late = guest("print(outcome(lambda: given()[0].get.call().get()).splitlines()[-1])", handle).ok()
    assert "failed: Killed(sig=9) (rank {'gpus': 1/2} of 'procs', pid" in late.out
    job.tell("\n")
    job.ok()
    assert job.out.count("owner: killed by signal 9 [1]") >= 1  # a guest's knowledge is not the script's


GUESTS = {
    "idle": "",
    "in a call": "waiters.wait.call().get()",
    "with actors of its own there": "procs.spawn('mine', waiters._class).wait.call().get()",
    "while it floods": "while True:\n    counters.add.broadcast(0)",
    "with workers": """
mine = host.spawn_procs(per_host={'w': 2}).spawn('mine', counters._class)
mine.ask.call(counters).get()""",
    "while the job calls it": """
class Asker(Actor):
    @endpoint
    def ask(self, waiter):
        waiter.wait.call_one().get()
procs.spawn('asker', Asker).ask.call(this_proc().spawn('waiter', waiters._class)).get()""",
}


@ways
@pytest.mark.parametrize("state", GUESTS)
def test_the_death_of_a_guest_touches_nobody(way, state):
    job, handle = start_job(SERVE + "print('lives', len(counters.add.call(1).get()))\n", way)
    run = guest(TALK + GUESTS[state] + "\nprint('there', flush=True)\nline()\n", handle, way)
    if state in ("in a call", "with actors of its own there"):
        job.line("waiting")
    elif state == "while the job calls it":
        run.line("waiting")
    elif state == "while it floods":
        run.line("first")
    else:
        run.line("there")
    run.kill()
    run.done(limit=5)
    job.tell("\n")
    job.ok()
    assert "lives 2\n" in job.out


CUT_HELLO = "monarch: refused a connection: the peer closed the connection during the hello"


@ways
def test_kills_at_random_moments(way):
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    work = TALK + "mine = host.spawn_procs().spawn('m', counters._class)\nmine.ask.call_one(counters).get()\nline()\n"
    for round in range(8):
        job, handle = start_job(way=way)
        run = guest(work, handle, way)
        victim, other = (job, run) if round % 2 else (run, job)
        moment = rng.uniform(0, 0.6)
        pidfd = os.pidfd_open(victim.process.pid)
        select.select([pidfd], [], [], moment)
        os.close(pidfd)
        victim.kill()
        victim.done(limit=3)
        with contextlib.suppress(BrokenPipeError if other is run else ()):  # a guest may have failed, and ended, by now
            other.tell("\n")
        other.done(limit=10)
        context = f"{'job' if round % 2 else 'guest'} killed after {moment:.3f} s, seed {seed}"
        if other is job:  # which may have been in the middle of a guest's hello
            assert job.status == 0 and set(job.err.splitlines()) <= {CUT_HELLO}, context
        elif run.status != 0:  # it says why in one traceback, its own
            assert "has ended" in run.err, context


@ways
def test_handles_may_be_pickled_to_the_end_and_leave_nothing(way):
    run = Run(JOB + """
class Keeper(Actor):
    def __init__(self):
        self.own = this_proc().spawn("own", Counter)
    @endpoint
    def ready(self):
        pass
    def __cleanup__(self, error):
        print("cleaned up", len(cloudpickle.dumps(self.own)) > 0, flush=True)
procs.spawn("keeper", Keeper).ready.call().get()
this_proc().spawn("keeper", Keeper).ready.call().get()
import atexit
atexit.register(lambda: print("at exit", len(pickle.dumps(procs)) > 0, flush=True))
""", way=way).ok()  # fmt: skip
    assert sorted(run.out.splitlines()) == [
        *("[0] cleaned up True", "[1] cleaned up True", "at exit True", "cleaned up True"),
    ]


def test_a_killed_script_leaves_no_token_though_it_has_no_workers():
    job = Run(JOB.split("procs =")[0] + """
show(this_proc().spawn("c", Counter, 4))
line()
""", way="exec")  # fmt: skip
    handle = job.line("handle ")
    assert len(token_files(job)) == 1
    assert guest("print(given()[0].get.call_one().get())", handle).ok().out == "4\n"
    job.kill()
    job.done(limit=2)


@pytest.mark.feature(61)
def test_handles_of_several_jobs():
    first, handle = start_job()
    second, other_handle = start_job()
    run = guest("""
one, two = given(), pickle.loads(base64.b64decode(os.environ["OTHER"]))
print(one[0].ask.call(two[0]).get().values())
print("both", flush=True)
line()
print("ended", outcome(lambda: one[0].get.call().get()).splitlines()[-1])
print("other", two[0].get.call().get().values())
""", handle, env={"OTHER": other_handle})  # fmt: skip
    run.line("both")
    first.tell("\n")
    first.ok()
    run.tell("\n")
    run.ok()
    assert run.line("ended").endswith("has ended")
    assert run.line("other") == "[12, 12]"
    second.tell("\n")
    second.ok()


def test_a_guest_that_comes_as_a_child_of_multiprocessing():
    run = Run(JOB.split("procs =")[0] + """
import multiprocessing
def work(counter):
    print(counter.add.call_one(5).get(), flush=True)
if __name__ == "__main__":
    counter = this_host().spawn_procs().spawn("c", Counter, 4)
    child = multiprocessing.get_context("spawn").Process(target=work, args=(counter,))
    child.start()
    child.join()
    assert child.exitcode == 0
""")  # fmt: skip
    assert run.ok().out == "9\n"


# ---- Refusals ----

FIRST_USE = "print(str(outcome(lambda: given()[0].get.call().get().values())).replace(chr(10), ' '))\n"


def refusal(handle: str) -> str:
    begin = time.monotonic()
    out = guest(FIRST_USE, handle).ok().out
    assert time.monotonic() - begin < 10
    return out


@pytest.mark.feature(61)
def test_refusals_say_what_to_do():
    job, handle = start_job()
    (path,) = token_files(job)
    os.chmod(path, 0o644)
    error = refusal(handle)
    assert error.startswith("RuntimeError: job ") and f"{path} is open to other users (its mode is 0644)" in error
    os.chmod(path, 0o600)
    if os.geteuid() == 0:
        os.chown(path, 65534, 0)
        error = refusal(handle)
        assert error.startswith("RuntimeError: job ") and f"{path} belongs to the user with id 65534" in error
        os.chown(path, 0, 0)
    os.chmod(os.path.dirname(path), 0o777)
    assert f"{os.path.dirname(path)} is open to other users" in refusal(handle)
    os.chmod(os.path.dirname(path), 0o700)
    with open(path, "rb") as file:
        token = file.read()
    os.remove(path)
    assert f"has ended: there is no {path} any more" in refusal(handle)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
        file.write(bytes(byte ^ 1 for byte in token))
    error = refusal(handle)
    assert error.startswith("SupervisionError") and f"cannot be joined with the token in {path}" in error
    with open(path, "wb") as file:
        file.write(token)
    assert refusal(handle) == "[10, 10]\n"
    job.tell("\n")
    job.done()
    assert job.status == 0
    assert job.err.splitlines() == [line for line in job.err.splitlines() if "refused a connection" in line]
    assert token.hex() not in job.err


def test_a_handle_of_another_user_or_machine_is_refused():
    job, handle = start_job()
    data = base64.b64decode(handle)
    start = data.index(b"monarch-job-1 ")
    fields = data[start : data.index(b"/monarch", start)].split(b" ")
    uid, machine = fields[4], fields[5]
    assert uid == str(os.geteuid()).encode()

    def changed(old, new):
        return base64.b64encode(data.replace(b" " + old + b" ", b" " + new + b" ")).decode()

    other_user = str(int(uid) ^ 1).rjust(len(uid), "0").encode()[: len(uid)]
    assert "and this process runs as" in refusal(changed(uid, other_user))
    assert "on another machine or in another container" in refusal(changed(machine, b"x" * len(machine)))
    if os.geteuid() == 0:
        # A process that became another user: the kernel says so, whatever the handle does.
        run = guest("os.setuid(65534)\n" + FIRST_USE, changed(uid, b"65534"[: len(uid)]) if len(uid) == 5 else handle)
        run.done()
        assert "[10, 10]" not in run.out
    job.tell("\n")
    job.done()
    assert job.status == 0


def test_a_runtime_folder_of_somebody_else_is_not_written_to(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give folders away")
    folder = tmp_path / "monarch"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 0)
    run = Run(JOB + """
print(outcome(lambda: pickle.dumps(procs)))
print(counters.get.call().get().values())
""", env={"XDG_RUNTIME_DIR": str(tmp_path)}).ok()  # fmt: skip
    error, values = run.out.splitlines()
    assert error.startswith("RuntimeError: this handle cannot be used outside of its job: ")
    assert f"{folder} belongs to the user with id 65534" in error and "XDG_RUNTIME_DIR" in error
    assert values == "[10, 10]" and list(folder.iterdir()) == []
