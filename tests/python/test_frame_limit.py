"""Messages larger than ``codec_max_frame_length`` are rejected where they would be sent."""

import pytest
from script_run import Run

import monarch.actor
from monarch.actor import Actor, Channel, SupervisionError, endpoint, this_host
from monarch.config import configured

LIMIT = 30
MAX = 100_000
SMALL, LARGE = b"x" * (MAX // 2), b"x" * (2 * MAX)
TEXT = r"rejected an oversized frame: the message has 20\d{4} bytes, at most 100000 are allowed"


class Sizes(Actor):
    def __init__(self, data=b""):
        self.seen = [len(data)]

    @endpoint
    def take(self, data):
        self.seen.append(len(data))

    @endpoint
    def give(self, size):
        return bytes(size)

    @endpoint
    def lengths(self):
        return self.seen

    @endpoint
    def pass_on(self, port, size):
        port.send(bytes(size))


@pytest.fixture(scope="module")
def sizes():
    with configured(codec_max_frame_length=MAX):
        procs = this_host().spawn_procs(per_host={"gpus": 2})
        yield procs.spawn("sizes", Sizes)
        procs.stop().get(timeout=LIMIT)


@pytest.mark.feature(71, "too large is refused")
@pytest.mark.parametrize("way", ["bytes", "array", "pickle"])
def test_a_call_fails_and_nothing_arrives(sizes, way):
    array = pytest.importorskip("numpy").frombuffer(LARGE, "u1")
    argument = {"bytes": LARGE, "array": array, "pickle": [[LARGE]]}[way]
    before = list(sizes.lengths.call().get(timeout=LIMIT).values())
    future = sizes.take.call(argument)
    with pytest.raises(SupervisionError, match=TEXT):
        future.get(timeout=LIMIT)
    assert list(sizes.lengths.call().get(timeout=LIMIT).values()) == before


@pytest.mark.feature(71)
def test_what_has_no_future_raises_at_once(sizes):
    one = sizes.slice(gpus=0)
    before = one.lengths.call_one().get(timeout=LIMIT)
    port, receiver = Channel.open()
    for send in (
        lambda: one.take.broadcast(LARGE),
        lambda: port.send(LARGE),
        lambda: monarch.actor.this_proc().spawn("large", Sizes, LARGE),
    ):
        with pytest.raises(SupervisionError, match=TEXT):
            send()
    one.take.broadcast(SMALL)
    assert one.lengths.call_one().get(timeout=LIMIT) == [*before, len(SMALL)]
    port.send(1)
    assert receiver.recv().get(timeout=LIMIT) == 1


@pytest.mark.feature(71, "too large is refused")
def test_an_answer_that_is_too_large_fails_the_call_and_the_actor_lives(sizes):
    assert len(sizes.slice(gpus=1).give.call_one(len(SMALL)).get(timeout=LIMIT)) == len(SMALL)
    with pytest.raises(SupervisionError, match=TEXT):
        sizes.slice(gpus=1).give.call_one(len(LARGE)).get(timeout=LIMIT)
    assert sizes.lengths.call().get(timeout=LIMIT)


@pytest.mark.feature(71)
def test_an_actor_that_sends_one_sees_the_exception(sizes):
    from monarch.actor import ActorError

    port, receiver = Channel.open()
    with pytest.raises(ActorError, match=TEXT):
        sizes.slice(gpus=1).pass_on.call_one(port, len(LARGE)).get(timeout=LIMIT)
    sizes.slice(gpus=1).pass_on.call_one(port, 3).get(timeout=LIMIT)
    assert receiver.recv().get(timeout=LIMIT) == bytes(3)


@pytest.mark.feature(71)
def test_the_limit_of_the_moment_counts(sizes):
    one = sizes.slice(gpus=0)
    with configured(codec_max_frame_length=len(LARGE) + 10_000):
        one.take.call_one(LARGE).get(timeout=LIMIT)
    with pytest.raises(SupervisionError, match=TEXT):
        one.take.call_one(LARGE).get(timeout=LIMIT)


@pytest.mark.feature(71, 78)
def test_the_limit_comes_from_the_environment_and_holds_in_workers():
    env = {"HYPERACTOR_CODEC_MAX_FRAME_LENGTH": str(MAX)}
    run = Run("""
class Sizes(Actor):
    @endpoint
    def give(self, size):
        return bytes(size)
one = this_host().spawn_procs().spawn("sizes", Sizes)
one.give.call_one(50_000).get()
try:
    one.give.call_one(200_000).get()
except SupervisionError as error:
    print("at most 100000 are allowed" in str(error))
""", env=env).ok()  # fmt: skip
    assert run.out == "True\n"
