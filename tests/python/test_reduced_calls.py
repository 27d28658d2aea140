"""One value of the answers of all ranks: options(reduce=...)."""

import math
import os
import signal
import threading

import numpy
import pytest

from monarch.actor import Actor, ActorError, Channel, SupervisionError, context, endpoint, send, this_host

LIMIT = 30


class Loss(Actor):
    @endpoint
    def of_rank(self, values):
        return values[self.rank()]

    @endpoint
    async def of_rank_later(self, values):
        return values[self.rank()]

    @endpoint
    def array(self, dtype, shape=(3,)):
        return numpy.full(shape, self.rank() + 1, dtype)

    @endpoint
    def array_in_another_order(self, how):
        array = numpy.arange(6.0).reshape(2, 3)
        if how == "bytes":
            return array.astype(">f8")
        return {"transposed": array.T, "column": array[:, 1], "backwards": array[::-1]}[how]

    @endpoint
    def numbers_of_numpy(self):
        return {"loss": numpy.float32(0.5), "steps": [numpy.int64(2), numpy.bool_(True)]}

    @endpoint
    def unpicklable(self):
        return threading.Lock()

    @endpoint
    def fail(self, who):
        if self.rank() == who:
            raise ValueError("on purpose")
        return 1

    @endpoint
    def kill(self, who):
        if self.rank() == who:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1

    @endpoint(explicit_response_port=True)
    def by_port(self, port):
        port.send(self.rank() + 1)

    def rank(self):
        return context().message_rank.rank


@pytest.fixture
def losses(procs):
    mesh = procs.spawn("losses", Loss)
    yield mesh
    mesh.stop().get(timeout=LIMIT)


def reduced(mesh, reduce, *values):
    return mesh.of_rank.options(reduce=reduce).call(values).get(timeout=LIMIT)


@pytest.mark.parametrize(
    ("reduce", "values", "expected"),
    [
        ("sum", (2, 3), 5),
        ("sum", (2, 0.5), 2.5),
        ("sum", (True, True), 2),
        ("sum", (2**62, 2**62 - 1), 2**63 - 1),
        ("min", (2, 0.5), 0.5),
        ("max", ((1, 5.0), (2, 4.0)), (2, 5.0)),
        ("sum", ({"a": 1, "b": [1, 2]}, {"b": [10, 20], "a": 2}), {"a": 3, "b": [11, 22]}),
        ("count", ("x", object), 2),
        ("all_equal", ({"version": "v2"}, {"version": "v2"}), {"version": "v2"}),
        ("concat", ({1, 2}, "x"), [{1, 2}, "x"]),
    ],
)
def test_a_call_gives_one_value(losses, reduce, values, expected):
    result = reduced(losses, reduce, *values)
    assert result == expected
    assert type(result) is type(expected)


def test_a_nan_is_the_least_and_the_greatest(losses):
    assert math.isnan(reduced(losses, "min", 1.0, math.nan))
    assert math.isnan(reduced(losses, "max", math.nan, 1.0))


MANY = 0.0
for _ in range(40):
    MANY = [MANY, MANY]


