"""A service's own address: listens there and passes connections to one of its ready pods."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass, field

from kubelet.client import Key

PIECE_BYTES = 1 << 16
CONNECT_TIMEOUT_S = 2.0


@dataclass(slots=True)
class Proxy:
    """One port of one service. `targets` may be replaced at any time."""

    address: str
    port: int
    targets: list[tuple[str, int]] = field(default_factory=list)
    _server: asyncio.Server | None = None
    _turn: itertools.count[int] = field(default_factory=itertools.count)
    _open: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._serve, self.address, self.port)

    async def stop(self) -> None:
        """Ends all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._join(reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        targets = self.targets
        if not targets:
            return
        host, port = targets[next(self._turn) % len(targets)]
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            there, back = await asyncio.open_connection(host, port)
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            back.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


class Proxies:
    """The proxies of all services."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[Key, str, int], Proxy] = {}

    async def keep(self, wanted: dict[tuple[Key, str, int], list[tuple[str, int]]]) -> None:
        """Listens on exactly these (service, address, port), each with its targets."""
        for place in [place for place in self._by_place if place not in wanted]:
            await self._by_place.pop(place).stop()
        for place, targets in wanted.items():
            if place not in self._by_place:
                proxy = Proxy(place[1], place[2])
                with contextlib.suppress(OSError):
                    await proxy.start()
                    self._by_place[place] = proxy
            if place in self._by_place:
                self._by_place[place].targets = targets
