"""Workers draw progress bars: progress_bars.py KIND. "steps" waits for a line on stdin before each further step."""

import sys

from monarch.actor import Actor, endpoint, this_host


class Bar:
    """What tqdm writes: one write for each state, which begins with a carriage return."""

    def __init__(self, total):
        self.total = total

    def show(self, done):
        sys.stderr.write(f"\rtraining: {done * 100 // self.total:3d}%|{'#' * (done * 10 // self.total):10}|")
        sys.stderr.flush()

    def close(self, leave=True):
        sys.stderr.write("\n" if leave else "\r" + " " * 30 + "\r")
        sys.stderr.flush()


class Trainer(Actor):
    def __init__(self):
        self.bar = Bar(1000)

    @endpoint
    def show(self, done):
        self.bar.show(done)

    @endpoint
    def close(self, leave=True):
        self.bar.close(leave)

    @endpoint
    def train(self):
        for step in range(1001):
            self.bar.show(step)
        self.bar.close()
        print("trained", file=sys.stderr)

    @endpoint
    def train_with_tqdm(self):
        from tqdm import tqdm

        for _ in tqdm(range(1000), mininterval=0, miniters=1):
            pass
        print("trained", file=sys.stderr)

    @endpoint
    def wipe(self):
        self.bar.show(500)
        self.bar.close(leave=False)
        print("wiped", file=sys.stderr)


trainers = this_host().spawn_procs(per_host={"gpus": 2}).spawn("trainers", Trainer)
kind = sys.argv[1]
if kind == "steps":
    one = trainers.slice(gpus=1)
    for done in (100, 200, 300):
        one.show.call_one(done).get()
    sys.stdin.readline()
    one.show.call_one(1000).get()
    one.close.call_one().get()
else:
    getattr(trainers, kind).call().get()
