import os
import threading

from actors import A, mesh

from monarch.actor import Channel, SupervisionError, shutdown_context, this_proc

a, local = mesh(), this_proc().spawn("local", A)
arrived = [a.large.call(), a.slice(gpus=0).pid.call_one(), local.large.call_one()]
for future in arrived:
    while not future._ready():
        pass
port, receiver = Channel.open()
port.send("arrived")
came, never = receiver.recv(), Channel.open()[1].recv()
pending, local_pending = a.block.call(), local.block.call_one()
waited: list[str] = []


def wait():
    try:
        pending.get()
    except SupervisionError as error:
        waited.append(str(error))


thread = threading.Thread(target=wait)
thread.start()
shutdown_context(0.2).get()
thread.join()
assert "this process is ending" in waited[0] or "Killed" in waited[0] or "stopped" in waited[0], waited
assert arrived[0].get().values() == [(b"x" * 1_000_000, [1])] * 2
assert arrived[2].get() == (b"x" * 1_000_000, [1]) and type(arrived[1].get()) is int
assert came.get() == "arrived" and came.exception() is None
for future in pending, never:
    assert isinstance(future.exception(timeout=10), RuntimeError), future.exception()
print("done")
os._exit(0)  # a local actor is blocked for good
