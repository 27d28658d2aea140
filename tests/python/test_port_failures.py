"""Ports whose receiver or owner is gone, floods (contract clause 5, invariant FLOW-1), and waits that are given up."""

import asyncio
import itertools
import resource
import threading

import pytest
from script_run import WAYS, Run, program

from monarch.actor import Actor, Channel, SupervisionError, endpoint, this_host

LIMIT = 30
ways = pytest.mark.parametrize("way", list(WAYS))


class Sender(Actor):
    """Tells what comes back, and says whether that is dealt with."""

    def __init__(self, forgiving=True):
        self.forgiving = forgiving
        self.told = []

    @endpoint
    def send(self, port, *values):
        for value in values:
            port.send(value)

    @endpoint
    def send_quietly(self, port, value):
        port.return_undeliverable = False
        port.send(value)
        return port

    @endpoint
    def texts(self):
        return self.told

    def _handle_undeliverable_message(self, message):
        self.told.append((message.error_msg(), message.sender(), message.dest()))
        return self.forgiving


class PlainSender(Actor):
    """Without the hook."""

    @endpoint
    def send(self, port, value):
        port.send(value)

    @endpoint
    def ping(self):
        return "alive"


class Owner(Actor):
    def __init__(self):
        self.port, self.receiver = Channel.open()

    @endpoint
    def give(self):
        return self.port

    @endpoint
    def close(self):
        self.receiver = None

    @endpoint
    def close_after(self, count):
        for _ in range(count):
            self.receiver.recv().get(timeout=LIMIT)
        self.receiver = None


def wait_until_told(sender):
    while not (texts := sender.texts.call_one().get(timeout=LIMIT)):
        pass
    return texts


@pytest.fixture()
def sender(procs):
    return procs.slice(gpus=1).spawn("sender", Sender)


@pytest.mark.feature(32, "the hook is asked")
def test_the_hook_of_who_sends_to_a_closed_port_is_asked(sender):
    port, receiver = Channel.open()
    del receiver
    sender.send.call_one(port, 1).get(timeout=LIMIT)
    ((text, who, dest),) = wait_until_told(sender)
    assert text == "the port is closed: its receiver is gone"
    assert "Sender sender" in who
    assert f"<Port {dest.strip('<').replace('>', '')}>" == repr(port)


@pytest.mark.feature(32)
def test_what_was_never_received_comes_back_too(procs, sender):
    owner = procs.slice(gpus=0).spawn("owner", Owner)
    port = owner.give.call_one().get(timeout=LIMIT)
    sender.send.call_one(port, 1, 2, 3).get(timeout=LIMIT)
    owner.close_after.call_one(1).get(timeout=LIMIT)
    while len(sender.texts.call_one().get(timeout=LIMIT)) < 2:
        pass
    assert len(sender.texts.call_one().get(timeout=LIMIT)) == 2


@pytest.mark.feature(32)
def test_a_port_stays_open_while_a_future_of_it_waits(sender):
    port, receiver = Channel.open()
    future = receiver.recv()
    del receiver
    sender.send.call_one(port, "in time").get(timeout=LIMIT)
    assert future.get(timeout=LIMIT) == "in time"
    sender.send.call_one(port, "too late").get(timeout=LIMIT)
    assert "closed" in wait_until_told(sender)[0][0]


@pytest.mark.feature(32, "without it the sender fails")
def test_a_sender_without_a_hook_fails(procs):
    port, receiver = Channel.open()
    del receiver
    plain = procs.slice(gpus=1).spawn("plain", PlainSender)
    plain.send.call_one(port, 1).get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match="undeliverable message: the port is closed"):
        while True:
            plain.ping.call_one().get(timeout=LIMIT)


@pytest.mark.feature(32)
def test_a_hook_that_says_no_fails_its_actor(procs):
    port, receiver = Channel.open()
    del receiver
    sender = procs.slice(gpus=1).spawn("unforgiving", Sender, False)
    sender.send.call_one(port, 1).get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match="undeliverable message: the port is closed"):
        while True:
            sender.texts.call_one().get(timeout=LIMIT)


@pytest.mark.feature(32, "return_undeliverable")
def test_without_return_undeliverable_nobody_is_told(sender):
    port, receiver = Channel.open()
    assert port.return_undeliverable is True
    del receiver
    back = sender.send_quietly.call_one(port, 1).get(timeout=LIMIT)
    assert (back.return_undeliverable, port.return_undeliverable) == (False, True)
    sender.send.call_one(back, 2).get(timeout=LIMIT)  # the setting travels with the copy
    sender.send.call_one(port, 3).get(timeout=LIMIT)
    assert len(wait_until_told(sender)) == 1
    port.return_undeliverable = False
    port.send(4)
    with pytest.raises(AttributeError):
        del port.return_undeliverable


@pytest.mark.feature(32)
def test_the_end_of_the_actor_that_opened_it_closes_a_port(procs, sender):
    owner = procs.slice(gpus=0).spawn("owner", Owner)
    port = owner.give.call_one().get(timeout=LIMIT)
    owner.stop().get(timeout=LIMIT)
    sender.send.call_one(port, 1).get(timeout=LIMIT)
    assert "the port is closed" in wait_until_told(sender)[0][0]


