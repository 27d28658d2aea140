"""The script that Slurm runs on the first node of a job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

# A step of its own on each node, whatever room the job has reserved for tasks there, with all that the job has of it.
_SRUN = (
    "srun{part} --ntasks={nodes} --nodes={nodes} --ntasks-per-node=1 --cpu-bind=none --mpi=none --kill-on-bad-exit=0 "
    "--label --input=none"
)


def batch_script(
    python_exe: str, folder: str, port: int, listens_at: str | None, nodes: Sequence[int], client_script: str | None
) -> str:
    """What ``sbatch`` is given. No secret is in it: the workers' token is in a file of the folder.

    Args:
        python_exe: the interpreter on the nodes, perhaps with ``env NAME=VALUE`` before it.
        folder: of the job.
        port: as ``monarch_port``.
        listens_at: as ``bind_to``.
        nodes: how many, of each part of the job.
        client_script: of batch mode; the job ends with it, and with its status. None: workers alone.
    """
    python = shlex.split(python_exe)
    steps, first = [], 0
    for number, count in enumerate(nodes):
        part = f" --het-group={number}" if len(nodes) > 1 else ""
        worker = [*python, "-m", "monarch.job._slurm_node", folder, str(port), str(first)]
        worker += [] if listens_at is None else [listens_at]
        steps.append(f"{_SRUN.format(part=part, nodes=count)} {shlex.join(worker)}")
        first += count
    lines = ["#!/bin/bash", "# Workers of monarch, one for each node, which the user's script drives."]
    lines += ["unset MONARCH_BATCH_JOB MONARCH_BATCH_JOB_STATE SLURM_CPUS_PER_TASK"]
    if client_script is None and len(steps) == 1:
        return "\n".join([*lines, f"exec {steps[0]}", ""])
    lines += ["workers="]
    for step in steps:
        lines += [f"{step} &", 'workers="$workers $!"']
    if client_script is None:
        return "\n".join([*lines, "wait $workers", ""])
    lines += [
        f"export MONARCH_BATCH_JOB=1 MONARCH_BATCH_JOB_STATE={shlex.quote(os.path.join(folder, 'job_state.pkl'))}",
        shlex.join([*python, client_script]),
        "status=$?",
        "kill $workers",
        "wait $workers",
        f"rm -rf {shlex.quote(folder)}",
        "exit $status",
    ]
    return "\n".join([*lines, ""])
