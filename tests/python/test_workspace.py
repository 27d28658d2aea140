"""HostMesh.sync_workspace, and the folders behind it."""

import asyncio
import contextlib
import errno
import glob
import hashlib
import importlib
import json
import os
import pickle
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
import types

import pytest
from hostd import Daemon

import monarch.actor
import monarch.tools.config
from monarch import _core
from monarch._files import conda, places, receiver, tree
from monarch._files.ignore import outer_rules, rules
from monarch._files.receiver import Part, Receiver
from monarch._files.tree import Entry, Index, Tree, scan
from monarch._meshes import reloading, syncing, workers
from monarch.actor import Actor, SupervisionError, endpoint, hosts_from_config, this_host
from monarch.job import ProcessJob
from monarch.tools.config import CondaEnvironment, Workspace
from monarch.tools.config.workspace import Workspace as SameWorkspace

LIMIT = 30


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Where hosts that are started in the test write, and where the client keeps what it knows."""
    monkeypatch.setenv("WORKSPACE_DIR", str(tmp_path / "w"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    return tmp_path / "w"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "src" / "proj"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def stand_ins(place):
    """Two hosts that share a folder."""
    with hosts_from_config("hosts") as hosts:
        yield hosts


@pytest.fixture
def apart(folder, tmp_path):
    """Two hosts, each of which has a folder of its own."""
    made = [Daemon(folder, number, inside=("env", f"WORKSPACE_DIR={tmp_path / f'w{number}'}")) for number in range(2)]
    hosts = workers.attach([each.address for each in made], f"{folder}/token", False, "hosts")
    yield hosts
    with contextlib.suppress(Exception):
        hosts.shutdown().get(timeout=LIMIT)


def fill(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def content(folder):
    """Paths of what is there -> what it is; without what sync_workspace keeps for itself."""
    found = {}
    root = os.fsencode(folder)
    for at, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = os.path.join(at, name)
            of = os.lstat(path)
            if stat.S_ISLNK(of.st_mode):
                what = os.readlink(path)
            else:
                with open(path, "rb") if stat.S_ISREG(of.st_mode) else contextlib.nullcontext() as file:
                    what = (stat.S_IMODE(of.st_mode), file.read() if file else None)
            found[os.path.relpath(path, root)] = what
    return found


def sync(hosts, *dirs, **options):
    return hosts.sync_workspace(Workspace(dirs=list(dirs)), **options).get(timeout=LIMIT)


# ---- Whole: hosts and a client ----


@pytest.mark.feature(99, "files")
def test_hosts_have_the_folder_as_the_client_has_it(apart, source, tmp_path):
    fill(source, {"a.py": "a = 1\n", "deep/er/b.py": "b", "with space \n.txt": "", "run.sh": "#!/bin/sh\n"})
    (source / "run.sh").chmod(0o755)
    (source / "deep").chmod(0o750)
    (source / "empty").mkdir()
    (source / "large").write_bytes(os.urandom(2 * tree.BLOCK + 5))
    (source / "link").symlink_to("deep/er")
    (source / "dangling").symlink_to("nowhere")
    with open(os.path.join(os.fsencode(source), b"not-\xff-utf8"), "wb") as file:
        file.write(b"x")
    assert sync(apart, source) is None
    assert content(tmp_path / "w0" / "proj") == content(tmp_path / "w1" / "proj") == content(source)
    assert sorted(os.listdir(tmp_path / "w0" / ".monarch")) == ["lock", "proj.index"]

    assert os.stat(tmp_path / "w1/proj/a.py").st_mtime_ns == os.stat(source / "a.py").st_mtime_ns
    before = {path.name: os.stat(path).st_ino for path in (tmp_path / "w0" / "proj").iterdir() if path.is_file()}
    fill(source, {"a.py": "a = 2\n", "new/c.py": "c"})
    (source / "run.sh").chmod(0o644)
    shutil.rmtree(source / "deep")
    (source / "link").unlink()
    (source / "empty").rmdir()
    (source / "empty").write_text("a file now")
    sync(apart, source)
    assert content(tmp_path / "w0" / "proj") == content(tmp_path / "w1" / "proj") == content(source)
    after = {path.name: os.stat(path).st_ino for path in (tmp_path / "w0" / "proj").iterdir() if path.is_file()}
    assert {name for name in before if before[name] != after[name]} == {"a.py"}


def test_it_can_be_awaited_and_a_job_has_it_too(source, place):
    fill(source, {"a.py": "a"})
    job = ProcessJob({"trainers": 2})
    try:

        async def run():
            await job.state(cached_path=None).trainers.sync_workspace(Workspace({source: "code/mine"}))

        asyncio.run(run())
    finally:
        job.kill()
    assert content(place / "code/mine") == content(source)


def test_each_host_gets_what_it_lacks(apart, source, tmp_path):
    fill(source, {"a": "1", "b": "2"})
    sync(apart, source)
    (tmp_path / "w1/proj/b").write_text("spoilt")
    (tmp_path / "w1/proj/extra").mkdir()
    sync(apart, source)
    assert content(tmp_path / "w0" / "proj") == content(tmp_path / "w1" / "proj") == content(source)


def test_of_hosts_that_share_a_folder_one_writes(stand_ins, source, place):
    fill(source, {"a": "1"})
    procs = stand_ins.spawn_procs()
    agents = procs.spawn("agents", syncing.Agent)
    claims = agents.claim.call("number", "elsewhere", [], []).get(timeout=LIMIT).values()
    assert sorted(claims) == [False, True]
    agents.end.call().get(timeout=LIMIT)
    procs.stop().get(timeout=LIMIT)
    sync(stand_ins, source)
    assert content(place / "proj") == content(source)


def test_several_folders_and_what_goes_wrong_with_one_host_changes_none(apart, source, tmp_path):
    other = tmp_path / "src" / "other"
    fill(other, {"o": "1"})
    fill(source, {"a": "1"})
    sync(apart, source, other)
    assert content(tmp_path / "w1" / "other") == content(other)
    before = content(tmp_path / "w0")
    fill(source, {"a": "2"})
    shutil.rmtree(tmp_path / "w1" / ".monarch")
    (tmp_path / "w1" / ".monarch").write_text("in its way")
    with pytest.raises(RuntimeError, match=r"^sync_workspace, on host hosts=1: File exists: '.*/w1/.monarch'$"):
        sync(apart, source, other)
    assert content(tmp_path / "w0") == before
    (tmp_path / "w1" / ".monarch").unlink()
    sync(apart, source, other)
    assert content(tmp_path / "w1" / "proj") == content(source)


def test_what_is_ignored_is_neither_sent_nor_deleted(stand_ins, source, place):
    fill(source, {".gitignore": "*.log\n/build/\n", "a.py": "", "x.log": "", "build/o": "", "__pycache__/a.pyc": ""})
    fill(source, {".git/config": "", ".monarch/job_state.pkl": "", "gone/g.py": ""})
    sync(stand_ins, source)
    assert set(content(place / "proj")) == {b".gitignore", b"a.py", b"gone", b"gone/g.py"}
    fill(place / "proj", {"run.log": "", "gone/__pycache__/g.cpython-311.pyc": "", "more.txt": ""})
    shutil.rmtree(source / "gone")
    sync(stand_ins, source)
    assert set(content(place / "proj")) == {b".gitignore", b"a.py", b"run.log"}


class Syncs(Actor):
    @endpoint
    def sync(self, source):
        this_host().sync_workspace(Workspace([source])).get(timeout=LIMIT)

    @endpoint
    async def sync_async(self, source):
        await this_host().sync_workspace(Workspace([source]))


def test_this_host_has_a_workspace_too_also_for_an_actor(source, place):
    fill(source, {"a": "1"})
    with this_host() as host:
        sync(host, source)
        assert content(place / "proj") == content(source)
        actor = host.spawn_procs().spawn("syncs", Syncs)
        for each in (actor.sync, actor.sync_async):
            fill(source, {"a": str(each)})
            each.call_one(str(source)).get(timeout=LIMIT)
            assert content(place / "proj") == content(source)


def test_what_cannot_be_read_here_is_said(stand_ins, source, place, monkeypatch):
    fill(source, {"a": "1"})

    def refuse(path, flags, *args, open=os.open):
        if os.fspath(path) == os.fsencode(source / "a"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return open(path, flags, *args)

    monkeypatch.setattr(tree.os, "open", refuse)
    with pytest.raises(RuntimeError, match="^sync_workspace: Permission denied: '.*/src/proj/a'$"):
        sync(stand_ins, source)
    assert not (place / "proj").exists() and not glob.glob(f"{place}/.monarch/[cs]*")


def test_what_leads_out_is_left_out_with_one_line(stand_ins, source, place, capfd):
    fill(source, {"a": ""})
    (source / "passwd").symlink_to("/etc/passwd")
    (source / "up").symlink_to("../..")
    fill(source, {"b/c/x": ""})
    (source / "short").symlink_to("b/c")
    (source / "roundabout").symlink_to("short/../../a")  # by its text alone it leads out
    (source / "b" / "self").symlink_to("..")
    (source / "b" / "c" / "by-self").symlink_to("../self/../a")  # and this one does not
    os.mkfifo(source / "pipe")
    sync(stand_ins, source)
    inside = {b"a", b"b", b"b/c", b"b/c/x", b"b/self", b"short"}
    assert set(content(place / "proj")) == inside
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "left out" in line]  # others say how far it is
    assert "'passwd' (a link to '/etc/passwd'), and 4 more" in line


def test_a_folder_is_not_written_into_itself(stand_ins, place):
    for inside in (place / "proj", place, place / "proj" / "sub"):
        fill(place / "proj" / "sub", {"a": "keep me"})
        with pytest.raises(RuntimeError, match="would be inside of each other: WORKSPACE_DIR is"):
            stand_ins.sync_workspace(Workspace({inside: "proj"})).get(timeout=LIMIT)
        assert (place / "proj/sub/a").read_text() == "keep me"


def test_who_does_not_own_the_hosts_is_told_so_and_so_is_who_has_nothing_to_sync(stand_ins, source, tmp_path):
    fill(source, {"a": ""})
    for reference in (stand_ins.slice(hosts=0), pickle.loads(pickle.dumps(this_host()))):
        with pytest.raises(
            RuntimeError, match="^cannot sync_workspace `HostMesh` that is a reference instead of owned$"
        ):
            sync(reference, source)
    with pytest.raises(TypeError, match=r"takes a monarch\.tools\.config\.Workspace, not 'here'"):
        stand_ins.sync_workspace("here")
    with pytest.raises(ValueError, match="missing' is no folder"):
        sync(stand_ins, tmp_path / "missing")
    assert stand_ins.sync_workspace(Workspace.null()).get(timeout=LIMIT) is None
    for empty in (Workspace(), Workspace(dirs=[]), Workspace({}, env="/conda")):
        with pytest.raises(ValueError, match=r"has no folders\. Name some, as in Workspace\(dirs=\['src'\]\), or"):
            stand_ins.sync_workspace(empty)
    stand_ins.shutdown().get(timeout=LIMIT)
    with pytest.raises(RuntimeError, match="has already been shut down"):
        sync(stand_ins, source)


def test_nothing_of_it_is_left_in_the_processes_of_the_hosts(stand_ins, source):
    fill(source, {"a": ""})
    sync(stand_ins, source)
    until = time.monotonic() + LIMIT
    while not all(_core.down_reason(node) is not None for node in stand_ins._spawned.nodes):
        assert time.monotonic() < until


def test_an_agent_that_dies_fails_the_sync_and_nothing_else(apart, source, tmp_path, monkeypatch):
    fill(source, {"a": "1"})
    sync(apart, source)
    failures, send, sync_by = [], syncing._send, syncing.sync

    class Dies(Actor):  # by value: hosts do not have this module
        @endpoint
        def die(self):
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(monarch.actor, "unhandled_fault_hook", failures.append)

    def sync_and_die(procs, *rest):
        def die_and_send(*args):
            dies = procs.slice(hosts=1).spawn("dies", Dies)
            dies._end_supervision()
            dies.die.call().exception(timeout=LIMIT)
            send(*args)

        monkeypatch.setattr(syncing, "_send", die_and_send)
        return sync_by(procs, *rest)

    monkeypatch.setattr(syncing, "sync", sync_and_die)
    fill(source, {"a": "2"})
    with pytest.raises(SupervisionError, match="workspace"):
        sync(apart, source)
    assert (tmp_path / "w0/proj/a").read_text() == (tmp_path / "w1/proj/a").read_text() == "1"
    assert not glob.glob(f"{tmp_path}/w0/.monarch/[cs]*")
    monkeypatch.setattr(syncing, "_send", send)
    monkeypatch.setattr(syncing, "sync", sync_by)
    sync(apart, source)
    assert (tmp_path / "w0/proj/a").read_text() == (tmp_path / "w1/proj/a").read_text() == "2"
    assert failures == []


def test_conda_says_what_is_missing(stand_ins, source, tmp_path):
    with pytest.raises(RuntimeError, match="CONDA_PREFIX is not set, and Workspace"):
        sync(stand_ins, source, conda=True)
    with pytest.raises(RuntimeError, match="is no conda environment, since it has no folder 'conda-meta'"):
        stand_ins.sync_workspace(Workspace([source], env=tmp_path), conda=True).get(timeout=LIMIT)


def test_what_takes_longer_than_a_second_says_so_once(monkeypatch, stand_ins, source, capfd):
    monkeypatch.setattr(syncing, "_TOLD_AFTER_S", 0.0)
    for number in range(3):
        (source / str(number)).write_bytes(bytes(tree.BLOCK))
    sync(stand_ins, source)
    err = capfd.readouterr().err
    assert "sync_workspace: 4.0 of 12.0 MiB (3 files that differ) sent to 2 hosts\n" in err and err.count("\n") == 1


def test_a_virtual_environment_comes_whole_though_it_ignores_itself(stand_ins, source, place):
    fill(source, {"pyvenv.cfg": "", ".gitignore": "*", "lib/p/.gitignore": "*", "lib/p/m.py": "m"})
    (source.parent / ".git").mkdir()
    fill(source.parent, {".gitignore": "proj"})
    sync(stand_ins, source)
    assert content(place / "proj") == content(source)
    fill(place / "proj", {"lib/p/old.py": ""})
    sync(stand_ins, source)
    assert content(place / "proj") == content(source)


@pytest.mark.feature(99, "conda environments")
def test_a_conda_environment_is_made_anew_with_its_own_path(apart, tmp_path, monkeypatch):
    env = tmp_path / "envs" / "lab"
    here, room = os.fsencode(env), 300
    listed = [
        {"_path": "etc/where.txt", "prefix_placeholder": "p" * room, "file_mode": "text"},
        {"_path": "lib/program", "prefix_placeholder": "p" * room, "file_mode": "binary"},
        {"_path": "lib/plain.py"},
    ]
    fill(env, {"conda-meta/x.json": json.dumps({"paths_data": {"paths": listed}}), "lib/plain.py": f"# {env}"})
    fill(
        env, {"etc/where.txt": f"{env}:{env}/lib", "bin/tool": f"#!{env}/bin/python\nprint()\n", "bin/sh": "#!/bin/sh"}
    )

    def program(path):
        return b"ELF\0" + (path + b"/lib:" + path).ljust(2 * room + 5, b"\0") + b"\0end"

    (env / "lib" / "program").write_bytes(program(here))
    monkeypatch.setattr(tree, "_FINE_NS", 0)
    monkeypatch.setenv("CONDA_PREFIX", str(env))
    apart.sync_workspace(Workspace(), conda=True).get(timeout=LIMIT)
    for number in range(2):
        there = tmp_path / f"w{number}" / "lab"
        assert (there / "etc/where.txt").read_text() == f"{there}:{there}/lib"
        assert (there / "bin/tool").read_text() == f"#!{there}/bin/python\nprint()\n"
        assert (there / "lib/program").read_bytes() == program(os.fsencode(there))
        assert (there / "lib/plain.py").read_text() == f"# {env}" and (there / "bin/sh").read_text() == "#!/bin/sh"
    with pytest.raises(ValueError, match="must be beside each other"):
        apart.sync_workspace(Workspace({env / "lib": "lab"}), conda=True).get(timeout=LIMIT)


def test_what_was_rewritten_is_not_sent_again_and_a_path_that_is_too_long_is_refused(place):
    data = b"ELF\0/env".ljust(14, b"\0")
    of = Tree("e", [], {b"p": file_of(data)}, conda.Prefix(b"/env", frozenset(), {b"p": 2000}))
    for wanted in ([[b"p"]], [[]]):
        writer = Receiver(str(place))
        writer.claim("n")
        assert writer.compare([of]) == wanted
        if wanted[0]:
            writer.put([Part(0, b"p", 0, data, of.entries[b"p"])])
        writer.commit()
        time_passes(place / "e/p", place / ".monarch/e.index", of.entries[b"p"].content)
    with pytest.raises(ValueError, match="'p' has room for a path of 4 bytes, and '/longer' is longer"):
        conda.rewrite(data, conda.Prefix(b"/env", frozenset(), {b"p": 4}), b"p", b"/longer")


def time_passes(path, index, digest):
    """The index takes the file for old enough."""
    of = os.stat(path)
    kept = [of.st_size, of.st_mtime_ns, of.st_ctime_ns, of.st_ino, digest.hex()]
    index.write_text(json.dumps({"version": 1, "files": {path.name: kept}}))


# ---- Modules are loaded anew ----


class Importer(Actor):
    def __init__(self, folder):
        sys.path.insert(0, folder)

    @endpoint
    def value(self):
        import reloaded_by_test

        return reloaded_by_test.value()


@pytest.mark.feature(99, "modules are loaded anew")
def test_living_processes_load_what_has_changed(stand_ins, source, place):
    fill(
        source,
        {"reloaded_by_test.py": "from lower_by_test import V\ndef value(): return V\n", "lower_by_test.py": "V = 1"},
    )
    sync(stand_ins, source)
    with stand_ins.spawn_procs({"gpus": 2}) as procs:
        actors = procs.spawn("importer", Importer, str(place / "proj"))
        assert set(actors.value.call().get(timeout=LIMIT).values()) == {1}
        both = {
            "lower_by_test.py": "V = 2",
            "reloaded_by_test.py": "from lower_by_test import V\ndef value(): return -V\n",
        }
        fill(source, both)
        sync(stand_ins, source, auto_reload=True)
        assert set(actors.value.call().get(timeout=LIMIT).values()) == {-2}
        fill(source, {"reloaded_by_test.py": "def value(: return 3\n"})
        with pytest.raises(RuntimeError, match=r"not loaded: reloaded_by_test: SyntaxError: .*reloaded_by_test.py"):
            sync(stand_ins, source, auto_reload=True)
        assert set(actors.value.call().get(timeout=LIMIT).values()) == {-2}
        fill(source, {"reloaded_by_test.py": "def value(): return 4\n"})
        sync(stand_ins, source)
        assert set(actors.value.call().get(timeout=LIMIT).values()) == {-2}


def test_a_class_that_is_spawned_next_is_the_new_one(stand_ins, source, place, monkeypatch):
    text = """
    from monarch.actor import Actor, endpoint
    class Speaker(Actor):
        @endpoint
        def say(self):
            return {!r}
    """
    fill(source, {"speaker_by_test.py": textwrap.dedent(text.format("old"))})
    monkeypatch.syspath_prepend(str(source))
    sync(stand_ins, source)
    module = importlib.import_module("speaker_by_test")
    with stand_ins.spawn_procs(bootstrap=lambda: sys.path.insert(0, str(place / "proj"))) as procs:
        assert set(procs.spawn("s", module.Speaker).say.call().get(timeout=LIMIT).values()) == {"old"}
        fill(source, {"speaker_by_test.py": textwrap.dedent(text.format("new"))})
        sync(stand_ins, source, auto_reload=True)
        importlib.reload(module)
        assert set(procs.spawn("s", module.Speaker).say.call().get(timeout=LIMIT).values()) == {"new"}
    del sys.modules["speaker_by_test"]


def test_only_modules_of_these_files_are_loaded_anew(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    fill(tmp_path, {"count_by_test.py": "import builtins\nbuiltins.loads_by_test += 1\n", "other_by_test.py": "x = 1"})
    monkeypatch.setattr("builtins.loads_by_test", 0, raising=False)
    for name in ("count_by_test", "other_by_test"):
        importlib.import_module(name)
    assert reloading.reload_modules([str(tmp_path / "count_by_test.py"), str(tmp_path / "never.py")]) == (
        ["count_by_test"],
        [],
    )
    assert sys.modules["count_by_test"].builtins.loads_by_test == 2
    for name in ("count_by_test", "other_by_test"):
        del sys.modules[name]


def test_a_module_that_ends_its_process_is_one_that_cannot_be_loaded(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    fill(tmp_path, {"ends_by_test.py": "x = 1", "after_by_test.py": "x = 1"})
    modules = [importlib.import_module(name) for name in ("ends_by_test", "after_by_test")]
    fill(tmp_path, {"ends_by_test.py": "import sys; sys.exit('bye')", "after_by_test.py": "x = 1000"})
    paths = [str(tmp_path / name) for name in ("ends_by_test.py", "after_by_test.py")]
    assert reloading.reload_modules(paths) == (["after_by_test"], ["ends_by_test: SystemExit: bye"])
    assert modules[1].x == 1000
    for module in modules:
        del sys.modules[module.__name__]


# ---- Workspace ----


def test_a_workspace_says_where_folders_are_to_be(source, tmp_path, monkeypatch):
    assert SameWorkspace is Workspace and Workspace.__module__ == "monarch.tools.config"
    assert Workspace([source]) == Workspace({source: "proj"}) != Workspace({source: "x"})
    assert Workspace.null() == Workspace()
    other = tmp_path / "else" / "proj"
    with pytest.raises(ValueError, match="must be beside each other"):
        Workspace([source, other])
    with pytest.raises(ValueError, match="must be beside each other"):
        Workspace({source: "a", other: "a/b"})
    for bad in ("", ".", "..", "/abs", "a/../b", ".monarch", "a//b", "a\0"):
        with pytest.raises(ValueError, match="only a relative path"):
            Workspace({source: bad})
    for bad in ("proj", 5, [3]):
        with pytest.raises(TypeError, match="dirs"):
            Workspace(bad)
    monkeypatch.setenv("CONDA_PREFIX", "/conda")
    assert Workspace().env.conda_prefix == "/conda" and Workspace(env="/other").env.conda_prefix == "/other"
    assert Workspace.null().env is None
    monkeypatch.delenv("CONDA_PREFIX")
    with pytest.raises(RuntimeError, match="no conda environment is active"):
        _ = CondaEnvironment().conda_prefix


def test_a_workspace_is_merged_and_told_to_roles(source, tmp_path, monkeypatch):
    fill(source, {"a": "1", "d/b": "2"})
    (source / "link").symlink_to("a")
    workspace = Workspace({source: "code"})
    workspace.merge(tmp_path / "out")
    workspace.merge(tmp_path / "out")
    assert content(tmp_path / "out" / "code") == content(source)
    roles = [types.SimpleNamespace(env={"PYTHONPATH": "/p"}), types.SimpleNamespace(env={"WORKSPACE_DIR": "/mine"})]
    workspace.set_env_vars(types.SimpleNamespace(roles=roles))
    root = os.environ["WORKSPACE_DIR"]
    assert roles[0].env == {"WORKSPACE_DIR": root, "PYTHONPATH": f"{root}/code:/p"}
    assert roles[1].env == {"WORKSPACE_DIR": "/mine", "PYTHONPATH": "/mine/code"}
    monkeypatch.delenv("WORKSPACE_DIR")
    assert places.default_root() == os.path.expanduser("~/.monarch/workspace")


# ---- What is in a folder ----

RULES = r"""
# a comment
*.o
!keep.o
/top
only/
doc/*.txt
**/deep/x
a/**/z
all/**
[a-c]?.dat
[!x]-neg
\#hash
\!bang
trail\ 
lit[]]
sub/dir/
[[:digit:]]num
*.tmp
!sub/*.tmp
*.ord
!z.ord
!w.*
w.ord
!k.ord
k.*
!s[t].ord
*.two.ends
*.
*.fold/
"""  # noqa: W291

PATHS = """a.o keep.o x/keep.o x/b.o top y/top only/f y/only/g y/z/only doc/a.txt doc/b/c.txt y/doc/a.txt deep/x
q/deep/x
deep/y a/z a/b/z a/b/c/z b/a/z all/x all/y/z b1.dat d1.dat y-neg x-neg #hash !bang trail lit] sub/dir/f y/sub/dir/f 5num
xnum t.tmp sub/t.tmp sub/u/t.tmp plain
z.ord w.ord v.ord k.ord st.ord dir.ord/f .ord z.ord.x x.two.ends ends dot. a.fold sub/a.fold/f""".split()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is what it is compared with")
def test_gitignore_means_what_it_means_to_git(source):
    fill(source, {path: "" for path in PATHS})
    fill(source, {"trail ": "", ".gitignore": RULES, "y/.gitignore": "!top\n/here\n", "y/here": "", "y/n/here": ""})
    git = ["git", "-c", "core.excludesFile=/dev/null", "-C", str(source)]
    subprocess.run([*git, "init", "-q"], check=True)
    listed = subprocess.run([*git, "ls-files", "-coz", "--exclude-standard"], check=True, capture_output=True).stdout
    found, _ = scan(os.fsencode(source), [], Index(str(source.parent / "index")))
    assert {path for path, entry in found.items() if entry.kind == "f"} == set(listed.rstrip(b"\0").split(b"\0"))
    inside = os.fsencode(source / "y")
    found, _ = scan(inside, outer_rules(inside), Index(str(source.parent / "index2")))
    of_y = {path[2:] for path in listed.rstrip(b"\0").split(b"\0") if path.startswith(b"y/")}
    assert {path for path, entry in found.items() if entry.kind == "f"} == of_y


def test_a_file_that_has_not_been_touched_is_not_read_again(source, tmp_path, monkeypatch):
    fill(source, {"a": "1", "b": "2"})
    read = []
    hash_file = tree.hash_file
    monkeypatch.setattr(tree, "hash_file", lambda path: read.append(os.path.basename(path)) or hash_file(path))
    monkeypatch.setattr(tree, "_FINE_NS", 0)
    monkeypatch.setattr(tree, "_COARSE_NS", 0)

    def look():
        read.clear()
        index = Index(str(tmp_path / "index"))
        found, _ = scan(os.fsencode(source), [], index)
        index.save()
        return found

    first = look()
    assert read == [b"a", b"b"] and look() == first and read == []
    of = os.stat(source / "a")
    (source / "a").write_text("3")
    os.utime(source / "a", ns=(of.st_atime_ns, of.st_mtime_ns))
    assert look()[b"a"] != first[b"a"] and read == [b"a"]
    for broken in ("", "[]", '{"version": 1, "files": {"b": 5}}'):
        (tmp_path / "index").write_text(broken)
        look()
        assert b"b" in read


def test_a_young_file_is_read_again_since_a_change_might_not_show(source, tmp_path, monkeypatch):
    monkeypatch.setattr(tree, "_FINE_NS", 1 << 62)
    monkeypatch.setattr(tree, "_COARSE_NS", 1 << 62)
    fill(source, {"a": "1"})
    index = Index(str(tmp_path / "index"))
    scan(os.fsencode(source), [], index)
    index.save()
    assert Index(str(tmp_path / "index")).get(b"a", os.stat(source / "a")) is None


def test_a_file_that_changes_while_it_is_read_is_read_again(source, monkeypatch):
    monkeypatch.setattr(tree, "BLOCK", 4)
    fill(source, {"a": "old old old"})
    of = syncing._Source(str(source), "proj")
    parts = of.parts(0, b"a")
    first = next(parts)
    (source / "a").write_text("new, and longer than it was")
    written = bytearray(first.data)
    for part in parts:
        written[part.offset :] = part.data
    assert written == b"new, and longer than it was" and part.final.size == len(written)
    (source / "a").unlink()
    assert [part.is_gone for part in of.parts(0, b"a")] == [True]


def test_a_folder_that_goes_while_it_is_looked_at_is_none(source, tmp_path):
    fill(source, {"a/1": "", "b/2": ""})
    found = tree.walk(os.fsencode(source), [])
    seen = [next(found)[0], next(found)[0]]
    shutil.rmtree(source / "a")
    assert seen + [path for path, _ in found] == [b"a", b"b", b"b/2"]
    with pytest.raises(FileNotFoundError):
        list(tree.walk(os.fsencode(source / "a"), []))


def test_a_file_that_never_rests_is_an_error(source, monkeypatch):
    fill(source, {"a": "1"})
    fstat, number = os.fstat, iter(range(100))

    def never_the_same(handle):
        (source / "a").write_text(str(next(number)))
        return fstat(handle)

    monkeypatch.setattr(tree.os, "fstat", never_the_same)
    with pytest.raises(OSError, match="it has changed 5 times while it was read"):
        tree.hash_file(os.fsencode(source / "a"))


# ---- What writes ----


def tree_of(entries, name="proj"):
    return [Tree(name, [], entries)]


def file_of(data):
    return Entry("f", 0o644, len(data), hashlib.blake2b(data, digest_size=20).digest())


def write(root, files, name="proj"):
    """A file of one part each."""
    entries = {path: file_of(data) for path, data in files.items()}
    writer = Receiver(str(root))
    writer.claim("n")
    try:
        wanted = writer.compare(tree_of(entries, name))
        writer.put([Part(0, path, 0, files[path], entries[path]) for path in wanted[0]])
        return writer.commit()
    finally:
        writer.end()


def test_the_hash_of_a_large_file_is_kept_as_soon_as_it_is_there(place):
    data = bytes(tree._WORTH_A_WAIT + 1)
    write(place, {b"a": data})
    kept = Index(str(place / ".monarch/proj.index")).get(b"a", os.lstat(place / "proj/a"))
    assert kept == file_of(data).content


def test_a_full_disk_leaves_what_was_there(place, monkeypatch):
    write(place, {b"a": b"old a", b"b": b"old b"})
    pwrite, left = os.pwrite, [7]

    def nearly_full(handle, data, offset):
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = pwrite(handle, data[: left[0]], offset)
        left[0] -= done
        return done

    monkeypatch.setattr(receiver.os, "pwrite", nearly_full)
    with pytest.raises(OSError, match="No space left on device; the files there are as they were.*proj/b"):
        write(place, {b"a": b"newer", b"b": b"newer"})
    assert content(place / "proj") == {b"a": (0o644, b"old a"), b"b": (0o644, b"old b")}
    assert sorted(os.listdir(place / ".monarch")) == ["lock", "proj.index"]


@pytest.mark.parametrize("path", [b"../x", b"/etc/x", b"a/../../x", b"", b".", b"a//x", b"no/folder", b"a\0"])
def test_nothing_is_written_outside(place, path):
    with pytest.raises(ValueError, match="it would be outside of the workspace"):
        write(place, {path: b"x"})
    with pytest.raises(ValueError, match="a folder cannot be '../x' in the workspace"):
        write(place, {}, name="../x")


@pytest.mark.parametrize("leads_to", [b"/etc", b"../..", b"x/../../y", b"../rooted"])
def test_links_that_lead_out_are_refused(place, leads_to):
    writer = Receiver(str(place))
    writer.claim("n")
    with pytest.raises(ValueError, match="it is a link out of the workspace"):
        writer.compare(tree_of({b"l": Entry("l", 0, 0, leads_to)}))
    writer.end()


def test_links_that_are_there_are_not_followed(place, tmp_path):
    outside = tmp_path / "outside"
    fill(outside, {"f": "not ours"})
    place.mkdir()
    (place / "proj").symlink_to(outside)
    write(place, {b"f": b"ours"})
    assert not (place / "proj").is_symlink() and (outside / "f").read_text() == "not ours"
    (place / "proj" / "d").symlink_to(outside)
    data = b"ours!"
    entries = {b"d": Entry("d", 0o755), b"d/f": file_of(data)}
    writer = Receiver(str(place))
    writer.claim("n")
    assert writer.compare(tree_of(entries)) == [[b"d/f"]]
    writer.put([Part(0, b"d/f", 0, data, entries[b"d/f"])])
    writer.commit()
    assert (outside / "f").read_text() == "not ours" and (place / "proj/d/f").read_bytes() == data


def test_what_has_not_come_whole_is_not_put_in_place(place):
    write(place, {b"a": b"old"})
    writer = Receiver(str(place))
    writer.claim("n")
    writer.compare(tree_of({b"a": Entry("f", 0o644, 5, b"other")}))
    with pytest.raises(OSError, match="not all of it has come"):
        writer.commit()
    writer.end()
    assert (place / "proj/a").read_bytes() == b"old"


def test_what_one_that_was_killed_has_left_goes(place):
    fill(place, {".monarch/staging-0/0": "half", ".monarch/staging-7/3": "half", ".monarch/claim-old": ""})
    os.utime(place / ".monarch/claim-old", (0, 0))
    write(place, {b"a": b"1"})
    assert sorted(os.listdir(place / ".monarch")) == ["lock", "proj.index"] and (place / "proj/a").read_bytes() == b"1"


def test_two_that_write_there_come_one_after_the_other(place, monkeypatch):
    first = Receiver(str(place))
    first.claim("1")
    first.compare(tree_of({}))
    monkeypatch.setattr(receiver, "_LOCK_S", 0.0)
    with pytest.raises(TimeoutError, match="another sync_workspace has been writing there for 0 s"):
        write(place, {b"a": b"1"})
    monkeypatch.setattr(receiver, "_LOCK_S", float(LIMIT))
    second = threading.Thread(target=write, args=(place, {b"a": b"2"}))
    second.start()
    first.commit()
    second.join(LIMIT)
    assert (place / "proj/a").read_bytes() == b"2"


def test_what_was_compiled_of_a_module_goes_with_it(place):
    write(place, {b"m.py": b"x = 1", b"mm.py": b""})
    fill(place / "proj", {"__pycache__/m.cpython-311.pyc": "", "__pycache__/mm.cpython-311.pyc": ""})
    write(place, {b"m.py": b"x = 2", b"mm.py": b""})
    assert os.listdir(place / "proj/__pycache__") == ["mm.cpython-311.pyc"]


def test_what_is_no_file_any_more_is_gone_and_leaves_no_descriptor(tmp_path):
    was_a_file, below, was_one_too = (os.fsencode(tmp_path / name) for name in ("a", "b/c", "s"))
    os.mkdir(was_a_file)
    (tmp_path / "b").touch()
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(was_one_too)
    before = len(os.listdir("/proc/self/fd"))
    for path in (was_a_file, below, was_one_too):
        with pytest.raises(FileNotFoundError) as info:
            tree.hash_file(path)
        assert info.value.filename == path
    assert len(os.listdir("/proc/self/fd")) == before


def test_many_stars_in_a_rule_take_no_longer_than_one():
    ignored = rules(b"*" + b"a*" * 40 + b"b\n" + b"x*[ab]*?z/*y*\n")  # each tried at all places: for ever
    assert ignored.decide(b"a" * 120, b"a" * 120, False) is None
    assert ignored.decide(b"a" * 120 + b"b", b"a" * 120 + b"b", False)
    deep = rules(b"**/" * 20 + b"zz\n" + b"**/a/" * 20 + b"yy/\n")
    assert deep.decide(b"a/" * 60 + b"b", b"b", False) is None
    assert deep.decide(b"b/" * 60 + b"zz", b"zz", False) and deep.decide(b"b/a/" * 20 + b"yy", b"yy", True)
    assert ignored.decide(b"x1a1z/2y", b"2y", False) and ignored.decide(b"xbz/y", b"y", False) is None
