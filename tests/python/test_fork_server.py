"""What the fork server imports and when, and that it tells deaths meanwhile."""

import subprocess
import sys

from script_run import program


def test_the_fork_server_imports_little_before_its_first_fork():
    code = (
        "import sys; from monarch._programs import fork_server; fork_server._preload(False); "
        "print([name for name in ('asyncio', 'cloudpickle', 'inspect', 'socket') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


FORK_SERVER = program("fork_server/fork_server.py")
LATER_MODULE = "import __main__\n__main__.Server.events.append(__name__)\n"


def run_fork_server(folder, code, **modules):
    for name in ("first", "second"):
        (folder / f"{name}.py").write_text(LATER_MODULE + modules.get(name, ""))
    done = subprocess.run(
        [sys.executable, "-c", FORK_SERVER + code + "\nfork_server.main('0', False)"],
        capture_output=True, text=True, check=True, cwd=folder, timeout=30,
    )  # fmt: skip
    return done.stdout


def test_the_fork_server_imports_the_rest_when_nobody_has_asked_for_a_while(tmp_path):
    out = run_fork_server(tmp_path, "worker.run = lambda fds: os._exit(0)\nServer.reap = lambda self: None")
    assert out == "[300, 300, 'first', 10, 'second']\n"


def test_deaths_are_told_while_the_fork_server_imports(tmp_path):
    waits_for_a_death = """
__main__.go.write("go")
__main__.go.close()
while "reaped" not in __main__.Server.events:
    pass
"""
    code = """
read, write = os.pipe()
go = os.fdopen(write, "w")
worker.run = lambda fds: (go.close(), os.read(read, 1), os._exit(0))
requests = iter([1])
fork_server._LATER = ("first",)
"""
    out = run_fork_server(tmp_path, code, first=waits_for_a_death)
    assert out == "[300, 300, 'first', 'reaped']\n"
