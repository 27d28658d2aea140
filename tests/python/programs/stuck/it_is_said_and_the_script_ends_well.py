import threading

from monarch.actor import Actor, Channel, SupervisionError, endpoint, this_host


class Stuck(Actor):
    @endpoint
    def hang(self, port):
        port.send(1)
        threading.Event().wait()


port, receiver = Channel.open()
actor = this_host().spawn_procs().spawn("mine", Stuck)
call = actor.hang.call_one(port)
receiver.recv().get()
actor.stop("enough").get()
try:
    call.get()
except SupervisionError as error:
    print("stopped: enough" in str(error))
