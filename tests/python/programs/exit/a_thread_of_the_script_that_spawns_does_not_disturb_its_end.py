import sys
import threading

from monarch.actor import this_host

begun = threading.Event()


def spawn():
    while True:
        begun.set()
        try:
            this_host().spawn_procs(per_host={"gpus": 300})
        except BaseException:
            return


this_host()
threading.Thread(target=spawn, daemon=True).start()
begun.wait()
sys.exit(5)
