"""The benchmark driver: limit programs, ours and the peers, interleaved on one machine.

    python3 bench/run.py --quick                      every quick row, limit and ours only, under 3 minutes
    python3 bench/run.py --gates                      every row, with the peers, 30 to 40 minutes
    python3 bench/run.py --rows W1s,W2w --systems ours,ray --rounds 3
    python3 bench/run.py --judge A.json B.json C.json a gate holds when it is met in 2 of 3 runs

One round of a program is: limit, ours, peer ... peer, limit, each in a process tree of its own, the middle rotated from
round to round. What cannot run is "not run" with its reason; it never counts as a pass. See bench/README.md.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import statistics
import subprocess
import sys
import time

import machine
import setup
from harness import MPIRUN, PLACEMENTS, process_tree
from rows import PROGRAMS
from stats import median_interval, ratio_interval

BENCH_DIR = setup.BENCH_DIR
ROOT = os.path.dirname(BENCH_DIR)
RESULTS_DIR = os.path.join(BENCH_DIR, "results")
OURS_PYTHON = os.path.join(ROOT, ".venv", "bin", "python")
OURS_W14 = os.path.join(ROOT, "build", "release", "bench", "w14_ours")
LIMIT = "limit"
KNOWN_SYSTEMS = ("ours", "torchmonarch", "ray", "mpi4py", "pyzmq", "ucx", "caf")
# The same peer with a documented setting changed; only on request (--systems).
VARIANTS = {"mpi4py-yield": ("mpi4py", ["--mca", "mpi_yield_when_idle", "1"])}
# How many are killed, and what each has written to: a forked worker as it is 4 MB.
VICTIMS = {"W10k_30M": f"1:{4 << 20}", "W10k_1G": f"1:{1 << 30}", "W10_32": f"32:{4 << 20}"}
ARRAY_SIZES = {"64K": 1 << 16, "1M": 1 << 20, "64M": 1 << 26}
# What is counted 8 times, once for each process, goes to each host once.
WIRE_BYTES = {f"W20p_{name}_{hosts}": f"{ARRAY_SIZES[name]}*{8 // hosts}" for name in ("1M", "64M") for hosts in (1, 4)}
WIRE_BYTES |= {f"W20t_{name}": f"{ARRAY_SIZES[name]}*1" for name in ("1M", "64M")}
WIRE_BYTES |= {"W20s": "1", "W13h_64M": str(ARRAY_SIZES["64M"]), "W13ht_64M": f"{ARRAY_SIZES['64M']}*1"}
# Cores of the two sides of a native program, where workloads have PLACEMENTS; -1: left to the kernel.
NATIVE_CPUS = {"two": ("0", "1"), "one": ("0", "0"), "free": ("-1", "-1")}
TIME_LIMIT_S = 240
FAILURES_MAX = 2  # a system that failed a program this often is not asked again
GATE_ROUNDS_MIN = 7


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--quick", action="store_true", help="the quick rows, without peers (default)")
    mode.add_argument("--gates", action="store_true", help="every row, with the peers")
    mode.add_argument("--judge", nargs="+", metavar="FILE", help="gates over several finished runs")
    parser.add_argument("--rows", help="comma separated row names, or program names for all of their rows")
    parser.add_argument("--systems", help="comma separated: " + " ".join((*KNOWN_SYSTEMS, *VARIANTS)))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="measured time per row and round")
    parser.add_argument("--placement", choices=sorted(PLACEMENTS), default="two")
    parser.add_argument("--json", metavar="FILE", help="where to write the run (default: bench/results/<time>.json)")
    parser.add_argument("--python", default=OURS_PYTHON, help="interpreter that has ours")
    return parser.parse_args()


# ---- what runs where


class Launcher:
    """Knows the command of each system for each program; raises setup.Unavailable with the reason if there is none."""

    def __init__(self, arguments):
        self.ours = arguments.python
        self.placement = arguments.placement
        self.seconds = arguments.seconds
        self.pythons = {}

    def limit_python(self):
        return self.ours if os.path.exists(self.ours) else sys.executable

    def python_of(self, system):
        if system == LIMIT:
            setup.ring_extension(self.limit_python())
            return self.limit_python()
        if system == "ours":
            if not os.path.exists(self.ours):
                raise setup.Unavailable(f"no interpreter {os.path.relpath(self.ours, ROOT)} (make build)")
            return self.ours
        if system not in self.pythons:
            self.pythons[system] = setup.peer_venv(system)
        return self.pythons[system]

    def command(self, program, system, names):
        if program.name == "W14":
            return self.native(system)
        placement = self.placement if program.placed else "free"
        if system == LIMIT and program.limit == "star":
            return [setup.native_limit("star"), "W4", str(self.seconds), str(program.procs)]
        if system == LIMIT and program.limit == "death":
            victims = [f"{name}={VICTIMS[name]}" for name in names if name in VICTIMS]
            program = os.path.join(BENCH_DIR, "limits", "death.py")
            return [self.python_of("ours"), program, setup.limit_library("death"), str(self.seconds), *victims]
        if system == LIMIT and program.limit == "copy":
            sizes = [
                f"{name}={size}" for name, size in ARRAY_SIZES.items() if any(one.endswith("_" + name) for one in names)
            ]
            return [setup.native_limit("copy"), str(self.seconds / 2), *NATIVE_CPUS[placement], *sizes]
        if system == LIMIT and program.limit == "wire":
            casts = [f"{name}={what}" for name, what in WIRE_BYTES.items() if name in names]
            return [setup.native_limit("wire", "-lssl", "-lcrypto"), str(self.seconds), *casts]
        if system == "ucx":
            return [setup.ucx_program(), str(self.seconds), *NATIVE_CPUS[placement], *names]
        peer, extra = VARIANTS.get(system, (system, []))
        command = [
            self.python_of(program.venvs.get(peer, peer)),
            os.path.join(BENCH_DIR, "workloads", program.script),
            "--system",
            peer,
            "--rows",
            ",".join(names),
            "--seconds",
            str(self.seconds),
            "--placement",
            placement,
        ]
        if peer == "mpi4py" and program.procs:
            command = [*MPIRUN, *extra, "-np", str(program.procs + 1), *command]
        return command

    def native(self, system):
        if system == "caf":
            return [setup.caf_program(), "1"]
        if not os.path.exists(OURS_W14):
            raise setup.Unavailable(f"no {os.path.relpath(OURS_W14, ROOT)}")
        return [OURS_W14, "1"]


def become_subreaper():
    """Orphans of a measured tree become our children, so that none outlives its round."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def kill_all():
    """What the driver has started, orphans too; -> how many processes that were."""
    pids = [pid for pid in process_tree(os.getpid()) if pid != os.getpid()]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(pids)


