"""Whether cold readers and a compaction hurt live ones: end-to-end latency at 500/s while another
process reads gigabytes that are not in memory and compacted topics are cleaned, against quiet.

    python bench/cold_reads.py [--gigabytes 5] [--rounds 3] [--folder DIR] [--json]

The cold topic's pages are dropped from the page cache (posix_fadvise) before each round. Quiet and
busy rounds alternate; the figure to look at is the ratio of their p99. Beside it stands the same
ratio of a bare TCP echo: with fewer cores than processes it is far from 1 as well.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from echo import echo_latency
from own_broker import data_folder, own_broker, show

from headrace.cli.bench.latency import measure_latency
from headrace.sdk import Admin, Consumer, Producer

Measure = Callable[[], Awaitable[dict[str, float]]]

VALUE_BYTES = 10_000
CHUNK = 100
"""Values a send_many call: 1 MB."""

RATE = 500
RECORDS = 5_000
"""Ten seconds a round."""

COMPACTED_MB = 300
KEYS = 20_000

SETTINGS = {"HEADRACE_COMPACTION_INTERVAL_MS": "1000"}


async def fill(bootstrap: str, gigabytes: float) -> None:
    """The topic that is read cold, in segments of 256 MB."""
    rng = random.Random(1)
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        await admin.create_topic(
            "cold", partitions=1, config={"segment.bytes": 1 << 28, "flush.policy": "none"}
        )
        await admin.create_topic("live", partitions=1, config={"flush.policy": "none"})
        for _ in range(int(gigabytes * 1e9 / VALUE_BYTES / CHUNK)):
            await producer.send_many("cold", [rng.randbytes(VALUE_BYTES) for _ in range(CHUNK)])


async def start_compaction(bootstrap: str, name: str) -> None:
    """A topic with much to clean: few keys, many values, small segments."""
    rng = random.Random(2)
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        await admin.create_topic(
            name,
            partitions=1,
            config={
                "cleanup.policy": "compact", "segment.bytes": 1 << 25, "flush.policy": "none",
                "min.cleanable.dirty.ratio": 0.01,
            },
        )  # fmt: skip
        for _ in range(COMPACTED_MB):
            keys = [b"%d" % rng.randrange(KEYS) for _ in range(1_000)]
            await producer.send_many(name, [rng.randbytes(1_000) for _ in keys], keys=keys)


def forget_pages(folder: Path) -> None:
    """Drops the page cache of all logs, so that the next read asks the disk."""
    for file in folder.rglob("*.log"):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


async def latency(bootstrap: str) -> dict[str, float]:
    """One round of live records."""
    async with (
        Producer(bootstrap, acks=1) as producer,
        Consumer(bootstrap, "live", offset_reset="latest") as consumer,
    ):
        return await measure_latency(
            producer, consumer, topic="live", records=RECORDS, rate=RATE, size=100
        )


async def read_all(bootstrap: str) -> None:
    """The cold reader, in a process of its own: from the beginning, again and again."""
    while True:
        async with Consumer(bootstrap, "cold") as consumer:
            end = (await consumer.lag()).values()
            left = sum(end)
            while left > 0:
                batch = await consumer.fetch(max_records=1_000, timeout=5.0)
                left -= len(batch)


async def busy_round(bootstrap: str, folder: Path, name: str, measure: Measure) -> dict[str, float]:
    """What `measure` says beside a cold reader and a compaction."""
    await start_compaction(bootstrap, name)
    forget_pages(folder)
    reader = subprocess.Popen([sys.executable, __file__, "--read", bootstrap])
    try:
        return await measure()
    finally:
        reader.kill()
        reader.wait()


async def main() -> None:
    """Fill, alternate, show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to put the temporary folder")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--read", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        await read_all(arguments.read)
        return
    rounds: dict[str, list[dict[str, float]]] = {}

    async def note(kind: str, round_: Awaitable[dict[str, float]]) -> None:
        rounds.setdefault(kind, []).append(await round_)

    with data_folder(arguments.folder) as folder:
        async with own_broker(folder, SETTINGS) as cluster:
            await fill(cluster.bootstrap, arguments.gigabytes)
            measures: dict[str, Measure] = {
                "live": lambda: latency(cluster.bootstrap),
                "echo": lambda: echo_latency(RECORDS / RATE),
            }
            for number in range(arguments.rounds):
                for name, measure in measures.items():
                    await asyncio.sleep(2)
                    await note(f"{name} quiet", measure())
                    topic = f"compacted-{name}-{number}"
                    beside = busy_round(cluster.bootstrap, folder, topic, measure)
                    await note(f"{name} busy", beside)
    figures = {
        f"{kind} {name}": round(statistics.median(each[name] for each in found), 2)
        for kind, found in rounds.items()
        for name in ("p50_ms", "p99_ms", "max_ms")
    }
    for kind in ("live", "echo"):
        ratio = figures[f"{kind} busy p99_ms"] / figures[f"{kind} quiet p99_ms"]
        figures[f"{kind} p99 busy / quiet"] = round(ratio, 2)
    show(f"live beside {arguments.gigabytes:g} GB read cold", figures, as_json=arguments.json)


if __name__ == "__main__":
    asyncio.run(main())
