"""monarch.remotemount, monarch.gather_mount, and the mounts of jobs: with FUSE, on several hosts of this machine."""

import errno
import os
import select
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
from script_run import PROGRAMS, Run, program

from monarch._mounts import points
from monarch._mounts.kernel import Attributes
from monarch._mounts.remote import Cached
from monarch._mounts.source import BLOCK, SMALL, scan
from monarch.actor import ActorError, hosts_from_config, this_host
from monarch.gather_mount import gather_mount
from monarch.job import LocalJob, job_loads
from monarch.remotemount import remotemount

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="no /dev/fuse on this machine")
MOUNTS = program("mounts/mounts.py")


def mounted(folder):
    """Mount points below a folder."""
    return [words[4] for words in map(str.split, points._mounts()) if words[4].startswith(f"{folder}/")]


def watchers(folder):
    """Processes that have the folder in their arguments."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            arguments = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"-S" in arguments and any(part.startswith(f"{folder}/".encode()) for part in arguments):
            found.append(int(entry))
    return found


def wait_until(test, limit_s):
    """Looks now and then: of mounts and of strangers' processes nobody is told."""
    deadline = time.monotonic() + limit_s
    while not test():
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        select.select([], [], [], 0.02)


@pytest.fixture
def folder(tmp_path):
    """With ``source/`` in it; nothing may be mounted in it at the end, and nobody be there who watches."""
    source = tmp_path / "source"
    (source / "package/.monarch").mkdir(parents=True)
    (source / "package/.monarch/secret").write_text("no")
    (source / "package/module.py").write_text("VALUE = 1\n")
    (source / "tool").write_text("#!/bin/sh\necho ran\n")
    (source / "tool").chmod(0o750)
    (source / "link").symlink_to("package/module.py")
    (source / "large").write_bytes(os.urandom(2 * BLOCK + 12345))
    os.mkfifo(source / "pipe")
    yield tmp_path
    try:
        wait_until(lambda: not mounted(tmp_path) and not watchers(tmp_path), 2)
    finally:
        for path in mounted(tmp_path):
            points._unmount(path)


@pytest.fixture
def hosts():
    with hosts_from_config("mounts") as hosts:
        yield hosts


# ---- Remote mounts ----


@pytest.mark.feature(100, "blocks when they are read")
def test_hosts_read_what_the_client_has(folder, hosts):
    source, at = folder / "source", folder / "at/$SUBDIR"
    with remotemount(hosts, str(source), str(at)):
        for name in ("hosts_0", "hosts_1"):
            there = folder / "at" / name
            assert sorted(os.listdir(there)) == ["large", "link", "package", "tool"]
            assert os.listdir(there / "package") == ["module.py"]
            assert os.readlink(there / "link") == "package/module.py"
            assert (there / "link").read_text() == "VALUE = 1\n"
            assert (there / "large").read_bytes() == (source / "large").read_bytes()
            assert subprocess.run([there / "tool"], capture_output=True, text=True).stdout == "ran\n"
            for name in ("tool", "package", "large"):
                here, seen = os.stat(source / name), os.stat(there / name)
                assert (seen.st_mode, seen.st_mtime_ns) == (here.st_mode, here.st_mtime_ns)
            assert os.stat(there / "large").st_size == os.stat(source / "large").st_size
            with pytest.raises(OSError) as refused:
                (there / "package/new").write_text("")
            assert refused.value.errno == errno.EROFS
    assert not mounted(folder) and os.listdir(folder / "at") == []


@pytest.mark.feature(100, "refreshed by what changed")
def test_a_refresh_shows_what_is_new_and_sends_only_that(folder):
    source, at = folder / "source", folder / "at"
    mount = remotemount(this_host(), str(source), str(at))
    mount.open()
    mount.open()  # nothing
    assert not (at / "new.py").exists() and (at / "package/module.py").read_text() == "VALUE = 1\n"
    held = open(at / "package/module.py")
    (source / "package/module.py").write_text("VALUE = 2222\n")
    (source / "new.py").write_text("NEW = 1\n")
    (source / "tool").unlink()
    assert (at / "package/module.py").read_text() == "VALUE = 1\n"
    mount.refresh()
    assert (at / "package/module.py").read_text() == held.read() == "VALUE = 2222\n"
    assert (at / "new.py").read_text() == "NEW = 1\n" and not (at / "tool").exists()
    assert mount._origin.scan.call_one(str(source)).get() == ({}, [])
    shutil.copytree(source / "package", folder / "other/package")
    mount.refresh(str(folder / "other"))
    assert os.listdir(at) == ["package"]
    held.close()
    mount.close()
    mount.close()
    with pytest.raises(RuntimeError, match="is not open, and cannot be refreshed"):
        mount.refresh()
    mount.open()  # what it was last
    assert os.listdir(at) == ["package"]
    mount.close()


