"""What is given up while a port is waited for loses nothing, disturbs no order and costs no memory."""

import asyncio
import itertools
import resource
import threading

import pytest
from script_run import Run

from monarch.actor import Actor, Channel, endpoint

LIMIT = 30


class Flooder(Actor):
    @endpoint
    def send(self, port, count, start=0):
        for i in range(start, start + count):
            port.send(i)


@pytest.fixture(scope="module")
def flooder(procs):
    mesh = procs.slice(gpus=1).spawn("flooder", Flooder)
    mesh.send.call_one(None, 0).get(timeout=LIMIT)
    yield mesh
    mesh.stop().get(timeout=LIMIT)


@pytest.mark.feature(28)
def test_a_time_out_loses_nothing_and_the_future_stays_good(flooder):
    port, receiver = Channel.open()
    future = receiver.recv()
    for timeout in (0, 0.001, 0.01):
        with pytest.raises(TimeoutError) as raised:
            future.get(timeout=timeout)
        assert str(raised.value) == ""
    assert isinstance(future.exception(timeout=0), TimeoutError)
    port.send("came")
    assert future.get(timeout=LIMIT) == "came"


@pytest.mark.feature(28)
def test_messages_that_come_after_a_time_out_keep_their_order(flooder):
    """A future that nobody waits for any more, but that is still held, takes none of them."""
    port, receiver = Channel.open()
    kept = []
    for _ in range(3):
        future = receiver.recv()
        kept.append(future)
        with pytest.raises(TimeoutError):
            future.get(timeout=0.001)
    flooder.send.call_one(port, 3).get(timeout=LIMIT)
    assert [receiver.recv().get(timeout=LIMIT) for _ in range(3)] == [0, 1, 2]
    flooder.send.call_one(port, 3).get(timeout=LIMIT)
    assert [future.get(timeout=LIMIT) for future in kept] == [0, 1, 2]


@pytest.mark.feature(28)
def test_a_dropped_future_gives_its_message_to_the_next(flooder):
    port, receiver = Channel.open()
    dropped, waiting = receiver.recv(), receiver.recv()
    port.send(1)
    del dropped
    assert waiting.get(timeout=LIMIT) == 1
    dropped = receiver.recv()
    port.send(2)
    port.send(3)
    del dropped
    assert [receiver.recv().get(timeout=LIMIT) for _ in range(2)] == [2, 3]


TIMEOUTS = (0, 1e-6, 1e-5, 1e-4)
BURST, COUNT = 300, 30_000


@pytest.mark.feature(28)
@pytest.mark.parametrize("hold", [False, True], ids=["dropped", "held"])
def test_tiny_time_outs_while_a_sender_floods(flooder, hold):
    port, receiver = Channel.open()
    seen, expired, held, timeouts = [], 0, [], itertools.cycle(TIMEOUTS)
    for start in range(0, COUNT, BURST):
        flooder.send.broadcast(port, BURST, start)
        while len(seen) < start + BURST:
            future = receiver.recv()
            if hold:
                held = [*held[-3:], future]
            try:
                seen.append(future.get(timeout=next(timeouts)))
            except TimeoutError:
                expired += 1
    assert seen == list(range(COUNT))
    assert expired > 0


