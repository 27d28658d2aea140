"""Slurm's commands, and what they say of a job."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

_LIMIT_S = 60.0  # for a command, whose controller may be busy
_LAST_WORD_S = 5.0  # for one whose answer is waited for though its script is interrupted
_WAITS = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_WAITS |= {"SUSPENDED", "STOPPED", "STAGE_OUT", "POWER_UP_NODE"}
_RUNS = {"RUNNING", "SIGNALING", "RESIZING"}
_UNKNOWN = "Invalid job id specified"


class SlurmError(RuntimeError):
    """What Slurm says."""


class Unreachable(SlurmError):
    """Its controller does not answer, so nothing is known of the job."""


class Found(NamedTuple):
    """A job, as Slurm has it."""

    state: str  # the first of its states: "RUNNING"; "" if it has forgotten it, as it does some minutes after its end
    reason: str
    restarts: int
    nodes: list[str]  # in the order of its tasks
    ends: bool = False  # its processes are being ended; what follows is its end, or its place in the queue

    @property
    def runs(self) -> bool:
        return self.state in _RUNS and not self.ends

    @property
    def is_over(self) -> bool:
        return not self.ends and self.state not in _RUNS | _WAITS

    @property
    def words(self) -> str:
        """``PENDING (Resources)``."""
        if not self.state:
            return "unknown to Slurm, which forgets a job some minutes after its end"
        return f"{self.state} ({self.reason})" if self.reason not in ("", "None") else self.state


_forgotten = Found("", "", 0, [])


def command(words: Sequence[str]) -> str:
    """What it prints. ``SlurmError`` with what it says, if it fails."""
    with _started(words) as process:
        try:
            return _said(process, words[0])
        finally:
            process.kill()


def _started(words: Sequence[str]) -> subprocess.Popen[str]:
    """In a session of its own: Ctrl-C is for the script."""
    try:
        return subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise SlurmError(
            f"{words[0]} is not on PATH; a SlurmJob is applied where Slurm's commands are, on a login node or in a job"
        ) from None


def _said(process: subprocess.Popen[str], name: str, text: str = "") -> str:
    """What it prints when it has been given ``text``, as ``command()``."""
    try:
        printed, errors = process.communicate(text, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{name} has not answered for {_LIMIT_S:g} s") from None
    if process.returncode == 0:
        return printed
    said = "; ".join(re.sub(r"^\w+: (error: |fatal: )?", "", line) for line in errors.splitlines() if line.strip())
    kind = Unreachable if re.search("Unable to contact slurm controller|Socket timed out", said) else SlurmError
    raise kind(said or f"{name} ended with status {process.returncode}")


def submit(options: Sequence[str], script: str) -> str:
    """The job's id. ``SlurmError`` with sbatch's own words, if it refuses. A Ctrl-C meanwhile leaves no job."""
    words = ["sbatch", "--parsable", *options]
    with _started(words) as sbatch:
        try:
            told = _said(sbatch, words[0], script)
        except KeyboardInterrupt:
            _take_back(sbatch)
            raise
        finally:
            sbatch.kill()
    return _job_id(told)


def _take_back(sbatch: subprocess.Popen[str]) -> None:
    """What it submits though its script is interrupted. A line on stderr, if that cannot be known."""
    try:
        told = sbatch.communicate(timeout=_LAST_WORD_S)[0]
        if sbatch.returncode == 0:
            cancel(_job_id(told))
    except (SlurmError, subprocess.TimeoutExpired) as error:
        print(f"monarch: a job of this script may be left with Slurm (squeue --me): {error}", file=sys.stderr)


def _job_id(told: str) -> str:
    lines = told.split()
    job_id = lines[-1].partition(";")[0] if lines else ""  # behind it the cluster, where there are several
    if not job_id.isdigit():
        raise SlurmError(f"sbatch did not print a job's id, but {told.strip()!r}")
    return job_id


def cancel(job_id: str) -> None:
    """Nothing if it is over."""
    try:
        command(["scancel", job_id])
    except Unreachable:
        raise
    except SlurmError as error:
        if _UNKNOWN not in str(error):
            raise


_json_fails = False


def look(job_id: str) -> Found:
    """``Unreachable`` if nobody can say."""
    global _json_fails
    try:
        if not _json_fails:
            try:
                return parse_json(command(["squeue", "--json", "--jobs", job_id]), job_id)
            except ValueError:
                pass  # scontrol says why
            except Unreachable:
                raise
            except SlurmError as error:
                if _UNKNOWN in str(error):
                    return _forgotten
                _json_fails = True  # Slurm before 20.11, or without its plugin for JSON
        return parse_text(command(["scontrol", "show", "job", job_id, "--oneliner"]))
    except Unreachable:
        raise
    except SlurmError as error:
        if _UNKNOWN in str(error):
            return _forgotten
        raise


def parse_json(text: str, job_id: str) -> Found:
    """Of ``squeue --json``, which some versions print with all jobs. ``ValueError`` if it is something else.

    Or if there is an error in it, as there is, with status 0, when the controller does not answer.
    """
    try:
        answer = json.loads(text)
        parts = [job for job in answer["jobs"] if job_id in (str(job["job_id"]), str(_number(job.get("het_job_id"))))]
        if not parts and answer.get("errors"):
            raise ValueError(f"squeue --json has an error: {answer['errors']}")
        return _together([_part(job) for job in sorted(parts, key=lambda job: _number(job.get("het_job_offset")))])
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"squeue --json prints something unknown: {type(error).__name__}: {error}") from error


def parse_text(text: str) -> Found:
    """Of ``scontrol show job``: a line for each part of it, in their order."""
    parts = []
    for line in text.splitlines():
        fields = dict(re.findall(r"(?:^|\s)(JobState|Reason|Restarts|NodeList)=(\S*)", line))
        if "JobState" in fields:
            nodes = fields.get("NodeList", "")
            names = [] if nodes in ("", "(null)") else expanded(nodes)
            parts.append(
                _found([fields["JobState"]], fields.get("Reason", ""), int(fields.get("Restarts", "0")), names)
            )
    if not parts:
        raise SlurmError(f"scontrol show job prints something unknown: {text[:200]!r}")
    return _together(parts)


def _part(job: dict[str, Any]) -> Found:
    states = job["job_state"]
    states = [states] if isinstance(states, str) else list(states)
    nodes = _nodes(job.get("job_resources") or {}) or expanded(job.get("nodes") or "")
    return _found(states, str(job.get("state_reason") or ""), int(job.get("restart_cnt") or 0), nodes)


def _together(parts: Sequence[Found]) -> Found:
    """A job of several parts is no further than the one that is the least far."""
    if len(parts) <= 1:
        return parts[0] if parts else _forgotten
    least = next((part for part in parts if part.is_over), None) or min(parts, key=lambda part: part.runs)
    nodes = [node for part in parts for node in part.nodes]
    return least._replace(restarts=parts[0].restarts, nodes=nodes, ends=any(part.ends for part in parts))


def _number(value: Any) -> int:
    """As some versions print it; 0: none."""
    return int((value.get("number") if isinstance(value, dict) else value) or 0)


def expanded(nodes: str) -> list[str]:
    """``n[1-2]``: ``n1`` and ``n2``."""
    if "[" not in nodes:
        return [name for name in nodes.split(",") if name]
    return command(["scontrol", "show", "hostnames", nodes]).split()


def _found(states: list[str], reason: str, restarts: int, nodes: list[str]) -> Found:
    ends = "COMPLETING" in states
    state = next((state for state in states if state != "COMPLETING"), "COMPLETING")
    return Found(state, reason, restarts, nodes, ends)


def _nodes(resources: dict[str, Any]) -> list[str]:
    """Their names stand in another place since Slurm 24.05."""
    nodes = resources.get("nodes") or ""
    if isinstance(nodes, dict):
        allocated, listed = nodes.get("allocation") or [], nodes.get("list") or ""
    else:
        allocated, listed = resources.get("allocated_nodes") or [], nodes
    names = [node.get("nodename") or node.get("name") for node in allocated if isinstance(node, dict)]
    return [str(name) for name in names] if names and all(names) else expanded(listed)
