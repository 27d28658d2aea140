"""Named controllers: one actor for each name, in the script's process."""

import asyncio
import os
import threading

import pytest
from script_run import Run, program

from monarch.actor import Actor, ActorError, SupervisionError, context, endpoint, get_or_spawn_controller

LIMIT = 30


class Registry(Actor):
    """Counts how often it was made, in the process where it is."""

    made = 0

    def __init__(self, start=0):
        Registry.made += 1
        self.value = start

    @endpoint
    def add(self, by=1):
        self.value += by
        return self.value

    @endpoint
    def where(self):
        return os.getpid(), Registry.made, str(context().actor_instance), dict(context().message_rank)

    @endpoint
    def fail(self):
        raise SystemExit("enough")

    @endpoint
    def end(self):
        context().actor_instance.stop("enough")


class AsyncRegistry(Actor):
    @endpoint
    async def other(self, name):
        controller = await get_or_spawn_controller(name, Registry, 10)
        return await controller.add.call_one()


class Broken(Actor):
    def __init__(self):
        raise ValueError("no such device")

    @endpoint
    def ping(self):
        return 1


class Asker(Actor):
    @endpoint
    def ask(self, name, start=0):
        return get_or_spawn_controller(name, Registry, start).get(timeout=LIMIT).add.call_one().get(timeout=LIMIT)

    @endpoint
    async def ask_async(self, name):
        return await (await get_or_spawn_controller(name, Registry)).add.call_one()

    @endpoint
    def ask_many(self, name, count):
        futures = [get_or_spawn_controller(name, Registry) for _ in range(count)]
        return [future.get(timeout=LIMIT).add.call_one().get(timeout=LIMIT) for future in futures]

    @endpoint
    def ask_local(self, name):
        class Local(Actor):
            @endpoint
            def where(self):
                return os.getpid()

        return get_or_spawn_controller(name, Local).get(timeout=LIMIT).where.call_one().get(timeout=LIMIT)

    @endpoint
    def use(self, controller):
        return controller.add.call_one().get(timeout=LIMIT)


@pytest.fixture()
def askers(procs):
    return procs.spawn("askers", Asker)


@pytest.fixture()
def name(request):
    return request.node.name


def get(name, cls=Registry, *args, **kwargs):
    return get_or_spawn_controller(name, cls, *args, **kwargs).get(timeout=LIMIT)


@pytest.mark.feature(41, "the same from any actor")
def test_the_first_request_makes_it_and_later_arguments_are_ignored(name):
    before = Registry.made
    controller = get(name, Registry, 5)
    assert controller.add.call_one().get(timeout=LIMIT) == 6
    again = get(name, Registry, start=100)
    assert again.add.call_one().get(timeout=LIMIT) == 7
    assert again == controller
    assert get(name + " another").add.call_one().get(timeout=LIMIT) == 1
    assert Registry.made == before + 2


@pytest.mark.feature(41, "in the script's process")
def test_it_lives_in_the_scripts_process_and_is_the_scripts(name, askers):
    pid, _, who, rank = get(name).where.call_one().get(timeout=LIMIT)
    assert pid == os.getpid()
    assert who == f"<root>.<test_controllers.Registry {name}>" and rank == {}
    askers.ask.call(name + " by an actor").get(timeout=LIMIT)
    pid, _, who, _ = get(name + " by an actor").where.call_one().get(timeout=LIMIT)
    assert (pid, who) == (os.getpid(), f"<root>.<test_controllers.Registry {name} by an actor>")


