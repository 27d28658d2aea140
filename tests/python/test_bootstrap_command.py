"""How processes are started: bootstrap_command, with_python_executable, proc_bind."""

import os
import pickle
import stat
import subprocess
import sys

import cloudpickle
import pytest
from script_run import WAYS, Run, program

from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand
from monarch.actor import default_bootstrap_cmd, this_host

ways = pytest.mark.parametrize("way", WAYS)

LOOK = program("bootstrap_command/look.py")


def executable(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


# ---- The value ----


@pytest.mark.feature(50)
def test_the_default_is_this_interpreter_with_an_empty_environment():
    command = default_bootstrap_cmd()
    assert (command.program, command.arg0, command.env, command.inherit_env) == (sys.executable, None, {}, True)
    assert command.args and command == default_bootstrap_cmd()
    assert repr(command) == (
        f"BootstrapCommand(program={sys.executable!r}, args={command.args!r}, env={{}}, inherit_env=True)"
    )


@pytest.mark.feature(50)
def test_with_env_is_a_copy_and_the_new_wins():
    command = BootstrapCommand("p", "name", ["a"], {"A": "1", "B": "2"}, inherit_env=False)
    more = command.with_env({"B": None, "C": "3"})
    assert command.env == {"A": "1", "B": "2"}
    assert more == BootstrapCommand("p", "name", ["a"], {"A": "1", "B": None, "C": "3"}, False)
    more.args.append("b")
    assert command.args == ["a"]


@pytest.mark.feature(50)
def test_it_can_be_rebuilt_set_and_pickled():
    command = default_bootstrap_cmd()
    again = type(command)(command.program, command.arg0, command.args, command.env)
    assert again == command
    again.program, again.arg0, again.args, again.env, again.inherit_env = "p", "n", ["a"], {"A": None}, False
    assert again == BootstrapCommand("p", "n", ["a"], {"A": None}, False) != command
    assert pickle.loads(pickle.dumps(again)) == again


# ---- bootstrap_command ----


@pytest.mark.feature(50, "an environment for each rank", "None takes a variable out", "nested hosts inherit")
@ways
def test_each_process_gets_its_environment(way):
    Run(LOOK + """
os.environ.update(HERE="here", LATE="early")
def command(point):
    assert point.extent == Extent(["hosts", "gpus"], [2, 2])
    late = {"LATE": None} if point["gpus"] else {}
    return default_bootstrap_cmd().with_env({"RANK": str(point.rank), **late})
look = this_host().spawn_procs({"hosts": 2, "gpus": 2}, bootstrap_command=command).spawn("look", Look)
expected = [[str(rank), "here", "early" if rank % 2 == 0 else None] for rank in range(4)]
assert values(look.env.call("RANK", "HERE", "LATE")) == expected
nested = look.slice(hosts=1, gpus=1).nested.call_one("env", "RANK", "HERE", "LATE").get()
assert nested == ["3", "here", None], nested
same = this_host().spawn_procs({"gpus": 2}, bootstrap_command=default_bootstrap_cmd().with_env({"RANK": "one"}))
assert values(same.spawn("look", Look).env.call("RANK")) == [["one"], ["one"]]
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(50, "inherit_env")
@ways
def test_an_environment_that_inherits_nothing(way):
    Run(LOOK + """
command = default_bootstrap_cmd().with_env({"ONLY": "this", "NOT": None})
command.inherit_env = False
env = this_host().spawn_procs(bootstrap_command=command).spawn("look", Look).whole_env.call_one().get()
assert env == {"ONLY": "this"}, env
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(50)
def test_an_environment_alone_takes_no_new_interpreter():
    Run(LOOK + """
def parent(env):
    command = default_bootstrap_cmd().with_env(env)
    return this_host().spawn_procs(bootstrap_command=command).spawn("look", Look).parent.call_one().get()
fork_server = this_host().spawn_procs().spawn("look", Look).parent.call_one().get()
assert fork_server != os.getpid()
assert parent({"CUDA_VISIBLE_DEVICES": "0"}) == fork_server
assert parent({"OMP_NUM_THREADS": "1"}) == os.getpid()  # what is read before main()
""").ok()  # fmt: skip


MARKING = '#!/bin/sh\nexport MARK="marked $1"\nshift\nexec "$@"\n'
MARKING_PARENT = '#!/bin/sh\nexport MARK="marked $1"\nshift\n"$@"\n'


@pytest.mark.feature(50, "another program for each rank")
@pytest.mark.parametrize("text", [MARKING, MARKING_PARENT], ids=["exec", "child"])
def test_another_program_for_some(tmp_path, text):
    marking = executable(tmp_path, "marking", text)
    Run(LOOK + f"""
def command(point):
    default = default_bootstrap_cmd()
    if point.rank == 0:
        return default
    args = [str(point.rank), default.program, *default.args]
    return type(default)({marking!r}, None, args, {{"TOO": "this"}})
procs = this_host().spawn_procs({{"gpus": 3}}, bootstrap_command=command)
look = procs.spawn("look", Look)
assert values(look.env.call("MARK", "TOO")) == [[None, None], ["marked 1", "this"], ["marked 2", "this"]]
assert look.slice(gpus=2).nested.call_one("env", "MARK").get() == ["marked 2"]
""").ok()  # fmt: skip


@pytest.mark.feature(50)
@pytest.mark.parametrize("text", [MARKING, MARKING_PARENT], ids=["exec", "child"])
def test_what_another_program_started_ends_with_a_killed_script(tmp_path, text):
    marking = executable(tmp_path, "marking", text)
    run = Run(LOOK + f"""
default = default_bootstrap_cmd()
command = type(default)({marking!r}, None, ["x", default.program, *default.args], {{}})
look = this_host().spawn_procs(bootstrap_command=command).spawn("look", Look)
print(look.env.call_one("MARK").get())
look.start_sleeper.call_one().get()
os.kill(os.getpid(), signal.SIGKILL)
""").done()  # fmt: skip
    assert (run.out, run.err) == ("['marked x']\n", "")


@pytest.mark.feature(50)
def test_the_name_that_a_process_is_told():
    Run(LOOK + """
command = default_bootstrap_cmd()
command.arg0 = "a-worker"
assert this_host().spawn_procs(bootstrap_command=command).spawn("l", Look).first_argument.call_one().get() == "a-worker"
""").ok()  # fmt: skip


@pytest.mark.feature(50)
def test_arguments_that_lead_to_a_worker_in_another_way():
    Run(LOOK + """
command = default_bootstrap_cmd()
command.args = ["-X", "mine", "-m", "monarch._src.actor.bootstrap_main"]
look = this_host().spawn_procs(bootstrap_command=command).spawn("look", Look)
assert look.options.call_one().get() == {"mine": True}
""").ok()  # fmt: skip


@pytest.mark.feature(50)
@ways
def test_a_program_that_cannot_be_run_shows_at_the_use(way, tmp_path):
    forbidden = tmp_path / "forbidden"
    forbidden.write_text("not executable")
    Run(LOOK + f"""
for path, why in (("/no/such/program", "No such file or directory"), ({str(forbidden)!r}, "Permission denied")):
    command = default_bootstrap_cmd()
    command.program = path
    procs = this_host().spawn_procs({{"gpus": 2}}, name="trainers",
                                    bootstrap_command=lambda point: command if point.rank else default_bootstrap_cmd())
    look = procs.spawn("look", Look)
    texts = ("rank {{'gpus': 1/2}} of 'trainers'", f"cannot run {{path}}: {{why}}")
    fails(lambda: procs.initialized.get(timeout=30), *texts)
    fails(lambda: look.parent.call().get(timeout=30), *texts)
    fails(lambda: look.slice(gpus=1).parent.call_one().get(timeout=30), *texts)
    assert look.slice(gpus=0).parent.call_one().get(timeout=30)
    procs.stop().get(timeout=30)
""", way=way).ok()  # fmt: skip


@pytest.mark.feature(50)
def test_a_program_that_is_no_worker_shows_at_the_use():
    Run(LOOK + """
for path, why in (("true", "exited with code 0 without being asked to"), ("false", "exited with non-zero code 1")):
    command = default_bootstrap_cmd()
    command.program = path
    procs = this_host().spawn_procs(bootstrap_command=command, name="trainers")
    fails(lambda: procs.spawn("look", Look).parent.call_one().get(timeout=30), why, "trainers")
""").ok()  # fmt: skip


@pytest.mark.feature(50)
def test_what_is_no_command_is_refused_before_anything_is_started():
    Run(LOOK + """
rejected(TypeError, "must be a BootstrapCommand", bootstrap_command="python")
rejected(TypeError, "must be a BootstrapCommand", bootstrap_command=lambda point: ["python"])
rejected(ZeroDivisionError, "", bootstrap_command=lambda point: 1 // point.rank)
bad = default_bootstrap_cmd()
def refused(kind, text, make):
    try:
        make()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
refused(TypeError, "env['N'] of a BootstrapCommand must be a str, but is 3", lambda: bad.with_env({"N": 3}))
refused(TypeError, "the name of a variable in env of a BootstrapCommand", lambda: bad.with_env({b"N": "3"}))
refused(TypeError, "with_env takes a mapping", lambda: bad.with_env(None))
refused(ValueError, "env['N'] of a BootstrapCommand contains a NUL", lambda: bad.with_env({"N": chr(0)}))
refused(ValueError, "not a name of an environment variable: 'N='", lambda: bad.with_env({"N=": "1"}))
refused(ValueError, "needs a program", lambda: type(bad)("", None, [], {}))
refused(TypeError, "args of a BootstrapCommand must be a sequence", lambda: type(bad)("p", None, "args", {}))
bad.args.append(None)
rejected(TypeError, "of a BootstrapCommand must be a str, but is None", bootstrap_command=bad)
bad.args.pop()
bad.program = ""
rejected(ValueError, "needs a program", bootstrap_command=bad)
from monarch._src.actor.proc_mesh import get_active_proc_meshes
assert get_active_proc_meshes() == []
""").ok()  # fmt: skip


# ---- with_python_executable ----


@pytest.fixture(scope="session")
def venv(tmp_path_factory):
    folder = tmp_path_factory.mktemp("venv") / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "only_there.py").write_text("where = 'the packages of the venv'\n")
    (site / "beside_the_script.py").write_text("where = 'the packages of the venv'\n")
    return folder


@pytest.mark.feature(50, "other interpreters")
def test_another_interpreter_and_its_packages(tmp_path, venv):
    (tmp_path / "beside_the_script.py").write_text("where = 'beside the script'\n")
    script = tmp_path / "script.py"
    script.write_text(f"""
import os, sys
from monarch.actor import Actor, default_bootstrap_cmd, endpoint, this_host
class Where(Actor):
    @endpoint
    def where(self):
        import beside_the_script, cloudpickle, only_there
        assert cloudpickle.__file__ == {cloudpickle.__file__!r}
        return sys.prefix, only_there.where, beside_the_script.where
    @endpoint
    def nested(self, host):
        return (host or this_host()).spawn_procs().spawn("where", Where).where.call_one().get()
host = this_host().with_python_executable({str(venv / "bin/python")!r})
expected = ({str(venv)!r}, "the packages of the venv", "beside the script")
where = host.spawn_procs({{"gpus": 2}}).spawn("where", Where)
assert where.where.call().get(timeout=60).values() == [expected] * 2
here = this_host().spawn_procs({{"gpus": 1}}).spawn("where", Where)
command = default_bootstrap_cmd()
command.program = {str(venv / "bin/python")!r}
by_command = this_host().spawn_procs(bootstrap_command=command).spawn("where", Where)
assert by_command.where.call_one().get(timeout=60) == expected
for look, of in ((where, None), (where, host), (where, this_host()), (here, host), (by_command, None)):
    got = look.flatten("rank").slice(rank=0).nested.call_one(of).get(timeout=60)
    assert got == expected, (got, expected)
assert here.slice(gpus=0).nested.call_one(this_host()).exception(timeout=60) is not None  # no only_there
print(sys.prefix)
""")  # fmt: skip
    run = Run(argv=[str(script)]).ok(limit=60)
    assert run.out == f"{sys.prefix}\n"


@pytest.mark.feature(50)
@pytest.mark.parametrize("runs", ["exec", ""])
def test_a_script_in_the_place_of_the_interpreter(tmp_path, runs):
    text = f'#!/bin/sh\nexport MARK="$MARK+"\n{runs} {sys.executable} "$@"\n'
    executable(tmp_path, "marking python", text)
    Run(LOOK + """
assert this_host().spawn_procs().spawn("look", Look).env.call_one("MARK").get() == [None]
host = this_host().with_python_executable("./marking python")
assert host == this_host()
look = host.spawn_procs().spawn("look", Look)
assert look.env.call_one("MARK").get() == ["+"]
assert look.nested.call_one("env", "MARK").get() == ["++"]
assert look.nested.call_one("nested", "env", "MARK").get() == ["+++"]
""", cwd=str(tmp_path)).ok(limit=60)  # fmt: skip


@pytest.mark.feature(50)
def test_an_interpreter_that_is_not_there():
    Run(LOOK + """
procs = this_host().with_python_executable("/no/such/python").spawn_procs()
fails(lambda: procs.initialized.get(timeout=30), "cannot run /no/such/python: No such file or directory")
try:
    this_host().with_python_executable("")
except ValueError as error:
    print(error)
""").ok()  # fmt: skip


# ---- proc_bind ----


@pytest.mark.feature(49, "to processors")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_processes_are_bound_to_cpus():
    Run(LOOK + """
first, second, *_ = sorted(os.sched_getaffinity(0))
binds = [{"cpus": str(first)}, {"cpus": str(second)}, {}, {"cpus": f"{second},{first}"}]
look = this_host().spawn_procs({"a": 2, "b": 2}, proc_bind=binds).spawn("look", Look)
both = sorted(os.sched_getaffinity(0))
assert values(look.cpus.call()) == [[first], [second], both, [first, second]]
assert values(look.threads_cpus.call()) == [[first], [second], both, [first, second]]
assert look.slice(a=0, b=1).nested.call_one("threads_cpus").get() == [second]  # what a bound process starts is bound
""").ok()  # fmt: skip


@pytest.mark.feature(49, "by numactl")
def test_a_binding_by_numactl(tmp_path):
    # Not on every machine: this one notes what it is told, and runs what follows.
    options = 'while [ "${1#--}" != "$1" ]; do TOLD="$TOLD $1"; shift; done\n'
    executable(tmp_path, "numactl", f'#!/bin/sh\n{options}export TOLD\nexec "$@"\n')
    Run(LOOK + f"""
os.environ["PATH"] = {str(tmp_path)!r} + os.pathsep + os.environ["PATH"]
cpu = min(os.sched_getaffinity(0))
binds = [{{"membind": "0", "cpunodebind": "0"}}, {{"physcpubind": "+0-1,3:2", "cpus": str(cpu)}}, {{"membind": "all"}}]
look = this_host().spawn_procs({{"gpus": 3}}, proc_bind=binds).spawn("look", Look)
told = [[" --cpunodebind=0 --membind=0"], [" --physcpubind=+0-1,3:2"], [" --membind=all"]]
assert values(look.env.call("TOLD")) == told, values(look.env.call("TOLD"))
assert values(look.cpus.call())[1] == [cpu]
both = default_bootstrap_cmd().with_env({{"TOO": "this"}})
look = this_host().spawn_procs(proc_bind=[{{"membind": "0"}}], bootstrap_command=both).spawn("look", Look)
assert look.env.call_one("TOLD", "TOO").get() == [" --membind=0", "this"]
""").ok()  # fmt: skip


@pytest.mark.feature(49)
def test_no_numactl_shows_at_the_use(tmp_path):
    Run(LOOK + f"""
os.environ["PATH"] = {str(tmp_path)!r}
procs = this_host().spawn_procs({{"gpus": 2}}, proc_bind=[{{}}, {{"membind": "0"}}])
fails(lambda: procs.initialized.get(timeout=30), "cannot run numactl: No such file or directory", "{{'gpus': 1/2}}")
assert procs.slice(gpus=0).spawn("look", Look).parent.call_one().get()
""").ok()  # fmt: skip


@pytest.mark.feature(49, "the length is checked")
@pytest.mark.parametrize(
    ("kind", "text", "binds"),
    [
        (ValueError, "proc_bind length (1) must equal procs_per_host (2)", [{}]),
        (ValueError, "proc_bind length (3) must equal procs_per_host (2)", [{}, {}, {}]),
        (ValueError, "proc_bind[1] has the unknown key 'cpu'; known are cpunodebind, membind,", [{}, {"cpu": "0"}]),
        (TypeError, "proc_bind[0]['cpus'] must be a str such as '0-3,8', but is 0", [{"cpus": 0}, {}]),
        (TypeError, "proc_bind[1] must be a dict such as {'cpus': '0-3'}, but is '0'", [{}, "0"]),
        *(
            (ValueError, "proc_bind[0]['cpus'] must be a list of numbers and ranges", [{"cpus": cpus}, {}])
            for cpus in ("", "a", "0,", "3-1", "0-", "-1", "all", "0 1", "0;reboot", "\u0663")
        ),
        (ValueError, "proc_bind[0]['membind'] must be a list of numbers", [{"membind": "--interleave=all"}, {}]),
    ],
)
def test_bindings_that_mean_nothing(kind, text, binds):
    with pytest.raises(kind) as raised:
        this_host().spawn_procs({"gpus": 2}, proc_bind=binds)
    assert text in str(raised.value)
