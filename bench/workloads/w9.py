"""W9: cold start, in fresh interpreters. (Driver of the interpreters; w9_first.py is what p starts.)

i  the import statement minus a bare interpreter of the same venv, in ms       p  import done to first answer
"""

import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import BENCH_DIR, SYSTEM_MODULES, NotOffered, median, parse_arguments, run_rows  # noqa: E402

IMPORTS = {
    "limit": "import pickle",
    "ours": "import monarch.actor",
    "torchmonarch": "import monarch.actor",
    "ray": "import ray",
    "mpi4py": "from mpi4py import MPI",
    "pyzmq": "import zmq",
}


def start_to_end_ms(code):
    """Wall time of a fresh interpreter that runs `code`, best made of a plain spawn and wait."""
    command = [sys.executable, "-c", code]
    start = time.perf_counter()
    pid = os.posix_spawn(sys.executable, command, os.environ)
    _, status = os.waitpid(pid, 0)
    elapsed_ms = (time.perf_counter() - start) * 1e3
    if status:
        raise RuntimeError(f"`{code}` ended with status {status}")
    return elapsed_ms


def main():
    arguments = parse_arguments(["W9i", "W9p"])
    assert arguments.system in SYSTEM_MODULES

    def import_cost():
        statement = IMPORTS[arguments.system]
        start_to_end_ms(statement)  # byte code and page cache warm
        bare, full = [], []
        end = time.perf_counter() + arguments.seconds
        while time.perf_counter() < end or len(full) < 9:
            bare.append(start_to_end_ms("pass"))
            full.append(start_to_end_ms(statement))
        base = median(bare)
        return {
            "unit": "ms",
            "value": median(full) - base,
            "bare_ms": base,
            "count": len(full),
            "samples": [one - base for one in full],
        }

    def first_answer():
        if arguments.system == "mpi4py":
            raise NotOffered("spawn of processes")
        program = os.path.join(BENCH_DIR, "workloads", "w9_first.py")
        done = subprocess.run([sys.executable, program, arguments.system], capture_output=True, text=True, timeout=120)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer")
        elapsed_ms = json.loads(lines[-1])["ms"]
        return {"unit": "ms", "value": elapsed_ms, "count": 1, "samples": [elapsed_ms]}

    run_rows(arguments, None, {"W9i": import_cost, "W9p": first_answer})


main()
