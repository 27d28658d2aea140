"""What workers print reaches the script's own streams, line by line."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
from monarch.actor import Actor, endpoint, this_host

class Talker(Actor):
    @endpoint
    def talk(self, times):
        for _ in range(times):
            print("a", "line", "of", "several", "pieces")

this_host().spawn_procs(per_host={"gpus": 3}).spawn("talkers", Talker).talk.call(300).get()
"""


@pytest.mark.feature(82)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("spawn", ["fork", "exec"])
def test_lines_of_several_workers_do_not_mix(unbuffered, spawn):
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "MONARCH_SPAWN": spawn}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["a line of several pieces"] * 900
