"""NATS JetStream: nats-server with file storage, and nats-py."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import AsyncIterator
from pathlib import Path

from headrace.cli.bench.workload import chunks
from systems.base import (
    CONSUMING,
    STALLED_S,
    VALUES,
    Level,
    Missing,
    OnValue,
    Over,
    Send,
    SendOne,
    System,
    Tasks,
    Work,
    background,
)
from systems.server import Server, find_program, free_port, listens

try:
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType
except ImportError:
    nats = None

LISTS_OF = 1_000
"""Messages a pull; 5,000 made no difference."""

LEVEL = Level(
    acks="stored",
    flush="every 2 min",
    works=CONSUMING | {Work.EACH, Work.LATENCY},
    settings="4,000 publishes under way; no acks by the consumer",
)


class Nats(System):
    """One server; a stream of one subject."""

    name = "NATS JetStream"
    levels = (LEVEL,)
    records = {Work.EACH: 30_000, Work.LISTS: 30_000, Work.ITERATE: 30_000}

    def check(self) -> None:
        """Client and server."""
        if nats is None:
            raise Missing("nats-py is not installed (bench/requirements.txt)")
        self._program = find_program("nats-server", package="nats-server")

    async def start(self, folder: Path) -> None:
        """The defaults, with JetStream's files in the folder."""
        port = free_port()
        command = [self._program, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder)]
        self._server = Server(command, log=folder / "nats.log", environment={})
        await self._server.until(listens(port))
        self._connection = await nats.connect(f"nats://127.0.0.1:{port}")
        self._jetstream = self._connection.jetstream()

    async def stop(self) -> None:
        """Close the client, stop the server."""
        await self._connection.close()
        await self._server.stop()

    def versions(self) -> str:
        """Server and client."""
        server = self._connection.connected_server_version
        number = f"{server.major}.{server.minor}.{server.patch}"
        return f"{number}, nats-py {importlib.metadata.version('nats-py')}"

    def server_pid(self) -> int:
        """The server's."""
        return self._server.pid

    async def new_stream(self, name: str, level: Level) -> None:
        """File storage, limits as they are by default."""
        await self._jetstream.add_stream(name=name, subjects=[name], storage=StorageType.FILE)

    async def drop_stream(self, name: str) -> None:
        """Delete it."""
        await self._jetstream.delete_stream(name)

    async def stored(self, name: str) -> int:
        """The stream's own count."""
        return int((await self._jetstream.stream_info(name)).state.messages)

    @contextlib.asynccontextmanager
    async def producer(self, stream: str, level: Level, work: Work) -> AsyncIterator[Send]:
        """`publish_async`; nats-py has no call for many."""
        jetstream = self._jetstream

        async def each(records: int) -> None:
            for piece in chunks(VALUES, records, LISTS_OF):
                for value in piece:
                    await jetstream.publish_async(stream, value)
            await jetstream.publish_async_completed()

        yield each

    async def consume(self, stream: str, records: int, work: Work, over: Over) -> int:
        """Pulls of many, or a push consumer iterated."""
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
        size = count = 0
        if work is Work.LISTS:
            pull = await self._jetstream.pull_subscribe(stream, stream=stream, config=config)
            while count < records:
                got = await pull.fetch(min(LISTS_OF, records - count), timeout=STALLED_S)
                size += sum([len(message.data) for message in got])
                count += len(got)
            over()
            await pull.unsubscribe()
            return size
        push = await self._jetstream.subscribe(stream, stream=stream, config=config)
        async for message in push.messages:
            size += len(message.data)
            count += 1
            if count == records:
                break
        over()
        await push.unsubscribe()
        return size

    @contextlib.asynccontextmanager
    async def live(self, stream: str, level: Level, on_value: OnValue) -> AsyncIterator[SendOne]:
        """`publish_async` in a task; a push consumer on the other side."""
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, deliver_policy=DeliverPolicy.ALL)
        push = await self._jetstream.subscribe(stream, stream=stream, config=config)

        async def receive() -> None:
            async for message in push.messages:
                on_value(message.data)

        async with background(receive()):
            tasks = Tasks()
            yield lambda value: tasks.start(self._jetstream.publish_async(stream, value))
            await tasks.finish()
            await self._jetstream.publish_async_completed()
        await push.unsubscribe()
