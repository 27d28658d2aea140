"""A process is frozen with its cgroup while a call waits for it."""

import os
import time
from pathlib import Path

from monarch.actor import Actor, endpoint, this_host


class Trainer(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def step(self) -> str:
        time.sleep(1)
        return "done"


def stderr_size() -> int:
    return os.fstat(2).st_size


def wait_for_a_line(start: float) -> None:
    """On stderr, which is a file."""
    before = stderr_size()
    while stderr_size() == before and time.monotonic() < start + 10:
        time.sleep(0.01)


procs = this_host().spawn_procs(per_host={"gpus": 3}, name="procs")
last = procs.spawn("trainer", Trainer).slice(gpus=2)
pid = last.pid.call_one().get()
group = Path(f"/sys/fs/cgroup/freezer/monarch-test-{os.getpid()}")
group.mkdir()
try:
    (group / "cgroup.procs").write_text(str(pid))
    call = last.step.call_one()
    time.sleep(0.5)
    (group / "freezer.state").write_text("FROZEN")
    start = time.monotonic()
    wait_for_a_line(start)
    print("told after", time.monotonic() - start)
    assert procs.stopped_ranks() == [2]
    (group / "freezer.state").write_text("THAWED")
    goes_on = time.monotonic()
    print("answered", call.get(timeout=10))
    wait_for_a_line(goes_on)
    procs.stop().get()
finally:
    (group / "freezer.state").write_text("THAWED")
    procs.stop().get()
    group.rmdir()
