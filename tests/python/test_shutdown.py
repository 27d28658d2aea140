"""shutdown_context, and how scripts end: whole scripts, their exit status and what they leave behind."""

import pytest
from script_run import PROGRAMS, WAYS, Run, program

ways = pytest.mark.parametrize("way", list(WAYS))

ACTORS = program("shutdown/actors.py")


@pytest.mark.feature(38)
@ways
def test_it_ends_the_processes_and_there_is_no_new_client(way):
    run = Run(ACTORS + """
a = mesh()
pids = a.pid.call().get().values()
future = shutdown_context()
assert isinstance(future, Future) and future.get() is None and future.get() is None
print([gone(pid) for pid in pids])
for use in context, a.pid.call, lambda: this_host().spawn_procs(), lambda: this_proc().spawn("a", A), Channel.open, \\
        lambda: get_or_spawn_controller("a", A):
    assert refused(use) == ENDED, (use, refused(use))
print("goes on")
""", way=way).ok()  # fmt: skip
    assert run.out == "[True, True]\ngoes on\n"


@pytest.mark.feature(38)
def test_it_starts_at_once_though_nobody_looks():
    run = Run(
        ACTORS
        + """
pids = mesh().pid.call().get().values()
shutdown_context()
deadline = time.monotonic() + 10
while not all(gone(pid) for pid in pids):
    assert time.monotonic() < deadline
print("gone")
"""
    ).ok()
    assert run.out == "gone\n"


@pytest.mark.feature(38)
def test_on_an_event_loop():
    run = Run(
        ACTORS
        + """
async def main():
    a = mesh()
    pids = (await a.pid.call()).values()
    await shutdown_context()
    print([gone(pid) for pid in pids], await shutdown_context(), refused(a.pid.call) == ENDED)
asyncio.run(main())
"""
    ).ok()
    assert run.out == "[True, True] None True\n"


@pytest.mark.feature(38, "nothing without a client")
def test_without_a_client_nothing_changes():
    run = Run(
        ACTORS
        + """
from monarch import _core
assert shutdown_context().get(timeout=0) is None
assert shutdown_context(-1).get(timeout=0) is None
assert not _core.has_runtime()
print(len(mesh().pid.call().get()))
"""
    ).ok()
    assert run.out == "2\n"


@pytest.mark.feature(38)
@pytest.mark.parametrize("timeout", ["-1", "float('nan')", "float('inf')", "2.0**64"])
def test_an_invalid_host_timeout_is_refused_and_nothing_ends(timeout):
    run = Run(
        ACTORS
        + f"""
a = mesh()
try:
    shutdown_context({timeout})
except ValueError as error:
    print(error)
print(len(a.pid.call().get()))
shutdown_context(2**63).get()
print(shutdown_context({timeout}).get(timeout=0))  # there is no client any more
"""
    ).ok()
    assert run.out == "host_timeout must be finite, non-negative and less than 2**64 seconds\n2\nNone\n"


@pytest.mark.feature(38, "again: nothing")
def test_later_calls_are_finished_at_once_even_while_the_first_runs():
    run = Run(
        ACTORS
        + """
a = mesh()
a.pid.call().get()
blocked = a.block.call()  # 1 s and more until the processes are killed
first = shutdown_context(1)
assert shutdown_context().get(timeout=0) is None
try:
    first.get(timeout=0.05)
except TimeoutError as error:
    print("not yet", repr(str(error)))
print(first.get(timeout=10))
"""
    ).ok()
    assert run.out == "not yet ''\nNone\n"


@pytest.mark.feature(38, "host_timeout holds")
@pytest.mark.parametrize("timeout, least, most", [(0, 0, 1.5), (1, 0.9, 3)])
def test_host_timeout_bounds_how_long_processes_may_take(timeout, least, most):
    run = Run(
        ACTORS
        + f"""
a = mesh()
pids = a.pid.call().get().values()
a.block.broadcast()
started = time.monotonic()
shutdown_context({timeout}).get()
took = time.monotonic() - started
assert {least} <= took < {most}, took
print([gone(pid) for pid in pids])
"""
    ).ok()
    assert run.out == "[True, True]\n"


