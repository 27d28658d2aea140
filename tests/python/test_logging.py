"""What processes print reaches the script's own streams: all of it, in order, and with who said it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from script_run import PROLOGUE, WAYS, Run, program

ways = pytest.mark.parametrize("way", WAYS)

TALKER = program("logging/talker.py")


def per_speaker(text):
    """Who -> what they said, in order."""
    said = {}
    for line in text.splitlines():
        who, what = re.fullmatch(r"\[([^\]]*)\] (.*)", line).groups()
        said.setdefault(who, []).append(what)
    return said


# ---- Who said it ----


@pytest.mark.feature(82, "stdout and stderr apart", "the rank")
@ways
def test_each_stream_reaches_its_own_with_the_rank(way):
    run = Run(TALKER + """
t = talkers()
t.say.call("to stdout", "", "again").get()
t.complain.call("to stderr").get()
""", way=way).done()  # fmt: skip
    assert run.status == 0
    assert per_speaker(run.out) == {rank: ["to stdout", "", "again"] for rank in "01"}
    assert sorted(run.err.splitlines()) == ["[0] to stderr", "[1] to stderr"]


@pytest.mark.feature(82)
@ways
def test_whoever_prints_in_a_process(way):
    run = Run(TALKER + program("logging/whoever_prints_in_a_process.py"), way=way).ok()
    assert per_speaker(run.out) == {
        "procs": [
            *("Python pieces", "a system call", "a process", "C", "a fork"),
            "C without an end of its line, and more of it",
        ]
    }


@pytest.mark.feature(82)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("way", ["fork", "exec"])
def test_lines_of_several_processes_do_not_mix(way, unbuffered):
    run = Run("""
class Talker(Actor):
    @endpoint
    def talk(self, times):
        for _ in range(times):
            print("a", "line", "of", "several", "pieces")
            print("a", "line", "of", "several", "pieces", file=sys.stderr)
this_host().spawn_procs(per_host={"gpus": 3}).spawn("talkers", Talker).talk.call(300).get()
""", way=way, env={"PYTHONUNBUFFERED": unbuffered}).done()  # fmt: skip
    for text in (run.out, run.err):
        assert per_speaker(text) == {rank: ["a line of several pieces"] * 300 for rank in "012"}


@pytest.mark.feature(82)
def test_meshes_that_print_after_the_first_are_named_and_no_prefix_changes():
    run = Run(TALKER + """
trainer, silent = talkers(2, "trainer"), talkers(1, "silent")
silent.pid.call().get()
trainer.slice(gpus=1).say.call("alone").get()
alone = this_host().spawn_procs(name="evaluator").spawn("t", Talker)
alone.say.call("two of us").get()
trainer.slice(gpus=1).say.call("still here").get()
""").ok()  # fmt: skip
    assert run.out == "[1] alone\n[evaluator] two of us\n[1] still here\n"


@pytest.mark.feature(82)
@ways
def test_workers_of_workers_say_whose_they_are(way):
    run = Run(TALKER + """
t = talkers(2, "trainer")
nested = t.slice(gpus=1).nest.call_one("helpers", "hello").get()
t.slice(gpus=0).say.call_one("top").get()
nested.say.call("called from the script").get()
""", way=way).ok()  # fmt: skip
    said = per_speaker(run.out)
    # The nested ones print first, so theirs is the mesh without a name.
    assert said["1/0"] == said["1/1"] == ["hello", "called from the script"]
    assert said["trainer 0"] == ["top"]


@pytest.mark.feature(82)
def test_without_prefix():
    run = Run(TALKER + "talkers(1).say.call('plain').get()\n", env={"HYPERACTOR_PREFIX_WITH_RANK": "false"}).ok()
    assert run.out == "plain\n"


@pytest.mark.feature(82)
def test_workers_have_no_terminal():
    Run(program("logging/workers_have_no_terminal.py")).ok()


# ---- Order, and nothing lost ----


@pytest.mark.feature(82)
@ways
def test_what_was_printed_before_the_answer_stands_before_what_the_script_prints_next(way):
    run = Run(TALKER + """
t = this_host().spawn_procs().spawn("t", Talker)
for i in range(300):
    t.say.call_one(f"worker {i}").get()
    print("script", i)
