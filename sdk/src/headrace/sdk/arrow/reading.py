"""Reads topics as Arrow: offsets looked up, partitions read one after another, with a fetch ahead.

The network is the background loop's business and decoding the caller's thread's, so that the two
overlap. Connections are the process's own and stay open for the next read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.protocol.errors import PartitionNotFound
from headrace.protocol.ids import TopicPartition
from headrace.sdk import sync
from headrace.sdk.arrow.building import BatchBuilder, schema_of
from headrace.sdk.connections import Connection, connection
from headrace.sdk.core.positions import RawBatch
from headrace.sdk.offsets import Where, places_of
from headrace.sdk.reading.ranges import OffsetRange, RangeReader, RangeSettings
from headrace.sdk.settings import ConnectionSettings

_DEFAULT = RangeSettings()


def record_batches(batches: Iterable[RawBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Arrow from batches that a consumer's `fetch_batches` gave, in the order given; a change of
    partition ends an Arrow batch."""
    builder: BatchBuilder | None = None
    where: tuple[str, int] | None = None
    for raw in batches:
        if builder is None or where != (raw.topic, raw.partition):
            if builder is not None and builder.row_count:
                yield builder.flush()
            where = (raw.topic, raw.partition)
            builder = BatchBuilder(raw.topic, raw.partition, schema)
        yield from builder.add(raw)
    if builder is not None and builder.row_count:
        yield builder.flush()


def read_range(
    link: Connection, wanted: OffsetRange, schema: pa.Schema, settings: RangeSettings = _DEFAULT
) -> Iterator[pa.RecordBatch]:
    """The records of one range.

    Raises:
        OffsetOutOfRange, TopicNotFound, HeadraceError: as `RangeReader.next`.
    """
    reader = RangeReader(link, wanted, settings)
    builder = BatchBuilder(wanted.topic, wanted.partition, schema)
    try:
        while found := sync.run(reader.next()):
            for raw in found:
                yield from builder.add(raw, wanted.until)
        if builder.row_count:
            yield builder.flush()
    finally:
        sync.run(reader.close())


def read_batches(
    bootstrap: str,
    topic: str,
    *,
    partitions: Sequence[int] | None = None,
    start: Where = "earliest",
    end: Where = "latest",
    columns: Iterable[str] | None = None,
    skip_lost: bool = False,
    **options: Any,
) -> Iterator[pa.RecordBatch]:
    """The records of a topic (or some of its partitions) from `start` to before `end`: each an
    offset, `"earliest"`, `"latest"` or a datetime. What comes after the call is not waited for.

    `columns` reads only those, `skip_lost` passes over records that retention removed meanwhile;
    `options` are the fields of `ConnectionSettings`.

    Raises:
        TopicNotFound, PartitionNotFound: there is no such place.
        HeadraceError: the cluster can't be asked or read.
    """
    schema = schema_of(columns)
    link = connection(bootstrap, ConnectionSettings(**options))
    ranges = sync.run(_ranges(link, topic, partitions, start, end))
    return _read_all(link, ranges, schema, RangeSettings(skip_lost=skip_lost))


def _read_all(
    link: Connection, ranges: list[OffsetRange], schema: pa.Schema, settings: RangeSettings
) -> Iterator[pa.RecordBatch]:
    for wanted in ranges:
        yield from read_range(link, wanted, schema, settings)


async def _ranges(
    link: Connection, topic: str, partitions: Sequence[int] | None, start: Where, end: Where
) -> list[OffsetRange]:
    view = await link.view.refresh(topic)
    numbers = range(len(view.leaders)) if partitions is None else sorted(set(partitions))
    for number in numbers:
        if not 0 <= number < len(view.leaders):
            raise PartitionNotFound(
                f"topic {topic!r} has partitions 0 to {len(view.leaders) - 1}, not {number}"
            )
    asked = [TopicPartition(topic, number) for number in numbers]
    timeout = link.client.settings.request_timeout
    firsts = await places_of(link.client, asked, start, timeout=timeout)
    lasts = await places_of(link.client, asked, end, timeout=timeout)
    if isinstance(end, int):  # What isn't there yet is not waited for.
        heads = await places_of(link.client, asked, "latest", timeout=timeout)
        lasts = {where: min(end, heads[where]) for where in asked}
    return [
        OffsetRange(topic, view.topic_id, where.partition, firsts[where], lasts[where])
        for where in asked
        if firsts[where] < lasts[where]
    ]


def open_reader(bootstrap: str, topic: str, **options: Any) -> pa.RecordBatchReader:
    """A stream of record batches that pandas, polars and DuckDB read without holding all of it;
    arguments and errors as `read_batches`."""
    schema = schema_of(options.get("columns"))
    return pa.RecordBatchReader.from_batches(schema, read_batches(bootstrap, topic, **options))


def read_table(bootstrap: str, topic: str, **options: Any) -> pa.Table:
    """All of it in memory; arguments and errors as `read_batches`."""
    return open_reader(bootstrap, topic, **options).read_all()
