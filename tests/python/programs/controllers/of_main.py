import os

from monarch.actor import Actor, endpoint, get_or_spawn_controller, this_host

notes: list = []


class Notes(Actor):
    @endpoint
    def note(self, text):
        notes.append(text)
        return os.getpid()

    @endpoint
    def all(self):
        return notes


class Worker(Actor):
    @endpoint
    def work(self, text):
        return get_or_spawn_controller("notes", Notes).get().note.call_one(text).get()


controller = get_or_spawn_controller("notes", Notes).get()
assert controller.note.call_one("script").get() == os.getpid()
workers = this_host().spawn_procs(per_host={"gpus": 2}).spawn("workers", Worker)
assert workers.work.call("worker").get().values() == [os.getpid()] * 2
print(controller.all.call_one().get(), notes)
