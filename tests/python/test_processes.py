"""Workers that die, constructors and bootstrap functions that fail, and what a worker inherits from its script."""

import re

import pytest
from script_run import WAYS, Run, program

from monarch.actor import Actor, SupervisionError, current_rank, endpoint

ways = pytest.mark.parametrize("way", WAYS)

MORTALS = program("processes/mortals.py")
CAUSES = {
    "os._exit": "exited with non-zero code 3",
    "SIGKILL": "(sig=9)",
    "SIGSEGV": "(sig=11)",
    "SIGTERM": "(sig=15)",
    "exit 0": "exited with code 0 without being asked to",
}


@pytest.mark.feature(
    64, "pending calls", "later calls", "the signal or exit status", 68, "slices without the failed rank"
)
@ways
@pytest.mark.parametrize("how", CAUSES)
def test_a_death_during_a_call(way, how):
    Run(MORTALS + f"""
pending = mortals.slice(gpus=1).wait.call_one()
why = ({CAUSES[how]!r}, "1/3", "trainers", f"pid {{pids[1]}}")
other = procs.spawn("other", Mortal)
fails(lambda: other.die.call({how!r}).get(), *why)
fails(lambda: pending.get(), *why)
fails(lambda: mortals.rank.call().get(), *why)
fails(lambda: mortals.slice(gpus=1).rank.call_one().get(), *why)
fails(lambda: procs.spawn("late", Mortal).rank.call().get(), *why)
assert list(mortals.slice(gpus=slice(0, 3, 2)).pid.call().get().values()) == [pids[0], pids[2]]
assert len(procs.slice(gpus=slice(0, 1)).spawn("late", Mortal).pid.call().get()) == 1
again = this_host().spawn_procs(per_host={{"gpus": 2}}).spawn("again", Mortal)
assert list(again.rank.call().get().values()) == [0, 1]
""", way=way).ok()  # fmt: skip


@ways
@pytest.mark.parametrize(("how", "signal", "exit_code"), [("SIGKILL", 9, None), ("os._exit", None, 3)])
def test_what_died_and_how_are_attributes_that_survive_pickling(way, how, signal, exit_code):
    Run(
        MORTALS
        + f"""
import pickle, socket
procs = this_host().spawn_procs({{"gpus": 2}}, name="mine")
mortals = procs.spawn("mortals", Mortal)
pids = mortals.pid.call().get().values()
try:
    mortals.slice(gpus=1).die.call_one({how!r}).get()
except SupervisionError as error:
    for one in (error, pickle.loads(pickle.dumps(error))):
        found = (one.pid, one.host, one.signal, one.exit_code, one.mesh, one.rank, one.coordinates)
        assert found == (pids[1], socket.gethostname(), {signal!r}, {exit_code!r}, "mine", 1, (1,)), found
else:
    raise AssertionError("it lives")
""",
        way=way,
    ).ok()


