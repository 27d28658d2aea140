"""LightningJob, with a stand-in for lightning_sdk whose machines are daemons of this one."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from hostd import Daemon

from monarch.job import job_loads
from monarch.job.lightning import LightningJob
from monarch.spmd import SPMDActor


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """Its jobs by name, what they were asked for, and where their machines are."""
    found = SimpleNamespace(jobs={}, asked=[], daemons=[])

    class Job:
        def __init__(self, name, teamspace=None):
            self.__dict__ = found.jobs[name]

        @classmethod
        def run(cls, name, num_machines, **asked):
            found.asked.append((num_machines, asked))
            found.jobs[name] = {"status": SimpleNamespace(value="Running"), "name": name}
            found.daemons += [Daemon(tmp_path, len(found.daemons) + number, "tcp") for number in range(num_machines)]
            return cls(name)

        def stop(self):
            self.status = SimpleNamespace(value="Stopped")
            while found.daemons:
                found.daemons.pop().end()

    sdk = ModuleType("lightning_sdk")
    sdk.Job, sdk.Machine = Job, SimpleNamespace(from_str=lambda name: f"Machine.{name}")
    monkeypatch.setitem(sys.modules, "lightning_sdk", sdk)
    monkeypatch.setenv("MONARCH_TOKEN_FILE", str(tmp_path / "token"))
    global addresses
    addresses = found.daemons
    yield found
    while found.daemons:
        found.daemons.pop().end()


def resolve(job):
    assert job.status.value == "Running"
    return [daemon.address for daemon in addresses]


def a_job(**options):
    return LightningJob("run", 2, "A10G", resolver=resolve, teamspace="team", env={"A": "b"}, **options)


def test_the_machines_of_a_job_are_hosts_until_it_is_killed(cloud):
    job = a_job()
    hosts = job.state(cached_path=None).hosts
    assert hosts.sizes == {"hosts": 2}
    assert cloud.asked == [
        (2, {"machine": "Machine.A10G", "command": "monarch worker --bind tcp://*:26600", "env": {"A": "b"},
             "teamspace": "team"})
    ]  # fmt: skip
    ranks = hosts.spawn_procs({"gpus": 1}).spawn("ranks", SPMDActor)
    assert len(ranks.get_host_port.call(None).get()) == 2
    job.kill()
    assert cloud.jobs["run"]["status"].value == "Stopped" and not job.active


def test_a_saved_job_is_gone_on_with_while_it_runs(cloud):
    job = a_job()
    job.apply()
    again = job_loads(job.dumps())
    assert again.active and again.can_run(a_job())
    assert not again.can_run(a_job(image="other"))
    assert again.state(cached_path=None).hosts.sizes == {"hosts": 2} and len(cloud.asked) == 1
    again.kill()
    assert not job.can_run(job)  # it has been stopped


def test_what_does_not_fit_is_refused(cloud, monkeypatch):
    with pytest.raises(RuntimeError, match="must return 1 addresses, but returned"):
        job = LightningJob("run", 1, "CPU", resolver=lambda job: [])
        job.state(cached_path=None)
    job.kill()
    with pytest.raises(ValueError, match="num_machines is 0: expected a number above 0"):
        LightningJob("run", 0, "CPU", resolver=resolve)
    with pytest.raises(TypeError, match="resolver must be a function"):
        LightningJob("run", 1, "CPU", resolver=["tcp://a:1"])
    with pytest.raises(RuntimeError, match="LightningJob cannot run batch-mode scripts"):
        a_job().apply("script.py")
    monkeypatch.setitem(sys.modules, "lightning_sdk", None)
    with pytest.raises(
        ImportError, match=r"needs lightning_sdk \(.*\): pip install 'monarch-cpp\[lightning\]'"
    ) as info:
        a_job().apply()
    assert info.value.__suppress_context__  # one traceback, not two
