"""Few descriptors, and the helpers of a script stopped or killed."""

import re

import pytest
from script_run import WAYS, Run, program

ways = pytest.mark.parametrize("way", WAYS)

PIDS = program("few_descriptors/pids.py")


def run(code, **options):
    return Run(PIDS + code, **options)


@pytest.mark.parametrize("way", ("fork", "exec", "unix"))
def test_128_processes_with_1024_descriptors(way):
    out = run("""
limit_descriptors(1024, 1024)
pids = this_host().spawn_procs(per_host={"gpus": 128}).spawn("pids", Pids)
assert len({pid for _, pid in pids.pid.call().get(timeout=100).items()}) == 128
assert len(os.listdir("/proc/self/fd")) < 5 * 128 + 40, os.listdir("/proc/self/fd")
# Who dials a process whose turn has not come waits for it.
more = this_host().spawn_procs(per_host={"gpus": 48}).spawn("more", Pids)
last = more.slice(gpus=47)
assert pids.slice(gpus=0).ask.call_one(last).get(timeout=100) == last.pid.call_one().get(timeout=100)
print("fine")
""", way=way).ok(limit=200)  # fmt: skip
    assert out.out == "fine\n"


def test_a_mesh_that_the_limit_does_not_allow_is_an_error_that_says_so():
    done = run("""
limit_descriptors(256, 256)
first = this_host().spawn_procs(per_host={"gpus": 2}).spawn("first", Pids)
first.pid.call().get()
try:
    this_host().spawn_procs(per_host={"gpus": 200})
except RuntimeError as error:
    print(error)
assert len(list(first.pid.call().get())) == 2
""").ok()  # fmt: skip
    assert re.fullmatch(
        r"cannot start 200 processes: out of file descriptors: 1035 are needed and \d+ of 256 in use, "
        r"raise ulimit -n\n",
        done.out,
    )


@pytest.mark.parametrize("way", ("fork", "exec"))
def test_the_soft_limit_is_raised_where_it_is_near_and_nowhere_else(way):
    run("""
limit_descriptors(150)
few = this_host().spawn_procs(per_host={"gpus": 2}).spawn("few", Pids)
few.pid.call().get()
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 150
many = this_host().spawn_procs(per_host={"gpus": 40}).spawn("many", Pids)
assert len({pid for _, pid in many.pid.call().get(timeout=60).items()}) == 40
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 150
last = many.slice(gpus=39)
assert last.soft_limit.call_one().get() == last.soft_limit_of_a_program.call_one().get() == 150
""", way=way).ok(limit=100)  # fmt: skip


def test_a_stopped_fork_server_hides_no_death():
    run("""
procs = this_host().spawn_procs(per_host={"gpus": 3})
pids = procs.spawn("pids", Pids)
first, second, third = [pid for _, pid in pids.pid.call().get().items()]
server = fork_server()
os.kill(server, signal.SIGSTOP)
os.kill(first, signal.SIGKILL)
text, seconds = failure(pids.slice(gpus=0).pid.call_one())
assert f"Killed(sig=9)" in text and f"pid {first})" in text and seconds < 5, (text, seconds)
os.kill(server, signal.SIGCONT)
assert pids.slice(gpus=2).pid.call_one().get() == third
""").ok()  # fmt: skip


def test_a_stopped_fork_server_does_not_hold_up_the_end():
    done = run("""
pids = this_host().spawn_procs(per_host={"gpus": 3}).spawn("pids", Pids)
pids.pid.call().get()
os.kill(fork_server(), signal.SIGSTOP)
""").ok()  # fmt: skip
    assert done.seconds < 10


def test_what_a_stopped_fork_server_has_not_begun_can_be_stopped():
    run("""
import monarch
this_host().spawn_procs(per_host={"gpus": 1}).spawn("pids", Pids).pid.call().get()
server = fork_server()
os.kill(server, signal.SIGSTOP)
monarch.configure(process_exit_timeout="200ms")
procs = this_host().spawn_procs(per_host={"gpus": 2})
call = procs.spawn("pids", Pids).pid.call()
procs.stop("enough").get(timeout=10)
text, _ = failure(call)
assert "enough" in text, text
os.kill(server, signal.SIGCONT)
assert this_host().spawn_procs(per_host={"gpus": 1}).spawn("pids", Pids).pid.call_one().get()
""").ok()  # fmt: skip


