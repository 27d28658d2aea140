"""Python's ``logging`` in the script itself: its records say that they are the root's, where a handler shows them."""

import pytest
from script_run import Run


def lines(source: str) -> list[str]:
    run = Run("import logging\n" + source).done()
    assert run.status == 0, run.err
    return run.err.splitlines()


@pytest.mark.parametrize("first", ["handler", "context"])
def test_records_have_the_prefix_after_the_first_use_of_the_client(first):
    configure = 'logging.basicConfig(level=logging.INFO, format="%(name)s:%(message)s")\n'
    use = "context()\n"
    assert lines(
        (configure if first == "handler" else "")
        + ('logging.getLogger("user").info("before")\n' if first == "handler" else "")
        + use
        + (configure if first == "context" else "")
        + 'logging.getLogger("user").info("after %s", 5)\n'
    ) == (["user:before"] if first == "handler" else []) + ["user:[actor=<root>] after 5"]  # fmt: skip


def test_without_handlers_and_with_older_ones_it_is_as_it_was():
    assert lines("""
user = logging.getLogger("user")
context()
user.warning("nobody handles it")
""") == ["nobody handles it"]  # fmt: skip
    assert lines("""
user = logging.getLogger("user")
user.addHandler(logging.StreamHandler())
context()
user.warning("from before")
logging.getLogger("other").addHandler(logging.StreamHandler())
logging.getLogger("other").warning("from later")
""") == ["from before", "[actor=<root>] from later"]  # fmt: skip


def test_a_record_has_it_once_and_as_an_attribute_and_threads_have_none():
    assert lines("""
context()
root = logging.getLogger()
for name in "ab":
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(name + "<%(actor_prefix)s>%(message)s"))
    root.addHandler(handler)
root.warning("x")
thread = threading.Thread(target=root.warning, args=("in a thread",))
thread.start()
thread.join()
""") == [
        "a<[actor=<root>] >[actor=<root>] x", "b<[actor=<root>] >[actor=<root>] x", "a<>in a thread", "b<>in a thread"
    ]  # fmt: skip


def test_what_an_actor_logs_as_info_is_not_lost():
    assert lines("""
class A(Actor):
    @endpoint
    def f(self):
        logging.info("said")
this_host().spawn_procs().spawn("a", A).f.call_one().get()
""") == ["[procs] INFO:root:[actor=<root>.<__main__.A a>] said"]  # fmt: skip
