"""A job that mounts an interpreter on its hosts, and gathers what they write. Argument: a folder with ``source/``."""

import os
import sys
from pathlib import Path

from monarch.actor import Actor, endpoint
from monarch.job import ProcessJob

folder = Path(sys.argv[1])
python = folder / "source/.venv/bin/python"
python.parent.mkdir(parents=True)
python.write_text(f'#!/bin/sh\nMOUNTED="$0" exec {sys.executable} "$@"\n')
python.chmod(0o755)
(folder / "logs").mkdir()


class Worker(Actor):
    @endpoint
    def where(self) -> str | None:
        return os.environ.get("MOUNTED")

    @endpoint
    def write(self, text: str) -> None:
        (folder / "logs/log").write_text(text)


job = ProcessJob({"trainers": 2, "generators": 1})
job.remote_mount(str(folder / "source"), str(folder / "at"))
job.gather_mount(str(folder / "logs"), str(folder / "gathered"), meshes=["trainers"])
state = job.state(cached_path=None)
for hosts in (state.trainers, state.generators):
    workers = hosts.spawn_procs().spawn("worker", Worker)
    assert set(workers.where.call().get().values()) == {str(folder / "at/.venv/bin/python")}
workers.write.call("written").get()
assert (folder / "gathered/hosts_1/log").read_text() == "written"

(folder / "source/new").write_text("new")
assert not (folder / "at/new").exists()
state = job.state(cached_path=None)  # refreshes it
assert (folder / "at/new").read_text() == "new"
job.kill()
assert not (folder / "at").exists() and not (folder / "gathered").exists()
