"""Hooks that misbehave, failures in crowds, and deaths whose last words are strange."""

import re
import signal

import pytest
from script_run import PROGRAMS, WAYS, Run, program

SCRIPT = program("supervision/bad_input.py")
ways = pytest.mark.parametrize("way", WAYS)
owners = pytest.mark.parametrize("owner", ["SyncOwner", "AsyncOwner"])


@owners
def test_a_hook_that_hangs_holds_up_its_actor_only(owner):
    """Its calls wait, those of what it owns do not; it can be stopped, and the script ends."""
    run = Run(SCRIPT + f"""
from monarch.config import configured
with configured(cleanup_timeout="300ms"):
    procs = this_host().spawn_procs()
owner = procs.spawn("owner", {owner}, "hangs")
kids = owner.mesh.call_one().get()
kids.slice(gpus=1).fail.broadcast()
until(lambda: "bang" in str(error_of(lambda: kids.slice(gpus=1).pid.call_one().get(timeout=10))))
assert kids.slice(gpus=0).pid.call_one().get(timeout=10) != os.getpid()
assert procs.spawn("other", Kid).pid.call_one().get(timeout=10) != os.getpid()
sys.stdin.readline()
began = time.monotonic()
owner.stop().get(timeout=10)
assert time.monotonic() - began < 5
assert "stopped" in str(error_of(lambda: owner.pid.call_one().get(timeout=10)))
print("stopped")
""")  # fmt: skip
    run.line("hangs")
    run.tell("\n")
    run.line("stopped")
    run.done(limit=3)
    assert run.status == 0 and "Traceback" not in run.err, run.err


ODD = r"'a\0b \udcff'"


@pytest.mark.parametrize("owner", ["None", "SyncOwner", "AsyncOwner"])
def test_texts_with_zero_bytes_and_surrogates_are_told_whole(owner):
    """Of constructors, hooks and last lines; whoever owns what failed so fails with it, and the next one too."""
    run = Run(SCRIPT + f"""
import monarch.actor
faults = []
monarch.actor.unhandled_fault_hook = faults.append
class Odd(Kid):
    def __init__(self, raises):
        if raises:
            raise ValueError({ODD})
    @endpoint
    def die(self):
        os.write(2, b"\\0 last words\\n")
        os.kill(os.getpid(), signal.SIGKILL)
class Nobody(Actor):
    @endpoint
    def own(self):
        return this_host().spawn_procs(per_host={{"gpus": 2}}).spawn("odd", Odd, False)
    @endpoint
    def ping(self):
        pass
class SyncOwner(Nobody):
    def __supervise__(self, failure):
        raise ValueError({ODD})
class AsyncOwner(Nobody):
    @endpoint
    async def own(self):
        return this_host().spawn_procs(per_host={{"gpus": 2}}).spawn("odd", Odd, False)
    async def __supervise__(self, failure):
        raise ValueError({ODD})
failing = error_of(lambda: this_host().spawn_procs().spawn("failing", Odd, True).pid.call_one().get())
assert "ValueError: a" in str(failing) and "raise ValueError" in str(failing), failing
for _ in range(2):
    owner = this_host().spawn_procs().spawn("owner", {owner} or Nobody)
    odd = owner.own.call_one().get()
    odd.slice(gpus=1).die.broadcast()
    until(lambda: "last words" in str(owner.ping.call_one().exception(timeout=10)))
""")  # fmt: skip
    run.done(limit=60)
    assert run.status == 0, run.err


@owners
def test_the_end_of_a_script_does_not_wait_for_a_hook_that_hangs(owner):
    run = Run(SCRIPT + f"""
owner = this_host().spawn_procs().spawn("owner", {owner}, "hangs")
owner.mesh.call_one().get().slice(gpus=1).fail.broadcast()
sys.stdin.readline()
""")  # fmt: skip
    run.line("hangs")
    run.tell("\n")
    run.ok(limit=3)


