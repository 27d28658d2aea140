"""A life with something of everything, in half a second. ``life.py SECONDS``: os._exit(7) after so long."""

import os
import pickle
import subprocess
import sys
import threading
import time

print("begins", flush=True)
if len(sys.argv) > 1:
    end = threading.Timer(float(sys.argv[1]), os._exit, [7])
    end.daemon = True
    end.start()

from monarch.actor import Actor, Channel, Port, current_rank, endpoint, this_host  # noqa: E402

FORKED = (
    os.environ.get("MONARCH_SPAWN") != "exec"
)  # what others leave behind in sessions of their own outlives a script


def say(word: str) -> None:
    print(word, flush=True)


class Leaf(Actor):
    @endpoint
    def echo(self, value: object) -> object:
        return value

    @endpoint
    def note(self, port: Port[int]) -> None:
        print(f"noted by {current_rank().rank}")
        port.send(current_rank().rank)

    @endpoint
    async def count(self, port: Port[int]) -> int:
        for number in range(20):
            port.send(number)
        return 20

    @endpoint
    def start_programs(self) -> None:
        """That outlive whoever does not end them: a child, a grandchild, one in a session of its own."""
        subprocess.Popen(["sleep", "1000"])
        subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000"])
        if FORKED:
            subprocess.Popen(["sleep", "1000"], start_new_session=True)
        if os.fork() == 0:
            time.sleep(1000)


class Boss(Actor):
    """Owns processes of its own."""

    @endpoint
    def hire(self) -> Leaf:
        say("hires")
        self.procs = this_host().spawn_procs({"gpus": 2}, name="hired")
        self.leaves = self.procs.spawn("hired", Leaf)
        self.leaves.slice(gpus=0).start_programs.call_one().get()
        return self.leaves


def live() -> None:
    say("spawns")
    procs = this_host().spawn_procs({"gpus": 2})
    leaves = procs.spawn("leaves", Leaf)
    boss = procs.slice(gpus=0).spawn("boss", Boss)
    say("spawned")
    leaves.start_programs.broadcast()
    hired = boss.hire.call_one()
    swarm = procs.options(per_proc={"actors": 10}).spawn("swarm", Leaf)
    assert swarm.echo.call(1).get() is not None
    block = bytes(1 << 20)
    assert all(answer == block for answer in leaves.echo.call(block).get().values())
    port, received = Channel[int].open()
    leaves.note.broadcast(port)
    assert sorted(received.recv().get() for _ in range(2)) == [0, 1]
    leaves.count.broadcast(port)
    assert sum(received.recv().get() for _ in range(40)) == 2 * sum(range(20))
    assert [answer.get() for answer in leaves.echo.stream("x")] == ["x", "x"]
    pickle.dumps(leaves)  # publishes the job's token, in a file
    say("published")
    assert hired.get().echo.call(2).get() is not None
    hired.get().echo.call(block)  # nobody waits for it
    second = this_host().spawn_procs({"gpus": 2}, name="second")
    second.spawn("short", Leaf).echo.call(3).get()
    second.stop().get()
    this_host().spawn_procs({"gpus": 4}, name="late")  # still starting when the script ends


live()
say("leaves")
