"""What a build says when something is missing, what C++ code builds against, and what is in a wheel."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import monarch.cpp

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
LIMIT_S = 600
TOOLS = Path(sys.prefix) / "bin"  # cmake and ninja are packages of a development environment
WITHOUT_PATHS = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "CMAKE_PREFIX_PATH")}

needs_cmake = pytest.mark.skipif(not (TOOLS / "cmake").exists(), reason="cmake is not in this environment")
needs_venv = pytest.mark.skipif(not (ROOT / ".venv/bin/python").exists(), reason="this checkout has no .venv")
takes_minutes = pytest.mark.skipif(not os.environ.get("MONARCH_TEST_LONG"), reason="builds a wheel: MONARCH_TEST_LONG")


def run(*command, **options) -> str:
    """What it prints; fails with all of it if the command does."""
    done = attempt(*command, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def attempt(*command, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*map(str, command)], env={**WITHOUT_PATHS, **(env or {})}, text=True, timeout=LIMIT_S,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def configure(source: Path, build: Path, *definitions: str, **env: str) -> subprocess.CompletedProcess:
    command = [TOOLS / "cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={TOOLS / 'ninja'}"]
    return attempt(*command, f"-DPython_EXECUTABLE={sys.executable}", *definitions, env=env)


def readme_program() -> str:
    return README.read_text().split("## A program")[1].split("```python\n")[1].split("```")[0]


# ---- What is missing ----


@needs_cmake
def test_a_build_without_a_compiler_says_what_to_install(tmp_path):
    done = configure(ROOT, tmp_path, CXX="/no/such/compiler")
    assert done.returncode != 0
    assert "Monarch is not built, because this is missing:" in done.stdout
    assert "apt-get install g++" in done.stdout and "dnf install gcc-c++" in done.stdout


@needs_cmake
def test_a_build_lists_all_that_is_missing_at_once(tmp_path):
    compiler = tmp_path / "old-compiler"
    compiler.write_text('#!/bin/bash\nexec c++ "${@/-std=c++20/-std=c++17}"\n')
    compiler.chmod(0o755)
    hidden = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{package}=ON" for package in ("OpenSSL", "Python")]
    done = configure(ROOT, tmp_path / "build", *hidden, CXX=str(compiler))
    assert done.returncode != 0
    assert f"found {compiler}, GNU" in done.stdout
    for package in ("g++", "gcc-c++", "libssl-dev", "openssl-devel", "python3-dev", "python3-devel"):
        assert re.search(rf"install {re.escape(package)}( |$)", done.stdout, re.MULTILINE), done.stdout


# ---- C++ code outside of the build ----


def build_and_use_examples(python: Path, build: Path) -> None:
    """Builds examples/cpp against the package that `python` imports, and uses its program and its library there."""
    root = run(python, "-m", "monarch.cpp", "--cmake-dir").strip()
    done = configure(ROOT / "examples" / "cpp", build, f"-DMonarch_ROOT={root}")
    assert done.returncode == 0, done.stdout
    run(TOOLS / "cmake", "--build", build)
    greetings = run(build / "examples" / "hello", env={"NUM_ACTORS": "2"}).splitlines()
    assert {"hello from 0", "hello from 1"} <= set(greetings)
    program = build / "program.py"
    program.write_text(USE_LIBRARY)
    assert run(python, program, build / "examples" / "libcounters.so") == "[6, 6]\n"


USE_LIBRARY = """
import sys
from monarch import cpp
from monarch.actor import this_host
counters = cpp.load(sys.argv[1])
procs = this_host().spawn_procs(per_host={"gpus": 2})
print(procs.spawn("counters", counters.Counter, 5).add.call(1).get().values())
"""


@needs_cmake
def test_cpp_code_builds_against_a_checkout_that_is_built(tmp_path):
    build_and_use_examples(Path(sys.executable), tmp_path)


@needs_cmake
def test_the_project_that_the_documentation_shows_builds(tmp_path):
    page = (ROOT / "docs" / "concepts" / "cpp-actors.md").read_text()
    (tmp_path / "CMakeLists.txt").write_text(page.split("```cmake\n")[1].split("```")[0])
    shutil.copy(ROOT / "examples" / "cpp" / "lib" / "counters.cc", tmp_path)
    done = configure(tmp_path, tmp_path / "build", f"-DMonarch_ROOT={monarch.cpp.cmake_dir()}")
    assert done.returncode == 0, done.stdout
    run(TOOLS / "cmake", "--build", tmp_path / "build")
    # In a process of its own: another test may have loaded a library with the same class into this one.
    load = "import sys, monarch.cpp; monarch.cpp.load(sys.argv[1]).Counter"
    run(sys.executable, "-c", load, str(tmp_path / "build" / "libcounters.so"))


# ---- What the README says ----


@needs_venv
def test_the_program_of_the_readme_runs_with_the_interpreter_that_it_names(tmp_path):
    """After `make demo` that is .venv/bin/python, after `pip install .` the environment's own (below)."""
    line = next(line for line in README.read_text().splitlines() if line.endswith(" counters.py"))
    interpreter, _ = shlex.split(line)
    assert interpreter == ".venv/bin/python"
    program = tmp_path / "counters.py"
    program.write_text(readme_program())
    assert run(ROOT / interpreter, program) == "[16, 16]\n"


@needs_venv
def test_a_checkout_has_the_commands_beside_its_interpreter():
    assert "monarch worker" in run(ROOT / ".venv/bin/monarch", "worker", "--help")
    assert "BootstrapCommand" in attempt(ROOT / ".venv/bin/monarch_bootstrap").stdout


# ---- An installed package ----


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, ROOT)
    (made,) = folder.glob("monarch_cpp-*.whl")
    return made


@takes_minutes
def test_a_wheel_is_stripped_and_holds_what_cpp_code_needs(wheel):
    assert wheel.stat().st_size < 2e6
    names = zipfile.ZipFile(wheel).namelist()
    assert "monarch/include/monarch/monarch.h" in names and "monarch/cmake/MonarchConfig.cmake" in names
    assert not any("/testing/" in name or name.endswith((".cc", ".pyc")) for name in names)
    if sys.version_info >= (3, 12):
        assert "-cp312-abi3-" in wheel.name


@takes_minutes
@needs_cmake
def test_an_installed_package_runs_the_readme_and_builds_cpp_code(wheel, tmp_path):
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", wheel)
    program = tmp_path / "program.py"
    program.write_text(readme_program())
    assert run(python, program) == "[16, 16]\n"
    assert run(python.parent / "monarch", "--version") == "monarch 0.1.0\n"
    assert "BootstrapCommand" in attempt(python.parent / "monarch_bootstrap").stdout
    build_and_use_examples(python, tmp_path / "build")
