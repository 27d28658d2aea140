"""monarch.spmd without torch: variables, ports, programs. What torch makes of them: test_spmd_torch.py."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    DeadlineExceeded,
    SupervisionError,
    deadline,
    endpoint,
    hosts_from_config,
    this_host,
    this_proc,
)
from monarch.spmd import SPMDActor, _ports, _scripts, setup_torch_elastic_env, setup_torch_elastic_env_async
from monarch.testing import local_procs
from monarch.tools.network import AddrType, get_ipaddr, get_sockaddr
from monarch.utils import setup_env_for_distributed

PROGRAMS = Path(__file__).parent / "programs" / "spmd"
LIMIT_S = 30
NUMBERS = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE"),
)
NAMES = (*NUMBERS, "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT")


class Process(Actor):
    """Looks at its process from inside."""

    @endpoint
    def variables(self) -> dict[str, str]:
        return {name: os.environ[name] for name in NAMES if name in os.environ}

    @endpoint
    def set(self, **variables: str) -> None:
        os.environ.update(variables)

    @endpoint
    def has(self, name: str) -> bool:
        return name in os.environ

    @endpoint
    def hold_ports(self, count: int) -> tuple[list[int], int]:
        """The ports, and how many descriptors are open then."""
        return [_ports.hold_port() for _ in range(count)], len(os.listdir("/proc/self/fd"))

    @endpoint
    def wait_for_programs(self, seconds: float) -> None:
        _scripts.WAIT_S = seconds

    @endpoint
    def main_program(self) -> tuple[list[str], list[str], int]:
        return sys.argv, sys.path, id(sys.modules["__main__"])

    @endpoint
    def modules(self) -> list[str]:
        return list(sys.modules)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def exit(self) -> None:
        os._exit(1)

    @endpoint
    async def set_up(self, procs) -> None:
        await setup_torch_elastic_env_async(procs, "from.an.actor", 7)


@pytest.fixture(scope="module")
def grid():
    mesh = this_host().spawn_procs(per_host={"nodes": 2, "gpus": 3})
    yield mesh
    mesh.stop().get(timeout=LIMIT_S)


def variables_of(mesh) -> list[dict[str, str]]:
    return mesh.spawn("process", Process).variables.call().get(timeout=LIMIT_S).values()


def numbers_of(mesh) -> list[tuple[int, ...]]:
    """Of each member, in the order of NUMBERS."""
    return [tuple(int(found[name]) for name in NUMBERS) for found in variables_of(mesh)]


def can_bind(port: int, reuse: bool = False, listen: bool = False) -> bool:
    """Whether somebody who wants this very port gets it; ``reuse``: as servers do, torch's among them."""
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        try:
            taker.bind(("", port))
            if listen:
                taker.listen()
        except OSError:
            return False
        return True


# ---- Variables ----


@pytest.mark.feature(94, "the environment of torchrun")
def test_each_process_has_the_variables_of_torchrun(grid):
    assert setup_torch_elastic_env(grid) is None
    assert numbers_of(grid) == [
        # rank, local rank, world, local world, group rank, groups, role rank, role world
        (0, 0, 6, 3, 0, 2, 0, 6),
        (1, 1, 6, 3, 0, 2, 1, 6),
        (2, 2, 6, 3, 0, 2, 2, 6),
        (3, 0, 6, 3, 1, 2, 3, 6),
        (4, 1, 6, 3, 1, 2, 4, 6),
        (5, 2, 6, 3, 1, 2, 5, 6),
    ]
    found = variables_of(grid)
    assert all(sorted(variables) == sorted(NAMES) for variables in found)
    assert {variables["ROLE_NAME"] for variables in found} == {"rank"}
    assert {variables["MASTER_ADDR"] for variables in found} == {socket.gethostname()}
    assert len({variables["MASTER_PORT"] for variables in found}) == 1