@pytest.mark.feature(38, "host_timeout holds")
def test_clean_up_runs_within_the_host_timeout():
    run = Run("""
class Last(Actor):
    @endpoint
    def ping(self):
        return 1
    def __cleanup__(self, exc):
        print("cleaned up", exc)
for procs in this_host().spawn_procs(), this_proc():
    procs.spawn("last", Last).ping.call_one().get()
shutdown_context().get()
print("done")
""").ok()
    assert sorted(run.out.splitlines()[:2]) == ["[procs] cleaned up None", "cleaned up None"]
    assert run.out.endswith("\ndone\n")


@pytest.mark.feature(38)
def test_in_a_worker_it_is_finished_and_ends_nothing():
    run = Run(
        ACTORS
        + """
a = mesh()
print(a.shut_down.call().get().values(), a.shut_down.call(-1).get().values(), len(a.pid.call().get()))
"""
    ).ok()
    assert run.out == "[None, None] [None, None] 2\n"


@pytest.mark.feature(38)
def test_an_actor_of_the_scripts_process_ends_the_client_too():
    run = Run(
        ACTORS
        + """
a = mesh()
pids = a.pid.call().get().values()
class Local(Actor):
    @endpoint
    def end(self):
        self.future = shutdown_context()  # its end waits for this actor's
ending = this_proc().spawn("local", Local).end.call_one()
deadline = time.monotonic() + 10
while not all(gone(pid) for pid in pids) or refused(context) != ENDED:
    assert time.monotonic() < deadline
print("ended")
"""
    ).ok()
    assert run.out == "ended\n"


@pytest.mark.feature(38)
def test_what_has_arrived_can_still_be_looked_at_and_what_has_not_fails():
    run = Run(PROGRAMS / "shutdown/what_has_arrived.py")
    run.done()
    assert (run.status, run.out) == (0, "done\n"), run.err


@pytest.mark.feature(38, "nothing is left running")
@ways
def test_a_script_that_forgets_it_ends_fast_and_leaves_nothing(way):
    run = Run(ACTORS + """
a = mesh(4)
a.pid.call().get()
a.block.broadcast()
print(time.monotonic())
""", way=way).ok(lost="a.block")  # fmt: skip
    import time

    assert time.monotonic() - float(run.out) < 3.0


@pytest.mark.feature(38)
@pytest.mark.parametrize("end, status, err", [
    ("sys.exit(3)", 3, ""),
    ("raise ValueError('mine')", 1, "ValueError: mine"),
    ("os._exit(4)", 4, ""),
    ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ("os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
])  # fmt: skip
@pytest.mark.parametrize("when", ["while it runs", "after it"])
def test_the_scripts_own_end_keeps_its_status(end, status, err, when):
    run = Run(
        ACTORS
        + f"""
a = mesh()
a.pid.call().get()
a.block.broadcast()
future = shutdown_context({5 if when == "while it runs" else 0})
if {when == "after it"}:
    future.get()
{end}
"""
    ).done()
    assert run.status == status
    assert run.err.strip().endswith(err) if err else run.err == ""


@ways
def test_threads_that_use_everything_all_the_while_end_too(way):
    run = Run(PROGRAMS / "shutdown/threads_that_use_everything.py", way=way).done()
    assert (run.status, run.out) == (0, "0\n"), run.err


def test_right_after_a_spawn():
    run = Run(
        ACTORS
        + """
a = mesh(4)
pending = a.pid.call()
shutdown_context().get()
try:
    print(len(pending.get()))
except RuntimeError:
    print(4)
"""
    ).done()
    assert (run.status, run.out) == (0, "4\n"), run.err


def test_what_a_port_still_holds_at_the_end_of_the_script_is_no_error():
    """Neither what the script itself has sent, nor what its actors have."""
    run = Run(
        ACTORS
        + """
class Sender(Actor):
    @endpoint
    def send(self, port):
        port.send("never read")
port, receiver = Channel.open()
port.send("never read")
this_host().spawn_procs().spawn("sender", Sender).send.call_one(port).get()
this_proc().spawn("local", Sender).send.call_one(port).get()
"""
    ).ok()
    assert run.out == ""
