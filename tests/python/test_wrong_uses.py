"""Wrong types, names and targets are refused where they stand, in words that say what is expected."""

import functools
import re

import pytest

from monarch import NDSlice, Shape
from monarch.actor import (
    Accumulator,
    Actor,
    Channel,
    Extent,
    MeshFailure,
    Point,
    Port,
    ProcMesh,
    Restart,
    as_endpoint,
    concurrent_endpoint,
    deadline,
    dump_stacks,
    endpoint,
    hosts_from_config,
    send,
    this_host,
    this_proc,
)
from monarch.config import configure


class Worker(Actor):
    @endpoint
    def add(self, x: int, y: int = 1) -> int:
        """Adds."""
        return x + y

    def plain(self):
        return 1


@pytest.fixture(scope="module")
def worker():
    return this_proc().spawn("worker", Worker)


HOST = this_host
MESHES = {
    "per_host is no dict": (lambda: HOST().spawn_procs(4), "per_host must be a dict .* but is 4"),
    "a size is a text": (lambda: HOST().spawn_procs({"gpus": "4"}), "'gpus' has the size '4'"),
    "a name is a number": (lambda: HOST().spawn_procs({1: 4}), "has the name 1"),
    "name of processes": (lambda: HOST().spawn_procs(name=5), "the name of the processes must be a str, but is 5"),
    "bootstrap": (lambda: HOST().spawn_procs(bootstrap="setup"), "bootstrap must be a function .* but is 'setup'"),
    "interpreter": (lambda: HOST().with_python_executable(3), "takes the path of an interpreter, not 3"),
    "hosts": (lambda: hosts_from_config(2), "the name of the hosts must be a str, but is 2"),
    "name and class": (lambda: this_proc().spawn(Worker, "w"), "the first argument of spawn.name, Class"),
    "options": (lambda: this_proc().options(per_proc=3), "per_proc must be a dict"),
    "reason of processes": (lambda: HOST().spawn_procs().stop(3), "the reason for stopping must be a str, but is 3"),
    "a mesh by hand": (lambda: ProcMesh(1, 2, 3), "say this_host"),
    "a port by hand": (lambda: Port(1), "say port, receiver = Channel.open"),
    "send without a value": (lambda: Channel.open()[0].send(), "takes one argument, obj"),
    "a deadline": (lambda: deadline("5"), "a deadline is a number of seconds, not '5'"),
    "a timeout": (lambda: dump_stacks(timeout="5"), "timeout is a number of seconds, not '5'"),
    "a failure by hand": (lambda: MeshFailure(), "programs do not make a MeshFailure: __supervise__ and"),
    "a lease": (lambda: configure(stopped_rank_lease=30), 'a duration is text, such as "30s"'),
    "a rank is a truth": (lambda: HOST().spawn_procs({"gpus": 2}).respawn([True]), "takes ranks, .* but one is True"),
    "restart for the constructor": (
        lambda: this_proc().spawn("w", Worker, restart=Restart()),
        r"unexpected keyword argument 'restart' \(options come before: procs.options\(restart=...\).spawn\(...\)\)",
    ),
    "no such option of a call": (
        lambda: this_proc().spawn("w", Worker).add.options(timeout=5),
        "Endpoint.options.. has no option 'timeout', but deadline and partial",
    ),
    "no such option of a spawn": (
        lambda: this_proc().options(restrat=Restart()),
        "ProcMesh.options.. has no option 'restrat', but per_proc and restart",
    ),
    "an accumulator": (lambda: Accumulator(3, 0, max), "folds the answers of an endpoint of a mesh"),
    "combine": (lambda: Accumulator(this_proc().spawn("w", Worker).add, 0, 5), "combine is called as"),
    "send to nobody": (lambda: send("x", (), {}), "takes an endpoint of a mesh first"),
    "an extent of a dict": (lambda: Extent({"a": 1}), "made of labels and sizes"),
    "labels": (lambda: Extent(1, [2]), "expected a sequence of str, but got 1"),
    "sizes": (lambda: Extent(["a"], 2), "expected a sequence of int, but got 2"),
    "a point": (lambda: Point(0, {"x": 2}), "must be an Extent.*but is {'x': 2}"),
    "a shape": (lambda: Shape(["a"], [1]), "must be an NDSlice, but is"),
    "select": (lambda: Shape(["a"], NDSlice.new_row_major([2])).select("a", 1), "takes a slice"),
}


