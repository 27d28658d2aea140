"""Hosts over TCP that come and go for a while, and nothing grows: ``programs/storm/hosts_soak.py``.

Some seconds; ``MONARCH_SOAK_SECONDS`` asks for another length, ``MONARCH_TEST_SEED`` for a seed.
"""

import os

from script_run import PROGRAMS, Run

SECONDS = float(os.environ.get("MONARCH_SOAK_SECONDS", 10))


def test_hosts_come_and_go_and_nothing_is_lost_and_nothing_grows():
    seed = os.environ.get("MONARCH_TEST_SEED")
    args = ("--seconds", f"{SECONDS}", *(("--seed", seed) if seed else ()))
    run = Run(PROGRAMS / "storm/hosts_soak.py", args=args).done(limit=SECONDS + 240)
    print(run.out)
    assert run.status == 0 and "\ndaemons: " in run.out, f"{run.out}\n{run.err}"
