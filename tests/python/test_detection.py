"""How soon, and how exactly, the end of a process is seen; and what is none."""

import pytest
from script_run import WAYS, Run, program

ways = pytest.mark.parametrize("way", WAYS)

VICTIMS = program("detection/victims.py")


@ways
def test_the_death_of_a_large_process_is_told_before_all_of_it_is_gone(way):
    """The kernel needs a while to take half a gigabyte back. How it ends is known by then."""
    Run(VICTIMS + """
HOW = {"kill": "Killed(sig=9)", "segfault": "Segmentation fault(sig=11)", "code": "non-zero code 7", "zero": "code 0"}
for how, text in HOW.items():
    early = False
    for _ in range(5):  # this process may be slower than the kernel
        one = victim()
        pid = one.grow.call_one(512 << 20).get()
        pidfd = os.pidfd_open(pid)
        error = failure_of(lambda: one.end.call_one(how).get())
        early = not is_gone(pidfd)
        os.close(pidfd)
        assert text in str(error) and f"pid {pid}" in str(error), str(error)
        if early:
            break
    assert early, how
""", way=way).ok()  # fmt: skip


@ways
def test_a_stop_waits_for_the_end_of_what_is_dead_already(way):
    Run(VICTIMS + """
procs = this_host().spawn_procs()
one = procs.spawn("victim", Victim)
pidfd = os.pidfd_open(one.grow.call_one(256 << 20).get())
failure_of(lambda: one.end.call_one("kill").get())
procs.stop().get()
assert is_gone(pidfd)
""", way=way).ok()  # fmt: skip


@ways
def test_what_only_looks_like_an_end_is_none(way):
    """Children of a worker, threads that end, and a stop."""
    Run(VICTIMS + """
one = victim()
pid = one.look_dead.call_one().get()
os.kill(pid, signal.SIGSTOP)
answer = one.look_dead.call_one()
while open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] != "T":
    pass
os.kill(pid, signal.SIGCONT)
assert answer.get() == pid
""", way=way).ok()  # fmt: skip


@pytest.mark.parametrize("way", ["fork", "exec"])
def test_a_worker_that_becomes_another_program_has_closed_its_connection(way):
    """Its futex is given back then, though the process lives. It is told, and ended, as who closes its connection."""
    run = Run(VICTIMS + """
one = victim()
error = failure_of(lambda: one.become.call_one().get())
assert "it had closed its connection and did not end" in str(error), str(error)
""", way=way)  # fmt: skip
    run.ok()


# A filter of system calls that knows no futex_waitv, as a kernel before 5.16.
WITHOUT_WAITV = """
import struct
LOAD, EQUAL, RETURN, ALLOW, NO_SUCH_CALL = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000 | 38
steps = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, 449), (RETURN, 0, 0, NO_SUCH_CALL), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
if libc.prctl(22, 2, ctypes.byref(Program(len(steps), ctypes.addressof(code))), 0, 0) != 0:
    print("no filters here")
    sys.exit()
"""


@pytest.mark.parametrize("way", ["fork", "exec"])
def test_without_futex_waitv_deaths_are_told_as_exactly(way):
    run = Run(VICTIMS + WITHOUT_WAITV + """
for how, text in {"kill": "Killed(sig=9)", "segfault": "Segmentation fault(sig=11)", "code": "non-zero code 7"}.items():
    one = victim()
    pid = one.grow.call_one(0).get()
    error = failure_of(lambda: one.end.call_one(how).get())
    assert text in str(error) and f"pid {pid}" in str(error), str(error)
print("told")
""", way=way).ok()  # fmt: skip
    if "no filters here" in run.out:
        pytest.skip("system calls cannot be filtered here")
    assert "told" in run.out


def test_the_first_failure_of_a_script_imports_nothing():
    """Who waits for the dead would wait for that too. A script without processes does not pay for it."""
    Run(VICTIMS + """
import sys

def modules_of_failures():
    return [name for name in sys.modules if name in ("monarch._calls.outcomes", "monarch._calls.packing")]

assert modules_of_failures() == []
one = victim()
one.grow.call_one(0).get()
before = set(sys.modules)
failure_of(lambda: one.end.call_one("kill").get())
assert set(sys.modules) == before, set(sys.modules) - before
assert len(modules_of_failures()) == 2
""").ok()  # fmt: skip