VIEWS = {
    "a row": (lambda mesh: mesh.slice(nodes=1), [(0, 0, 3, 3, 0, 1), (1, 1, 3, 3, 0, 1), (2, 2, 3, 3, 0, 1)]),
    "a column": (lambda mesh: mesh.slice(gpus=2), [(0, 0, 2, 2, 0, 1), (1, 1, 2, 2, 0, 1)]),
    "steps": (
        lambda mesh: mesh.slice(gpus=slice(0, 3, 2)),
        [(0, 0, 4, 2, 0, 2), (1, 1, 4, 2, 0, 2), (2, 0, 4, 2, 1, 2), (3, 1, 4, 2, 1, 2)],
    ),
    "flattened": (lambda mesh: mesh.flatten("rank"), [(rank, rank, 6, 6, 0, 1) for rank in range(6)]),
    "split": (
        lambda mesh: mesh.flatten("rank").split(rank=("pp", "dp", "tp"), pp=1, tp=2),
        [(rank, rank % 2, 6, 2, rank // 2, 3) for rank in range(6)],
    ),
    "one": (lambda mesh: mesh.slice(nodes=1, gpus=1), [(0, 0, 1, 1, 0, 1)]),
    "with an option for swarms": (
        lambda mesh: mesh.slice(nodes=0, gpus=slice(0, 2)).options(per_proc={"actors": 4}),
        [(0, 0, 2, 2, 0, 1), (1, 1, 2, 2, 0, 1)],
    ),
}


@pytest.mark.feature(94)
@pytest.mark.parametrize("view", VIEWS)
def test_ranks_are_those_of_the_view_that_is_set_up(grid, view):
    cut, expected = VIEWS[view]
    mesh = cut(grid)
    setup_torch_elastic_env(mesh)
    found = numbers_of(mesh.options())
    assert [numbers[:6] for numbers in found] == expected
    assert [(numbers[6], numbers[7]) for numbers in found] == [(numbers[0], numbers[2]) for numbers in found]


@pytest.mark.feature(94)
def test_the_async_set_up_and_one_in_an_actor(grid):
    asyncio.run(setup_torch_elastic_env_async(grid, "an.address", 4711))
    assert {(found["MASTER_ADDR"], found["MASTER_PORT"]) for found in variables_of(grid)} == {("an.address", "4711")}
    grid.slice(nodes=0, gpus=0).spawn("process", Process).set_up.call_one(grid).get(timeout=LIMIT_S)
    assert {(found["MASTER_ADDR"], found["MASTER_PORT"]) for found in variables_of(grid)} == {("from.an.actor", "7")}
    assert [numbers[0] for numbers in numbers_of(grid)] == list(range(6))


@pytest.mark.feature(94)
def test_what_is_not_given_is_found_out(grid):
    one = grid.slice(nodes=0, gpus=0)
    setup_torch_elastic_env(one, master_addr="my.node")
    [found] = variables_of(one)
    assert found["MASTER_ADDR"] == "my.node" and not can_bind(int(found["MASTER_PORT"]))
    setup_torch_elastic_env(one, master_port=4711)
    [found] = variables_of(one)
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == (socket.gethostname(), "4711")


@pytest.mark.feature(94)
def test_groups_stand_side_by_side_and_the_last_set_up_of_a_process_holds(grid):
    rows = [grid.slice(nodes=node) for node in range(2)]
    for row in rows:
        setup_torch_elastic_env(row)
    ports = [{found["MASTER_PORT"] for found in variables_of(row)} for row in rows]
    assert [len(found) for found in ports] == [1, 1] and ports[0] != ports[1]
    setup_torch_elastic_env(grid.slice(gpus=0))
    found = numbers_of(grid)
    assert [numbers[2] for numbers in found] == [2, 3, 3] * 2  # world sizes
    assert [numbers[0] for numbers in found] == [0, 1, 2, 1, 1, 2]


@pytest.mark.feature(94)
def test_ranks_on_several_hosts():
    with hosts_from_config("spmd") as hosts, hosts.spawn_procs(per_host={"gpus": 2}) as procs:
        setup_torch_elastic_env(procs)
        assert [numbers[:6] for numbers in numbers_of(procs)] == [
            (0, 0, 4, 2, 0, 2),
            (1, 1, 4, 2, 0, 2),
            (2, 0, 4, 2, 1, 2),
            (3, 1, 4, 2, 1, 2),
        ]


@pytest.mark.feature(94)
def test_the_old_spelling_warns_and_does_the_same(grid):
    with pytest.warns(DeprecationWarning, match="is an old spelling of monarch.spmd.setup_torch_elastic_env_async"):
        asyncio.run(setup_env_for_distributed(grid, "old.place", 9))
    assert {(found["MASTER_ADDR"], found["MASTER_PORT"]) for found in variables_of(grid)} == {("old.place", "9")}


@pytest.mark.feature(94)
def test_endpoints_of_the_actor_through_a_slice(grid):
    ranks = grid.spawn("ranks", SPMDActor)
    ranks.slice(nodes=1).setup_env.call("here", 8).get(timeout=LIMIT_S)
    assert [numbers[:3] for numbers in numbers_of(grid.slice(nodes=1))] == [(0, 0, 3), (1, 1, 3), (2, 2, 3)]


@pytest.mark.feature(94)
def test_variables_of_a_torchrun_around_the_script_do_not_mislead(grid):
    processes = grid.spawn("process", Process)
    processes.set.call(TORCHELASTIC_USE_AGENT_STORE="True").get(timeout=LIMIT_S)
    setup_torch_elastic_env(grid)
    assert not any(processes.has.call("TORCHELASTIC_USE_AGENT_STORE").get(timeout=LIMIT_S).values())


@pytest.mark.feature(94)
def test_a_mesh_of_this_process_is_one_rank_at_most(monkeypatch):
    for name in NAMES:
        monkeypatch.setenv(name, "as before")
    setup_torch_elastic_env(this_proc(), "here", 5)
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"]) == ("0", "1", "5")
    with local_procs({"gpus": 2}) as procs:
        with pytest.raises(ValueError, match="one process, which has one environment: it cannot be 2 ranks"):
            setup_torch_elastic_env(procs, "here", 6)
        setup_torch_elastic_env(procs.slice(gpus=1), "here", 6)
    assert os.environ["MASTER_PORT"] == "6"


@pytest.mark.feature(94)
def test_wrong_arguments_raise_here_and_set_nothing(grid):
    setup_torch_elastic_env(grid, "before", 1)
    for arguments, error, text in (
        ((this_host(),), TypeError, "expected a ProcMesh"),
        ((grid, ""), ValueError, "master_addr is ''"),
        ((grid, "here", 0), ValueError, "master_port is 0: expected a number from 1 to 65535"),
        ((grid, "here", 2**16), ValueError, "master_port is 65536"),
    ):
        with pytest.raises(error, match=text):
            setup_torch_elastic_env(*arguments)
        with pytest.raises(error, match=text):
            asyncio.run(setup_torch_elastic_env_async(*arguments))
    assert {found["MASTER_ADDR"] for found in variables_of(grid)} == {"before"}


@pytest.mark.feature(94)
def test_a_dead_rank_is_told_and_the_others_can_be_set_up_again():
    with this_host().spawn_procs(per_host={"gpus": 3}) as procs:
        setup_torch_elastic_env(procs)
        with pytest.raises(SupervisionError):
            procs.slice(gpus=0).spawn("process", Process).exit.call_one().get(timeout=LIMIT_S)
        with pytest.raises(SupervisionError):
            setup_torch_elastic_env(procs)
        left = procs.slice(gpus=slice(1, 3))
        setup_torch_elastic_env(left)
        assert [numbers[:3] for numbers in numbers_of(left)] == [(0, 0, 2), (1, 1, 2)]
    with pytest.raises(RuntimeError, match="already been stopped"):
        setup_torch_elastic_env(procs)


@pytest.mark.feature(94)
def test_a_deadline_ends_a_set_up_that_a_rank_does_not_answer():
    with this_host().spawn_procs(per_host={"gpus": 2}) as procs:
        pids = procs.spawn("process", Process).pid.call().get(timeout=LIMIT_S).values()
        os.kill(pids[1], signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineExceeded, match="these had not answered: 1"), deadline(1):
                setup_torch_elastic_env(procs)
        finally:
            os.kill(pids[1], signal.SIGCONT)
        setup_torch_elastic_env(procs)
        assert [numbers[0] for numbers in numbers_of(procs)] == [0, 1]


# ---- Addresses and ports ----


def port_of(mesh) -> int:
    return int(variables_of(mesh)[0]["MASTER_PORT"])


@pytest.mark.feature(94)
def test_nobody_else_is_given_the_port_and_a_server_that_names_it_gets_it(grid):
    setup_torch_elastic_env(grid)
    port = port_of(grid)
    assert not can_bind(port)
    for _ in range(2):
        assert can_bind(port, reuse=True, listen=True)
        assert not can_bind(port)


IP_LOCAL_PORT_RANGE = 51  # of Linux 6.3: this socket is to be given a port of a range


@pytest.mark.feature(94)
@pytest.mark.parametrize("reuse", [0, 1])
def test_the_system_has_no_other_port_and_does_not_give_this_one(grid, reuse):
    setup_torch_elastic_env(grid)
    port = port_of(grid)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as binder, socket.socket() as caller:
        for taker in (binder, caller):
            taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            try:
                taker.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("I", port << 16 | port))
            except OSError:
                pytest.skip("this kernel chooses from one range for all")
        with pytest.raises(OSError):
            binder.bind(("", 0))
        with pytest.raises(OSError):
            caller.connect(server.getsockname())


@pytest.mark.feature(94)
def test_a_process_holds_the_last_64_ports():
    with this_host().spawn_procs() as procs:
        process = procs.spawn("process", Process)
        first, open_then = process.hold_ports.call_one(64).get(timeout=LIMIT_S)
        assert not any(can_bind(port) for port in first) and len(set(first)) == 64
        more, open_now = process.hold_ports.call_one(10).get(timeout=LIMIT_S)
        assert open_now == open_then and not any(can_bind(port) for port in first[10:] + more)


@pytest.mark.feature(94)
def test_a_machine_without_ipv6_holds_ports_as_well(monkeypatch):
    monkeypatch.setattr(socket, "has_ipv6", False)
    with _ports._bound_socket() as holder:
        assert holder.family == socket.AF_INET and not can_bind(holder.getsockname()[1])
    monkeypatch.setattr(socket, "has_ipv6", True)
    monkeypatch.setattr(socket, "AF_INET6", 12345)
    with _ports._bound_socket() as holder:
        assert holder.family == socket.AF_INET


@pytest.mark.feature(94)
def test_rank_0_by_an_address(grid):
    setup_torch_elastic_env(grid, use_ipaddr=AddrType.IPv4)
    assert {found["MASTER_ADDR"] for found in variables_of(grid)} == {socket.gethostbyname(socket.gethostname())}
    first = grid.slice(nodes=0, gpus=0).spawn("rank", SPMDActor)
    address, port = first.get_host_port.call_one(AddrType.IPv4).get(timeout=LIMIT_S)
    assert address == socket.gethostbyname(socket.gethostname()) and not can_bind(port)


def test_a_host_whose_name_means_nothing_is_known_by_an_address(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "nowhere.invalid")
    address = _ports.host_address(None)
    assert get_ipaddr(address, 0, AddrType.IPv4) == address
    with pytest.raises(RuntimeError, match="Unable to resolve `nowhere.invalid`"):
        _ports.host_address(AddrType.Default)


@pytest.mark.feature(94)
def test_addresses_by_kind():
    assert [(kind.name, kind.value) for kind in AddrType] == [("Default", 1), ("IPv4", 2), ("IPv6", 3)]
    assert get_ipaddr("127.0.0.1", 80) == get_ipaddr("127.0.0.1", 80, AddrType.IPv4) == "127.0.0.1"
    assert get_ipaddr("::1", 80) == get_ipaddr("::1", 80, AddrType.IPv6) == "::1"
    assert (get_sockaddr("127.0.0.1", 80), get_sockaddr("::1", 80)) == ("127.0.0.1:80", "[::1]:80")
    for name, kind in (("127.0.0.1", AddrType.IPv6), ("::1", AddrType.IPv4), ("nowhere.invalid", AddrType.Default)):
        with pytest.raises(RuntimeError, match=f"Unable to resolve `{name}`"):
            get_ipaddr(name, 80, kind)


# ---- Programs ----


@pytest.fixture(scope="module")
def pair():
    mesh = this_host().spawn_procs(per_host={"gpus": 2})
    yield mesh
    mesh.stop().get(timeout=LIMIT_S)


@pytest.fixture
def ranks(pair):
    return pair.spawn("ranks", SPMDActor)


def told(out: Path, rank: int) -> dict:
    return json.loads(Path(f"{out}.{rank}").read_text())


@pytest.mark.feature(94, "scripts and modules")
def test_a_script_is_the_main_program(pair, ranks, tmp_path):
    processes = pair.spawn("process", Process)
    before = processes.main_program.call().get(timeout=LIMIT_S).values()
    script, out = str(PROGRAMS / "tell.py"), tmp_path / "out"
    assert ranks.main.call("here", 4711, [script, str(out), "--lr", "0.1"]).get(timeout=LIMIT_S).values() == [True] * 2
    for rank in range(2):
        assert told(out, rank) == {
            "name": "__main__",
            "is_main": True,
            "file": script,
            "argv": [script, str(out), "--lr", "0.1"],
            "path": str(PROGRAMS),
            "port": "4711",
        }
    assert processes.main_program.call().get(timeout=LIMIT_S).values() == before


@pytest.mark.feature(94, "scripts and modules")
def test_a_module_is_the_main_program(tmp_path, monkeypatch):
    monkeypatch.chdir(PROGRAMS)
    with this_host().spawn_procs() as procs:
        rank = procs.spawn("rank", SPMDActor)
        arguments = ["-m", "package.tell", str(tmp_path / "out"), "-x"]
        assert rank.main.call_one("here", 4711, arguments).get(timeout=LIMIT_S) is True
        file = str(PROGRAMS / "package" / "tell.py")
        assert told(tmp_path / "out", 0) == {
            "name": "__main__", "package": "package", "argv": [file, *arguments[2:]], "path": str(PROGRAMS),
        }  # fmt: skip
        assert rank.main.call_one("here", 4711, ["-m", "package", str(tmp_path / "of_all")]).get(timeout=LIMIT_S)
        assert told(tmp_path / "of_all", 0)["argv"][0] == str(PROGRAMS / "package" / "__main__.py")


@pytest.mark.feature(94)
@pytest.mark.parametrize("code", ["0", "none"])
def test_a_script_may_exit_well(ranks, code):
    assert ranks.main.call("here", 1, [PROGRAMS / "end.py", code]).get(timeout=LIMIT_S).values() == [True, True]


@pytest.mark.feature(94)
@pytest.mark.parametrize(("code", "text"), [("3", "status 3"), ("true", "status 1"), ("no GPU", "status 1: no GPU")])
def test_a_script_that_exits_badly_is_an_error_and_the_process_goes_on(ranks, code, text):
    script = str(PROGRAMS / "end.py")
    with pytest.raises(ActorError) as caught:
        ranks.main.call("here", 1, [script, code]).get(timeout=LIMIT_S)
    assert isinstance(caught.value.exception, RuntimeError)
    assert str(caught.value.exception) == f"{script} ended with exit {text}"
    assert ranks.main.call("here", 1, [script, "0"]).get(timeout=LIMIT_S).values() == [True, True]


@pytest.mark.feature(94)
@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ([], ValueError, "No script or module specified"),
        (["-m"], ValueError, "No script or module specified"),
        ("train.py", TypeError, "expected a list, of a program and its arguments"),
        (["train.py", 0.1], TypeError, "expected str, bytes or os.PathLike object, not float"),
        (["there_is_no.py"], FileNotFoundError, "there_is_no.py"),
        (["-m", "there_is_no"], ImportError, "there_is_no"),
        ([str(PROGRAMS / "raise.py")], KeyError, "a script of ours"),
    ],
)
def test_what_a_script_raises_and_what_is_none(ranks, arguments, error, text):
    with pytest.raises(ActorError, match=text) as caught:
        ranks.main.call("here", 1, arguments).get(timeout=LIMIT_S)
    assert isinstance(caught.value.exception, error)