def end_leftovers():
    """Kills and reaps what a round left behind; -> how many processes that were."""
    left = 0
    while count := kill_all():
        left = max(left, count)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:  # the driver has no other children
                pass
        except ChildProcessError:
            pass
        time.sleep(0.01)
    return left


def run_program(command):
    """-> (lines by row, reason for what is missing)"""
    environment = {**os.environ, "PYTHONPATH": BENCH_DIR}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # imports are timed with warm byte code
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
        cwd=ROOT,
    )
    try:
        output, errors = process.communicate(timeout=TIME_LIMIT_S)
        reason = f"exit status {process.returncode}" if process.returncode else "printed no line"
    except subprocess.TimeoutExpired:
        has_ended = process.poll() is not None
        kill_all()  # orphans of it, too, may hold its streams open
        output, errors = process.communicate()
        reason = f"exit status {process.returncode}" if has_ended else f"took longer than {TIME_LIMIT_S} s"
    if process.returncode and errors.strip():
        reason += ": " + errors.strip().splitlines()[-1][:160]
    lines = []
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                lines.append(json.loads(line))
            except ValueError:
                reason = f"unreadable line: {line[:80]}"
    return lines, reason


# ---- one program over its rounds


class Record:
    """All readings of one run: row -> system -> list of lines; and why something was not run."""

    def __init__(self):
        self.readings = {}
        self.missing = {}
        self.commands = {}

    def add(self, row, system, line):
        self.readings.setdefault(row, {}).setdefault(system, []).append(line)

    def miss(self, row, system, reason):
        self.missing.setdefault(row, {}).setdefault(system, reason)

    def values(self, row, system):
        return [line["value"] for line in self.readings.get(row, {}).get(system, [])]


