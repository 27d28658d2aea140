"""W13h: a buffer of a process on another host, read over TCP, on loopback addresses of one machine. Ours only.

With TLS (W13ht), and without. Neither the owner's host nor the reader's is the script's, and what one machine offers
besides is switched off. The bytes that loopback has received say, once, that the buffer came that way.
"""

import os
import sys
import tempfile

import numpy

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ["MONARCH_RDMA_PATHS"] = "tcp"  # before anything that reads it; the daemons get it too

from harness import expect, parse_arguments, run_rows, throughput  # noqa: E402
from hosts import Daemons  # noqa: E402
from monarch.actor import Actor, current_rank, endpoint  # noqa: E402
from monarch.config import configure  # noqa: E402
from monarch.rdma import RDMABuffer  # noqa: E402

SIZES = {"W13h_64M": 64 << 20, "W13ht_64M": 64 << 20}


def received_by_loopback():
    with open("/proc/net/dev") as file:
        (line,) = [line for line in file if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[0])


class Worker(Actor):
    @endpoint
    def rank(self):
        return current_rank().rank

    @endpoint
    def buffer(self, size):
        self.array = (numpy.arange(size) % 251).astype("u1")
        return RDMABuffer(self.array)

    @endpoint
    def read_for(self, buffer, plain, size, seconds):
        way = buffer.explain()
        expect((way.startswith("tcp"), "without TLS" in way), (True, plain))
        array = numpy.zeros(size, "u1")
        before = received_by_loopback()
        buffer.read_into(array).get()
        expect(received_by_loopback() - before >= size, True)
        expect(bool((array == numpy.arange(size) % 251).all()), True)

        def read():
            array[0] = array[-1] = 255
            buffer.read_into(array).get()
            expect((int(array[0]), int(array[-1])), (0, (size - 1) % 251))

        return throughput(read, size, seconds)


def main():
    arguments = parse_arguments(list(SIZES))

    def read(row, size):
        plain = row.startswith("W13h_")
        configure(rdma_encrypt=not plain)
        daemons = Daemons(2)
        hosts = daemons.attach(2)
        workers = hosts.spawn_procs().spawn("worker", Worker).flatten("all")
        expect(list(workers.rank.call().get().values()), [0, 1])
        buffer = workers.slice(all=0).buffer.call_one(size).get()
        line = workers.slice(all=1).read_for.call_one(buffer, plain, size, arguments.seconds).get()
        hosts.stop().get()
        daemons.end()
        return line

    with tempfile.TemporaryDirectory() as folder:
        os.environ["MONARCH_TOKEN_FILE"] = os.path.join(folder, "token")
        run_rows(arguments, None, {row: lambda row=row, size=size: read(row, size) for row, size in SIZES.items()})


main()
