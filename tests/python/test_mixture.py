"""The whole API at once, by chance, where nothing fails: ``programs/storm/mixture.py``.

Some seconds; ``MONARCH_MIXTURE_SECONDS`` asks for another length of each, ``MONARCH_TEST_SEED`` for a seed.
"""

import os

import pytest
from script_run import PROGRAMS, WAYS, Run

SECONDS = float(os.environ.get("MONARCH_MIXTURE_SECONDS", 4))


@pytest.mark.parametrize("where", [*WAYS, "hosts"])
def test_every_result_is_right_and_nothing_waits_for_ever(where):
    seed = os.environ.get("MONARCH_TEST_SEED")
    args = ("--seconds", f"{SECONDS}", *(("--seed", seed) if seed else ()), *(("--hosts",) if where == "hosts" else ()))
    run = Run(PROGRAMS / "storm/mixture.py", args=args, way="fork" if where == "hosts" else where)
    run.done(limit=SECONDS + 120)
    assert run.status == 0 and run.out.startswith("steps: "), f"{run.out}\n{run.err}"
