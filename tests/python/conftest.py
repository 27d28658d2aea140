"""Shared by the API tests: one mesh of two processes, made once, since most tests only spawn actors on it."""

import os

import pytest
import script_run
from hostd import Daemon
from network import Network, why_not

import monarch.actor
from monarch.actor import this_host

pytest_plugins = ["parity_plugin", "ssh_site"]


@pytest.fixture(scope="session")
def procs():
    mesh = this_host().spawn_procs(per_host={"gpus": 2})
    yield mesh
    mesh.stop().get(timeout=20)


@pytest.fixture(autouse=True)
def failures_stop_no_test(monkeypatch):
    """Of what tests have spawned in their own process; scripts of their own end as users' do."""
    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", lambda failure: None)


@pytest.fixture(autouse=True)
def no_script_outlives_its_test():
    yield
    while script_run.unfinished:
        script_run.unfinished.pop().end_all()


@pytest.fixture
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("w")
    os.chmod(found, 0o700)
    yield str(found)
    while Daemon.made:
        with Daemon.made.pop() as process:  # of a test that has failed
            process.terminate()


@pytest.fixture
def network(folder):
    if reason := why_not():
        pytest.skip(reason)
    made = Network(folder, 3)
    yield made
    made.unplug()


@pytest.fixture(params=["ipc", "tcp"])
def scheme(request):
    return request.param


@pytest.fixture
def daemons(folder, scheme):
    made = [Daemon(folder, number, scheme) for number in range(2)]
    yield made
    for each in made:
        status, told = each.end()
        assert (status, told) == (0, "")
