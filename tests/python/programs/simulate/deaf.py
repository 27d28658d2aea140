"""A script that waits in C code where no signal reaches it: deaf.py free|held, without the GIL or with it."""

import ctypes
import sys

from monarch.testing import simulate

library = (ctypes.PyDLL if sys.argv[1] == "held" else ctypes.CDLL)(None)
mutex = ctypes.create_string_buffer(64)
with simulate(seed=1, patience=0.2):
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)
