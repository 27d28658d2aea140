"""A daemon starts the fork server of its next client when one has gone: who gets it must not see how old it is."""

import json
import os
import signal
import subprocess
import time
import zipfile
from pathlib import Path

import pytest
from hostd import LIMIT, Daemon
from saved_job import MONARCH

PROBE = """
class Probe(Actor):
    @endpoint
    def see(self, code):
        names = {}
        exec(code, names)
        return names["found"]


def see(code):
    procs = hosts.spawn_procs()
    print(procs.spawn("probe", Probe).see.call_one(code).get(timeout=60))
    hosts.stop().get()


"""


def children(pid):
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                parent = int(stat.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found.append(int(entry))
    return found


def warm_server(daemon):
    """Waits for it; nobody is attached."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        for holder in children(daemon.process.pid):
            for server in children(holder):
                with open(f"/proc/{server}/cmdline") as command:
                    if "fork_server" in command.read():
                        return server
        time.sleep(0.01)
    raise AssertionError("no fork server waits")


def see(daemon, code, **kwargs):
    run = daemon.run(f"see({code!r})", begin=BEGIN, **kwargs).done(limit=60)
    assert run.status == 0, run.err
    return run.out.splitlines()[-1]


BEGIN = f"""
from monarch.actor import Actor, attach_to_workers, endpoint
hosts = attach_to_workers(workers=sys.argv[1:])
{PROBE}"""


@pytest.fixture
def code(folder, monkeypatch):
    """A folder on PYTHONPATH, on which another one and a zip stand, too, that are not there yet."""
    code = Path(folder, "code")
    code.mkdir()
    monkeypatch.setenv("PYTHONPATH", f"{code}:{folder}/later:{folder}/code.zip:{os.environ.get('PYTHONPATH', '')}")
    return code


def write_zip(folder, version):
    folder = Path(folder)
    with zipfile.ZipFile(folder / "new.zip", "w") as file:
        file.writestr("other.py", "#" * version)
        file.writestr("zipped.py", f"found = {version}")
    os.rename(folder / "new.zip", folder / "code.zip")


def test_modules_that_come_between_two_clients_are_found(folder, code, scheme):
    write_zip(folder, 10)
    daemon = Daemon(folder, scheme=scheme)
    assert see(daemon, "from zipped import found") == "10"
    warm_server(daemon)
    write_zip(folder, 5000)
    Path(folder, "later").mkdir()
    Path(folder, "later/late.py").write_text("found = 'late'")
    (code / "beside.py").write_text("found = 'beside'")
    assert see(daemon, "import zipped, late, beside; found = zipped.found, late.found, beside.found") == (
        "(5000, 'late', 'beside')"
    )
    assert daemon.end() == (0, "")


def test_what_an_interpreter_imports_at_its_start_is_as_new_as_the_client(folder, code, scheme):
    (code / "sitecustomize.py").write_text("import sys; sys.told = 1")
    daemon = Daemon(folder, scheme=scheme)
    assert see(daemon, "import sys; found = sys.told") == "1"
    server = warm_server(daemon)
    # Of another size: Python takes a .pyc of the same second and size for that of the new file.
    (code / "sitecustomize.py").write_text("import sys; sys.told = 20")
    assert see(daemon, "import sys, os; found = sys.told, os.getppid()") == f"(20, {server})"
    warm_server(daemon)
    assert see(daemon, "import sys; found = sys.told") == "20"
    assert daemon.end() == (0, "")


def test_a_server_that_nothing_has_changed_for_is_used_as_it_is(folder, code, scheme):
    daemon = Daemon(folder, scheme=scheme)
    see(daemon, "found = 0")
    server = warm_server(daemon)
    assert see(daemon, "import sys, os; found = os.getppid(), '_MONARCH_FORK_SERVER_ANEW' in os.environ") == (
        f"({server}, False)"
    )
    assert daemon.end() == (0, "")


def test_who_holds_it_is_shown_by_what_it_is(folder):
    daemon = Daemon(folder, scheme="ipc")
    see(daemon, "found = 0")
    server = warm_server(daemon)
    found = json.loads(subprocess.run([*MONARCH, "ps", "--all", "--json"], check=True, capture_output=True).stdout)
    rows = {row["pid"]: row for row in found}
    holder = rows[rows[server]["parent"]]
    assert (rows[server]["what"], holder["what"]) == ("fork server", "holder")
    assert (holder["parent"], rows[holder["parent"]]["what"]) == (daemon.process.pid, "host daemon")
    assert daemon.end() == (0, "")


def test_the_next_client_has_what_its_daemon_has_been_given_meanwhile(folder, scheme):
    daemon = Daemon(folder, scheme=scheme)
    code = "import os, resource; found = os.nice(0), resource.getrlimit(resource.RLIMIT_CORE)"
    see(daemon, code)
    server = warm_server(daemon)
    subprocess.run(["prlimit", "--core=1000:1000", "--pid", str(daemon.process.pid)], check=True)
    os.setpriority(os.PRIO_PROCESS, daemon.process.pid, 5)
    assert see(daemon, code) == "(5, (1000, 1000))"
    assert warm_server(daemon) != server
    assert daemon.end() == (0, "")


def test_what_an_interpreter_prints_at_its_start_is_not_in_the_way_of_an_address(folder, code):
    (code / "sitecustomize.py").write_text("print('x' * 20_000)")
    daemon = Daemon(folder, scheme="tcp")
    told = b""
    for _ in range(5):
        run = daemon.run("see('found = 1')", begin=BEGIN).done(limit=60)
        assert run.status == 0, run.err
        warm_server(daemon)
        told += os.read(daemon.process.stderr.fileno(), 1 << 16)
    assert b"x" * 1000 in told
    daemon.process.send_signal(signal.SIGTERM)
    out, _ = daemon.process.communicate(timeout=LIMIT)
    assert out == "", "its address was the only thing on it"
