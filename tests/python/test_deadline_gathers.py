"""Deadlines of calls to several ranks, partial gathers, and many deadlines at once."""

import asyncio
import gc
import resource

import pytest
from script_run import Run, program

from monarch.actor import (
    Actor,
    ActorError,
    DeadlineExceeded,
    SupervisionError,
    ValueMesh,
    concurrent_endpoint,
    current_rank,
    deadline,
    endpoint,
    this_host,
)

LIMIT = 30
SHORT = 0.1


class Mixed(Actor):
    """Rank 1 is different."""

    @endpoint
    async def wait(self, x=0):
        rank = current_rank().rank
        if rank == 1:
            await asyncio.Event().wait()
        return rank + x

    @endpoint
    async def fail(self):
        if current_rank().rank == 1:
            raise ValueError("failed")
        return [0]

    @endpoint
    async def exit(self):
        if current_rank().rank == 1:
            import os

            os._exit(3)
        return [0]

    @endpoint
    async def ping(self):
        return "alive"

    @concurrent_endpoint
    async def answer_if(self, wanted):
        if not wanted:
            await asyncio.Event().wait()
        return wanted


@pytest.fixture()
def mesh(procs):
    mixed = procs.spawn("mixed", Mixed)
    mixed.ping.call().get(timeout=LIMIT)  # a short deadline is not for their start
    return mixed


def test_the_ranks_that_have_not_answered_are_named(mesh):
    with pytest.raises(DeadlineExceeded) as raised:
        mesh.wait.options(deadline=SHORT).call().get(timeout=LIMIT)
    assert str(raised.value) == (
        "mixed.wait: the deadline of this call has passed; of 2 ranks these had not answered: 1"
    )
    assert raised.value.endpoint == "mixed.wait" and raised.value.missing_ranks == (1,)
    with pytest.raises(DeadlineExceeded) as of_part:
        mesh.slice(gpus=1).answer_if.options(deadline=SHORT).call_one(False).get(timeout=LIMIT)
    assert of_part.value.missing_ranks == (0,) and of_part.value.stacks is None


def test_one_exception_names_all_and_each_of_several_its_own(mesh):
    late = mesh.answer_if.options(deadline=SHORT)
    with pytest.raises(DeadlineExceeded) as raised:
        late.call(False).get(timeout=LIMIT)
    assert raised.value.missing_ranks == (0, 1)
    each = late.options(partial=True).call(False).get(timeout=LIMIT).values()
    assert [error.missing_ranks for error in each] == [(0,), (1,)]


def test_a_stream_gives_what_came_in_time(mesh):
    first, second = mesh.wait.options(deadline=SHORT).stream(5)
    assert first.get(timeout=LIMIT) == 5
    with pytest.raises(DeadlineExceeded):
        second.get(timeout=LIMIT)


def test_partial_gives_values_and_failures_side_by_side(mesh):
    values = mesh.fail.options(partial=True).call().get(timeout=LIMIT)
    assert isinstance(values, ValueMesh) and values.extent == mesh.extent
    assert values.item(gpus=0) == [0]
    error = values.item(gpus=1)
    assert type(error) is ActorError and type(error.exception) is ValueError
    assert [type(value) for _, value in values] == [list, ActorError]
    assert mesh.ping.options(partial=True).call().get(timeout=LIMIT).values() == ["alive"] * 2


@pytest.mark.parametrize("how", ["option", "block", "await"])
def test_partial_with_a_deadline(mesh, how):
    if how == "option":
        values = mesh.wait.options(deadline=SHORT, partial=True).call(5).get(timeout=LIMIT)
    elif how == "block":
        with deadline(SHORT):
            values = mesh.wait.options(partial=True).call(5).get()
    else:

        async def main():
            with deadline(SHORT):
                return await mesh.wait.options(partial=True).call(5)

        values = asyncio.run(asyncio.wait_for(main(), LIMIT))
    answered, expired = values.values()
    assert answered == 5 and type(expired) is DeadlineExceeded
    assert "these had not answered: 1" in str(expired) and expired.missing_ranks == (1,)


def test_partial_with_a_death():
    short = this_host().spawn_procs(per_host={"gpus": 2}).spawn("short", Mixed)
    answered, dead = short.exit.options(partial=True).call().get(timeout=LIMIT).values()
    assert answered == [0] and type(dead) is SupervisionError
    assert "exited with non-zero code 3" in str(dead)


def test_partial_waits_for_all_and_a_time_out_loses_nothing(mesh):
    future = mesh.slice(gpus=slice(0, 1)).answer_if.options(partial=True).call(False)
    with pytest.raises(TimeoutError):
        future.get(timeout=0.01)
    gathered = mesh.fail.options(partial=True).call()
    with pytest.raises(ValueError):
        raise gathered.get(timeout=LIMIT).values()[1].exception
    assert gathered.get() is gathered.get()


def test_others_are_not_disturbed_when_half_of_a_thousand_expire(mesh):
    calls = []
    for i in range(1000):
        wanted = i % 2 == 0
        seconds = SHORT + (i % 10) / 100 if not wanted else LIMIT
        calls.append((wanted, mesh.slice(gpus=i % 2).answer_if.options(deadline=seconds).call_one(wanted)))
    for wanted, future in calls:
        if wanted:
            assert future.get(timeout=LIMIT) is True
        else:
            with pytest.raises(DeadlineExceeded):
                future.get(timeout=LIMIT)
    assert mesh.ping.call().get(timeout=LIMIT).values() == ["alive"] * 2


def test_deadlines_that_were_met_cost_no_memory(mesh):
    one = mesh.slice(gpus=0)

    def call(times):
        ep = one.ping.options(deadline=3600)
        for _ in range(times):
            with deadline(1800):
                ep.call_one().get()

    call(2000)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call(20_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2048  # KiB


def test_a_flood_in_a_deadline_gives_up_when_there_is_no_room():
    run = Run(program("deadline_gathers/a_flood_in_a_deadline_gives_up_when_there_is_no_room.py")).ok()
    assert run.out == (
        "the deadline has passed while the receiver had no room: nothing was sent\n"
        "slow.block: the deadline of this call has passed\n"
    )


def test_a_port_that_is_full_gives_up_too():
    run = Run(program("deadline_gathers/a_port_that_is_full_gives_up_too.py")).ok()
    assert run.out == "the deadline has passed while the receiver had no room: nothing was sent True True\n"
