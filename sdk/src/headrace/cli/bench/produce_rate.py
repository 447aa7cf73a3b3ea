"""How many records a second a producer gets acknowledged, in each of the three ways to send."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.cli.bench.workload import POOL_RECORDS, chunks, make_values
from headrace.protocol.errors import BufferFull
from headrace.sdk import Producer

CALLS_IN_FLIGHT = 2
"""`send_many` calls under way at once: while one waits for its answer the next is encoded."""

ENQUEUE_RUN = 500
"""Records enqueued between two turns given to the event loop."""


class ProduceMode(enum.StrEnum):
    """Which call of the producer is measured."""

    SEND_MANY = "send_many"
    ENQUEUE = "enqueue"
    SEND = "send"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one round sends, and how."""

    topic: str
    records: int
    size_bytes: int
    mode: ProduceMode
    batch: int
    senders: int


async def measure_produce(producer: Producer, load: Load) -> dict[str, float]:
    """One round: from the first record handed over until the last is acknowledged."""
    pool = make_values(min(POOL_RECORDS, load.records), load.size_bytes)
    send = _SENDERS[load.mode]
    cpu = time.process_time()
    began = time.perf_counter()
    await send(producer, load, pool)
    await producer.flush()
    elapsed = time.perf_counter() - began
    cpu = time.process_time() - cpu
    return {
        "records_per_s": load.records / elapsed,
        "megabytes_per_s": load.records * load.size_bytes / elapsed / 1e6,
        "client_cpu_us_per_record": cpu / load.records * 1e6,
    }


async def _send_many(producer: Producer, load: Load, pool: list[bytes]) -> None:
    """Calls in order, two under way: the second is encoded while the first is answered."""
    under_way: list[asyncio.Task[object]] = []
    for piece in chunks(pool, load.records, load.batch):
        if len(under_way) == CALLS_IN_FLIGHT:
            await under_way.pop(0)
        under_way.append(asyncio.ensure_future(producer.send_many(load.topic, piece)))
        await asyncio.sleep(0)
    await asyncio.gather(*under_way)


async def _enqueue(producer: Producer, load: Load, pool: list[bytes]) -> None:
    enqueue, topic = producer.enqueue, load.topic
    for piece in chunks(pool, load.records, ENQUEUE_RUN):
        for value in piece:
            try:
                enqueue(topic, value)
            except BufferFull:
                await producer.ready()
                enqueue(topic, value)
        await producer.ready()


async def _send(producer: Producer, load: Load, pool: list[bytes]) -> None:
    """Each sender awaits each of its records before the next."""

    async def sender(records: int) -> None:
        for piece in chunks(pool, records, POOL_RECORDS):
            for value in piece:
                await producer.send(load.topic, value)

    share, extra = divmod(load.records, load.senders)
    await asyncio.gather(*[sender(share + (i < extra)) for i in range(load.senders)])


_SENDERS: dict[ProduceMode, Callable[[Producer, Load, list[bytes]], Awaitable[None]]] = {
    ProduceMode.SEND_MANY: _send_many,
    ProduceMode.ENQUEUE: _enqueue,
    ProduceMode.SEND: _send,
}


async def fill(producer: Producer, topic: str, records: int, size_bytes: int) -> None:
    """Records for a consumer to read."""
    pool = make_values(min(POOL_RECORDS, records), size_bytes)
    for piece in chunks(pool, records, POOL_RECORDS):
        await producer.send_many(topic, piece)
