"""StoreJob: hosts within a run of torchrun. The ranks here are scripts, their store an object of this process."""

from __future__ import annotations

import base64
import collections
import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
from multiprocessing.managers import BaseManager

import pytest
from script_run import Run, ended, marked, program

from monarch import _core
from monarch.job import LocalJob, _store_job
from monarch.job.spmd import StoreJob

LIMIT_S = 30
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")


class Store:
    """As those of torch: get() waits."""

    def __init__(self):
        self.values = {}
        self.changed = threading.Condition()

    def set(self, key, value):
        with self.changed:
            assert key not in self.values
            self.values[key] = value.encode()
            self.changed.notify_all()

    def get(self, key):
        with self.changed:
            assert self.changed.wait_for(lambda: key in self.values, LIMIT_S), key
            return self.values[key]


@pytest.fixture
def served(tmp_path):
    """A store, and where processes find it."""

    class Manager(BaseManager):
        pass

    store = Store()
    Manager.register("store", callable=lambda: store, exposed=["get", "set"])
    server = Manager(str(tmp_path / "store"), authkey=b"test").get_server()

    def serve():
        with contextlib.suppress(SystemExit):  # as it ends
            server.serve_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield store, server.address
    server.stop_event.set()
    thread.join(LIMIT_S)


class Ranks:
    """A run of so many nodes of two ranks each."""

    def __init__(self, address, folder, nodes=2, token_of_0="token", begin="", **options):
        """``begin``: what each runs first."""
        self.token = str(folder / "token")
        self.runs = [self._start(rank, nodes, address, begin, options, token_of_0) for rank in range(2 * nodes)]

    def _start(self, rank, nodes, address, begin, options, token_of_0):
        env = dict(zip(VARIABLES, map(str, (rank, rank % 2, 2 * nodes, 2))))
        env["MONARCH_TOKEN_FILE"] = self.token if rank else os.path.join(os.path.dirname(self.token), token_of_0)
        return Run(begin + program("store_job/rank.py"), args=(address, json.dumps(options)), env=env)

    def tell(self, line):
        """Has rank 0 do this; returns when it has."""
        run = self.runs[0]
        before = run.out.count("done\n")
        run.tell(line + "\n")
        while run.out.count("done\n") == before:
            assert run._read(time.monotonic() + LIMIT_S), run._stderr()

    def end(self, *failed):
        """These end by themselves, with status 1; the others, which are told to then, well."""
        for run in failed:
            run.done()
            assert run.status == 1, run.err
        for run in self.runs:
            if run not in failed:
                run.process.stdin.close()
                run.ok()


FOUR = "ranks 0 0 2 2"  # each process has the environment of the rank that serves its host


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
@pytest.mark.feature(95)
def test_rank_0_gets_a_job_with_a_host_for_each_node_and_others_none(served, tmp_path, transport):
    store, address = served
    ranks = Ranks(address, tmp_path, transport=transport)
    ranks.tell("print(job.active, job.state().monarch_worker.sizes)")
    assert ranks.runs[0].line("True ") == "{'hosts': 2}"
    assert ranks_there(ranks) == FOUR
    for run in ranks.runs[1:]:
        run.line("no job")
    said = [json.loads(value) for value in store.values.values()]
    assert len(said) == 2 and all(set(each) == {"address", "machine"} for each in said)
    assert all(re.match("tcp://.*:[1-9]" if transport == "tcp" else "ipc://@", each["address"]) for each in said)
    with open(ranks.token, "rb") as file:
        token = file.read()
    assert not any(text in str(store.values) for text in (token.hex(), base64.b64encode(token).decode(), str(token)))
    assert os.stat(ranks.token).st_mode & 0o777 == 0o600
    ranks.end()


