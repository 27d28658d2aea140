import multiprocessing
import sys
from typing import Any

from monarch.actor import Actor, endpoint, this_host


class A(Actor):
    @endpoint
    def f(self, x):
        return x + 1

    def __cleanup__(self, error):
        print("cleaned up", flush=True)


def work(queue):
    actors = this_host().spawn_procs(per_host={"gpus": 2}).spawn("a", A)
    queue.put(list(actors.f.call(1).get().values()))


if __name__ == "__main__":
    context: Any = multiprocessing.get_context(sys.argv[1])
    queue = context.Queue()
    children = [context.Process(target=work, args=(queue,)) for _ in range(2)]
    for child in children:
        child.start()
    print(queue.get(), queue.get())
    for child in children:
        child.join()
        assert child.exitcode == 0
