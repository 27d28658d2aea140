"""Quickstart: four worker processes on this machine, an actor in each, one call to all of them."""

from monarch.actor import Actor, current_rank, endpoint, this_host

NUM_ACTORS = 4


class ToyActor(Actor):
    def __init__(self):
        self.rank = current_rank().rank

    @endpoint
    def hello_world(self, msg):
        print(f"Identity: {self.rank}, {msg=}")


if __name__ == "__main__":
    procs = this_host().spawn_procs(per_host={"gpus": NUM_ACTORS})
    toy_actor = procs.spawn("toy_actor", ToyActor)
    toy_actor.hello_world.call("hey there, from script!!").get()
