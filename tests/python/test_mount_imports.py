"""monarch.remotemount where hosts have no FUSE: imports from it, forced by MONARCH_MOUNT=import."""

import importlib.machinery
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from monarch.actor import Actor, endpoint, hosts_from_config
from monarch.job import ProcessJob
from monarch.remotemount import remotemount


class Worker(Actor):
    @endpoint
    def use(self, folder: str) -> None:
        sys.path.insert(0, folder)

    @endpoint
    def run(self, code: str) -> object:
        names: dict = {}
        exec(code, names)
        return names.get("out")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("MONARCH_MOUNT", "import")
    source = tmp_path / "source"
    (source / "package/inner").mkdir(parents=True)
    (source / "package/data").mkdir()
    (source / "space").mkdir()
    (source / "recipe.py").write_text("VALUE = 1\n\n\ndef fail():\n    raise KeyError(VALUE)\n")
    (source / "package/__init__.py").write_text("from .inner import deep\n")
    (source / "package/inner/__init__.py").write_text("")
    (source / "package/inner/deep.py").write_text("VALUE = 'deep'\n")
    (source / "package/data/text").write_text("some text")
    (source / "package/large").write_bytes(bytes(range(256)) * (9 << 12))
    (source / "package" / os.fsdecode(b"\xff")).write_text("odd")
    (source / "space/part.py").write_text("VALUE = 'part'\n")
    (source / "alias.py").symlink_to("package/inner/deep.py")
    (source / "loop.py").symlink_to("loop.py")
    yield source


def values(mesh, code):
    return set(mesh.run.call(code).get(60).values())


def test_processes_of_before_and_after_import_what_the_client_has(source, tmp_path, capfd):
    at = str(tmp_path / "at")
    with hosts_from_config("mounts") as hosts:
        before = hosts.spawn_procs().spawn("before", Worker)
        before.use.call(at).get(60)
        with pytest.raises(Exception, match="No module named 'recipe'"):
            before.run.call("import recipe").get(60)
        mount = remotemount(hosts, str(source), at)
        mount.open()
        said = capfd.readouterr().err
        assert said.count("which has MONARCH_MOUNT=import") == 1 and "open() and other programs do not find it" in said
        after = hosts.spawn_procs().spawn("after", Worker)
        after.use.call(at).get(60)
        for mesh in (before, after):
            assert values(mesh, "import recipe; out = recipe.VALUE, recipe.__file__") == {(1, f"{at}/recipe.py")}
            assert values(mesh, "import package; out = package.deep.VALUE") == {"deep"}
            assert values(mesh, "import space.part, alias; out = space.part.VALUE + alias.VALUE") == {"partdeep"}
            code = "import importlib.resources, package; root = importlib.resources.files(package); "
            assert values(mesh, code + "out = (root / 'data' / 'text').read_text()") == {"some text"}
            assert values(mesh, code + "out = len((root / 'large').read_bytes())") == {9 << 20}
            assert values(mesh, code + "out = (root / '\\udcff').read_text()") == {"odd"}
            assert values(mesh, "import pkgutil; out = pkgutil.get_data('package', 'data/text')") == {b"some text"}
            assert values(mesh, "import inspect, recipe; out = inspect.getsource(recipe.fail)") == {
                "def fail():\n    raise KeyError(VALUE)\n"
            }
            told = "import traceback, recipe\ntry: recipe.fail()\nexcept KeyError: out = traceback.format_exc()"
            assert all("raise KeyError(VALUE)" in text for text in values(mesh, told))
            for missing in ("nothing", "loop", "package.nothing"):
                with pytest.raises(Exception, match=f"No module named '{missing}'"):
                    mesh.run.call(f"import {missing}").get(60)

        (source / "recipe.py").write_text("VALUE = 22\n")
        (source / "new.py").write_text("VALUE = 'new'\n")
        mount.refresh()
        code = "import importlib, linecache, recipe, new; importlib.reload(recipe); out = recipe.VALUE, new.VALUE"
        assert values(before, code) == {(22, "new")}
        mount.close()
        with pytest.raises(Exception, match="No module named 'package.inner.other'"):
            before.run.call("import package.inner.other").get(60)
        assert values(before, "import recipe; out = recipe.VALUE") == {22}  # it has that
        assert values(before, "import sys; out = sum('hook' in type(h).__module__ for h in sys.path_hooks)") == {0}
        later = hosts.spawn_procs().spawn("later", Worker)
        later.use.call(at).get(60)
        with pytest.raises(Exception, match="No module named 'recipe'"):
            later.run.call("import recipe").get(60)
        mount.open()
        assert values(later, "import recipe; out = recipe.VALUE") == {22}
        mount.close()


def test_an_extension_module_is_loaded_from_memory(source, tmp_path):
    folder = sysconfig.get_config_var("DESTSHARED") or ""
    found = [
        path
        for suffix in importlib.machinery.EXTENSION_SUFFIXES
        for path in Path(folder).glob(f"*{suffix}")
        if path.name.split(".")[0] == "_zoneinfo" or path.name.split(".")[0] == "audioop"
    ]
    if not found:
        pytest.skip("this interpreter has no extension module that stands in a file")
    shutil.copy(found[0], source / "package" / found[0].name)
    name, at = found[0].name.split(".")[0], str(tmp_path / "at")
    with hosts_from_config("mounts") as hosts, remotemount(hosts, str(source), at):
        worker = hosts.spawn_procs().spawn("worker", Worker)
        worker.use.call(at).get(60)
        code = f"import package.{name} as it; out = it.__file__"
        assert values(worker, code) == {f"{at}/package/{found[0].name}"}


def test_an_interpreter_of_the_mount_takes_fuse(source, tmp_path):
    job = ProcessJob({"trainers": 1})
    job.remote_mount(str(source), str(tmp_path / "at"), python_exe="recipe.py")
    with pytest.raises(RuntimeError, match=r"cannot run 'recipe.py' of the mount, which takes FUSE: .*=import"):
        job.state(cached_path=None)
    job.kill()