async def main():
    for i in range(300, 400):
        await t.say.call_one(f"worker {i}")
        print("script", i)
asyncio.run(main())
""", way=way).ok()  # fmt: skip
    assert run.out == "".join(f"[procs] worker {i}\nscript {i}\n" for i in range(400))


ENDS = {
    "end": "t.count.call(5000).get()",
    "unheard": "t.count.broadcast(5000)\nt.pid.call().get()",
    "stop": "t.count.call(5000).get()\nprocs.stop().get()\nprint('[stop] ped', flush=True)",
    "exception": "t.count.call(5000).get()\nraise SystemExit(0)",
}


@pytest.mark.feature(82, "nothing is lost at the end")
@ways
@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_lost_at_the_end(way, end):
    source = "procs = this_host().spawn_procs(per_host={'gpus': 4})\nt = procs.spawn('t', Talker)\n"
    run = Run(TALKER + source + ENDS[end], way=way).ok()
    expected = {str(rank): [f"line {i}" for i in range(5000)] for rank in range(4)}
    if end == "stop":
        assert run.out.endswith("\n[stop] ped\n")
        expected["stop"] = ["ped"]
    assert per_speaker(run.out) == expected


@pytest.mark.feature(82)
@ways
def test_nothing_is_lost_when_a_process_dies(way):
    run = Run(TALKER + program("logging/nothing_is_lost_when_a_process_dies.py"), way=way).done()
    assert run.status == 0
    assert per_speaker(run.out) == {"procs": [f"line {i}" for i in range(3000)], "script": ["dead"]}
    assert run.out.endswith("[script] dead\n")
    assert run.err == "[procs] last words, without an end\n"


@pytest.mark.feature(82)
def test_nothing_of_a_workers_workers_is_lost_when_it_dies():
    run = Run(TALKER + """
t = talkers(1, "top")
nested = t.slice(gpus=0).nest.call_one("nested", "hello").get()
nested.count.call(2000).get()
try:
    t.die.call("").get()
except SupervisionError:
    pass
""").ok()  # fmt: skip
    expected = ["hello", *(f"line {i}" for i in range(2000))]
    assert per_speaker(run.out) == {"0/0": expected, "0/1": expected}


@pytest.mark.feature(82)
def test_long_lines_are_whole_up_to_a_mebibyte():
    run = Run(TALKER + """
t = this_host().spawn_procs().spawn("t", Talker)
t.say.call_one("x" * 100_000, "y" * 2**20, "z" * (2**20 + 5)).get()
""").ok()  # fmt: skip
    assert run.out == "".join(f"[procs] {line}\n" for line in ("x" * 100_000, "y" * 2**20, "z" * 2**20, "z" * 5))


@pytest.mark.feature(82)
def test_what_outlives_the_script_does_not_hold_up_its_end():
    # What forked workers leave behind ends with the script; see test_shortages.py.
    run = Run(program("logging/what_outlives_the_script_does_not_hold_up_its_end.py"), way="exec")
    run.done(limit=10)
    assert run.status == 0
    pids = [int(pid) for pid in re.search(r"^\[pid\] (\d+) (\d+)$", run.out, re.MULTILINE).groups()]
    os.kill(pids[1], signal.SIGKILL)


# ---- Progress bars ----

BARS = str(Path(__file__).parent / "programs" / "progress_bars.py")
FULL = "training: 100%|##########|"


@pytest.mark.feature(82)
@ways
def test_a_progress_bar_comes_as_the_line_that_it_is_at_last(way):
    run = Run(argv=[BARS, "train"], way=way).done()
    assert run.status == 0
    said = per_speaker(run.err)
    for rank in "01":
        assert said[rank][-2:] == [FULL, "trained"]
        assert len(said[rank]) <= 3 + run.seconds  # and not a thousand states


@pytest.mark.feature(82)
def test_a_progress_bar_is_shown_while_it_runs():
    run = Run(argv=[BARS, "steps"])
    now = run.err_line(limit=20)
    run.tell("\n")
    run.done()
    assert now == "[1] training:  30%|###       |\n"
    assert (run.status, run.err) == (0, f"{now}[1] {FULL}\n")


@pytest.mark.feature(82)
def test_a_progress_bar_that_is_wiped_out_leaves_nothing():
    run = Run(argv=[BARS, "wipe"]).done()
    assert per_speaker(run.err) == {"0": ["wiped"], "1": ["wiped"]}


@pytest.mark.feature(82)
def test_bars_of_tqdm():
    pytest.importorskip("tqdm")
    run = Run(argv=[BARS, "train_with_tqdm"]).done()
    assert run.status == 0
    for lines in per_speaker(run.err).values():
        assert re.fullmatch(r"100%\|.* 1000/1000 \[.*\] ?", lines[-2]) and lines[-1] == "trained"
        assert len(lines) <= 3 + run.seconds


# ---- A slow reader, or none ----


@pytest.mark.feature(82)
def test_a_slow_reader_holds_up_who_prints_and_nobody_else():
    run = Run(TALKER + """
