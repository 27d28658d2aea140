import asyncio
import warnings

from monarch.actor import Actor, local_proc_mesh, proc_mesh, this_host


def warned(use):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
    print(len(caught), caught[0].category.__name__, caught[0].filename == __file__)


class A(Actor):
    pass


procs = this_host().spawn_procs()
warned(lambda: proc_mesh(gpus=1))
warned(lambda: local_proc_mesh(gpus=1))
warned(lambda: procs.get())
warned(lambda: procs.spawn("a", A).get())  # type: ignore[attr-defined]


async def main():
    await procs


warned(lambda: asyncio.run(main()))
