"""Says that it is there, and waits until somebody writes to the other pipe. Both are named by its arguments."""

import sys

with open(sys.argv[1], "w") as here:
    here.write("here")
with open(sys.argv[2]) as until_somebody_writes:
    until_somebody_writes.read()
