import contextlib  # noqa: F401 (what follows in the tests uses it)

import numpy

from monarch.actor import Actor, endpoint

PIECE = numpy.zeros(1 << 20, "u1")


class Taker(Actor):
    def __init__(self):
        self.count = 0

    @endpoint
    def take(self, piece):
        self.count += 1

    @endpoint
    def taken(self):
        return self.count
