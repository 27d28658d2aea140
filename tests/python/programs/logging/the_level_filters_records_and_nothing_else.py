import asyncio
import logging
import sys

from monarch.actor import Actor, endpoint, this_host


class A(Actor):
    def __init__(self):
        logging.basicConfig(level=logging.DEBUG, format="%(message)s", stream=sys.stdout)

    @endpoint
    def log(self, round):
        print("print", round)
        for level in (logging.DEBUG, logging.INFO, logging.ERROR):
            logging.getLogger("other").log(level, f"{logging.getLevelName(level)} {round}")
            self.logger.log(level, f"{logging.getLevelName(level)} own {round}")


async def main():
    procs = this_host().spawn_procs()
    a = procs.spawn("a", A)
    await a.log.call(0)
    await procs.logging_option(level=logging.ERROR)
    await a.log.call(1)
    await procs.logging_option()
    await a.log.call(2)
    await procs.logging_option(level=0)
    await a.log.call(3)


asyncio.run(main())
