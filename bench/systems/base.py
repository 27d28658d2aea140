"""The operations of a system under test. An adapter overrides what its system has.

Methods that make a callable (`caller`, `raiser` ...) return the system's own shortest spelling of the operation, so
that the workload's loop adds one Python call for every system alike.
"""

import os

from harness import PLACEMENTS, NotOffered, pin_process

PAYLOAD = b"m" * 64
ERROR_TEXT = "boom 4711"
SEND_CHUNK = 100  # one-way messages between two looks at the clock


class Victims:
    """Processes that can die, by rank."""

    def grow(self, size):
        """All write to so much memory; -> their pids."""

    def die(self, rank, how):
        """Sends the call that is pending when it dies, how: see mortal.py; -> function that waits for its error and
        returns the text."""

    def recover(self, rank):
        """Makes it anew, where nobody does so by itself."""

    def ask(self, rank):
        """-> its pid, or None if it is not there."""

    def end(self):
        """Ends those that live."""


class BaseSystem:
    import_statement = None  # what W9i times

    def is_worker(self):
        """True in a process that was started as a worker by somebody else (a launcher of ranks)."""
        return False

    def serve(self):
        """The worker's life, where is_worker() is true."""

    def start(self, procs, kind="sync"):
        """Brings up `procs` processes with one actor each, whose endpoints are of `kind` sync or async."""
        self.missing("start")

    def stop(self):
        """Ends everything that start made."""

    def pids(self):
        """Process ids of the workers."""
        return ()

    def place_workers(self, cpus):
        """Pins every worker process, by the system's own public means."""
        self.missing("place_workers")

    def place(self, placement):
        controller, workers = PLACEMENTS[placement]
        if workers is not None:
            self.place_workers(workers)
        pin_process(controller)

    def unplace(self):
        pin_process(set(range(os.cpu_count())))

    def caller(self):
        """-> function: one call of add(1, 2) on the first actor, its result."""
        self.missing("caller")

    def async_caller(self):
        """-> function: awaitable of the same."""
        self.missing("async caller")

    def buffer_operation(self, where, size, writes):
        """-> function of a memoryview: one read into it, or write from it, of a buffer of the first actor, which lies
        in memory that is "mapped" by others or "ordinary"; the pid of its process, and its address there. Its bytes
        are the numbers from 0 to 250, again and again."""
        self.missing("buffers")

    def buffer_tail(self):
        """The last three bytes of the buffer that was made last, as a list, as they are at its owner."""
        self.missing("buffers")

    def cold_read(self, size, placement):
        """A read from cold, between two new processes that are up, know nothing of each other, and have imported all
        they need: a reader, and an owner with an array of `size` bytes, which it registers when the reader asks. -> ms
        until the reader has the handle, and ms of the read that follows."""
        self.missing("a fresh pair")

    def raiser(self):
        """-> function: calls an endpoint that raises ERROR_TEXT; returns the text of what the caller got."""
        self.missing("raiser")

    def window(self, count):
        """-> function: `count` outstanding calls take(i, PAYLOAD) -> i, then the list of all results."""
        self.missing("window")

    def gatherer(self, count):
        """-> async function: `count` calls take(i, PAYLOAD) gathered; the list of results."""
        self.missing("gather")

    def one_way(self):
        """-> (send, barrier): send() sends PAYLOAD one way; barrier() returns how many have arrived in all."""
        self.missing("one-way")

    def all_caller(self):
        """-> function(x): x + rank from every actor, as a list in rank order."""
        self.missing("call of a mesh")

    def swarm_caller(self, per_proc):
        """Makes `per_proc` actors in each running process; -> function(x): x + rank from every actor, in rank order."""
        self.missing("many actors of one mesh in a process")

    def fan_in(self):
        """-> (send, barrier). send(seconds): all actors but the first send PAYLOAD one way to the first for so long; a
        list of (how many, when the last was handled, on the monotonic clock). barrier(): how many have arrived in
        all."""
        self.missing("fan-in")

    def array_sender(self, everything):
        """-> function(array): a[0] + 256 * a[-1], or with `everything` the sum of the array's 64-bit words."""
        self.missing("array argument")

    def frozen_caller(self, size, first, last):
        """Makes an array of `size` bytes that nobody writes to; -> function: a[0] + 256 * a[-1] of all actors."""
        self.missing("an argument without a copy")

    def spawn_actors(self, count):
        """Makes `count` actors one by one in the running processes; the list of add(i, 1) from each."""
        self.missing("spawn of single actors into running processes")

    def store(self, size):
        """-> a store with a state dict of about `size` bytes, see store_client.Store."""
        self.missing("a store")

    def spawn_round(self, procs):
        """Makes `procs` new processes with one actor each; -> (rank + 1 from each, function that ends them)."""
        self.missing("spawn of processes")

    def start_printers(self, procs):
        """Brings up `procs` processes whose print() reaches this program's stdout, unfolded, with who said it."""
        self.missing("output of workers")

    def print_lines(self, count):
        """harness.print_lines in all of them at once; -> their seconds."""
        self.missing("output of workers")

    def print_times(self, count, gap_s):
        """harness.print_times in one of them."""
        self.missing("output of workers")

    def victims(self, count, path):
        """Makes `count` new processes with one actor each, a mortal.Mortal(path); -> Victims."""
        self.missing("what happens when a process dies")

    def nested_victim(self, path):
        """As victims(1), in a process that a worker has started."""
        self.missing("processes started by workers")

    def death_texts(self, pid, how):
        """What the error of a caller must say, at the least."""
        return ()

    def restartable(self, count, path, by_policy):
        """As victims(), of which who has died is made anew: by itself, or when recover() asks for it."""
        self.missing("recovery in place")

    def owned(self, count, path):
        """As restartable() by policy, spawned by an actor that supervises them."""
        self.missing("supervision")

    @staticmethod
    def missing(what):
        raise NotOffered(what)


def look(array, everything):
    """What the receiver does with an array; the same for every system."""
    if everything:
        return int(array.view("u8").sum())
    return int(array[0]) + 256 * int(array[-1])