t, others = talkers(2), talkers(1, "others")
others.pid.call().get()
flood = t.count.call(200_000)
try:
    flood.get(timeout=1)
    sys.exit("the writers were not held up")
except TimeoutError:
    pass
for _ in range(20):
    others.pid.call().get(timeout=5)
os.kill(others.pid.call().get(timeout=5).item(gpus=0), signal.SIGKILL)
try:
    others.pid.call().get(timeout=5)
except SupervisionError as error:
    print("sig=9" in str(error), file=sys.stderr)
flood.get()
""")  # fmt: skip
    assert run.err_line(limit=20) == "True\n"  # nobody has read yet
    run.done()
    assert (run.status, run.err) == (0, "True\n")
    assert per_speaker(run.out) == {rank: [f"line {i}" for i in range(200_000)] for rank in "01"}


@pytest.mark.feature(82)
def test_a_slow_reader_may_lose_lines_instead():
    run = Run(TALKER + """
procs = this_host().spawn_procs(per_host={"gpus": 2})
async def main():
    await procs.logging_option(on_slow="drop")
asyncio.run(main())
procs.spawn("t", Talker).count.call(100_000).get(timeout=20)
print("done", file=sys.stderr)
""")  # fmt: skip
    assert run.err_line(limit=20) == "done\n"  # nobody has read yet
    run.done()
    for lines in per_speaker(run.out).values():
        dropped = [
            re.fullmatch(r"monarch: (\d+) lines were dropped here: .*stdout is too slow", line) for line in lines
        ]
        numbers = [int(line.split()[1]) for line, found in zip(lines, dropped, strict=True) if not found]
        assert numbers == sorted(numbers)
        assert len(numbers) + sum(int(found[1]) for found in dropped if found) == 100_000
    assert "dropped here" in run.out


@pytest.mark.feature(82)
@pytest.mark.parametrize("redirect", ["> /dev/full", ">&-", "2>&-", "<&- >&- 2>&-", "| true"])
def test_a_script_that_cannot_print(redirect, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(PROLOGUE.replace("sys.stdout.re", "sys.stdout and sys.stdout.re") + TALKER + """
t = talkers()
t.count.call(1000).get()
t.complain.call("complaint").get()
assert len(t.pid.call().get()) == 2
os._exit(5)
""")  # fmt: skip
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} {script} {redirect}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 5
    assert done.stdout == "" or redirect == "2>&-"
    lines = [line for line in done.stderr.splitlines() if not line.endswith("] complaint")]
    if redirect == "> /dev/full":
        assert [line.split(":")[0] for line in lines] == ["monarch"] and "No space left on device" in lines[0]
    else:
        assert lines == []


# ---- logging_option ----


@pytest.mark.feature(82)
def test_the_long_prefix_and_back():
    run = Run(TALKER + """
import socket
async def main():
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    t = procs.spawn("t", Talker)
    await t.say.call("short")
    await procs.logging_option(stream_to_client=True)
    await t.say.call("long")
    await procs.slice(gpus=1).logging_option()
    await t.say.call("mixed")
    print("[script]", socket.gethostname(), *[f"{node:016x}" for node in procs._nodes])