def measure_program(program, rows, systems, rounds, launcher, record):
    failures = dict.fromkeys(systems, 0)
    for turn in range(rounds):
        shift = turn % len(systems) if systems else 0
        order = [*systems[shift:], *systems[:shift]]
        if program.limit != "none":
            order = [LIMIT, *order, LIMIT]
        for place, system in enumerate(order):
            if failures.get(system, 0) >= FAILURES_MAX or turn >= program.rounds_max.get(system, rounds):
                continue
            names = [row.name for row in rows if row.peers or system in ("ours", LIMIT)]
            if not names:
                continue
            progress(f"{program.name} round {turn + 1}/{rounds}: {system}")
            failures[system] = failures.get(system, 0) + measure_once(
                program, names, system, launcher, record, turn, place
            )


def measure_once(program, names, system, launcher, record, turn, place):
    """Runs one system once; -> 1 if it gave no reading at all."""
    try:
        command = launcher.command(program, system, names)
    except setup.Unavailable as reason:
        for row in names:
            record.miss(row, system, str(reason))
        return FAILURES_MAX
    record.commands.setdefault(program.name, {})[system] = " ".join(command).replace(ROOT + os.sep, "")
    lines, reason = run_program(command)
    left = end_leftovers()
    got = set()
    for line in lines:
        row = line.pop("row")
        # Limit programs name their variants themselves; for the others the driver knows better (variants of peers).
        name = line.pop("system") if system == LIMIT else system
        if row not in names:
            continue
        got.add(row)
        if "error" in line:
            record.miss(row, name, line["error"])
        else:
            record.add(row, name, {"round": turn, "place": place, "left_behind": left, **line})
    for row in set(names) - got:
        record.miss(row, system, reason)
    return 0 if any("error" not in line for line in lines) else 1


def progress(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


# ---- judging


def best_limit(row, record):
    """Values of the best limit variant of a row."""
    variants = [system for system in record.readings.get(row.name, {}) if system.split(":")[0] == LIMIT]
    if not variants:
        return None
    pick = min if row.better == "low" else max
    return record.values(row.name, pick(variants, key=lambda one: statistics.median(record.values(row.name, one))))


def pool(row, record, system):
    """All readings of all rounds."""
    return [sample for line in record.readings.get(row.name, {}).get(system, []) for sample in line["samples"]]


def limit_movement(row, record):
    """Median over rounds of how far the limit moved between its two readings of a round, as a fraction."""
    rounds = {}
    for line in record.readings.get(row, {}).get(LIMIT, []):
        rounds.setdefault(line["round"], []).append(line["value"])
    moves = [abs(pair[0] - pair[1]) / min(pair) for pair in rounds.values() if len(pair) == 2 and min(pair) > 0]
    return statistics.median(moves) if moves else None


def judge(row, record):
    """-> (verdict, text): verdict is met, missed or not run; rows without a gate have None."""
    if not row.judged:
        return None, ""
    ours = record.values(row.name, "ours")
    if not ours:
        return "not run", record.missing.get(row.name, {}).get("ours", "ours was not asked for")
    value = statistics.median(pool(row, record, "ours") if row.pooled else ours)
    texts, verdict = [], "met"
    if wrong := record.missing.get(row.name, {}).get("ours"):  # in some round
        verdict = "missed"
        texts.append(wrong)
    if row.gate is not None:
        factor = value / row.gate if row.better == "low" else row.gate / value if value > 0 else float("inf")
        if factor > 1:
            verdict = "missed"
            texts.append(f"by {factor:.2f}x")
    for peer, times in row.ahead_of.items():
        theirs = best_limit(row, record) if peer == LIMIT else record.values(row.name, peer)
        if not theirs:
            reason = record.missing.get(row.name, {}).get(peer, "it was not asked for")
            texts.append(f"{peer} not run: {reason}")
            verdict = "not run" if verdict == "met" else verdict
            continue
        ahead = row.times_better(value, statistics.median(theirs))
        if ahead is None:
            verdict = "missed"
            texts.append(f"nothing beside {peer}")
            continue
        texts.append(f"{ahead:.3g}x {peer}")
        if ahead < times:
            verdict = "missed"
            texts[-1] += f", wanted {times:.3g}x"
    return verdict, ", ".join(texts)


# ---- reporting


def short(value):
    if value is None:
        return "-"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.2f}M"
    if size >= 1e4:
        return f"{value / 1e3:.0f}k"
    if size >= 1e3:
        return f"{value / 1e3:.2f}k"
    return f"{value:.0f}" if size >= 100 else f"{value:.3g}"


