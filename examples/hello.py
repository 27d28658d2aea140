"""Hello world: one process, one actor, one call."""

from monarch.actor import Actor, endpoint, this_host


class Greeter(Actor):
    @endpoint
    def greet(self, name: str) -> str:
        return f"hello, {name}"


if __name__ == "__main__":
    procs = this_host().spawn_procs(per_host={"gpus": 1})
    greeter = procs.spawn("greeter", Greeter)
    print(greeter.greet.call_one("world").get())
