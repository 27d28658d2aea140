"""Commands on hosts: exec_command, shell, PortForwarder, `monarch exec` and `monarch shell`."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
from script_run import PROGRAMS, Run, ended

from monarch.actor import ActorError, SupervisionError, this_host
from monarch.job import LocalJob, PortForwarder, exec_command, hosts_from_config, job_load, shell
from monarch.job._descriptors import write_all
from monarch.job._exec import _Files
from monarch.job._runner import _forward

LIMIT = 15
MONARCH = [sys.executable, "-m", "monarch"]


@pytest.fixture(scope="module")
def hosts():
    found = hosts_from_config("hosts")
    yield found
    found.shutdown().get(timeout=LIMIT)


def status(*arguments, **how):
    return exec_command(*arguments, **how).get(timeout=LIMIT)


def text_of(path):
    return Path(path).read_text()


# ---- exec_command ----


@pytest.mark.feature(97, "the exit status", 96, "the exit status")
def test_the_largest_exit_status_of_the_ranks_is_that_of_the_command(hosts, tmp_path):
    assert status(hosts, ["true"], output_dir=tmp_path) == 0
    assert status(hosts, ["exit $((3 + MONARCH_RANK_HOSTS))"], output_dir=tmp_path) == 4
    assert status(hosts, ["no-such-program", "x"], output_dir=tmp_path) == 127
    assert "no-such-program: command not found" in text_of(tmp_path / "1.log")


def test_a_signal_is_128_and_its_number(hosts):
    assert status(hosts, ["kill -TERM $$"], rank=0) == 128 + signal.SIGTERM
    assert status(hosts, ["bash", "-c", "kill -9 $$"], rank=0) == 128 + signal.SIGKILL


def test_each_rank_finds_where_it_is(hosts, tmp_path):
    show = ["echo $MONARCH_RANK_HOSTS/$MONARCH_SIZE_HOSTS $MONARCH_RANK_GPUS/$MONARCH_SIZE_GPUS"]
    assert status(hosts, show, per_host={"gpus": 2}, output_dir=tmp_path) == 0
    assert [text_of(tmp_path / f"{rank}.log") for rank in range(4)] == [
        "0/2 0/2\n", "0/2 1/2\n", "1/2 0/2\n", "1/2 1/2\n"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "found"),
    [({"rank": 2}, ["1 0"]), ({"point": {"hosts": 1, "gpus": 1}}, ["1 1"]), ({"point": {"gpus": 1}}, ["0 1", "1 1"])],
)
def test_some_of_the_ranks(hosts, tmp_path, where, found):
    show = ["echo $MONARCH_RANK_HOSTS $MONARCH_RANK_GPUS"]
    assert status(hosts, show, per_host={"gpus": 2}, output_dir=tmp_path, **where) == 0
    logs = sorted(tmp_path.iterdir())
    assert [path.read_text().strip() for path in logs] == found


def test_environment_and_folder_and_words_as_they_are(hosts, tmp_path):
    command = ["printf", "%s|", "$A", "b  c", "'"]
    assert status(hosts, command, env={"A": "x"}, rank=0, output_dir=tmp_path) == 0
    assert text_of(tmp_path / "0.log") == "$A|b  c|'|"
    assert status(hosts, ["echo $A $PWD; cat"], env={"A": "x"}, workdir="/", rank=0, output_dir=tmp_path) == 0
    assert text_of(tmp_path / "0.log") == "x /\n"


@pytest.mark.feature(97, "output as it comes")
def test_what_one_rank_prints_comes_out_byte_by_byte(hosts, capfdbinary):
    assert status(hosts, [r"printf 'a\r\377\nlast'; printf '\376' >&2"], rank=1) == 0
    assert capfdbinary.readouterr() == (b"a\r\377\nlast", b"\376")


def test_what_several_ranks_print_comes_with_the_rank(hosts, capfdbinary):
    assert status(hosts, [r"printf 'one\n\377 last'"]) == 0
    lines = [re.sub(rb"^\[(exec\S* )?(\d)\]", rb"[\2]", line) for line in capfdbinary.readouterr().out.splitlines()]
    assert sorted(lines) == [b"[0] one", b"[0] \377 last", b"[1] one", b"[1] \377 last"]


def test_output_comes_while_the_command_runs(hosts, tmp_path):
    script = (
        "import sys\nfrom monarch.job import exec_command, hosts_from_config\n"
        + f"""