def summarise(rows, systems, record):
    """One dictionary per row: medians with intervals, ratios of ours to each, CPU per call, noise, verdict."""
    table = []
    for row in rows:
        limit = best_limit(row, record)
        ours = record.values(row.name, "ours")
        entry = {
            "row": row.name,
            "title": row.title,
            "unit": row.unit,
            "gate": row.gate,
            "ahead_of": row.ahead_of,
            "aim": row.aim,
            "limit": median_interval(limit) if limit else None,
            "limit_moved": limit_movement(row.name, record),
            "systems": {},
            "not_run": record.missing.get(row.name, {}),
        }
        for system in systems:
            values = record.values(row.name, system)
            if not values:
                continue
            lines = record.readings[row.name][system]
            cell = {"median": median_interval(values), "rounds": len(values)}
            for key in ("cpu_us", "p50", "p99"):
                found = [line[key] for line in lines if key in line]
                cell[key] = statistics.median(found) if found else None
            if row.pooled and (readings := pool(row, record, system)):
                cell["pooled"] = {"median": statistics.median(readings), "count": len(readings)}
                if row.gate is not None:
                    missed = [one for one in readings if (one > row.gate if row.better == "low" else one < row.gate)]
                    cell["pooled"]["missed"] = len(missed) / len(readings)
            if limit:
                cell["to_limit"] = ratio_interval(values, limit)
            if ours and system != "ours":
                cell["ours_ahead"] = ratio_interval(*((values, ours) if row.better == "low" else (ours, values)))
            entry["systems"][system] = cell
        entry["verdict"], entry["remark"] = judge(row, record)
        table.append(entry)
    return table


def print_table(table, systems):
    width = 20
    print(
        f"{'row':8} {'what':40} {'unit':5} {'limit':>8} "
        + " ".join(f"{system:>{width}}" for system in systems)
        + "  gate"
    )
    for entry in table:
        cells = []
        for system in systems:
            cell = entry["systems"].get(system)
            if cell is None:
                cells.append("not run" if system in entry["not_run"] else "-")
                continue
            text = short(cell["median"][0])
            if system == "ours" and cell.get("to_limit"):
                text += f" ({cell['to_limit'][0]:.2g} lim)"
            elif cell.get("ours_ahead"):
                text += f" ({cell['ours_ahead'][0]:.3g}x)"
            cells.append(text)
        limit = short(entry["limit"][0]) if entry["limit"] else "-"
        gate = "" if entry["gate"] is None else short(entry["gate"]) + ": "
        gate = "" if entry["verdict"] is None else f"{gate}{entry['verdict']} {entry['remark']}"[:70]
        print(
            f"{entry['row']:8} {entry['title']:40} {entry['unit']:5} {limit:>8} "
            + " ".join(f"{cell:>{width}}" for cell in cells)
            + "  "
            + gate
        )


def pooled_text(pooled):
    if pooled is None:
        return ""
    text = f"  of all {pooled['count']} readings: median {short(pooled['median'])}"
    return text + (f", {pooled['missed']:.0%} beyond the gate" if "missed" in pooled else "")


def print_details(table, systems):
    print("\nours: 95 % interval of the median, p99, CPU per call (all processes)")
    for entry in table:
        cell = entry["systems"].get("ours")
        if cell:
            median, low, high = cell["median"]
            print(
                f"  {entry['row']:8} {short(median)} [{short(low)} .. {short(high)}] {entry['unit']}"
                f"  p99 {short(cell['p99'])}  CPU {short(cell['cpu_us'])} us"
                f"{pooled_text(cell.get('pooled'))}"
            )
    reasons = {}
    for entry in table:
        for system, reason in entry["not_run"].items():
            reasons.setdefault((system, reason), []).append(entry["row"])
    if reasons:
        print("\nnot run")
        for (system, reason), names in sorted(reasons.items()):
            print(f"  {system}: {reason} ({' '.join(names)})")


def print_noise(table, activity):
    moved = [entry["limit_moved"] for entry in table if entry["limit_moved"] is not None]
    text = (
        f"limit moved {statistics.median(moved):.0%} (median), {max(moved):.0%} (worst row)"
        if moved
        else "no limit ran"
    )
    print(
        f"\nnoise: {text} between its two readings of a round; steal {activity['steal']:.1%}, "
        f"other processes {activity['others']:.1%} of the machine"
    )


