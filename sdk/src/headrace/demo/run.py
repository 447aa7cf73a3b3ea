"""The demo from beginning to end: send, kill, read back, compare, print.

The cluster is handed in (the command line starts one), so this knows nothing of processes beyond
"kill that broker" and "wait until it is back".
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from headrace.demo import checks
from headrace.demo.checks import CarrierTotals, Check, Consumed, Pair, Place
from headrace.demo.flights import Flights, load_carrier_names, load_flights
from headrace.demo.group_part import Cluster, run_group
from headrace.demo.spark_part import run_spark
from headrace.sdk import Admin, Consumer, Producer

TOPIC = "flights"
PARTITIONS = 6
REPLICAS = 3
CHUNK = 2_000
"""Records a `send_many` call: about 600 kB of JSON."""

KILL_DELAY_S = 0.001
"""From the beginning of a send to the kill: less than the send takes."""

READ_MAX = 10_000
"""Records asked for by one fetch."""

IN_SYNC_POLL_S = 0.05
"""Between two looks at whether all replicas are in sync again."""

STALLED_S = 30.0
"""Nothing acknowledged, or nothing read, for so long: the demo fails instead of waiting on."""


class _Row(msgspec.Struct):
    """What the figures need of a flight's JSON."""

    carrier: str = ""
    arr_delay: int | None = None


@dataclass(slots=True)
class Story:
    """What happened, as it happens. Times are seconds."""

    places: list[Place] = field(default_factory=list)
    produce_s: float = 0.0
    consume_s: float = 0.0
    handed_over: int = 0
    killed_after: int = 0
    under_way: int = 0
    killed_id: int = -1
    killed_led: list[int] = field(default_factory=list)
    killed_pid: int = 0
    new_pid: int = 0
    down_s: float = 0.0
    pause_s: float = 0.0
    in_sync: bool = False


async def run_demo(cluster: Cluster, *, records: int | None, console: Console) -> bool:
    """Run the demo and print it; True if every check passed."""
    started = time.monotonic()
    flights = load_flights(records)
    sent: list[Pair] = list(zip(flights.keys, flights.values, strict=True))
    megabytes = sum(map(len, flights.values)) / 1e6
    console.print(
        f"{len(sent):,} flights of 2013 ({megabytes:.0f} MB of JSON) loaded"
        f" in {time.monotonic() - started:.1f} s"
    )
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replicas=REPLICAS)
    console.print(
        f"topic {TOPIC!r} with {PARTITIONS} partitions, {REPLICAS} replicas each, at"
        f" {cluster.bootstrap}"
    )
    story = Story()
    with _progress(console) as progress:
        await _produce(cluster, flights, story, progress)
        _tell_produced(console, story, len(sent))
        consumed = await _consume(cluster.bootstrap, len(sent), story, progress)
    came = sum(map(len, consumed.values()))
    rate = came / story.consume_s
    console.print(f"read back: {came:,} records in {story.consume_s:.2f} s ({rate:,.0f} records/s)")
    passed = _report(console, flights, sent, story, consumed)
    answers = await run_group(cluster, TOPIC, sent, story.places, console)
    passed = _show(console, answers) and passed
    expected = checks.totals_by_carrier(zip(flights.keys, flights.arrival_delays, strict=True))
    answers = await run_spark(
        cluster.bootstrap, TOPIC, expected, replicas=REPLICAS, console=console
    )
    passed = _show(console, answers) and passed
    verdict = "[green]PASS[/green]" if passed else "[red]FAIL[/red]"
    console.print(f"{verdict} in {time.monotonic() - started:.1f} s")
    return passed


async def _produce(cluster: Cluster, flights: Flights, story: Story, progress: Progress) -> None:
    """Send every flight; half-way through, with a call under way, kill a leader."""
    total = len(flights.keys)
    bar = progress.add_task("producing", total=total)
    killer: asyncio.Task[None] | None = None
    began = time.perf_counter()
    async with Producer(cluster.bootstrap, acks="all", delivery_timeout=STALLED_S) as producer:
        for start in range(0, total, CHUNK):
            if killer is None and start + CHUNK > total // 2:
                killer = asyncio.create_task(_kill(cluster, story))
            end = min(start + CHUNK, total)
            story.handed_over = end
            called = time.perf_counter()
            metas = await producer.send_many(
                TOPIC, flights.values[start:end], keys=flights.keys[start:end]
            )
            if killer is not None:
                story.pause_s = max(story.pause_s, time.perf_counter() - called)
            story.places.extend((meta.partition, meta.offset) for meta in metas)
            progress.update(bar, completed=len(story.places))
        await producer.flush()
    story.produce_s = time.perf_counter() - began
    if killer is not None:
        async with asyncio.timeout(STALLED_S):
            await killer


