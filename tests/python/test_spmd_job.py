"""SPMDJob: programs of torchrun on hosts that are held for them. Without torch."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from types import SimpleNamespace

import pytest
from script_run import PROGRAMS, SPEAKER, Run, ended

from monarch.job import _torchrun
from monarch.job.spmd import SPMDJob, serve

LIMIT_S = 30
TRAIN = str(PROGRAMS / "spmd_job" / "train.py")
BEGIN = f"""
from monarch.job import job_load
from monarch.job.spmd import serve
TRAIN = {TRAIN!r}
"""


def ran(run):
    """What the ranks have said, in order."""
    return sorted(line for line in SPEAKER.sub("", run.out).splitlines() if line.startswith("ran "))


# ---- What is run ----


@pytest.mark.feature(94, "SPMDJob")
def test_a_program_of_torchrun_runs_on_a_held_allocation_again_and_again(tmp_path):
    script = tmp_path / "train.py"
    shutil.copy(TRAIN, script)
    run = Run(
        BEGIN
        + f"""
job = serve(["torchrun", "--standalone", "--nnodes", "1", "--nproc-per-node=3", {str(script)!r}, "--lr", "0.1"])
print("held", job.active, job.state(cached_path=None).workers.sizes)
worker = job._run.workers
assert job.run_spmd() is None
with open({str(script)!r}, "a") as file:
    file.write("print('changed', os.environ['RANK'], flush=True)\\n")
job.run_spmd()
assert worker == job._run.workers
job.kill()
"""
    ).ok()
    assert run.line("held ") == "True {'hosts': 1}"
    assert ran(run) == sorted(2 * [f"ran {rank} 3 {rank} --lr 0.1" for rank in range(3)])
    assert sorted(line for line in SPEAKER.sub("", run.out).splitlines() if "changed" in line) == [
        f"changed {rank}" for rank in range(3)
    ]


def test_another_script_goes_on_with_a_saved_allocation(tmp_path):
    first = Run(BEGIN + "serve(['torchrun', '--nproc_per_node', '2', TRAIN]).state()", cwd=str(tmp_path))
    assert ended(first.process.pid, time.monotonic() + LIMIT_S)
    second = Run(BEGIN + "job = job_load(); job.run_spmd(); job.kill()", cwd=str(tmp_path)).ok()
    assert ran(second) == ["ran 0 2 0", "ran 1 2 1"]
    first.ok()  # and nothing is left of it


def test_a_module_runs_too_and_several_replicas_are_several_hosts():
    run = Run(
        BEGIN + """
from types import SimpleNamespace
import os, warnings
command = "torchrun --rdzv_backend c10d --rdzv_endpoint localhost:0 --rdzv_id '${app_id}' --nnodes 2 "
command += "--nproc_per_node 2 --tee 3 --role '' -m train a 'b c' STAGE"
role = SimpleNamespace(
    name="trainer", entrypoint="bash", args=["-c", command], num_replicas=2,
    env={"STAGE": "test"},
)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    job = serve(SimpleNamespace(roles=[role, role]), scheduler="local_cwd")
print("warned", caught[0].filename == __file__, caught[0].message)
job.run_spmd()
job.kill()
""",
        cwd=os.path.dirname(TRAIN), env={"PYTHONDONTWRITEBYTECODE": "1"},
    ).ok()  # fmt: skip
    assert run.line("warned ") == "True the AppDef has 2 roles: only the first, 'trainer', is used"
    assert ran(run) == [f"ran {rank} 4 {rank % 2} a b c test" for rank in range(4)]


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ("fail", "ActorError", r"^['\"]\S*train.py fail has failed in rank 1\..*ValueError: a bad batch"),
        ("exit", "ActorError", "RuntimeError: .*train.py ended with exit status 3"),
        ("die", "SupervisionError", "exited with non-zero code 4 .*'gpus': 1/2"),
    ],
)
def test_a_rank_that_fails_ends_the_others_and_the_next_run_is_none_the_worse(how, error, text):
    run = Run(
        BEGIN
        + f"""
from monarch.actor import {error}
job = serve(["torchrun", "--nproc-per-node", "2", TRAIN, {how!r}])
began = time.monotonic()
try:
    job.run_spmd()
except {error} as error:
    print("failed", repr(str(error)), getattr(error, "__notes__", ""))
