import multiprocessing

import numpy as np

from monarch.actor import Actor, endpoint, this_host


def serve(rows, asked, found):
    for i in iter(asked.get, None):
        found.put((i, rows[i].copy()))


class Loader(Actor):
    @endpoint
    def start(self, rows):
        many = multiprocessing.get_context("fork")
        self.asked, self.found = many.Queue(), many.Queue()
        self.processes = [many.Process(target=serve, args=(rows, self.asked, self.found)) for _ in range(2)]
        for process in self.processes:
            process.start()

    @endpoint
    def step(self, gradient):
        for i in range(64):
            self.asked.put(i)
        found = [self.found.get(timeout=20) for _ in range(64)]
        return sum(int((row != i).any()) for i, row in found)

    @endpoint
    def end(self):
        for _ in self.processes:
            self.asked.put(None)
        for process in self.processes:
            process.join(20)


loader = this_host().spawn_procs(per_host={"gpus": 2}).spawn("loader", Loader)
loader.start.call(np.repeat(np.arange(64, dtype=np.float32)[:, None], 4096, axis=1)).get(timeout=20)
for step in range(5):
    wrong = loader.step.call(np.full((64, 4096), -1, np.float32)).get(timeout=60)
    assert list(wrong.values()) == [0, 0], (step, wrong)
loader.end.call().get(timeout=20)
