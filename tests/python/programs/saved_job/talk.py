"""A saved job of two meshes, with actors that print. Reads what they are to print, "MESH TEXT", and "kill"."""

import monarch.actor
import monarch.config
from monarch.actor import Actor, current_rank, endpoint
from monarch.job import ProcessJob


class Talker(Actor):
    @endpoint
    def say(self, text: str) -> None:
        print(text, current_rank().rank)


monarch.actor.unhandled_fault_hook = lambda failure: None  # tests kill its hosts
monarch.config.configure(enable_file_capture=True)
job = ProcessJob({"trainers": 2, "generators": 1})
state = job.state()
talkers = {
    "all": state.trainers.spawn_procs({"gpus": 2}, name="all").spawn("talker", Talker),
    "one": state.trainers.slice(hosts=1).spawn_procs(name="one").spawn("talker", Talker),
    "other": state.generators.spawn_procs(name="other").spawn("talker", Talker),
}
for each in talkers.values():
    each.say.call("begun").get()
print("ready", flush=True)
while (order := input()) != "kill":
    mesh, _, text = order.partition(" ")
    talkers[mesh].say.call(text).get()
job.kill()
