import asyncio
import os
import signal
import time

from monarch.actor import (
    Actor,
    SupervisionError,
    context,
    current_rank,
    endpoint,
    this_host,
)


class Kid(Actor):
    def __init__(self, failing=()):
        if current_rank().rank in failing:
            raise ValueError("at birth")

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def fail(self, how):
        if how == "broadcast":
            raise ValueError("bang")
        if how == "abort":
            context().actor_instance.abort("why")
        if how == "exit":
            os._exit(3)
        if how == "signal":
            os.kill(os.getpid(), signal.SIGKILL)

    @endpoint
    def hang(self):
        time.sleep(1000)


class Owner(Actor):
    def __init__(self, answer, procs=None):
        self.answer = answer
        self.failures = []
        self.procs = procs or this_host().spawn_procs({"gpus": 2}, name="kids")
        self.mesh = self.procs.spawn("kid", Kid)

    def record(self, failure):
        self.failures.append((failure.mesh_name, failure.crashed_ranks, failure.coordinates, failure.report()))
        if self.answer == "raise":
            raise RuntimeError("no way")
        return self.answer

    def fail_kids(self, how, ranks):
        for rank in ranks:
            if how == "constructor":
                self.procs.spawn("kid", Kid, [rank])
            else:
                self.mesh.slice(gpus=rank).fail.broadcast(how)


class SyncPart(Owner):
    @endpoint
    def fail(self, how, ranks):
        self.fail_kids(how, ranks)

    @endpoint
    def seen(self):
        return self.failures

    @endpoint
    def healthy(self):
        self.mesh.slice(gpus=0).pid.call_one().get()
        return [0]

    @endpoint
    def kids(self):
        return self.mesh

    @endpoint
    def keep(self, mesh):
        self.kept = mesh

    @endpoint
    def own_pid(self):
        return os.getpid()

    @endpoint
    def stop_kids(self):
        self.mesh.stop().get()
        self.procs.stop().get()

    @endpoint
    def leave(self):
        context().actor_instance.stop("enough")

    @endpoint
    def caught(self, how, rank):
        pending = self.mesh.slice(gpus=rank).hang.call()
        self.fail_process(rank)
        try:
            pending.get()
        except SupervisionError as error:
            return str(error)

    def fail_process(self, rank):
        os.kill(self.pids_before[rank], signal.SIGKILL)

    @endpoint
    def look(self):
        self.pids_before = list(self.mesh.pid.call().get().values())


class PlainOwner(SyncPart):
    pass


class SyncOwner(SyncPart):
    def __supervise__(self, failure):
        return self.record(failure)


class SlowOwner(SyncPart):
    def __init__(self, answer, procs=None):
        super().__init__(answer, procs)
        self.log = []

    def __supervise__(self, failure):
        self.log.append("begin")
        time.sleep(0.05)
        self.log.append("end")
        return True

    @endpoint
    def pids(self):
        return list(self.mesh.pid.call().get().values())

    @endpoint
    def wait_for(self, path):
        open(path + ".begun", "w").close()
        with open(path, "rb") as file:
            file.read(1)
        for rank in (0, 1):  # what has been killed is known to be dead
            end = time.monotonic() + 20
            while time.monotonic() < end:
                try:
                    self.mesh.slice(gpus=rank).pid.call_one().get()
                except SupervisionError:
                    break
        self.log.append("waited")

    @endpoint
    def note(self, text):
        self.log.append(text)

    @endpoint
    def events(self):
        return self.log


class AsyncPart(Owner):
    @endpoint
    async def fail(self, how, ranks):
        self.fail_kids(how, ranks)

    @endpoint
    async def seen(self):
        return self.failures

    @endpoint
    async def look(self):
        self.pids_before = list((await self.mesh.pid.call()).values())

    @endpoint
    async def pid_of_kid(self):
        return await self.mesh.slice(gpus=1).pid.call_one()

    @endpoint
    async def healthy(self):
        await self.mesh.slice(gpus=0).pid.call_one()
        return [0]

    @endpoint
    async def caught(self, how, rank):
        pending = self.mesh.slice(gpus=rank).hang.call()
        os.kill(self.pids_before[rank], signal.SIGKILL)
        try:
            await pending
        except SupervisionError as error:
            return str(error)

    @endpoint
    async def until_told(self):
        while not self.failures:
            await asyncio.sleep(0.01)
        return len(self.failures[:1])


class AsyncPlainOwner(AsyncPart):
    pass


class AsyncOwner(AsyncPart):
    async def __supervise__(self, failure):
        await asyncio.sleep(0.01)
        await self.mesh.slice(gpus=0).pid.call_one() if failure.crashed_ranks == [1] else None
        return self.record(failure)


class MixedOwner(AsyncPart):
    def __supervise__(self, failure):  # may block: it does not see the loop
        if failure.crashed_ranks == [1]:
            self.mesh.slice(gpus=0).pid.call_one().get()
        return self.record(failure)


class SwarmOwner(AsyncPart):
    async def __supervise__(self, failure):
        return self.record(failure)


def spin():
    while True:
        pass


def make_owner(Class, answer, procs=None, on=None):
    on = on or this_host().spawn_procs()
    if Class is SwarmOwner:
        owner = on.options(per_proc={"actors": 1}).spawn("owner", Class, answer, procs)
    else:
        owner = on.spawn("owner", Class, answer, procs)
    owner.look.call_one().get()
    return owner


def until(there, limit=20):
    end = time.monotonic() + limit
    while not there():
        assert time.monotonic() < end, "too late"
        time.sleep(0.005)


def told(owner, count):
    until(lambda: len(owner.seen.call_one().get()) >= count)
    time.sleep(0.05)  # nothing more comes
    seen = owner.seen.call_one().get()
    assert len(seen) == count, seen
    return seen