@pytest.mark.feature(41, "concurrent requests")
def test_concurrent_requests_from_everywhere_get_the_same_one(name, askers):
    before = Registry.made
    asked = [
        askers.ask_many.call(name, 20),
        askers.ask.call(name),
        askers.ask_async.call(name),
    ]
    results = []

    def ask():
        results.extend(get(name).add.call_one().get(timeout=LIMIT) for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()

    async def main():
        controllers = await asyncio.gather(*[get_or_spawn_controller(name, Registry) for _ in range(20)])
        return await asyncio.gather(*[controller.add.call_one() for controller in controllers])

    results += asyncio.run(asyncio.wait_for(main(), LIMIT))
    for thread in threads:
        thread.join(LIMIT)
    many, *ones = [future.get(timeout=LIMIT).values() for future in asked]
    results += [value for values in (*many, *ones) for value in values]
    assert sorted(results) == list(range(1, len(results) + 1)) and len(results) == 144
    assert Registry.made == before + 1


@pytest.mark.feature(41, "the same from any actor")
def test_a_controller_travels(name, askers):
    controller = get(name)
    assert sorted(askers.use.call(controller).get(timeout=LIMIT).values()) == [1, 2]


@pytest.mark.feature(41)
def test_a_controller_asks_for_a_controller(name):
    asking = get(name, AsyncRegistry)
    assert asking.other.call_one(name + " inner").get(timeout=LIMIT) == 11
    assert get(name + " inner").add.call_one().get(timeout=LIMIT) == 12


@pytest.mark.feature(41)
def test_a_constructor_that_fails_shows_at_the_first_call_and_hurts_no_other(name):
    broken = get(name, Broken)
    with pytest.raises(SupervisionError, match="no such device"):
        broken.ping.call_one().get(timeout=LIMIT)
    for _ in range(2):
        with pytest.raises(ActorError, match=f"Failure on {name}: .*no such device"):
            get(name, Broken)
    assert get(name + " another").add.call_one().get(timeout=LIMIT) == 1


@pytest.mark.feature(41)
def test_one_that_has_failed_later_is_told(name, askers):
    controller = get(name)
    with pytest.raises(SupervisionError, match="enough"):
        controller.fail.call_one().get(timeout=LIMIT)
    with pytest.raises(ActorError) as raised:
        get(name)
    assert isinstance(raised.value.exception, ValueError)
    assert str(raised.value.exception).startswith(f"Failure on {name}: ")
    assert "enough" in str(raised.value)
    with pytest.raises(ActorError, match=f"Failure on {name}"):
        askers.slice(gpus=0).ask.call_one(name).get(timeout=LIMIT)


@pytest.mark.feature(41)
def test_one_that_was_stopped_is_made_anew(name):
    first = get(name, Registry, 5)
    first.end.call_one().get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match="stopped: enough"):
        while True:
            first.add.call_one().get(timeout=LIMIT)
    second = get(name, Registry, 50)
    assert second != first
    assert second.add.call_one().get(timeout=LIMIT) == 51


@pytest.mark.feature(41)
def test_wrong_requests_raise_here(name):
    with pytest.raises(ValueError, match="must subclass"):
        get_or_spawn_controller(name, int)
    with pytest.raises(TypeError, match="too many positional arguments"):
        get_or_spawn_controller(name, Registry, 1, 2)
    with pytest.raises(TypeError, match="cannot pickle"):
        get_or_spawn_controller(name, Registry, threading.Lock())
    assert get(name).add.call_one().get(timeout=LIMIT) == 1


@pytest.mark.feature(41)
def test_a_class_that_only_a_worker_knows_goes_by_value(name, askers):
    assert askers.slice(gpus=0).ask_local.call_one(name).get(timeout=LIMIT) == os.getpid()


# Nothing but the script's own definitions; the first thing that it does is to ask.
OF_MAIN = program("controllers/of_main.py")


@pytest.mark.feature(41)
@pytest.mark.parametrize("way", ["fork", "exec", "unix"])
def test_a_class_of_main_shares_the_scripts_globals(way):
    run = Run(OF_MAIN, way=way).ok()
    assert run.out == "['script', 'worker', 'worker'] ['script', 'worker', 'worker']\n"


@pytest.mark.feature(41)
def test_a_script_with_a_controller_ends_at_once_and_its_clean_up_runs():
    run = Run("""
class Last(Actor):
    @endpoint
    def ping(self):
        return 1
    def __cleanup__(self, exc):
        print("cleaned up", exc)
get_or_spawn_controller("last", Last).get().ping.call_one().get()
import atexit
atexit.register(lambda: print("before"))
""").ok()
    assert run.out == "before\ncleaned up None\n"


def test_another_class_under_a_name_that_is_taken_gives_the_first_and_warns():
    Run(program("controllers/another_class_under_a_name_that_is_taken_gives_the_first_and_warns.py")).ok()
