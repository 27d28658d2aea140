import os
import sys

from worker import status_of

from monarch.actor import Actor, Channel, context, endpoint, this_host


class Echo(Actor):
    @endpoint
    def echo(self, x):
        return x

    @endpoint(explicit_response_port=True)
    def later(self, port):
        pid = os.fork()
        if pid == 0:
            del port
            os._exit(0)
        assert status_of(pid) == 0
        port.send("answered")


echo = this_host().spawn_procs().spawn("echo", Echo)
port, receiver = Channel.open()
waiting, answered, ready = receiver.recv(), echo.echo.call_one(1), echo.echo.call_one(2)
assert ready.get() == 2
pid = os.fork()
if pid == 0:
    assert ready.get() == 2
    for use in (
        answered.get,
        waiting.get,
        lambda: port.send(1),
        receiver.recv,
        lambda: echo.echo.call_one(1),
        this_host().spawn_procs,
        context,
        Channel.open,
        lambda: echo.echo.broadcast(1),
    ):
        try:
            use()
        except RuntimeError as error:
            assert "cannot be used in a process made by os.fork()" in str(error), error
        else:
            if use is not context:
                raise AssertionError(use)
    del port, receiver, waiting, answered, ready, echo
    sys.exit(0)
assert status_of(pid) == 0
port.send("through the port")
assert waiting.get(timeout=20) == "through the port" and answered.get(timeout=20) == 1
assert echo.later.call_one().get(timeout=20) == "answered"
