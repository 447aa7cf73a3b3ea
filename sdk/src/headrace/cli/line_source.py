"""Reads standard input in pieces on a thread of its own, so that the loop never waits for it.

A daemon thread, because a read that waits for somebody to type can't be cancelled and must not
keep the program from ending. Bounded: at most `CHUNKS_MAX` pieces lie read and unused.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator

from headrace.cli.line_format import LineFault, split_lines
from headrace.protocol import limits

CHUNK_BYTES = 256 << 10
"""Bytes asked for by one read."""

CHUNKS_MAX = 8
"""Pieces read ahead."""

LINE_BYTES_MAX = limits.BATCH_BYTES_MAX
"""Longest line: no batch can hold more."""


class LineSource:
    """Lines of a file descriptor, a list for each piece that was there to read."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._room = threading.Semaphore(CHUNKS_MAX)
        self.bytes_read = 0
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    @property
    def idle(self) -> bool:
        """Whether nothing more has been read yet: a good moment to settle what was sent."""
        return self._chunks.empty()

    async def lines(self) -> AsyncIterator[list[bytes]]:
        """Whole lines as they come; a last line without its newline counts.

        Raises:
            LineFault: a line longer than any batch, or the input can't be read.
        """
        kept = b""
        while chunk := await self._next():
            self.bytes_read += len(chunk)
            lines, kept = split_lines(kept, chunk)
            if lines:
                yield lines
            if len(kept) > LINE_BYTES_MAX:
                raise LineFault(f"longer than {LINE_BYTES_MAX:,} bytes, more than a batch holds")
        if kept:
            yield [kept]

    async def _next(self) -> bytes:
        chunk = await self._chunks.get()
        self._room.release()
        if isinstance(chunk, OSError):
            raise LineFault(f"standard input can't be read: {chunk.strerror}")
        return chunk

    def _read(self) -> None:
        while True:
            self._room.acquire()
            try:
                chunk: bytes | OSError = os.read(self._fd, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:  # the loop is closed: nobody wants more
                return
            if not chunk or isinstance(chunk, OSError):
                return
