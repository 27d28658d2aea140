"""One way to fail for each kind of record. `kinds.py KIND caught`: its caller prints it; `told`: nobody catches it."""

import asyncio
import ctypes
import os
import signal
import sys
import tempfile
import threading

from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand
from monarch.actor import Actor, SupervisionError, current_rank, endpoint, this_host

BYTES = b"line %d of many, with bytes that are no text: \xff\xfe\x1b[31m\n"
ATTRIBUTES = (
    "mesh",
    "rank",
    "coordinates",
    "exit_code",
    "signal",
    "endpoint",
    "in_flight",
    "out_of_memory",
    "last_lines",
)


class Trainer(Actor):
    def __init__(self, kind):
        if current_rank().rank == 1 and kind == "constructor":
            raise ValueError("no data for this rank")
        if current_rank().rank == 1 and kind == "sys.exit in a constructor":
            sys.exit(4)

    @endpoint
    def step(self, kind):
        print("step 17 begins", file=sys.stderr)
        if kind == "killed" or kind == "many ranks":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "terminated":
            os.kill(os.getpid(), signal.SIGTERM)
        if kind == "segmentation fault":
            signal.raise_signal(signal.SIGSEGV)
        if kind == "failed assert of C":
            getattr(ctypes.CDLL(None), "__assert_fail")(b"count > 0", b"kernel.c", 42, b"run")  # noqa: B009
        if kind == "out of memory":
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")  # it is killed first
            _eaten = [bytearray(1 << 20) for _ in range(4096)]
        if kind == "os._exit":
            os._exit(3)
        if kind == "sys.exit":
            sys.exit(4)
        if kind == "exception":
            raise ValueError("no more disk")
        if kind == "megabytes of stderr":
            with open(2, "wb", closefd=False) as stderr:
                for number in range(50_000):
                    stderr.write(BYTES % number)
                stderr.write(b"x" * 10_000 + b"\n" + BYTES % 50_000)
            os._exit(5)

    @endpoint
    async def wait(self, kind):
        threading.Timer(0.05, os._exit, (6,)).start()
        await asyncio.sleep(60)


def needs_what_is_missing(folder):
    """A program that the loader cannot start."""
    with open("/bin/true", "rb") as true:
        program = true.read().replace(b"libc.so.6\0", b"libq.so.6\0")
    path = os.path.join(folder, "worker")
    with open(path, "wb") as file:
        file.write(program)
    os.chmod(path, 0o700)
    return path


def spawn(kind, folder):
    size = 6 if kind == "many ranks" else 2
    host, command = this_host(), None
    if kind == "a library is missing":
        command = BootstrapCommand(needs_what_is_missing(folder), None, [], {})
    if kind == "no such interpreter":
        host = host.with_python_executable("/no/such/python")
    if kind == "no interpreter":
        host = host.with_python_executable("/bin/true")
    procs = host.spawn_procs(per_host={"gpus": size}, name="trainers", bootstrap_command=command)
    return procs.spawn("trainer", Trainer, kind)


def fail(kind, how, folder):
    trainers = spawn(kind, folder)
    for rank in (0, 1, 2, 3, 5) if kind == "many ranks" else (1,):
        trainer = trainers.slice(gpus=rank)
        method = trainer.wait if kind == "async endpoint" else trainer.step
        if how == "told":
            method.broadcast(kind)
        else:
            method.call_one(kind).get()


def main(kind, how):
    with tempfile.TemporaryDirectory() as folder:
        try:
            fail(kind, how, folder)
            sys.stdin.readline()
        except Exception as error:
            print(f"{type(error).__name__}: {error}\n")
            for name in ATTRIBUTES if isinstance(error, SupervisionError) else ():
                print(f"  {name} = {getattr(error, name)!r}"[:120])


if __name__ == "__main__":
    main(*sys.argv[1:])