@ways
@owners
def test_a_hook_that_kills_its_own_process_is_a_death_of_that(owner, way):
    run = Run(SCRIPT + f"""
import monarch.actor
faults = []
monarch.actor.unhandled_fault_hook = faults.append
owner = this_host().spawn_procs(name="home").spawn("owner", {owner}, "kills")
pid = owner.pid.call_one().get()
kids = owner.mesh.call_one().get()
kids.slice(gpus=1).fail.broadcast()
until(lambda: len(faults) == 2)
assert sorted((fault.mesh_name, fault.signal, fault.pid) for fault in faults) == [("home", 9, pid), ("owner", 9, pid)]
error = error_of(lambda: kids.slice(gpus=0).pid.call_one().get(timeout=10))
assert f"pid {{pid}}" in str(error) or "its owner" in str(error), str(error)
""", way=way)  # fmt: skip
    run.ok()


@ways
@owners
def test_a_hook_that_kills_its_owners_process_ends_with_it(owner, way):
    """Nobody is left who could be told of what the hook was asked about; the script is told what its own died of."""
    run = Run(SCRIPT + f"""
import monarch.actor
faults = []
monarch.actor.unhandled_fault_hook = faults.append
boss = this_host().spawn_procs(name="home").spawn("boss", Boss)
owner = boss.hire.call_one({owner}).get()
kids = owner.mesh.call_one().get()
kids.slice(gpus=1).fail.broadcast()
until(lambda: len(faults) == 2)
assert sorted((fault.mesh_name, fault.signal) for fault in faults) == [("boss", 9), ("home", 9)]
for mesh in (owner, kids.slice(gpus=0)):
    error = error_of(lambda: mesh.pid.call_one().get(timeout=10))
    assert "sig=9" in str(error) or "its owner" in str(error), str(error)
""", way=way)  # fmt: skip
    run.ok()


@owners
def test_a_slow_hook_is_asked_of_each_of_a_hundred_failures_and_holds_up_no_caller(owner):
    run = Run(SCRIPT + f"""
owner = this_host().spawn_procs().spawn("owner", {owner}, "is slow", 0, 100)
kids = owner.mesh.call_one().get()
kids.fail.broadcast()
began = time.monotonic()
answers = [error_of(lambda: future.get(timeout=10)) for future in kids.pid.stream()]
assert len(answers) == 100 and all("bang" in str(error) for error in answers)
until(lambda: len(owner.seen.call_one().get()) == 100)
assert sorted(owner.seen.call_one().get()) == list(range(100))
""")  # fmt: skip
    run.done()
    assert run.status == 0, run.err


@owners
def test_a_hundred_processes_that_die_at_once_are_told_one_by_one(owner):
    run = Run(SCRIPT + f"""
class Crowd({owner}):
    def __init__(self):
        self.how, self.victim, self.asked = "is slow", 0, []
        self.procs = this_host().spawn_procs({{"gpus": 50}}, name="kids")
        self.kids = self.procs.spawn("kid", Kid)
owner = this_host().spawn_procs().spawn("owner", Crowd)
kids = owner.mesh.call_one().get()
pids = list(kids.pid.call().get(timeout=60).values())
for pid in pids:
    os.kill(pid, signal.SIGKILL)
for rank, future in enumerate(kids.pid.stream()):
    assert "sig=9" in str(error_of(lambda: future.get(timeout=10)))
until(lambda: len(owner.seen.call_one().get()) >= 100)
assert sorted(owner.seen.call_one().get()) == sorted([*range(50), *range(50)])  # of the processes and of the actors
""")  # fmt: skip
    run.done(limit=60)
    assert run.status == 0, run.err


@owners
def test_a_constructor_that_fails_each_time_ends_with_whoever_gives_up(owner):
    run = Run(SCRIPT + f"""
import monarch.actor
faults = []
monarch.actor.unhandled_fault_hook = faults.append
owner = this_host().spawn_procs().spawn("owner", {owner}, "spawns again")
owner.spawn_what_fails.call_one().get()
until(lambda: faults)
(failure,) = faults
assert failure.mesh_name == "owner" and "ValueError: at birth" in failure.report(), failure.report()
assert failure.report().count("Traceback") <= 1 and len(failure.report().splitlines()) < 20, failure.report()
""")  # fmt: skip
    run.done()
    assert run.status == 0, run.err


