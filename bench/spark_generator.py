"""Spark sources to compare with, for `bench/spark.py`: what Spark itself can take.

`generator` yields one ready-made record batch again and again (the most that any Python source can
reach), `tuples` yields rows; both have no queue behind them, the columns of the Kafka source, and
100-byte values. `headrace-rows` reads a topic as a source would that knew nothing of Arrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.protocol import batch
from headrace.protocol.ids import parse_topic_id
from headrace.sdk import sync
from headrace.sdk.reading.ranges import OffsetRange, RangeReader, RangeSettings
from headrace.spark.batch import HeadraceBatchReader
from headrace.spark.cluster import open_connection
from headrace.spark.columns import arrow_schema, full_schema
from headrace.spark.core.options import parse_read
from headrace.spark.source import HeadraceDataSource
from headrace.spark.tasks import SpanPartition

ROWS = 10_000
SCHEMA = full_schema(include_headers=False)
STAMP = datetime(2026, 1, 1, tzinfo=UTC)


def ready_made() -> pa.RecordBatch:
    """One batch of all columns."""
    columns: dict[str, Any] = {
        "key": [None] * ROWS,
        "value": [b"%0100d" % index for index in range(ROWS)],
        "topic": ["bench"] * ROWS,
        "partition": [0] * ROWS,
        "offset": list(range(ROWS)),
        "timestamp": [STAMP] * ROWS,
        "timestampType": [0] * ROWS,
    }
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema(SCHEMA))


def _arrow(count: int) -> Iterator[pa.RecordBatch]:
    batch = ready_made()
    for _ in range(count // ROWS):
        yield batch


def _tuples(count: int) -> Iterator[tuple[Any, ...]]:
    value, stamp = b"v" * 100, STAMP
    for index in range(count):
        yield (None, value, "bench", 0, index, stamp, 0)


class Reader(DataSourceReader):
    """Shares `rows` among `tasks`."""

    def __init__(self, options: Any, *, as_tuples: bool) -> None:
        self._tasks = int(options["tasks"])
        self._rows = int(options["rows"]) // self._tasks
        self._as_tuples = as_tuples

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._rows) for _ in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return (_tuples if self._as_tuples else _arrow)(partition.value)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The same in micro-batches."""

    def __init__(self, options: Any) -> None:
        self._tasks, self._rows = int(options["tasks"]), int(options["rows"])
        self._limit = int(options["limit"])

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limit)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"at": min(start["at"] + self._limit, self._rows)}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        share = (end["at"] - start["at"]) // self._tasks
        return [InputPartition(share) for _ in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _arrow(partition.value)


class GeneratorSource(DataSource):
    """`format("generator")`: options rows, tasks and (a stream) limit."""

    @classmethod
    def name(cls) -> str:
        return "generator"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(self.options, as_tuples=False)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self.options)


class TuplesSource(GeneratorSource):
    """`format("tuples")`."""

    @classmethod
    def name(cls) -> str:
        return "tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(self.options, as_tuples=True)


class RowsReader(HeadraceBatchReader):
    """Plans and fetches as ever, but makes a row of every record."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, SpanPartition)
        topic, topic_id, number, start, until = partition.span
        wanted = OffsetRange(topic, parse_topic_id(topic_id), number, start, until)
        reader = RangeReader(open_connection(self._options.connect), wanted, RangeSettings())
        while found := sync.run(reader.next()):
            for raw in found:
                for each in batch.records(topic, number, raw.data, raw.header):
                    if raw.first_offset <= each.offset < until:
                        stamp = datetime.fromtimestamp(each.timestamp_ms / 1000, UTC)
                        yield each.key, each.value, topic, number, each.offset, stamp, 0


class RowsSource(HeadraceDataSource):
    """`format("headrace-rows")`: options as of `headrace`."""

    @classmethod
    def name(cls) -> str:
        return "headrace-rows"

    def reader(self, schema: StructType) -> DataSourceReader:
        return RowsReader(parse_read(self.options).for_batch(), schema)