hosts = hosts_from_config("hosts")
future = exec_command(hosts, ["echo begun; while ! test -e {tmp_path}/go; do sleep 0.01; done; exit 5"], rank=0)
sys.exit(future.get())
"""
    )
    run = Run(script)
    run.line("begun")
    (tmp_path / "go").touch()
    assert run.done().status == 5


def test_both_streams_are_in_the_file_in_order(hosts, tmp_path):
    assert status(hosts, ["echo 1; echo 2 >&2; echo 3"], rank=0, output_dir=tmp_path / "new" / "folder") == 0
    assert text_of(tmp_path / "new" / "folder" / "0.log") == "1\n2\n3\n"


def test_python_runs_in_the_process_itself(hosts, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        "import os, sys\nfrom monarch.actor import current_rank\n"
        "print(__name__, sys.argv[1:], os.environ['MONARCH_RANK_HOSTS'], current_rank().rank)\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    assert status(hosts, [str(file), "3"], output_dir=tmp_path) == 3
    assert text_of(tmp_path / "1.log") == "__main__ ['3'] 1 1\n"
    assert status(hosts, ["-m", "json.tool", "--help"], rank=0, output_dir=tmp_path) == 0
    assert text_of(tmp_path / "0.log").startswith("usage:")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [("import sys; sys.exit('why')", 1, "why\n"), ("1 / 0", 1, "ZeroDivisionError"), ("raise SystemExit", 0, "")],
)
def test_how_a_python_program_ends(hosts, tmp_path, text, code, said):
    file = tmp_path / "program.py"
    file.write_text(text)
    assert status(hosts, [str(file)], rank=0, output_dir=tmp_path) == code
    assert said in text_of(tmp_path / "0.log")


def test_the_frames_of_a_python_program_are_its_own(hosts, tmp_path):
    file = tmp_path / "program.py"
    file.write_text("def fail():\n    1 / 0\n\nfail()\n")
    assert status(hosts, [str(file)], rank=0, output_dir=tmp_path) == 1
    assert text_of(tmp_path / "0.log") == (
        f'Traceback (most recent call last):\n  File "{file}", line 4, in <module>\n    fail()\n'
        f'  File "{file}", line 2, in fail\n    1 / 0\nZeroDivisionError: division by zero\n'
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["/no/such.py"], "FileNotFoundError: .*No such file or directory: '/no/such.py'\n"),
        (["-m", "no_such.module"], "(Import|ModuleNotFound)Error: .*No module named 'no_such'.*\n"),
    ],
)
def test_a_python_program_that_is_not_there_is_one_line(hosts, tmp_path, command, said):
    assert status(hosts, command, rank=0, output_dir=tmp_path) == 1
    assert re.fullmatch(said, text_of(tmp_path / "0.log"))


def test_what_is_no_mesh_of_hosts_is_refused(hosts):
    job = LocalJob()
    with pytest.raises(TypeError, match=r"a command runs on a HostMesh, .*, and not on LocalJob\(\['hosts'\]\)"):
        exec_command(job, ["true"])
    with pytest.raises(TypeError, match="a shell runs on a HostMesh, such as job.state"):
        shell(job)


def test_a_program_that_cannot_be_started_is_said(hosts):
    with pytest.raises(RuntimeError, match="^rank [01] cannot run it: Argument list too long"):
        status(hosts, ["echo", "x" * 200_000])


def test_a_folder_that_is_not_there_is_said(hosts):
    error = exec_command(hosts, ["true"], workdir="/no/such").exception(timeout=LIMIT)
    assert type(error) is RuntimeError and re.fullmatch(
        r"rank \d cannot run in '/no/such': No such file or directory", str(error)
    )


@pytest.mark.parametrize(
    ("arguments", "how", "error"),
    [
        (("ls",), {}, TypeError), (([],), {}, ValueError), ((["-m"],), {}, ValueError), ((["a\0"],), {}, ValueError),
        ((["ls"],), {"env": {"A": 1}}, TypeError), ((["ls"],), {"env": {"A=": "1"}}, ValueError),
        ((["ls"],), {"env": "A=1"}, TypeError),
        ((["ls"],), {"rank": 2}, ValueError), ((["ls"],), {"point": {"x": 0}}, ValueError),
        ((["ls"],), {"point": {"hosts": 2}}, ValueError), ((["ls"],), {"rank": 0, "point": {}}, ValueError),
        ((["ls"],), {"per_host": {"hosts": 2}}, ValueError), ((["ls"],), {"per_host": {"gpus": 0}}, ValueError),
    ],
)  # fmt: skip
def test_nonsense_is_refused(hosts, arguments, how, error):
    with pytest.raises(error):
        exec_command(hosts, *arguments, **how)


# ---- What is left of it ----


def pids_in(path, count):
    """Process ids that a command writes there."""
    until = time.monotonic() + LIMIT
    while True:
        with contextlib.suppress(FileNotFoundError):
            if len(found := text_of(path).split()) == count:
                return [int(pid) for pid in found]
        assert time.monotonic() < until, f"nothing in {path}"
        select.select([], [], [], 0.01)


def all_ended(pids):
    until = time.monotonic() + LIMIT
    return all(ended(pid, until) for pid in pids)


def test_what_a_command_leaves_in_its_group_ends_with_it(hosts, tmp_path):
    assert status(hosts, [f"sleep 1000 & echo $! > {tmp_path}/pid"], rank=0) == 0
    assert all_ended(pids_in(tmp_path / "pid", 1))


def test_the_death_of_its_process_is_told_and_leaves_nothing(hosts, tmp_path, capfd):
    future = exec_command(hosts, [f"sleep 1000 & echo $PPID $$ $! > {tmp_path}/pids; sleep 1000; true"], rank=0)
    worker, *others = pids_in(tmp_path / "pids", 3)
    os.kill(worker, signal.SIGKILL)
    assert isinstance(future.exception(timeout=LIMIT), SupervisionError)
    assert all_ended(others)
    assert status(hosts, ["true"]) == 0  # it was told, and so it does not end the program


def test_its_processes_have_ended_when_the_future_is_done(hosts, tmp_path):
    assert status(hosts, [f"echo $PPID > {tmp_path}/pid"], rank=0) == 0
    assert ended(pids_in(tmp_path / "pid", 1)[0], time.monotonic() + 1)


def test_what_a_daemon_of_it_goes_on_to_print_is_not_waited_for():
    output, printed = os.pipe()
    stop, stopping = os.pipe()
    sent = []

    class Port:
        def send(self, what):
            sent.append(what)
            assert len(sent) < 100
            os.write(printed, b"more")  # before it is looked for again

    os.write(printed, b"all")
    os.close(stopping)
    _forward(Port(), 7, {output: 1}, stop)
    for fd in (output, printed, stop):
        os.close(fd)
    assert b"".join(data for _, _, data in sent) in (b"all", b"allmore") and sent[0][:2] == (7, 1)


def test_output_that_does_not_wait_is_waited_for():
    output, stdout = os.pipe()
    os.set_blocking(stdout, False)
    size, left, full = fcntl.fcntl(stdout, fcntl.F_GETPIPE_SZ), [], threading.Event()

    def read():
        full.wait(LIMIT)
        while piece := os.read(output, size):
            left.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    os.write(stdout, bytes(size))
    full.set()
    write_all(stdout, b"more" * size)
    os.close(stdout)
    reader.join(LIMIT)
    os.close(output)
    assert b"".join(left) == bytes(size) + b"more" * size


def test_files_that_cannot_be_opened_leave_no_descriptors(tmp_path):
    (tmp_path / "1.log").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            _Files(str(tmp_path), 2).__enter__()
    assert len(os.listdir("/proc/self/fd")) == before


SCRIPT = "from monarch.job import exec_command, hosts_from_config\nhosts = hosts_from_config('hosts')\n"


def test_the_end_of_the_script_waits_for_it(tmp_path):
    Run(SCRIPT + f"exec_command(hosts, ['sleep 0.5; touch {tmp_path}/done'], rank=0)\n").ok()
    assert (tmp_path / "done").exists()


@pytest.mark.parametrize("kept", ["", "kept = "])
@pytest.mark.parametrize(
    "command, why",
    [
        ("['exit 3'], rank=0", "its exit status is 3"),
        ("['test $MONARCH_RANK_HOSTS = 0']", "its exit status is 1 on rank 1"),
        ("['no-such-program-here', 'x'], rank=0", "its exit status is 127"),
        ("['true'], workdir='/no/such', rank=0", r"RuntimeError: rank 0 cannot .*/no/such.*"),
    ],
)
def test_a_failure_that_nobody_looks_at_is_told(command, why, kept):
    err = Run(SCRIPT + f"{kept}exec_command(hosts, {command})\n").done().err
    said = re.findall(r"^monarch: exec_command\((.*)\) failed, and nobody has looked at the future: (.*)$", err, re.M)
    assert len(said) == 1 and said[0][0] == repr(eval(f"dict(c={command})")["c"]) and re.fullmatch(why, said[0][1]), err


@pytest.mark.parametrize("looks", [".get()", ".exception()", ""])
def test_nothing_is_told_of_what_was_looked_at_or_went_well(looks):
    run = Run(SCRIPT + f"exec_command(hosts, ['exit {3 if looks else 0}'], rank=0){looks}\n").ok()
    assert "nobody has looked" not in run.err
    assert "nobody" not in Run(SCRIPT + "import asyncio\nasync def main():\n    await exec_command(hosts, ['exit 3'])\n"
                               "asyncio.run(main())\n").ok().err  # fmt: skip


def test_ctrl_c_ends_it_with_the_script(tmp_path):
    run = Run(SCRIPT + f"exec_command(hosts, ['echo $$ > {tmp_path}/pid; sleep 1000; true']).get()\n")
    pids_in(tmp_path / "pid", 1)
    run.interrupt()
    assert "KeyboardInterrupt" in run.done().err  # and nothing is left behind


# ---- shell ----


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, argv, cwd=None):
        self.fd, its_end = os.openpty()
        self.resize(24, 80)
        self.process = subprocess.Popen(
            argv, stdin=its_end, stdout=its_end, stderr=its_end, start_new_session=True, cwd=cwd,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(its_end)
        self.said = b""

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, pattern):
        """Until what it has said since the last one has this in it."""
        until = time.monotonic() + LIMIT
        while not (found := re.search(pattern.encode(), self.said)):
            assert select.select([self.fd], [], [], max(0.0, until - time.monotonic()))[0], self.said
            try:
                self.said += os.read(self.fd, 65536)
            except OSError as error:
                assert error.errno == errno.EIO, error
                raise AssertionError(f"no {pattern!r} in {self.said!r}") from None
        self.said = self.said[found.end() :]
        return found

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.fd)


@pytest.fixture
def terminal():
    found = Terminal([sys.executable, str(PROGRAMS / "exec" / "shell.py")])
    yield found
    found.end()


def test_a_shell_in_this_terminal(terminal):
    terminal.wait_for("ready> ")
    terminal.type("echo $WHO:$PWD; tty; stty size\n")
    terminal.wait_for(r"\rme:/\r\n/dev/pts/\d+\r\n24 80\r\n")
    terminal.wait_for("ready> ")
    terminal.type("trap 'stty size' WINCH; echo set\n")
    terminal.wait_for("\rset\r\n")
    terminal.wait_for("ready> ")  # a trap while bash looks at PROMPT_COMMAND confuses bash 5.2
    terminal.resize(30, 100)
    terminal.wait_for("30 100")
    terminal.type("\nexit 7\n")
    terminal.wait_for("status 7\r\nrestored\r\n")
    assert terminal.process.wait(LIMIT) == 0


def test_ctrl_c_goes_to_what_runs_there(terminal):
    terminal.wait_for("ready> ")
    terminal.type("bash -c 'echo beg\"\"un; exec sleep 1000'\n")  # what prints is in the foreground already
    terminal.wait_for("\rbegun\r\n")
    terminal.type("\x03")
    terminal.wait_for("ready> ")
    terminal.type("sleep 1000 & echo pid-$!\nexit\n")
    pid = int(terminal.wait_for(r"[\r\n]pid-(\d+)\r\n")[1])
    terminal.wait_for("status 0\r\nrestored\r\n")
    assert all_ended([pid])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_when_the_script_is_to_end(terminal, number):
    terminal.wait_for("ready> ")
    terminal.type("echo pid-$PPID\n")
    pid = int(terminal.wait_for(r"[\r\n]pid-(\d+)\r\n")[1])
    terminal.process.send_signal(number)
    terminal.wait_for(f"raised SystemExit {128 + number}\r\nrestored\r\n")
    assert all_ended([pid])


def test_the_death_of_a_shells_process_restores_the_terminal_too(terminal):
    terminal.wait_for("ready> ")
    terminal.type("kill -9 $PPID\n")
    terminal.wait_for("raised SupervisionError")
    terminal.wait_for("\r\nrestored\r\n")


def test_a_shell_without_a_terminal_runs_what_comes():
    run = Run(PROGRAMS / "exec" / "shell.py", stdin="echo $WHO; tty\nexit 3\n").ok()
    assert run.out == "me\nnot a tty\nstatus 3\n"


def test_a_shell_is_for_one_host(hosts):
    with pytest.raises(ValueError, match=r"a shell runs on one host.*\.slice\(hosts=0\)"):
        shell(hosts)


# ---- PortForwarder ----


@pytest.fixture(scope="module")
def ends():
    there, here = this_host().spawn_procs({"g": 2}), this_host().spawn_procs({"g": 2})
    forwarder = this_host().spawn_procs().spawn("forwarder", PortForwarder)
    yield forwarder, there, here
    for mesh in (there, here):
        mesh.stop().get(timeout=LIMIT)


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def serve(answer):
    """Calls ``answer(connection)`` for each connection. Returns the port, and how it ends."""
    server = socket.create_server(("127.0.0.1", 0))

    def run():
        with contextlib.suppress(OSError):
            while True:
                connection = server.accept()[0]
                connection.settimeout(LIMIT)
                with connection:
                    answer(connection)

    threading.Thread(target=run, daemon=True).start()
    return server


def connect(port):
    connection = socket.create_connection(("127.0.0.1", port), LIMIT)
    connection.settimeout(LIMIT)
    return connection


def read_all(connection):
    data = b""
    while part := connection.recv(1 << 20):
        data += part
    return data


@pytest.mark.feature(97, "ports are forwarded")
def test_ports_are_forwarded_point_by_point_and_half_closed_connections_go_on(ends):
    forwarder, there, here = ends

    def answer_as(name):
        return lambda connection: connection.sendall(name + hashlib.sha256(read_all(connection)).digest())

    servers = [serve(answer_as(name)) for name in (b"zero", b"one")]
    ports, targets = free_ports(2), [server.getsockname()[1] for server in servers]
    forwarder.forward.call_one(
        there, lambda point: targets[point["g"]], here, lambda point: f"localhost:{ports[point['g']]}"
    ).get(timeout=LIMIT)
    data = os.urandom(5_000_000)
    for port, name in zip(ports, (b"zero", b"one")):
        for sent in (data, b""):
            with connect(port) as connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                assert read_all(connection) == name + hashlib.sha256(sent).digest()
    for server in servers:
        server.close()


def one(ends):
    forwarder, there, here = ends
    return forwarder, there.slice(g=0), here.slice(g=0)


def test_who_sends_faster_than_others_read_waits(ends):
    forwarder, there, here = one(ends)
    go, got = threading.Event(), []

    def answer(connection):
        go.wait(LIMIT)
        got.append(len(read_all(connection)))
        connection.sendall(b"all")

    server, (port,) = serve(answer), free_ports(1)
    forwarder.forward.call_one(there, server.getsockname()[1], here, f"127.0.0.1:{port}").get(timeout=LIMIT)
    sent, part, most = 0, bytes(1 << 20), 64 << 20
    with connect(port) as connection:
        connection.settimeout(1)
        with contextlib.suppress(TimeoutError):
            while sent < most:
                sent += connection.send(part)
        assert sent < most
        go.set()
        connection.settimeout(LIMIT)
        connection.shutdown(socket.SHUT_WR)
        assert (read_all(connection), got) == (b"all", [sent])
    server.close()


def test_a_connection_that_is_refused_there_is_closed_here_and_told_once(capfd):
    there, here = this_host().spawn_procs(), this_host().spawn_procs()
    port, nobody = free_ports(2)
    forwarder = here.spawn("forwarder", PortForwarder)
    forwarder.forward.call_one(there, nobody, here, f"127.0.0.1:{port}").get(timeout=LIMIT)
    for _ in range(2):
        with connect(port) as connection, contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    for mesh in (here, there):
        mesh.stop().get(timeout=LIMIT)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith(f"] a forwarded port leads to 127.0.0.1:{nobody}: Connection refused")


def test_an_address_that_is_taken_is_said(ends):
    forwarder, there, here = one(ends)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ActorError) as info:
        port = taken.getsockname()[1]
        forwarder.forward.call_one(there, 1, here, f"127.0.0.1:{port}").get(timeout=LIMIT)
    said = f"OSError: [Errno {errno.EADDRINUSE}] 127.0.0.1:{port} cannot be listened at: Address already in use"
    assert str(info.value).splitlines()[2:] == [said] and type(info.value.exception) is OSError


def test_the_end_of_a_forwarder_ends_its_connections_without_a_word(capfd):
    there, here = this_host().spawn_procs(), this_host().spawn_procs()
    server, (port,) = socket.create_server(("127.0.0.1", 0)), free_ports(1)
    forwarder = here.spawn("forwarder", PortForwarder)
    forwarder.forward.call_one(there, server.getsockname()[1], here, f"127.0.0.1:{port}").get(timeout=LIMIT)
    with connect(port) as connection, server.accept()[0] as accepted:
        accepted.sendall(b"x")
        assert connection.recv(1) == b"x"
        for mesh in (here, there):
            mesh.stop().get(timeout=LIMIT)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    server.close()
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ConnectionRefusedError):
        connect(port)


def test_the_end_of_a_forwarder_alone_ends_its_connections_at_both_sides(ends):
    _, there, here = ends
    forwarder = this_host().spawn_procs().spawn("forwarder", PortForwarder)
    server, ports = socket.create_server(("127.0.0.1", 0)), free_ports(2)

    def address(point):
        return f"127.0.0.1:{ports[point.rank]}"

    forwarder.forward.call_one(there, server.getsockname()[1], here, address).get(timeout=LIMIT)
    with server, connect(ports[1]) as connection, server.accept()[0] as accepted:
        accepted.sendall(b"x")
        assert connection.recv(1) == b"x"
        forwarder.stop().get(timeout=LIMIT)
        for side in (connection, accepted):
            side.settimeout(LIMIT)
            with contextlib.suppress(ConnectionResetError):
                assert side.recv(1) == b""


@pytest.mark.parametrize(
    ("port", "address", "said"),
    [
        (0, "localhost:1", "dst_port must be an integer from 1 through 65535"), ("80", "localhost:1", "dst_port must"),
        (8080, "localhost", "src_address must use 'address:port' form"), (8080, ":1", "src_address must use"),
        (8080, "a:x", "src_address port must be an integer from 1 through 65535"),
        (8080, "a:65536", "src_address port must be"),
    ],
)  # fmt: skip
def test_what_cannot_be_forwarded_is_refused(ends, port, address, said):
    forwarder, there, here = ends
    with pytest.raises(ActorError, match=said):
        forwarder.forward.call_one(there, port, here, address).get(timeout=LIMIT)


def test_only_equal_shapes_are_forwarded(ends):
    forwarder, there, here = ends
    with pytest.raises(ActorError, match="not the same shape"):
        forwarder.forward.call_one(here.slice(g=0), 8080, there, "localhost:1").get(timeout=LIMIT)


# ---- monarch exec, monarch shell ----


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a saved job."""
    found = tmp_path_factory.mktemp("job")
    (found / "tmp").mkdir()
    env = {**os.environ, "TMPDIR": str(found / "tmp")}
    done = subprocess.run(
        [sys.executable, PROGRAMS / "exec" / "job.py"], cwd=found, env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    yield found
    job_load(found / ".monarch" / "job_state.pkl").kill()


def monarch(place, *arguments, given="", status=0):
    """What it says on stdout and on stderr."""
    env = {**os.environ, "TMPDIR": str(place / "tmp")}
    done = subprocess.run(
        [*MONARCH, *arguments], cwd=place, env=env, input=given, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == status, done
    return done.stdout, done.stderr


def test_a_command_on_the_first_host_of_the_saved_job(place):
    assert monarch(place, "exec", "-e", "A=b", "echo $A $MONARCH_RANK_HOSTS; exit 3", status=3) == ("b 0\n", "")
    assert monarch(place, "exec", "--point", "hosts=1", "--workdir", "/", "--", "bash", "-c", "pwd; echo err >&2") == (
        "/\n", "err\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        ([], ["trainers[0]"]),
        (["--point", "hosts=1"], ["trainers[1]"]),
        (["--mesh", "generators", "--one"], ["generators[0]"]),
        (["--mesh", "trainers", "--point", "hosts=1", "--per-host", "gpus=2"], ["trainers[1]"]),
        (["--mesh", "trainers", "--json"], ["trainers[0]", "trainers[1]"]),
        (["--all", "--json"], ["generators[0]", "trainers[0]", "trainers[1]"]),
    ],
)
def test_a_command_attaches_to_the_hosts_that_it_runs_on(place, options, hosts):
    def agents(text):
        return [row["host"] for row in json.loads(text) if row["what"] == "agent"]

    until = time.monotonic() + LIMIT
    while agents(monarch(place, "ps", "--json")[0]):  # of commands before
        assert time.monotonic() < until
    write = f"{sys.executable} -m monarch ps --json > {place}/$$.ps"
    monarch(place, "exec", "--workdir", str(place), *options, write)
    files = list(place.glob("*.ps"))
    assert sorted(agents(files[0].read_text())) == hosts
    for file in files:
        file.unlink()


def test_a_host_that_there_is_not_is_said(place):
    for options in (["--point", "hosts=2"], ["--mesh", "none"], ["--point", "rows=0"]):
        _, err = monarch(place, "exec", *options, "true", status=1)
        assert "point must have 0 to 1 for 'hosts'" in err or "'none' is not a" in err or "no dimension 'rows'" in err
    assert "Available names: trainers, generators" in monarch(place, "shell", "--mesh", "none", status=1)[1]


def test_commands_on_many_hosts_print_to_files(place):
    out, err = monarch(place, "exec", "--all", "--json", "echo $MONARCH_RANK_HOSTS; exit $MONARCH_RANK_HOSTS", status=1)
    folder = re.fullmatch("monarch exec: what it prints goes to (.*/monarch_exec_.*)\n", err)[1]
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[1] == {
        "mesh": "trainers", "rank": 1, "point": {"hosts": 1}, "exit_code": 1, "output": f"{folder}/trainers/1.log"
    }  # fmt: skip
    assert [(line["mesh"], text_of(line["output"])) for line in lines] == [
        ("trainers", "0\n"), ("trainers", "1\n"), ("generators", "0\n")
    ]  # fmt: skip
    out, _ = monarch(place, "exec", "--mesh", "generators", "--per-host", "gpus=2", "--json", "true")
    assert [json.loads(line)["point"] for line in out.splitlines()] == [
        {"hosts": 0, "gpus": 0}, {"hosts": 0, "gpus": 1}
    ]  # fmt: skip


def test_commands_on_many_hosts_print_here_if_that_is_asked_for(place):
    command = "echo host $MONARCH_RANK_HOSTS; echo oops >&2; exit $MONARCH_RANK_HOSTS"
    out, err = monarch(place, "exec", "--mesh", "trainers", "--stream", command, status=1)
    assert sorted(out.splitlines()) == ["[0] host 0", "[1] host 1"]
    assert sorted(err.splitlines()) == [
        "[0] oops", "[1] oops",
        "monarch exec: 1 of 2 ranks have failed, with these exit statuses: trainers/1 (1)",
    ]  # fmt: skip
    out, err = monarch(place, "exec", "--all", "--stream", "echo $MONARCH_RANK_HOSTS")
    told = [re.fullmatch(r"\[(?:(\w+)(?:#\d)? )?(\d)\] (\d)", line).groups() for line in out.splitlines()]
    assert err == "" and sorted((rank, printed) for _, rank, printed in told) == [("0", "0"), ("0", "0"), ("1", "1")]
    assert {name for name, _, _ in told if name} in ({"trainers"}, {"generators"}), "of the second that prints its name"
    assert monarch(place, "exec", "--stream", "printf 'no end'")[0] == "no end", "as it is, of the first host"


# The second one waits for what the first has printed: it is not there before that is seen.
def test_what_is_printed_here_comes_as_it_is_printed(place):
    command = "echo before; read line < $FIFO; echo $line"
    os.mkfifo(place / "fifo")
    words = ["exec", "--mesh", "generators", "--stream", "-e", f"FIFO={place}/fifo", command]
    with subprocess.Popen(
        [sys.executable, "-m", "monarch", *words], cwd=place, stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "[0] before\n"
        (place / "fifo").write_text("after\n")
        assert process.stdout.read() == "[0] after\n"
    assert process.returncode == 0


@pytest.mark.parametrize("status", [0, 3])
def test_a_command_that_prints_nothing_leaves_no_folder(place, status):
    _, err = monarch(place, "exec", "--all", f"exit {status}", status=status)
    lines = err.splitlines()
    folder = lines[0].removeprefix("monarch exec: what it prints goes to ")
    assert lines[-1] == "monarch exec: nothing was printed, and the folder is removed"
    assert os.path.exists(os.path.dirname(folder)) and not os.path.exists(folder)


def test_a_host_that_does_not_answer_is_told_by_the_future_alone(place):
    script = """
import os, signal
from monarch.job import ProcessJob, exec_command
job = ProcessJob({"trainers": 1})
host = job.state(cached_path=None).trainers
daemon = job._run.workers[0].pid
os.kill(daemon, signal.SIGSTOP)
try:
    exec_command(host, ["true"]).get()
except Exception as error:
    print(type(error).__name__, "is it stopped?" in str(error))
os.kill(daemon, signal.SIGCONT)
job.kill()
"""
    run = Run(script).ok()
    assert run.out == "SupervisionError True\n"


def test_hosts_that_are_not_needed_may_have_ended(tmp_path):
    (tmp_path / "tmp").mkdir()
    script = """
import os, select, signal, sys
from monarch.job import ProcessJob
job = ProcessJob({"trainers": 3, "others": 1})
job.state()
for number in (1, 3):
    ended = os.pidfd_open(job._run.workers[number].pid)
    signal.pidfd_send_signal(ended, signal.SIGKILL)
    assert select.select([ended], [], [], 30)[0]
assert job._loses().startswith("2 of")
"""
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done
    try:
        for where in ("--one",), ("--point", "hosts=0"), ("--point", "hosts=2"):
            assert monarch(tmp_path, "exec", *where, "echo $MONARCH_RANK_HOSTS")[0] in ("0\n", "2\n")
        for where in ("--point", "hosts=1"), ("--mesh", "trainers"), ("--mesh", "others", "--one"), ("--all",):
            assert "2 of 4 hosts have ended" in monarch(tmp_path, "exec", *where, "true", status=1)[1]
    finally:
        job_load(tmp_path / ".monarch" / "job_state.pkl").kill()


def test_which_ranks_have_failed_is_said_where_output_goes_to_files(place):
    _, err = monarch(place, "exec", "--all", "exit $((3 * MONARCH_RANK_HOSTS))", status=3)
    assert err.splitlines()[1:2] == ["monarch exec: 1 of 3 ranks have failed, with these exit statuses: trainers/1 (3)"]


def test_scripts_and_modules(place):
    assert monarch(place, "exec", "--script", "-", "a b", given='echo "<$1>"; exit 2', status=2) == ("<a b>\n", "")
    (place / "local.py").write_text("import sys; print(__name__, sys.argv[1:])")
    assert monarch(place, "exec", "--script", "local.py", "--", "--x") == ("__main__ ['--x']\n", "")
    assert monarch(place, "exec", "-m", "json.tool", "--compact", "/dev/null", status=1)[1]
    assert monarch(place, "exec", "-m", "platform")[0].startswith("Linux")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--mesh", "x", "true"), "'x' is not a valid host mesh name. Available names: trainers, g"),
        (("--point", "hosts=7", "true"), "point must have 0 to 1 for 'hosts'"),
        (("--workdir", "/no/such", "true"), "cannot run in '/no/such': No such file"),
        (("--script", "/no/such"), "No such file"),
    ],
)  # fmt: skip
def test_what_monarch_exec_cannot_do_is_one_line(place, arguments, said):
    for json_too in ((), ("--json",)):
        out, err = monarch(place, "exec", *json_too, *arguments, status=1)
        assert err.startswith("monarch exec: ") and said in err and err.count("\n") == 1
        assert out == "" or [json.loads(line)["exit_code"] for line in out.splitlines()] == [None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no command: say one"),
        (("",), "no command: say one"),
        (("-e", "A", "x"), "'A' is not NAME=VALUE"),
        (("--point", "a", "x"), "'a' is not DIM"),
        (("--point", "hosts=0,hosts=1", "x"), "'hosts=0,hosts=1' has 'hosts' twice"),
        (("--all", "--one", "x"), "not allowed with"),
        (("--all", "--mesh", "a", "x"), "--all is all meshes"),
        (("--script", "-", "-m", "x"), "either --script or -m"),
    ],
)
def test_wrong_usage_of_monarch_exec(place, arguments, said):
    err = monarch(place, "exec", *arguments, status=2)[1]
    assert err.startswith("usage: monarch exec") and said in err.splitlines()[-1]