def ranks_there(ranks):
    """``RANK`` in two processes on each host."""
    ranks.tell(
        'found = job.state().monarch_worker.spawn_procs({"gpus": 2}).spawn("process", Process).rank.call().get()'
    )
    ranks.tell('print("ranks", *sorted(found.values()))')
    return [line for line in ranks.runs[0].out.splitlines() if line.startswith("ranks ")][-1]


def test_the_job_is_not_saved_and_kill_leaves_the_hosts(served, tmp_path):
    ranks = Ranks(served[1], tmp_path)
    assert ranks_there(ranks) == FOUR
    ranks.tell("job.kill(); print('active', job.active, os.path.exists('.monarch'))")
    assert ranks.runs[0].line("active ") == "False False"
    assert ranks_there(ranks) == FOUR
    ranks.end()


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_hosts_end_with_the_processes_that_serve_them(served, tmp_path, transport):
    # Whatever they have forked lives on, and holds no host.
    child = "import os\nread, write = os.pipe()\n" if transport == "ipc" else ""
    ranks = Ranks(served[1], tmp_path, begin=child, transport=transport)
    node = ranks.runs[2]
    assert ranks_there(ranks) == FOUR
    if child:
        node.tell("child = os.fork() or os.read(read, 1); print('child', child)\n")
        child = int(node.line("child "))
    left = set(marked(node.mark)) - {node.process.pid, child}
    assert left
    node.kill()
    assert all(ended(pid, time.monotonic() + LIMIT_S) for pid in left)
    if child:
        os.kill(child, signal.SIGKILL)
    node.done()
    assert node.status == -signal.SIGKILL
    ranks.runs.remove(node)
    told = ranks.runs.pop(0)
    told.process.stdin.close()
    told.done()
    assert told.status == 1
    assert told.err.startswith("monarch: ranks 2, 3 of 'process' have failed: was ended with its monarch-hostd\n")
    cause = " ".join(told.err.split())
    assert "was ended with its monarch-hostd (rank {'hosts': 1/2} of 'monarch_worker', pid" in cause
    ranks.end()


def test_a_second_call_is_one_of_its_own(served, tmp_path):
    ranks = Ranks(served[1], tmp_path, nodes=1)
    again = "job = StoreJob.from_store(store, name='again')\n"
    ranks.tell(again)
    ranks.tell("first = job.state().again; " + again)
    ranks.tell("print('hosts', len(first), len(job.state().again), first == job.state().again)")
    assert ranks.runs[0].line("hosts ") == "1 1 False"
    ranks.end()


def test_the_old_spelling_gives_the_hosts(served, tmp_path):
    ranks = Ranks(served[1], tmp_path, nodes=1)
    ranks.tell("import warnings; from monarch._src.spmd.host_mesh import host_mesh_from_store as old")
    ranks.tell("warnings.simplefilter('error'); caught = None")
    ranks.tell("exec('try: old(store)\\nexcept DeprecationWarning as error: print(\"caught\", error)')")
    assert "old spelling of monarch.job.spmd.StoreJob.from_store()" in ranks.runs[0].line("caught ")
    ranks.tell("warnings.simplefilter('ignore'); print('old', old(store, name='old').sizes)")
    assert ranks.runs[0].line("old ") == "{'hosts': 1}"
    ranks.end()


# ---- What goes wrong ----


def test_a_host_that_cannot_start_is_an_error_there_and_in_rank_0(served, tmp_path):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        ranks = Ranks(served[1], tmp_path, transport="tcp", monarch_port=taken.getsockname()[1])
        ranks.end(*ranks.runs[::2])
    for run in ranks.runs[::2]:
        assert "RuntimeError: this process cannot be a host: " in run.err and "another program listens there" in run.err


def test_rank_0_is_told_of_a_host_that_cannot_start(served):
    store, _ = served
    store.set("node/0", json.dumps({"address": "ipc://@x", "machine": _core.machine_id()}))
    store.set("node/1", json.dumps({"error": "no room"}))
    with pytest.raises(RuntimeError, match="the host of node 1 cannot start: no room"):
        _store_job._collect(store, "node", 2, "ipc")


