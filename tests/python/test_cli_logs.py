"""`monarch logs`: what a job's processes have written to files."""

import contextlib
import errno
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime

import pytest
from saved_job import LIMIT, SavedJob
from script_run import Run, unfinished

from monarch._processes.output import output_settings
from monarch.config import clear_runtime_config, configure
from monarch.job import DEFAULT_JOB_PATH, LocalJob, ProcessJob, job_load
from monarch.job._process_job import _address
from monarch.tools._active import hosts_of
from monarch.tools._log_files import Reader, Source, Wanted, _captured, _writers, find
from monarch.tools.cli import main


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    made = SavedJob(tmp_path_factory.mktemp("j"))
    made.run.tell("one first\nall second\n")
    made.run.line("second 3")
    with open(daemon_log(made, 2), "a") as file:  # what a daemon says if something is wrong
        file.write("monarch-hostd: somebody knocks\n")
    unfinished.remove(made.run)  # it goes on after the first of these tests
    yield made
    unfinished.append(made.run)
    made.end()


def daemon_log(job, index):
    return hosts_of(job_load(str(job.folder / DEFAULT_JOB_PATH))._running)[index].log


def logs(job, *options):
    status, out, err = job.monarch("logs", *options)
    assert (status, err) == (0, "")
    return out.splitlines()


@pytest.mark.feature(96, "the commands")
def test_all_files_of_the_job(job):
    lines = logs(job)
    assert lines[0] == "[generators[0]] monarch-hostd: somebody knocks"
    assert sorted(lines[1:]) == sorted([
        *(f"[trainers[{rank // 2}] all {rank}] {text} {rank}" for rank in range(4) for text in ("begun", "second")),
        "[trainers[1] one 0] begun 0",
        "[trainers[1] one 0] first 0",
        "[generators[0] other 0] begun 0",
    ])  # fmt: skip
    hosts = [line.partition("]")[0] for line in lines[1:]]  # one after the other
    assert hosts == ["[trainers[0"] * 4 + ["[trainers[1"] * 6 + ["[generators[0"]
    # Of one host, in the order in which they were printed.
    assert set(lines[1:3]) == {"[trainers[0] all 0] begun 0", "[trainers[0] all 1] begun 1"}
    assert lines[7:9] == ["[trainers[1] one 0] begun 0", "[trainers[1] one 0] first 0"]


@pytest.mark.parametrize(
    "options, lines",
    [
        (["--mesh", "one"], ["[trainers[1] one 0] begun 0", "[trainers[1] one 0] first 0"]),
        (["--mesh", "generators", "--rank", "0"], ["[generators[0] other 0] begun 0"]),
        (["--mesh", "trainers", "--host", "1", "--grep", "second|first"], [
            "[trainers[1] all 2] second 2", "[trainers[1] all 3] second 3", "[trainers[1] one 0] first 0"]),
        (["--rank", "3", "--grep", "^beg"], ["[trainers[1] all 3] begun 3"]),
        (["--since", "1h", "--mesh", "one", "--grep", "first"], ["[trainers[1] one 0] first 0"]),
    ],
)  # fmt: skip
def test_what_is_wanted(job, options, lines):
    assert sorted(logs(job, *options)) == lines


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        (["--mesh", "one", "--grep", "no where", "--json"], "--mesh one --grep 'no where'"),
        (["--since", "1ms", "--rank", "0"], "--rank 0 --since 1ms"),
        (["--last", "-t", "--grep", "nosuch"], "--grep nosuch --last"),
        (["--host", "0", "--mesh", "all", "--grep", "nosuch"], "--mesh all --host 0 --grep nosuch"),
    ],
)
def test_a_search_without_a_match_says_so_beside_its_empty_output(job, options, asked):
    said = f"monarch logs: no line in the files of the job matches {asked}\n"
    assert job.monarch("logs", *options) == (0, "", said)


