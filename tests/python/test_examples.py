"""The programs in examples/ run as they stand, print what they should, and leave no process behind."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hostd import Daemon

EXAMPLES = Path(__file__).parents[2] / "examples"
DEADLINE_S = 60
# Runs a command as the reaper of its orphans (PR_SET_CHILD_SUBREAPER), so that whoever it leaves behind is ours to wait
# for; one that has not ended after two seconds ends this by SIGALRM.
REAPER = """
import ctypes, os, signal, subprocess, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
status = subprocess.call(sys.argv[1:])
signal.alarm(2)
while True:
    try:
        os.wait()
    except ChildProcessError:
        sys.exit(status)
"""
# Every process of the program says who prints.
PRINT_WITH_PID = """
import builtins, os
real_print = print
builtins.print = lambda *values, **options: real_print(os.getpid(), *values, **options)
"""


def run(name: str, *options: str, **env: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", REAPER, sys.executable, str(EXAMPLES / name), *options]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, env={**os.environ, **env}, stdin=subprocess.DEVNULL
    )


IDENTITIES = {f"[{rank}] Identity: {rank}, msg='hey there, from script!!'" for rank in range(4)}


def test_hello():
    done = run("hello.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello, world\n", "")


def test_quickstart_prints_each_identity_once():
    done = run("quickstart.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == sorted(IDENTITIES)


@pytest.mark.feature(120)
def test_the_old_quickstart_prints_each_identity_once_and_says_what_is_old():
    done = run("quickstart_async.py")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == sorted(IDENTITIES)
    warnings = [line for line in done.stderr.splitlines() if not line.startswith("  ")]  # the rest quotes the source
    assert len(warnings) == 2
    assert all(": DeprecationWarning: " in line for line in warnings), done.stderr


@pytest.mark.feature(1)
@pytest.mark.parametrize("name", ["quickstart.py", "quickstart_async.py"])
def test_the_identities_come_from_four_processes(tmp_path, name):
    (tmp_path / "sitecustomize.py").write_text(PRINT_WITH_PID)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = run(name, PYTHONPATH=path, PYTHONUNBUFFERED="1")
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    assert {f"{speaker} {text}" for speaker, _, text in lines} == IDENTITIES
    assert len({pid for _, pid, _ in lines}) == len(lines) == 4


@pytest.mark.feature(5, 14, 21, 28)
def test_ping_pong():
    done = run("ping_pong.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "table 0: ping pong ping pong ping pong",
        "table 1: ping pong ping pong ping pong",
        "table 0: ping was the last of 1000",
        "table 1: ping was the last of 1000",
    ]


@pytest.mark.feature(5, 28)
def test_the_crawler_finds_each_page_once_and_the_broken_link():
    done = run("crawler.py")
    assert (done.returncode, done.stderr) == (0, "")
    pages = [line.split() for line in done.stdout.splitlines()]
    assert [page[1] for page in pages] == [
        "/", "/about", "/animals", "/animals/cat", "/animals/dog", "/animals/unicorn", "/plants", "/plants/rose",
        "/plants/tree",
    ]  # fmt: skip
    assert [page[1] for page in pages if page[0] != "200"] == ["/animals/unicorn"]
    assert pages[2] == ["200", "/animals", "Animals", "4", "links"]


@pytest.mark.feature(5)
def test_the_philosophers_block_each_other_without_a_waiter_and_eat_with_one():
    done = run("dining_philosophers.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "forks are held by [0, 1, 2, 3, 4]",
        "everybody has one fork and nobody eats",
        "with a waiter: meals [20, 20, 20, 20, 20], forks are held by [None, None, None, None, None]",
    ]


@pytest.mark.feature(33)
def test_the_parameter_server_finds_the_parameters_and_the_same_ones_each_time():
    pytest.importorskip("numpy")
    done, again = run("parameter_server.py"), run("parameter_server.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == again.stdout
    losses = re.findall(r"^after +(\d+) steps: loss +([\d.]+)$", done.stdout, re.MULTILINE)
    assert [int(step) for step, _ in losses] == list(range(0, 61, 10))
    assert float(losses[0][1]) > 10 and float(losses[-1][1]) < 0.02
    assert float(re.search(r"^largest error of a parameter: (\S+)$", done.stdout, re.MULTILINE)[1]) < 0.05


@pytest.mark.feature(28, 31)
def test_grpo_learns_and_the_same_each_time():
    pytest.importorskip("numpy")
    done, again = run("grpo.py"), run("grpo.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == again.stdout
    rewards = [float(reward) for reward in re.findall(r": reward ([\d.]+) #+$", done.stdout, re.MULTILINE)]
    assert len(rewards) == 12
    assert rewards[0] < 0.7 and rewards[-1] > 0.95
    assert all(later > earlier - 0.02 for earlier, later in zip(rewards, rewards[1:]))


def test_weights_arrive_though_some_die():
    pytest.importorskip("numpy")
    done = run("weight_sync.py", "8")
    assert done.returncode == 0, done.stderr
    published = re.findall(r"^version (\d) is published(.*)$", done.stdout, re.MULTILINE)
    replaced = ", one of them was replaced"
    assert published == [(str(i), replaced if i in (3, 5) else "") for i in range(1, 7)]
    assert re.search(r"^pulled by each generator: [\d.]+ GB/s", done.stdout, re.MULTILINE)


@pytest.mark.feature(94, "a DDP program")
def test_ddp_has_the_losses_of_one_process_both_times():
    pytest.importorskip("torch")
    done = run("ddp.py")
    assert (done.returncode, done.stderr) == (0, "")
    losses = re.findall(r"^rate [\d.]+: loss ([\d.]+), after 60 steps ([\d.]+)$", done.stdout, re.MULTILINE)
    assert len(losses) == 2 and all(float(last) < float(first) / 4 for first, last in losses)
    differences = re.findall(r"^largest difference to one process: (\S+)$", done.stdout, re.MULTILINE)
    assert len(differences) == 2 and all(float(difference) < 1e-4 for difference in differences)


@pytest.mark.feature(24, 74)
def test_the_notebook_gives_the_results_that_are_stored_in_it():
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    stored = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    nbformat.validate(stored)
    notebook = nbformat.from_dict({**stored, "cells": [without_results(cell) for cell in stored.cells]})
    client = nbclient.NotebookClient(notebook, timeout=DEADLINE_S, kernel_name="python3", shutdown_kernel="immediate")
    client.execute()
    for ran, cell in zip(notebook.cells, stored.cells):
        assert ran.get("outputs") == cell.get("outputs"), cell.source


def test_a_notebook_that_loses_its_kernel_goes_on_with_its_hosts(tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "work").mkdir()
    told = []
    for ends in ("no", "yes"):
        monkeypatch.setenv("NOTEBOOK_ENDS", ends)
        notebook = nbformat.read(EXAMPLES / "persistent.ipynb", as_version=4)
        client = nbclient.NotebookClient(
            notebook, timeout=DEADLINE_S, kernel_name="python3", shutdown_kernel="immediate",  # SIGKILL
            resources={"metadata": {"path": str(tmp_path / "work")}},
        )  # fmt: skip
        client.execute()
        told.append(["".join(out.text for out in cell.outputs) for cell in notebook.cells if cell.get("outputs")])
    first, second = told
    assert re.fullmatch(r"[0-9a-f-]{36}\n", first[0]) and first[0] == second[0]  # the same allocation
    for job, slow, fast, _ in told:
        assert re.fullmatch(r"rate 0.1: loss 3.\d+ -> 0.\d+\n", slow), job
        assert re.fullmatch(r"rate 1.0: loss 3.\d+ -> 0.0000\d+\n", fast), job
    assert re.fullmatch(r"\((\d+), 10, 1.954\)\n", first[3])
    assert second[3] == first[3].replace("10, 1.954", "20, 2.635")  # the same process, further on
    assert not list(tmp_path.glob("monarch-job-*"))


def without_results(cell):
    return {**cell, "outputs": [], "execution_count": None} if cell.cell_type == "code" else cell


@pytest.mark.parametrize("workers", [1, 3])
def test_digits_trains_a_model_and_agrees_with_one_process(workers):
    pytest.importorskip("sklearn")
    done = run("digits.py", "--workers", str(workers), "--steps", "80")
    assert (done.returncode, done.stderr) == (0, "")
    assert float(re.search(r"^test accuracy (\S+)$", done.stdout, re.MULTILINE)[1]) >= 0.95
    assert float(re.search(r"^largest difference of a loss: (\S+)$", done.stdout, re.MULTILINE)[1]) < 1e-9
    assert re.findall(r"^step (\d+)/80, loss", done.stdout, re.MULTILINE) == ["20", "40", "60", "80"]
    table = re.findall(r"^ +(\d+) +(\d+) +(\d+) +[\d.]+ s +[\d.]+ s$", done.stdout, re.MULTILINE)
    assert [int(rank) for rank, _, _ in table] == list(range(workers))
    assert len({pid for _, pid, _ in table}) == workers
    assert sum(int(samples) for _, _, samples in table) == 80 * 2395
    assert len(re.findall(r"[\d.]+ ms per step", done.stdout)) == 2
    assert re.search(r"^with workers +[\d.]+ times as fast", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("workers", [1, 4])
def test_digits_trains_on_where_workers_die(workers):
    pytest.importorskip("sklearn")
    done = run("digits.py", "--workers", str(workers), "--steps", "60", "--kill")
    assert (done.returncode, done.stderr) == (0, "")
    assert float(re.search(r"^largest difference of a loss: (\S+)$", done.stdout, re.MULTILINE)[1]) < 1e-9
    here, alone = re.search(r"^test accuracy (\S+), and (\S+) where nobody died$", done.stdout, re.MULTILINE).groups()
    assert here == alone and float(here) >= 0.93
    deaths = re.findall(r"^ +(\d+) +(\d+)  (\w+) +([\d.]+) ms +([\d.]+) ms +(\d+)$", done.stdout, re.MULTILINE)
    assert [(int(rank), cause) for rank, _, cause, *_ in deaths] == [(0, "SIGKILL"), (workers - 1, "SIGSEGV")]
    assert all(0 < float(noticed) < float(back) for _, _, _, noticed, back, _ in deaths)
    pids = re.findall(r"^ +(\d+) +(\d+) +\d+ +[\d.]+ s +[\d.]+ s$", done.stdout, re.MULTILINE)
    assert len(pids) == workers
    now = dict(pids)
    assert all(now[rank] == next_pid != pid for rank, pid, *_, next_pid in deaths[-2 if workers > 1 else -1 :])


@pytest.mark.parametrize("kill", [False, True])
def test_digits_runs_on_four_hosts_by_one_flag(folder, monkeypatch, kill):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")  # of the hosts, which is not what the workers have
    daemons = [Daemon(folder, number, "tcp") for number in range(4)]
    monkeypatch.setenv("MONARCH_TOKEN_FILE", daemons[0].env["MONARCH_TOKEN_FILE"])
    addresses = [daemon.address for daemon in daemons]
    done = run("digits.py", "--workers", "1", "--steps", "40", *["--kill"] * kill, "--hosts", *addresses)
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"^largest difference of a loss: (\S+)$", done.stdout, re.MULTILINE)[1]) < 1e-9
    assert len(re.findall(r"^ +(\d+) +(\d+) +\d+ +[\d.]+ s +[\d.]+ s$", done.stdout, re.MULTILINE)) == 4
    assert len(re.findall(r"SIGKILL|SIGSEGV", done.stdout)) == 2 * kill
    assert "times as fast, each process with one BLAS thread\n" in done.stdout
    assert [daemon.end() for daemon in daemons] == [(0, "")] * 4


def test_digits_has_a_worker_for_each_core_by_default():
    pytest.importorskip("sklearn")
    done = run("digits.py", "--steps", "4")
    assert (done.returncode, done.stderr) == (0, "")
    assert f", {len(os.sched_getaffinity(0))} worker processes\n" in done.stdout


def test_the_workers_of_digits_need_numpy_only():
    pytest.importorskip("sklearn")
    program = "import sys, digits; assert 'numpy' in sys.modules and 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], cwd=EXAMPLES, check=True, timeout=DEADLINE_S)


def test_training_goes_on_through_failures_of_each_kind():
    pytest.importorskip("numpy")
    done = run("fault_tolerance.py", "--seconds", "4", "--every", "0.7")
    assert done.returncode == 0, done.stderr
    rows = {
        name.strip(): [float(cell.removesuffix(" s")) for cell in cells]
        for name, *cells in re.findall(r"^(\S.*?)  +([\d.]+(?: s)?)  +([\d.]+(?: s)?)$", done.stdout, re.MULTILINE)
    }
    assert rows["failures"] == [4, 4]
    for kind in ("exception", "segfault", "kill", "GIL held"):
        assert 0 < rows[f"lost by who stands still: {kind}"][0] < 4
    in_place, restarted = rows["lost by the job"]
    assert 0 < in_place < restarted
    assert rows["steps done"][0] > rows["steps done"][1] > 0
    least = float(re.search(r"^loss, of (\S+) at least", done.stdout, re.MULTILINE)[1])
    assert all(least <= loss < 1.05 * least for loss in rows[f"loss, of {least:.5f} at least"])
