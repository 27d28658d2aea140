"""Back-pressure: who sends one-way to a slow actor waits, memory stays bounded, and nobody waits for ever."""

import pytest
from script_run import WAYS, Run, program

ways = pytest.mark.parametrize("way", list(WAYS))
transports = pytest.mark.parametrize("way", ["fork", "unix"])  # each of these waits five seconds for a line

TAKER = program("flow/taker.py")
# A slow actor: `block` runs until its FIFO is closed by the writer. 64 pieces are what it lets wait.
SLOW = TAKER + """
class Slow(Taker):
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def block(self, path):
        with open(path) as gate:
            gate.read()
slow = this_host().spawn_procs().spawn("slow", Slow)
pid = slow.pid.call_one().get()
path = os.environ["TMPDIR"] + "/gate"
os.mkfifo(path)
sent, full = 0, threading.Event()
def flood(count, piece):
    global sent
    for _ in range(count):
        slow.take.broadcast(piece)
        sent += 1
        if sent == 64:
            full.set()
def blocked():
    blocking = slow.block.call_one(path)
    gate = open(path, "w")  # comes back when the actor has opened it too
    os.unlink(path)
    return blocking, gate
"""  # fmt: skip


def expect_bounded(piece: str, count: int, most: int, way: str) -> None:
    run = Run(SLOW + f"""
blocking, gate = blocked()
sender = threading.Thread(target=flood, args=({count}, {piece}))
sender.start()
sys.stdin.readline()  # the sender has said that it waits
assert sender.is_alive() and sent < {most}, sent
with open(f"/proc/{{pid}}/statm") as statm:
    resident = int(statm.read().split()[1]) * 4096
assert resident < 400 << 20, resident
gate.close()
sender.join()
assert slow.taken.call_one().get() == {count}
print("all taken")
""", way=way)  # fmt: skip
    assert "message to slow.take has waited for 5 s" in run.err_line(limit=60)
    run.tell("go on\n")
    assert run.line("all taken", limit=60) == ""
    run.done()
    assert (run.status, run.err.count("\n")) == (0, 1), run.err


@transports
def test_a_flood_of_large_messages_waits_for_a_slow_actor(way):
    expect_bounded("PIECE", 500, 300, way)


@transports
def test_a_flood_of_small_messages_waits_for_a_slow_actor(way):
    expect_bounded("1", 800_000, 700_000, way)


@transports
def test_a_flood_of_small_calls_waits_for_a_slow_actor(way):
    run = Run(SLOW + """
def resident(of="self"):
    with open(f"/proc/{of}/statm") as statm:
        return int(statm.read().split()[1]) * 4096
blocking, gate = blocked()
futures = []
def call():
    for _ in range(600_000):
        futures.append(slow.take.call_one(1))
sender = threading.Thread(target=call)
sender.start()
sys.stdin.readline()  # the sender has said that it waits
assert sender.is_alive() and 4096 < len(futures) < 400_000, len(futures)
assert resident() < 500 << 20 and resident(pid) < 200 << 20, (resident(), resident(pid))
gate.close()
sender.join()
assert [future.get() for future in futures] == [None] * 600_000
print("all taken")
""", way=way)  # fmt: skip
    assert "message to slow.take has waited for 5 s" in run.err_line(limit=60)
    run.tell("go on\n")
    assert run.line("all taken", limit=60) == ""
    run.done()
    assert (run.status, run.err.count("\n")) == (0, 1), run.err


@pytest.mark.parametrize("piece", ["bytes(200_000)", "numpy.zeros(1 << 20, 'u1')"])
def test_a_flood_waits_for_a_process_that_is_stopped(piece):
    """It takes nothing out of the ring, so what lies in the arena for it counts."""
    run = Run(SLOW + f"""
import numpy
os.unlink(path)
piece = {piece}
os.kill(pid, signal.SIGSTOP)
sender = threading.Thread(target=flood, args=(1000, piece))
sender.start()
sys.stdin.readline()  # the sender has said that it waits
lent = sent * len(piece)
assert sender.is_alive() and lent < 64 << 20, (sent, lent)
os.kill(pid, signal.SIGCONT)
sender.join()
assert slow.taken.call_one().get() == 1000
print("all taken")
""")  # fmt: skip
    assert "message to slow.take has waited for 5 s" in run.err_line(limit=60)
    run.tell("go on\n")
    assert run.line("all taken", limit=60) == ""
    run.done()
    assert run.status == 0


def test_code_on_an_event_loop_waits_for_room_and_leaves_the_loop_to_others():
    Run(SLOW + """
import asyncio
blocking, gate = blocked()
async def flood():
    global sent
    for _ in range(200):
        await slow.take.ready()
        slow.take.broadcast(PIECE)
        sent += 1
async def main():
    flooding = asyncio.create_task(flood())
    while sent < 64:
        await asyncio.sleep(0)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert sent < 100, sent
    gate.close()
    await flooding
    assert await slow.taken.call_one() == 200
asyncio.run(main())
""").ok()  # fmt: skip


