"""Shared by the API tests: one mesh of two processes, made once, since most tests only spawn actors on it."""

import pytest
import script_run

import monarch.actor
from monarch.actor import this_host

pytest_plugins = ["parity_plugin"]


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