asyncio.run(main())
""").ok()  # fmt: skip
    host, *nodes = re.search(r"\[script\] (.*)", run.out)[1].split()
    expected = ["[0] short", "[1] short", f"[{host} {nodes[0]}] [0] long", f"[{host} {nodes[1]}] [1] long"]
    expected += [f"[{host} {nodes[0]}] [0] mixed", "[1] mixed"]
    assert sorted(run.out.splitlines()[:-1]) == sorted(expected)


@pytest.mark.feature(83, "merged in a window", "changed while it runs", "told when it is switched off")
@ways
def test_a_window_folds_lines_and_keeps_who_said_them(way):
    run = Run(TALKER + """
async def main():
    procs = this_host().spawn_procs(per_host={"gpus": 8})
    t = procs.spawn("t", Talker)
    await procs.logging_option(stream_to_client=True, aggregate_window_sec=3600)
    await t.say.call("loading the model")
    await t.slice(gpus=slice(2, 5)).say.call("epoch 1 of training begins")
    await t.slice(gpus=7).say.call("epoch 2 of training begins")
    await t.slice(gpus=1).say.call("quite another thing")
    print("[script] nothing yet")
    await procs.logging_option(stream_to_client=True, aggregate_window_sec=None)
    print("[script] flushed")
    await procs.logging_option(stream_to_client=True, aggregate_window_sec=1)
    await t.say.call("at the end of the window")
    sys.stdin.readline()
    await procs.logging_option(stream_to_client=True, aggregate_window_sec=3600)
    await t.say.call("at the end of the script")
asyncio.run(main())
""", way=way)  # fmt: skip
    run.line("[ranks 0-7] at the end of the window")
    run.tell("\n")
    assert run.ok().out.splitlines() == [
        "[script] nothing yet",
        "[8 similar log lines] [ranks 0-7] loading the model",
        "[4 similar log lines] [ranks 2-4,7] epoch 1 of training begins",
        "[1] quite another thing",
        "[script] flushed",
        "[8 similar log lines] [ranks 0-7] at the end of the window",
        "[8 similar log lines] [ranks 0-7] at the end of the script",
    ]


@pytest.mark.feature(82)
def test_the_level_filters_records_and_nothing_else():
    run = Run(program("logging/the_level_filters_records_and_nothing_else.py")).ok()
    lines = [re.sub(r"^\[procs\] (\[actor=[^\]]*\] )?", "", line) for line in run.out.splitlines()]
    every = ["print", "DEBUG", "DEBUG own", "INFO", "INFO own", "ERROR", "ERROR own"]
    expected = [every, [every[0], *every[-2:]], [every[0], *every[-4:]], every]
    assert lines == [f"{line} {number}" for number, lines in enumerate(expected) for line in lines]


@pytest.mark.feature(82)
def test_the_level_holds_for_who_logs_later(tmp_path):
    (tmp_path / "my_actors.py").write_text("""
from monarch.actor import Actor, endpoint
class A(Actor):
    @endpoint
    def log(self):
        import logging
        logging.warning("filtered")
        logging.error("shown")
""")
    (tmp_path / "script.py").write_text("""
import asyncio
from monarch.actor import this_host
from my_actors import A
async def main():
    procs = this_host().spawn_procs()
    await procs.logging_option(level=40)
    await procs.spawn("a", A).log.call_one()
asyncio.run(main())
""")
    run = Run(argv=[str(tmp_path / "script.py")], way="exec").done()
    assert run.status == 0, run.err
    assert run.err == "[procs] ERROR:root:[actor=<root>.<my_actors.A a>] shown\n"


@pytest.mark.feature(82)
def test_an_actor_may_change_what_its_own_workers_print():
    run = Run(TALKER + """
class Boss(Actor):
    @endpoint
    async def run(self):
        procs = this_host().spawn_procs(per_host={"n": 3}, name="nested")
        await procs.logging_option(stream_to_client=True, aggregate_window_sec=3600)
        await procs.spawn("t", Talker).say.call("the same")
        await procs.logging_option()
