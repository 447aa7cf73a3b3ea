"""Redis Streams: redis-server with an append-only file, and redis-py with hiredis."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import AsyncIterator
from pathlib import Path

from headrace.cli.bench.workload import chunks
from systems.base import (
    VALUES,
    Level,
    Missing,
    OnValue,
    Over,
    Send,
    SendOne,
    Stalled,
    System,
    Tasks,
    Work,
    background,
)
from systems.server import Server, find_program, free_port, listens

try:
    import hiredis  # noqa: F401
    import redis.asyncio
except ImportError:
    redis = None

PIPELINE = 1_000
"""XADDs a pipeline."""

LISTS_OF = 1_000
"""Of an XREAD: 327,000 records/s, against 244,000 with 10,000."""

BLOCK_MS = 1_000
"""Of a waiting XREAD; below the client's socket timeout."""

LEVEL = Level(
    acks="in memory",
    flush="every 1 s",
    works=frozenset({Work.BULK, Work.LISTS, Work.LATENCY}),
    settings="pipelines of 1,000; no rewriting of the file during the run",
)


class Redis(System):
    """One server; every stream a key."""

    name = "Redis Streams"
    levels = (LEVEL,)
    records = {Work.BULK: 60_000, Work.LISTS: 100_000}

    def check(self) -> None:
        """Client and server."""
        if redis is None:
            raise Missing("redis[hiredis] is not installed (bench/requirements.txt)")
        self._program = find_program("redis-server", package="redis-server")

    async def start(self, folder: Path) -> None:
        """Append-only, synced every second, no snapshots."""
        port = free_port()
        options = {
            "bind": "127.0.0.1",
            "port": port,
            "dir": folder,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "auto-aof-rewrite-percentage": 0,
        }
        arguments = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        self._server = Server([self._program, *arguments], log=folder / "redis.log", environment={})
        await self._server.until(listens(port))
        self._client = redis.asyncio.Redis(host="127.0.0.1", port=port)
        self._version = (await self._client.info("server"))["redis_version"]

    async def stop(self) -> None:
        """Close the client, stop the server."""
        await self._client.aclose()
        await self._server.stop()

    def versions(self) -> str:
        """Server and client."""
        client, parser = map(importlib.metadata.version, ("redis", "hiredis"))
        return f"{self._version}, redis-py {client} (hiredis {parser})"

    def server_pid(self) -> int:
        """The server's."""
        return self._server.pid

    async def new_stream(self, name: str, level: Level) -> None:
        """The first XADD makes it."""

    async def drop_stream(self, name: str) -> None:
        """Free the memory in the background."""
        await self._client.unlink(name)

    async def stored(self, name: str) -> int:
        """XLEN."""
        return int(await self._client.xlen(name))

    @contextlib.asynccontextmanager
    async def producer(self, stream: str, level: Level, work: Work) -> AsyncIterator[Send]:
        """Pipelines of XADD, one after the other; each is awaited, as its answers are the acks."""

        async def bulk(records: int) -> None:
            for piece in chunks(VALUES, records, PIPELINE):
                pipeline = self._client.pipeline(transaction=False)
                for value in piece:
                    pipeline.xadd(stream, {b"v": value})
                await pipeline.execute()

        yield bulk

    async def consume(self, stream: str, records: int, work: Work, over: Over) -> int:
        """XREAD with COUNT."""
        size = count = 0
        last = b"0"
        while count < records:
            answer = await self._client.xread({stream: last}, count=LISTS_OF)
            if not answer:
                raise Stalled(f"Redis gave {count:,} of {records:,} records")
            entries = entries_of(answer)
            size += sum([len(fields[b"v"]) for _, fields in entries])
            count += len(entries)
            last = entries[-1][0]
        over()
        return size

    @contextlib.asynccontextmanager
    async def live(self, stream: str, level: Level, on_value: OnValue) -> AsyncIterator[SendOne]:
        """An XADD in a task for each record; a blocking XREAD on the other side."""

        async def receive() -> None:
            last = b"0"
            while True:
                answer = await self._client.xread({stream: last}, count=1_000, block=BLOCK_MS)
                if answer:
                    entries = entries_of(answer)
                    last = entries[-1][0]
                    for _, fields in entries:
                        on_value(fields[b"v"])

        async with background(receive()):
            tasks = Tasks()
            yield lambda value: tasks.start(self._client.xadd(stream, {b"v": value}))
            await tasks.finish()


def entries_of(answer: object) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Of the one stream; a list of pairs or a mapping, by the protocol's version."""
    if isinstance(answer, dict):
        (entries,) = answer.values()
        return entries[0] if len(entries) == 1 and isinstance(entries[0], list) else entries
    return answer[0][1]  # type: ignore[index]
