"""Opens a shell on a host of the job that is saved here, in this terminal: the first one, if no other is said.

example: monarch shell --mesh trainers --point hosts=1
"""

from __future__ import annotations

import argparse

from monarch.tools.cli import _hosts

HELP = "open a shell on a host of the saved job"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--mesh", metavar="NAME", help="a host of this mesh (the first one)")
    command.add_argument("--point", type=_hosts.numbers, metavar="DIM=N,..", help="the host with these coordinates")
    _hosts.add_arguments(command)


def run(arguments: argparse.Namespace) -> int:
    """Until the shell ends; its exit status."""
    from monarch.tools._active import saved_job

    job = saved_job()
    at = {"hosts": 0, **(arguments.point or {})}
    _, hosts = _hosts.find(_hosts.attach(job, arguments.mesh, at), arguments.mesh)
    from monarch.job import shell
    from monarch.job._exec import check_point

    point = _hosts.first_point(hosts) | check_point(hosts.sizes, arguments.point)
    try:
        return shell(hosts.slice(**point), env=dict(arguments.env), workdir=arguments.workdir)
    finally:
        if arguments.kill:
            job.kill()
