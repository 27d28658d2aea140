"""Actors that start processes and actors, and calls between workers of different owners."""

import pytest
from script_run import WAYS, Run, program

from monarch.actor import Actor, SupervisionError, endpoint, this_host

ways = pytest.mark.parametrize("way", WAYS)

NESTED = program("nested/nested.py")


@pytest.mark.feature(46, 55, "processes and actors of actors", 21, "within a process")
@ways
def test_actors_that_spawn_processes_and_actors(way):
    run = Run(NESTED + """
nested = boss.handles.call_one().get()
pids = boss.pids.call_one().get()
assert len(set(pids)) == 2 and os.getpid() not in pids
assert list(nested.pid.call().get().values()) == pids
more = boss.more.call_one().get()
assert more.pid.call_one().get() not in pids
local, pid = boss.local.call_one().get()
assert pid == boss.pid.call_one().get() == local.pid.call_one().get()
assert this_proc().spawn("mine", Leaf, "mine").pid.call_one().get() == os.getpid()
""", way=way).ok()  # fmt: skip
    expected = {"top": 2, "nested": 2, "more": 1, "local": 1, "mine": 1}
    assert {tag: run.out.count(f"cleaned up {tag}\n") for tag in expected} == expected


@pytest.mark.feature(21, "to other processes")
@ways
def test_calls_between_workers(way):
    Run(NESTED + """
nested = boss.handles.call_one().get()
zero, one = leaves.slice(gpus=0), leaves.slice(gpus=1)
far = nested.slice(gpus=1)
far_pid, one_pid = far.pid.call_one().get(), one.pid.call_one().get()
for _ in range(5):
    assert zero.ask.call_one(one).get() == one_pid
    assert zero.ask.call_one(far).get() == far_pid
    assert far.ask_async.call_one(one).get() == one_pid
    assert zero.relay.call_one(one, far).get() == far_pid
    assert far.relay.call_one(zero, one).get() == one_pid
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(21, 51, 61, "not there yet")
@ways
def test_a_handle_to_a_process_that_is_still_starting_can_be_called_by_others(way):
    Run(NESTED + """
leaves.pid.call().get()
late = this_host().spawn_procs().spawn("late", Leaf)
assert leaves.slice(gpus=0).ask.call_one(late).get() == late.pid.call_one().get()
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(55, 64)
@ways
def test_a_nested_death_is_seen_by_all_that_call(way):
    Run(NESTED + """
nested = boss.handles.call_one().get()
zero, one, far = leaves.slice(gpus=0), leaves.slice(gpus=1), nested.slice(gpus=1)
pid = far.pid.call_one().get()
assert zero.ask.call_one(far).get() == pid
why = ("non-zero code 3", "1/2", f"pid {pid}")
fails(lambda: far.die.call_one().get(), *why)
fails(lambda: far.pid.call_one().get(), *why)
fails(lambda: zero.ask.call_one(far).get(), *why)  # had a link
fails(lambda: one.ask.call_one(far).get(), *why)  # has none
fails(lambda: boss.pids.call_one().get(), *why)
assert nested.slice(gpus=0).pid.call_one().get() != pid
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(55, 69, "what it owned ends")
@ways
def test_when_a_worker_dies_its_nested_processes_die(way):
    Run(NESTED + """
import select
nested = boss.handles.call_one().get()
pidfds = [os.pidfd_open(pid) for pid in boss.pids.call_one().get()]
nested.pid.call().get()
unseen = boss.more.call_one().get()
fails(lambda: boss.die.call_one().get(), "non-zero code 3", "0/2")
for pidfd in pidfds:
    assert select.select([pidfd], [], [], 5)[0]
fails(lambda: nested.pid.call().get())
limit = time.monotonic() + 5  # it is told to die with those above, and may be the last to go
while unseen.pid.call_one().exception() is None:
    assert time.monotonic() < limit
fails(lambda: unseen.pid.call_one().get())
assert leaves.slice(gpus=1).pid.call_one().get()
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(55, "a stop reaches what they own")
@ways
def test_a_nested_mesh_is_stopped_by_its_owner_and_with_it(way):
    run = Run(NESTED + """
nested = boss.handles.call_one().get()
nested.pid.call().get()
boss.end.call_one().get()
fails(lambda: nested.pid.call().get(), "stopped: by the boss")
more = boss.more.call_one().get()
more.pid.call_one().get()
procs.stop().get()
print("stopped", flush=True)
fails(lambda: more.pid.call_one().get())
""", way=way).ok()  # fmt: skip
    before_stop = run.out[: run.out.index("stopped\n")]
    assert before_stop.count("cleaned up nested") == 2 and before_stop.count("cleaned up more") == 1


@pytest.mark.feature(55, 60)
@ways
@pytest.mark.parametrize("ending", ["", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_nothing_nested_is_left(way, ending):
    run = Run(NESTED + f"boss.pids.call_one().get()\n{ending}", way=way).done()
    assert (run.status, run.err) == (-9 if "SIGKILL" in ending else 0, "")


def test_what_its_owner_deals_with_is_not_said_again():
    Run(NESTED + """
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
class Catcher(Actor):
    @endpoint
    def kill(self, other):
        try:
            other.die.call_one().get()
        except SupervisionError as error:
            return "non-zero code 3" in str(error)
assert procs.slice(gpus=slice(0, 1)).spawn("catcher", Catcher).kill.call_one(leaves.slice(gpus=1)).get()
""").ok()  # fmt: skip


class Ended(Actor):
    @endpoint
    def end(self) -> None:
        raise SystemExit("enough")


class Starter(Actor):
    @endpoint
    def start(self) -> Ended:
        return this_host().spawn_procs({"gpus": 2}).spawn("ended", Ended)


@pytest.mark.feature(37, "in errors")
def test_an_error_tells_the_way_from_the_root(procs):
    ended = procs.spawn("starter", Starter).slice(gpus=1).start.call_one().get(timeout=20)
    with pytest.raises(SupervisionError, match="enough") as raised:
        ended.slice(gpus=1).end.call_one().get(timeout=20)
    starter, last = (f"<{cls.__module__}.{cls.__qualname__} " for cls in (Starter, Ended))
    assert f"The actor <root>.{starter}starter{{'gpus': 1/2}}>.{last}ended{{'gpus': 1/2}}> and" in str(raised.value)
    assert "rank {'gpus': 1/2} of 'ended'" in str(raised.value)


@pytest.mark.feature(55, 64)
@pytest.mark.parametrize("way", ["fork", "unix"])
def test_a_nested_death_is_told_with_its_cause_though_who_would_report_it_is_stopped(way):
    """Its fork server has forked it, and would say how it has ended; the kernel says so before."""
    Run(NESTED + """
nested = boss.handles.call_one().get()
zero, far = leaves.slice(gpus=0), nested.slice(gpus=1)
pid = far.pid.call_one().get()
assert zero.ask.call_one(far).get() == pid
server = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
os.kill(server, signal.SIGSTOP)
start = time.monotonic()
fails(lambda: far.die.call_one().get(), "non-zero code 3", "1/2", f"pid {pid}")
fails(lambda: zero.ask.call_one(far).get(), "non-zero code 3", "1/2", f"pid {pid}")
assert time.monotonic() - start < 0.25, "nobody has waited for the fork server"
os.kill(server, signal.SIGCONT)
""", way=way).ok()  # fmt: skip