def test_a_file_that_has_changed_is_not_read_in_two_halves(folder):
    source, at = folder / "source", folder / "at"
    with remotemount(this_host(), str(source), str(at)) as mount:
        with open(source / "large", "r+b") as file:
            file.write(b"other")
        os.utime(source / "large", ns=(1, 1))
        with pytest.raises(OSError) as refused:
            (at / "large").read_bytes()
        assert refused.value.errno == errno.EIO
        mount.refresh()
        assert (at / "large").read_bytes() == (source / "large").read_bytes()


class Origin:
    """Stands for the client."""

    def __init__(self):
        self.block, self.asked, self.answer = self, [], b"x" * SMALL

    def call_one(self, path, entry, number, known):
        self.asked.append((number, known is not None))
        return self

    def get(self, limit_s):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_block_is_brought_once_and_not_again_if_it_is_the_same(folder):
    (folder / "source/large").write_bytes(b"x" * SMALL)
    index, origin = scan(str(folder / "source")), Origin()
    files = Cached(origin)
    files.change(index, [])
    for _ in range(2):
        assert files.read("large", 0, 100) == b"x" * 100
    assert origin.asked == [(0, False)]
    files.change({"large": index["large"]._replace(mtime_ns=7)}, [])
    origin.answer = None  # the same
    assert files.read("large", SMALL - 10, 100) == b"x" * 10
    assert origin.asked == [(0, False), (0, True)]
    files.change({"large": index["large"]._replace(mtime_ns=8)}, [])
    origin.answer = errno.EACCES
    with pytest.raises(PermissionError):
        files.read("large", 0, 1)


@pytest.mark.parametrize("way", ["end", "kill", "hosts", "source"])
def test_nothing_is_left_however_it_ends(folder, way):
    run = Run(MOUNTS, args=(str(folder / "source"), str(folder / "at"), str(folder / "gathered")))
    assert run.line("mounted ").split() == ["hosts_0", "hosts_1"] and len(mounted(folder)) == 2 and watchers(folder)
    held = os.open(folder / "at/large", os.O_RDONLY)
    os.read(held, 10)
    if way == "kill":
        run.kill()
        run.done()
    else:
        run.tell(way + "\n")
        run.done()
    wait_until(lambda: not mounted(folder) and not watchers(folder), 2)
    with pytest.raises(OSError):  # not a hang
        os.pread(held, 10, 2 * BLOCK)
    os.closerange(held, held + 1)  # which fails as well


def test_who_is_killed_while_it_mounts_leaves_nothing(folder):
    script = """
import os, signal, sys
from monarch._mounts import points
mount = points._mount
def mount_and_die(*arguments):
    mount(*arguments)
    print("mounted", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
points._mount = mount_and_die
points.Point(sys.argv[1], None)
"""
    run = Run(script, args=(str(folder / "at"),))
    run.line("mounted")
    run.done()
    wait_until(lambda: not mounted(folder) and not watchers(folder) and not (folder / "at").exists(), 2)


def test_a_read_fails_when_the_client_is_gone(folder):
    run = Run(MOUNTS, args=(str(folder / "source"), str(folder / "at"), str(folder / "gathered")))
    run.line("mounted ")
    run.tell("blind\n")
    assert run.line("blind ") == str(errno.EIO)
    assert (folder / "at/package/module.py").read_text() == "VALUE = 1\n"  # it has that
    run.tell("end\n")
    run.done()


def test_a_dead_mount_is_remade(folder):
    at = folder / "at"
    at.mkdir()
    os.close(points._mount(str(at), "monarch"))
    with pytest.raises(OSError) as dead:
        os.listdir(at)
    assert dead.value.errno in points._DEAD and points.is_dead(str(at))
    with remotemount(this_host(), str(folder / "source"), str(at)):
        assert (at / "package/module.py").exists() and len(mounted(folder)) == 1
    assert os.listdir(at) == []


