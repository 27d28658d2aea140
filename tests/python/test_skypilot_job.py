"""monarch.job.skypilot.SkyPilotJob, over a stand-in of SkyPilot and an sshd of this test's own."""

import os
import sys
from types import ModuleType, SimpleNamespace

import pytest
from ssh_site import PYTHON, fails

from monarch.job import job_load
from monarch.job.skypilot import SkyPilotJob


class Sky(ModuleType):
    """What SkyPilotJob uses of the package sky. Its nodes are hosts of the site."""

    def __init__(self):
        super().__init__("sky")
        self.did, self.clusters, self.status_of_setup = [], set(), 0

    def Task(self, **what):
        self.did.append(("Task", what))
        return SimpleNamespace(
            set_resources=lambda given: self.did.append(("resources", given)),
            set_file_mounts=lambda given: self.did.append(("mounts", given)),
        )

    def launch(self, task, cluster_name, **options):
        self.did.append(("launch", cluster_name, options))
        self.clusters.add(cluster_name)
        return "launched"

    def stream_and_get(self, request):
        assert request == "launched"
        return 1, object()

    def tail_logs(self, cluster_name, job_id, follow):
        assert cluster_name in self.clusters and job_id == 1 and follow
        return self.status_of_setup

    def exec(self, task, cluster_name):
        self.did.append(("exec", cluster_name))
        return None

    def status(self, cluster_names):
        return [{"name": name} for name in cluster_names if name in self.clusters]

    def down(self, cluster_name):
        self.did.append(("down", cluster_name))
        self.clusters.remove(cluster_name)
        return None

    def get(self, request):
        return request


@pytest.fixture
def sky(site, monkeypatch):
    made = Sky()
    monkeypatch.setitem(sys.modules, "sky", made)
    made.config = site.config("sky", more="Host pair\n HostName 127.0.0.2\nHost pair-worker1\n HostName 127.0.0.3")
    return made


def sky_job(sky, **options):
    options = {"python_exe": PYTHON, "monarch_port": 0, "ssh_args": ["-F", sky.config], **options}
    return SkyPilotJob({"a": 1, "b": 1}, "H100:8", "pair", **options)


@pytest.mark.feature(92)
def test_nodes_of_a_cluster_that_skypilot_makes_and_kill_takes_down(site, sky):
    job = sky_job(sky, idle_minutes_to_autostop=9, down_on_autostop=True, setup_commands=["one", "two"], workdir=".",
                  file_mounts={"/there": "here"})  # fmt: skip
    job.apply()
    task = {"name": "monarch", "run": "true", "num_nodes": 2, "setup": "one\ntwo", "workdir": "."}
    assert sky.did[:3] == [("Task", task), ("resources", "H100:8"), ("mounts", {"/there": "here"})]
    assert sky.did[3] == ("launch", "pair", {"idle_minutes_to_autostop": 9, "down": True})
    assert "pgrep" in sky.did[4][1]["run"] and sky.did[5:] == [("exec", "pair")]
    found = job._addresses()
    assert found["a"][0].startswith("tcp://127.0.0.2:") and found["b"][0].startswith("tcp://127.0.0.3:")
    job.dump("job.pkl")
    loaded = job_load("job.pkl")
    assert not loaded._running.can_run(sky_job(sky, workdir="."))
    loaded.kill()
    assert sky.did[6:] == [("down", "pair")] and site.ends() and not os.path.exists("job.pkl")


def test_a_cluster_is_taken_down_when_its_hosts_cannot_be_started_and_not_when_it_is_gone(site, sky):
    sky.status_of_setup = 3
    assert "the setup of cluster 'pair' has ended with status 3" in fails(sky_job(sky))
    assert sky.did[-1] == ("down", "pair") and not sky.clusters
    sky.status_of_setup = 0
    assert "/no/python" in fails(sky_job(sky, python_exe="/no/python")) and not sky.clusters
    job = sky_job(sky)
    job.apply()
    sky.clusters.clear()
    sky.did.clear()
    job.kill()
    assert sky.did == [] and not job.active


def test_skypilot_is_asked_for_when_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sky", None)
    job = SkyPilotJob({"hosts": 1})
    with pytest.raises(ImportError, match=r"SkyPilotJob needs SkyPilot \(.*\): pip install 'skypilot") as info:
        job.apply()
    assert info.value.__suppress_context__  # one traceback, not two
    with pytest.raises(TypeError, match="cluster_name must be a str, but is 3"):
        SkyPilotJob({"hosts": 1}, cluster_name=3)
    with pytest.raises(TypeError, match="meshes must be a dict"):
        SkyPilotJob(["hosts"])
    with pytest.raises(RuntimeError, match="SkyPilotJob cannot run batch-mode scripts"):
        job.apply("script.py")