def test_ipc_does_not_lead_to_other_machines(served):
    store, _ = served
    store.set("node/0", json.dumps({"address": "ipc://@x", "machine": "another"}))
    with pytest.raises(RuntimeError, match="node 0 is another machine than this one.*transport='tcp'.*MONARCH_TOKEN"):
        _store_job._collect(store, "node", 1, "ipc")
    assert _store_job._collect(store, "node", 1, "tcp") == ["ipc://@x"]


def test_who_does_not_know_the_token_does_not_attach(served, tmp_path):
    ranks = Ranks(served[1], tmp_path, token_of_0="another", transport="tcp")
    ranks.runs[0].tell("job.state().monarch_worker.initialized.get()\n")
    rank_0, node_1 = ranks.runs[::2]
    rank_0.done()
    assert rank_0.status == 1 and "token" in rank_0.err
    node_1.process.stdin.close()
    node_1.done()
    assert node_1.status == 0 and "monarch-hostd: refused a connection: " in node_1.err
    del ranks.runs[::2]
    ranks.end()


@pytest.fixture
def alone(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("env", "options", "error", "text"),
    [
        ({}, {}, RuntimeError, "environment has RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE; here, pass rank, "),
        ({"RANK": "0"}, {"local_rank": 0, "world_size": 1}, RuntimeError, "has LOCAL_WORLD_SIZE; .* local_world_size$"),
        ({"RANK": "zero"}, dict.fromkeys(("local_rank", "world_size", "local_world_size"), 1), RuntimeError, "'zero'"),
        ({}, {"rank": 3, "local_rank": 0, "world_size": 4, "local_world_size": 2}, ValueError, "do not fit each other"),
        ({}, {"rank": 0, "local_rank": 0, "world_size": 3, "local_world_size": 2}, ValueError, "do not fit each other"),
        ({}, {"rank": 4, "local_rank": 0, "world_size": 4, "local_world_size": 2}, ValueError, "do not fit each other"),
        ({}, {"rank": 0, "local_rank": 0, "world_size": 4, "local_world_size": 0}, ValueError, "do not fit each other"),
        ({}, {"transport": "metatls"}, ValueError, "'metatls': expected 'ipc', within one machine, or 'tcp'"),
        ({}, {"transport": "tcp", "monarch_port": 70000}, ValueError, "70000: expected a number from 0, .* to 65535"),
        ({}, {"name": "_private"}, ValueError, "a mesh cannot be called '_private'"),
    ],
)
def test_what_does_not_fit_is_refused(alone, monkeypatch, env, options, error, text):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    store = Store()
    with pytest.raises(error, match=text):
        StoreJob.from_store(store, **options)
    assert store.values == {}


def test_keys_of_a_run_that_was_started_again_are_new(monkeypatch):
    monkeypatch.setattr(_store_job, "_rounds", collections.Counter())
    keys = [_store_job._prefix("x"), _store_job._prefix("x"), _store_job._prefix("y")]
    monkeypatch.setattr(_store_job, "_rounds", collections.Counter())  # as in a new process
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert len({*keys, _store_job._prefix("x")}) == 4


def test_a_store_must_have_set_and_get():
    with pytest.raises(TypeError, match=r"store must have set\(\) and get\(\).*<object object"):
        StoreJob.from_store(object())


def test_a_job_runs_one_with_the_same_hosts_and_no_batch():
    job = StoreJob(["ipc://@x"], "hosts")
    assert job.can_run(StoreJob(["ipc://@x"], "hosts"))
    assert not any(map(job.can_run, (StoreJob(["ipc://@y"], "hosts"), StoreJob(["ipc://@x"]), LocalJob())))
    with pytest.raises(RuntimeError, match="StoreJob cannot run batch-mode scripts"):
        job.apply("script.py")
