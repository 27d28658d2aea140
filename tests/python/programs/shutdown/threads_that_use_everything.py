import asyncio
import threading

from actors import A, mesh

from monarch.actor import Channel, get_or_spawn_controller, shutdown_context, this_proc

a, local = mesh(), this_proc().spawn("local", A)
port, receiver = Channel.open()


def again_and_again(use):
    try:
        while True:
            use()
    except RuntimeError:
        pass


def use_async():
    async def main():
        while True:
            await a.pid.call()

    asyncio.run(main())


uses = [
    lambda: a.pid.call().get(),
    use_async,
    lambda: local.pid.call_one().get(),
    lambda: port.send(1),
    lambda: receiver.recv().get(),
    lambda: Channel.open()[1].recv().get(),
    lambda: this_proc().spawn("another", A).pid.call_one().get(),
    lambda: next(a.pid.stream()).get(),
    lambda: get_or_spawn_controller("a", A).get(),
]
threads = [threading.Thread(target=again_and_again, args=(use,)) for use in uses]
for thread in threads:
    thread.start()
for _ in range(100):
    a.pid.call().get()
shutdown_context(0.5).get()
for thread in threads:
    thread.join(10)
print([thread.is_alive() for thread in threads].count(True))
