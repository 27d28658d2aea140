"""A storm of kills, crashes and shortages, over each way to start and to reach processes: ``programs/storm``.

A minute in all; ``MONARCH_STORM_SECONDS`` asks for another length of the three together, ``MONARCH_TEST_SEED`` for a
seed. ``programs/storm/kill_storm.py --seconds 60 --seed 7`` is one of them alone.
"""

import os

import pytest
from script_run import PROGRAMS, WAYS, Run

SECONDS = float(os.environ.get("MONARCH_STORM_SECONDS", 60)) / len(WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_calls_end_rightly_and_nothing_leaks_while_processes_come_to_harm(way):
    seed = os.environ.get("MONARCH_TEST_SEED")
    args = ("--seconds", f"{SECONDS}", *(("--seed", seed) if seed else ()))
    run = Run(PROGRAMS / "storm/kill_storm.py", args=args, way=way).done(limit=SECONDS + 240)
    print(run.out)
    assert run.status == 0 and "\nleft: " in run.out, f"{run.out}\n{run.err}"
