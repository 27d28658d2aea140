import atexit
import os
import threading
from typing import IO, Any

from monarch.actor import Actor, endpoint


class Noisy:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("gone", self.name, flush=True)


opened: IO[str]
pool: Any
of_module = Noisy("global")
_private = Noisy("private")
atexit.register(print, "atexit", flush=True)


class A(Actor):
    def __init__(self, folder):
        global opened
        opened = open(os.path.join(folder, "global.txt"), "w")
        opened.write("of a global")
        self.file = open(os.path.join(folder, "actor.txt"), "w")
        self.file.write("of an actor")

    @endpoint
    def f(self):
        return os.getpid()

    @endpoint
    def start(self, kind):
        global pool
        if kind == "pool":
            from concurrent.futures import ThreadPoolExecutor

            pool = ThreadPoolExecutor(1)
            pool.submit(print, "in the pool", flush=True).result()
        elif kind == "thread":

            def work():
                while not ended.is_set():
                    ended.wait()
                print("joined", flush=True)

            threading.Thread(target=work, daemon=False).start()
            atexit_of_threads(ended.set)
        elif kind == "daemon":
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        elif kind == "for ever":
            threading.Thread(target=threading.Event().wait, daemon=False).start()
        elif kind == "stuck atexit":
            atexit.register(threading.Event().wait)


ended = threading.Event()


def atexit_of_threads(function):
    threading.Timer(0.05, function).start()
