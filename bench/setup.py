"""Sets up what the suite needs beside ours, idempotently: the limit programs and one venv per peer.

    python3 bench/setup.py [peer ...]        all peers without arguments

Nothing here fails the run: what cannot be set up is returned as a reason, and the suite reports it as "not run".
"""

import hashlib
import os
import shutil
import subprocess
import sys

BENCH_DIR = os.path.dirname(os.path.abspath(__file__))
BUILD_DIR = os.path.join(BENCH_DIR, ".build")
VENVS_DIR = os.path.join(BENCH_DIR, ".venvs")
PEERS = ("torchmonarch", "ray", "mpi4py", "pyzmq")
# Besides, when W21 first needs it or by its name: torchmonarch-torch (1 GB).

# What is installed without what it asks for: versions of torch and torchmonarch that are not those measured here.
ALONE = {"torchmonarch-torch": ("torchstore==0.1.2",)}

WARNINGS = ["-Wall", "-Wextra", "-Werror"]

# What must be there (a program or a header) and the Debian packages that bring it.
SYSTEM_PACKAGES = {
    "mpi4py": (["mpirun", "mpicc"], ["openmpi-bin", "libopenmpi-dev"]),
    "caf": (["/usr/include/caf/all.hpp"], ["libcaf-dev"]),
    "ucx": (["/usr/include/ucp/api/ucp.h"], ["libucx-dev"]),
}


class Unavailable(Exception):
    """Something cannot be set up here; the text says what."""


def run_quietly(command, what):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        lines = done.stdout.strip().splitlines() or ["no output"]
        raise Unavailable(f"{what} failed: {lines[-1][:200]}")


def present(thing):
    return os.path.exists(thing) if thing.startswith("/") else shutil.which(thing) is not None


def need_system_packages(name):
    things, packages = SYSTEM_PACKAGES.get(name, ([], []))
    if all(present(thing) for thing in things):
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        run_quietly(["apt-get", "update", "-qq"], "apt-get update")
        run_quietly(["apt-get", "install", "-y", "-qq", *packages], f"apt-get install {' '.join(packages)}")
    if not all(present(thing) for thing in things):
        raise Unavailable(f"install the system packages {' '.join(packages)}")


def peer_venv(peer):
    """-> the interpreter of the peer's venv, made or remade when its requirements changed."""
    need_system_packages(peer)
    folder = os.path.join(VENVS_DIR, peer)
    python = os.path.join(folder, "bin", "python")
    requirements = os.path.join(BENCH_DIR, "peers", f"requirements-{peer}.txt")
    with open(requirements, "rb") as file:
        wanted = hashlib.sha256(file.read() + sys.version.encode()).hexdigest()
    stamp = os.path.join(folder, ".requirements")
    if os.path.exists(stamp) and open(stamp).read() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    print(f"bench: making the venv of {peer}", file=sys.stderr, flush=True)
    run_quietly([sys.executable, "-m", "venv", folder], f"venv of {peer}")
    run_quietly([python, "-m", "pip", "install", "-q", "-r", requirements], f"pip install of {peer}")
    for package in ALONE.get(peer, ()):
        run_quietly([python, "-m", "pip", "install", "-q", "--no-deps", package], f"pip install of {package}")
    with open(stamp, "w") as file:
        file.write(wanted)
    return python


def newer(target, sources):
    return os.path.exists(target) and all(os.path.getmtime(target) > os.path.getmtime(source) for source in sources)


def compile_once(target, source, command):
    """Compiles bench/<source> to bench/.build/<target> when it or a header of ours changed; -> the path."""
    os.makedirs(BUILD_DIR, exist_ok=True)
    path, code = os.path.join(BUILD_DIR, target), os.path.join(BENCH_DIR, source)
    headers = [os.path.join(BENCH_DIR, "limits", "limit.h"), os.path.join(BENCH_DIR, "../src/monarch/base/copy.h")]
    if not newer(path, [code, *headers]):
        if shutil.which(command[0]) is None:
            raise Unavailable(f"no {command[0]}")
        run_quietly([arg.replace("SOURCE", code).replace("TARGET", path) for arg in command], f"compiling {source}")
    return path


def native_limit(name, *libraries):
    return compile_once(
        name,
        f"limits/{name}.cc",
        [
            "g++",
            "-std=c++20",
            "-O3",
            "-march=native",
            *WARNINGS,
            f"-I{os.path.join(BENCH_DIR, '../src')}",
            "SOURCE",
            "-o",
            "TARGET",
            *libraries,
        ],
    )


def limit_library(name):
    return compile_once(
        f"{name}.so",
        f"limits/{name}.cc",
        ["g++", "-std=c++20", "-O3", *WARNINGS, "-shared", "-fPIC", "SOURCE", "-o", "TARGET"],
    )


def ring_extension(python):
    """The ring for `python`; its file name carries the interpreter's tag, so several can live side by side."""
    code = "import sysconfig as s; print(s.get_paths()['include']); print(s.get_config_var('EXT_SUFFIX'))"
    include, suffix = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return compile_once(
        f"_ring{suffix}",
        "limits/ring.c",
        ["cc", "-O2", *WARNINGS, "-shared", "-fPIC", f"-I{include}", "SOURCE", "-o", "TARGET"],
    )


def caf_program():
    need_system_packages("caf")
    # CAF 0.17's own headers do not pass our warnings.
    return compile_once(
        "caf_w14", "peers/caf_w14.cc", ["g++", "-std=c++17", "-O2", "SOURCE", "-o", "TARGET", "-lcaf_core"]
    )


def ucx_program():
    need_system_packages("ucx")
    return compile_once(
        "ucx_w13",
        "peers/ucx_w13.cc",
        ["g++", "-std=c++20", "-O3", *WARNINGS, "SOURCE", "-o", "TARGET", "-lucp", "-lucs"],
    )


def main():
    failed = False
    steps = [(peer, lambda peer=peer: peer_venv(peer)) for peer in sys.argv[1:] or PEERS]
    if not sys.argv[1:]:
        steps += [
            ("caf", caf_program),
            ("ucx", ucx_program),
            ("ring", lambda: ring_extension(sys.executable)),
            ("star", lambda: native_limit("star")),
            ("copy", lambda: native_limit("copy")),
            ("death", lambda: limit_library("death")),
        ]
    for name, step in steps:
        try:
            print(f"{name}: {os.path.relpath(step())}")
        except Unavailable as reason:
            failed = True
            print(f"{name}: not available: {reason}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
