"""Makes this machine a host that scripts attach to with attach_to_workers(). Prints the address that it is reached at,
and serves until Ctrl-C or SIGTERM, with which all ends that it has started.

example: monarch worker --bind 'tcp://*:22222'
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys

HELP = "make this machine a host that scripts attach to"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bind", required=True, metavar="ADDRESS",
        help="tcp://HOST:PORT, with TLS, where port 0 is any that is free; ipc://PATH or ipc://@NAME for scripts on "
        "this machine",
    )  # fmt: skip
    parser.add_argument(
        "--token-file", metavar="FILE",
        help="whoever attaches must know what is in there; made, for this user alone, if it is missing "
        "(MONARCH_TOKEN_FILE, or hosts.token in the user's runtime folder)",
    )  # fmt: skip
    parser.add_argument(
        "--token-stdin", action="store_true",
        help="in its place: read what they must know from stdin, as 32 hexadecimal digits in a line; nothing is written"
    )  # fmt: skip
    parser.add_argument(
        "--python", metavar="PROGRAM", help="the interpreter of the processes that are started here (this one)"
    )
    parser.add_argument("--json", action="store_true", help="say the address as an object: address")


def run(arguments: argparse.Namespace) -> int:
    """Becomes monarch-hostd; with ``--json`` it has one, and ends with it."""
    from monarch._meshes.workers import hostd_program

    program = hostd_program()
    command = [program, arguments.bind, "--python", arguments.python or sys.executable]
    given = []
    if arguments.token_stdin:
        given.append(_token_from_stdin())
        command += ["--token-fd", str(given[0])]
    elif arguments.token_file is not None:
        command += ["--token-file", os.path.abspath(arguments.token_file)]
    if arguments.json:
        return _serve(command, given)
    sys.stdout.flush()
    os.execv(program, command)


def _serve(command: list[str], given: list[int]) -> int:
    """Says where monarch-hostd listens, and waits for its end. It ends with this process, however that does.

    Args:
        command: of monarch-hostd.
        given: descriptors that it takes over.
    """
    lifeline, to_hold = os.pipe()
    command = [*command, "--lifeline", str(lifeline)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=(*given, lifeline), text=True) as daemon:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: daemon.terminate())
        try:
            for fd in (*given, lifeline):
                os.close(fd)
            assert daemon.stdout is not None
            if address := daemon.stdout.readline().strip():
                print(json.dumps({"address": address}), flush=True)
            status = daemon.wait()
        finally:
            os.close(to_hold)
    return status if status >= 0 else 128 - status


def _token_from_stdin() -> int:
    """A descriptor that gives the token. What follows in stdin is left there."""
    line = bytearray()
    while (piece := os.read(0, 1)) not in (b"", b"\n"):
        line += piece
    try:
        token = bytes.fromhex(line.decode("ascii"))
    except ValueError:
        token = b""
    if len(token) != 16:
        raise ValueError("--token-stdin wants 32 hexadecimal digits in a line, as `openssl rand -hex 16` prints them")
    given, to_give = os.pipe()
    os.write(to_give, token)
    os.close(to_give)
    os.set_inheritable(given, True)
    return given