@pytest.mark.feature(28)
def test_tiny_time_outs_on_an_event_loop(flooder):
    """asyncio.wait_for cancels: before a message comes, and while it does."""

    async def main():
        port, receiver = Channel.open()
        seen, expired, timeouts = [], 0, itertools.cycle((0, 1e-5, 5e-5, 2e-4))
        for start in range(0, COUNT // 3, BURST):
            flooder.send.broadcast(port, BURST, start)
            while len(seen) < start + BURST:
                try:
                    seen.append(await asyncio.wait_for(receiver.recv(), next(timeouts)))
                except asyncio.TimeoutError:
                    expired += 1
        assert seen == list(range(len(seen)))
        assert expired > 0

    asyncio.run(asyncio.wait_for(main(), 2 * LIMIT))


@pytest.mark.feature(28)
def test_an_await_that_is_cancelled_takes_nothing(flooder):
    async def main():
        port, receiver = Channel.open()
        cancelled = []
        for kind in ("task", "copy"):
            future = receiver.recv()
            waiting = asyncio.ensure_future(_look(future)) if kind == "task" else future.as_asyncio()
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.sleep(0)  # what was cancelled ends with the next turn of its loop
            cancelled.append((future, waiting))
        await flooder.send.call_one(port, 3)
        assert [await receiver.recv() for _ in range(3)] == [0, 1, 2]
        port.send("later")
        assert await cancelled[1][0] == "later"

    async def _look(future):
        return await future

    asyncio.run(asyncio.wait_for(main(), LIMIT))


@pytest.mark.feature(28)
def test_one_of_two_who_wait_for_a_future_may_give_up(flooder):
    port, receiver = Channel.open()
    future = receiver.recv()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(future.get(timeout=LIMIT)))
    thread.start()
    with pytest.raises(TimeoutError):
        future.get(timeout=0.05)
    later = receiver.recv()
    flooder.send.call_one(port, 2).get(timeout=LIMIT)
    thread.join(LIMIT)
    assert (seen, future.get(timeout=LIMIT), later.get(timeout=LIMIT)) == ([0], 0, 1)


@pytest.mark.feature(28)
def test_a_message_that_one_has_been_told_of_is_his_though_another_gives_up():
    async def run():
        port, receiver = Channel.open()
        future = receiver.recv()
        copy = future.as_asyncio()
        port.send("came")
        while not future._ready():  # as `await` asks, before it looks
            pass
        copy.cancel()
        await asyncio.sleep(0)  # what its end calls has run
        assert future._outcome() == "came"

    asyncio.run(run())


@pytest.mark.feature(28)
def test_several_threads_take_from_one_port_each_message_once(flooder):
    count, port_and_receiver = 20_000, Channel.open()
    port, receiver = port_and_receiver
    taken = [[] for _ in range(4)]

    def take(into):
        for timeout in itertools.cycle(TIMEOUTS):
            try:
                value = receiver.recv().get(timeout=timeout)
            except TimeoutError:
                continue
            if value is None:
                return
            into.append(value)

    threads = [threading.Thread(target=take, args=(into,)) for into in taken]
    for thread in threads:
        thread.start()
    flooder.send.call_one(port, count).get(timeout=LIMIT)
    for _ in threads:
        port.send(None)
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(itertools.chain(*taken)) == list(range(count))


@pytest.mark.feature(28)
def test_looking_again_and_again_costs_no_memory():
    port, receiver = Channel.open()

    def look(times):
        for _ in range(times):
            with pytest.raises(TimeoutError):
                receiver.recv().get(timeout=0)

    look(1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    look(50_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096  # KiB; one place in the line is 0.2
    port.send(1)
    assert receiver.recv().get(timeout=LIMIT) == 1


# After an await that was given up a sender is still held back, and an idle process still burns no CPU.
GIVEN_UP = """
import numpy
class Flooder(Actor):
    @endpoint
    def flood(self, port, count):
        for i in range(count):
            port.send(PIECE)
class Owner(Actor):
    @endpoint
    async def give_up(self):
        self.port, self.receiver = Channel.open()
        for _ in range(10):
            try:
                await asyncio.wait_for(self.receiver.recv(), 0.001)
            except asyncio.TimeoutError:
                pass
        return self.port
    @endpoint
    def resident(self):
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096
PIECE = numpy.zeros(1 << 20, "u1")
procs = this_host().spawn_procs(per_host={"gpus": 2})
owner, flooder = procs.slice(gpus=0).spawn("owner", Owner), procs.slice(gpus=1).spawn("flooder", Flooder)
port = owner.give_up.call_one().get()
flood = flooder.flood.call_one(port, 1000)
print("flooding")
sys.stdin.readline()  # the sender has said that it waits
resident = owner.resident.call_one().get()
assert resident < 400 << 20, resident
print("bounded")
os._exit(0)
"""  # fmt: skip


@pytest.mark.feature(28)
def test_back_pressure_holds_after_awaits_that_were_given_up():
    run = Run(GIVEN_UP)
    run.line("flooding")
    assert "message to <Port" in run.err_line(limit=LIMIT)
    run.tell("go on\n")
    assert run.line("bounded") == ""
    run.done()
