"""`spark.readStream.format("headrace")`: offsets for each trigger, asked of the cluster.

Spark keeps the offsets, in its checkpoint. One instance of the reader lives on the driver as long
as the query, and remembers what it saw last; others in the executors only read. An answer "nothing
new" is given after a long poll, never from memory: who calls `processAllAvailable` gets all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headrace.protocol.errors import HeadraceError
from headrace.spark.batch import partitions_of, place_in, report
from headrace.spark.cluster import Cluster
from headrace.spark.columns import arrow_schema
from headrace.spark.core.offsets import (
    Partition,
    Position,
    flat,
    from_json,
    to_json,
    with_offsets,
)
from headrace.spark.core.options import Place, ReadOptions
from headrace.spark.core.planning import (
    bytes_shares,
    find_losses,
    is_due,
    keep_up,
    plan_spans,
    share_out,
)
from headrace.spark.tasks import read_span

log = logging.getLogger("headrace.spark")

BEHIND_GRACE_S = 10.0
"""How long a log may end before what was read of it: a new leader learns its end in that time.
Longer is loss."""

PUBLISH_AGAIN_S = 5.0
"""How long publishing a group's offsets is left alone after it failed."""

Json = dict[str, Any]


class HeadraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's and (another instance) the executors' side of a stream."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._forget()

    def _forget(self) -> None:
        self._cluster_of_query: Cluster | None = None
        self._seen: dict[str, Position] | None = None
        self._target: dict[str, Position] | None = None
        self._is_idle = False
        self._behind_since: float | None = None
        self._last_trigger_ms: float | None = None
        self._published: dict[Partition, int] | None = None
        self._publish_again_s = 0.0

    def __getstate__(self) -> Json:
        return {"_options": self._options, "_schema": self._schema}

    def __setstate__(self, state: Json) -> None:
        self._options, self._schema = state["_options"], state["_schema"]
        self._forget()

    @property
    def _cluster(self) -> Cluster:
        if self._cluster_of_query is None:
            self._cluster_of_query = Cluster(self._options.connect, self._options.subscription)
        return self._cluster_of_query

    # --- offsets, on the driver ------------------------------------------------------------------

    def initialOffset(self) -> Json:
        """Where a new query begins: `startingOffsets` and its kin; latest unless given.

        Raises:
            TopicNotFound, InvalidConfig, OffsetOutOfRange: it can't begin there.
        """
        self._cluster.require_topics()
        earliest, latest = self._cluster.earliest(), self._cluster.latest()
        place = self._options.starting or Place(kind="latest")
        return to_json(place_in(self._cluster, place, earliest, latest, self._options))

    def getDefaultReadLimit(self) -> ReadLimit:
        """What Spark shows as the limit; `latestOffset` applies all that were given."""
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Up to where the next micro-batch reads; `start` itself if there is nothing to do.

        Raises:
            OffsetOutOfRange: records are lost, and failOnDataLoss is on.
            HeadraceError: the cluster can't be asked.
        """
        before = from_json(start)
        heads = self._heads(before)
        ends = keep_up(before, heads) if self._is_within_grace(before, heads) else heads
        report(find_losses(before, ends), self._options)
        self._publish(before, ends)
        if not isinstance(limit, ReadAllAvailable):
            if self._target is None and not self._is_due(before, ends):
                self._is_idle = True
                return start
            ends = self._limited(before, ends)
        found = to_json(ends)
        self._is_idle = found == start
        if self._is_idle:
            return start
        self._last_trigger_ms = time.monotonic() * 1000
        return found

    def reportLatestOffset(self) -> Json | None:
        """The ends as last seen, for the query's progress (and `lag`)."""
        return None if self._seen is None else to_json(self._seen)

    def prepareForTriggerAvailableNow(self) -> None:
        """From now on nothing behind the present ends is read."""
        self._target = self._seen = self._cluster.latest(fresh=True)

    def _heads(self, before: dict[str, Position]) -> dict[str, Position]:
        if self._target is not None:
            return keep_up(before, self._target)
        seen = self._seen if self._is_idle and not self._cluster.is_stale else None
        if seen is not None and not self._cluster.wait_for_news(seen):
            return seen
        self._seen = self._cluster.latest()
        return self._seen

    def _is_within_grace(self, before: dict[str, Position], heads: dict[str, Position]) -> bool:
        """Whether a log ends before what was read of it, but not for long."""
        ends = flat(heads)
        is_behind = any(
            where in ends
            and ends[where] < offset
            and heads[where[0]].topic_id == before[where[0]].topic_id
            for where, offset in flat(before).items()
        )
        if not is_behind:
            self._behind_since = None
            return False
        now = time.monotonic()
        if self._behind_since is None:
            self._behind_since = now
        return now - self._behind_since < BEHIND_GRACE_S

    def _is_due(self, before: dict[str, Position], ends: dict[str, Position]) -> bool:
        if self._options.min_offsets_per_trigger is None:
            return True
        begins = self._begins(before, ends)
        waiting = sum(max(end - begins[where], 0) for where, end in flat(ends).items())
        return is_due(
            waiting=waiting,
            smallest=self._options.min_offsets_per_trigger,
            now_ms=time.monotonic() * 1000,
            last_ms=self._last_trigger_ms,
            delay_ms=self._options.max_trigger_delay_ms,
        )

    def _limited(
        self, before: dict[str, Position], ends: dict[str, Position]
    ) -> dict[str, Position]:
        options, limits = self._options, flat(ends)
        if options.max_offsets_per_trigger is None and options.max_bytes_per_trigger is None:
            return ends
        begins = self._begins(before, ends)
        if options.max_offsets_per_trigger is not None:
            limits = share_out(begins, limits, options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            shares = bytes_shares(begins, limits, options.max_bytes_per_trigger)
            for where, offset in self._cluster.after_bytes(begins, shares).items():
                limits[where] = min(limits[where], max(offset, begins[where] + 1))
        return with_offsets(ends, limits)

    def _begins(
        self, before: dict[str, Position], ends: dict[str, Position]
    ) -> dict[Partition, int]:
        """Where the next batch begins in every partition; at the log's start in new ones."""
        known = {
            where: offset
            for where, offset in flat(before).items()
            if where[0] in ends and ends[where[0]].topic_id == before[where[0]].topic_id
        }
        new = flat(ends).keys() - known.keys()
        if not new:
            return known
        firsts = flat(self._cluster.earliest())
        return {**known, **{where: firsts.get(where, 0) for where in new}}

    # --- planning and reading --------------------------------------------------------------------

    def partitions(self, start: Json, end: Json) -> Sequence[InputPartition]:
        """The tasks of one micro-batch; the same for the same offsets, whenever it is asked.

        Raises:
            OffsetOutOfRange: records are lost, and failOnDataLoss is on.
        """
        earliest = self._cluster.earliest(fresh=True)
        plan = plan_spans(from_json(start), from_json(end), earliest)
        report(plan, self._options)
        return partitions_of(plan.spans, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records, in an executor."""
        return read_span(self._options, self._schema, partition)

    def commit(self, end: Json) -> None:
        """Told with the next micro-batch's plan; `latestOffset` has published it by then."""
        done = from_json(end)
        self._publish(done, done)

    def _publish(self, done: dict[str, Position], there: dict[str, Position]) -> None:
        """Publishes in the group's name what is read, as far as it is still there. Only for people
        and dashboards: a failure is told in the log and stops nothing.

        When Spark asks what comes after some offset, all before it is in its commit log. `commit`
        would tell of the last micro-batch only when there is another, maybe never."""
        group = self._options.group
        if group is None or time.monotonic() < self._publish_again_s:
            return
        known = {topic: found.topic_id for topic, found in there.items()}
        offsets = flat({t: found for t, found in done.items() if known.get(t) == found.topic_id})
        if not offsets or offsets == self._published:
            return
        try:
            self._cluster.publish(group, offsets)
            self._published = offsets
        except HeadraceError as error:
            self._publish_again_s = time.monotonic() + PUBLISH_AGAIN_S
            log.warning("the offsets of group %r could not be published: %s", group, error)
