"""Ping-pong: two meshes of actors that call each other.

At each table a player of the mesh `pings` plays against the player of the mesh `pongs` that has the same rank. A handle
of a mesh is a value like any other: the script makes both meshes, then tells each of the other.

    python examples/ping_pong.py
"""

from monarch.actor import Actor, Channel, Port, concurrent_endpoint, current_rank, endpoint, this_host

TABLES = 2


class Player(Actor):
    def __init__(self, word: str):
        self.word = word
        self.opponent = None
        # In a constructor, the place in the mesh that was spawned. In an endpoint it would be the place in the slice
        # that was called: for a single actor, picked from its mesh, always rank 0.
        self.table = current_rank()

    @endpoint
    def meet(self, others: "Player") -> None:
        """Called once, before the game. What arrives is a handle, that of the whole other mesh; it can be sliced."""
        self.opponent = others.slice(**self.table)

    @concurrent_endpoint
    async def rally(self, hits: int) -> list[str]:
        """Hits the ball, and answers with all that was heard until it lay still.

        The opponent calls back before it answers. An ordinary endpoint handles one message after the other: the call
        back would wait for this call to end, and this one for it. Calls of a concurrent endpoint overlap.
        """
        if hits == 1:
            return [self.word]
        return [self.word, *await self.opponent.rally.call_one(hits - 1)]

    @endpoint
    def hit(self, heard: int, hits: int, umpire: Port[str]) -> None:
        """The same game with messages that nobody waits for. So this needs no concurrency.

        The last player tells the umpire, through a port that came along with the ball.
        """
        if heard + 1 < hits:
            self.opponent.hit.broadcast(heard + 1, hits, umpire)
        else:
            umpire.send(f"table {self.table.rank}: {self.word} was the last of {hits}")


def main() -> None:
    # Two meshes of processes, so that every player has one of its own. (Actors may share processes, too.)
    pings = this_host().spawn_procs(per_host={"tables": TABLES}).spawn("pings", Player, "ping")
    pongs = this_host().spawn_procs(per_host={"tables": TABLES}).spawn("pongs", Player, "pong")
    pings.meet.call(pongs).get()
    pongs.meet.call(pings).get()

    # One call to the mesh is a game at every table, and its answers come in the order of the tables.
    for point, words in pings.rally.call(6).get().items():
        print(f"table {point.rank}: {' '.join(words)}")

    # The script has the receiving end of the port. Whoever has the other end, or a copy of it, can send.
    umpire, verdicts = Channel[str].open()
    pongs.hit.broadcast(0, 1000, umpire)
    for verdict in sorted(verdicts.recv().get() for _ in range(TABLES)):
        print(verdict)


if __name__ == "__main__":
    main()