def test_a_dead_mount_that_cannot_be_unmounted_is_told_of(folder, monkeypatch):
    tries = iter(range(2))
    monkeypatch.setattr(points, "is_dead", lambda path: True)
    monkeypatch.setattr(points, "_unmount", lambda path: next(tries))  # as without fusermount3, or somebody else's
    with pytest.raises(FileExistsError, match="is dead, and this user cannot unmount it"):
        points._prepare(str(folder / "at"))


class Numbers:
    """Two hundred files."""

    valid_s, keeps = 60.0, True

    def attributes(self, path):
        if path and int(path) >= 200:
            raise FileNotFoundError(errno.ENOENT, path)
        return Attributes(stat.S_IFREG | 0o444 if path else stat.S_IFDIR | 0o555, len(path), 0)


def test_what_the_kernel_has_forgotten_is_forgotten(folder):
    point = points.Point(str(folder / "at"), Numbers())
    try:
        for _ in range(2):
            assert [os.stat(folder / f"at/{number}").st_size for number in (5, 10, *range(200))][:3] == [1, 2, 1]
            assert len(point.kernel._paths) == 201
            for number in range(200):
                point.kernel.changed(str(number), is_entry=True)
            wait_until(lambda: point.kernel._paths == {1: ""} and point.kernel._inodes == {"": 1}, 5)
            assert point.kernel._looks == {}
    finally:
        point.close()


def test_a_file_of_before_1970_has_its_time(folder):
    before_s = -86400
    os.utime(folder / "source/tool", (before_s, before_s))
    with remotemount(this_host(), str(folder / "source"), str(folder / "at")):
        assert os.stat(folder / "at/tool").st_mtime == before_s


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be somebody else")
def test_what_its_user_may_list_and_not_look_at_is_left_out(folder):
    (folder / "source/package").chmod(0o744)
    for path in (folder, *folder.parents[:3]):
        os.chmod(path, 0o755)
    if (child := os.fork()) == 0:
        try:
            os.setuid(65534)
            found = scan(str(folder / "source"))
            os._exit("package" not in found or "package/module.py" in found)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_cannot_be_mounted_is_refused(folder):
    host, source = this_host(), str(folder / "source")
    with pytest.raises(TypeError, match="takes a HostMesh, not 'here'"):
        remotemount("here", source)
    with pytest.raises(ValueError, match="mntpoint must be an absolute path"):
        remotemount(host, source, "at")
    with pytest.raises(FileNotFoundError):
        remotemount(host, str(folder / "nothing"), str(folder / "at")).open()
    with pytest.raises(NotADirectoryError):
        remotemount(host, f"{source}/tool", str(folder / "at")).open()
    for at in (None, f"{source}/package/in", str(folder)):
        with pytest.raises(ValueError, match="another mntpoint is wanted"):
            remotemount(host, source, at).open()
    with pytest.raises(ActorError, match="is not empty; an empty directory is wanted") as info:
        remotemount(host, source, "/usr").open()
    assert str(info.value).startswith(f"RemoteMount({source!r} at '/usr' on [HostMesh({{}})]) cannot be opened.\n")
    with remotemount(host, source, str(folder / "at")):
        with pytest.raises(ActorError, match=r"something is mounted at '.*/at' \(fuse.monarch\)"):
            remotemount(host, source, str(folder / "at")).open()


def test_without_fuse_it_says_what_to_install(folder, monkeypatch):
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path != "/dev/fuse" and exists(path))
    with pytest.raises(RuntimeError, match="has no /dev/fuse: install the package fuse3 there"):
        points.Point(str(folder / "at"), None)
    assert not (folder / "at").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be somebody else")
def test_a_user_who_is_not_root_mounts_too(folder):
    for needed in ("fusermount3", "/usr/bin/python3"):
        if shutil.which(needed) is None:
            pytest.skip(f"no {needed} on this machine")
    for path in (folder, *folder.parents[:3]):
        os.chmod(path, 0o755)
    os.chown(folder, 65534, 65534)
    node = f"mknod -m 666 {folder}/fuse c 10 229 && mount --bind {folder}/fuse /dev/fuse"
    inside = ["unshare", "--mount", "sh", "-c", f'{node} && exec "$@"', "sh"]  # there, whatever it is here
    Run(PROGRAMS / "mounts/as_user.py", args=(str(folder / "at"), "/usr/bin/python3"), inside=inside).ok()


# ---- Gather mounts ----


