#!/usr/bin/env python3
"""Runs every test that runs over seeds, in chunks of seeds, over as many as are asked for.

    tools/soak_seeds.py [--seeds 1000000] [--first 1] [--chunk 5000] [--jobs 2] [--build build/release] [--only NAME]

A line for each test that has held. The first that does not ends all, with what it says, the line that replays the seed
among it, and status 1.
"""

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# By program. A test says that these are all that ask for seeds (tests/python/test_tools.py).
TESTS = {
    "net_test": [
        "ResumeWindow.NothingIsLostAndNothingComesTwiceHoweverOftenTheLinkBreaks",
        "SessionOverSeeds.NothingIsLostAndNothingComesTwiceThroughHundredsOfBreaks",
        "SessionOverSeeds.LargeFramesThatAreCutInTwoGoOnInside",
    ],
    "actor_test": [
        "Port.TheDeathOfItsNodeComesBackWithItsCauseThoughThatIsKnownLater",
        "Port.KeepsItsPromisesForEverySeed",
        "CastTree.EachHostGetsEachCastOnceAndInOrderForEverySeed",
        "CastTreeSessions.NobodyWaitsForEverOrGetsAnythingTwiceForEverySeed",
    ],
    "testing_test": [
        "AnswersOverSeeds.EachCallEndsAndIsRight",
        "Contract.HoldsForEverySeed",
        "Contract.HoldsForEverySeedWithLeasesThroughHundredsOfBreaks",
        "Relay.TwoWaysBetweenTwoNodesBreakNoOrderAndHangNoCallForEverySeed",
        "Deadlock.CyclesEndAndNothingElseDoesForEverySeed",
        "Supervision.HoldsForEverySeed",
        "Supervision.HoldsForEverySeedOnSeveralHosts",
        "Supervision.HoldsForEverySeedWhereLinksAreCut",
    ],
}
LIMIT_S = 3600  # of a chunk


class NotHeldError(Exception):
    """A chunk has not ended well."""


def run_chunk(program: Path, test: str, first: int, count: int) -> None:
    """Raises what it says, if it does not hold."""
    variables = {"MONARCH_SIM_FIRST": str(first), "MONARCH_SIM_SEEDS": str(count)}
    command = [str(program), "--gtest_brief=1", f"--gtest_filter={test}"]
    done = subprocess.run(
        command, env={**os.environ, **variables}, timeout=LIMIT_S, text=True, capture_output=True, check=False
    )
    if done.returncode != 0 or "[  PASSED  ] 1 test" not in done.stdout:
        raise NotHeldError(f"{test}, {count} seeds from {first} on: status {done.returncode}\n{done.stdout[-8000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--only", default="", help="tests with this in their names")
    args = parser.parse_args()
    for name, tests in TESTS.items():
        program = ROOT / args.build / "src" / "monarch" / name
        for test in (test for test in tests if args.only in test):
            began = time.monotonic()
            with ThreadPoolExecutor(args.jobs) as pool:
                last = args.first + args.seeds
                chunks = [
                    pool.submit(run_chunk, program, test, first, min(args.chunk, last - first))
                    for first in range(args.first, last, args.chunk)
                ]
                done, rest = wait(chunks, return_when=FIRST_EXCEPTION)
                for chunk in rest:
                    chunk.cancel()
            for chunk in done:
                if error := chunk.exception():
                    print(error, flush=True)
                    return 1
            print(f"{test}: {args.seeds} seeds in {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
