"""The dining philosophers: five at a round table, five forks, and two forks needed to eat.

First everybody takes the fork at the left, and then waits for the one at the right, for ever; a deadline ends that.
Then, at a new table, the waiter hands out the forks in pairs, and everybody eats.

Philosophers and waiter are async actors: while one of their endpoints awaits something, they cost no thread.

    python examples/dining_philosophers.py
"""

import asyncio

from monarch.actor import Actor, DeadlineExceeded, concurrent_endpoint, current_rank, deadline, endpoint, this_host

SEATS, MEALS = 5, 20


class Waiter(Actor):
    """Keeps the forks. Fork `n` lies at the left of seat `n`."""

    def __init__(self, seats: int):
        self.holder: list[int | None] = [None] * seats  # of each fork: the seat that has it
        self.meals = [0] * seats
        self.returned = asyncio.Condition()  # notified when forks have been put back

    @concurrent_endpoint
    async def take(self, seat: int, *forks: int) -> None:
        """Waits until all these forks lie on the table, then gives them to that seat, all or none.

        Concurrent, because others must be able to put back theirs while this one waits. All its calls run on the one
        thread of this actor and change places only at an `await`: between the test and the assignment nobody comes.
        """
        async with self.returned:
            await self.returned.wait_for(lambda: all(self.holder[fork] is None for fork in forks))
            for fork in forks:
                self.holder[fork] = seat
            self.meals[seat] += len(forks) == 2  # with one fork nobody eats

    @concurrent_endpoint
    async def put_back(self, seat: int) -> None:
        async with self.returned:
            self.holder = [None if holder == seat else holder for holder in self.holder]
            self.returned.notify_all()

    @endpoint
    async def state(self) -> tuple[list[int | None], list[int]]:
        return self.holder, self.meals


class Philosopher(Actor):
    def __init__(self, waiter: Waiter):
        self.waiter = waiter
        self.seat = current_rank()["seats"]
        self.left, self.right = self.seat, (self.seat + 1) % current_rank().size("seats")

    @endpoint
    async def take_left(self) -> None:
        await self.waiter.take.call_one(self.seat, self.left)

    @endpoint
    async def take_right(self) -> None:
        await self.waiter.take.call_one(self.seat, self.right)

    @endpoint
    async def dine(self, meals: int) -> None:
        for _ in range(meals):
            await self.waiter.take.call_one(self.seat, self.left, self.right)
            await asyncio.sleep(0)  # eats
            await self.waiter.put_back.call_one(self.seat)


async def main() -> None:
    # `with` stops the processes at its end. Without it they end with the script.
    async with this_host().spawn_procs(per_host={"seats": SEATS}) as chairs, this_host().spawn_procs() as kitchen:
        waiter = kitchen.spawn("waiter", Waiter, SEATS)
        philosophers = chairs.spawn("philosophers", Philosopher, waiter)
        await philosophers.take_left.call()
        holders, _ = await waiter.state.call_one()
        print(f"forks are held by {holders}")
        try:
            with deadline(0.5):
                await philosophers.take_right.call()
        except DeadlineExceeded:
            print("everybody has one fork and nobody eats")

        # The deadline has gone along with the calls that the philosophers made on behalf of this one, and cancels those
        # as well, but each process is a little later than its caller: who puts forks back now may still be given one.
        waiter = kitchen.spawn("second_waiter", Waiter, SEATS)
        philosophers = chairs.spawn("second_philosophers", Philosopher, waiter)
        await philosophers.dine.call(MEALS)
        holders, meals = await waiter.state.call_one()
        print(f"with a waiter: meals {meals}, forks are held by {holders}")


if __name__ == "__main__":
    asyncio.run(main())
