"""A job of MPI in which a rank dies: rank 0 has a call to rank 1 pending. Started by systems/mpi_ranks.py for W10.

It prints the pid of rank 1, then reads how it is to die.
"""

import os
import sys

from mpi4py import MPI

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from mortal import Mortal  # noqa: E402


def main():
    comm, path, size = MPI.COMM_WORLD, sys.argv[1], int(sys.argv[2])
    if comm.rank == 0:
        print(comm.recv(source=1), flush=True)
        comm.send(sys.stdin.readline().strip(), dest=1)
        comm.recv(source=1)
    else:
        mortal = Mortal(path)
        comm.send(mortal.grow(size), dest=0)
        mortal.die(comm.recv(source=0))


main()
