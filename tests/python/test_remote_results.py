"""Results that stay where they were made: options(results="remote")."""

import asyncio
import gc
import os
import pickle
import time

import pytest
from script_run import Run

from monarch.actor import Actor, ActorError, RemoteResult, SupervisionError, endpoint, this_host, this_proc

LIMIT = 30


class Maker(Actor):
    def __init__(self):
        self.last = None

    @endpoint
    def make(self, size):
        self.last = bytearray(b"x") * size
        return self.last

    @endpoint
    async def make_async(self, value):
        return value, os.getpid()

    @endpoint
    def fail(self):
        raise ValueError("on purpose")

    @endpoint
    def is_the_same(self, result):
        return result.get() is self.last

    @endpoint
    def length(self, result):
        return len(result.get()), os.getpid()

    @endpoint
    async def length_async(self, result):
        return len(await result)

    @endpoint
    def ask(self, other, size):
        return other.make.options(results="remote").call_one(size).get()

    @endpoint
    def kept(self):
        from monarch._meshes.remote_results import _kept

        return sum(len(results) for results in _kept()._results.values()), dict(_kept()._given_up)

    @endpoint(explicit_response_port=True)
    def by_port(self, port):
        port.send(1)


@pytest.fixture
def makers(procs):
    mesh = procs.spawn("makers", Maker)
    yield mesh
    mesh.stop().get(timeout=LIMIT)


def kept(makers):
    return [count for count, _ in makers.kept.call().get(timeout=LIMIT).values()]


def given_up(makers):
    return [calls for _, calls in makers.kept.call().get(timeout=LIMIT).values()]


def until_kept(makers, wanted):
    gc.collect()
    deadline = time.monotonic() + LIMIT
    while (now := kept(makers)) != wanted:
        assert time.monotonic() < deadline, now
        time.sleep(0.01)


def test_a_handle_comes_back_and_the_result_is_fetched_from_where_it_is(makers):
    results = makers.make.options(results="remote").call(1000).get(timeout=LIMIT)
    assert results.sizes == {"gpus": 2}
    assert all(isinstance(each, RemoteResult) for each in results.values())
    assert kept(makers) == [1, 1]
    assert [each.get(timeout=LIMIT) for each in results.values()] == [bytearray(b"x") * 1000] * 2
    assert len(pickle.dumps(results.values()[0])) < 2000
    assert repr(results.values()[1]) == "RemoteResult(of makers.make, rank 1)"
    del results
    until_kept(makers, [0, 0])


def test_others_fetch_it_without_the_caller(makers):
    first, second = makers.slice(gpus=0), makers.slice(gpus=1)
    result = first.make.options(results="remote").call_one(64 << 20).get(timeout=LIMIT)
    pids = [first.make_async.call_one(0).get(timeout=LIMIT)[1], second.make_async.call_one(0).get(timeout=LIMIT)[1]]
    assert makers.length.call(result).get(timeout=LIMIT).values() == [(64 << 20, pid) for pid in pids]
    assert second.length_async.call_one(result).get(timeout=LIMIT) == 64 << 20
    # Where it was made it is the object itself.
    assert makers.is_the_same.call(result).get(timeout=LIMIT).values() == [True, False]


def test_each_adverb_gives_them(makers):
    remote = makers.make_async.options(results="remote")
    assert asyncio.run(await_all(remote)) == ["a"] * 2
    assert remote.choose("b").get(timeout=LIMIT).get()[0] == "b"
    streamed = [future.get(timeout=LIMIT).get(timeout=LIMIT) for future in remote.stream("c")]
    assert len({pid for _, pid in streamed}) == 2 and {value for value, _ in streamed} == {"c"}
    assert remote.options(results="local").call("d").get(timeout=LIMIT).values()[0][0] == "d"
    assert remote.options(deadline=LIMIT).call("e").get(timeout=LIMIT).values()[0].get()[0] == "e"
    until_kept(makers, [0, 0])


async def await_all(remote):
    return [(await each)[0] for each in (await remote.call("a")).values()]


def test_an_error_is_an_error_and_partial_calls_have_both(makers):
    with pytest.raises(ActorError, match="on purpose"):
        makers.fail.options(results="remote").call().get(timeout=LIMIT)
    values = makers.fail.options(results="remote", partial=True).call().get(timeout=LIMIT).values()
    assert all(isinstance(each, ActorError) for each in values)


