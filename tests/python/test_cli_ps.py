"""`monarch ps` and `monarch top`."""

import json
import os
import pickle
import re
import select
import signal
import subprocess
import termios
import time

import pytest
from saved_job import LIMIT, MONARCH, SavedJob
from script_run import Run, ended

from monarch.job import DEFAULT_JOB_PATH, LocalJob
from monarch.tools.cli import main

NO_JOB = "no active job was found in this context; run 'monarch apply' first, or go where that was run: this is "


@pytest.fixture
def job(tmp_path):
    made = SavedJob(tmp_path)
    yield made
    made.end()


def rows(job, *options):
    status, out, err = job.monarch("ps", "--json", *options)
    assert (status, err) == (0, "")
    return json.loads(out)


def of(found, host):
    return [row["what"] for row in found if row["host"] == host]


# ---- ps ----


@pytest.mark.feature(96, "the commands")
def test_what_runs_on_each_host_of_the_job(job):
    status, out, err = job.monarch("ps")
    lines = out.splitlines()
    assert (status, err) == (0, "") and lines[0].split() == "HOST PID STATE AGE RSS CPU WHAT".split()
    found = rows(job)
    assert len(lines) == len(found) + 1
    assert all(re.fullmatch(r"\S+ +\d+ +\w+( kernel)? +\d+ \w+ +\d+ MiB +\d+\.\d\d s  .+", line) for line in lines[1:])
    begin, end = ["host daemon", "keeper", "agent"], ["fork server", "worker"]
    assert of(found, "trainers[0]") == [*begin, "guard", *end, "worker"]
    assert of(found, "trainers[1]") == [*begin, "guard", *end, "worker", "worker"]
    assert of(found, "generators[0]") == [*begin, "guard", *end]
    assert len({row["job"] for row in found}) == 1
    for row in found:
        assert os.path.exists(f"/proc/{row['pid']}") and 0 < row["age_s"] < LIMIT * 2 and row["rss_bytes"] > 1 << 19
        assert row["cpu_s"] >= 0 and row["command"][0] and os.getsid(row["pid"])
    daemons = {row["pid"] for row in found if row["what"] == "host daemon"}
    assert {row["parent"] for row in found if row["what"] == "keeper"} == daemons


def test_one_that_is_stopped_and_a_host_that_has_ended_are_shown_so(job):
    found = rows(job)
    pids = [row["pid"] for row in found if row["what"] == "host daemon"]
    (fork_server,) = [row["pid"] for row in found if (row["host"], row["what"]) == ("generators[0]", "fork server")]
    os.kill(fork_server, signal.SIGSTOP)
    assert [row["state"] for row in rows(job) if row["pid"] == fork_server] == ["stopped"]
    os.kill(fork_server, signal.SIGCONT)
    os.kill(pids[0], signal.SIGKILL)
    assert ended(pids[0], time.monotonic() + LIMIT)
    states = {row["pid"]: row["state"] for row in rows(job) if row["what"] == "host daemon"}
    assert states.pop(pids[0]) == "ended" and "ended" not in states.values()


def test_all_shows_what_no_saved_job_has_started(job):
    apply_id = rows(job)[0]["job"]
    run = Run("""
pid = this_host().spawn_procs().spawn("a", type("A", (Actor,), {"pid": endpoint(lambda self: os.getpid())})).pid
print("pid", pid.call_one().get(), os.getpid(), flush=True)
input()
""")  # fmt: skip
    worker, script = map(int, run.line("pid ").split())
    found = rows(job, "--all")
    what = {row["pid"]: row["what"] for row in found}
    assert what[worker] == "worker" and what[script].startswith("script: ")
    assert {row["what"] for row in found if row["parent"] == script} == {"guard", "fork server"}
    assert sum(row["job"] == apply_id for row in found) == len(rows(job))
    assert all(row["job"] is None for row in found if row["pid"] in (worker, script))
    shown = job.monarch("ps", "--all")[1]
    assert f"\njob {apply_id}\n" in shown and "\nno job\n" in shown
    run.tell("\n")
    run.ok()


