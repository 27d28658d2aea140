"""Has the hosts of a job allocated, or finds that they are, and waits until each of them can be used. Later commands in
this directory are about that job. Without a name: the job of the active context.

example: monarch apply cluster.job  # `job` in cluster.py
"""

from __future__ import annotations

import argparse
import json
import sys

HELP = "allocate a job's hosts, and remember it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", nargs="?", metavar="MODULE.ATTRIBUTE", help="where the job is made")
    parser.add_argument("--json", action="store_true", help="say what there is as JSON")


def run(arguments: argparse.Namespace) -> int:
    from monarch.job import _contexts

    if arguments.job is not None:
        try:
            _contexts.check_path(arguments.job)
        except ValueError as error:
            arguments.parser.error(str(error))
        job = _contexts.imported(arguments.job)
        before = _contexts.spec_of(_contexts.current())
        _contexts.set_current_job(arguments.job)
    else:
        job = _contexts.load_current_job()
    try:
        hosts = job.state()._hosts
    except BaseException:
        if arguments.job is not None:
            _contexts.set_back(before)
        raise
    try:
        for mesh in hosts.values():
            if (ready := mesh.initialized) is not None:
                ready.get()
    except BaseException:
        print("monarch apply: the hosts stay allocated; 'monarch kill' releases them", file=sys.stderr)
        raise
    sizes = {name: mesh.sizes for name, mesh in hosts.items()}
    if arguments.json:
        print(json.dumps({"apply_id": job.apply_id, "context": _contexts.current(), "meshes": sizes}))
    else:
        for name, size in sizes.items():
            print(f"{name}: {size.get('hosts', 1)}")
    return 0
