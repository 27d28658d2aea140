"""Actors and endpoints through the public API, with real worker processes."""

import asyncio
import functools
import os
import threading

import pytest

from monarch.actor import (
    Actor,
    ActorError,
    SupervisionError,
    as_endpoint,
    concurrent_endpoint,
    context,
    current_actor_name,
    current_rank,
    current_size,
    endpoint,
    this_host,
    this_proc,
)

LIMIT = 30  # seconds that any single wait in here may take


class Counter(Actor):
    def __init__(self, start=0):
        self.value = start
        self.local = threading.local()
        self.local.seen = []

    @endpoint
    def add(self, by, scale=1):
        self.value += by * scale
        return self.value

    @endpoint
    def thread(self):
        self.local.seen.append(len(self.local.seen))
        return threading.get_ident(), os.getpid(), list(self.local.seen), threading.current_thread().name

    @endpoint
    def where(self):
        return dict(current_rank()), current_rank().rank, current_size()

    @endpoint
    def boom(self, text):
        raise ValueError(text)

    @endpoint
    def echo(self, *args, **kwargs):
        return args, kwargs

    def plain(self, x):
        return ("plain", x)

    def _hidden(self):
        return None


@pytest.mark.feature(1, "one instance per process", "constructor arguments arrive", 46, "real processes")
def test_one_instance_per_process_with_the_constructor_arguments(procs):
    counters = procs.spawn("counters", Counter, 10)
    assert counters.add.call(1).get(timeout=LIMIT).values() == [11, 11]
    pids = {pid for _, pid, _, _ in counters.thread.call().get(timeout=LIMIT).values()}
    assert len(pids) == 2 and os.getpid() not in pids


@pytest.mark.feature(2, "on one thread", 17, "thread-locals stay")
def test_all_user_code_of_an_actor_runs_on_one_thread(procs):
    counter = procs.slice(gpus=0).spawn("counter", Counter)
    first = counter.thread.call_one().get(timeout=LIMIT)
    second = counter.thread.call_one().get(timeout=LIMIT)
    assert first[0] == second[0]
    assert second[2] == [0, 1]
    assert first[3] == "monarch-actor-driver"


@pytest.mark.feature(10, "the extent of the mesh", "the value of each rank", 36, 43)
def test_call_has_the_extent_of_the_mesh_and_its_slices(procs):
    counters = procs.spawn("counters", Counter)
    result = counters.where.call().get(timeout=LIMIT)
    assert result.extent == counters.extent
    assert [value for _, value in result] == [({"gpus": 0}, 0, {"gpus": 2}), ({"gpus": 1}, 1, {"gpus": 2})]
    part = counters.slice(gpus=slice(1, 2)).where.call().get(timeout=LIMIT)
    assert part.values() == [({"gpus": 0}, 0, {"gpus": 1})]
    assert counters.slice(gpus=1).where.call_one().get(timeout=LIMIT) == ({}, 0, {})


@pytest.mark.feature(11, "the one result")
def test_keywords_defaults_and_varargs_reach_the_method(procs):
    counter = procs.slice(gpus=0).spawn("counter", Counter)
    assert counter.add.call_one(2, scale=5).get(timeout=LIMIT) == 10
    assert counter.add.call_one(by=1).get(timeout=LIMIT) == 11
    assert counter.echo.call_one(1, (2, "x"), k=[3]).get(timeout=LIMIT) == ((1, (2, "x")), {"k": [3]})


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -5,
        2**62,
        2**80,
        1.5,
        "text",
        "\udc80",
        b"bytes",
        (),
        (1, ("a", None)),
        [1, [2]],
        {"k": (1,)},
        {3},
    ],
)
def test_values_arrive_as_they_were(procs, value):
    counter = procs.slice(gpus=0).spawn("counter", Counter)
    args, _ = counter.echo.call_one(value).get(timeout=LIMIT)
    assert args[0] == value and type(args[0]) is type(value)