@pytest.mark.parametrize(
    "options, asked",
    [(["--mesh", "none"], "--mesh none"), (["--mesh", "trainers", "--host", "2"], "--mesh trainers --host 2")],
)
def test_what_there_is_nothing_of_is_said(job, options, asked):
    there = "trainers (2 hosts), generators (1 host), all (4 ranks), one (1 rank), other (1 rank)"
    said = f"nothing in the files of the job is of {asked}; there is what was written by {there}"
    assert job.monarch("logs", *options) == (1, "", f"monarch logs: {said}\n")
    with job.command("logs", "-f", *options) as process:
        assert process.stderr.readline() == f"monarch logs: {said}; waiting for some\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=LIMIT) == ("", "")


TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.mark.feature(96, "the commands")
def test_the_times_of_lines(job):
    lines = logs(job, "-t", "--mesh", "one")
    assert [line[24:] for line in lines] == [" [trainers[1] one 0] begun 0", " [trainers[1] one 0] first 0"]
    assert all(re.fullmatch(TIME, line[:24]) for line in lines)
    age_s = time.time() - datetime.fromisoformat(lines[1][:23] + "+00:00").timestamp()
    assert 0 < age_s < 600
    assert logs(job, "--times", "--grep", "knocks") == [f"{'-':24} [generators[0]] monarch-hostd: somebody knocks"]


def name_of_run(path):
    return path.rpartition("_")[2].removesuffix(".log")


def test_an_object_for_each_line(job):
    (line,) = logs(job, "--json", "--rank", "2", "--grep", "second")
    found = json.loads(line)
    name = r"monarch_log_\w{8}~trainers~1_20\d{6}-\d{6}-\d+\.log"
    assert re.fullmatch(name, os.path.basename(found["file"])) and re.fullmatch(TIME, found["time"])
    assert found == {
        "kind": "worker", "hosts": "trainers", "host": 1, "mesh": "all", "rank": 2,
        "run": name_of_run(found["file"]), "file": found["file"],
        "time": found["time"], "line": "second 2",
    }  # fmt: skip
    (line,) = logs(job, "--json", "--grep", "knocks")
    assert json.loads(line) == {
        "kind": "host", "hosts": "generators", "host": 0, "mesh": None, "rank": None, "run": None,
        "file": daemon_log(job, 2), "time": None, "line": "monarch-hostd: somebody knocks",
    }  # fmt: skip


