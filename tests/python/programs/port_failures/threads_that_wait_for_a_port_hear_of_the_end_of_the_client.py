import asyncio
import threading

from monarch.actor import Channel, shutdown_context

port, receiver = Channel.open()
future, asked = receiver.recv(), threading.Event()


def wait():
    asked.set()
    try:
        future.get()
    except RuntimeError as error:  # SupervisionError if the wait has begun
        print("told:", error)


async def wait_async():
    asked.set()
    try:
        await receiver.recv()
    except RuntimeError as error:
        print("told:", error)


for work in wait, lambda: asyncio.run(wait_async()):
    threading.Thread(target=work).start()
    asked.wait()
    asked.clear()
shutdown_context().get()