def test_after_ready_one_message_is_sent_though_there_is_no_room_by_then():
    Run(SLOW + """
import asyncio
blocking, gate = blocked()
ready = slow.take
asyncio.run(ready.ready())
sender = threading.Thread(target=lambda: [slow.take.options().broadcast(PIECE) for _ in range(200)])
sender.start()
async def room():
    try:
        await asyncio.wait_for(slow.take.options().ready(), 0.5)
        return True
    except asyncio.TimeoutError:
        return False
while asyncio.run(room()):
    pass
ready.broadcast(PIECE)  # would wait for the gate
gate.close()
sender.join()
while slow.taken.call_one().get() < 201:
    pass
""").ok()  # fmt: skip


@ways
def test_two_async_actors_that_wait_for_room_at_each_other_both_come_through(way):
    Run(TWO + """
class Flooder(Actor):
    def __init__(self):
        self.count = 0
    @endpoint
    async def take(self, piece):
        self.count += 1
    @endpoint
    async def flood(self, other, count):
        for _ in range(count):
            await other.take.ready()
            other.take.broadcast(PIECE)
    @endpoint
    async def taken(self):
        return self.count
a, b = (procs.slice(gpus=i).spawn("flooder", Flooder) for i in range(2))
for flood in [a.flood.call_one(b, 400), b.flood.call_one(a, 400)]:
    flood.get()
while not a.taken.call_one().get() == b.taken.call_one().get() == 400:
    pass
""", way=way).ok(limit=60)  # fmt: skip


def test_whoever_waits_for_room_can_be_interrupted():
    run = Run(SLOW + """
blocking, gate = blocked()
def say():
    full.wait()
    print("flooding")
threading.Thread(target=say).start()
flood(2000, PIECE)
""")  # fmt: skip
    run.line("flooding")
    run.interrupt()
    run.done(limit=3)
    assert run.err.rstrip().endswith("KeyboardInterrupt")


@ways
@pytest.mark.parametrize(
    "end", ["os.kill(pid, signal.SIGKILL)", "stopping = slow.stop(); gate.close(); stopping.get()"]
)
def test_the_end_of_a_slow_actor_frees_who_waits_for_room(end, way):
    run = Run(SLOW + f"""
blocking, gate = blocked()
def flood_all():
    with contextlib.suppress(SupervisionError):
        flood(2000, PIECE)
sender = threading.Thread(target=flood_all)
sender.start()
full.wait()
{end}
sender.join(10)
print("free", not sender.is_alive())
os._exit(0)
""", way=way)  # fmt: skip
    assert run.line("free") == "True"
    run.done()


TWO = TAKER + """
class Peer(Taker):
    @endpoint
    def flood(self, other, count):
        for _ in range(count):
            other.take.broadcast(PIECE)
    @endpoint
    def ask(self, other):
        return other.taken.call_one().get()
class AsyncPeer(Actor):
    @endpoint
    async def take(self, piece):
        pass
    @endpoint
    async def ask(self, other):
        return await other.taken.call_one()
procs = this_host().spawn_procs(per_host={"gpus": 2})
a, b = (procs.slice(gpus=i).spawn("peer", Peer) for i in range(2))
"""  # fmt: skip


@ways
def test_two_actors_that_flood_each_other_both_come_through(way):
    run = Run(TWO + """
floods = [a.flood.call_one(b, 400), b.flood.call_one(a, 400)]
[flood.get() for flood in floods]
while not a.taken.call_one().get() == b.taken.call_one().get() == 400:
    pass  # the flooders have sent all; it arrives when it does
""", way=way).ok(limit=60)  # fmt: skip
    assert run.out == ""


@ways
@pytest.mark.parametrize("kind", ["Peer", "AsyncPeer"])
def test_an_actor_that_waits_for_its_flooder_holds_it_back_no_more(way, kind):
    run = Run(TWO + f"""
c = procs.slice(gpus=1).spawn("asking", {kind})
flood = a.flood.call_one(c, 400)
asked = c.ask.call_one(a)  # answered only when the flood is over
flood.get()
print(asked.get())
""", way=way).ok(limit=60)  # fmt: skip
    assert run.out == "0\n"


@pytest.mark.parametrize("wait", ["ask(stuck)", "stuck.block.call_one().as_asyncio()"])
def test_an_actor_that_has_given_up_an_await_holds_its_flooder_back_again(wait):
    run = Run(SLOW + f"""
class Stuck(Actor):
    @endpoint
    def block(self):
        threading.Event().wait()
async def ask(stuck):
    return await stuck.block.call_one()
class Impatient(Slow):
    @endpoint
    async def give_up(self, stuck):
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for({wait}, 0.01)
procs = this_host().spawn_procs(per_host={{"gpus": 2}})
stuck, slow = procs.slice(gpus=0).spawn("stuck", Stuck), procs.slice(gpus=1).spawn("slow", Impatient)
slow.give_up.call_one(stuck).get()
blocking, gate = blocked()
threading.Thread(target=flood, args=(300, PIECE), daemon=True).start()
sys.stdin.readline()  # the sender has said that it waits
print("held back", sent < 300)
os._exit(0)
""")  # fmt: skip
    assert "message to slow.take has waited for 5 s" in run.err_line(limit=20)
    run.tell("go on\n")
    assert run.line("held back") == "True"
    run.done()
