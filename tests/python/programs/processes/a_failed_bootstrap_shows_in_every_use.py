import asyncio
import sys

from monarch.actor import Actor, ActorError, endpoint, this_host


class A(Actor):
    @endpoint
    def f(self):
        return 1

    @endpoint
    async def g(self):
        return 1


def bootstrap():
    raise ValueError("no GPU")


async def async_bootstrap():
    await asyncio.sleep(0)
    bootstrap()


def leaving_bootstrap():
    sys.exit("no GPU")


def check(use, kind):
    try:
        use().get()
    except ActorError as error:
        text = str(error)
        assert text.startswith("Actor call setup.setup failed.\n Traceback of where the remote call"), text
        assert f"{kind.__name__}: no GPU" in text and ", in bootstrap" in text.replace("leaving_", ""), text
        assert type(error.exception) is kind and error.exception.args == ("no GPU",)
        print("failed")


for function, kind in ((bootstrap, ValueError), (async_bootstrap, ValueError), (leaving_bootstrap, SystemExit)):
    procs = this_host().spawn_procs(per_host={"gpus": 2}, bootstrap=function)
    a = procs.spawn("a", A)
    check(lambda procs=procs: procs.initialized, kind)
    check(lambda a=a: a.f.call(), kind)
    check(lambda a=a: a.slice(gpus=1).g.call_one(), kind)
    check(lambda procs=procs: procs.slice(gpus=0).spawn("late", A).f.call_one(), kind)
    check(lambda procs=procs: procs.initialized, kind)
    procs.stop().get()