@pytest.mark.parametrize("wrong", MESHES)
def test_a_wrong_type_is_a_type_error_that_says_what_is_expected(wrong):
    make, text = MESHES[wrong]
    with pytest.raises(TypeError) as info:
        make()
    assert re.search(text, str(info.value))
    assert "incompatible function arguments" not in str(info.value) and "std::" not in str(info.value)


def test_what_a_mesh_does_not_have_names_what_it_has(worker):
    procs = this_host().spawn_procs({"hosts": 1, "gpus": 2})
    dimensions = re.escape("(of a mesh with the dimensions {'hosts': 1, 'gpus': 2})")
    for wrong, kind in (({"gpu": 0}, TypeError), ({"gpus": 2}, IndexError), ({"gpus": slice(2, 2)}, ValueError)):
        with pytest.raises(kind, match=dimensions):
            procs.slice(**wrong)
    with pytest.raises(AttributeError, match="Worker has no endpoint or method 'sub'; endpoints: add"):
        worker.sub  # noqa: B018
    with pytest.raises(TypeError, match=re.escape("worker.add(): too many positional arguments")):
        worker.add.call(1, 2, 3)
    with pytest.raises(TypeError, match="the reason for stopping must be a str"):
        worker.stop(3)


def test_a_forgotten_endpoint_is_said_at_each_adverb(worker):
    for adverb in ("call", "call_one", "broadcast", "choose", "stream", "options"):
        with pytest.raises(AttributeError, match=rf"Worker.plain is not an endpoint, so it has no {adverb}\(\): put @"):
            getattr(worker.plain, adverb)
    assert not hasattr(worker.plain, "other")
    assert as_endpoint(worker.plain).call_one().get() == 1


def test_options_and_respawn_are_found_where_they_are(worker):
    with pytest.raises(AttributeError, match=r"'options'; endpoints: add \(those of a spawn come before it: procs"):
        worker.options(restart=Restart())
    with pytest.raises(AttributeError, match=r"'HostMesh' object has no attribute 'options': they are of processes: "):
        this_host().options(restart=Restart())
    with pytest.raises(AttributeError, match=r"no attribute 'respawn': .*: procs\.respawn\(ranks\)"):
        this_host().respawn()
    with pytest.raises(ValueError, match="^timeout is a positive, finite number of seconds, not -1"):
        dump_stacks(timeout=-1)


@pytest.mark.parametrize("adverb", ["call_one", "choose", "stream", "broadcast"])
def test_a_partial_gather_is_of_call_alone(worker, adverb):
    partial = worker.add.options(partial=True)
    assert list(partial.call(1).get().values()) == [2]
    with pytest.raises(TypeError, match=r"^worker\.add has partial=True, which is for call\(\)"):
        getattr(partial, adverb)(1)
    assert partial.options(deadline=5).call(1).get()
    with pytest.raises(TypeError):
        getattr(partial.options(deadline=5), adverb)(1)
    assert partial.options(partial=False).call_one(1).get() == 2


@pytest.mark.parametrize("wrong", ["no", "yes", 1, 0])
def test_partial_is_a_truth(worker, wrong):
    with pytest.raises(TypeError, match=f"^partial must be True or False, but is {wrong!r}"):
        worker.add.options(partial=wrong)


def generator(self):
    yield 1


async def async_generator(self):
    yield 1


