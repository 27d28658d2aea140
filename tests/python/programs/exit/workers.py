import asyncio
import os
import subprocess
import threading

from monarch.actor import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def say(self, text):
        print(text)

    @endpoint
    def spin(self):
        print("spinning")
        while True:
            pass

    @endpoint
    def block(self):
        import ctypes

        print("blocking")
        ctypes.PyDLL(None).sleep(1000)  # keeps the GIL

    @endpoint
    def wait(self):
        print("waiting")
        threading.Event().wait()

    @endpoint
    async def await_forever(self):
        print("awaiting")
        await asyncio.Event().wait()

    @endpoint
    def start_sleeps(self):
        subprocess.Popen(["sleep", "1000"])
        if os.fork() == 0:
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", "1000"])
            os._exit(0)
        return os.getpid()


procs = this_host().spawn_procs(per_host={"gpus": 2})
workers = procs.spawn("worker", Worker)
workers.pid.call().get()