this_host().spawn_procs(name="boss").spawn("boss", Boss).run.call_one().get()
""").ok()  # fmt: skip
    assert run.out == "[3 similar log lines] [boss/ranks 0-2] the same\n"


@pytest.mark.feature(82, 83)
def test_logging_option_refuses_nonsense():
    Run(program("logging/logging_option_refuses_nonsense.py")).ok()


# ---- Kept for later ----


@pytest.mark.feature(64, "the tail of stderr", 85, "the tail in a death's report")
@pytest.mark.parametrize("lines", [0, 2, 5000])
def test_a_death_tells_the_last_lines_on_stderr(lines):
    run = Run(TALKER + """
t = this_host().spawn_procs().spawn("t", Talker)
for i in range(1200):
    t.complain.call_one(f"complaint {i}").get()
try:
    t.die.call_one("the last").get()
except SupervisionError as error:
    print(error)
""", env={"HYPERACTOR_MESH_TAIL_LOG_LINES": str(lines)}).done()  # fmt: skip
    assert run.status == 0 and "sig=9" in run.out
    told = run.out.partition("\nThe last that it printed to stderr:\n")[2].splitlines()
    expected = [*(f"  complaint {i}" for i in range(1200)), "  the last"]
    assert told == (expected[-min(lines, 1000) :] if lines else [])


@pytest.mark.feature(85)
def test_the_death_of_a_workers_worker_tells_them_too():
    run = Run(TALKER + """
class Boss(Actor):
    @endpoint
    def run(self):
        t = this_host().spawn_procs(name="nested").spawn("t", Talker)
        t.complain.call_one("complaint").get()
        try:
            t.die.call_one("the last").get()
        except SupervisionError as error:
            return str(error)
text = this_host().spawn_procs(name="boss").spawn("boss", Boss).run.call_one().get()
assert text.endswith("\\nThe last that it printed to stderr:\\n  complaint\\n  the last"), text
""", env={"HYPERACTOR_MESH_TAIL_LOG_LINES": "5"}).done()  # fmt: skip
    assert run.status == 0
    assert run.err == "[boss/nested] complaint\n[boss/nested] the last\n"


TIMED = r"(20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) \[([^\]]*)\] ?(.*)"


@pytest.mark.feature(85, "files")
@pytest.mark.parametrize("way", ["fork", "exec"])
def test_file_capture(way, tmp_path):
    env = {"HYPERACTOR_MESH_ENABLE_FILE_CAPTURE": "1", "TMPDIR": str(tmp_path), "USER": "somebody"}
    run = Run(TALKER + """
class Boss(Actor):
    @endpoint
    def nest(self):
        this_host().spawn_procs(name="helper").spawn("t", Talker).say.call("nested").get()
t = talkers(2, "the trainers")
t.say.call("to stdout").get()
t.complain.call("to stderr").get()
this_host().spawn_procs(name="alone").spawn("t", Talker).say.call("alone").get()
this_host().spawn_procs(name="boss").spawn("b", Boss).nest.call().get()
again = talkers(1, "the trainers").say.call("[the trainers 7] again").get()
""", env=env, way=way).done()  # fmt: skip
    assert run.status == 0
    folder = tmp_path / "somebody"
    said = [line for line in run.err.splitlines() if line.startswith("monarch: ")]
    assert len(said) == 1 and f"files in {folder}, one for each host; the first one: {folder}/monarch_log_" in said[0]
    assert folder.stat().st_mode & 0o777 == 0o700
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"monarch_log_\w{8}_20\d{6}-\d{6}-\d+\.log", file.name)
    lines = [re.fullmatch(TIMED, line).groups() for line in file.read_text().splitlines()]
    assert [time for time, *_ in lines] == sorted(time for time, *_ in lines)
    assert [who_and_what for _, *who_and_what in lines[4:]] == [
        ["alone 0", "alone"],
        ["boss 0/helper 0", "nested"],
        ["the trainers#2 0", "[the trainers 7] again"],
    ]
    assert sorted(who_and_what for _, *who_and_what in lines[:4]) == [
        [f"the trainers {rank}", f"to {stream}"] for rank in "01" for stream in ("stderr", "stdout")
    ]


@pytest.mark.feature(85, "files")
def test_the_last_lines_of_who_was_killed_are_in_the_file(tmp_path):
    env = {"HYPERACTOR_MESH_ENABLE_FILE_CAPTURE": "1", "TMPDIR": str(tmp_path), "USER": "somebody"}
    run = Run(TALKER + """