async def _kill(cluster: Cluster, story: Story) -> None:
    """SIGKILL the leader of the busiest partition while a send is under way: its bytes are on the
    wire, and nobody knows yet how much of them is written."""
    async with Admin(cluster.bootstrap) as admin:
        topic = await admin.describe_topic(TOPIC)
        leaders = {part.partition: part.leader for part in topic.partitions}
        counts = Counter(partition for partition, _ in story.places)
        busiest = max(leaders, key=lambda partition: counts[partition])
        victim = leaders[busiest]
        assert victim is not None, f"nobody leads partition {busiest}"
        story.killed_id = victim
        story.killed_led = [part for part, leader in leaders.items() if leader == victim]
        await asyncio.sleep(KILL_DELAY_S)
        story.killed_after = len(story.places)
        story.under_way = story.handed_over - story.killed_after
        began = time.perf_counter()
        story.killed_pid = cluster.kill(victim)
        story.new_pid = await cluster.back(victim, story.killed_pid)
        story.down_s = time.perf_counter() - began
        while not story.in_sync:
            topic = await admin.describe_topic(TOPIC)
            story.in_sync = all(len(part.isr) == REPLICAS for part in topic.partitions)
            await asyncio.sleep(IN_SYNC_POLL_S)


def _tell_produced(console: Console, story: Story, total: int) -> None:
    led = ", ".join(map(str, story.killed_led))
    console.print(
        f"broker {story.killed_id} (pid {story.killed_pid}), the leader of partitions {led}, killed"
        f" with SIGKILL after {story.killed_after:,} acknowledged records, with"
        f" {story.under_way:,} under way"
    )
    console.print(
        f"the others took over: longest pause of the producer {story.pause_s:.2f} s; back as pid"
        f" {story.new_pid} after {story.down_s:.1f} s"
    )
    console.print(
        f"produced: {total:,} records acknowledged by all in-sync replicas in"
        f" {story.produce_s:.2f} s ({total / story.produce_s:,.0f} records/s, the pause included)"
    )


async def _consume(bootstrap: str, expected: int, story: Story, progress: Progress) -> Consumed:
    """Read the topic from the beginning to its end."""
    bar = progress.add_task("consuming", total=expected)
    consumed: Consumed = {partition: {} for partition in range(PARTITIONS)}
    began = last = time.perf_counter()
    async with Consumer(bootstrap, TOPIC, offset_reset="earliest") as consumer:
        while True:
            batch = await consumer.fetch(max_records=READ_MAX, timeout=1.0)
            for record in batch:
                consumed[record.partition][record.offset] = (record.key, record.value)
            now = time.perf_counter()
            if batch:
                last = now
                story.consume_s = now - began
                progress.update(bar, advance=len(batch))
            elif await _at_end(consumer) or now - last > STALLED_S:
                return consumed


async def _at_end(consumer: Consumer) -> bool:
    """Whether nothing is left to read; a record too many would have been seen by then."""
    lag = await consumer.lag()
    return not any(lag.values())


def _report(
    console: Console, flights: Flights, sent: list[Pair], story: Story, consumed: Consumed
) -> bool:
    """Print figures and checks; True if all passed."""
    expected = checks.totals_by_carrier(zip(flights.keys, flights.arrival_delays, strict=True))
    found = checks.totals_by_carrier(_carrier_and_delay(consumed))
    console.print(_carrier_table(found))
    answers = [
        _check_kill(story),
        checks.check_acknowledged(sent, story.places, consumed),
        checks.check_count(len(sent), consumed),
        checks.check_dense(consumed),
        checks.check_order(sent, consumed),
        checks.check_content(sent, consumed),
        checks.check_totals(expected, found),
    ]
    return _show(console, answers)


def _show(console: Console, answers: list[Check]) -> bool:
    """Print checks; True if all passed."""
    for answer in answers:
        mark = "[green]ok  [/green]" if answer.passed else "[red]FAIL[/red]"
        console.print(f"{mark} {answer.name}: {answer.detail}")
    return all(answer.passed for answer in answers)


def _check_kill(story: Story) -> Check:
    """The leader did die, another process took its place, and it has caught up."""
    passed = story.new_pid not in {0, story.killed_pid} and story.in_sync
    return Check(
        name="killed, came back, all replicas in sync",
        passed=passed,
        detail=f"broker {story.killed_id}: pid {story.killed_pid}, then {story.new_pid}",
    )


def _carrier_and_delay(consumed: Consumed) -> Iterator[tuple[bytes, int | None]]:
    """Carrier and arrival delay as the consumed JSON has them."""
    decode = msgspec.json.Decoder(_Row).decode
    for _, value in itertools.chain.from_iterable(part.values() for part in consumed.values()):
        row = decode(value or b"{}")
        yield row.carrier.encode(), row.arr_delay


def _carrier_table(totals: dict[bytes, CarrierTotals]) -> Table:
    """Flights and mean arrival delay, the busiest carrier first."""
    names = load_carrier_names()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("carrier", no_wrap=True)
    table.add_column("flights", justify="right")
    table.add_column("mean arrival delay", justify="right")
    for code, total in sorted(totals.items(), key=lambda item: -item[1].flights):
        mean = total.mean_delay
        shown = "-" if mean is None else f"{mean:.1f} min"
        table.add_row(f"{code.decode()} {names.get(code, '')}", f"{total.flights:,}", shown)
    return table


def _progress(console: Console) -> Progress:
    """Bars on a terminal, nothing in a pipe."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