@pytest.mark.feature(64, "later calls", "the signal or exit status")
@ways
@pytest.mark.parametrize("number", ["SIGKILL", "SIGSEGV"])
def test_a_death_between_calls(way, number):
    Run(MORTALS + f"""
os.kill(pids[1], signal.{number})
fails(lambda: mortals.wait.call().get(), "1/3", f"pid {{pids[1]}}", f"sig={{int(signal.{number})}}")
fails(lambda: mortals.rank.call().get(), "1/3", f"pid {{pids[1]}}", f"sig={{int(signal.{number})}}")
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(64, 68)
@ways
@pytest.mark.parametrize("how", ["os._exit", "SIGKILL"])
def test_a_death_in_a_constructor(way, how):
    Run(MORTALS + f"""
stillborn = procs.spawn("stillborn", Stillborn, {how!r})
fails(lambda: stillborn.rank.call().get(), {CAUSES[how]!r}, "1/3", f"pid {{pids[1]}}")
assert stillborn.slice(gpus=2).rank.call_one().get() == 2
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(48, 64)
@ways
def test_a_death_before_the_worker_is_up(way):
    Run(MORTALS + """
def bootstrap():
    os._exit(9)
dead = this_host().spawn_procs(per_host={"gpus": 2}, bootstrap=bootstrap)
fails(lambda: dead.initialized.get(), "non-zero code 9", "/2")
fails(lambda: dead.spawn("m", Mortal).rank.call().get(), "non-zero code 9", "/2")
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(64)
def test_a_death_in_await_stream_and_broadcast():
    run = Run(MORTALS + """
async def main():
    pending = procs.spawn("waiting", Mortal).wait.call()
    procs.spawn("other", Mortal).die.broadcast("SIGKILL")
    try:
        await pending
    except SupervisionError as error:
        assert "sig=9" in str(error)
        print("awaited")
asyncio.run(main())
outcomes = [future.exception() for future in mortals.rank.stream()]
assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "NoneType", "SupervisionError"]
for _ in range(100):
    mortals.rank.broadcast()
""").done()  # fmt: skip
    assert run.status == 0 and "awaited" in run.out
    assert re.fullmatch(
        r"[^\n]*could not be delivered[^\n]*sig=9[^\n]*pid \d+\), while in other\.die( and waiting\.wait)?\n", run.err
    ), run.err


@ways
def test_a_death_that_nobody_sees_ends_the_program_with_one_report(way):
    run = Run(MORTALS + """
os.kill(pids[1], signal.SIGKILL)
sys.stdin.readline()
""", way=way).done()  # fmt: skip
    assert run.status == 1
    cause = (
        r"the process this actor was running on failed: Killed\(sig=9\) \(rank {'gpus': 1/3} of 'trainers', pid \d+\)\n"
    )
    who = r"The actor <root>.<__main__.Mortal [^\n]*{'gpus': 1/3}> and all its descendants have failed\n"
    assert re.fullmatch(rf"monarch: {cause}Unhandled monarch error[^\n]*:\n{who}", run.err), run.err


def test_a_death_just_before_the_end_is_reported_too():
    run = Run(MORTALS + """
pidfd = os.pidfd_open(pids[1])
mortals.die.broadcast("os._exit")
import select
select.select([pidfd], [], [])
""").done()  # fmt: skip
    assert run.status == 1
    assert re.search(r"exited with (non-zero )?code 3.*\s+.*while in mortal\.die\n", run.err), run.err
    assert "\nUnhandled monarch error on the root actor, hostname=" in run.err


FAILING = program("processes/failing.py")


@pytest.mark.feature(68, "new actors in the process", 70)
@ways
@pytest.mark.parametrize(("how", "text"), [("raise", "ValueError: at birth"), ("exit", "SystemExit: 7")])
def test_a_constructor_that_fails(way, how, text):
    Run(FAILING + f"""
failing = procs.spawn("failing", Failing, {how!r})
fails(lambda: failing.work.call().get(), {text!r}, "/2", "pid")
fails(lambda: failing.work.call().get(), {text!r})
assert len(procs.spawn("fine", Failing).work.call().get()) == 2
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(70, "each rank for itself")
def test_a_constructor_that_fails_unseen_ends_the_program_with_each_rank_in_the_report():
    run = Run(FAILING + "failing = procs.spawn('failing', Failing, 'raise')\nsys.stdin.readline()").done()
    assert run.status == 1
    assert run.err.startswith("monarch: ranks 0, 1 of 'failing' have failed: ValueError: at birth\n"), run.err
    assert "the first of them: rank {'gpus': 0/2} of 'failing' (__main__.Failing, pid " in run.err


class Picky(Actor):
    def __init__(self, *refused):
        self.check(refused)

    def check(self, refused):
        if (rank := current_rank()["gpus"]) in refused:
            raise ValueError(f"not as rank {rank}")

    @endpoint
    def work(self):
        return 1

    @endpoint
    def leave(self):
        raise SystemExit("enough")


@pytest.mark.feature(70, "each rank for itself", "the traceback")
def test_what_a_constructor_raises_comes_for_its_rank_with_the_traceback(procs):
    both = procs.spawn("picky", Picky, 0, 1)
    for rank in (0, 1):
        with pytest.raises(SupervisionError) as raised:
            both.slice(gpus=rank).work.call_one().get(timeout=20)
        text = str(raised.value)
        assert f"rank {{'gpus': {rank}/2}} of 'picky'" in text and f"ValueError: not as rank {rank}" in text
        assert "in __init__\n      self.check(refused)" in text and "in check\n      raise ValueError" in text
        assert f"not as rank {1 - rank}" not in text


@pytest.mark.feature(68, "other meshes of the process")
def test_other_actors_of_the_process_of_a_failed_one_go_on(procs):
    failing, other = procs.spawn("failing", Picky), procs.spawn("other", Picky)
    assert other.work.call().get(timeout=20).values() == [1, 1]
    with pytest.raises(SupervisionError, match="enough"):
        failing.slice(gpus=0).leave.call_one().get(timeout=20)
    assert other.work.call().get(timeout=20).values() == [1, 1]
    assert failing.slice(gpus=1).work.call_one().get(timeout=20) == 1


@pytest.mark.feature(52)
@ways
def test_a_constructor_that_never_returns_can_be_stopped(way):
    run = Run(FAILING + """
failing = procs.spawn("failing", Failing, "hang")
pending = failing.work.call()
sys.stdin.readline()
procs.stop().get()
fails(lambda: pending.get(), "stopped")
print("stopped")
""", way=way)  # fmt: skip
    run.line("hanging")
    run.tell("\n")
    run.ok()
    assert "stopped\n" in run.out


@pytest.mark.feature(68, "new actors in the process")
@pytest.mark.parametrize("leave", ["leave", "async_leave"])
def test_a_base_exception_ends_the_actor_not_the_process(leave):
    Run(FAILING + f"""
failing = procs.spawn("failing", Failing)
fails(lambda: failing.{leave}.call().get(), "SystemExit" if {leave!r} == "leave" else "KeyboardInterrupt")
fails(lambda: failing.work.call().get())
assert len(procs.spawn("fine", Failing).work.call().get()) == 2
""").ok()  # fmt: skip


@pytest.mark.feature(63, "of a broadcast")
def test_a_broadcast_that_raises_ends_the_actor_and_later_calls_say_why():
    Run(FAILING + """
failing = procs.spawn("failing", Failing)
failing.fail.broadcast()
fails(lambda: failing.work.call().get(), "KeyError: 'in passing'")
""").ok()  # fmt: skip


@pytest.mark.feature(63, "a report where nobody looks")
def test_a_broadcast_that_raises_unseen_ends_the_program():
    run = Run(FAILING + """
one = this_host().spawn_procs().spawn("failing", Failing)
one.work.call_one().get()
one.fail.broadcast()
sys.stdin.readline()
""").done()  # fmt: skip
    assert run.status == 1
    assert run.err.startswith("monarch: 'failing' (__main__.Failing, pid ")
    assert run.err.count("failed: KeyError") == 1


@pytest.mark.feature(48, "a failure shows in initialized")
@ways
def test_a_failed_bootstrap_shows_in_every_use(way):
    run = Run(program("processes/a_failed_bootstrap_shows_in_every_use.py"), way=way).ok()
    assert run.out == "failed\n" * 15


def test_the_report_of_a_bootstrap_function_that_raises_says_what_and_where():
    run = Run("""
class A(Actor):
    @endpoint
    def f(self): ...

def bootstrap():
    raise ValueError("no GPU")

this_host().spawn_procs(per_host={"gpus": 2}, name="trainers", bootstrap=bootstrap).spawn("a", A).f.broadcast()
threading.Event().wait()
""").done()
    assert run.status == 1
    assert run.err.startswith("monarch: ranks 0, 1 of 'a' have failed: ValueError: no GPU\n"), run.err
    _, first, at, *_ = run.err.splitlines()
    assert re.fullmatch(r"the first of them: the bootstrap function of 'trainers' \(pid \d+\) failed: .*", first), first
    assert at.endswith(", in bootstrap") and "SetupFailed" not in run.err, run.err


@pytest.mark.feature(48)
@pytest.mark.parametrize("taken", [False, True])
@ways
def test_signals_that_a_bootstrap_handles_are_handled_while_the_process_is_idle(way, taken):
    """``taken``: the interpreter tells somebody else of signals already."""
    run = Run(f"""
class A(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
def bootstrap():
    if {taken}:
        signal.set_wakeup_fd(os.pipe2(os.O_NONBLOCK)[1])
    signal.signal(signal.SIGUSR1, lambda *_: print("told"))
    signal.signal(signal.SIGTERM, lambda *_: (print("ends"), os._exit(0)))
procs = this_host().spawn_procs(bootstrap=bootstrap)
a = procs.spawn("a", A)
pid = a.pid.call_one().get()
os.kill(pid, signal.SIGUSR1)
sys.stdin.readline()
assert a.pid.call_one().get() == pid
os.kill(pid, signal.SIGTERM)
sys.stdin.readline()
try:
    while True:  # it may still answer while it ends
        a.pid.call_one().get()
except SupervisionError:
    print("over")
""", way=way)  # fmt: skip
    for line in ("told", "ends", "over"):
        run.line(line, limit=10)
        run.tell("\n")
    run.done()


@pytest.mark.feature(48, "sync and async functions")
@ways
def test_bootstrap_runs_once_before_any_actor(way):
    Run(program("processes/bootstrap_runs_once_before_any_actor.py"), way=way).ok()


LOOKING = program("processes/looking.py")


@ways
def test_a_worker_looks_like_its_script(way, tmp_path):
    Run(LOOKING + f"""
look()
os.environ["ADDED"] = "yes"
del os.environ["MONARCH_TEST_GONE"]
sys.path.insert(0, "/somewhere/else")
os.chdir({str(tmp_path)!r})
os.umask(0o027)
sys.argv.append("more")
seen = look()
assert seen["env"] == dict(os.environ)
assert seen["path"] == sys.path and seen["argv"] == sys.argv
assert (seen["cwd"], seen["umask"], seen["session"], seen["stdin"]) == ({str(tmp_path)!r}, 0o027, True, "")
""", way=way, env={"MONARCH_TEST_GONE": "1"}).ok()  # fmt: skip


def test_what_matters_before_main_is_there_before_main():
    Run(LOOKING + """
assert "OMP_NUM_THREADS" not in look()["born with"]
os.environ["OMP_NUM_THREADS"] = "3"
assert look()["born with"]["OMP_NUM_THREADS"] == "3"
del os.environ["OMP_NUM_THREADS"]
assert "OMP_NUM_THREADS" not in look()["born with"]
""").ok()  # fmt: skip


def test_the_fork_server_is_started_again_when_it_died():
    run = Run(program("processes/the_fork_server_is_started_again_when_it_died.py")).done()
    assert (run.status, run.out) == (0, "lost\n")
    assert re.fullmatch(r"[^\n]*fork server was killed by signal 9[^\n]*\n", run.err), run.err


STOPPING = program("processes/stopping.py")


@pytest.mark.feature(52, "again: nothing", 72)
@ways
def test_stop_of_an_actor_mesh(way):
    run = Run(STOPPING + """
for _ in range(100):
    a.count.broadcast()
a.stop("enough").get()
stopped(lambda: a.count.call().get(), "enough")
a.stop("again").get()
stopped(lambda: a.count.call().get(), "enough")
assert len(procs.spawn("b", A).count.call().get()) == 2
""", way=way).ok()  # fmt: skip
    assert run.out.count("cleaned up after 100 None") == 2
    assert run.out.count("cleaned up after 1 None") == 2


@pytest.mark.feature(52)
def test_a_stop_reaches_actors_of_processes_that_have_just_begun():
    """The stop comes in the moment in which the process has its link: so many, since few are met by it."""
    Run(STOPPING + """
class Plain(Actor):
    @endpoint
    def ping(self):
        pass
for _ in range(60):
    fresh = this_host().spawn_procs({"gpus": 8})
    plain = fresh.spawn("plain", Plain)
    plain.stop("at once").get()
    stopped(lambda: plain.ping.call().get(), "at once")
    fresh.stop().get()
""", way="unix").ok()  # fmt: skip


@pytest.mark.feature(52, "again: nothing", 72)
@ways
def test_stop_of_a_proc_mesh(way):
    run = Run(STOPPING + """
a.count.call().get()
first, second = procs.stop("done"), procs.stop()
first.get(), second.get()
procs.stop().get()
stopped(lambda: a.count.call().get(), "done")
refused(lambda: procs.spawn("b", A))
refused(lambda: procs.initialized)
refused(lambda: procs.slice(gpus=0).spawn("b", A))
""", way=way).ok()  # fmt: skip
    assert run.out.count("cleaned up after 1 None") == 2


@pytest.mark.feature(52, "what was sent is handled")
def test_stop_handles_what_was_sent_before():
    run = Run(STOPPING + """
a.count.call().get()
for _ in range(1000):
    a.count.broadcast()
last = a.count.call()
procs.stop().get()
assert list(last.get().values()) == [1002, 1002]
""").ok()  # fmt: skip
    assert run.out.count("cleaned up after 1002 None") == 2


@pytest.mark.feature(52, "context managers")
def test_context_managers():
    Run(STOPPING + """
with procs as entered:
    assert entered is procs
    a.count.call().get()
refused(procs.__enter__)
async def main():
    async with this_host().spawn_procs(per_host={"gpus": 2}) as others:
        assert len(await others.spawn("a", A).count.call()) == 2
    try:
        async with others:
            pass
    except RuntimeError as error:
        print(error)
asyncio.run(main())
""").ok()  # fmt: skip


@pytest.mark.feature(51, 52)
@ways
def test_stop_right_after_spawn(way):
    Run(STOPPING + """
new = this_host().spawn_procs(per_host={"gpus": 4})
call = new.spawn("a", A).count.call()
new.stop("never mind").get()
try:
    assert len(call.get()) == 4
except SupervisionError as error:
    assert "stopped: never mind" in str(error)
a.stop()
procs.stop()
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(47)
def test_sizes_that_make_no_mesh():
    Run("""
for size in (0, -1):
    try:
        this_host().spawn_procs(per_host={"gpus": size})
        print("no error")
    except ValueError as error:
        assert f"per_host['gpus'] is {size}" in str(error)
""").ok()  # fmt: skip


@pytest.mark.feature(47)
@ways
def test_32_processes_start_answer_and_stop(way):
    run = Run(STOPPING + """
many = this_host().spawn_procs(per_host={"hosts": 4, "gpus": 8})
assert len(many.spawn("a", A).count.call().get()) == 32
many.stop().get()
""", way=way).ok(limit=60)  # fmt: skip
    assert run.out.count("cleaned up") == 34


@ways
def test_a_reason_of_any_length_ends_what_it_is_for_and_nobody_else(way):
    Run(
        MORTALS
        + """
others = this_host().spawn_procs({"gpus": 2}).spawn("others", Mortal)
pids = others.pid.call().get().values()
procs = this_host().spawn_procs({"gpus": 2}, name="n" * 300_000)
mortals = procs.spawn("mortals", Mortal)
mortals.pid.call().get()
procs.stop("r" * 3_000_000).get()
try:
    mortals.pid.call().get()
except SupervisionError as error:
    assert "bytes are left out" in str(error) and len(str(error)) < 200_000
else:
    raise AssertionError("they live")
assert others.pid.call().get().values() == pids
""",
        way=way,
    ).ok()


@ways
def test_a_process_that_is_younger_than_a_death_is_told_of_what(way):
    Run(
        MORTALS
        + """
class Caller(Actor):
    @endpoint
    def call(self, other):
        try:
            other.pid.call_one().get()
        except SupervisionError as error:
            return str(error)

def spawn(name):
    procs = this_host().spawn_procs({"gpus": 2}, name=name)
    return procs, procs.spawn("mortals", Mortal)

_, killed = spawn("killed")
pids = killed.pid.call().get().values()
try:
    killed.slice(gpus=1).die.call_one("SIGKILL").get()
except SupervisionError:
    pass
procs, stopped = spawn("stopped")
stopped.pid.call().get()
procs.stop("enough").get()
younger = this_host().spawn_procs({"gpus": 1}).spawn("younger", Caller).slice(gpus=0)
text = younger.call.call_one(killed.slice(gpus=1)).get()
assert "Killed(sig=9)" in text and f"pid {pids[1]})" in text, text
text = younger.call.call_one(stopped.slice(gpus=0)).get()
assert "enough" in text and "lost" not in text, text
""",
        way=way,
    ).ok()