@pytest.mark.feature(94)
def test_children_that_a_script_forks_end_by_themselves(ranks):
    assert ranks.main.call("here", 1, [str(PROGRAMS / "fork.py")]).get(timeout=LIMIT_S).values() == [True, True]


@pytest.mark.feature(94)
def test_one_program_at_a_time_in_a_process(pair, tmp_path):
    one = pair.slice(gpus=0)
    here, go_on = tmp_path / "here", tmp_path / "go_on"
    os.mkfifo(here)
    os.mkfifo(go_on)
    first = one.spawn("first", SPMDActor).main.call_one("here", 1, [str(PROGRAMS / "wait.py"), str(here), str(go_on)])
    assert here.read_text() == "here"
    second = one.spawn("second", SPMDActor)
    process = one.spawn("process", Process)
    process.wait_for_programs.call_one(0.0).get(timeout=LIMIT_S)
    with pytest.raises(ActorError, match=r"cannot run -m this: another program runs in this process \(pid \d+\)"):
        second.main.call_one("here", 1, ["-m", "this"]).get(timeout=LIMIT_S)
    process.wait_for_programs.call_one(float(LIMIT_S)).get(timeout=LIMIT_S)
    waiting = second.main.call_one("here", 1, [str(PROGRAMS / "end.py"), "0"])
    go_on.write_text("")
    assert waiting.get(timeout=LIMIT_S) is True and first.get(timeout=LIMIT_S) is True


def test_no_torch_is_imported(pair, ranks):
    code = "import sys, monarch.spmd, monarch.tools.network; print('torch' in sys.modules, 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.stdout, done.stderr) == ("False False\n", "")
    ranks.main.call("here", 1, [str(PROGRAMS / "end.py"), "0"]).get(timeout=LIMIT_S)
    for modules in pair.spawn("process", Process).modules.call().get(timeout=LIMIT_S).values():
        assert "monarch.spmd" in modules and "torch" not in modules
