"""Shared by the API tests: one mesh of two processes, made once, since most tests only spawn actors on it."""

import pytest
import script_run

from monarch.actor import this_host

pytest_plugins = ["parity_plugin"]


@pytest.fixture(scope="session")
def procs():
    mesh = this_host().spawn_procs(per_host={"gpus": 2})
    yield mesh
    mesh.stop().get(timeout=20)


@pytest.fixture(autouse=True)
def no_script_outlives_its_test():
    yield
    while script_run.unfinished:
        script_run.unfinished.pop().end_all()
