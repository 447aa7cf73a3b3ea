"""How many records a second a consumer gets out of a topic, by `fetch` and by `async for`."""

from __future__ import annotations

import enum
import time

from headrace.protocol.errors import RequestTimedOut
from headrace.sdk import Consumer

FETCH_MAX = 20_000
"""Records asked for by one `fetch`."""

STALLED_S = 30.0
"""A `fetch` that waits so long for records known to be there fails the benchmark."""


class ConsumeMode(enum.StrEnum):
    """Which way of reading is measured."""

    FETCH = "fetch"
    ITERATE = "iterate"


async def measure_consume(
    bootstrap: str, topic: str, *, records: int, size_bytes: int, mode: ConsumeMode
) -> dict[str, float]:
    """One round: from opening a new consumer to the last record. The count is checked."""
    cpu = time.process_time()
    began = time.perf_counter()
    async with Consumer(bootstrap, topic, offset_reset="earliest") as consumer:
        read = _fetch if mode is ConsumeMode.FETCH else _iterate
        await read(consumer, records)
        elapsed = time.perf_counter() - began
        cpu = time.process_time() - cpu
    return {
        "records_per_s": records / elapsed,
        "megabytes_per_s": records * size_bytes / elapsed / 1e6,
        "client_cpu_us_per_record": cpu / records * 1e6,
    }


async def _fetch(consumer: Consumer, records: int) -> None:
    count = 0
    while count < records:
        got = await consumer.fetch(max_records=FETCH_MAX, timeout=STALLED_S)
        if not got:
            raise RequestTimedOut(f"only {count:,} of {records:,} records came")
        count += len(got)


async def _iterate(consumer: Consumer, records: int) -> None:
    count = 0
    async for _ in consumer:
        count += 1
        if count == records:
            return
