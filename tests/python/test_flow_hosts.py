"""Back-pressure over a network: who floods an actor of another host waits, and nobody on the way holds what grows."""

import pytest
from script_run import program

HOSTS = program("flow/hosts.py")


@pytest.fixture
def scheme():
    return "tcp"


def test_a_flood_from_the_script_waits_for_a_slow_actor_there(daemons):
    run = daemons[0].run("""
sent = 0
def flood():
    global sent
    for _ in range(600):
        slow.take.broadcast(PIECE)
        sent += 1
flooding = in_thread(flood)
sys.stdin.readline()  # it has said that it waits
assert flooding.is_alive() and sent < 300, sent
assert max(grown()) < 400, grown()
gate.close()
flooding.join()
while slow.taken.call_one().get(timeout=60) < 600:
    pass  # it comes when what is under way has come
assert max(grown()) < 400, grown()
print("all taken")
hosts.stop().get()
""", daemons[1], begin=HOSTS)  # fmt: skip
    assert "message to slow.take has waited for 5 s" in run.err_line(limit=60)
    run.tell("go on\n")
    assert run.line("all taken", limit=60) == ""
    run.done()
    assert run.status == 0


def test_a_flood_from_one_host_to_another_waits_in_the_sender(daemons):
    run = daemons[0].run("""
flooding = first.flood.call_one(slow, 600)
print("begun")
sys.stdin.readline()  # it has said that it waits
assert isinstance(flooding.exception(timeout=0), TimeoutError)
assert max(grown()) < 400, grown()
gate.close()
flooding.get(timeout=60)
while slow.taken.call_one().get(timeout=60) < 600:
    pass  # it comes when what is under way has come
assert max(grown()) < 400, grown()
print("all taken")
hosts.stop().get()
""", daemons[1], begin=HOSTS)  # fmt: skip
    run.line("begun")
    assert "message to slow.take has waited for 5 s" in run.err_line(limit=60)
    run.tell("go on\n")
    assert run.line("all taken", limit=60) == ""
    run.done()
    assert run.status == 0
