import linecache

from monarch.actor import Actor, ActorError, SupervisionError, endpoint, this_host


def make(scale):
    class Made(Actor):
        @endpoint
        def run(self, function, x):
            return scale * function(x)

        @endpoint
        def fail(self):
            raise ValueError("no")

    return Made


mesh = this_host().spawn_procs(per_host={"gpus": 2}).spawn("made", make(10))
offset = 3
print(mesh.run.call(lambda x: x + offset, 1).get().values())

# what an interactive session does with what is typed in
cell = "def typed(x):\n    y = 1 / x\n    return y\n\n"
cell += "class Typed(Actor):\n    def __init__(self):\n        self.nothing.here\n"
linecache.cache["<cell 7>"] = (len(cell), None, cell.splitlines(True), "<cell 7>")
exec(compile(cell, "<cell 7>", "exec"))
try:
    mesh.run.call(globals()["typed"], 0).get()
except ActorError as error:
    print("y = 1 / x" in str(error), "ZeroDivisionError" in str(error))
Typed = globals()["Typed"]
Typed.ep = endpoint(lambda self: None)
try:
    this_host().spawn_procs().spawn("typed", Typed).ep.call_one().get()
except SupervisionError as error:
    print("self.nothing.here" in str(error))
