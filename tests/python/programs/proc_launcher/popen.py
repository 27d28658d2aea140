"""A launcher that starts processes with subprocess, and tells what became of them."""

import subprocess
import threading

from monarch._src.actor.proc_launcher import LaunchOptions, ProcExitResult, ProcLauncher
from monarch.actor import Actor, endpoint, this_host


class Popen(ProcLauncher):
    def __init__(self):
        self.running = {}

    @endpoint
    def launch(self, exit_port, proc_id: str, launch_options: LaunchOptions):
        process = subprocess.Popen(launch_options.command, env=launch_options.environment(), stderr=subprocess.PIPE)
        self.running[proc_id] = process
        threading.Thread(target=self.wait, args=(process, exit_port), daemon=True).start()

    def wait(self, process, exit_port):
        lines = process.stderr.read().decode().splitlines()
        status = process.wait()
        died = status < 0
        exit_port.send(
            ProcExitResult(
                exit_code=None if died else status, signal=-status if died else None, failed_reason="says Popen",
                stderr_tail=lines,
            )
        )  # fmt: skip

    @endpoint
    def terminate(self, proc_id: str, timeout_secs: float):
        self.running[proc_id].terminate()

    @endpoint
    def kill(self, proc_id: str):
        self.running[proc_id].kill()


class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        import os

        return os.getpid()


def main():
    procs = this_host().spawn_procs(per_host={"gpus": 2}, proc_launcher=Popen)
    workers = procs.spawn("workers", Worker)
    print("pids", *workers.pid.call().get().values(), flush=True)
    return procs, workers