TARGETS = {
    "staticmethod": (staticmethod(len), "not a staticmethod"),
    "classmethod": (classmethod(len), "not a classmethod"),
    "property": (property(len), "not a property"),
    "class": (int, "int is a class"),
    "text": ("name", "'name' is not callable"),
    "no self": (lambda: None, "its first parameters are self"),
    "generator": (generator, "is a generator, and an endpoint gives one answer"),
    "async generator": (async_generator, "is a generator"),
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_wrong_target_of_endpoint_is_refused_where_it_stands(target):
    function, text = TARGETS[target]
    with pytest.raises(TypeError, match=text):
        endpoint(function)


def test_an_explicit_port_needs_a_parameter():
    with pytest.raises(TypeError, match="its first parameters are self and port"):
        endpoint(explicit_response_port=True)(lambda self: None)
    with pytest.raises(ValueError, match="can only wrap async endpoints"):
        concurrent_endpoint(lambda self: None)


def test_decorators_that_hide_their_function_are_taken_at_their_word():
    def counted(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args)

        return wrapper

    assert endpoint(counted(lambda self: None)) and endpoint(functools.partial(lambda self: None))


def test_an_abstract_class_cannot_be_spawned():
    from abc import abstractmethod

    class Abstract(Actor):
        @abstractmethod
        def step(self): ...

    with pytest.raises(TypeError, match="abstract class Abstract with abstract method step"):
        this_proc().spawn("abstract", Abstract)


def test_hooks_of_the_base_may_be_called():
    class Polite(Actor):
        def __cleanup__(self, exc):
            assert super().__cleanup__(exc) is None

        @endpoint
        def ask(self):
            return super().__supervise__(None), super()._handle_undeliverable_message(None)

    assert this_proc().spawn("polite", Polite).ask.call_one().get() == (None, False)


def test_names_of_parameters_are_those_of_the_reference(worker):
    port, receiver = Channel.open()
    port.send(obj=1)
    assert receiver.recv().get() == 1
    port.exception(e=KeyError("k"))
    with pytest.raises(KeyError):
        receiver.recv().get()
    assert as_endpoint(not_an_endpoint=worker.plain).call_one().get() == 1
    assert NDSlice.new_row_major(sizes=[2]).nditem(coordinates=[1]) == 1
    assert Point(1, Extent(["a"], [2])).size(label="a") == 2 and Point[int]
    assert this_host().with_python_executable(python_executable="python3")


def test_a_notebook_finds_what_it_can_call(worker):
    import inspect

    assert "add" in dir(worker) and worker.add.__doc__ == "Adds."
    assert list(inspect.signature(worker.add).parameters) == ["x", "y"]
    import monarch.actor

    assert set(monarch.actor.__all__) <= set(dir(monarch.actor))
    names = ("ActorError", "this_host", "Uid")
    assert all(getattr(monarch.actor, name).__module__ == "monarch.actor" for name in names)


def test_an_instance_where_a_class_is_wanted_and_endpoint_twice():
    with pytest.raises(ValueError, match=re.escape("got an instance of Worker: pass the class")):
        this_proc().spawn("worker", Worker())
    with pytest.raises(TypeError, match="@endpoint stands twice above Worker.add"):
        endpoint(Worker.add)
    with pytest.raises(TypeError, match=re.escape("Worker(): too many positional arguments")):
        this_proc().spawn("worker", Worker, 1)
    assert repr(Worker.add) == "<endpoint Worker.add>"


# ---- __supervise__ ----


def async_generator_hook():
    async def hook(self, failure):
        yield True

    return hook


HOOKS = {
    "no argument": (lambda self: True, r"called with one argument.*cannot be \(too many"),
    "two arguments": (lambda self, a, b: True, r"called with one argument.*cannot be \(missing.*'b'\)"),
    "by keyword": (lambda self, *, failure: True, r"called with one argument.*cannot be \("),
    "static, no argument": (staticmethod(lambda: True), r"called with one argument.*cannot be \("),
    "a number": (3, "not callable: 3"),
    "None": (None, "not callable: None"),
    "a class": (int, "a class"),
    "a generator": (generator, "a generator, whose body would never run"),
    "an async generator": (async_generator_hook(), "a generator, whose body would never run"),
    "an endpoint": (endpoint(lambda self, failure: True), "an endpoint"),
}


@pytest.mark.parametrize("wrong", HOOKS)
def test_a_supervise_that_cannot_be_asked_is_refused_at_the_spawn(wrong):
    hook, text = HOOKS[wrong]
    owner = type("Owner", (Worker,), {"__supervise__": hook})
    for _ in range(2):
        with pytest.raises(TypeError, match=rf"^Owner\.__supervise__ is {text}.*: it must be a method, `def` or"):
            this_proc().spawn("owner", owner)


@pytest.mark.parametrize(
    "hook",
    [
        lambda self, failure: True,
        lambda self, failure, again=False: True,
        lambda *args: True,
        lambda self, failure, *, loud=False: True,
        staticmethod(lambda failure: True),
        classmethod(lambda cls, failure: True),
        functools.partialmethod(lambda self, why, failure: True, "why"),
    ],
)
def test_a_supervise_that_can_be_asked_is_taken(hook):
    owner = type("Owner", (Worker,), {"__supervise__": hook})
    assert this_proc().spawn("owner", owner).add.call_one(1).get() == 2
