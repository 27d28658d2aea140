"""A program for torchrun. It says what it has been given, of variables their values.

With "fail", "exit" or "die" rank 1 does so.
"""

import os
import sys
import threading

given = [os.environ.get(argument, argument) for argument in sys.argv[1:]]
print("ran", os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], *given, flush=True)
assert __name__ == "__main__" and os.environ["MASTER_ADDR"] and int(os.environ["MASTER_PORT"])
if sys.argv[1:2] in (["fail"], ["exit"], ["die"]):
    if os.environ["RANK"] != "1":
        threading.Event().wait()  # as in a collective: for a rank that will not come
    if sys.argv[1] == "fail":
        raise ValueError("a bad batch")
    if sys.argv[1] == "exit":
        sys.exit(3)
    os._exit(4)