def test_calls_that_raise_leave_nothing_to_be_let_go_of_later(makers):
    before = given_up(makers)
    for _ in range(3):
        makers.fail.options(results="remote").call().exception(timeout=LIMIT)
        makers.make.options(results="remote").call(1)
    until_kept(makers, [0, 0])
    assert given_up(makers) == before


def test_it_goes_when_nobody_where_it_was_called_for_has_it(makers):
    before = given_up(makers)
    remote = makers.make.options(results="remote")
    remote.call(10)  # nobody looks
    until_kept(makers, [0, 0])
    future = remote.call(10)
    future.get(timeout=LIMIT)
    one = future.get(timeout=LIMIT).values()[0]
    del future
    gc.collect()
    # One of the handles is enough for all of its call.
    assert kept(makers) == [1, 1] and len(one.get(timeout=LIMIT)) == 10
    borrowed = pickle.loads(pickle.dumps(one))
    del one
    until_kept(makers, [0, 0])
    with pytest.raises(ActorError, match="LookupError: the result is not kept any more"):
        borrowed.get(timeout=LIMIT)
    assert given_up(makers) == before


def test_an_actor_is_a_caller_too(makers):
    first, second = makers.slice(gpus=0), makers.slice(gpus=1)
    arrived = first.ask.call_one(second, 7).get(timeout=LIMIT)
    # What it had is gone with its frame: it has lent what it did not keep.
    until_kept(makers, [0, 0])
    with pytest.raises(ActorError, match="LookupError"):
        arrived.get(timeout=LIMIT)


def test_in_the_same_process(makers):
    here = this_proc().spawn("here", Maker)
    result = here.make.options(results="remote").call_one(5).get(timeout=LIMIT)
    assert result.get() is result.get() and len(result.get()) == 5
    assert makers.length.call(result).get(timeout=LIMIT).values()[1][0] == 5
    here.stop().get(timeout=LIMIT)


def test_the_death_of_its_process_is_told():
    with this_host().spawn_procs() as procs:
        maker = procs.spawn("maker", Maker)
        result = maker.make.options(results="remote").call_one(5).get(timeout=LIMIT)
        os.kill(maker.make_async.call_one(0).get(timeout=LIMIT)[1], 9)
        with pytest.raises(SupervisionError, match=r"Killed\(sig=9\)"):
            result.get(timeout=LIMIT)
        del result


def test_what_was_kept_for_a_caller_that_has_ended_goes(makers):
    with this_host().spawn_procs() as procs:
        caller = procs.spawn("caller", Holder)
        caller.hold.call_one(makers.slice(gpus=0)).get(timeout=LIMIT)
        assert kept(makers) == [1, 0]
    for _ in range(64):  # it is looked for now and then
        makers.make.options(results="remote").call(1).get(timeout=LIMIT)
    until_kept(makers, [0, 0])


class Holder(Actor):
    @endpoint
    def hold(self, maker):
        self.held = maker.make.options(results="remote").call_one(3).get()


@pytest.mark.parametrize(
    "use, error, text",
    [
        (lambda remote: remote.make.options(results="there"), ValueError, "'local' or 'remote'"),
        (lambda remote: remote.by_port.options(results="remote").call(), TypeError, "answers through a port"),
        (lambda remote: remote.make.options(results="remote").broadcast(1), TypeError, "a broadcast has no results"),
        (lambda remote: remote.make.options(results="remote").call(), TypeError, "missing"),
    ],
)
def test_wrong_uses_raise_at_once(makers, use, error, text):
    with pytest.raises(error, match=text):
        use(makers)


def test_a_caller_that_passes_much_on_stays_small():
    run = Run("""
import resource
class Maker(Actor):
    @endpoint
    def make(self, i):
        return bytes(4 << 20)
    @endpoint
    def use(self, result):
        return len(result.get())
procs = this_host().spawn_procs({"gpus": 2})
makers = procs.spawn("makers", Maker)
first, second = makers.slice(gpus=0), makers.slice(gpus=1)
def passes(count):
    for i in range(count):
        result = first.make.options(results="remote").call_one(i).get()
        assert second.use.call_one(result).get() == 4 << 20
passes(8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
passes(200)
print("grown", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
procs.stop().get()
""").ok()  # fmt: skip
    assert int(run.line("grown ")) < 4096  # KiB; it was 800 MiB