def test_one_word_is_a_script_of_bash_whatever_it_begins_with(place):
    assert monarch(place, "exec", "--", "-x; echo hi", status=0)[0] == "hi\n"


def test_a_script_of_python_that_fails_says_where(place):
    (place / "bad.py").write_text("def inner():\n    raise ValueError('no')\n\n\ninner()\n")
    err = monarch(place, "exec", "--script", "bad.py", status=1)[1]
    assert "    raise ValueError('no')\n" in err and err.endswith("ValueError: no\n")


@pytest.mark.parametrize("words", [("cat t.py",), ("cat", "t.py")])
def test_a_line_for_bash_may_end_in_py(place, words):
    (place / "t.py").write_text("what it says\n")
    assert monarch(place, "exec", *words)[0] == "what it says\n"


def test_what_a_program_leaves_for_its_end_is_waited_for(place):
    (place / "late.py").write_text("""
import atexit, concurrent.futures, threading
at_exit, done = threading.Event(), []
atexit.register(lambda: print("last", sorted(done)))
def work():
    at_exit.wait(0.5)
    done.append("thread")
    threading.Thread(target=lambda: (at_exit.wait(0.5), done.append("thread of it"))).start()
threading.Thread(target=work).start()
concurrent.futures.ThreadPoolExecutor().submit(lambda: (at_exit.wait(0.1), done.append("pool")))
kept = concurrent.futures.ProcessPoolExecutor(1)
kept.submit(abs, -3).add_done_callback(lambda there: done.append(f"process {there.result()}"))
print("first", done[:0])
""")
    assert monarch(place, "exec", "late.py")[0] == "first []\nlast ['pool', 'process 3', 'thread', 'thread of it']\n"
    assert (
        monarch(place, "exec", "-e", f"PYTHONPATH={place}", "-m", "late")[0]
        == "first []\nlast ['pool', 'process 3', 'thread', 'thread of it']\n"
    )