def test_a_mesh_close_to_the_limit_of_descriptors_starts():
    out = run("""
limit_descriptors(256, 256)
pids = this_host().spawn_procs(per_host={"gpus": 37}).spawn("pids", Pids)
print(len({pid for _, pid in pids.pid.call().get(timeout=60).items()}))
""").ok(limit=100)  # fmt: skip
    assert out.out == "37\n"


@pytest.mark.parametrize("number", (0, 1, 2))
def test_a_standard_stream_that_has_become_a_file_of_the_scripts(number):
    done = run(f"""
os.close({number})
assert os.open(__file__, os.O_RDONLY) == {number}
class Streams(Actor):
    @endpoint
    def input(self):
        return os.readlink("/proc/self/fd/0"), os.read(0, 1)
streams = this_host().spawn_procs(per_host={{"gpus": 1}}).spawn("streams", Streams)
assert streams.input.call_one().get(timeout=30) == ("/dev/null", b"")
""").done()  # fmt: skip
    assert done.status == 0, done.err


def test_the_death_of_the_fork_server_is_told_as_that():
    done = run("""
pids = this_host().spawn_procs(per_host={"gpus": 2}).spawn("pids", Pids)
of_both = pids.pid.call().get().values()
os.kill(fork_server(), signal.SIGKILL)
for _ in range(1000):
    try:
        pids.pid.call().get()
    except SupervisionError as error:
        text = str(error)
        break
    time.sleep(0.005)
assert "was killed because the fork server died (it was killed by signal 9 (Killed))" in text, text
assert any(f"pid {pid})" in text for pid in of_both), text
""").done()  # fmt: skip
    assert (done.status, done.out) == (0, "")


@pytest.mark.parametrize("way", ("fork", "exec"))
def test_a_guard_that_dies_is_replaced(way):
    script = run("""
pids = this_host().spawn_procs(per_host={"gpus": 2}).spawn("pids", Pids)
pids.leave.call().get()
os.kill(guard(), signal.SIGKILL)
print("killed", flush=True)
sys.stdin.readline()
print("end", guard(), flush=True)
time.sleep(1000)
""", way=way)  # fmt: skip
    script.line("killed")
    assert "another one takes its place" in script.err_line(10)
    script.tell("\n")
    script.line("end")
    script.kill()
    script.done()  # nothing is left, the sleepers included


def test_a_stopped_guard_holds_nobody_up():
    run("""
this_host().spawn_procs().spawn("pids", Pids).pid.call_one().get()
stopped = guard()
os.kill(stopped, signal.SIGSTOP)
for _ in range(8):
    procs = this_host().spawn_procs(per_host={"gpus": 32})
    assert len(list(procs.spawn("pids", Pids).pid.call().get(timeout=60))) == 32
    procs.stop().get(timeout=60)
os.kill(stopped, signal.SIGCONT)
""").ok(limit=120)  # fmt: skip


@pytest.mark.parametrize("ending", ("pass", "sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"))
def test_what_forked_workers_started_in_sessions_of_their_own_ends_with_the_script(ending):
    run(f"""
pids = this_host().spawn_procs(per_host={{"gpus": 2}}).spawn("pids", Pids)
pids.leave.call(start_new_session=True).get()
{ending}
""").done()  # it looks for what is left


def test_descriptors_from_1024_on_are_waited_for_too(tmp_path):
    run = Run("""
import resource
from monarch.job import ProcessJob, shell

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
job = ProcessJob({"hosts": 1})
hosts = job.state("job.pkl").hosts
print(shell(hosts), job.adopted())
job.kill()
""", stdin="exit 3\n", cwd=str(tmp_path)).ok()  # fmt: skip
    assert run.out == "3 []\n"


def test_a_connection_to_a_host_with_a_descriptor_from_1024_on_is_listened_to():
    Run("""
import resource
from monarch.job._logins import Login, close_all

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
login = Login("host", ["echo", 'monarch-host: {"alive": true}'])
assert login.answer(time.monotonic() + 30) == {"alive": True}
close_all([login])
""").ok()
