"""W18 of the benchmarks, a share of it: ``programs/storm/workload_soak.py``.

``MONARCH_SOAK_SHARE`` asks for another one.
"""

import os
import pathlib

from script_run import PROGRAMS, Run

SHARE = float(os.environ.get("MONARCH_SOAK_SHARE", 0.002))
LIBRARY = pathlib.Path(__file__).parents[2] / "build" / "release" / "examples" / "libcounters.so"


def test_a_share_of_an_hours_work_leaves_nothing_and_loses_nothing():
    args = ("--share", f"{SHARE}", str(LIBRARY))
    run = Run(PROGRAMS / "storm/workload_soak.py", args=args).done(limit=60 + 3600 * SHARE)
    print(run.out)
    assert run.status == 0 and "\na call: " in run.out, f"{run.out}\n{run.err}"
