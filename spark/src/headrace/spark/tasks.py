"""What runs in an executor to read: one span of one partition, as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headrace.protocol.errors import PartitionNotFound, TopicNotFound
from headrace.protocol.ids import parse_topic_id
from headrace.sdk.arrow.reading import read_range
from headrace.sdk.reading.ranges import OffsetRange, RangeSettings
from headrace.spark.cluster import open_connection
from headrace.spark.core.options import ReadOptions
from headrace.spark.core.planning import Span

log = logging.getLogger("headrace.spark")


@dataclass
class SpanPartition(InputPartition):
    """A task's share."""

    span: Span


def read_span(
    options: ReadOptions, schema: pa.Schema, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """The span's records. Nothing for the partition without a span that Spark makes of an empty
    plan.

    Raises:
        OffsetOutOfRange, TopicNotFound: records are gone, and failOnDataLoss is on.
        HeadraceError: the cluster can't be read.
    """
    if not isinstance(partition, SpanPartition):
        return
    topic, topic_id, number, start, until = partition.span
    wanted = OffsetRange(topic, parse_topic_id(topic_id), number, start, until)
    settings = RangeSettings(
        fetch_bytes=options.fetch_bytes,
        stalled_s=options.poll_timeout_ms / 1000,
        skip_lost=not options.fail_on_data_loss,
    )
    try:
        yield from read_range(open_connection(options.connect), wanted, schema, settings)
    except (TopicNotFound, PartitionNotFound) as error:
        if options.fail_on_data_loss:
            raise
        log.warning("%s; skipped, because failOnDataLoss is false", error)
