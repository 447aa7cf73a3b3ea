"""How a broker starts: with 10,000 small partitions, and over one large partition cleanly closed.
And whether its memory stays flat while the large one flows through it.

    python bench/startup.py [--partitions 10000] [--gigabytes 5] [--folder DIR] [--json]

Needs as many gigabytes of disk as it writes; writes them to a temporary folder and removes them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from pathlib import Path

from own_broker import broker_usage, data_folder, own_broker, show

from headrace.protocol.limits import PARTITIONS_PER_TOPIC_MAX
from headrace.sdk import Admin, Consumer, Producer

VALUE_BYTES = 10_000
CHUNK = 100
"""Values a send_many call: 1 MB."""

SAMPLES = 10
"""Looks at the broker's memory while data flows."""

TOPIC = "large"


async def start_ms(folder: Path) -> float:
    """Start a broker over the folder, from its exec to /readyz saying 200; stop it again."""
    began = time.perf_counter()
    async with own_broker(folder):
        return (time.perf_counter() - began) * 1000


async def make_partitions(folder: Path, partitions: int) -> None:
    """Topics that hold one record in each partition."""
    async with (
        own_broker(folder) as cluster,
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap) as producer,
    ):
        for first in range(0, partitions, PARTITIONS_PER_TOPIC_MAX):
            count = min(PARTITIONS_PER_TOPIC_MAX, partitions - first)
            topic = f"small-{first}"
            await admin.create_topic(topic, partitions=count)
            for partition in range(count):
                producer.enqueue(topic, b"x" * 100, partition=partition)
            await producer.flush()


async def many_partitions(folder: Path, partitions: int) -> dict[str, float | int]:
    """Starts over many small partitions, after a clean stop and after a SIGKILL."""
    empty_ms = await start_ms(folder)
    began = time.perf_counter()
    await make_partitions(folder, partitions)
    made_s = time.perf_counter() - began
    began = time.perf_counter()
    async with own_broker(folder) as cluster:
        clean_ms = (time.perf_counter() - began) * 1000
        usage = broker_usage(cluster)
        killed = cluster.kill(0)
        began = time.perf_counter()
        await cluster.back(0, killed)
        killed_ms = (time.perf_counter() - began) * 1000 - 1000
    return {
        "partitions": partitions,
        "start without data, ms": round(empty_ms),
        "making them and one record each, s": round(made_s, 1),
        "start after a clean stop, ms": round(clean_ms),
        "start after SIGKILL (restart delay of 1 s taken off), ms": round(killed_ms),
        "RSS after start, MB": round(usage.rss_bytes / 1e6),
        "file descriptors after start": usage.fds,
    }


async def write_through(bootstrap: str, size_bytes: int, look) -> float:
    """Produce so many bytes; `look` is called SAMPLES times on the way. Returns MB/s."""
    source = random.Random(0)
    pool = [source.randbytes(VALUE_BYTES) for _ in range(10 * CHUNK)]
    calls = size_bytes // (VALUE_BYTES * CHUNK)
    began = time.perf_counter()
    async with Producer(bootstrap, acks="1") as producer:
        for call in range(calls):
            at = call % 10 * CHUNK
            await producer.send_many(TOPIC, pool[at : at + CHUNK])
            if call % max(1, calls // SAMPLES) == 0:
                look()
    return calls * CHUNK * VALUE_BYTES / (time.perf_counter() - began) / 1e6


async def read_through(bootstrap: str, records: int, look) -> float:
    """Consume so many records. Returns MB/s."""
    count = 0
    sample = max(1, records // SAMPLES)
    began = time.perf_counter()
    async with Consumer(bootstrap, TOPIC, offset_reset="earliest") as consumer:
        while count < records:
            before = count
            count += len(await consumer.fetch(max_records=1_000, timeout=30))
            if count == before:
                raise SystemExit(f"only {count:,} of {records:,} records came")
            if count // sample != before // sample:
                look()
    return count * VALUE_BYTES / (time.perf_counter() - began) / 1e6


async def large_partition(folder: Path, gigabytes: float) -> dict[str, float | int]:
    """Writes and reads one large partition while looking at RSS, then opens it again."""
    size_bytes = int(gigabytes * 1e9)
    records = size_bytes // (VALUE_BYTES * CHUNK) * CHUNK
    empty_ms = await start_ms(folder)
    rss: list[int] = []
    async with own_broker(folder) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic(TOPIC, partitions=1, config={"flush.policy": "none"})
        write = await write_through(
            cluster.bootstrap, size_bytes, lambda: rss.append(broker_usage(cluster).rss_bytes)
        )
        after_writing = broker_usage(cluster).rss_bytes
        read = await read_through(
            cluster.bootstrap, records, lambda: rss.append(broker_usage(cluster).rss_bytes)
        )
        after_reading = broker_usage(cluster).rss_bytes
    clean_ms = await start_ms(folder)
    return {
        "gigabytes": gigabytes,
        "written, MB/s": round(write),
        "read, MB/s": round(read),
        "RSS at first, MB": round(rss[0] / 1e6),
        "RSS highest seen, MB": round(max(rss) / 1e6),
        "RSS after writing, MB": round(after_writing / 1e6),
        "RSS after reading, MB": round(after_reading / 1e6),
        "start without data, ms": round(empty_ms),
        "start over it after a clean stop, ms": round(clean_ms),
        "opening it, ms (the difference)": round(clean_ms - empty_ms),
    }


def main() -> None:
    """Run both and show them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--folder", help="where to put the temporary folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.partitions:
        with data_folder(options.folder) as folder:
            figures = asyncio.run(many_partitions(folder, options.partitions))
        show("many partitions", figures, as_json=options.json)
    if options.gigabytes:
        with data_folder(options.folder) as folder:
            figures = asyncio.run(large_partition(folder, options.gigabytes))
        show("one large partition", figures, as_json=options.json)


if __name__ == "__main__":
    main()