t = this_host().spawn_procs(name="dies").spawn("t", Talker)
try:
    t.die.call_one("the last").get()
except SupervisionError:
    print("told")
""", env=env).done()  # fmt: skip
    assert run.status == 0 and "told" in run.out
    (file,) = (tmp_path / "somebody").iterdir()
    last, *note = [re.fullmatch(TIMED, line).groups()[1:] for line in file.read_text().splitlines()]
    assert last == ("dies 0", "the last")
    # In the last moment of a script the word of the death may come too late for the file.
    assert [(who, text.partition(": ")[0]) for who, text in note] in ([], [("dies 0", "monarch")])


@pytest.mark.feature(85)
def test_files_are_not_put_into_somebody_elses_folder(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "somebody").symlink_to(tmp_path / "elsewhere")
    env = {"HYPERACTOR_MESH_ENABLE_FILE_CAPTURE": "1", "TMPDIR": str(tmp_path), "USER": "somebody"}
    run = Run(TALKER + "talkers().say.call('shown').get()\n", env=env).done()
    assert run.status == 0 and run.out.count("shown") == 2
    assert re.fullmatch(r"monarch: what workers print cannot be written to [^\n]*\n", run.err)
    assert list((tmp_path / "elsewhere").iterdir()) == []


# ---- Python's logging ----


@pytest.mark.feature(81, "the prefix", "empty lines have none", 37, "in logs")
def test_records_say_which_actor_made_them():
    run = Run(program("logging/records_say_which_actor_made_them.py")).ok()
    me = "[actor=<root>.<__main__.A a>] "
    assert run.out.splitlines() == [
        f"[1] WARNING <{me}> {me}plain",
        f"[1] WARNING <{me}> {me}3 %",
        f"[1] WARNING <{me}> ",
        f"[1] WARNING <{me}> {me}an object",
        "[1] WARNING <> from a thread",
        f"[1] WARNING <{me}> {me}100% async",
    ]


@pytest.mark.feature(81, 37, "in logs")
@pytest.mark.parametrize("way", ["fork", "exec"])
def test_the_prefix_is_there_whenever_logging_is_imported(way):
    run = Run(program("logging/the_prefix_is_there_whenever_logging_is_imported.py"), way=way).done()
    assert run.status == 0
    assert run.err.splitlines() == [
        "WARNING:root:[actor=<root>.<__main__.A local>] late",
        "[procs] WARNING:root:[actor=<root>.<__main__.A a>] late",
        "WARNING:root:[actor=<root>] the script's own",
    ]


@pytest.mark.feature(81, "switchable")
def test_the_prefix_can_be_switched_off():
    run = Run("""
class A(Actor):
    @endpoint
    def log(self):
        import logging, monarch.actor
        monarch.actor.config.prefix_python_logs_with_actor = False
        logging.warning("without")
        monarch.actor.config.prefix_python_logs_with_actor = True
        logging.warning("with")
this_host().spawn_procs().spawn("a", A).log.call_one().get()
""").done()  # fmt: skip
    assert run.err.splitlines() == [
        "[procs] WARNING:root:without",
        "[procs] WARNING:root:[actor=<root>.<__main__.A a>] with",
    ]


@pytest.mark.feature(82)
def test_a_fork_of_the_script_shows_nothing_twice_and_holds_nothing_open():
    run = Run(TALKER + """
t = talkers(1)
t.count.call(100).get()
pid = os.fork()
if pid == 0:
    print("[script] child", flush=True)
    pipes = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
             and os.path.exists(f"/proc/self/fd/{fd}")]
    # Of which there is another end elsewhere: nobody else has one of the pipe that wakes the reactor.
    left = [link for link in pipes if link.startswith("pipe:") and pipes.count(link) == 1]
    print("[script]", left, flush=True)
    sys.exit(0)
os.waitpid(pid, 0)
t.count.call(100).get()
""").ok()  # fmt: skip
    assert per_speaker(run.out) == {"0": [f"line {i}" for i in range(100)] * 2, "script": ["child", "[]"]}