def test_where_there_is_no_such_path_programs_are_found_where_systems_have_them(place):
    err = monarch(place, "exec", "-e", "PATH=/nonexistent", "no-such-program", status=127)[1]
    assert "no-such-program: No such file" in err or "no-such-program: command not found" in err


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_streams_that_are_closed_take_nothing_and_the_status_stays(place, closed):
    command = f"{shlex.join(MONARCH)} exec --json 'echo out; echo err >&2; exit 3' {closed}"
    env = {**os.environ, "TMPDIR": str(place / "tmp")}
    done = subprocess.run(command, shell=True, cwd=place, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert done.stdout.splitlines()[:1] == ([] if ">&-" in closed.split() else ["out"])
    assert done.stderr == ("" if "2>&-" in closed else "err\n")


def test_where_a_host_ends_the_others_have_their_lines_of_json(tmp_path):
    (tmp_path / "tmp").mkdir()
    script = "from monarch.job import ProcessJob\nProcessJob({'a': 2}).state()\n"
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True, timeout=LIMIT)
    daemons = [worker.pid for worker in job_load(tmp_path / ".monarch" / "job_state.pkl")._run.workers]
    # The second host ends when the first one's command is over.
    command = f"[ $MONARCH_RANK_HOSTS = 0 ] && touch {tmp_path}/over || {{ until [ -e {tmp_path}/over ]; do :; done; "
    command += f"kill -9 {daemons[1]}; sleep 60; }}"
    out, err = monarch(tmp_path, "exec", "--all", "--json", command, status=1)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["rank"] for line in lines] == [0, 1] and lines[1]["exit_code"] is None and lines[1]["error"] in err
    job_load(tmp_path / ".monarch" / "job_state.pkl").kill()


