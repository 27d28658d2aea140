"""The quickstart as it was first published: proc_mesh(gpus=...), and await for meshes and calls.

The old spellings run, and say with a DeprecationWarning what to write today: see quickstart.py.
"""

import asyncio

from monarch.actor import Actor, current_rank, endpoint, proc_mesh

NUM_ACTORS = 4


class ToyActor(Actor):
    def __init__(self):
        self.rank = current_rank().rank

    @endpoint
    async def hello_world(self, msg):
        print(f"Identity: {self.rank}, {msg=}")


async def create_toy_actors():
    local_proc_mesh = proc_mesh(gpus=NUM_ACTORS)
    toy_actor = await local_proc_mesh.spawn("toy_actor", ToyActor)
    return toy_actor, local_proc_mesh


async def call_all_actors(toy_actor):
    await toy_actor.hello_world.call("hey there, from script!!")


async def main():
    toy_actor, _ = await create_toy_actors()
    await call_all_actors(toy_actor)


if __name__ == "__main__":
    asyncio.run(main())