@pytest.mark.parametrize(
    ("reduce", "values", "error", "text"),
    [
        ("sum", (1, "x"), TypeError, "reduce='sum' takes numbers, and rank 1 of losses.of_rank returned a str"),
        ("sum", (1, None), TypeError, "reduce='sum' takes numbers, and rank 1 of losses.of_rank returned None"),
        ("sum", (1, 1j), TypeError, "reduce='sum' takes numbers, and rank 1 of losses.of_rank returned a complex"),
        ("sum", (1, 2**70), TypeError, "reduce='sum' takes numbers, and rank 1 of losses.of_rank returned an int beyond"
         " 64 bits"),
        ("sum", ({"loss": 1.0, "g": numpy.ones(3)}, 1), TypeError, "reduce='sum' takes numbers, and rank 0 of "
         "losses.of_rank returned a numpy.ndarray, in a dict"),
        ("max", (1, [1, (2, 2**70)]), TypeError, "reduce='max' takes numbers, and rank 1 of losses.of_rank returned an "
         "int beyond 64 bits, in a tuple"),
        ("sum", ({"n": numpy.float32(1), "a": 1j}, 1), TypeError, "reduce='sum' takes numbers, and rank 0 of "
         "losses.of_rank returned a complex, in a dict"),
        ("sum", (1, MANY), TypeError, "reduce='sum' takes numbers, and rank 1 of losses.of_rank returned a list"),
        ("sum", (1, {"b": [None, object]}), TypeError, "reduce='sum' takes numbers, and rank 1 of losses.of_rank"
         " returned None, in a list"),
        ("sum", (1, numpy.timedelta64(5, "ns")), TypeError, "reduce='sum' takes numbers, and rank 1 of losses.of_rank"
         " returned a numpy.timedelta64"),
        ("min", ([1], [1, 2]), TypeError, "reduce='min' takes values of one shape: rank 0 of losses.of_rank returned a "
         "list of 1, and rank 1 returned a list of 2"),
        ("sum", (2**63 - 1, 1), OverflowError, "reduce='sum' of ints does not fit in 64 bits (losses.of_rank)"),
        ("all_equal", ("a", "b"), ValueError, "reduce='all_equal' takes equal values: rank 0 of losses.of_rank returned"
         " 'a', and rank 1 returned 'b'"),
    ],
)  # fmt: skip
def test_what_cannot_be_combined_says_whose_it_is(losses, reduce, values, error, text):
    future = losses.of_rank.options(reduce=reduce).call(values)
    for _ in range(2):
        with pytest.raises(error) as raised:
            future.get(timeout=LIMIT)
        assert str(raised.value) == text


def test_arrays_are_combined_element_by_element(losses):
    summed = losses.array.options(reduce="sum").call("float32", (2, 3)).get(timeout=LIMIT)
    assert summed.dtype == numpy.float32
    assert (summed == numpy.full((2, 3), 3)).all()
    summed += 1  # it is the caller's
    assert losses.array.options(reduce="max").call("uint8", ()).get(timeout=LIMIT) == 2
    large = losses.array.options(reduce="sum").call("float64", (200_000,)).get(timeout=LIMIT)
    assert (large == 3).all()
    with pytest.raises(TypeError, match="rank 0 of losses.array returned an array of dtype '|b1'"):
        losses.array.options(reduce="sum").call("bool").get(timeout=LIMIT)


@pytest.mark.parametrize("how", ["transposed", "column", "backwards", "bytes"])
def test_arrays_in_another_order_are_combined_too(losses, how):
    total = losses.array_in_another_order.options(reduce="sum").call(how).get(timeout=LIMIT)
    one = losses.slice(gpus=0).array_in_another_order.call_one(how).get(timeout=LIMIT)
    numpy.testing.assert_array_equal(total, 2 * one)


def test_numbers_of_numpy_are_numbers(losses):
    result = losses.numbers_of_numpy.options(reduce="sum").call().get(timeout=LIMIT)
    assert result == {"loss": 1.0, "steps": [4, 2]}
    assert type(result["loss"]) is float


def test_a_count_sends_no_values(losses):
    with pytest.raises(ActorError, match="pickle"):
        losses.unpicklable.call().get(timeout=LIMIT)
    assert losses.unpicklable.options(reduce="count").call().get(timeout=LIMIT) == 2


def test_it_goes_with_async_endpoints_ports_slices_and_deadlines(losses):
    assert losses.of_rank_later.options(reduce="sum", deadline=LIMIT).call((1, 2)).get(timeout=LIMIT) == 3
    assert losses.by_port.options(reduce="sum").call().get(timeout=LIMIT) == 3
    assert losses.slice(gpus=1).of_rank.options(reduce="sum").call((5,)).get(timeout=LIMIT) == 5
    assert losses.of_rank.options(reduce="sum").options(deadline=LIMIT).call((1, 2)).get(timeout=LIMIT) == 3


def test_actors_of_a_swarm_are_ranks_as_others_are(procs):
    swarm = procs.options(per_proc={"actors": 3}).spawn("swarm", Loss)
    assert swarm.of_rank.options(reduce="sum").call(range(6)).get(timeout=LIMIT) == 15
    assert swarm.of_rank.options(reduce="count").call(range(6)).get(timeout=LIMIT) == 6
    swarm.stop().get(timeout=LIMIT)


