"""`headrace bench ...`: reads the flags, runs the rounds, shows the report."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from headrace.cli.bench.consume_rate import ConsumeMode, measure_consume
from headrace.cli.bench.latency import STAMP, measure_latency
from headrace.cli.bench.produce_rate import (
    CALLS_IN_FLIGHT,
    Load,
    ProduceMode,
    fill,
    measure_produce,
)
from headrace.cli.bench.report import Report, Setting, make_report, show
from headrace.cli.bench.workload import POOL_RECORDS, BenchTopic, Flush, bench_topic
from headrace.cli.options import (
    Acks,
    Bootstrap,
    Compression,
    Output,
    OutputFormat,
    bootstrap_of,
    output_of,
)
from headrace.cli.output import progress
from headrace.cli.session import run
from headrace.sdk import Consumer, Producer

bench_app = typer.Typer(
    no_args_is_help=True,
    help="Measure throughput and latency on a topic of its own, deleted afterwards.",
)

WARM_UP_SHARE = 5
"""The warm-up round is a fifth of a measured one."""

LATENCY_SECONDS = 5
"""Length of a latency round unless --records says otherwise."""

Records = Annotated[int, typer.Option(metavar="N", min=1, help="Records a round.")]
Size = Annotated[int, typer.Option(metavar="BYTES", min=0, help="Bytes of a value.")]
Partitions = Annotated[int, typer.Option(min=1, help="Partitions of the topic.")]
Replicas = Annotated[
    int | None, typer.Option(min=1, help="Replicas of the topic.", show_default="the cluster's")
]
Rounds = Annotated[int, typer.Option(min=1, help="Measured rounds; a shorter one goes before.")]
FlushLevel = Annotated[
    Flush, typer.Option(help="What is on the disk when a record is acknowledged: flush.policy.")
]
AcksLevel = Annotated[Acks, typer.Option(help="Who must have a record.")]
Codec = Annotated[Compression, typer.Option(help="Codec of the batches.")]
AsJson = Annotated[bool, typer.Option("--json", help="Same as --output json.")]

Round = Callable[[int], Awaitable[dict[str, float]]]


@bench_app.command("produce")
def bench_produce(
    ctx: typer.Context,
    records: Records = 500_000,
    size: Size = 100,
    partitions: Partitions = 1,
    replicas: Replicas = None,
    acks: AcksLevel = Acks.ALL,
    mode: Annotated[ProduceMode, typer.Option(help="Which call is measured.")] = (
        ProduceMode.SEND_MANY
    ),
    batch: Annotated[
        int, typer.Option(min=1, max=POOL_RECORDS, help="Records a send_many call.")
    ] = POOL_RECORDS,
    senders: Annotated[
        int, typer.Option(min=1, help="With --mode send: how many await their records at once.")
    ] = 1,
    rounds: Rounds = 5,
    flush: FlushLevel = Flush.AUTO,
    compression: Codec = Compression.NONE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """How fast one producer gets records acknowledged."""
    address = bootstrap_of(ctx, bootstrap)
    settings: dict[str, Setting] = {
        "mode": mode.value,
        "records": records,
        "size_bytes": size,
        "partitions": partitions,
        "acks": acks.value,
        "compression": compression.value,
    }
    if mode is ProduceMode.SEND_MANY:
        settings |= {"batch": batch, "calls_in_flight": CALLS_IN_FLIGHT}
    if mode is ProduceMode.SEND:
        settings["senders"] = senders

    async def measure(topic: BenchTopic) -> list[dict[str, float]]:
        async with Producer(address, acks=acks.value, compression=compression.value) as producer:

            async def one_round(count: int) -> dict[str, float]:
                load = Load(
                    topic=topic.name,
                    records=count,
                    size_bytes=size,
                    mode=mode,
                    batch=batch,
                    senders=senders,
                )
                return await measure_produce(producer, load)

            return await _rounds(one_round, records, rounds)

    async def work() -> Report:
        async with bench_topic(
            address, partitions=partitions, replicas=replicas, flush=flush
        ) as topic:
            return _report("produce", settings, topic, await measure(topic))

    _finish(ctx, run(work(), bootstrap=address), as_json=as_json, output=output)


@bench_app.command("consume")
def bench_consume(
    ctx: typer.Context,
    records: Records = 500_000,
    size: Size = 100,
    partitions: Partitions = 1,
    replicas: Replicas = None,
    mode: Annotated[ConsumeMode, typer.Option(help="Lists by fetch, or async for.")] = (
        ConsumeMode.FETCH
    ),
    rounds: Rounds = 5,
    flush: FlushLevel = Flush.AUTO,
    compression: Codec = Compression.NONE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """How fast one consumer reads a topic from its beginning."""
    address = bootstrap_of(ctx, bootstrap)
    settings: dict[str, Setting] = {
        "mode": mode.value,
        "records": records,
        "size_bytes": size,
        "partitions": partitions,
        "compression": compression.value,
    }

    async def measure(topic: BenchTopic) -> list[dict[str, float]]:
        async with Producer(address, compression=compression.value) as producer:
            await fill(producer, topic.name, records, size)

        async def one_round(count: int) -> dict[str, float]:
            return await measure_consume(
                address, topic.name, records=count, size_bytes=size, mode=mode
            )

        return await _rounds(one_round, records, rounds)

    async def work() -> Report:
        async with bench_topic(
            address, partitions=partitions, replicas=replicas, flush=flush
        ) as topic:
            return _report("consume", settings, topic, await measure(topic))

    _finish(ctx, run(work(), bootstrap=address), as_json=as_json, output=output)


@bench_app.command("latency")
def bench_latency(
    ctx: typer.Context,
    rate: Annotated[float, typer.Option(min=1, help="Records a second, on schedule.")] = 500,
    records: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Records a round.", show_default="5 seconds' worth"),
    ] = None,
    size: Annotated[
        int, typer.Option(metavar="BYTES", min=STAMP.size, help="Bytes of a value.")
    ] = 100,
    partitions: Partitions = 1,
    replicas: Replicas = None,
    acks: AcksLevel = Acks.ALL,
    rounds: Rounds = 3,
    flush: FlushLevel = Flush.AUTO,
    compression: Codec = Compression.NONE,
    as_json: AsJson = False,
    bootstrap: Bootstrap = None,
    output: Output = None,
) -> None:
    """How long a record takes from the producer to a consumer, at a fixed rate."""
    address = bootstrap_of(ctx, bootstrap)
    count = records or int(rate * LATENCY_SECONDS)
    settings: dict[str, Setting] = {
        "rate": rate,
        "records": count,
        "size_bytes": size,
        "partitions": partitions,
        "acks": acks.value,
        "compression": compression.value,
    }

    async def measure(topic: BenchTopic) -> list[dict[str, float]]:
        async with (
            Producer(address, acks=acks.value, compression=compression.value) as producer,
            Consumer(address, topic.name, offset_reset="earliest") as consumer,
        ):

            async def one_round(count: int) -> dict[str, float]:
                return await measure_latency(
                    producer, consumer, topic=topic.name, records=count, rate=rate, size=size
                )

            return await _rounds(one_round, count, rounds)

    async def work() -> Report:
        async with bench_topic(
            address, partitions=partitions, replicas=replicas, flush=flush
        ) as topic:
            return _report("latency", settings, topic, await measure(topic))

    _finish(ctx, run(work(), bootstrap=address), as_json=as_json, output=output)


async def _rounds(one_round: Round, records: int, rounds: int) -> list[dict[str, float]]:
    """A short round to warm up, whose figures are dropped, then the measured ones."""
    with progress() as bar:
        task = bar.add_task("warming up", total=rounds)
        await one_round(max(1, records // WARM_UP_SHARE))
        bar.update(task, description="measuring")
        figures: list[dict[str, float]] = []
        for _ in range(rounds):
            figures.append(await one_round(records))
            bar.advance(task)
        return figures


def _report(
    bench: str, settings: dict[str, Setting], topic: BenchTopic, rounds: list[dict[str, float]]
) -> Report:
    settings = {**settings, "replicas": topic.replicas, "flush": topic.flush}
    return make_report(bench, settings=settings, rounds=rounds, broker=topic.broker_version)


def _finish(
    ctx: typer.Context, report: Report, *, as_json: bool, output: OutputFormat | None
) -> None:
    show(report, as_json=as_json or output_of(ctx, output) is OutputFormat.JSON)