def test_a_host_has_one_file_that_people_can_read_themselves(job):
    (path,) = (job.folder / "t/somebody").glob("monarch_log_*~trainers~1_*")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = path.read_text().splitlines()
    assert all(re.match(f"{TIME} \\[", line) for line in lines)
    assert [line[:24] for line in lines] == sorted(line[:24] for line in lines)
    assert sorted(line[25:] for line in lines) == [
        "[all 2] begun 2", "[all 2] second 2", "[all 3] begun 3", "[all 3] second 3", "[one 0] begun 0",
        "[one 0] first 0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options, why",
    [
        (["--since", "5"], "'5' is not a time such as 30s: a positive number and ms, s, m, h or d"),
        (["--since", "0s"], "'0s' is not a time"),
        (["--since", "9" * 26 + "d"], "'9+d' is longer ago than there are dates"),
        (["--since", "9" * 400 + "d"], "'9+d' is longer ago than there are dates"),
        (["--since", "100000000d"], "'100000000d' is longer ago than there are dates"),
        (["--rank", "-1"], "expected one argument|'-1' is not a number from 0 on"),
        (["--host", "a"], "'a' is not a number from 0 on"),
        (["--grep", "("], "'\\(' is not a regular expression: missing \\)"),
        (["--job", "1234567"], "'1234567' is not the beginning of an apply_id"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, options, why):
    with pytest.raises(SystemExit) as end:
        main(["logs", *options])
    assert end.value.code == 2 and re.search(why, capsys.readouterr().err)


def test_who_reads_may_have_enough(job):
    with job.command("logs") as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(LIMIT) == 128 + signal.SIGPIPE


class Lines:
    """Of a process that goes on."""

    def __init__(self, process):
        self.process, self.text = process, ""

    def wait_for(self, text):
        until = time.monotonic() + LIMIT
        while text not in self.text:
            assert select.select([self.process.stdout], [], [], until - time.monotonic())[0], self.text
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, self.text
            self.text += data.decode()


def test_it_follows_until_the_job_has_ended(tmp_path):
    job = SavedJob(tmp_path)
    with job.command("logs", "-f", "--mesh", "one") as process:
        shown = Lines(process)
        shown.wait_for("begun 0\n")
        job.run.tell("one again\nall not wanted\n")
        shown.wait_for("[trainers[1] one 0] again 0\n")
        job.end()
        rest, err = process.communicate(timeout=LIMIT)
        assert (process.returncode, err) == (0, "")
    assert shown.text + rest == "[trainers[1] one 0] begun 0\n[trainers[1] one 0] again 0\n"


def test_a_job_without_daemons_here_is_followed_until_it_is_no_longer_saved(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    job = LocalJob()
    job.apply()
    job.dump(DEFAULT_JOB_PATH)
    follower = threading.Thread(target=main, args=(["logs", "-f"],))
    follower.start()
    follower.join(1)
    assert follower.is_alive()
    job.kill()
    follower.join(LIMIT)
    assert not follower.is_alive()


def test_ctrl_c_ends_it(job):
    with job.command("logs", "-f") as process:
        Lines(process).wait_for("begun 0\n")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=LIMIT)[1] == ""
        assert process.returncode in (130, -signal.SIGINT)  # a shell says 130 of both


def test_what_a_worker_starts_prints_into_the_file_of_the_host_that_it_starts_it_on(tmp_path):
    script = """
from monarch.job import ProcessJob
class Talker(Actor):
    @endpoint
    def say(self, text):
        print(text, flush=True)
    @endpoint
    def start(self, host):
        this_host().spawn_procs(name="near").spawn("t", Talker).say.call("here").get()
        host.spawn_procs(name="far").spawn("t", Talker).say.call("there").get()
job = ProcessJob({"hosts": 2})
hosts = job.state(cached_path=None).hosts
hosts.slice(hosts=1).spawn_procs(name="it").spawn("t", Talker).say.call("before").get()
hosts.slice(hosts=0).spawn_procs(name="boss").spawn("t", Talker).start.call(hosts.slice(hosts=1)).get()
job.kill()
"""
    env = {"HYPERACTOR_MESH_ENABLE_FILE_CAPTURE": "1", "TMPDIR": str(tmp_path), "USER": "somebody"}
    assert Run(script, env=env).done().status == 0
    first, second = sorted((tmp_path / "somebody").iterdir())
    assert "~hosts~0_" in first.name and "~hosts~1_" in second.name
    assert [line[25:] for line in first.read_text().splitlines()] == ["[boss 0/near 0] here"]
    assert [line[25:] for line in second.read_text().splitlines()] == ["[it 0] before", "[boss 0/far 0] there"]


RUN_OF_A_JOB = """
import os, signal, sys
from monarch.actor import Actor, SupervisionError, endpoint
from monarch.job import ProcessJob
class Talker(Actor):
    @endpoint
    def say(self, text):
        print(text, flush=True)
    @endpoint
    def die(self):
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
talkers = ProcessJob({"hosts": 1}).state().hosts.spawn_procs({"p": 2}, name="it").spawn("t", Talker)
talkers.say.call(sys.argv[1]).get()
try:
    talkers.slice(p=1).die.call().get()
except SupervisionError:
    pass
"""


@pytest.mark.feature(96, "the commands")
def test_runs_of_one_job_deaths_and_what_is_left_of_a_job_that_was_killed(tmp_path, monkeypatch, capsys):
    env = {"HYPERACTOR_MESH_ENABLE_FILE_CAPTURE": "1", "TMPDIR": str(tmp_path), "USER": "somebody"}
    monkeypatch.setenv("USER", "somebody")
    (tmp_path / "script.py").write_text(RUN_OF_A_JOB)
    monkeypatch.chdir(tmp_path)
    for word in ("one", "two"):
        subprocess.run([sys.executable, "script.py", word], env=os.environ | env, check=True, timeout=LIMIT)

    def logs(*options):
        assert main(["logs", *options]) == 0
        return capsys.readouterr().out.splitlines()

    one, between, two = logs("--rank", "0")
    assert (one, two) == ("[hosts[0] it 0] one", "[hosts[0] it 0] two")
    assert re.fullmatch(r"-- run of 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC, pid \d+ --", between)
    assert logs("--rank", "0", "--last") == ["[hosts[0] it 0] two"]
    said, last, died = logs("--rank", "1", "--last")
    assert (said, last) == ("[hosts[0] it 1] two", "[hosts[0] it 1] last words")
    assert re.fullmatch(r"\[hosts\[0\] it 1\] monarch: the process .* failed: Killed\(sig=9\).*", died)
    runs = {json.loads(line)["run"] for line in logs("--json")}
    assert len(runs) == 2 and all(re.fullmatch(r"20\d{6}-\d{6}-\d+", run) for run in runs)
    job = job_load().apply_id[:8]
    everything = logs("-t")
    assert main(["kill"]) == 0
    told = f"what its workers have printed stays in {tmp_path}/somebody: monarch logs --job {job}\n"
    assert capsys.readouterr() == ("", told)
    assert main(["logs"]) == 1 and "no active job was found" in capsys.readouterr().err
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert logs("-t", "--job", job) == logs("-t", "-f", "--job", job) == everything
    assert main(["logs", "--job", "12345678-1"]) == 1
    said = f"monarch logs: there is no file of workers of a job 12345678 in {tmp_path}/somebody\n"
    assert capsys.readouterr() == ("", said)


def test_the_client_of_batch_mode_writes_one_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("print('from the client \u2713')\n")
    job = LocalJob()
    job.apply("client.py")
    job.dump(DEFAULT_JOB_PATH)
    assert job.process.wait(LIMIT) == 0
    assert main(["logs", "-f"]) == 0  # it has ended
    assert capsys.readouterr() == ("[client] from the client \u2713\n", "")
    assert main(["logs", "--rank", "0"]) == 1
    said = "monarch logs: nothing in the files of the job is of --rank 0; there is what was written by client\n"
    assert capsys.readouterr() == ("", said)
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    shown = subprocess.run([sys.executable, "-m", "monarch", "logs"], env=env, capture_output=True, timeout=LIMIT)
    assert (shown.stdout, shown.stderr) == (b"[client] from the client \\u2713\n", b"")
    job.kill()


def test_that_nothing_is_written_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    job = ProcessJob({"trainers": 1})
    job.apply()
    job.dump(DEFAULT_JOB_PATH)
    assert main(["logs"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("monarch logs: nothing is written there so far; what workers print is, of scr")
    assert f"in {tempfile.gettempdir()}/" in err and "goes by USER and TMPDIR" in err
    for options in (["--grep", "loss"], ["--since", "5m"], ["--json"], ["--host", "0"]):
        assert main(["logs", *options]) == 0 and capsys.readouterr() == ("", err)
    assert main(["logs", "--rank", "99"]) == 1  # there is no such rank
    said = err.replace("nothing is written", "nothing in the files of the job is of --rank 99: nothing is written")
    assert capsys.readouterr() == ("", said)
    job.kill()


def test_what_a_daemon_says_has_its_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    job = ProcessJob({"trainers": 1})
    job.apply()
    job.dump(DEFAULT_JOB_PATH)
    (host,) = hosts_of(job)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as somebody:
        somebody.connect(_address(os.path.dirname(host.log), 0).removeprefix("ipc://"))
        somebody.sendall(b"nonsense" * 100)
        with contextlib.suppress(ConnectionResetError):
            while somebody.recv(1 << 16):
                pass
    until = time.monotonic() + LIMIT
    while not os.path.getsize(host.log):
        assert time.monotonic() < until
    assert main(["logs", "-t"]) == main(["logs", "--since", "1h"]) == 0
    timed, untimed = capsys.readouterr().out.splitlines()
    assert (
        re.fullmatch(rf"{TIME} \[trainers\[0\]\] monarch-hostd: refused a connection: .+", timed)
        and untimed == timed[25:]
    )
    assert main(["logs", "--since", "1ms"]) == 0
    assert capsys.readouterr() == ("", "monarch logs: no line in the files of the job matches --since 1ms\n")
    job.kill()


def test_what_a_process_of_a_job_starts_itself_is_found_by_its_environment(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("USER", "somebody")
    job = LocalJob()
    job.apply()
    monkeypatch.setenv("MONARCH_JOB_ID", str(job.apply_id))
    configure(enable_file_capture=True)
    try:
        begin = output_settings("a mesh_of_4")(2)[3]
    finally:
        clear_runtime_config()
    assert begin == f"+{tmp_path}/somebody/monarch_log_{str(job.apply_id)[:8]}", "the file of who starts it, if any"
    os.mkdir(tmp_path / "somebody")
    path = begin[1:] + "_20260131-120000-4711.log"
    for name in (path, path.replace(str(job.apply_id)[:8], "12345678"), path + ".1"):
        open(name, "w").close()
    os.symlink(path, path.replace("4711.log", "4712.log"))
    assert find(job) == [Source(path, "worker", is_shared=True)]
    of_before = begin[1:] + "~hosts~1_a_mesh_of_4_abcdef_2.log"
    open(of_before, "w").close()
    os.symlink(of_before, of_before.replace("_2.log", "_3.log"))
    assert find(job) == [
        Source(path, "worker", is_shared=True), Source(of_before, "worker", "hosts", 1, "a_mesh_of_4", 2),
    ]  # fmt: skip
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    assert find(job) == []  # whose folder it is not
    job.kill()


# ---- Files that change ----


@pytest.fixture
def reader(tmp_path):
    return Reader(Source(str(tmp_path / "log"), "worker"))


def read(reader, wanted=Wanted(), at_end=False):  # noqa: B008  # it is a tuple
    return [line.text for line in reader.lines(wanted, at_end)]


def test_files_that_are_many_are_opened_for_a_look_only(reader):
    path = reader.source.path
    seen = []

    def look(text, end=""):
        with open(path + end, "a") as file:
            file.write(text)
        reader.park()
        assert reader.file is None
        seen.extend(read(reader))

    look("one\ntw")
    look("o\n")
    reader.park()
    assert read(reader) == [] and reader.file is None, "it was not opened"
    look("three\nfo")
    os.rename(path, path + ".1")
    look("ur\n", ".1")
    look("five\n")
    reader.park()
    os.unlink(path)
    look("six\n")
    assert seen == ["one", "two", "three", "four", "five", "six"]


def test_the_last_run_is_the_one_that_began_last(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("USER", "somebody")
    (tmp_path / "somebody").mkdir()
    first, second = (tmp_path / f"somebody/monarch_log_12345678_20260131-12000{i}-99{9 - i}.log" for i in (1, 2))
    for path in (second, first):
        path.write_text("")
    os.utime(second, (1, 1))
    assert [source.path for source in find("12345678", last_run=True)] == [str(second)]
    assert len(find("12345678")) == 2


def test_what_is_left_of_a_line_that_is_too_long_is_not_another_line(reader):
    with open(reader.source.path, "w") as file:
        print("a" * (1 << 20) + "b" * (2 << 20) + "c", "next", sep="\n", file=file)
    long, then = read(reader)
    assert len(long) == (1 << 20) + (1 << 10) and set(long) == {"a", "b"} and then == "next"


def test_a_line_is_shown_when_it_is_whole(reader):
    assert read(reader) == []
    with open(reader.source.path, "w") as file:
        print("one\ntw", end="", file=file, flush=True)
        assert read(reader) == ["one"]
        print("o\r\nthr\xff", end="", file=file, flush=True)
        assert read(reader) == ["two"]
        assert read(reader) == []
    assert read(reader, at_end=True) == ["thr\xff"]


def test_a_file_that_was_rotated_or_cut_is_read_from_its_start(reader):
    path = reader.source.path
    for how in (os.unlink, lambda path: os.rename(path, path + ".1"), lambda path: os.truncate(path, 0)):
        with open(path, "w") as file:
            file.write("before, and something\nunfinished")
        assert read(reader)[-1] == "before, and something"
        how(path)
        with open(path, "a") as file:
            file.write("after\n")
        assert read(reader)[-1] == "after"
        os.unlink(path)
        read(reader)


def test_what_was_put_aside_when_the_file_was_full_comes_first(reader):
    path = reader.source.path

    def write(text):
        with open(path, "a") as file:
            file.write(text)

    write("one\n")
    os.rename(path, path + ".1")
    write("two\n")
    assert read(reader) == ["one", "two"]
    write("three\n")
    os.rename(path, path + ".1")
    assert read(reader) == ["three"]
    write("four\n")
    assert read(reader) == ["four"]
    assert read(reader) == []
    assert read(Reader(reader.source)) == ["two", "three", "four"]


def rotate(path):
    os.rename(path, path + ".1")


def test_two_that_were_put_aside_between_two_looks_are_read_whole(reader, capfd):
    write(reader, "n1", "n2")
    assert read(reader) == ["n1", "n2"]
    write(reader, "n2b")
    rotate(reader.source.path)
    write(reader, "n3", "n4")
    rotate(reader.source.path)
    write(reader, "n5")
    assert read(reader) == ["n2b", "n3", "n4", "n5"]
    assert read(reader) == []
    os.unlink(reader.source.path)
    write(reader, "n6")
    assert read(reader) == ["n6"], "and not what stands in .1, once more"
    assert capfd.readouterr().err == ""


def later(path):
    """As if it had been written to after whatever happens now: the clock of a file system ticks slowly."""
    os.utime(path, (time.time() + 60, time.time() + 60))


@pytest.mark.parametrize("parks", [False, True])
def test_a_gap_is_told(reader, capfd, parks):
    for line in ("n1", "n2", "n3", "n4"):
        write(reader, line)
        if line == "n1":
            assert read(reader) == ["n1"]
            if parks:
                reader.park()
        later(reader.source.path)
        if line != "n4":
            rotate(reader.source.path)
    assert read(reader) == ["n3", "n4"]
    assert read(reader) == []
    (line,) = capfd.readouterr().err.splitlines()
    assert line == (
        f"monarch logs: {reader.source.path} was full more than twice since it was last read: lines are missing here"
    )


@pytest.mark.parametrize("what", ["folder", "symlink", "pipe", "unreadable"])
def test_what_cannot_be_what_was_put_aside_is_left_out(reader, capfd, monkeypatch, what):
    write(reader, "one")
    aside = reader.source.path + ".1"
    if what == "folder":
        os.mkdir(aside)
    elif what == "symlink":
        os.symlink(reader.source.path, aside)
    elif what == "pipe":
        os.mkfifo(aside)
    else:

        def opened(path, *rest, before=os.open):
            if path == aside:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)  # also where root runs the tests
            return before(path, *rest)

        monkeypatch.setattr(os, "open", opened)
    assert read(reader) == ["one"]
    write(reader, "two")
    assert read(reader) == ["two"]
    assert list(_writers(reader.source)) == []
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"monarch logs: {aside} is left out: ")


# ---- Files of hosts, whose lines have times ----


@pytest.fixture
def of_host(tmp_path):
    return Reader(Source(str(tmp_path / "log"), "worker", "hosts", 1, is_shared=True))


def write(reader, *lines):
    with open(reader.source.path, "a", errors="surrogateescape") as file:
        file.writelines(line + "\n" for line in lines)


def shown(reader, **wanted):
    return [f"{line.time} [{line.source}] {line.text}" for line in reader.lines(Wanted(**wanted))]


def at(second):
    return f"2026-01-31T12:00:{second:02}.500Z"


def since(second):
    return datetime.fromisoformat(f"2026-01-31T12:00:{second:02}+00:00").timestamp()


def test_lines_of_a_host_are_told_apart(of_host):
    write(of_host, f"{at(1)} [all 2] one", f"{at(2)} [all#2 0] [all 3] x\r", f"{at(3)} [all 2/the helper 1] ",
          f"{at(4)} [all 3] \udcff\0")  # fmt: skip
    reader = Reader(of_host.source)
    assert shown(of_host) == [
        f"{at(1)} [hosts[1] all 2] one", f"{at(2)} [hosts[1] all#2 0] [all 3] x",
        f"{at(3)} [hosts[1] all 2/the helper 1] ", f"{at(4)} [hosts[1] all 3] \ufffd\0",
    ]  # fmt: skip
    found = [line.source for line in reader.lines(Wanted())]
    assert [(source.mesh, source.rank, source.within) for source in found] == [
        ("all", 2, ""), ("all#2", 0, ""), ("the helper", 1, "all 2/"), ("all", 3, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wanted, seconds",
    [
        ({"rank": 0}, [2]),
        ({"rank": 2}, [1, 4]),
        ({"mesh": "all"}, [1, 2, 4]),
        ({"mesh": "all#2"}, [2]),
        ({"mesh": "the helper"}, [3]),
        ({"mesh": "the_helper"}, [3]),
        ({"mesh": "hosts", "host": 1, "rank": 1}, [3]),
        ({"host": 2}, []),
        ({"pattern": re.compile("x$")}, [2, 4]),
        ({"pattern": re.compile("12:00")}, []),
        ({"since": since(3)}, [3, 4]),
        ({"since": since(3), "rank": 2}, [4]),
    ],
)
def test_what_is_wanted_of_a_host(of_host, wanted, seconds):
    write(of_host, f"{at(1)} [all 2] one", f"{at(2)} [all#2 0] x", f"{at(3)} [all 2/the helper 1] y",
          f"{at(4)} [all 2] 2026-01-01 10:00:00 x")  # fmt: skip
    assert [line[17:19] for line in shown(of_host, **wanted)] == [f"{second:02}" for second in seconds]


def test_since_goes_by_the_time_of_each_line_whatever_it_says(of_host):
    write(of_host, f"{at(1)} [all 0] 2036-01-01 10:00:00 not new", f"{at(3)} [all 0] 2016-01-01 10:00:00 not old",
          f"{at(2)} [all 0] after the clock was set back", f"{at(4)} [all 0] new")  # fmt: skip
    assert [line[17:19] for line in shown(of_host, since=since(3))] == ["03", "04"]


def test_kept_lines_are_shown_once(of_host):
    path = of_host.source.path
    write(of_host, f"{at(1)} [all 0] killed", f"{at(2)} [all 1] one")
    assert len(shown(of_host)) == 2
    os.rename(path, path + ".1")
    write(of_host, f"{at(3)} [all 1] two")
    assert shown(of_host) == [f"{at(3)} [hosts[1] all 1] two"]
    os.rename(path, path + ".1")
    write(of_host, f"{at(1)} kept [all 0] killed", f"{at(4)} [all 1] three")
    assert shown(of_host) == [f"{at(4)} [hosts[1] all 1] three"]
    assert shown(of_host) == []
    anew = [f"{at(3)} [hosts[1] all 1] two", f"{at(1)} [hosts[1] all 0] killed", f"{at(4)} [hosts[1] all 1] three"]
    assert shown(Reader(of_host.source)) == anew
    assert shown(Reader(of_host.source), rank=0) == anew[1:2]
    assert shown(Reader(of_host.source), since=since(2)) == [anew[0], anew[2]]
    assert {source.rank for source in _writers(of_host.source)} == {0, 1}


def test_kept_lines_that_stand_in_a_gap_are_shown(of_host, capfd):
    path = of_host.source.path
    write(of_host, f"{at(1)} [all 0] seen")
    assert len(shown(of_host)) == 1
    rotate(path)
    write(of_host, f"{at(2)} [all 1] killed")  # which nobody sees
    later(path)
    rotate(path)
    write(of_host, f"{at(1)} kept [all 0] seen", f"{at(3)} [all 2] three")
    later(path)
    rotate(path)
    write(of_host, f"{at(2)} kept [all 1] killed", f"{at(4)} [all 2] four")
    lines = [f"{at(3)} [hosts[1] all 2] three", f"{at(2)} [hosts[1] all 1] killed", f"{at(4)} [hosts[1] all 2] four"]
    assert shown(of_host) == lines and shown(of_host) == []
    assert "lines are missing here" in capfd.readouterr().err


def test_what_was_torn_is_a_line_of_who_came_before(of_host):
    write(of_host, "of nobody", f"{at(1)} [all 0] whole", "-01-31T12:00:02.000Z [all 1] torn", f"{at(3)} [all 1] on")
    lines = [f"{at(1)} [hosts[1] all 0] whole", f"{at(1)} [hosts[1] all 0] -01-31T12:00:02.000Z [all 1] torn"]
    assert shown(of_host) == [*lines, f"{at(3)} [hosts[1] all 1] on"]


def test_a_line_as_long_as_they_get_is_whole(of_host):
    write(of_host, f"{at(1)} [{'m' * 200} 0] {'x' * (1 << 20)}", f"{at(2)} [all 0] next")
    first, second = of_host.lines(Wanted())
    assert first.text == "x" * (1 << 20) and second.text == "next"


# ---- Files without times ----


def test_what_comes_while_one_follows_has_come_since(reader):
    with open(reader.source.path, "w", buffering=1) as file:
        print("2026-01-01 10:00:00 old", "and its second line", sep="\n", file=file)
        wanted = Wanted(since=time.mktime((2026, 1, 1, 11, 0, 0, 0, 0, -1)))
        assert read(reader, wanted) == []
        print("new, without a time", "2026-01-01 10:30:00 late", "more of that", sep="\n", file=file)
        assert read(reader, wanted) == ["new, without a time"]


def test_since_goes_by_times_in_front_of_lines_and_by_that_of_the_file(reader):
    with open(reader.source.path, "w") as file:
        file.write(
            "no time yet\n2026-01-01 10:00:00 old\n  of the old one\n[2026-01-01T12:00:00] new\nof the new one\n"
        )
    since = time.mktime((2026, 1, 1, 11, 0, 0, 0, 0, -1))
    assert read(reader, Wanted(since=since)) == ["no time yet", "[2026-01-01T12:00:00] new", "of the new one"]
    again = Reader(reader.source)
    os.utime(reader.source.path, (since - 1, since - 1))
    assert read(again, Wanted(since=since)) == []
    with open(reader.source.path, "a") as file:
        file.write("2026-01-01 13:00:00 newer\n")
    assert read(again, Wanted(since=since)) == ["2026-01-01 13:00:00 newer"]


def test_since_knows_times_with_a_zone(reader):
    lines = ["2026-01-31T12:00:01Z old", "2026-01-31 13:00:02.5+01:00 old", "2026-01-31T12:00:03,7Z new", "on"]
    with open(reader.source.path, "w") as file:
        file.writelines(line + "\n" for line in lines)
    assert read(reader, Wanted(since=since(3))) == lines[2:]


def test_a_file_that_is_removed_while_it_is_looked_for_is_left_out(tmp_path, monkeypatch):
    for rank in (0, 1):
        (tmp_path / f"monarch_log_12345678_procs_abcdef_{rank}.log").touch()

    def listed(folder, scandir=os.scandir):
        with scandir(folder) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        os.unlink(found[0].path)
        return found

    monkeypatch.setattr(os, "scandir", listed)
    assert [source.rank for source in _captured(str(tmp_path), "12345678")] == [1]
