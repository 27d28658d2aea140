"""Command lines of torchrun: what they run, and how many times."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from monarch._compat.old_spellings import _gpu_count

__all__ = ["Command", "parse"]

_EXPECTED = "['torchrun', '--nproc-per-node=4', 'train.py'] or ['python', '-m', 'torch.distributed.run', ...]"
# Where ranks meet, which a mesh knows; who restarts them, and who keeps what they print, which a mesh does by itself.
_WITHOUT_MEANING = (
    *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--node-rank", "--master-addr"),
    *("--master-port", "--local-addr", "--max-restarts", "--monitor-interval", "--start-method", "--role"),
    *("--event-log-handler", "--log-dir", "--redirects", "--tee", "--local-ranks-filter", "--logs-specs"),
)
_SHORT = {"--redirects": "-r", "--tee": "-t"}


class Command(NamedTuple):
    """What a command line of torchrun asks for."""

    per_host: int  # processes
    program: list[str]  # and its arguments, as SPMDActor.main takes them


def parse(command: Sequence[str], one_host: bool = True) -> Command:
    """``ValueError`` if it is none of torchrun, or asks for what is not there.

    ``one_host``: it says itself how many hosts it wants, and more than one cannot be had.
    """
    options = _parser().parse_args(_arguments(list(command)))
    if one_host and options.nnodes not in ("1", "1:1"):
        raise ValueError(
            f"a list of words is for one host, but --nnodes is {options.nnodes!r}: leave it out, or serve an AppDef "
            "with so many replicas"
        )
    if options.no_python:
        raise ValueError("--no-python: the program must be one of Python, since it runs in the processes of a mesh")
    if not options.program:
        raise ValueError(f"{shlex.join(command)!r} names no program: expected {_EXPECTED}")
    return Command(_per_host(options.nproc_per_node), ["-m"] * options.module + options.program)


def _arguments(command: list[str]) -> list[str]:
    """Those of torchrun."""
    if len(command) == 3 and os.path.basename(command[0]) in ("bash", "sh") and command[1].lstrip("-") in ("c", "lc"):
        command = shlex.split(command[2])  # as torchx writes it
    name = os.path.basename(command[0]) if command else ""
    if name == "torchrun":
        return command[1:]
    if name.startswith("python"):
        arguments = [word for word in command[1:4] if word != "-u"] + command[4:]
        if arguments[:2] == ["-m", "torch.distributed.run"]:
            return arguments[2:]
    raise ValueError(f"{shlex.join(command)!r} is no command of torchrun: expected {_EXPECTED}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"the options of torchrun cannot be read: {message}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)

    def add(name: str, **kwargs: object) -> None:
        underscores = "--" + name[2:].replace("-", "_")
        short = [_SHORT[name]] if name in _SHORT else []
        parser.add_argument(*dict.fromkeys([name, underscores]), *short, **kwargs)  # type: ignore[arg-type]

    add("--nnodes", default="1")
    add("--nproc-per-node", default="1")
    for name in _WITHOUT_MEANING:
        add(name)
    for name in ("--standalone", "--no-python", "--run-path"):
        add(name, action="store_true")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    return parser


def _per_host(wanted: str) -> int:
    if wanted in ("auto", "gpu", "cpu"):
        count = 0 if wanted == "cpu" else _gpu_count()
        if wanted == "gpu" and count == 0:
            raise ValueError("--nproc-per-node=gpu, but there is no GPU here")
        return count or os.cpu_count() or 1
    if not wanted.isascii() or not wanted.isdigit() or int(wanted) == 0:
        raise ValueError(f"--nproc-per-node is {wanted!r}: expected a number above 0, or 'auto', 'gpu' or 'cpu'")
    return int(wanted)
