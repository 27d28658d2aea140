"""What a script that ends leaves unanswered, unhandled or unlooked at: a short grace, then a line for each endpoint."""

import re
import time

import pytest
from script_run import Run, ended

PROGRAM = """
class T(Actor):
    @endpoint
    def save(self, seconds):
        time.sleep(seconds)
        print("saved", flush=True)
    @endpoint
    def fail(self, text):
        raise ValueError(text)
t = this_host().spawn_procs({"gpus": 2}).spawn("t", T)
"""
SHORT = {"MONARCH_EXIT_GRACE": "0.1"}


def said(source: str, status: int = 0, env: dict[str, str] | None = None) -> list[str]:
    run = Run(PROGRAM + source, env=env).done()
    assert run.status == status, run.err
    return [line.removeprefix("monarch: ") for line in run.err.splitlines()], run.out.count("saved")


@pytest.mark.parametrize("send", ["t.save.call(0)", "t.save.broadcast(0)", "kept = t.save.call(0)"])
def test_what_was_sent_last_is_done(send):
    assert said(send, env={"MONARCH_EXIT_GRACE": "20"}) == ([], 2)


def test_what_takes_longer_is_said_to_be_lost():
    lines, _ = said("t.save.call(60)\nfutures = [t.save.call(0) for _ in range(2)]", env=SHORT)
    assert lines == ["the script has ended before 3 calls of t.save were answered"]
    lines, _ = said("t.slice(gpus=0).save.call_one(60)", env=SHORT)
    assert lines == ["the script has ended before a call of t.save was answered"]


def test_one_way_messages_are_counted_too():
    lines, _ = said("t.save.broadcast(60)\nt.save.broadcast(0)", env=SHORT)
    assert lines == ["the script has ended before all of 2 broadcasts to t.save were handled"]


@pytest.mark.parametrize("keep", ["", "kept = "])
def test_a_failure_that_nobody_has_looked_at_is_told(keep):
    lines, _ = said(f"{keep}t.fail.call('first')\nt.fail.call('second')\nt.save.call(0).get()")
    assert lines in (
        [f"2 calls of t.fail failed, and nobody has looked at the future: ValueError: {text}"]
        for text in ("first", "second")
    )


def test_large_failures_that_nobody_has_looked_at_are_not_all_kept():
    lines, _ = said("""
class Large(ValueError):
    def __init__(self, text):
        super().__init__(text)
        self.data = bytes(1 << 20)
class U(Actor):
    @endpoint
    def fail(self):
        raise Large("large")
u = this_host().spawn_procs().spawn("u", U)
for _ in range(60):
    u.fail.call_one()
    assert type(u.fail.call_one().exception().exception) is Large
u.fail.call_one()
""")
    (found,) = [re.fullmatch(r"(\d+) calls of u.fail failed, .*: Large: large", line) for line in lines]
    assert 1 < int(found[1]) < 30  # of 16 MiB


def test_who_has_looked_is_told_nothing():
    assert said("""
future = t.fail.call("seen")
for _ in range(2):
    try:
        future.get()
    except ActorError:
        pass
assert t.fail.call("seen").exception() is not None
async def main():
    await asyncio.gather(t.fail.call("seen"), return_exceptions=True)
asyncio.run(main())
try:
    list(t.fail.stream("seen"))[0].get()
except ActorError:
    pass
t.fail.options(partial=True).call("seen")
""")[0] in ([], ["a call of t.fail failed, and nobody has looked at the future: ValueError: seen"])


def test_a_script_that_fails_does_not_wait():
    run = Run(PROGRAM + "t.save.call(60)\nraise KeyError('why')", env={"MONARCH_EXIT_GRACE": "60"}).done(limit=10)
    assert run.status == 1 and "KeyError: 'why'" in run.err and "has ended before" not in run.err


def test_a_thread_that_waits_has_looked():
    assert said("""
def wait():
    try:
        t.save.call(60).get()
    except Exception:
        pass
threading.Thread(target=wait, daemon=True).start()
while "saving" not in dir():
    saving = t.save.options(deadline=0.2).call(0).exception()
""", env=SHORT)[0] == []  # fmt: skip


def test_after_shutdown_context_there_is_nothing_more_to_say():
    assert said("t.save.call(60)\nshutdown_context(0.1).get()")[0] == []


def test_a_script_that_forks_children_which_end_normally_says_it_once():
    lines, _ = said("""
t.fail.call("lost")
t.save.broadcast(0)
for _ in range(3):
    if os.fork() == 0:
        sys.exit(0)
    assert os.wait()[1] == 0
""")  # fmt: skip
    assert lines == ["a call of t.fail failed, and nobody has looked at the future: ValueError: lost"]


def test_a_stuck_actor_in_the_script_does_not_disturb_its_end():
    lines, _ = said("""
local = this_proc().spawn("local", T)
local.save.broadcast(60)
t.fail.call("lost")
""", env=SHORT)  # fmt: skip
    assert "the script has ended before a broadcast to local.save was handled" in lines


