"""With a lease (of the environment) a process that is stopped while a call waits for it has failed."""

import os

from halting import stop

from monarch.actor import Actor, SupervisionError, endpoint, this_host


class Trainer(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def step(self) -> str:
        return "done"


class Owner(Actor):
    def __init__(self) -> None:
        self.asked: list[int] = []

    def __supervise__(self, failure: object) -> bool:
        self.asked += failure.crashed_ranks  # type: ignore[attr-defined]
        return True

    @endpoint
    def run(self) -> str:
        procs = this_host().spawn_procs(per_host={"gpus": 3}, name="procs")
        trainers = procs.spawn("trainer", Trainer)
        stop(trainers.slice(gpus=1).pid.call_one().get())
        try:
            trainers.slice(gpus=1).step.call_one().get(timeout=10)
        except SupervisionError as error:
            assert trainers.slice(gpus=2).step.call_one().get(timeout=10) == "done"
            return str(error).replace("\n", " ")
        return "nothing"

    @endpoint
    def who_was_asked_about(self) -> list[int]:
        return sorted(set(self.asked))


procs = this_host().spawn_procs(per_host={"gpus": 1}, name="owners")
owner = procs.spawn("owner", Owner)
print("raised", owner.run.call_one().get())
print("asked", owner.who_was_asked_about.call_one().get())
procs.stop().get()
