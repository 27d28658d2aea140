"""Ctrl-C for ever, which this script ignores, while it starts processes."""

import os
import signal
import subprocess
import sys

from monarch.actor import Actor, endpoint, this_host

INTERRUPT = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True:
    os.killpg(os.getpgrp(), signal.SIGINT)
"""


class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()


signal.signal(signal.SIGINT, lambda *_: None)
interrupter = subprocess.Popen([sys.executable, "-c", INTERRUPT])
try:
    for _ in range(5):
        procs = this_host().spawn_procs({"gpus": 4})
        assert len(procs.spawn("worker", Worker).pid.call().get(timeout=20)) == 4
        procs.stop().get()
finally:
    interrupter.kill()
    interrupter.wait()
