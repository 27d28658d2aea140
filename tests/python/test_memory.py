"""What has ended leaves nothing but the word that it has: memory stays flat, however many came and went."""

import gc

from monarch.actor import Actor, Channel, endpoint, this_host


def private_bytes() -> int:
    """What this process has written to and holds for itself."""
    gc.collect()
    with open("/proc/self/smaps_rollup") as rollup:
        return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Private_Dirty"))


class Idle(Actor):
    @endpoint
    def noop(self) -> None:
        pass


class Meter(Actor):
    @endpoint
    def private_bytes(self) -> int:
        return private_bytes()


def least_growth(measure, work, batches: int = 4) -> int:
    """The smallest growth that a batch of work leaves, after one that warms up."""
    work()
    sizes = [measure()]
    for _ in range(batches):
        work()
        sizes.append(measure())
    return min(after - before for before, after in zip(sizes, sizes[1:]))


def test_an_ended_actor_leaves_its_epitaph_and_nothing_else():
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    meter = procs.spawn("meter", Meter)

    def work() -> None:
        for _ in range(500):
            idle = procs.spawn("idle", Idle)
            idle.noop.call_one().get()
            idle.stop().get()

    grown = least_growth(lambda: meter.private_bytes.call_one().get(), work)
    procs.stop().get()
    assert grown / 500 < 700, f"{grown / 500} bytes for each ended actor in its process"


def test_a_closed_port_leaves_the_word_that_it_is_closed():
    def work() -> None:
        for number in range(3000):
            port, receiver = Channel.open()
            port.send(number)
            assert receiver.recv().get() == number

    grown = least_growth(private_bytes, work)
    assert grown / 3000 < 150, f"{grown / 3000} bytes for each closed port"