def judge_runs(paths):
    """Prints in how many of several runs each gate was met; -> whether all hold in two of three."""
    runs = []
    for path in paths:
        with open(path) as file:
            run = json.load(file)
        if run["rounds"] < GATE_ROUNDS_MIN or run["placement"] != "two":
            sys.exit(f"{path}: gates are judged over at least {GATE_ROUNDS_MIN} rounds in placement two")
        runs.append(run["table"])
    needed = -(-2 * len(runs) // 3)
    held = True
    for program in PROGRAMS:
        for row in program.rows:
            if not row.judged:
                continue
            entries = [entry for table in runs for entry in table if entry["row"] == row.name]
            if any((entry["gate"], entry.get("ahead_of")) != (row.gate, row.ahead_of) for entry in entries):
                held = False
                print(f"{row.name:8} {row.title:40} not judged: a run had another gate for it")
                continue
            verdicts = [entry["verdict"] for entry in entries]
            met = verdicts.count("met")
            held = held and met >= needed
            outcome = "holds" if met >= needed else "DOES NOT HOLD"
            print(f"{row.name:8} {row.title:40} met in {met} of {len(runs)}: {outcome}")
    return held


def select(arguments):
    """-> [(program, wanted row objects)]"""
    wanted = arguments.rows.split(",") if arguments.rows else None
    chosen = []
    for program in PROGRAMS:
        rows = [
            row
            for row in program.rows
            if (row.name in wanted or program.name in wanted if wanted else arguments.gates or row.quick)
        ]
        if rows:
            chosen.append((program, rows))
    known = {name for program in PROGRAMS for name in (program.name, *(row.name for row in program.rows))}
    if wanted and set(wanted) - known:
        sys.exit(f"unknown rows: {' '.join(sorted(set(wanted) - known))}; known: {' '.join(sorted(known))}")
    return chosen


def main():
    arguments = parse_arguments()
    if arguments.judge:
        return 0 if judge_runs(arguments.judge) else 1
    quick = not arguments.gates and not arguments.rows
    systems = arguments.systems.split(",") if arguments.systems else ["ours"] if quick else list(KNOWN_SYSTEMS)
    if set(systems) - {*KNOWN_SYSTEMS, *VARIANTS}:
        sys.exit(f"unknown systems; known: {' '.join((*KNOWN_SYSTEMS, *VARIANTS))}")
    rounds = arguments.rounds or (3 if quick else 7)
    arguments.seconds = arguments.seconds or (0.3 if quick else 0.5)
    chosen = select(arguments)
    become_subreaper()
    launcher, record, activity = Launcher(arguments), Record(), machine.Activity()
    started = time.time()
    for program, rows in chosen:
        runnable = [one for one in systems if VARIANTS.get(one, (one,))[0] in program.systems]
        measure_program(program, rows, runnable, rounds, launcher, record)
    progress("")
    rows = [row for _, rows in chosen for row in rows]
    shares = activity.shares()
    table = summarise(rows, systems, record)
    info = machine.describe()
    print(
        f"{info['cpu']}, {info['cores']} cores, Linux {info['kernel']}, Python {info['python']}; placement "
        f"{arguments.placement}, {rounds} rounds, {time.time() - started:.0f} s; (Nx) = ours is N times better\n"
    )
    print_table(table, systems)
    print_details(table, systems)
    print_noise(table, shares)
    if rounds < GATE_ROUNDS_MIN:
        print(f"{rounds} rounds: a look, not a verdict (gates are judged over at least {GATE_ROUNDS_MIN})")
    names = ["monarch-cpp", "torchmonarch", "ray", "mpi4py", "pyzmq", "numpy", "cloudpickle", "torch", "torchstore"]
    pythons = {"ours": launcher.ours, **launcher.pythons}
    path = arguments.json or os.path.join(RESULTS_DIR, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started)) + ".json")
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w") as file:
        json.dump(
            {
                "machine": info,
                "source": machine.commit(ROOT),
                "started": started,
                "seconds": time.time() - started,
                "placement": arguments.placement,
                "rounds": rounds,
                "seconds_per_row": arguments.seconds,
                "versions": {one: machine.installed(python, names) for one, python in pythons.items()},
                "commands": record.commands,
                "noise": shares,
                "table": table,
                "readings": record.readings,
            },
            file,
        )
    print(f"written: {os.path.relpath(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