@pytest.mark.feature(101, "folders of others")
def test_directories_of_hosts_are_seen_here(folder, hosts):
    for name in ("hosts_0", "hosts_1"):
        (folder / "logs" / name).mkdir(parents=True)
        (folder / "logs" / name / "log").write_text(f"of {name}\n")
    (folder / "logs/hosts_0/large").write_bytes(os.urandom(3 << 20))
    (folder / "logs/hosts_0/link").symlink_to("log")
    local = folder / "gathered"
    with gather_mount(hosts, str(folder / "logs/$SUBDIR"), str(local)) as mount:
        assert os.listdir(local) == ["hosts_0", "hosts_1"]
        for name in ("hosts_0", "hosts_1"):
            assert (local / name / "log").read_text() == f"of {name}\n"
        assert (local / "hosts_0/large").read_bytes() == (folder / "logs/hosts_0/large").read_bytes()
        assert os.readlink(local / "hosts_0/link") == "log"
        assert not (local / "hosts_0/none").exists() and not (local / "hosts_2").exists()
        with pytest.raises(OSError):
            (local / "hosts_0/log").write_text("")
    mount.close()
    assert not local.exists()


@pytest.mark.feature(101, "what changed is seen")
def test_what_is_appended_is_seen_within_a_second(folder):
    log = folder / "logs/log"
    with gather_mount(this_host(), str(folder / "logs"), str(folder / "gathered")):
        seen = folder / "gathered/hosts_0"
        assert os.listdir(seen) == []  # it is made later
        log.parent.mkdir()
        log.write_text("one\n")
        wait_until(lambda: (seen / "log").exists(), 1)
        tail = subprocess.Popen(["tail", "-s", "0.2", "-f", seen / "log"], stdout=subprocess.PIPE, text=True)
        try:
            assert tail.stdout.readline() == "one\n"
            with open(log, "a") as file:
                file.write("two\n")
            began = time.monotonic()
            assert select.select([tail.stdout], [], [], 10)[0] and tail.stdout.readline() == "two\n"
            assert time.monotonic() - began < 1.0
        finally:
            tail.send_signal(signal.SIGTERM)
            tail.communicate()


def test_what_cannot_be_gathered_is_refused(folder):
    with pytest.raises(TypeError, match="takes a HostMesh, not None"):
        gather_mount(None, "/tmp", str(folder / "at"))
    with pytest.raises(ValueError, match="remote_mount_point must be an absolute path"):
        gather_mount(this_host(), "logs", str(folder / "at"))
    with pytest.raises(ActorError, match=f"'{folder}/below/at' and '{folder}' are within each other"):
        gather_mount(this_host(), str(folder), str(folder / "below" / "at"))
    with pytest.raises(ActorError, match="are within each other"):
        gather_mount(this_host(), str(folder / "at" / "hosts_0"), str(folder / "at"))
    with pytest.raises(ActorError, match=f"^'/usr' of HostMesh.* cannot be shown at '{folder}'.\n(.|\n)*is not empty"):
        gather_mount(this_host(), "/usr", str(folder))


# ---- Of jobs ----


@pytest.mark.feature(100, "of a job")
def test_a_job_has_its_mounts_and_the_interpreter_in_them(folder):
    Run(PROGRAMS / "mounts/job.py", args=(str(folder),)).ok()
    assert not mounted(folder)


def test_declarations_are_checked_and_saved(folder):
    job, source = LocalJob(), str(folder / "source")
    with pytest.raises(ValueError, match="'.venv/bin/python' is not in '.*source', and workers cannot run it"):
        job.remote_mount(source, "/at")
    with pytest.raises(ValueError, match="takes a directory, and '.*nothing' is none"):
        job.remote_mount(f"{source}/nothing", "/at")
    with pytest.raises(ValueError, match="python_exe must be None"):
        job.remote_mount(source, "/at/$SUBDIR", python_exe="tool")
    with pytest.raises(ValueError, match="mntpoint must be an absolute path"):
        job.remote_mount(source, "at", python_exe=None)
    with pytest.raises(ValueError, match="remote_mount_point must be an absolute path"):
        job.gather_mount("logs", str(folder / "logs"))
    with pytest.raises(TypeError, match="meshes must be a list of names, but is 'hosts'"):
        job.remote_mount(source, "/at", meshes="hosts", python_exe=None)
    job.remote_mount(source, str(folder / "at"), meshes=["trainers"], python_exe=None)
    job.gather_mount("/logs/$SUBDIR", str(folder / "logs"))
    assert job_loads(job.dumps())._declared == job._declared
    with pytest.raises(ValueError, match="a mount is declared for 'trainers', but the job has the meshes hosts"):
        job.state(cached_path=None)