def test_the_failure_of_a_rank_is_that_of_the_call(losses):
    with pytest.raises(ActorError, match="on purpose") as raised:
        losses.fail.options(reduce="sum").call(1).get(timeout=LIMIT)
    assert raised.value.rank == 1
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
        procs.spawn("mortal", Loss).kill.options(reduce="sum").call(1).get(timeout=LIMIT)
    procs.stop().get(timeout=LIMIT)


def test_what_does_not_go_with_it_is_refused(losses):
    summed = losses.of_rank.options(reduce="sum")
    for adverb in (summed.call_one, summed.choose, summed.stream, summed.broadcast):
        with pytest.raises(TypeError, match=r"losses.of_rank has reduce=, which is for call\(\)"):
            adverb((1, 2))
    port, _ = Channel[int].open()
    with pytest.raises(TypeError, match="has reduce="):
        send(summed, ((1, 2),), {}, port)
    for other in ({"partial": True}, {"results": "remote"}):
        with pytest.raises(TypeError, match="reduce makes one value of the answers of all ranks: it does not go with"):
            losses.of_rank.options(reduce="sum", **other)
        with pytest.raises(TypeError, match="does not go with"):
            summed.options(**other)
    with pytest.raises(ValueError, match="reduce must be one of 'sum', 'min', .* but is 'mean'"):
        losses.of_rank.options(reduce="mean")


# ---- Over several hosts ----

REDUCE = """
from monarch.actor import context

class Loss(Actor):
    @endpoint
    def one(self, value):
        return value
    @endpoint
    def rank(self):
        return context().message_rank.rank
    @endpoint
    def fail(self, who):
        if context().message_rank.rank == who:
            raise ValueError("on purpose")
        return 1
    @endpoint
    def kill(self, who):
        if context().message_rank.rank == who:
            os.kill(os.getpid(), 9)
        return 1
    @endpoint
    def stay(self, who, seconds):
        if context().message_rank.rank == who:
            time.sleep(seconds)
        return 1

losses = hosts.spawn_procs({"gpus": 3}).spawn("losses", Loss)
"""


def run(daemons, text):
    first, second = daemons
    first.run(REDUCE + text + "\nhosts.stop().get()\n", second).ok()


def test_hosts_combine_their_own(daemons):
    run(daemons, """
def call(endpoint, reduce, *args):
    return endpoint.options(reduce=reduce).call(*args).get(timeout=30)

assert call(losses.rank, "sum") == 15
assert call(losses.rank, "max") == 5
assert call(losses.rank, "concat") == list(range(6))
assert call(losses.one, "concat", {"x"}) == [{"x"}] * 6
assert call(losses.one, "count", lambda: 1) == 6
assert call(losses.one, "all_equal", ["v", 2]) == ["v", 2]
assert call(losses.one, "sum", {"a": [1, 2.5]}) == {"a": [6, 15.0]}
try:
    call(losses.rank, "all_equal")
except ValueError as error:
    assert "rank 0 of losses.rank returned 0, and rank 1 returned 1" in str(error), error
try:
    call(losses.one, "sum", 2**61)
except OverflowError as error:
    assert "64 bits" in str(error)
futures = [losses.rank.options(reduce="sum").call() for _ in range(500)]
assert [future.get(timeout=30) for future in futures] == [15] * 500
""")  # fmt: skip


def test_failures_come_as_ever_over_hosts(daemons):
    run(daemons, """
from monarch.actor import ActorError
for who in (0, 4):
    try:
        losses.fail.options(reduce="sum").call(who).get(timeout=30)
    except ActorError as error:
        assert error.rank == who and "on purpose" in str(error)
    else:
        raise AssertionError
future = losses.stay.options(reduce="sum").call(5, 2)
try:
    future.get(timeout=1)
except TimeoutError as error:
    assert error.missing_ranks == (5,), error.missing_ranks
assert future.get(timeout=30) == 6
import monarch.actor
monarch.actor.unhandled_fault_hook = lambda failure: None
try:
    losses.kill.options(reduce="sum").call(4).get(timeout=30)
except SupervisionError as error:
    assert "Killed(sig=9)" in str(error), error
else:
    raise AssertionError
""")  # fmt: skip
