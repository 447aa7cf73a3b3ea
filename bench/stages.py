"""What each stage of a record's way costs, for batches of 1, 100, 1,000 and 9,000 records.

    python bench/stages.py [--json]

encode and decode run alone. Produce and fetch are whole requests through the SDK's transport with a
batch made beforehand, one after another: what they cost beyond an empty request (a fetch that finds
nothing) is the broker's and the network's work on the batch itself.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from own_broker import broker_usage, data_folder, own_broker, show

from headrace.cli.bench.workload import make_values
from headrace.cli.dev_cluster import DevCluster
from headrace.protocol import batch as batches
from headrace.protocol import framing, routes
from headrace.protocol.requests import (
    ACKS_ALL,
    BATCH_MEDIA_TYPE,
    READ_UNCOMMITTED,
    FetchPart,
    FetchRequest,
    ProducePart,
    ProduceRequest,
)
from headrace.sdk import Admin
from headrace.sdk.settings import ConnectionSettings
from headrace.sdk.transport import HttpTransport

SIZES = (1, 100, 1_000, 9_000)
"""Records a batch; 9,000 of 100 bytes are about the 1 MiB that a producer sends at most."""

VALUE_BYTES = 100
ROUNDS = 5
ROUND_S = 0.5
"""Of each measurement; the median of the rounds is shown. Long enough for /proc's 10 ms."""

WRITTEN_BYTES_MAX = 200_000_000
"""All rounds of a produce measurement write no more: files that grow into memory which the machine
has not touched lately measure that memory (docs/performance.md)."""

TIMEOUT_S = 10.0


def encode_once(values: list[bytes], stamp_ms: int = 0) -> bytes:
    """A batch as the producer seals it."""
    return bytes(
        batches.encode(
            keys=None,
            values=values,
            timestamps=None,
            headers=None,
            record_count=len(values),
            first_timestamp_ms=stamp_ms,
            max_timestamp_ms=stamp_ms,
        )
    )


def decode_once(data: bytes) -> int:
    """A batch made into `Record`s as the consumer does, checksum included."""
    return len(batches.records("t", 0, memoryview(data), batches.read_header(data)))


def alone_us(work: Callable[[], object]) -> float:
    """Microseconds a call of something that only computes."""
    rounds = []
    for _ in range(ROUNDS):
        calls, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < ROUND_S / 5:
            work()
            calls += 1
        rounds.append(elapsed / calls * 1e6)
    return statistics.median(rounds)


class Requests:
    """The requests of the measurement, one topic a batch size."""

    def __init__(self, cluster: DevCluster) -> None:
        self._cluster = cluster
        self._transport = HttpTransport(ConnectionSettings())

    async def close(self) -> None:
        """Give the connection back."""
        await self._transport.close()

    async def _post(self, path: str, *body: bytes) -> bytes:
        answer = await self._transport.send(
            "POST",
            self._cluster.bootstrap + path,
            body=body,
            headers={"Content-Type": BATCH_MEDIA_TYPE},
            timeout=TIMEOUT_S,
        )
        assert answer.status == 200, answer
        return answer.body

    async def produce(self, topic_id: bytes, data: bytes) -> None:
        """Append a batch and wait until it is committed."""
        part = ProducePart(topic_id, 0, len(data))
        await self._post(
            routes.PRODUCE, framing.head(ProduceRequest(ACKS_ALL, 1_000, [part])), data
        )

    async def fetch(self, topic_id: bytes, offset: int, size_bytes: int) -> int:
        """Read from an offset on; answers at once. The bytes that came."""
        part = FetchPart(topic_id, 0, offset, size_bytes)
        request = FetchRequest(0, 1, size_bytes, READ_UNCOMMITTED, [part])
        return len(await self._post(routes.FETCH, framing.head(request)))

    async def cost(
        self, work: Callable[[], Awaitable[object]], *, calls_max: int = 1 << 30
    ) -> tuple[float, float, float]:
        """Microseconds a request: from end to end, of the client's CPU, of the broker's."""
        rounds = []
        await work()
        for _ in range(ROUNDS):
            broker, client = broker_usage(self._cluster).cpu_s, time.process_time()
            calls, began = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - began) < ROUND_S and calls < calls_max:
                await work()
                calls += 1
            used = (
                elapsed,
                time.process_time() - client,
                broker_usage(self._cluster).cpu_s - broker,
            )
            rounds.append([seconds / calls * 1e6 for seconds in used])
        wall, client_cpu, broker_cpu = (
            statistics.median(figures) for figures in zip(*rounds, strict=True)
        )
        return wall, client_cpu, broker_cpu


def told(cost: tuple[float, float, float]) -> str:
    """`wall (client + broker)`."""
    wall, client, broker = cost
    return f"{wall:,.0f} us (CPU: client {client:,.0f}, broker {broker:,.0f})"


async def measure(cluster: DevCluster) -> dict[str, float | int | str]:
    """All stages, by batch size."""
    figures: dict[str, float | int | str] = {}
    requests = Requests(cluster)
    async with Admin(cluster.bootstrap) as admin:
        config = {"flush.policy": "interval"}
        empty = bytes.fromhex((await admin.create_topic("empty", partitions=1)).topic_id)
        figures["an empty request"] = told(
            await requests.cost(lambda: requests.fetch(empty, 0, 1 << 20))
        )
        for size in SIZES:
            values = make_values(size, VALUE_BYTES)
            data = encode_once(values)
            name = f"{size:,} records"
            topic = await admin.create_topic(f"stages-{size}", partitions=1, config=config)
            topic_id = bytes.fromhex(topic.topic_id)
            encode_us, decode_us = (
                alone_us(lambda values=values: encode_once(values)),
                alone_us(lambda data=data: decode_once(data)),
            )
            figures[f"{name}: encode"] = (
                f"{encode_us:,.1f} us, {encode_us / size * 1e3:,.0f} ns each"
            )
            figures[f"{name}: produce"] = told(
                await requests.cost(
                    lambda data=data, at=topic_id: requests.produce(at, data),
                    calls_max=WRITTEN_BYTES_MAX // ROUNDS // len(data),
                )
            )
            figures[f"{name}: fetch"] = told(
                await requests.cost(lambda data=data, at=topic_id: requests.fetch(at, 0, len(data)))
            )
            figures[f"{name}: decode"] = (
                f"{decode_us:,.1f} us, {decode_us / size * 1e3:,.0f} ns each"
            )
            await admin.delete_topic(topic.name)
    await requests.close()
    return figures


async def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with data_folder() as folder:
        async with own_broker(folder) as cluster:
            figures = await measure(cluster)
    show("stages", figures, as_json=options.json)


if __name__ == "__main__":
    asyncio.run(main())