# ---- Last words ----


def died_with(way: str, call: str) -> Run:
    run = Run(SCRIPT + f"""
kid = this_host().spawn_procs().spawn("kid", Kid)
error = error_of(lambda: kid.{call}.get(timeout=20))
sys.stdout.write(str(error) + "\\nEND\\n")
assert error.signal == {int(signal.SIGKILL)}
""", way=way, env={"HYPERACTOR_MESH_TAIL_LOG_LINES": "10"}).done()  # fmt: skip
    assert run.status == 0, run.err
    return run


@ways
def test_a_death_with_no_words_is_told_without(way):
    assert "stderr" not in died_with(way, "die_after.call_one(b'')").out


@ways
@pytest.mark.parametrize("data", [b"\xff\xfe broken \xc3\n", b"\x00\x1b[31m\r\n", b"half a line \xe2\x82"])
def test_last_words_that_are_no_text_are_shown_as_far_as_they_go(way, data):
    run = died_with(way, f"die_after.call_one({data!r})")
    told = run.out.partition("The last that it printed to stderr:\n")[2]
    words = [word for word in ("broken", "half a line", "[31m") if word.encode() in data]
    assert told and all(word in told for word in words), run.out
    assert re.search(r"\nEND$", run.out.strip())


@ways
def test_megabytes_of_last_words_are_cut(way):
    run = died_with(way, "flood.call_one(4000)")
    told = run.out.partition("The last that it printed to stderr:\n")[2]
    assert told and len(told) < 1 << 18, len(told)


STUCK = (
    SCRIPT
    + """
from monarch.config import configured
class Stuck(Owner):
    @endpoint
    def hang(self):
        print("hangs")
        time.sleep(60)
"""
)


def test_who_is_stuck_when_its_owner_dies_is_given_up():
    run = Run(STUCK + """
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
class Parent(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def spawn_on(self, procs):
        return procs.spawn("stuck", Stuck, "")
with configured(cleanup_timeout="300ms"):
    procs, others = this_host().spawn_procs(name="one"), this_host().spawn_procs(name="two")
parent = procs.spawn("parent", Parent)
stuck = parent.spawn_on.call_one(others).get()
hanging, waiting = stuck.hang.call_one(), stuck.pid.call_one()
sys.stdin.readline()
os.kill(parent.pid.call_one().get(), signal.SIGKILL)
for call in (hanging, waiting):
    assert "its owner has ended" in str(error_of(lambda: call.get(timeout=10)))
print("told")
""")  # fmt: skip
    run.line("hangs")
    run.tell("\n")
    run.line("told")
    run.done(limit=10)
    assert run.status == 0 and "is left behind" in run.err, run.err


def test_what_a_stuck_actor_owns_ends_when_it_is_given_up():
    run = Run(STUCK + """
with configured(cleanup_timeout="300ms"):
    procs = this_host().spawn_procs()
stuck = procs.spawn("stuck", Stuck, "")
pids = list(stuck.mesh.call_one().get().pid.call().get().values())
stuck.hang.broadcast()
sys.stdin.readline()
stuck.stop().get(timeout=10)
until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
print("ended")
""")  # fmt: skip
    run.line("hangs")
    run.tell("\n")
    run.line("ended")
    run.done(limit=10)
    assert run.status == 0 and "is left behind" in run.err, run.err


@pytest.mark.parametrize("name", ["NoText", "Exits", "Hides"])
def test_an_exception_that_raises_when_it_is_asked_is_told_as_far_as_it_can_be(name):
    """In calls of sync and async actors, with a deadline or without, in a constructor and after a broadcast."""
    run = Run(PROGRAMS / "supervision/odd_exceptions.py", args=(name,)).done()
    assert run.status == 0, run.err