@pytest.mark.parametrize("command", [("exec", "true"), ("shell",)])
def test_without_a_job_both_say_so(tmp_path, command):
    (tmp_path / "tmp").mkdir()
    text = "no active job was found in this context; run 'monarch apply' first, or go where that was run: this is "
    assert monarch(tmp_path, *command, status=1) == ("", f"monarch {command[0]}: {text}{tmp_path}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]


@pytest.mark.parametrize("command", [("exec", "true"), ("shell",)])
def test_a_saved_job_of_a_class_that_is_not_found_is_one_line(tmp_path, command):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "script.py").write_text(
        "from monarch.job import LocalJob\nclass Mine(LocalJob): pass\nMine().state()\n"
    )
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True, timeout=LIMIT)
    out, err = monarch(tmp_path, *command, status=1)
    assert out == "" and re.fullmatch(rf"monarch {command[0]}: .* cannot be read as a saved job: .*'Mine'.*\n", err)


def test_ctrl_c_ends_monarch_exec_and_the_command(place, tmp_path):
    process = subprocess.Popen([*MONARCH, "exec", f"echo $$ > {tmp_path}/pid; sleep 1000; true"], cwd=place)
    pids = pids_in(tmp_path / "pid", 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT) == 130 and all_ended(pids)


def test_monarch_shell(place):
    out, _ = monarch(place, "shell", "--mesh", "generators", "-e", "A=b", given="echo $A\nexit 6", status=6)
    assert out == "b\n"
    terminal = Terminal([*MONARCH, "shell", "--point", "hosts=1", "-e", "PROMPT_COMMAND=PS1='ready> '"], cwd=place)
    terminal.wait_for("ready> ")
    terminal.type("exit 9\n")
    terminal.wait_for("exit\r\n")
    assert terminal.process.wait(LIMIT) == 9
    terminal.end()


