"""`spark.read.format("headrace")`: what a batch reads is settled once, when it is planned."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headrace.protocol.errors import OffsetOutOfRange
from headrace.spark.cluster import Cluster
from headrace.spark.columns import arrow_schema
from headrace.spark.core.offsets import Position, Positions, flat
from headrace.spark.core.options import Place, ReadOptions
from headrace.spark.core.planning import Plan, Span, plan_spans, split
from headrace.spark.core.pruning import Operator, Predicate, prune
from headrace.spark.core.starting import resolve, times_of
from headrace.spark.tasks import SpanPartition, read_span

log = logging.getLogger("headrace.spark")

_OPERATORS: dict[type[Filter], Operator] = {
    datasource.EqualTo: "=",
    datasource.GreaterThan: ">",
    datasource.GreaterThanOrEqual: ">=",
    datasource.LessThan: "<",
    datasource.LessThanOrEqual: "<=",
    datasource.In: "in",
}
_PRUNED_BY = ("topic", "partition", "offset")


class HeadraceBatchReader(DataSourceReader):
    """Plans on the driver, reads in the executors."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._predicates: list[Predicate] = []

    def partitions(self) -> Sequence[InputPartition]:
        """One task a partition, or more where asked for.

        Raises:
            TopicNotFound, InvalidConfig, OffsetOutOfRange: there is nothing to read so.
        """
        options = self._options
        cluster = Cluster(options.connect, options.subscription)
        cluster.require_topics()
        earliest, latest = cluster.earliest(), cluster.latest()
        start = place_in(
            cluster, options.starting or Place(kind="earliest"), earliest, latest, options
        )
        end = place_in(cluster, options.ending or Place(kind="latest"), earliest, latest, None)
        plan = plan_spans(start, _within(end, latest, options), earliest)
        report(plan, options)
        spans = prune(plan.spans, self._predicates)
        return partitions_of(spans, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records."""
        return read_span(self._options, self._schema, partition)


class PushdownBatchReader(HeadraceBatchReader):
    """With `filterPushdown=true`. A class of its own, because Spark refuses any reader that can
    take filters unless spark.sql.python.filterPushdown.enabled is on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keeps what prunes, and leaves all of it to Spark as well."""
        for each in filters:
            operator = _OPERATORS.get(type(each))
            column: tuple[str, ...] = getattr(each, "attribute", ())
            if operator is not None and len(column) == 1 and column[0] in _PRUNED_BY:
                value = each.value  # type: ignore[attr-defined]
                self._predicates.append(Predicate(column[0], operator, value))
            yield each


def place_in(
    cluster: Cluster,
    place: Place,
    earliest: Positions,
    latest: Positions,
    options: ReadOptions | None,
) -> dict[str, Position]:
    """A place's offsets, looked up; `options` where records as late as asked for must exist."""
    at_times = cluster.at_times(times_of(place, latest))
    late = "latest" if options is None else options.late_start
    return resolve(place, earliest=earliest, latest=latest, at_times=at_times, late=late)


def _within(end: Positions, latest: Positions, options: ReadOptions) -> Positions:
    """No end behind the log's: such offsets would be waited for."""
    heads, losses = flat(latest), []
    for (topic, number), offset in flat(end).items():
        if offset > heads[topic, number]:
            head = heads[topic, number]
            losses.append(f"{topic}/{number} ends at {head}, endingOffsets say {offset}")
    if not losses:
        return end
    report(Plan([], losses), options)
    return {
        topic: Position(
            found.topic_id,
            {number: min(at, heads[topic, number]) for number, at in found.offsets.items()},
        )
        for topic, found in end.items()
    }


def report(plan: Plan, options: ReadOptions) -> None:
    """Stops at losses, or (failOnDataLoss=false) says them and goes on.

    Raises:
        OffsetOutOfRange: records are lost.
    """
    if not plan.losses:
        return
    text = "; ".join(plan.losses[:5])
    if len(plan.losses) > 5:
        text += f"; and {len(plan.losses) - 5} more"
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"records that should be read can't be: {text}. Set failOnDataLoss to false to go on"
            " without them"
        )
    log.warning("records are left out, because failOnDataLoss is false: %s", text)


def partitions_of(spans: Sequence[Span], options: ReadOptions) -> list[InputPartition]:
    """Spark's tasks for the spans."""
    pieces = split(
        spans,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [SpanPartition(piece) for piece in pieces]
