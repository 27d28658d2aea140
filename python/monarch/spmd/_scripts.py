"""Programs in a process that is there already: a file or a module becomes ``__main__`` for as long as it runs."""

from __future__ import annotations

import os
import runpy
import sys
import threading
from typing import TYPE_CHECKING

from monarch.spmd import _groups

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["as_arguments", "run_as_main", "run_program"]

WAIT_S = 10.0  # where one rank has failed, its caller may start the next program before the other ranks have ended
_running = threading.Lock()  # sys.argv and __main__ are the process's


def as_arguments(script_args: Sequence[str | os.PathLike[str]]) -> list[str]:
    """As ``python`` takes them; ``TypeError`` or ``ValueError`` if they name no program."""
    if isinstance(script_args, str):
        raise TypeError(f"script_args is {script_args!r}: expected a list, of a program and its arguments")
    arguments = [os.fspath(argument) for argument in script_args]
    if not arguments or arguments == ["-m"]:
        raise ValueError("No script or module specified")
    return arguments


def run_as_main(script_args: list[str]) -> None:
    """Runs what ``python *script_args`` would. Returns if that has ended well.

    Raises what it raised, and ``RuntimeError`` for an exit status other than 0, or if another program runs here
    and does not end within ``WAIT_S``.
    """
    if not _running.acquire(timeout=WAIT_S):
        raise RuntimeError(f"cannot run {_name(script_args)}: another program runs in this process (pid {os.getpid()})")
    try:
        _groups.close_left_over()
        with _groups.of_a_program():
            _run(script_args)
    finally:
        _running.release()


def run_program(script_args: list[str]) -> None:
    """Runs what ``python *script_args`` would, as ``__main__``. Raises what it raises, ``SystemExit`` too."""
    argv, path = sys.argv, list(sys.path)
    try:
        if script_args[0] == "-m":
            _run_module(script_args[1], script_args[2:])
        else:
            _run_file(script_args[0], script_args[1:])
    finally:
        sys.argv = argv
        sys.path[:] = path


def _run(script_args: list[str]) -> None:
    pid = os.getpid()
    try:
        run_program(script_args)
    except SystemExit as end:
        if os.getpid() != pid:
            raise  # of a child that the program has forked
        if end.code is not None and end.code != 0:
            raise RuntimeError(f"{_name(script_args)} ended with {_describe(end.code)}") from None


def _run_file(file: str, arguments: list[str]) -> None:
    sys.argv = [file, *arguments]
    if not os.path.isdir(file):  # of a folder, and of an archive, runpy takes care
        sys.path.insert(0, os.path.dirname(os.path.realpath(file)))
    runpy.run_path(file, run_name="__main__")


def _run_module(module: str, arguments: list[str]) -> None:
    sys.argv = ["-m", *arguments]  # runpy replaces the first by the file
    sys.path.insert(0, os.getcwd())
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _name(script_args: Sequence[str]) -> str:
    return " ".join(script_args[: 2 if script_args[0] == "-m" else 1])


def _describe(code: object) -> str:
    return f"exit status {int(code)}" if isinstance(code, int) else f"exit status 1: {code}"
