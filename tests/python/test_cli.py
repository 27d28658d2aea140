"""The command `monarch`, and `monarch_bootstrap`."""

import importlib
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from script_run import Run, ended, program

from monarch.actor import attach_to_workers
from monarch.tools.cli import command_parser, main

ROOT = Path(__file__).parents[2]
LIMIT = 30
MONARCH = [sys.executable, "-m", "monarch"]


def monarch(*arguments):
    """Its exit status, and what it says on stdout and on stderr."""
    done = subprocess.run([*MONARCH, *arguments], capture_output=True, text=True, timeout=LIMIT)
    return done.returncode, done.stdout, done.stderr


def scripts():
    section = (ROOT / "pyproject.toml").read_text().split("[project.scripts]\n")[1].split("\n[")[0]
    return dict(re.findall(r'^(\w+) = "(.+)"$', section, re.MULTILINE))


@pytest.mark.feature(96, "the commands")
def test_help_and_version_and_what_every_command_is():
    status, out, err = monarch("--help")
    assert (status, err) == (0, "") and "worker" in out and "make this machine a host" in out
    status, out, err = monarch("--version")
    assert (status, err) == (0, "") and re.match(r"monarch \d+\.\d", out)
    status, out, err = monarch("worker", "--help")
    assert (status, err) == (0, "") and "--bind ADDRESS" in out


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("no-such-command",),
        ("worker",),
        ("worker", "--bind"),
        ("worker", "--bi", "ipc://@a"),
        ("-x",),
        ("apply", "a"),
    ],
)
def test_wrong_usage_is_told_with_status_2(arguments):
    status, out, err = monarch(*arguments)
    assert (status, out) == (2, "") and err.startswith("usage: monarch")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "monarch: error: the following arguments are required: COMMAND"),
        (("--nosuch",), "monarch: error: unrecognized arguments: --nosuch"),
        (("context",), "monarch context: error: the following arguments are required: ACTION"),
        (("context", "--nosuch"), "monarch context: error: unrecognized arguments: --nosuch"),
    ],
)
def test_what_is_unknown_is_named_before_what_is_missing(arguments, why, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2 and capsys.readouterr().err.splitlines()[-1] == why


def test_each_command_has_an_example_that_can_be_read():
    parser = command_parser()
    (commands,) = (action.choices for action in parser._actions if action.dest == "command")
    for name, command in {"": parser, **commands}.items():
        lines = command.epilog.splitlines()
        assert lines[0].startswith("example") and f"monarch {name}" in command.epilog, name
        shown = command.format_help()
        assert all(len(line) <= 80 and f"{line}\n" in shown for line in lines), name


def test_each_help_fits_a_screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    parser = command_parser()
    (commands,) = (action.choices for action in parser._actions if action.dest == "command")
    for name, command in {"": parser, **commands}.items():
        lines = command.format_help().splitlines()
        assert all(len(line) <= 80 for line in lines), name
        before_examples = [line.startswith("example") for line in lines].index(True) - 1
        assert before_examples <= 24 and len(lines) <= 32, (name, before_examples, len(lines))
        options = [option for action in command._actions for option in action.option_strings]
        assert all(re.search(rf"(^|\s|\[){option}\b", "\n".join(lines)) for option in options), name


def test_what_an_option_takes_stands_behind_its_names_once():
    (commands,) = (action.choices for action in command_parser()._actions if action.dest == "command")
    assert re.search(r"^  -e, --env NAME=VALUE  \S", commands["exec"].format_help(), re.MULTILINE)


@pytest.mark.parametrize(
    "arguments", [("exec", "--bad", "ls"), ("ps", "--bad"), ("context", "ls", "--bad"), ("kill", "a", "--bad")]
)
def test_an_option_that_is_not_there_is_told_with_those_of_the_command(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    err = capsys.readouterr().err
    assert end.value.code == 2 and err.startswith(f"usage: monarch {arguments[0]} ")
    assert "--bad" in err.splitlines()[-1] and err.splitlines()[-1].startswith(f"monarch {arguments[0]}: error: unrec")


@pytest.mark.feature(96, "the exit status")
def test_a_failure_is_one_line_with_status_1(folder, capsys):
    taken = worker(folder, "ipc://" + folder + "/host")
    status, out, err = monarch("worker", "--bind", f"ipc://{folder}/host", "--token-file", f"{folder}/token")
    assert (status, out) == (1, "") and re.fullmatch(r"monarch-hostd: cannot listen at .*: another one does\n", err)
    taken.terminate()
    assert taken.wait(LIMIT) == 0


def test_a_command_that_raises_is_one_line_too(monkeypatch, capsys):
    monkeypatch.setattr("monarch._meshes.workers.hostd_program", lambda: "/no/such/program")
    assert main(["worker", "--bind", "ipc://@a"]) == 1
    assert capsys.readouterr().err == "monarch worker: [Errno 2] No such file or directory\n"


def test_a_command_that_has_no_stdout_ends_well(tmp_path):
    command = shlex.join([*MONARCH, "context", "ls"])
    done = subprocess.run(f"{command} >&-", shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, "")


def worker(folder, address):
    process = subprocess.Popen(
        [*MONARCH, "worker", "--bind", address, "--token-file", f"{folder}/token"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    process.address = process.stdout.readline().strip()
    return process


@pytest.mark.feature(96, "the commands")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_is_attached_to_and_ends_with_all_that_it_has_started(folder, scheme, number):
    process = worker(folder, f"ipc://{folder}/host" if scheme == "ipc" else "tcp://127.0.0.1:0")
    assert process.address.startswith(f"{scheme}://") and not process.address.endswith(":0")
    assert stat.S_IMODE(os.stat(f"{folder}/token").st_mode) == 0o600
    run = Run(program("workers/attach.py") + """
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
workers = hosts.spawn_procs().spawn("worker", Worker)
print("pid", *workers.pid.call().get().values())
input()
assert workers.pid.call().exception(timeout=20) is not None
""", args=(process.address,), env={"MONARCH_TOKEN_FILE": f"{folder}/token"})  # fmt: skip
    pid = int(run.line("pid "))
    process.send_signal(number)
    assert (process.wait(LIMIT), process.communicate()[1]) == (0, "")
    assert ended(pid, time.monotonic())
    run.tell("\n")
    run.done()
    # If it lives on for a second, it says that its host has ended.
    assert run.status == 0 and re.fullmatch("(monarch: .* was ended with its monarch-hostd .*\n)?", run.err)


def test_a_token_file_may_be_named_from_here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    process = subprocess.Popen(
        [*MONARCH, "worker", "--bind", f"ipc://{folder}/host", "--token-file", "token", "--python", sys.executable],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == f"ipc://{folder}/host\n"
    monkeypatch.setenv("MONARCH_TOKEN_FILE", f"{folder}/token")
    hosts = attach_to_workers(workers=[f"ipc://{folder}/host"])
    assert hosts.initialized.get(timeout=LIMIT) is True
    hosts.shutdown().get(timeout=LIMIT)
    assert process.wait(LIMIT) == 0
    process.stdout.close()


def serving_as_json(folder, *options, **given):
    process = subprocess.Popen(
        [*MONARCH, "worker", "--bind", f"ipc://{folder}/host", "--json", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **given,
    )  # fmt: skip
    return process, process.stdout.readline()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_says_where_it_is_as_json(folder, monkeypatch, number):
    process, line = serving_as_json(folder, "--token-file", f"{folder}/token")
    assert json.loads(line) == {"address": f"ipc://{folder}/host"}
    monkeypatch.setenv("MONARCH_TOKEN_FILE", f"{folder}/token")
    hosts = attach_to_workers(workers=[f"ipc://{folder}/host"])
    assert hosts.initialized.get(timeout=LIMIT) is True
    hosts.stop().get(timeout=LIMIT)
    process.send_signal(number)
    assert (process.communicate(timeout=LIMIT), process.returncode) == (("", ""), 0)


def test_a_worker_that_says_so_as_json_leaves_nothing_when_it_is_killed(folder):
    token, to_give = os.pipe()
    os.write(to_give, b"00112233445566778899aabbccddeeff\n")
    os.close(to_give)
    process, line = serving_as_json(folder, "--token-stdin", stdin=token)
    os.close(token)
    assert json.loads(line)["address"].endswith("/host")
    (daemon,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate(timeout=LIMIT)
    assert ended(int(daemon), time.monotonic() + LIMIT)


def test_a_worker_that_cannot_listen_prints_no_json(folder):
    taken = worker(folder, f"ipc://{folder}/host")
    process, line = serving_as_json(folder, "--token-file", f"{folder}/token")
    out, err = process.communicate(timeout=LIMIT)
    assert (line, out, process.returncode) == ("", "", 1) and err.startswith("monarch-hostd: cannot listen at ")
    taken.terminate()
    assert taken.communicate(timeout=LIMIT)[0] == ""


# ---- Programs of the package ----


def test_every_program_of_the_package_has_its_function():
    found = scripts()
    assert set(found) == {"monarch", "monarch_bootstrap"}
    for target in found.values():
        module, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


def installed(folder, name):
    """The program, as an installation has it."""
    module, _, function = scripts()[name].partition(":")
    path = Path(folder) / name
    path.write_text(f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    path.chmod(0o755)
    return str(path)


def test_monarch_bootstrap_may_be_the_program_of_a_bootstrap_command(folder):
    Run(program("bootstrap_command/look.py") + f"""
command = default_bootstrap_cmd()
command.program, command.args = {installed(folder, "monarch_bootstrap")!r}, []
look = this_host().spawn_procs({{"gpus": 2}}, bootstrap_command=command.with_env({{"A": "1"}})).spawn("look", Look)
assert values(look.env.call("A")) == [["1"], ["1"]]
""").ok()  # fmt: skip


def test_monarch_bootstrap_by_itself_says_what_it_is_for(folder):
    done = subprocess.run([installed(folder, "monarch_bootstrap")], capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert "the program of a BootstrapCommand" in done.stderr
