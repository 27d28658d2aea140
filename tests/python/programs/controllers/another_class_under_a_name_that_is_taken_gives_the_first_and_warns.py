import warnings

from monarch.actor import Actor, endpoint, get_or_spawn_controller


class First(Actor):
    @endpoint
    def who(self):
        return "first"


class Second(First):
    pass


get_or_spawn_controller("name", First).get()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert get_or_spawn_controller("name", Second).get().who.call_one().get() == "first"
text = str(caught[-1].message)
assert "'name'" in text and "First" in text and "Second" in text, text