@pytest.mark.feature(8, "of endpoints", "nothing is sent")
@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "missing a required argument: 'by'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"y": 2}, "got an unexpected keyword argument 'y'"),
    ],
)
def test_wrong_arguments_raise_at_the_caller_and_nothing_is_sent(procs, args, kwargs, text):
    counter = procs.slice(gpus=0).spawn("counter", Counter)
    for adverb in ("call", "call_one", "choose", "broadcast", "stream"):
        with pytest.raises(TypeError, match=text):
            getattr(counter.add, adverb)(*args, **kwargs)
    assert counter.add.call_one(0).get(timeout=LIMIT) == 0


@pytest.mark.feature(8, "of constructors")
def test_wrong_constructor_arguments_raise_at_spawn(procs):
    with pytest.raises(TypeError, match="too many positional arguments"):
        procs.spawn("counter", Counter, 1, 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        procs.spawn("counter", Counter, z=1)


@pytest.mark.feature(11, "raises at once unless the size is 1")
def test_call_one_needs_exactly_one_actor(procs):
    counters = procs.spawn("counters", Counter)
    with pytest.raises(ValueError, match="call_one requires exactly 1 actor, but mesh has 2"):
        counters.add.call_one(1)


@pytest.mark.feature(12, "one rank handles it", "at random")
def test_choose_asks_one_rank_and_in_time_every_rank(procs):
    counters = procs.spawn("counters", Counter)
    seen = {counters.where.choose().get(timeout=LIMIT)[1] for _ in range(64)}
    assert seen == {0, 1}
    assert sum(counters.add.call(0).get(timeout=LIMIT).values()) == 0
    counters.add.choose(1).get(timeout=LIMIT)
    assert sum(counters.add.call(0).get(timeout=LIMIT).values()) == 1


@pytest.mark.feature(13, "a future for each rank, of one send")
def test_stream_gives_a_future_per_rank_in_order_of_arrival(procs):
    counters = procs.spawn("counters", Counter, 3)
    futures = list(counters.add.stream(1))
    assert len(futures) == 2
    assert [future.get(timeout=LIMIT) for future in futures] == [4, 4]


@pytest.mark.feature(14, "returns None", "all ranks run it", "in order with later calls", 16)
def test_broadcast_is_ordered_with_later_calls_on_slices(procs):
    counters = procs.spawn("counters", Counter)
    for i in range(200):
        assert counters.add.broadcast(1) is None
        if i % 20 == 0:
            assert counters.slice(gpus=i // 20 % 2).add.call_one(0).get(timeout=LIMIT) == i + 1
    assert counters.add.call(0).get(timeout=LIMIT).values() == [200, 200]


@pytest.mark.feature(25)
def test_an_unwatched_call_still_runs(procs):
    counter = procs.slice(gpus=0).spawn("counter", Counter)
    counter.add.call_one(5)
    assert counter.add.call_one(0).get(timeout=LIMIT) == 5


@pytest.mark.feature(16)
def test_many_senders_each_keep_their_order(procs):
    class Log(Actor):
        def __init__(self):
            self.seen = []

        @endpoint
        def note(self, who, number):
            self.seen.append((who, number))

        @endpoint
        def all(self):
            return self.seen

    log = procs.slice(gpus=0).spawn("log", Log)

    class Sender(Actor):
        @endpoint
        def send(self, log, who, count):
            for i in range(count):
                log.note.broadcast(who, i)
            return log.note.call_one(who, count).get(timeout=LIMIT)

    senders = [procs.slice(gpus=i % 2).spawn(f"sender{i}", Sender) for i in range(4)]
    for future in [s.send.call_one(log, i, 500) for i, s in enumerate(senders)]:
        future.get(timeout=LIMIT)
    seen = log.all.call_one().get(timeout=LIMIT)
    for who in range(4):
        assert [number for sender, number in seen if sender == who] == list(range(501))


# ---- Errors ----


@pytest.mark.feature(62, "the remote traceback", "the actor lives")
def test_an_exception_reaches_the_caller_with_the_remote_traceback_and_the_actor_lives(procs):
    counter = procs.slice(gpus=0).spawn("counter", Counter)
    with pytest.raises(ActorError) as raised:
        counter.boom.call_one("no good").get(timeout=LIMIT)
    error = raised.value
    assert isinstance(error.exception, ValueError) and str(error.exception) == "no good"
    assert str(error).startswith("Actor call counter.boom failed.\n Traceback of where the remote call failed")
    assert "raise ValueError(text)" in str(error) and "in boom" in error.exception_formatted
    assert counter.add.call_one(1).get(timeout=LIMIT) == 1


@pytest.mark.feature(10, "an error of a rank is raised", 62)
def test_one_failing_rank_fails_the_call_and_touches_nobody_else(procs):
    class Half(Actor):
        @endpoint
        def check(self):
            if current_rank().rank == 1:
                raise KeyError("one")
            return 0

    half = procs.spawn("half", Half)
    with pytest.raises(ActorError) as raised:
        half.check.call().get(timeout=LIMIT)
    assert isinstance(raised.value.exception, KeyError)
    assert half.slice(gpus=0).check.call_one().get(timeout=LIMIT) == 0
    outcomes = [future.exception(timeout=LIMIT) for future in half.check.stream()]
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ActorError", "NoneType"]


@pytest.mark.feature(62)
def test_causes_travel_in_the_text(procs):
    class Chained(Actor):
        @endpoint
        def run(self):
            try:
                {}["inner"]
            except KeyError as error:
                raise RuntimeError("outer") from error

    chained = procs.slice(gpus=0).spawn("chained", Chained)
    with pytest.raises(ActorError, match="direct cause") as raised:
        chained.run.call_one().get(timeout=LIMIT)
    assert "KeyError: 'inner'" in str(raised.value) and "RuntimeError: outer" in str(raised.value)


@pytest.mark.feature(62, 71)
def test_an_exception_that_cannot_be_pickled_is_described(procs):
    class Odd(Actor):
        @endpoint
        def run(self):
            class Local(Exception):
                def __init__(self):
                    super().__init__("odd")
                    self.lock = threading.Lock()

            raise Local

    odd = procs.slice(gpus=0).spawn("odd", Odd)
    with pytest.raises(ActorError, match="odd"):
        odd.run.call_one().get(timeout=LIMIT)


class NoText(Exception):
    def __reduce__(self):
        raise TypeError("no pickle")

    def __str__(self):
        raise ValueError("no text")


class Leaves(Exception):
    def __reduce__(self):
        raise SystemExit(3)


class NoTraceback(Exception):
    @property
    def exceptions(self):
        raise ValueError("not now")


class PicklesOnce(Exception):
    times = 0

    def __reduce__(self):
        PicklesOnce.times += 1
        if PicklesOnce.times > 1:
            raise TypeError("once only")
        return PicklesOnce, ()


RAISERS = {
    "a builtin one with a lock": lambda: ValueError(threading.Lock()),
    "a group of those": lambda: RuntimeError("outer", [ValueError(threading.Lock())]),
    "one of the runtime": lambda: ActorError(ValueError(threading.Lock())),
    "one without text": NoText,
    "one that wants to exit": Leaves,
    "one without a traceback": NoTraceback,
}


class RaisesSync(Actor):
    @endpoint
    def run(self, what):
        raise RAISERS[what]()

    @endpoint
    def raise_once(self):
        raise PicklesOnce

    @endpoint
    def ping(self):
        return "alive"


class RaisesAsync(Actor):
    @endpoint
    async def run(self, what):
        raise RAISERS[what]()

    @endpoint
    async def ping(self):
        return "alive"


@pytest.mark.feature(62, 71)
@pytest.mark.parametrize("cls", [RaisesSync, RaisesAsync])
@pytest.mark.parametrize("what", list(RAISERS))
def test_whatever_is_raised_the_call_ends_and_the_actor_lives(procs, cls, what):
    actor = procs.slice(gpus=0).spawn("raises", cls)
    with pytest.raises(ActorError) as raised:
        actor.run.call_one(what).get(timeout=LIMIT)
    assert isinstance(raised.value.exception, RuntimeError)
    assert "cannot be pickled" in str(raised.value.exception)
    assert actor.ping.call_one().get(timeout=LIMIT) == "alive"


@pytest.mark.feature(62, 71)
def test_a_call_ends_whose_exception_can_be_pickled_only_for_a_trial(procs):
    actor = procs.slice(gpus=0).spawn("raises", RaisesSync)
    with pytest.raises(SupervisionError, match="could not be sent to its caller"):
        actor.raise_once.call_one().get(timeout=LIMIT)


@pytest.mark.feature(71)
def test_a_result_that_cannot_be_pickled_is_an_error_of_the_call(procs):
    class Locks(Actor):
        @endpoint
        def get_lock(self):
            return threading.Lock()

    locks = procs.slice(gpus=0).spawn("locks", Locks)
    for _ in range(2):
        with pytest.raises(ActorError, match="lock"):
            locks.get_lock.call_one().get(timeout=LIMIT)


@pytest.mark.feature(71, "arguments raise at the send")
def test_an_argument_that_cannot_be_pickled_raises_at_the_caller_and_is_named(procs):
    counter = procs.slice(gpus=0).spawn("counter", Counter)
    with pytest.raises(TypeError, match="argument .*lock"):
        counter.echo.call_one(1, {"deep": [threading.Lock()]})
    assert counter.add.call_one(0).get(timeout=LIMIT) == 0


@pytest.mark.feature(71)
def test_a_class_that_cannot_be_pickled_names_the_attribute(procs):
    class Bad(Actor):
        guard = threading.Lock()

        @endpoint
        def run(self):
            return None

    with pytest.raises(TypeError, match="guard"):
        procs.spawn("bad", Bad)


def test_an_actor_that_waits_for_itself_gets_an_error_at_once(procs):
    class Selfish(Actor):
        @endpoint
        def meet(self, me):
            return me.ok.call_one().get()

        @endpoint
        def ok(self):
            return "ok"

    selfish = procs.slice(gpus=0).spawn("selfish", Selfish)
    with pytest.raises(ActorError, match="waits for a call to itself"):
        selfish.meet.call_one(selfish).get(timeout=LIMIT)
    assert selfish.ok.call_one().get(timeout=LIMIT) == "ok"


# ---- Declarations ----


@pytest.mark.feature(7, "a plain call says what to do")
def test_wrong_uses_of_endpoints_say_what_to_do(procs):
    counters = procs.spawn("counters", Counter)
    with pytest.raises(TypeError, match="is an endpoint: it runs in a spawned actor"):
        Counter.add(1)
    with pytest.raises(TypeError, match=r"say \.call"):
        counters.add(1)
    with pytest.raises(RuntimeError, match="is not annotated as an endpoint"):
        counters.plain(1)
    with pytest.raises(AttributeError):
        counters.plain.call
    with pytest.raises(AttributeError, match="nothing"):
        counters.nothing
    with pytest.raises(ValueError, match="must subclass monarch.service.Actor"):
        procs.spawn("int", int)


@pytest.mark.feature(7, "as_endpoint calls it")
def test_as_endpoint_calls_an_undecorated_method(procs):
    counters = procs.spawn("counters", Counter)
    assert as_endpoint(counters.plain).call(4).get(timeout=LIMIT).values() == [("plain", 4)] * 2
    with pytest.raises(ValueError, match="expected an method of a spawned actor"):
        as_endpoint(len)


@pytest.mark.feature(9)
def test_reserved_endpoint_names_are_refused(procs):
    class Clash(Actor):
        @endpoint
        def slice(self):
            return None

        @endpoint
        def stop(self):
            return None

    with pytest.raises(ValueError, match="collides with an endpoint name: attribute=slice, attribute=stop"):
        procs.spawn("clash", Clash)


@pytest.mark.feature(5, "wrong uses are refused")
def test_concurrent_endpoint_refuses_what_it_cannot_run():
    with pytest.raises(ValueError, match="concurrent_endpoint can only wrap async endpoints"):
        concurrent_endpoint(lambda self: None)
    with pytest.raises(ValueError, match="concurrent_endpoint does not wrap @endpoint"):

        @concurrent_endpoint
        @endpoint
        async def method(self):
            return None


@pytest.mark.feature(1)
def test_inherited_mixed_in_and_stacked_endpoints_work(procs):
    def twice(function):
        @functools.wraps(function)
        def run(*args, **kwargs):
            return 2 * function(*args, **kwargs)

        run.mark = "kept"
        return run

    class Mixin:
        @endpoint
        def mixed(self):
            return "mixed"

    class Derived(Counter, Mixin):
        @endpoint
        @twice
        def doubled(self, x):
            return x

        @endpoint
        def add(self, by):
            return "overridden"

    assert Derived.doubled.mark == "kept"
    derived = procs.slice(gpus=0).spawn("derived", Derived, 1)
    assert derived.mixed.call_one().get(timeout=LIMIT) == "mixed"
    assert derived.doubled.call_one(4).get(timeout=LIMIT) == 8
    assert derived.add.call_one(1).get(timeout=LIMIT) == "overridden"
    with pytest.raises(TypeError, match="too many positional arguments"):
        derived.doubled.call_one(1, 2)


# ---- Async actors ----


class Async(Actor):
    def __init__(self):
        self.log = []
        self.go = None

    @endpoint
    async def step(self, name, pauses):
        self.log.append(("start", name))
        for _ in range(pauses):
            await asyncio.sleep(0)
        self.log.append(("end", name))
        return threading.get_ident()

    @endpoint
    def sync_in_async(self):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return "no loop", threading.get_ident(), threading.current_thread().name
        return "loop", 0, ""

    @concurrent_endpoint
    async def wait_for_go(self):
        if self.go is None:
            self.go = asyncio.Event()
        await self.go.wait()
        return "went"

    @endpoint
    async def say_go(self):
        while self.go is None:
            await asyncio.sleep(0)
        self.go.set()

    @endpoint
    async def seen(self):
        return self.log

    @endpoint
    async def task(self):
        return asyncio.current_task() is not None and asyncio.timeout is not None


@pytest.mark.feature(3, "one at a time across awaits")
def test_async_endpoints_run_one_at_a_time_across_awaits(procs):
    actor = procs.slice(gpus=0).spawn("async", Async)
    futures = [actor.step.call_one(name, 5) for name in ("a", "b")]
    threads = {future.get(timeout=LIMIT) for future in futures}
    assert len(threads) == 1
    assert actor.seen.call_one().get(timeout=LIMIT) == [("start", "a"), ("end", "a"), ("start", "b"), ("end", "b")]


@pytest.mark.feature(4, "both kinds of endpoints", 2, "no event loop", 3, "on the actor's loop")
def test_sync_endpoints_of_a_mixed_class_see_no_running_loop(procs):
    actor = procs.slice(gpus=0).spawn("async", Async)
    loop_thread = actor.step.call_one("a", 1).get(timeout=LIMIT)
    assert actor.sync_in_async.call_one().get(timeout=LIMIT) == ("no loop", loop_thread, "monarch-actor-event-loop")
    assert actor.task.call_one().get(timeout=LIMIT) is True


@pytest.mark.feature(5, "bodies overlap")
def test_concurrent_endpoints_overlap(procs):
    actor = procs.slice(gpus=0).spawn("async", Async)
    waiting = [actor.wait_for_go.call_one() for _ in range(3)]
    actor.say_go.call_one().get(timeout=LIMIT)
    assert [future.get(timeout=LIMIT) for future in waiting] == ["went"] * 3


@pytest.mark.feature(18, "slow actors overlap")
def test_actors_of_one_process_run_in_parallel(procs):
    class Gate(Actor):
        @endpoint
        def meet(self, other, depth):
            return depth if depth == 3 else other.echo.call_one(depth).get(timeout=LIMIT)[0][0]

    one = procs.slice(gpus=0)
    counter, gate = one.spawn("counter", Counter), one.spawn("gate", Gate)
    assert gate.meet.call_one(counter, 1).get(timeout=LIMIT) == 1


@pytest.mark.feature(21, "in arguments and results", "slices", 61)
def test_meshes_travel_in_arguments_and_results(procs):
    class Holder(Actor):
        @endpoint
        def hold(self, meshes):
            self.mesh = meshes["it"][0]

        @endpoint
        def give(self):
            return self.mesh

        @endpoint
        def use(self):
            return self.mesh.add.call(1).get(timeout=LIMIT).values()

    counters = procs.spawn("counters", Counter)
    holder = procs.slice(gpus=1).spawn("holder", Holder)
    holder.hold.call_one({"it": [counters.slice(gpus=slice(0, 1))]}).get(timeout=LIMIT)
    assert holder.use.call_one().get(timeout=LIMIT) == [1]
    back = holder.give.call_one().get(timeout=LIMIT)
    assert back == counters.slice(gpus=slice(0, 1)) and hash(back) == hash(counters.slice(gpus=slice(0, 1)))
    assert back.add.call(1).get(timeout=LIMIT).values() == [2]
    with pytest.raises(NotImplementedError, match="requires an owned ActorMesh"):
        back.stop()


# ---- Identity ----


class Identity(Actor):
    @endpoint
    def describe(self):
        me = context().actor_instance
        return me.name, me.class_name, dict(me.rank), str(me), str(me.creator), current_actor_name()

    @endpoint
    def neighbour(self):
        other = this_proc().spawn("inner", Identity)
        return os.getpid(), other.pid.call_one().get(timeout=LIMIT), other.describe.call_one().get(timeout=LIMIT)[3]

    @endpoint
    def pid(self):
        return os.getpid()


@pytest.mark.feature(36, 37, "a path from the root")
def test_an_actor_knows_who_it_is_and_who_made_it(procs):
    name, class_name, rank, chain, creator, address = (
        procs.spawn("who", Identity).slice(gpus=1).describe.call_one().get(timeout=LIMIT)
    )
    assert (name, rank, creator) == ("who", {"gpus": 1}, "<root>")
    assert class_name.endswith("Identity") and chain == f"<root>.<{class_name} who{{'gpus': 1/2}}>"
    assert "who" in address


@pytest.mark.feature(37, "a path from the root", 46, "in this process")
def test_this_proc_spawns_in_the_same_process(procs):
    outer, inner, chain = procs.slice(gpus=0).spawn("outer", Identity).neighbour.call_one().get(timeout=LIMIT)
    assert outer == inner
    assert chain.startswith("<root>.<") and chain.count("Identity") == 2
    local = this_proc().spawn("local", Identity)
    assert local.pid.call_one().get(timeout=LIMIT) == os.getpid()
    assert this_proc().host_mesh == this_host()


@pytest.mark.feature(35, "the first use makes the root")
def test_the_client_is_the_root():
    me = context().actor_instance
    assert (me.name, str(me), me.creator, dict(me.rank)) == ("root", "<root>", None, {})
    assert current_size() == {} and current_rank().rank == 0


# ---- Large values ----


def test_arrays_arrive_writable_and_as_snapshots(procs):
    np = pytest.importorskip("numpy")

    class Arrays(Actor):
        def __init__(self):
            self.kept = []

        @endpoint
        def change(self, array):
            array += 1
            self.kept.append(array)
            return array.sum()

        @endpoint
        def back(self, array, count):
            return [array] * count, array[:2]

    arrays = procs.slice(gpus=0).spawn("arrays", Arrays)
    for size in (0, 1, 1000, 10_000, 300_000, 5_000_000):
        source = np.arange(size, dtype=np.int64)
        future = arrays.change.call_one(source)
        source[:] = -1  # after the send: must not show
        assert future.get(timeout=LIMIT) == size * (size - 1) // 2 + size
    same, head = arrays.back.call_one(np.arange(100_000.0).reshape(1000, 100), 2).get(timeout=LIMIT)
    assert same[0] is same[1] and same[0].shape == (1000, 100) and same[0][9, 99] == 999 and head.shape == (2, 100)
    same[0][:] = 1  # what arrives is writable
    fortran = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    assert (arrays.back.call_one(fortran, 1).get(timeout=LIMIT)[0][0] == fortran).all()
    assert (arrays.back.call_one(fortran[::2, ::2], 1).get(timeout=LIMIT)[0][0] == fortran[::2, ::2]).all()


def test_large_arguments_reach_every_rank(procs):
    np = pytest.importorskip("numpy")
    counters = procs.spawn("counters", Counter)
    array = np.arange(2_000_000)
    for args, _ in counters.echo.call(array, b"x" * 200_000, "y" * 100_000).get(timeout=LIMIT).values():
        assert (args[0] == array).all() and args[1] == b"x" * 200_000 and args[2] == "y" * 100_000


LOCAL = threading.local()


class SetsLocal(Actor):
    @endpoint
    def set(self, value):
        seen = getattr(LOCAL, "value", None)
        LOCAL.value = value
        return seen, threading.get_ident()


@pytest.mark.feature(17)
def test_a_new_actor_sees_no_thread_locals_of_one_before(procs):
    one = procs.slice(gpus=0)
    threads = set()
    for value in range(20):
        actor = one.spawn("sets", SetsLocal)
        seen, thread = actor.set.call_one(value).get(timeout=LIMIT)
        assert seen is None
        assert actor.set.call_one(value).get(timeout=LIMIT) == (value, thread)
        threads.add(thread)
        actor.stop().get(timeout=LIMIT)
    assert len(threads) < 20  # or nothing has been tested


def plain_decorator(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def impatient(function):
    @functools.wraps(function)
    def wrapper(self, value):
        return "at once" if value is None else function(self, value)

    return wrapper


class Decorated(Actor):
    @endpoint
    @plain_decorator
    async def twice(self, value):
        await asyncio.sleep(0)
        return 2 * value

    @endpoint
    @impatient
    async def thrice(self, value):
        await asyncio.sleep(0)
        return 3 * value


@pytest.mark.feature(3)
def test_an_async_endpoint_below_a_plain_decorator(procs):
    actors = procs.spawn("decorated", Decorated)
    assert list(actors.twice.call(2).get(timeout=LIMIT).values()) == [4, 4]
    assert list(actors.thrice.call(2).get(timeout=LIMIT).values()) == [6, 6]
    assert list(actors.thrice.call(None).get(timeout=LIMIT).values()) == ["at once", "at once"]


class OwnLogger(Actor):
    def __init__(self):
        self._logger = "mine"

    @endpoint
    def loggers(self):
        return self.logger.name, self._logger, self.logger is self.logger


def test_the_logger_of_an_actor_leaves_an_attribute_of_the_users_alone(procs):
    actor = procs.slice(gpus=0).spawn("logger", OwnLogger)
    assert actor.loggers.call_one().get(timeout=LIMIT) == ("OwnLogger", "mine", True)


def test_an_actor_mesh_is_a_generic_in_annotations():
    from monarch.actor import ActorMesh

    assert "ActorMesh[" in str(ActorMesh[Counter]).replace(Counter.__qualname__, "")


class BadConstructor(Actor):
    def __init__(self):
        raise ValueError("not this one")

    @endpoint
    def nothing(self):
        pass


def refuse_to_begin():
    raise LookupError("no such device")


@pytest.mark.feature(48)
def test_initialized_speaks_of_processes_and_not_of_constructors():
    with this_host().spawn_procs({"gpus": 2}) as procs:
        assert procs.spawn("bad", BadConstructor).initialized.get(timeout=LIMIT) is None
    with this_host().spawn_procs({"gpus": 2}, bootstrap=refuse_to_begin) as procs:
        with pytest.raises(ActorError, match="no such device"):
            procs.spawn("counters", Counter).initialized.get(timeout=LIMIT)


class Recursive(Actor):
    @endpoint
    def descend(self, depth):
        def further(left):
            if left == 0:
                raise ValueError("the bottom")
            further(left - 1)

        further(depth)


def test_the_traceback_of_a_recursion_is_short(procs):
    actor = procs.slice(gpus=0).spawn("recursive", Recursive)
    with pytest.raises(ActorError) as info:
        actor.descend.call_one(500).get(timeout=LIMIT)
    text = str(info.value)
    assert "[Previous line repeated 497 more times]" in text and len(text) < 2000, text
