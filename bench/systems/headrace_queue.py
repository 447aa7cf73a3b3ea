"""Headrace: `send_many`, `enqueue`, `fetch`, `async for`."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import platform
from collections.abc import AsyncIterator
from pathlib import Path

from own_broker import own_broker

from headrace.cli.bench.workload import chunks
from headrace.cli.dev_cluster import DevCluster, missing_broker_extra
from headrace.protocol.errors import BufferFull
from headrace.sdk import Admin, Consumer, Producer
from systems.base import (
    CONSUMING,
    PRODUCING,
    STALLED_S,
    VALUES,
    Level,
    OnValue,
    Over,
    Send,
    SendOne,
    Stalled,
    System,
    Work,
    background,
)

LISTS_OF = 10_000
"""Records a `send_many` call, and at most a `fetch`."""

CALLS_IN_FLIGHT = 2
ENQUEUE_RUN = 500

INTERVAL = Level(
    acks="all, idempotent", flush="every 1 s", works=PRODUCING | CONSUMING | {Work.LATENCY}
)
FLUSHED = Level(
    acks="all, idempotent",
    flush="fdatasync before the ack",
    works=PRODUCING | {Work.LATENCY},
)


class Headrace(System):
    """One broker, started as `headrace dev` starts it."""

    name = "Headrace"
    levels = (INTERVAL, FLUSHED)
    records = {
        Work.BULK: 500_000,
        Work.EACH: 300_000,
        Work.LISTS: 500_000,
        Work.ITERATE: 500_000,
    }

    def __init__(self) -> None:
        self._stack = contextlib.AsyncExitStack()
        self._cluster: DevCluster | None = None

    def check(self) -> None:
        """The broker's own packages; it is no peer that may be missing."""
        if missing := missing_broker_extra():
            raise SystemExit(missing)

    async def start(self, folder: Path) -> None:
        """A broker on free ports."""
        self._cluster = await self._stack.enter_async_context(own_broker(folder))
        self._admin = await self._stack.enter_async_context(Admin(self._cluster.bootstrap))

    async def stop(self) -> None:
        """Drain and stop it."""
        await self._stack.aclose()

    def versions(self) -> str:
        """One version for both sides."""
        return f"{importlib.metadata.version('headrace')}, Python {platform.python_version()}"

    def server_pid(self) -> int:
        """The broker's."""
        assert self._cluster is not None
        pid = self._cluster.pid(0)
        assert pid is not None, "the broker died"
        return pid

    @property
    def _bootstrap(self) -> str:
        assert self._cluster is not None
        return self._cluster.bootstrap

    async def new_stream(self, name: str, level: Level) -> None:
        """A topic with the level's flush policy."""
        policy = "batch" if level is FLUSHED else "interval"
        await self._admin.create_topic(name, partitions=1, config={"flush.policy": policy})

    async def drop_stream(self, name: str) -> None:
        """Delete it."""
        await self._admin.delete_topic(name)

    async def stored(self, name: str) -> int:
        """By the offset at the end."""
        (end,) = (await self._admin.offsets({(name, 0): "latest"})).values()
        return end.offset or 0

    @contextlib.asynccontextmanager
    async def producer(self, stream: str, level: Level, work: Work) -> AsyncIterator[Send]:
        """`send_many` with two calls under way, or `enqueue` and `ready`."""
        async with Producer(self._bootstrap) as producer:

            async def bulk(records: int) -> None:
                under_way: list[asyncio.Task[object]] = []
                for piece in chunks(VALUES, records, LISTS_OF):
                    if len(under_way) == CALLS_IN_FLIGHT:
                        await under_way.pop(0)
                    under_way.append(asyncio.ensure_future(producer.send_many(stream, piece)))
                    await asyncio.sleep(0)
                await asyncio.gather(*under_way)

            async def each(records: int) -> None:
                enqueue = producer.enqueue
                for piece in chunks(VALUES, records, ENQUEUE_RUN):
                    for value in piece:
                        try:
                            enqueue(stream, value)
                        except BufferFull:
                            await producer.ready()
                            enqueue(stream, value)
                    await producer.ready()
                await producer.flush()

            yield bulk if work is Work.BULK else each

    async def consume(self, stream: str, records: int, work: Work, over: Over) -> int:
        """`fetch` or `async for`."""
        size = count = 0
        async with Consumer(self._bootstrap, stream, offset_reset="earliest") as consumer:
            if work is Work.ITERATE:
                async for record in consumer:
                    size += len(record.value)
                    count += 1
                    if count == records:
                        break
            while count < records:
                got = await consumer.fetch(max_records=LISTS_OF, timeout=STALLED_S)
                if not got:
                    raise Stalled(f"Headrace gave {count:,} of {records:,} records")
                count += len(got)
                size += sum([len(record.value) for record in got])
            over()
        return size

    @contextlib.asynccontextmanager
    async def live(self, stream: str, level: Level, on_value: OnValue) -> AsyncIterator[SendOne]:
        """`enqueue` on one side, `fetch` on the other."""
        async with (
            Producer(self._bootstrap) as producer,
            Consumer(self._bootstrap, stream, offset_reset="earliest") as consumer,
        ):

            async def receive() -> None:
                while True:
                    for record in await consumer.fetch(max_records=1_000):
                        on_value(record.value)

            async with background(receive()):
                yield lambda value: producer.enqueue(stream, value)
                await producer.flush()