print("took", time.monotonic() - began)
job._command.program[1:] = []
job.run_spmd()
job.kill()
"""
    ).done()
    assert (run.status, run.err) == (0, "")
    assert re.search(text, run.line("failed "))
    assert float(run.line("took ")) < 10
    assert ran(run)[-2:] == ["ran 1 2 1", f"ran 1 2 1 {how}"]


def test_a_program_that_is_not_there_is_named():
    run = Run(BEGIN + "serve(['torchrun', '/no/such.py']).run_spmd()").done()
    assert run.status == 1 and "Actor call" not in run.err and "runpy" not in run.err
    assert "ActorError: /no/such.py has failed in rank 0." in run.err and "FileNotFoundError: " in run.err


def test_ranks_of_one_host_share_its_processors_as_under_torchrun(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    several = _torchrun.Command(2, [TRAIN, "OMP_NUM_THREADS"])
    assert SPMDJob(several)._env == {"OMP_NUM_THREADS": "1"}
    assert SPMDJob(several, env={"OMP_NUM_THREADS": "3"})._env == {"OMP_NUM_THREADS": "3"}
    assert SPMDJob(_torchrun.Command(1, ["train.py"]))._env == {}
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert SPMDJob(several)._env == {}
    run = Run(BEGIN + "job = serve(['torchrun', '--nproc-per-node=2', TRAIN, 'OMP_NUM_THREADS']); job.run_spmd()")
    run.ok()
    assert ran(run) == ["ran 0 2 0 2", "ran 1 2 1 2"]


# ---- Commands ----


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("torchrun train.py", (1, ["train.py"])),
        (
            "/venv/bin/torchrun --nproc-per-node=4 train.py --nproc-per-node 9",
            (4, ["train.py", "--nproc-per-node", "9"]),
        ),
        ("python3.11 -u -m torch.distributed.run --nproc_per_node 2 -m pkg.train -x", (2, ["-m", "pkg.train", "-x"])),
        ("python -m torch.distributed.run --module pkg", (1, ["-m", "pkg"])),
        ("torchrun --nnodes=1:1 --node_rank 0 --master-port 29500 --max-restarts=3 -t 3 a.py -m", (1, ["a.py", "-m"])),
        ("torchrun --nproc-per-node cpu a.py", (os.cpu_count(), ["a.py"])),
    ],
)
def test_commands_are_read_as_torchrun_reads_them(words, found):
    assert _torchrun.parse(words.split()) == found


def test_processes_for_the_gpus_that_are_there(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    for word in ("gpu", "auto"):
        assert _torchrun.parse(["torchrun", "--nproc-per-node", word, "a.py"]).per_host == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert _torchrun.parse(["torchrun", "--nproc-per-node=auto", "a.py"]).per_host == os.cpu_count()
    with pytest.raises(ValueError, match="--nproc-per-node=gpu, but there is no GPU here"):
        _torchrun.parse(["torchrun", "--nproc-per-node=gpu", "a.py"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "is no command of torchrun: expected"),
        ("python train.py", "'python train.py' is no command of torchrun: expected .'torchrun', "),
        ("bash -c 'python train.py'", "is no command of torchrun"),
        ("torchrun --nnodes=2 train.py", "a list of words is for one host, but --nnodes is '2'"),
        ("torchrun --nnodes 1:4 train.py", "a list of words is for one host, but --nnodes is '1:4'"),
        ("torchrun --nproc-per-node=0 train.py", "--nproc-per-node is '0': expected a number above 0, or 'auto'"),
        ("torchrun --nproc-per-node=many train.py", "--nproc-per-node is 'many': expected a number"),
        ("torchrun --standalone", "names no program: expected"),
        ("torchrun -m", "names no program: expected"),
        ("torchrun --no-python ./train", "--no-python: the program must be one of Python"),
        ("torchrun --nproc-per-node", "the options of torchrun cannot be read: .*expected one argument"),
    ],
)
def test_a_command_that_cannot_be_run_is_a_value_error(words, text):
    with pytest.raises(ValueError, match=text):
        serve(shlex.split(words))


def test_other_schedulers_say_what_is_there():
    for scheduler in ("mast_conda", "slurm", "kubernetes", "local_docker"):
        with pytest.raises(NotImplementedError, match=f"'{scheduler}' is not there: .*'local' or 'local_cwd'"):
            serve(["torchrun", "train.py"], scheduler=scheduler)
    with pytest.raises(NotImplementedError, match="scheduler_cfg is .*'local' has nothing to be configured"):
        serve(["torchrun", "train.py"], scheduler_cfg={"log_dir": "/tmp"})


@pytest.mark.parametrize("appdef", ["torchrun train.py", None, ["torchrun", 3]])
def test_what_is_neither_a_list_of_words_nor_an_appdef(appdef):
    with pytest.raises(TypeError, match="a command must be a list of str|expected a list such as"):
        serve(appdef)


def test_an_appdef_without_roles():
    with pytest.raises(ValueError, match="the AppDef has no role"):
        serve(SimpleNamespace(roles=[]))


def test_a_job_says_what_it_runs():
    one = SPMDJob(_torchrun.Command(2, ["train.py"]))
    assert repr(one) == "SPMDJob('train.py', hosts=1)"
    assert repr(SPMDJob(_torchrun.Command(2, ["-m", "pkg", "x"]), 3)) == "SPMDJob('-m pkg', hosts=3)"
