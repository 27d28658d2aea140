"""Mistakes that a type checker finds: each line that ends with ``# error: code`` has that error of mypy's, no other."""

from monarch.actor import (
    Accumulator,
    Actor,
    Channel,
    Endpoint,
    Future,
    Port,
    as_endpoint,
    concurrent_endpoint,
    endpoint,
    get_or_spawn_controller,
    send,
    this_host,
)
from monarch.testing import patch_actor


class Counter(Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @endpoint
    def add(self, by: int) -> int:
        return by

    @endpoint
    async def name(self) -> str:
        return 3  # error: return-value

    @endpoint(explicit_response_port=True)
    def answers(self, port: Port[str], question: int) -> None:
        port.send(question)  # error: arg-type

    @concurrent_endpoint  # error: arg-type
    def not_async(self) -> None: ...

    @endpoint(explicit_response_port=True)  # error: arg-type
    def without_port(self, question: int) -> None: ...

    @endpoint(no_such_option=True)  # error: call-overload, untyped-decorator
    def optional(self) -> None: ...

    def plain(self, x: int) -> float:
        return x / 2


procs = this_host().spawn_procs(per_host={"gpus": 2})
counters = procs.spawn("counters", Counter, 1)

# Spawning
procs.spawn("counters", Counter)  # error: call-arg
procs.spawn("counters", Counter, "1")  # error: arg-type
procs.spawn("counters", Counter, 1, strat=2)  # error: call-arg
procs.spawn("no actor", int, 1)  # error: type-var
get_or_spawn_controller("one", Counter, None)  # error: arg-type
this_host().spawn_procs(per_host={"gpus": "2"})  # error: dict-item
procs.options(per_proc=8)  # error: arg-type

# Calls
counters.add(1)  # error: operator
counters.add.call("1")  # error: arg-type
counters.add.call()  # error: call-arg
counters.add.call_one(1, 2)  # error: call-arg
counters.add.broadcast(bye=1)  # error: call-arg
counters.name.choose("x")  # error: call-arg
counters.no_such.call()  # error: attr-defined
counters.plain.call(1)  # error: attr-defined
as_endpoint(counters.plain).call("x")  # error: arg-type
counters.answers.call_one(Channel[str].open()[0], 1)  # error: call-arg, arg-type
counters.add.options(dead_line=5)  # error: call-overload
counters.add.call(1).get(timeout="1")  # error: arg-type

# Results
text: str = counters.add.call_one(1).get()  # error: assignment
number: int = counters.add.call(1).get()  # error: assignment
number = counters.add.call_one(1)  # error: assignment
number = counters.add.options(partial=True).call(1).get().item(gpus=0)  # error: assignment
text = counters.add.options(reduce="sum").call(1).get()  # error: assignment
counters.add.options(reduce="mean")  # error: call-overload
counters.add.options(reduce="sum", partial=True)  # error: call-overload
counters.add.options(reduce="sum").stream(1)  # error: attr-defined
counters.add.options(reduce="sum").call("x")  # error: arg-type
texts: list[str] = counters.add.call(1).get().values()  # error: assignment
Accumulator(counters.add, "", lambda state, answer: state + answer)  # error: operator

# Ports
port, receiver = Channel[int].open()
port.send("1")  # error: arg-type
text = receiver.recv().get()  # error: assignment
send(counters.name, (), {}, port)  # error: misc
send(counters.add, (), {}, selection="some")  # error: arg-type


# Endpoints handed on
def ask(ep: Endpoint[[str], int]) -> Future[int]:
    return ep.call_one(1)  # error: arg-type


ask(counters.add)  # error: arg-type
patch_actor(Counter, "Mock")  # error: arg-type
