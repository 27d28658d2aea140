import logging
import sys
import threading

from monarch.actor import Actor, endpoint, this_host


class A(Actor):
    def __init__(self):
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(levelname)s <%(actor_prefix)s> %(message)s"))
        logging.getLogger().addHandler(handler)

    @endpoint
    def log(self):
        logging.warning("plain")
        logging.warning("%d %s", 3, "%")
        logging.warning("")
        logging.warning(ValueError("an object"))
        threading.Thread(target=logging.warning, args=["from a thread"]).start()

    @endpoint
    async def alog(self):
        logging.warning("100% async")


procs = this_host().spawn_procs(per_host={"gpus": 2})
a = procs.slice(gpus=1).spawn("a", A)
a.log.call().get()
a.alog.call().get()
