"""What a benchmark runs on: values to send, and a topic of its own that it deletes afterwards."""

from __future__ import annotations

import contextlib
import enum
import random
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from headrace.sdk import Admin

POOL_RECORDS = 10_000
"""Different values made before the clock starts; longer runs send them again."""


class Flush(enum.StrEnum):
    """`flush.policy` of the topic: what has reached the disk when a produce is acknowledged."""

    AUTO = "auto"
    NONE = "none"
    INTERVAL = "interval"
    BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTopic:
    """The topic that a benchmark made, as the broker describes it."""

    name: str
    replicas: int
    flush: str
    broker_version: str


def make_values(count: int, size_bytes: int, *, seed: int = 0) -> list[bytes]:
    """`count` different values of `size_bytes` bytes: random hexadecimal digits, which lz4 and zstd
    bring to about half, as they do much real text. Nothing but the length is told by a value."""
    source = random.Random(seed)
    half = size_bytes // 2 + 1
    return [source.randbytes(half).hex().encode()[:size_bytes] for _ in range(count)]


def chunks(pool: list[bytes], records: int, batch: int) -> Iterator[list[bytes]]:
    """Lists of `batch` values out of the pool, `records` values in all."""
    at = 0
    while records > 0:
        piece = pool[at : at + min(batch, records)]
        at = (at + len(piece)) % len(pool)
        records -= len(piece)
        yield piece


@contextlib.asynccontextmanager
async def bench_topic(
    bootstrap: str, *, partitions: int, replicas: int | None, flush: Flush
) -> AsyncIterator[BenchTopic]:
    """A topic `bench-<random>`, deleted afterwards, however the benchmark ends."""
    name = f"bench-{secrets.token_hex(4)}"
    async with Admin(bootstrap) as admin:
        info = await admin.create_topic(
            name,
            partitions=partitions,
            replicas=replicas,
            config={"flush.policy": flush.value},
        )
        try:
            cluster = await admin.describe_cluster()
            versions = sorted({broker.version for broker in cluster.brokers})
            yield BenchTopic(
                name=name,
                replicas=info.replicas,
                flush=_flush_level(flush, info.replicas),
                broker_version=", ".join(versions),
            )
        finally:
            await admin.delete_topic(name)


def _flush_level(flush: Flush, replicas: int) -> str:
    """What `auto` comes to: batch on one replica, interval on more."""
    if flush is not Flush.AUTO:
        return flush.value
    return f"auto ({'batch' if replicas == 1 else 'interval'})"
