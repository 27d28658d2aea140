"""Actor classes of ``__main__``: decoded once where they arrive, and again when they have changed."""

from script_run import Run, program

PROGRAM = program("classes_by_value/program.py")


def test_the_same_class_is_decoded_once():
    Run(PROGRAM + """
first, second = look(), look()
assert first[0] == second[0] and (first[3], second[3]) == (1, 2), (first, second)
""").ok()  # fmt: skip


def test_a_class_that_has_changed_is_decoded_again_also_when_it_is_changed_back():
    Run(PROGRAM + """
assert look()[1:3] == ("first", "old")
A.label = "second"
assert look()[1:3] == ("second", "old")
A.label = "first"
assert look()[1:3] == ("first", "old")
exec("def helper():\\n    return 'new'", globals())
assert look()[1:3] == ("first", "new")
""").ok()  # fmt: skip


def test_in_the_process_of_the_script_it_is_the_class_itself():
    Run(PROGRAM + """
assert look(this_proc())[3] == 1 and A.seen == 1
assert look(this_proc())[3] == 2 and A.seen == 2
""").ok()  # fmt: skip


def test_what_travels_beside_the_class_may_share_its_variables():
    Run(program("classes_by_value/what_travels_beside_the_class_may_share_its_variables.py")).ok()


def test_a_class_that_comes_back_to_the_script_stays_as_it_is():
    Run("""
import dataclasses
SCALE = 3
@dataclasses.dataclass
class Counter:
    n: int = 0
    def add(self):
        self.n += 1
        return self.n * SCALE
class Odd(Exception):
    pass
class A(Actor):
    @endpoint
    def echo(self, value):
        return value
    @endpoint
    def fail(self):
        raise Odd("odd")
actor = this_host().spawn_procs().spawn("a", A)
add = Counter.add
back = actor.echo.call_one(Counter()).get()
assert type(back) is Counter and Counter.add is add
SCALE = 10
assert back.add() == 10 and Counter(5).add() == 60
error = actor.fail.call_one().exception()
assert type(error.exception) is Odd
import pickle
assert isinstance(pickle.loads(pickle.dumps(Odd("again"))), Odd)
local = this_proc().spawn("local", A)
assert local.echo.call_one(Counter(7)).get() == Counter(7) and Counter.add is add
""").ok()  # fmt: skip


def test_a_class_that_came_with_an_argument_is_what_has_come_last():
    Run("""
class Cfg:
    pass
class A(Actor):
    lr = 1
    def __init__(self, cfg=None):
        pass
    @endpoint
    def rate(self):
        return type(self).lr
procs = this_host().spawn_procs()
def rate(*args):
    return procs.spawn("a", A, *args).rate.call_one().get()
assert rate() == 1
A.lr = 2
assert rate(Cfg()) == 2
A.lr = 1
assert rate() == 1
""").ok()  # fmt: skip
