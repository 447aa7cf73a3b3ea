"""The same work on Headrace, Kafka, RabbitMQ streams, Redis Streams and NATS JetStream.

    python bench/peers.py [--quick] [--rounds N] [--json FILE] [NAME ...]

One server each, on loopback, in a temporary folder; the usual Python client. Rounds go over all
systems in turn (A B C, A B C), so that a slow minute of the machine hits everybody. What is
missing is named and left out. bench/README.md gives everybody's settings and the reasons.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from own_broker import data_folder
from systems.base import CONSUMING, VALUE_BYTES, VALUES, Level, Missing, Stalled, System, Work
from systems.headrace_queue import Headrace
from systems.kafka_node import Kafka
from systems.nats_jetstream import Nats
from systems.rabbitmq_streams import RabbitMQ
from systems.redis_streams import Redis

from headrace.cli import tables
from headrace.cli.bench import latency
from headrace.cli.bench.stats import Spread, summarise
from headrace.cli.output import print_tables

SYSTEMS: tuple[type[System], ...] = (Headrace, Kafka, RabbitMQ, Redis, Nats)

ROUNDS = 5
LATENCY_ROUNDS = 3
RATE = 500
LATENCY_RECORDS = 1_500
"""Three seconds' worth: the p99 of a round stands on its 15 slowest records."""

WARM_RECORDS = 1_000
"""Sent before a producing round's clock starts: the connection is made, the metadata known."""

QUICK = 20
"""--quick: so many times fewer records, and two rounds."""

_WARM_UP = -1
_names = itertools.count()


@dataclass(slots=True)
class Row:
    """One system's one work at one level, and its rounds."""

    system: System
    level: Level
    work: Work
    rounds: list[dict[str, float]] = field(default_factory=list)

    @property
    def summary(self) -> dict[str, Spread]:
        """Median, smallest, largest of each figure."""
        return summarise(self.rounds)


async def measure(row: Row, filled: str, *, share: int) -> dict[str, float]:
    """One round of one row."""
    gc.collect()
    if row.work is Work.LATENCY:
        return await measure_latency(row, LATENCY_RECORDS // share)
    records = row.system.records[row.work] // share
    if row.work in CONSUMING:
        watch = Watch(row.system)
        size = await row.system.consume(filled, records, row.work, watch.stop)
        assert size == records * VALUE_BYTES, f"{row.system.name}: {size} bytes came"
        return watch.figures(records)
    async with stream(row.system, row.level) as name:
        async with row.system.producer(name, row.level, row.work) as send:
            await send(WARM_RECORDS)
            watch = Watch(row.system)
            await send(records)
            watch.stop()
        stored = await row.system.stored(name)
    expected = records + WARM_RECORDS
    assert stored == expected, f"{row.system.name} stored {stored:,}, {expected:,} were sent"
    return watch.figures(records)


@contextlib.asynccontextmanager
async def stream(system: System, level: Level) -> AsyncIterator[str]:
    """A new one, dropped afterwards."""
    name = f"bench-{next(_names)}"
    await system.new_stream(name, level)
    yield name
    await system.drop_stream(name)


class Watch:
    """Wall and CPU time from its making until `stop`."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._began = self._now()

    def _now(self) -> tuple[float, float, float]:
        return self._system.server_cpu_s(), time.process_time(), time.perf_counter()

    def stop(self) -> None:
        """The work is done."""
        self._ended = self._now()

    def figures(self, records: int) -> dict[str, float]:
        """What a round of so many records came to."""
        server, client, wall = (
            end - begin for begin, end in zip(self._began, self._ended, strict=True)
        )
        return {
            "records_per_s": records / wall,
            "client_cpu_us_per_record": client / records * 1e6,
            "server_cpu_us_per_record": server / records * 1e6,
        }


async def measure_latency(row: Row, records: int) -> dict[str, float]:
    """From when a record is due until the consumer, in this process, has it."""
    latencies: list[int] = []
    met, done = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def take(value: bytes) -> None:
        """Called on the loop, or by Kafka's consumer in its thread."""
        now = time.perf_counter_ns()
        number, due = latency.STAMP.unpack_from(value)
        if number == _WARM_UP:
            loop.call_soon_threadsafe(met.set)
            return
        latencies.append(now - due)
        if len(latencies) == records:
            loop.call_soon_threadsafe(done.set)

    async with (
        stream(row.system, row.level) as name,
        row.system.live(name, row.level, take) as send,
    ):
        schedule = latency.Schedule(send=send, records=records, rate=RATE, size_bytes=VALUE_BYTES)
        async with asyncio.timeout(latency.STALLED_S):
            send(latency.stamped(_WARM_UP, due_ns=0, size_bytes=VALUE_BYTES))
            await met.wait()
        timer = latency.start(schedule)
        try:
            async with asyncio.timeout(records / RATE + latency.STALLED_S):
                await done.wait()
        finally:
            timer.close()
    assert len(latencies) == records, f"{row.system.name}: {len(latencies)} of {records} came"
    return latency.figures(latencies, schedule.late_ns)


async def fill(system: System, *, share: int) -> str:
    """A stream for the consuming rounds."""
    level = system.levels[0]
    records = max(system.records[work] for work in CONSUMING if work in level.works) // share
    name = f"filled-{next(_names)}"
    await system.new_stream(name, level)
    work = Work.BULK if Work.BULK in level.works else Work.EACH
    async with system.producer(name, level, work) as send:
        await send(records)
    stored = await system.stored(name)
    assert stored == records, f"{system.name} stored {stored:,}, {records:,} were sent"
    return name


async def run(systems: list[System], folder: Path, *, rounds: int, share: int) -> list[Row]:
    """Start everybody, measure in turn, stop everybody. A system that can't start is dropped from
    `systems`."""
    async with contextlib.AsyncExitStack() as stack:
        for system in tuple(systems):
            place = folder / type(system).__name__.lower()
            place.mkdir()
            try:
                await system.start(place)
            except Missing as missing:
                left_out(system, missing)
                systems.remove(system)
                continue
            stack.push_async_callback(system.stop)
            say(f"{system.name} {system.versions()}: started")
        filled = {system.name: await fill(system, share=share) for system in systems}
        rows = [
            Row(system, level, work)
            for work in Work
            for system in systems
            for level in system.levels
            if work in level.works
        ]
        for work in Work:
            of_work = [row for row in rows if row.work is work]
            times = min(rounds, LATENCY_ROUNDS) if work is Work.LATENCY else rounds
            for number in range(times + 1):
                for row in of_work:
                    if number == 0 and work is Work.LATENCY:
                        figures = await measure_latency(row, 100)
                    else:
                        figures = await measure(row, filled[row.system.name], share=share)
                    if number:  # the first round is for warming up: the JVM compiles meanwhile
                        row.rounds.append(figures)
            say(f"{work}: done")
        return rows


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)


