"""The benchmarks of failure run, and check what they measure. How fast is bench/run.py's to say."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


def measure(script: str, rows: list[str], seconds: float = 0) -> dict[str, dict]:
    """The lines that a workload program has printed, by row."""
    command = [BENCH / "workloads" / script, "--rows", ",".join(rows), "--seconds", seconds, "--placement", "free"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCH), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["row"]: line for line in found}


def run(script: str, *arguments: str) -> list[str]:
    """A program of lines that has the benchmark's modules; -> what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=BENCH, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(("name", "seconds", "too_large"), [("W10", 0, "_1G"), ("W17", 0.05, None), ("W19", 0, "_32")])
def test_every_row_is_measured_and_right(name, seconds, too_large):
    script = """
import sys
from rows import PROGRAMS
print(*[row.name for program in PROGRAMS if program.name == sys.argv[1] for row in program.rows])
"""
    rows = [row for row in run(script, name)[0].split() if not (too_large and row.endswith(too_large))]
    lines = measure(f"{name.lower()}.py", rows, seconds)
    assert {row: line["error"] for row, line in lines.items() if "error" in line} == {}
    assert list(lines) == rows
    for line in lines.values():
        assert line["value"] >= 0 and line["count"] == len(line["samples"])
        assert line.get("gb_per_s", 1) > 0 and line.get("lines_per_s", 1) > 0


def test_calls_and_payloads_of_hosts_over_a_network_are_measured():
    rows = ["W20s", "W20x", "W20c_4", "W20t_1M", "W20p_1M_4"]
    lines = measure("w20.py", rows)
    assert {row: line["error"] for row, line in lines.items() if "error" in line} == {}
    assert list(lines) == rows and all(line["value"] > 0 for line in lines.values())


def test_peers_are_asked_for_their_rows_only():
    script = """
import run
from rows import Program, Row
asked = []
run.measure_once = lambda program, names, system, *_: asked.append((system, *names)) or 0
program = Program("W", rows=(Row("a", "", "ms"), Row("b", "", "ms", peers=False)))
run.measure_program(program, program.rows, ["ours", "ray"], 1, None, None)
run.measure_program(program, program.rows[1:], ["ours", "ray"], 1, None, None)
print(*asked, sep="\\n")
"""
    assert [eval(line) for line in run(script)] == [
        ("limit", "a", "b"),
        ("ours", "a", "b"),
        ("ray", "a"),
        ("limit", "a", "b"),
        ("limit", "b"),
        ("ours", "b"),
        ("limit", "b"),
    ]


def test_a_gate_is_met_by_right_answers_alone_and_beside_whom_it_names():
    script = """
from run import Record, judge
from rows import Row
def verdict(row, wrong=None, **readings):
    record = Record()
    for system, values in readings.items():
        for value in values:
            record.add("W", system.replace("_", ":"), {"value": value})
    if wrong:
        record.miss("W", "ours", wrong)
    return judge(row, record)[0]
print(verdict(Row("W", "", "ms", gate=2), ours=[1, 1]))
print(verdict(Row("W", "", "ms", gate=2), "WRONG ANSWER", ours=[1, 1]))
print(verdict(Row("W", "", "ms", ahead_of={"ray": 1}), ours=[1]))
print(verdict(Row("W", "", "ms", ahead_of={"ray": 1}), ours=[1], ray=[2]))
print(verdict(Row("W", "", "ms", ahead_of={"ray": 1}), ours=[1], ray=[0.5]))
print(verdict(Row("W", "", "ms", ahead_of={"limit": 0.6}), ours=[2], limit=[1], limit_socket=[3]))
print(verdict(Row("W", "", "ms"), ours=[1]))
"""
    assert run(script) == ["met", "missed", "not run", "met", "missed", "missed", "None"]


def test_runs_are_judged_together_by_one_gate(tmp_path):
    script = """
import json, sys
import run
from rows import Program, Row
row = Row("W", "", "ms", gate=2, ahead_of={"ray": 0.6})
run.PROGRAMS = (Program("W", rows=(row,)),)
entry = {"row": "W", "gate": 2, "ahead_of": {"ray": 0.6}, "verdict": "met"}
old = {"row": "W", "gate": 2, "verdict": "met"}
paths = []
for number, found in enumerate([entry, entry, old]):
    paths.append(f"{sys.argv[1]}/{number}.json")
    with open(paths[-1], "w") as file:
        json.dump({"rounds": 7, "placement": "two", "table": [found]}, file)
print(run.judge_runs(paths[:2]))
print(run.judge_runs(paths))
"""
    lines = run(script, str(tmp_path))
    assert [line.split()[-1] for line in lines] == ["holds", "True", "it", "False"], lines


def test_a_program_that_has_failed_is_not_waited_for_because_of_what_it_has_left_behind():
    script = """
import run
run.become_subreaper()
run.TIME_LIMIT_S = 0.5
print(run.run_program(["sh", "-c", "sleep 1000 & echo why >&2; exit 3"]))
"""
    assert run(script) == ["([], 'exit status 3: why')"]


def test_who_dies_dies_as_told_and_the_moment_is_known():
    script = """
import os, time
from deaths import Killer
from mortal import CRASHED, KILLED, LEFT, Mortal
killer = Killer()
for how in (KILLED, CRASHED, LEFT):
    if (pid := os.fork()) == 0:
        Mortal(killer.path).die(how)
    before = time.monotonic()
    if how == KILLED:
        killer.kill([pid])
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(status, 0 < killer.stamp.ms_since() < (time.monotonic() - before) * 1e3)
killer.end()
"""
    assert run(script) == [f"{-signal.SIGKILL} True", f"{-signal.SIGSEGV} True", "7 True"]
