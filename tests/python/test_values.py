"""Values in messages: memory, code by value, and what goes wrong on the way."""

import pytest
from script_run import Run, program

from monarch.actor import Actor, ActorError, endpoint

LIMIT = 30


class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value

    @endpoint
    def kind(self, value):
        return type(value).__name__

    @endpoint
    async def call(self, function, *args):
        return function(*args)


class Sync(Actor):
    @endpoint
    def echo(self, value):
        return value


class ArrivesBroken:
    """Pickles, and does not unpickle."""

    def __reduce__(self):
        return explode, ("on arrival",)


def explode(why):
    raise LookupError(why)


@pytest.fixture(scope="module")
def echo(procs):
    return procs.slice(gpus=0).spawn("echo", Echo)


@pytest.mark.feature(76, "below and above the threshold")
@pytest.mark.parametrize("size", [0, 10, 100_000, 3_000_000])
def test_memory_arrives_as_it_was_sent(echo, size):
    data = bytes(range(256)) * (size // 256)
    for value in (data, bytearray(data), memoryview(data), memoryview(bytearray(data)), [data, memoryview(data)]):
        back = echo.echo.call_one(value).get(timeout=LIMIT)
        assert type(back) is type(value) and back == value


@pytest.mark.feature(76)
def test_a_memoryview_keeps_format_and_shape(echo):
    import array

    sent = memoryview(array.array("d", range(12))).cast("B").cast("d", (3, 4))
    back = echo.echo.call_one(sent).get(timeout=LIMIT)
    assert (back.format, back.shape, back.tolist()) == ("d", (3, 4), sent.tolist())
    every_other = memoryview(b"abcdef")[::2]
    assert echo.echo.call_one(every_other).get(timeout=LIMIT).tobytes() == b"ace"


@pytest.mark.feature(71, "ActorError where it arrives")
@pytest.mark.parametrize("cls", [Echo, Sync])
def test_an_argument_that_does_not_unpickle_is_an_error_of_the_call_and_the_actor_lives(procs, cls):
    actor = procs.slice(gpus=1).spawn("receiver", cls)
    for adverb in ("call_one", "call", "choose"):
        with pytest.raises(ActorError, match="on arrival") as caught:
            getattr(actor.echo, adverb)(ArrivesBroken()).get(timeout=LIMIT)
        assert isinstance(caught.value.exception, LookupError)
    assert actor.echo.call_one(3).get(timeout=LIMIT) == 3


@pytest.mark.feature(71)
def test_a_result_that_does_not_unpickle_raises_at_the_caller_each_time(echo):
    future = echo.call.call_one(ArrivesBroken.__new__, ArrivesBroken)
    for _ in range(2):
        with pytest.raises(LookupError, match="on arrival"):
            future.get(timeout=LIMIT)
    assert echo.echo.call_one(1).get(timeout=LIMIT) == 1


@pytest.mark.feature(74, "classes, lambdas, closures", "tracebacks show the source")
def test_code_of_main_travels_by_value_and_tracebacks_show_its_source():
    done = Run(program("values/code_by_value.py")).ok()
    assert (done.out, done.err) == ("[40, 40]\nTrue True\nTrue\n", "")


@pytest.mark.parametrize("way", ["fork", "unix"])
def test_no_memory_for_a_message_is_an_error_of_that_message_only(way):
    run = Run(program("values/no_memory_for_a_message_is_an_error_of_that_message_only.py"), way=way).done()
    assert run.status == 0, run.err


class Wants2(Exception):
    def __init__(self, code, text):
        super().__init__(code, text)


class Unpicklable:
    def __init__(self, error=None):
        self.error = error or TypeError("it does not travel")

    def __reduce__(self):
        raise self.error


class Takes(Actor):
    def __init__(self, *args, **kwargs):
        pass

    @endpoint
    def take(self, *args, **kwargs):
        pass

    @endpoint
    def give(self):
        return {"inner": [1, Unpicklable()]}


def test_the_culprit_is_named_where_the_user_knows_it(procs):
    takes = procs.slice(gpus=0).spawn("takes", Takes)
    with pytest.raises(TypeError, match=r"cannot pickle attribute|cannot pickle argument 1 \("):
        takes.take.call_one(1, Unpicklable())
    with pytest.raises(TypeError, match=r"cannot pickle argument 'named' \("):
        takes.take.call_one(1, named=Unpicklable())
    with pytest.raises(TypeError, match=r"cannot pickle argument 0\[1\] \("):
        takes.take.call_one([1, Unpicklable()])
    with pytest.raises(TypeError, match=r"cannot pickle argument 0 \("):
        procs.spawn("takes", Takes, Unpicklable())
    with pytest.raises(TypeError, match=r"cannot pickle argument 'named' \("):
        procs.spawn("takes", Takes, named=Unpicklable())
    with pytest.raises(ActorError, match=r"cannot pickle the result\['inner'\]\[1\] \("):
        takes.give.call_one().get(timeout=LIMIT)


def test_an_exception_of_a_class_of_its_own_comes_as_it_is(procs):
    takes = procs.slice(gpus=0).spawn("takes", Takes)
    mine = Wants2(7, "my own")
    with pytest.raises(Wants2) as info:
        takes.take.call_one(Unpicklable(mine))
    assert info.value is mine