def left_out(system: System, reason: Exception) -> None:
    """Named, never silently missing."""
    say(f"{system.name} is left out: {reason}")


def shown(spread: Spread, form: str) -> str:
    """Median (smallest-largest)."""
    return f"{spread.median:{form}} ({spread.min:{form}}-{spread.max:{form}})"


def ratio(row: Row, rows: Iterable[Row], figure: str) -> str | None:
    """Headrace's median over this row's, of the same work; None for Headrace itself."""
    if row.system.name == Headrace.name:
        return None
    ours = next((r for r in rows if r.system.name == Headrace.name and r.work is row.work), None)
    if ours is None:
        return None
    return f"{ours.summary[figure].median / row.summary[figure].median:.2f}"


def rate_table(rows: list[Row], work: Work) -> object:
    """Of producing or consuming."""
    own = [row for row in rows if row.work is work]
    lines = []
    for row in own:
        summary = row.summary
        cpu = [summary[f"{side}_cpu_us_per_record"].median for side in ("client", "server")]
        lines.append(
            (
                row.system.name,
                row.level.acks,
                row.level.flush,
                shown(summary["records_per_s"], ",.0f"),
                ratio(row, own, "records_per_s"),
                *(f"{us:.2f}" for us in cpu),
            )
        )
    columns = ("", "acks", "flush", ">records/s", ">Headrace/peer", ">client us", ">server us")
    return tables.table(columns, lines, title=str(work))


def latency_table(rows: list[Row]) -> object:
    """Of the latency work; here a small ratio is good."""
    own = [row for row in rows if row.work is Work.LATENCY]
    lines = [
        (
            row.system.name,
            row.level.acks,
            row.level.flush,
            shown(row.summary["p50_ms"], ".2f"),
            ratio(row, own, "p50_ms"),
            shown(row.summary["p99_ms"], ".2f"),
            ratio(row, own, "p99_ms"),
            f"{row.summary['sent_late_p99_ms'].median:.2f}",
        )
        for row in own
    ]
    columns = ("", "acks", "flush", ">p50 ms", ">Headrace/peer", ">p99 ms", ">Headrace/peer")
    return tables.table((*columns, ">late ms"), lines, title=str(Work.LATENCY))


def report(rows: list[Row], systems: list[System], environment: dict[str, object]) -> object:
    """What --json writes."""
    return {
        "environment": environment,
        "versions": {system.name: system.versions() for system in systems},
        "rows": [
            {
                "work": row.work,
                "system": row.system.name,
                "acks": row.level.acks,
                "flush": row.level.flush,
                "settings": row.level.settings,
                "records": row.system.records.get(row.work, LATENCY_RECORDS),
                "rounds": row.rounds,
            }
            for row in rows
        ],
    }


async def main() -> None:
    """Find out who is there, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [system.name.split()[0].lower() for system in SYSTEMS]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; or all")
    parser.add_argument("--quick", action="store_true", help="small rounds, to see that it works")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"no such system: {', '.join(sorted(unknown))}")
    wanted = [
        made()
        for made, name in zip(SYSTEMS, names, strict=True)
        if not options.names or name in options.names
    ]
    systems = []
    for system in wanted:
        try:
            system.check()
        except Missing as missing:
            left_out(system, missing)
        else:
            systems.append(system)
    share, rounds = (QUICK, 2) if options.quick else (1, options.rounds)
    with data_folder() as folder:
        rows = await run(systems, folder, rounds=rounds, share=share)
    environment: dict[str, object] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "value_bytes": VALUE_BYTES,
        "different_values": len(VALUES),
    }
    where = ", ".join(f"{key} {value}" for key, value in environment.items())
    versions = [f"{system.name}: {system.versions()}" for system in systems]
    throughput = [rate_table(rows, work) for work in Work if work is not Work.LATENCY]
    print_tables(where, *versions, *throughput, latency_table(rows))
    if options.json:
        options.json.write_text(json.dumps(report(rows, systems, environment), indent=1) + "\n")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except Stalled as stalled:
        raise SystemExit(str(stalled)) from None