@pytest.mark.feature(32)
def test_the_death_of_the_process_that_opened_a_port_comes_back_with_its_cause(sender):
    short = this_host().spawn_procs(name="short")
    port = short.spawn("owner", Owner).give.call_one().get(timeout=LIMIT)
    short.spawn("exit", Exit).exit.broadcast()
    while not sender.texts.call_one().get(timeout=LIMIT):  # until it is dead
        sender.send.call_one(port, 1).get(timeout=LIMIT)
    assert "exited with non-zero code 3" in wait_until_told(sender)[0][0]


class Exit(Actor):
    @endpoint
    def exit(self):
        import os

        os._exit(3)


# ---- Floods ----

FLOOD = program("port_failures/flood.py")


@pytest.mark.feature(28)
@pytest.mark.parametrize("way", ["fork", "unix"])
def test_a_flood_into_a_port_that_nobody_reads_is_bounded(way):
    run = Run(FLOOD + """
flooding = flooder.flood.call_one(port, 1000)
print("flooding")
sys.stdin.readline()  # the sender has said that it waits
assert resident() < 400 << 20 and resident(pid) < 400 << 20, (resident(), resident(pid))
for _ in range(1000):
    assert len(receiver.recv().get(timeout=30)) == 1 << 20
print(flooding.get(timeout=30))
assert resident() < 400 << 20, resident()
""", way=way)  # fmt: skip
    run.line("flooding")
    assert "message to <Port" in run.err_line(limit=LIMIT)
    run.tell("go on\n")
    assert run.line("sent") == ""
    run.done()
    assert (run.status, run.err.count("\n")) == (0, 1), run.err


@pytest.mark.feature(28)
@ways
def test_who_waits_for_the_flood_into_its_own_port_does_not_block_it(way):
    run = Run(FLOOD + """
print(flooder.flood.call_one(port, 200).get(timeout=30))
seen = [len(receiver.recv().get(timeout=30)) for _ in range(200)]
async def main():
    return await flooder.flood.call_one(port, 200)
print(asyncio.run(main()), set(seen))
""", way=way).ok(limit=60)  # fmt: skip
    assert run.out == "sent\nsent {1048576}\n"


@pytest.mark.feature(28)
@ways
def test_an_actor_that_waits_for_the_flood_into_its_own_port_does_not_block_it(way):
    run = Run(FLOOD + """
class Asker(Actor):
    @endpoint
    def ask(self, flooder):
        port, receiver = Channel.open()
        sent = flooder.flood.call_one(port, 200).get(timeout=30)
        return sent, sum(len(receiver.recv().get(timeout=30)) for _ in range(200)) >> 20
class AsyncAsker(Actor):
    @endpoint
    async def ask(self, flooder):
        port, receiver = Channel.open()
        sent = await flooder.flood.call_one(port, 200)
        return sent, sum([len(await receiver.recv()) for _ in range(200)]) >> 20
for cls in Asker, AsyncAsker:
    print(procs.slice(gpus=1).spawn("asker", cls).ask.call_one(flooder).get())
""", way=way).ok(limit=60)  # fmt: skip
    assert run.out == "('sent', 200)\n" * 2


ENDS = {
    "the receiver": "del receiver",
    "the sender": "os.kill(pid, signal.SIGKILL)",
    "the owner's process": "owners.stop().get()",
}


@pytest.mark.feature(28)
@ways
@pytest.mark.parametrize("end", list(ENDS))
def test_whoever_is_held_by_a_port_goes_on_when_one_of_them_ends(end, way):
    run = Run(FLOOD + f"""
class Owner(Actor):
    def __init__(self):
        self.port, self.receiver = Channel.open()
    @endpoint
    def give(self):
        return self.port, os.getpid()
owners, owner_pid = this_host().spawn_procs(), "self"
if {end == "the owner's process"}:
    port, owner_pid = owners.spawn("owner", Owner).give.call_one().get()
flooding = flooder.flood.call_one(port, 500)
while max(resident(pid), resident(owner_pid)) < 60 << 20:  # it is held with 64 MiB
    pass
{ENDS[end]}
try:
    print(flooding.get(timeout=20))
except SupervisionError as error:
    print("dead", "Killed(sig=9)" in str(error))
os._exit(0)
""", way=way)  # fmt: skip
    if end == "the sender":
        assert run.line("dead") == "True"
    else:
        assert run.line("sent") == ""
    run.done()


@pytest.mark.feature(32)
def test_threads_that_wait_for_a_port_hear_of_the_end_of_the_client():
    run = Run(program("port_failures/threads_that_wait_for_a_port_hear_of_the_end_of_the_client.py"))
    run.ok()
    assert [line.split(":")[0] for line in run.out.splitlines()] == ["told"] * 2


# ---- Waits that are given up: nothing is lost, no order disturbed, no memory kept ----


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
    seen, held, timeouts = [], [], itertools.cycle(TIMEOUTS)
    for start in range(0, COUNT, BURST):
        with pytest.raises(TimeoutError):  # nothing is under way
            receiver.recv().get(timeout=next(timeouts))
        flooder.send.broadcast(port, BURST, start)
        while len(seen) < start + BURST:
            future = receiver.recv()
            if hold:
                held = [*held[-3:], future]
            try:
                seen.append(future.get(timeout=next(timeouts)))
            except TimeoutError:
                pass
    assert seen == list(range(COUNT))


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
GIVEN_UP = program("port_failures/given_up.py")


@pytest.mark.feature(28)
def test_back_pressure_holds_after_awaits_that_were_given_up():
    run = Run(GIVEN_UP)
    run.line("flooding")
    assert "message to <Port" in run.err_line(limit=LIMIT)
    run.tell("go on\n")
    assert run.line("bounded") == ""
    run.done()
