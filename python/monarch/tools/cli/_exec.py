"""Runs a command on hosts of the saved job; its exit status is the largest.

examples:
  monarch exec nvidia-smi                     # on the first host
  monarch exec --point hosts=1 -e DEBUG=1 'ls | wc -l'
  monarch exec --all --per-host gpus=8 --json 'echo $MONARCH_RANK_GPUS'
  monarch exec --all --stream uptime          # [0] ..., [1] ..., as it comes
  monarch exec --script prepare.sh -- --fast  # a file of this machine
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from monarch.tools.cli import _hosts

if TYPE_CHECKING:
    from monarch.job._exec import Execution
    from monarch.job._runner import Order

_NAMED_MAX = 5  # ranks
HELP = "run a command on the hosts of the saved job"


def add_arguments(command: argparse.ArgumentParser) -> None:
    where = command.add_mutually_exclusive_group()
    where.add_argument("--one", action="store_true", help="on the first host of the first mesh (the default)")
    where.add_argument("--all", action="store_true", help="on all hosts of all meshes")
    where.add_argument(
        "--point", type=_hosts.numbers, metavar="DIM=N,..", help="on the ranks with these coordinates, of one mesh"
    )
    command.add_argument("--mesh", metavar="NAME", help="on all hosts of this mesh; or what --one, --point say")
    command.add_argument("--per-host", type=_hosts.numbers, metavar="DIM=N,..", help="so many ranks on each host (one)")
    _hosts.add_arguments(command)
    command.add_argument("--stream", action="store_true", help="print what many print here, by line, not to files")
    command.add_argument("--json", action="store_true", help="print a line of JSON for each rank at the end")
    command.add_argument("--script", metavar="FILE", help="a file here, for bash; *.py: for Python; -: stdin")
    command.add_argument(
        "-m", nargs=argparse.REMAINDER, dest="module", metavar="MODULE", help="a module that Python runs, and arguments"
    )
    command.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND",
        help="one word for bash, or a program or *.py and arguments",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Runs it, and waits for it."""
    try:
        order_of = _order_of(arguments)
    except ValueError as error:
        arguments.parser.error(str(error))
    from monarch.tools._active import saved_job

    job = saved_job()
    point = {"hosts": 0} if _is_one(arguments) else arguments.point
    meshes = _hosts.attach(job, arguments.mesh, point, arguments.all)
    running: dict[str, Execution] = {}
    try:
        folder = _start(arguments, meshes, order_of(), running)
        status = max([each.wait() for each in running.values()])
    except BaseException as error:
        for execution in running.values():
            execution.kill()
        if arguments.json and isinstance(error, Exception):
            _print_codes(running, str(error))
        raise
    finally:
        if arguments.kill:
            job.kill()
    sys.stdout.flush()
    if arguments.json:
        _print_codes(running)
    elif folder is not None or arguments.stream:
        if status != 0:
            _tell_failed(running)
        if folder is not None:
            _remove_empty(folder)
    return status


def _is_one(arguments: argparse.Namespace) -> bool:
    return arguments.one or not (arguments.all or arguments.mesh or arguments.point)


def _start(
    arguments: argparse.Namespace, meshes: dict[str, Any], order: Order, running: dict[str, Execution]
) -> str | None:
    """Starts it on each mesh that is wanted. Returns where output goes; None: to here."""
    from monarch.job._exec import Execution

    wanted = meshes if arguments.all else dict([_hosts.find(meshes, arguments.mesh)])
    is_one = _is_one(arguments)
    folder = None
    if not is_one and arguments.point is None and not arguments.stream:
        import tempfile

        folder = tempfile.mkdtemp(prefix="monarch_exec_")
        print(f"monarch exec: what it prints goes to {folder}", file=sys.stderr)
    for name, hosts in wanted.items():
        point = _hosts.first_point(hosts) if is_one else arguments.point
        running[name] = Execution(
            hosts,
            order,
            folder and f"{folder}/{name}",
            point=point,
            per_host=arguments.per_host,
            by_line=name if arguments.stream and not is_one else None,
        )
    return folder


def _order_of(arguments: argparse.Namespace) -> Any:
    """What is to be run, or ``ValueError``; as a function, since the parts are loaded after the hosts are asked for."""
    words = [*(arguments.module or []), *arguments.words]
    is_module, script = arguments.module is not None, arguments.script
    if arguments.all and arguments.mesh is not None:
        raise ValueError("--all is all meshes: leave out --mesh, or --all, which --mesh NAME means for one")
    if (first := 1 if is_module else 0) < len(words) and words[first] == "--":
        del words[first]
    if is_module and script is not None:
        raise ValueError("either --script or -m says what to run, not both")
    if (not words or not (words[0] or is_module)) and script is None:
        raise ValueError("no command: say one, as in 'monarch exec hostname', or --script FILE, or -m MODULE")
    text = None if script is None else _read(script)
    if is_module:
        words.insert(0, "-m")

    def order() -> Order:
        from monarch.job._exec import check_env, is_python
        from monarch.job._runner import Order

        in_python = is_python(words) if script is None else script.endswith(".py")
        return Order(words, text, in_python, check_env(dict(arguments.env)), arguments.workdir, {}, {}, 0)

    return order


def _read(script: str) -> bytes:
    if script == "-":
        return sys.stdin.buffer.read()
    with open(script, "rb") as file:
        return file.read()


def _remove_empty(folder: str) -> None:
    """If nothing was printed: else whoever has asked for it removes it."""
    if any(entry.stat().st_size > 0 for path, _, _ in os.walk(folder) for entry in os.scandir(path) if entry.is_file()):
        return
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    print("monarch exec: nothing was printed, and the folder is removed", file=sys.stderr)


def _tell_failed(running: dict[str, Execution]) -> None:
    """Whose file is to be looked at."""
    codes = [(f"{name}/{rank}", code) for name, each in running.items() for rank, code in sorted(each.codes.items())]
    failed = [f"{rank} ({code})" for rank, code in codes if code != 0]
    more = ", ..." if len(failed) > _NAMED_MAX else ""
    print(
        f"monarch exec: {len(failed)} of {len(codes)} ranks have failed, with these exit statuses: "
        f"{', '.join(failed[:_NAMED_MAX])}{more}",
        file=sys.stderr,
    )


def _print_codes(running: dict[str, Execution], error: str | None = None) -> None:
    """``error``: why it has ended before those that have no exit status."""
    import json

    for name, execution in running.items():
        for rank, point in enumerate(execution.points):
            code = execution.codes.get(rank)
            line = {"mesh": name, "rank": rank, "point": point, "exit_code": code}
            if code is None:
                line["error"] = error
            if execution.output_dir is not None:
                line["output"] = f"{execution.output_dir}/{rank}.log"
            print(json.dumps(line))
