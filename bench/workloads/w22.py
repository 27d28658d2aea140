"""W22: coming back to what a job has, with everything warm. Whole programs are timed: users wait for those.

r  a second run of a script on the hosts of a ProcessJob, from its first import to the first answer of two new actors
x  `monarch exec true` on such hosts, from the start of its interpreter to its end
s  sync_workspace of a folder with 10,000 files that are all the same there
"""

import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from harness import (  # noqa: E402
    BENCH_DIR,
    NotOffered,
    latency_of_few,
    parse_arguments,
    run_rows,
)

FOLDERS, FILES_EACH = 100, 100


def run(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"{command}: failed")
    return done.stdout


def main():
    arguments = parse_arguments(["W22r", "W22x", "W22s"])
    is_ours = arguments.system == "ours"
    program = os.path.join(BENCH_DIR, "workloads", "w22_run.py")

    def second_run():
        return latency_of_few(lambda: float(run(program)), arguments.seconds)

    def command():
        if not is_ours:
            raise NotOffered("a command of this name")

        def once():
            start = time.perf_counter()
            run("-m", "monarch", "exec", "true")
            return (time.perf_counter() - start) * 1e3

        return latency_of_few(once, arguments.seconds)

    def unchanged():
        if not is_ours:
            raise NotOffered("a workspace without rsync")
        for folder in range(FOLDERS):
            os.makedirs(f"tree/{folder}")
            for file in range(FILES_EACH):
                with open(f"tree/{folder}/{file}.py", "w") as out:
                    out.write(f"x = {folder * file}\n" * 20)
        from monarch.job import ProcessJob
        from monarch.tools.config import Workspace

        os.environ["WORKSPACE_DIR"] = os.path.abspath("there")
        hosts = ProcessJob({"hosts": 1}).state(cached_path=None).hosts

        def once():
            start = time.perf_counter()
            hosts.sync_workspace(Workspace(dirs=["tree"])).get()
            return (time.perf_counter() - start) * 1e3

        return latency_of_few(once, arguments.seconds)

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            run_rows(arguments, None, {"W22r": second_run, "W22x": command, "W22s": unchanged})
        finally:
            run(program, "kill")


main()
