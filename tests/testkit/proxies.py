"""A TCP proxy in front of a broker, so that tests can cut it off without being root.

The broker advertises the proxy's address, so clients and peers both come through it. Who shows the
cluster's secret on a connection is a peer; that is how peers alone can be cut off. A cut is silent,
as a network's is: nothing is refused, nothing arrives. Healing breaks the connections that hung.
"""

from __future__ import annotations

import asyncio
import contextlib

from headrace.protocol.requests import SECRET_HEADER

PIECE_BYTES = 1 << 16
_SECRET = SECRET_HEADER.lower().encode()


class Proxy:
    """Passes bytes to and fro until it is cut."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._open.set()
        self._cuts_all = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        """What the broker advertises."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self, *, peers_only: bool) -> None:
        """From now on nothing gets through; for peers, or for everybody."""
        self._cuts_all = not peers_only
        self._open.clear()

    def heal(self) -> None:
        """Everything gets through again; connections that hung are broken."""
        was_cut = not self._open.is_set()
        self._open.set()
        if was_cut:
            for task in list(self._tasks):
                task.cancel()

    async def stop(self) -> None:
        """Closes everything."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._relay(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(PIECE_BYTES)
        is_peer = _SECRET in first.lower()
        await self._pass(is_peer=is_peer)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            there_writer.write(first)
            ways = [
                asyncio.ensure_future(self._copy(reader, there_writer, is_peer=is_peer)),
                asyncio.ensure_future(self._copy(there_reader, writer, is_peer=is_peer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        finally:
            there_writer.transport.abort()

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_peer: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                await self._pass(is_peer=is_peer)
                writer.write(piece)
                await writer.drain()

    async def _pass(self, *, is_peer: bool) -> None:
        """Waits for as long as the way is cut."""
        while not self._open.is_set() and (is_peer or self._cuts_all):
            await self._open.wait()
