"""A class of __main__ travels by value, of which the process remembers something from the first run on."""

from monarch.actor import Actor, SupervisionError, endpoint, this_host
from monarch.testing import simulate


class Worker(Actor):
    @endpoint
    def square(self, x: int) -> int:
        return x * x


def run(seed: int) -> tuple[float, int]:
    with simulate(seed=seed, kill_every=0.01) as world:
        procs = this_host().spawn_procs({"gpus": 2})
        workers, done = procs.spawn("workers", Worker), 0
        while done < 10:
            try:
                workers.square.call(done).get()
                done += 1
            except SupervisionError:
                procs.respawn()
        return world.now, world.events


if __name__ == "__main__":
    runs = [run(seed=0) for _ in range(3)]
    assert runs[0] == runs[1] == runs[2], runs
    print("equal")
