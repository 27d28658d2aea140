import asyncio

from monarch.actor import Actor, ActorError, context, current_rank, endpoint, this_host


class A(Actor):
    @endpoint
    def add(self, a, b=1):
        return a + b, current_rank()

    @endpoint
    async def fail(self):
        raise ValueError("x")


procs = this_host().spawn_procs(per_host={"gpus": 2})
actors = procs.spawn("a", A)
for _ in range(3):
    actors.add.call(1).get()
    actors.slice(gpus=0).add.call_one(1, b=2).get()
    list(actors.add.stream(1))
    try:
        actors.fail.call().get()
    except ActorError:
        pass


async def main():
    await asyncio.gather(*[actors.add.call(1) for _ in range(5)])


asyncio.run(main())
str(context().actor_instance), actors.extent, repr(procs)
