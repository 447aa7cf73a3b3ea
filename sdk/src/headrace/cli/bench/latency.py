"""End-to-end latency at a fixed rate: from when a record should have been sent until a consumer in
the same process has it.

The rate is open-loop: records are due on a fixed schedule whatever the broker does, and a record's
clock starts when it was due, not when it was sent. A stall thus counts for every record that had to
wait behind it (the opposite is known as coordinated omission).
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.cli.bench.precise_timer import PreciseTimer
from headrace.cli.bench.stats import percentile, quantiles
from headrace.protocol.errors import BufferFull, HeadraceError, RequestTimedOut
from headrace.sdk import Consumer, Producer

STAMP = struct.Struct("<qq")
"""Head of each value: the record's number and when it was due, ns on this process's clock."""

STALLED_S = 20.0
"""No record for so long before the end: the benchmark fails."""

TICK_NS = 100_000
"""Shortest pause between two looks at the schedule: at high rates some records go together, and
what that costs them is counted."""

LEAD_NS = 50_000_000
"""From starting the schedule to its first record."""

_WARM_UP = -1


@dataclass(slots=True, kw_only=True)
class Schedule:
    """Which records are due when, and how late they were sent. `send` takes a value without
    waiting."""

    send: Callable[[bytes], object]
    records: int
    rate: float
    size_bytes: int
    first_due_ns: int = 0
    sent: int = 0
    late_ns: list[int] = field(default_factory=list)
    failure: HeadraceError | None = None

    def due_ns(self, number: int) -> int:
        """When a record is due."""
        return self.first_due_ns + int(number * 1e9 / self.rate)

    @property
    def is_over(self) -> bool:
        """Whether everything is sent or sending has failed."""
        return self.sent >= self.records or self.failure is not None

    def send_due(self) -> None:
        """Send everything that is due by now."""
        while not self.is_over and (due := self.due_ns(self.sent)) <= time.perf_counter_ns():
            try:
                self.send(stamped(self.sent, due_ns=due, size_bytes=self.size_bytes))
            except BufferFull as error:
                self.failure = error
                return
            self.late_ns.append(time.perf_counter_ns() - due)
            self.sent += 1


async def measure_latency(
    producer: Producer, consumer: Consumer, *, topic: str, records: int, rate: float, size: int
) -> dict[str, float]:
    """One round; all figures but the rate in milliseconds."""
    schedule = Schedule(
        send=lambda value: producer.enqueue(topic, value),
        records=records,
        rate=rate,
        size_bytes=size,
    )
    await _meet(producer, consumer, topic, size)
    timer = start(schedule)
    try:
        latencies = await _receive(consumer, schedule)
    finally:
        timer.close()
    elapsed_s = (time.perf_counter_ns() - schedule.first_due_ns) / 1e9
    return figures(latencies, schedule.late_ns) | {"records_per_s": records / elapsed_s}


def stamped(number: int, *, due_ns: int, size_bytes: int) -> bytes:
    """A value that says which record it is and when it was due."""
    return STAMP.pack(number, due_ns).ljust(size_bytes, b".")


def figures(latencies_ns: Sequence[float], late_ns: Sequence[float]) -> dict[str, float]:
    """What is reported of a round, in milliseconds."""
    found = {f"{name}_ms": value / 1e6 for name, value in quantiles(latencies_ns).items()}
    return found | {"sent_late_p99_ms": percentile(sorted(late_ns), 0.99) / 1e6}


async def _meet(producer: Producer, consumer: Consumer, topic: str, size: int) -> None:
    """Send one record and wait for it: connections are made, the consumer is waiting."""
    await producer.send(topic, stamped(_WARM_UP, due_ns=0, size_bytes=size))
    async with asyncio.timeout(STALLED_S):
        async for record in consumer:
            if STAMP.unpack_from(record.value or b"")[0] == _WARM_UP:
                return


def start(schedule: Schedule) -> PreciseTimer:
    """Begin to send on schedule; the timer wakes the loop whenever something is due, until it is
    closed."""

    def on_due() -> None:
        schedule.send_due()
        if not schedule.is_over:
            timer.set(max(schedule.due_ns(schedule.sent), time.perf_counter_ns() + TICK_NS))

    timer = PreciseTimer(on_due)
    schedule.first_due_ns = time.perf_counter_ns() + LEAD_NS
    timer.set(schedule.first_due_ns)
    return timer


async def _receive(consumer: Consumer, schedule: Schedule) -> list[float]:
    """The latency of each record, ns, as the consumer gets them."""
    latencies: list[float] = []
    while len(latencies) < schedule.records:
        batch = await consumer.fetch(max_records=1_000, timeout=STALLED_S)
        now = time.perf_counter_ns()
        latencies += [now - STAMP.unpack_from(record.value or b"")[1] for record in batch]
        if schedule.failure is not None:
            raise schedule.failure
        if not batch:
            missing = schedule.records - len(latencies)
            raise RequestTimedOut(f"{missing:,} of {schedule.records:,} records did not come")
    return latencies
