"""Limit of W10: death.cc, in an interpreter such as workers are forked from.

death.py LIBRARY SECONDS ROW=N:BYTES...
"""

import ctypes
import gc
import importlib
import sys

from monarch._programs import fork_server


def main():
    fork_server._preload(True)
    for name in fork_server._LATER:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    measure = ctypes.CDLL(sys.argv[1]).measure_deaths
    measure.argtypes = (ctypes.c_double, ctypes.c_char_p)
    for row in sys.argv[3:]:
        if measure(float(sys.argv[2]), row.encode()):
            sys.exit("usage: death.py LIBRARY SECONDS ROW=N:BYTES...")


main()