@pytest.mark.parametrize("grace", ["inf", "nan", "-1", "soon"])
def test_a_grace_that_is_no_number_of_seconds_ends_no_script_badly(grace):
    lines = said("t.save.call(0).get()", env={"MONARCH_EXIT_GRACE": grace})[0]
    assert len(lines) == (0 if grace == "inf" else 2)  # a warning, and the line of code that warns
    assert all("MONARCH_EXIT_GRACE is ignored" in line for line in lines[:1])


def test_ctrl_c_ends_the_grace():
    source = "import atexit\nt.save.call(0).get()\nt.save.call(60)\natexit.register(print, 'ending', flush=True)"
    run = Run(PROGRAM + source, env={"MONARCH_EXIT_GRACE": "60"})
    run.line("ending")
    until = time.monotonic() + 10
    while not ended(run.process.pid, time.monotonic() + 0.2) and time.monotonic() < until:
        run.interrupt()  # one that comes before the grace is the script's own
    run.done(limit=10)
    assert "has ended before a call of t.save was answered" in run.err


def test_a_stream_is_one_call():
    lines, _ = said("t.fail.stream('lost')\nt.save.call(0).get()")
    assert lines == ["a call of t.fail failed, and nobody has looked at the future: ValueError: lost"]


def test_a_constructor_that_failed_is_told_if_nobody_has_looked():
    lines, _ = said("""
class Broken(Actor):
    def __init__(self):
        raise RuntimeError("no model")
    @endpoint
    def use(self): ...
this_host().spawn_procs().spawn("broken", Broken).use.call()
""", status=1)  # fmt: skip
    text = "a call of broken.use failed, and nobody has looked at the future: SupervisionError: "
    assert len(lines) == 1 and lines[0].startswith(text) and "RuntimeError: no model" in lines[0]


def test_a_broadcast_that_raised_is_told_also_right_before_the_end():
    lines, _ = said("t.slice(gpus=0).fail.broadcast('why')", status=1)
    text = "\n".join(lines)
    assert "Unhandled monarch error" in text and "ValueError: why" in text and "'t'" in text


@pytest.mark.parametrize("keep", ["", "kept = "])
def test_the_death_of_who_was_called_is_told_also_if_the_future_is_kept(keep):
    source = f"""
class Mortal(Actor):
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def work(self, port):
        port.send(None)
        time.sleep(60)
mortal = this_host().spawn_procs({{"gpus": 2}}).spawn("mortal", Mortal)
pid = mortal.pid.call().get().item(gpus=1)
busy, heard = Channel.open()
{keep}mortal.work.call(busy)
for _ in range(2):
    heard.recv().get()
os.kill(pid, signal.SIGKILL)
"""
    lines, _ = said(source, status=1, env={"MONARCH_EXIT_GRACE": "20"})
    text = "\n".join(lines)
    assert "Unhandled monarch error" in text and "Killed(sig=9)" in text


def test_a_failure_that_stops_the_program_while_its_end_waits_is_told_without_a_traceback():
    lines, _ = said("""
t.save.call(60)
mortal = this_host().spawn_procs().spawn("mortal", T)
mortal.fail.broadcast("why")
""", status=1, env={"MONARCH_EXIT_GRACE": "20"})  # fmt: skip
    text = "\n".join(lines)
    assert "ValueError: why" in text and "atexit" not in text and "SystemExit" not in text


@pytest.mark.parametrize("keep", ["", "kept = "])
def test_all_ranks_that_have_died_of_the_last_call_are_told(keep):
    lines, _ = said(f"""
class Mortal(Actor):
    @endpoint
    def die(self):
        os._exit(3)
mortal = this_host().spawn_procs({{"gpus": 2}}).spawn("mortal", Mortal)
mortal.initialized.get()
{keep}mortal.die.call()
""", status=1)  # fmt: skip
    assert lines[0] == "ranks 0, 1 of 'mortal' have failed: exited with code 3, while in mortal.die", lines


def test_what_a_later_call_has_proven_handled_is_not_lost_when_nobody_can_answer_any_more():
    """C code that holds the GIL in their process: it answers nothing. What one sends to another stays in order."""
    lines, _ = said("""
import ctypes
class Holder(Actor):
    @endpoint
    def hold(self, port):
        port.send(None)
        ctypes.PyDLL(None).sleep(60)
procs = this_host().spawn_procs()
first, second, later = [procs.spawn(name, T) for name in ("first", "second", "later")]
first.save.broadcast(0)
first.save.call(0).get()
second.save.broadcast(0)
second.save.broadcast(0)
second.save.call_one(0).get()
later.save.call(0).get()
later.save.broadcast(0)
holder = procs.spawn("holder", Holder)
port, held = Channel.open()
holder.hold.broadcast(port)
held.recv().get()
""", env=SHORT)  # fmt: skip
    lost = {line for line in lines if "handled" in line}
    assert "the script has ended before a broadcast to holder.hold was handled" in lost
    assert not any("first" in line or "second" in line for line in lost), lines
