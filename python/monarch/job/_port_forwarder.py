"""TCP connections from one mesh of processes to another: ``PortForwarder``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from monarch.actor import Actor, ActorError, Point, ProcMesh, concurrent_endpoint, current_rank, endpoint

__all__ = ["PortForwarder"]

_LOOPBACK = "127.0.0.1"
_CHUNK = 1 << 18  # bytes under way in each direction of a connection


class PortForwarder(Actor):
    """Relays TCP connections between processes, through the messages of actors: no route between them is needed."""

    @endpoint
    async def forward(
        self,
        dst_proc_mesh: ProcMesh,
        dst_port: int | Callable[[Point], int],
        src_proc_mesh: ProcMesh,
        src_address: str | Callable[[Point], str],
    ) -> None:
        """Whoever connects to ``src_address`` beside ``src_proc_mesh``, reaches ``dst_port`` beside ``dst_proc_mesh``.

        Rank by rank. Answers when all listen, and goes on as long as this actor and the processes live. A connection
        that cannot be made there is closed here, and stderr says so, until one can.

        Args:
            dst_proc_mesh: where connections go on from, to what listens on their loopback interface (127.0.0.1).
            dst_port: at which port, or a function that is given the point of the process.
            src_proc_mesh: where addresses are listened at, as many processes in the same shape.
            src_address: ``HOST:PORT``, of an interface there, an address of IPv6 in brackets (``127.0.0.1:8080`` is for
                their own machine only); or a function that is given the point.

        Another shape, no port number, no address: ``ValueError``. An address that is taken: ``OSError``.
        """
        if list(dst_proc_mesh.sizes.values()) != list(src_proc_mesh.sizes.values()):
            raise ValueError(
                f"ports are forwarded point by point: {dst_proc_mesh.sizes} and {src_proc_mesh.sizes} are not the same "
                "shape"
            )
        ports = [check_port(_at(dst_port, point)) for point in _points(dst_proc_mesh)]
        addresses = [split_address(_at(src_address, point)) for point in _points(src_proc_mesh)]
        exits = dst_proc_mesh.spawn("port_exits", _Exit, ports)
        entrances = src_proc_mesh.spawn("port_entrances", _Entrance, addresses, exits)
        try:
            await entrances.listen.call()
        except ActorError as error:
            raise error.exception from None


def _points(mesh: ProcMesh) -> list[Point]:
    extent = mesh.extent
    return [Point(rank, extent) for rank in range(len(mesh))]


def _at(value: Any, point: Point) -> Any:
    return value(point) if callable(value) else value


def _why(error: OSError) -> str:
    """In the system's words, without the address that asyncio adds."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)


def check_port(port: Any) -> int:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 1 << 16:
        raise ValueError(f"dst_port must be an integer from 1 through 65535, but is {port!r}")
    return port


def split_address(address: Any) -> tuple[str, int]:
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not colon:
        raise ValueError(f"src_address must use 'address:port' form, such as '127.0.0.1:6006', but is {address!r}")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"src_address port must be an integer from 1 through 65535, but the address is {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


class _Exit(Actor):
    """Connects to where they are to go, and reads and writes there for the entrance of the same rank."""

    def __init__(self, ports: list[int]) -> None:
        self._address = _LOOPBACK, ports[current_rank().rank]
        self._last = 0
        self._is_told = False  # that nobody is there
        self._open: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    @concurrent_endpoint
    async def connect(self) -> int | None:
        """A number for a new connection; None: there is nobody."""
        try:
            pair = await asyncio.open_connection(*self._address)
        except OSError as error:
            if not self._is_told:
                host, port = self._address
                print(f"a forwarded port leads to {host}:{port}: {_why(error)}", file=sys.stderr, flush=True)
            self._is_told = True
            return None
        self._is_told = False
        self._last += 1
        self._open[self._last] = pair
        return self._last

    @concurrent_endpoint
    async def read(self, number: int) -> bytes | None:
        """What comes next; nothing at its end; None if it is broken."""
        try:
            return await self._open[number][0].read(_CHUNK)
        except (OSError, KeyError):
            return None

    @concurrent_endpoint
    async def write(self, number: int, data: bytes) -> bool:
        """True when there is room for more; False if it is broken. Without data, its end."""
        try:
            writer = self._open[number][1]
            await write_to(writer, data)
        except (OSError, KeyError):
            return False
        return True

    @concurrent_endpoint
    async def close(self, number: int, well: bool) -> None:
        """``well``: both ends have been written; else it breaks."""
        if (pair := self._open.pop(number, None)) is not None:
            close_writer(pair[1], well)

    async def __cleanup__(self, *_: Any) -> None:
        while self._open:
            close_writer(self._open.popitem()[1][1], False)


class _Entrance(Actor):
    """Takes connections, and has each go on from the exit of the same rank."""

    def __init__(self, addresses: list[tuple[str, int]], exits: Any) -> None:
        rank = current_rank().rank
        self._address = addresses[rank]
        flat = exits.flatten("rank") if exits.sizes else exits
        self._exit = flat.slice(rank=rank) if exits.sizes else exits
        self._server: asyncio.Server | None = None

    @endpoint
    async def listen(self) -> None:
        try:
            self._server = await asyncio.start_server(self._serve, *self._address)
        except OSError as error:
            host, port = self._address
            raise OSError(error.errno, f"{host}:{port} cannot be listened at: {_why(error)}") from None

    async def __cleanup__(self, *_: Any) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, well = None, False
        try:
            number = await self._exit.connect.call_one()
            if number is not None:
                well = await self._relay(number, reader, writer)
        except (Exception, asyncio.CancelledError):
            pass  # the other side has died, of which its owner is told; or this actor ends
        finally:
            close_writer(writer, well)
            if number is not None:
                with contextlib.suppress(Exception):
                    self._exit.close.broadcast(number, well)

    async def _relay(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Both ways, until both have ended, or one is broken: False."""
        ways = [asyncio.create_task(self._there(number, reader)), asyncio.create_task(self._back(number, writer))]
        try:
            for way in asyncio.as_completed(ways):
                if not await way:
                    return False
            return True
        finally:
            for task in ways:
                task.cancel()

    async def _there(self, number: int, reader: asyncio.StreamReader) -> bool:
        while True:
            data = await reader.read(_CHUNK)
            if not await self._exit.write.call_one(number, data):
                return False
            if not data:
                return True

    async def _back(self, number: int, writer: asyncio.StreamWriter) -> bool:
        while (data := await self._exit.read.call_one(number)) is not None:
            await write_to(writer, data)
            if not data:
                return True
        return False


async def write_to(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Waits until there is room for more. Without data, ends that direction."""
    if data:
        writer.write(data)
        await writer.drain()
    elif writer.can_write_eof():
        writer.write_eof()


def close_writer(writer: asyncio.StreamWriter, well: bool) -> None:
    """Not ``well``: at once, and the peer is told that it broke."""
    if well:
        writer.close()
    else:
        writer.transport.abort()