def test_kill_ends_the_job_afterwards(tmp_path):
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    subprocess.run([sys.executable, PROGRAMS / "exec" / "job.py"], cwd=tmp_path, env=env, check=True)
    pids = [worker.pid for worker in job_load(tmp_path / ".monarch" / "job_state.pkl")._run.workers]
    assert monarch(tmp_path, "exec", "--kill", "exit 4", status=4) == ("", "")
    assert all_ended(pids) and list((tmp_path / "tmp").iterdir()) == []
    assert "no active job" in monarch(tmp_path, "exec", "true", status=1)[1]


def test_what_raises_is_told_as_soon_as_its_future_goes_and_not_by_a_child_of_fork():
    run = Run("""
import gc
from monarch._calls.python_futures import watched_on_thread
gc.disable()
def fail():
    raise ValueError("no")
def failed():
    future = watched_on_thread(fail, "a thread", "it", lambda _: None)
    for thread in threading.enumerate():
        if thread.name == "a thread":
            thread.join()
    return future
failed()
kept = failed()
if (child := os.fork()) == 0:
    del kept
    os._exit(0)
os.waitpid(child, 0)
print("told")
kept._looked = True
""").done()  # fmt: skip
    assert run.status == 0 and run.err == "monarch: it failed, and nobody has looked at the future: ValueError: no\n"


def test_ctrl_c_is_no_news_of_a_command_that_it_ends():
    run = Run(SCRIPT + "future = exec_command(hosts, ['echo runs; sleep 60'], rank=0)\nimport time\ntime.sleep(60)\n")
    run.line("runs")
    run.process.send_signal(signal.SIGINT)
    run.done()
    assert "KeyboardInterrupt" in run.err and "nobody has looked" not in run.err, run.err
