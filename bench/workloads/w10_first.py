"""W10f: the first death that a fresh script sees: one killed process, until its caller holds the error."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from deaths import Killer  # noqa: E402
from harness import expect, load_system  # noqa: E402
from mortal import KILLED  # noqa: E402

system = load_system(sys.argv[1])
killer = Killer()
victims = system.victims(1, killer.path)
[pid] = victims.grow(0)
wait = victims.die(0, KILLED)
killer.kill([pid])
text = wait()
elapsed_ms = killer.stamp.ms_since()
expect([part for part in system.death_texts(pid, KILLED) if part not in text], [])
print(json.dumps({"ms": elapsed_ms}), flush=True)
victims.end()
killer.end()
