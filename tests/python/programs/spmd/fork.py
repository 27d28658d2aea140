"""Its child ends by itself, with a status of its own."""

import os
import sys

child = os.fork()
if child == 0:
    sys.exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert status == 7, status