@pytest.mark.parametrize("command", ["ps", "top", "logs"])
def test_without_a_job_that_is_said(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    assert main([command]) == 1
    assert capsys.readouterr() == ("", f"monarch {command}: {NO_JOB}{tmp_path}\n")
    LocalJob().dump(DEFAULT_JOB_PATH)  # it was not applied
    assert main([command]) == 1
    assert capsys.readouterr() == ("", f"monarch {command}: {NO_JOB}{tmp_path}\n")
    assert os.listdir(tmp_path) == [".monarch"]


def test_a_file_that_is_no_job_is_said_to_be_none(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    os.mkdir(".monarch", 0o700)
    for data in (b"nonsense", pickle.dumps("a text")):
        (tmp_path / DEFAULT_JOB_PATH).write_bytes(data)
        assert main(["ps"]) == 1
        out, err = capsys.readouterr()
        assert out == "" and re.fullmatch(r"monarch ps: .* cannot be read as a saved job: \w+: .*\n", err)
    (tmp_path / DEFAULT_JOB_PATH).chmod(0o666)
    assert main(["ps"]) == 1
    assert "others than its owner may write it" in capsys.readouterr().err


def test_a_job_that_has_nothing_here_is_no_empty_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    job = LocalJob()
    job.state()
    assert main(["ps"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("monarch ps: LocalJob(['hosts']) has no processes on this machine; `monarch ps")
    job.kill()


# ---- top ----


def test_top_shows_one_table_where_there_is_no_terminal(job):
    for options in ([], ["--once"]):
        status, out, err = job.monarch("top", *options)
        lines = out.splitlines()
        assert (status, err) == (0, "") and "\x1b" not in out
        assert lines[0].split() == "HOST PID STATE AGE RSS CPU WHAT".split() and len(lines) == len(rows(job)) + 1
        assert all(re.search(r" \d+%  +\S", line) for line in lines[1:])


def test_top_prints_a_line_of_json_for_each_look(job):
    status, out, err = job.monarch("top", "--once", "--json")
    (line,) = out.splitlines()
    (found, shown), first = (json.loads(line), rows(job)), ("host", "pid", "parent", "what", "command")
    assert (status, err) == (0, "") and [[row[name] for name in first] for row in found] == [
        [row[name] for name in first] for row in shown
    ]
    assert found[0].keys() - shown[0].keys() == {"cpu_percent"} and all(row["cpu_percent"] >= 0 for row in found)
    with job.command("top", "--json") as process:
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=LIMIT)[1] == "" and process.returncode == 0
    assert [row["pid"] for look in looks for row in look] == [row["pid"] for row in shown] * 2


def test_top_as_json_ends_with_who_reads_it(job):
    with job.command("top", "--json") as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait(LIMIT) == 128 + signal.SIGPIPE


class Terminal:
    """`monarch top` in one."""

    def __init__(self, job, *options):
        self.at, inside = os.openpty()
        termios.tcsetwinsize(inside, (10, 40)) if hasattr(termios, "tcsetwinsize") else None
        self.before = termios.tcgetattr(inside)
        self.inside, self.text = inside, ""
        self.process = subprocess.Popen(
            [*MONARCH, "top", *options], cwd=job.folder, env={**os.environ, **job.env}, stdin=inside, stdout=inside,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def wait_for(self, text, count=1):
        until = time.monotonic() + LIMIT
        while self.text.count(text) < count:
            assert select.select([self.at], [], [], until - time.monotonic())[0], self.text
            self.text += os.read(self.at, 65536).decode()

    def end(self):
        """Its status, what it has said, and whether the terminal is as it was."""
        self.wait_for("\x1b[?1049l")
        _, err = self.process.communicate(timeout=LIMIT)
        same = termios.tcgetattr(self.inside) == self.before
        os.close(self.at)
        os.close(self.inside)
        return self.process.returncode, err.decode(), same


@pytest.mark.parametrize("how", ["q", "Ctrl-C", "SIGTERM"])
def test_top_goes_on_in_a_terminal_until_it_is_told_to_end(job, how):
    top = Terminal(job)
    top.wait_for("HOST", count=2)
    if how == "q":
        os.write(top.at, b"xq")
    else:
        top.process.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGINT)
    assert top.end() == (143 if how == "SIGTERM" else 0, "", True)
    if hasattr(termios, "tcsetwinsize"):
        screen = top.text.split("\x1b[H")[1].split("\x1b[J")[0].split("\x1b[K\r\n")
        assert len(screen) == 10 and all(len(line) <= 40 for line in screen)  # the last is what comes behind the end


def test_top_ends_with_one_line_when_the_job_does(tmp_path):
    job = SavedJob(tmp_path)
    top = Terminal(job)
    top.wait_for("HOST")
    job.end()
    assert top.end() == (1, f"monarch top: {NO_JOB}{tmp_path}\n", True)
